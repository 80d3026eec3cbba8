"""The cache of decoded datasets: its folder, when it is used, and damaged entries."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from data_helpers import limited_memory
from faults.data_files import FORGED_ARRAYS, forge_about, forge_file, put_odd_file
from faults.datasets import write_idx

from spacecl import ConfigError, DataError
from spacecl.data import readers, sources
from spacecl.data.arrays import DecodedDataset, Split
from spacecl.data.cache import cache_folder, load_decoded


def test_the_cache_folder_is_the_users_own_or_the_one_that_the_environment_names(tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.setenv("SPACECL_CACHE", "~/elsewhere")
    assert cache_folder() == Path.home() / "elsewhere"
    monkeypatch.delenv("SPACECL_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if sys.platform == "linux":  # the folder of earlier versions, whose entries are still used
        assert cache_folder() == Path.home() / ".cache" / "spacecl"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_folder() == tmp_path / "xdg" / "spacecl"


def test_data_is_decoded_once_and_again_when_its_files_change(tmp_path, monkeypatch):
    write_idx(tmp_path / "MNIST")
    reads = []
    monkeypatch.setitem(readers.READERS, "mnist", lambda folder: reads.append(folder) or readers.read_idx(folder))
    first, second = sources.load("mnist", tmp_path), sources.load("mnist", tmp_path)
    assert len(reads) == 1
    assert isinstance(second.train[0], np.memmap)
    assert np.array_equal(first.train[0], readers.read_idx(tmp_path / "MNIST").train[0])
    assert second.statistics[0][0] == pytest.approx(first.train[0].mean())
    assert second.statistics[1][0] == pytest.approx(first.train[0].std())
    write_idx(tmp_path / "MNIST", count=80)
    assert len(sources.load("mnist", tmp_path).train[1]) == 80
    assert len(reads) == 2


def test_a_cache_that_cannot_be_written_is_reported_with_a_remedy(tmp_path, monkeypatch):
    write_idx(tmp_path / "MNIST")
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", "/dev/full"):
        monkeypatch.setenv("SPACECL_CACHE", str(place))
        with pytest.raises(ConfigError, match=rf"The cache {place}/decoded cannot be used: .*SPACECL_CACHE"):
            sources.load("mnist", tmp_path)


def test_decoding_that_fails_leaves_no_partial_entry_in_the_cache(tmp_path):
    write_idx(tmp_path / "MNIST")
    file = tmp_path / "MNIST" / "train-images-idx3-ubyte.gz"
    data = file.read_bytes()
    file.write_bytes(data[:-30])
    with pytest.raises(DataError):
        sources.load("mnist", tmp_path)
    file.write_bytes(data)
    assert len(sources.load("mnist", tmp_path).train[1]) == 40
    assert not [path for path in (tmp_path / "cache" / "decoded").iterdir() if path.name.startswith(".making")]


ODD_FACTS = ({"classes": ["0"]}, {"spread": [[1.0], [float("nan")]]}, {"note": 3}, {"files": []})


@pytest.mark.parametrize("damage", [*FORGED_ARRAYS, "about", "pipe", "sparse"])
@pytest.mark.parametrize("file", ["train-pixels.npy", "train-labels.npy"])
def test_a_forged_entry_of_the_cache_is_decoded_again(tmp_path, damage, file):
    images = write_idx(tmp_path / "MNIST")
    sources.load("mnist", tmp_path)
    entry = next(path for path in (tmp_path / "cache" / "decoded").iterdir() if path.is_dir())
    if damage in FORGED_ARRAYS:
        data = FORGED_ARRAYS[damage]((entry / file).read_bytes())
        (entry / file).write_bytes(data)
        if damage != "flipped":  # a forger can compute checksums, too
            forge_file(entry / file, data)
    elif damage != "about":
        put_odd_file(entry / file, damage)
    for odd in ODD_FACTS if damage == "about" else ({},):
        if odd:
            forge_about(entry / "about.json", odd)
        with limited_memory():
            dataset = sources.load("mnist", tmp_path)
        assert np.array_equal(dataset.train[0][:, 0], images)
        assert dataset.train[1].tolist()[:4] == [0, 1, 2, 3]
        assert dataset.statistics[1][0] > 50
        assert len(dataset.classes) == 10


def test_an_entry_with_another_mean_is_not_used(tmp_path):
    """Another mean would change what is learned without notice."""
    write_idx(tmp_path / "MNIST")
    expected = sources.load("mnist", tmp_path).statistics
    entry = next(path for path in (tmp_path / "cache" / "decoded").iterdir() if path.is_dir())
    document = json.loads((entry / "about.json").read_text())
    document["about"]["spread"][0][0] += 1.0
    (entry / "about.json").write_text(json.dumps(document))
    assert sources.load("mnist", tmp_path).statistics == expected


@pytest.mark.parametrize("damage", ["cut", "empty", "about", "gone"])
def test_a_damaged_entry_of_the_cache_is_decoded_again(tmp_path, damage):
    images = write_idx(tmp_path / "MNIST")
    sources.load("mnist", tmp_path)
    entry = next(path for path in (tmp_path / "cache" / "decoded").iterdir() if path.is_dir())
    file = entry / "train-pixels.npy"
    if damage in ("cut", "empty"):
        file.write_bytes(file.read_bytes()[:-100] if damage == "cut" else b"")
    elif damage == "about":
        (entry / "about.json").write_text("")
    else:
        (entry / "about.json").unlink()
    assert np.array_equal(sources.load("mnist", tmp_path).train[0][:, 0], images)


def test_tasks_of_one_dataset_share_one_mapping(tmp_path, monkeypatch):
    """Every mapping of its own counted its pages again: ten tasks of CIFAR-100 took ten times the memory."""
    monkeypatch.setenv("SPACECL_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "data"
    file.write_bytes(b"x")
    rng = np.random.default_rng(0)
    split = Split(rng.integers(0, 256, (6, 1, 12, 12), dtype=np.uint8), np.arange(6) % 2)
    first, second = (load_decoded("shared", [file], lambda: DecodedDataset(split, split, ("a", "b"))) for _ in range(2))
    assert np.array_equal(first.train.pixels, split.pixels)
    assert np.shares_memory(first.train.pixels, second.train.pixels)
