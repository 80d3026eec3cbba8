"""Datasets by name: find, fetch and check them, and the command `spacecl data`."""

import gzip
import hashlib
import http.server
import os
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_helpers import REAL
from faults.datasets import idx_bytes, write_cifar10, write_idx, write_pictures
from helpers import run_spacecl

from spacecl import ConfigError, DataError
from spacecl.cli.main import main
from spacecl.data import sources
from spacecl.data.catalogue import Dataset, Download


def test_data_is_searched_in_the_folders_that_the_user_names(tmp_path, monkeypatch):
    write_idx(tmp_path / "a" / "MNIST" / "raw")
    write_idx(tmp_path / "b" / "fashion-mnist", compressed=False)
    both = os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")])
    assert len(sources.load("mnist", tmp_path / "a").train[1]) == 40
    monkeypatch.setenv("SPACECL_DATA", both)
    assert len(sources.load("fashion-mnist").train[1]) == 40
    assert sources.find_missing(["mnist", "fashion-mnist"], None) == []
    write_idx(tmp_path / "b" / "MNIST", count=80)
    assert len(sources.load("mnist").train[1]) == 40, "the first folder that has it"
    with pytest.raises(ConfigError, match="--data names no folder"):
        sources.load("mnist", "")
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        sources.load("mnist", tmp_path / "nowhere")


def test_missing_data_is_an_error_that_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"MNIST is not in .* \(as MNIST/raw or .*Get it with: spacecl data fetch mnist"):
        sources.load("mnist", tmp_path)
    with pytest.raises(DataError, match="FaceScrub is not published as files: put either"):
        sources.load("facescrub")


@pytest.fixture
def web(tmp_path):
    """A real web server for a folder."""
    folder = tmp_path / "web"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_data_is_fetched_with_checksums_unpacked_and_used(tmp_path, web, monkeypatch):
    folder, address = web
    write_idx(tmp_path / "source")
    downloads = []
    for file in sorted((tmp_path / "source").iterdir()):
        (folder / file.name).write_bytes(file.read_bytes())
        downloads.append(Download(f"{address}/{file.name}", hashlib.md5(file.read_bytes()).hexdigest(), "MNIST/raw"))
    write_cifar10(tmp_path / "source" / "cifar-10-batches-py")
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "source" / "cifar-10-batches-py", "cifar-10-batches-py")
    md5 = hashlib.md5((folder / "cifar-10-python.tar.gz").read_bytes()).hexdigest()
    table = dict(sources.DATASETS)
    table["mnist"] = Dataset("mnist", "MNIST", ("MNIST/raw",), table["mnist"].files, (40, 10), tuple(downloads))
    archive_file = Download(f"{address}/cifar-10-python.tar.gz", md5, unpack=True)
    table["cifar10"] = Dataset("cifar10", "CIFAR-10", ("cifar-10-batches-py",), ("test_batch",), (100, 20), (archive_file,))
    monkeypatch.setattr(sources, "DATASETS", table)
    assert len(sources.load("mnist").train[1]) == 40, "fetched automatically if no folder is named"
    assert len(sources.load("cifar10").train[1]) == 100
    assert sorted(path.name for path in (tmp_path / "cache" / "downloads").iterdir()) == [
        ".lock",
        "MNIST",
        "cifar-10-batches-py",
    ]
    (folder / "cifar-10-python.tar.gz").write_bytes(b"something else")
    with pytest.raises(DataError, match="is not the file that was published"):
        sources.fetch("cifar10", tmp_path / "elsewhere")
    (folder / "cifar-10-python.tar.gz").unlink()
    with pytest.raises(DataError, match=r"cannot be downloaded: .*404.*md5"):
        sources.fetch("cifar10", tmp_path / "elsewhere")


def test_an_interrupted_fetch_leaves_nothing_that_looks_like_data(tmp_path, web, monkeypatch):
    folder, address = web
    write_pictures(tmp_path / "source" / "notMNIST_small", "ABCDEFGHIJ", 3)
    with tarfile.open(folder / "notMNIST_small.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "source" / "notMNIST_small", "notMNIST_small")
    md5 = hashlib.md5((folder / "notMNIST_small.tar.gz").read_bytes()).hexdigest()
    known = sources.DATASETS["notmnist"]
    part = Download(f"{address}/notMNIST_small.tar.gz", md5, unpack=True)
    monkeypatch.setitem(sources.DATASETS, "notmnist", Dataset("notmnist", "n", known.folders, known.files, (27, 3), (part,)))
    into, extract = tmp_path / "d", tarfile.TarFile.extract

    def interrupt(self, *_, **__):
        for member in list(self)[:20]:
            extract(self, member, into / ".fetching-notmnist", filter="data")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sources.fetch("notmnist", into)
    assert sources.DATASETS["notmnist"].find([into]) is None
    sources.fetch("notmnist", into)
    assert len(sources.load("notmnist", into).train[1]) == 27
    (into / "notMNIST_small" / "A" / "0.png").write_bytes(b"ruined")
    assert sources.check("notmnist", into).state == "damaged"
    sources.fetch("notmnist", into)
    assert sources.check("notmnist", into).state == "different"


def test_archives_that_would_write_elsewhere_are_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("../outside")
        archive.addfile(member)
    for name in ("../outside", "/outside", "a/../../outside", "C:\\outside", "..\\outside"):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            archive.writestr(name, "text")
        for file in ("x.tar.gz", "x.zip"):
            with pytest.raises(DataError, match="would write outside of its folder"):
                sources._unpack(tmp_path / file, tmp_path / "target")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "target").exists()


def test_archives_that_unpack_to_more_than_was_ever_published_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LARGEST_ARCHIVE", 1 << 20)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}", bytes(1 << 19))
    (tmp_path / "zeros").write_bytes(bytes(3 << 19))
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "zeros", "zeros")
    (tmp_path / "y.zip").write_bytes(b"PK")
    for name, problem in (
        ("x.zip", "has more than 1,048,576 bytes"),
        ("x.tar.gz", "has more than"),
        ("y.zip", "cannot be unpacked"),
    ):
        with pytest.raises(DataError, match=problem):
            sources._unpack(tmp_path / name, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_zip_archives_are_unpacked_where_they_belong(tmp_path, web, monkeypatch):
    folder, address = web
    with zipfile.ZipFile(folder / "GT.zip", "w") as archive:
        archive.writestr("GT-final_test.csv", "Filename;ClassId\n")
    md5 = hashlib.md5((folder / "GT.zip").read_bytes()).hexdigest()
    part = Download(f"{address}/GT.zip", md5, "GTSRB", unpack=True)
    monkeypatch.setitem(sources.DATASETS, "gtsrb", Dataset("gtsrb", "GTSRB", ("GTSRB",), (), (1, 1), (part,)))
    sources.fetch("gtsrb", tmp_path / "d", progress=True)
    assert (tmp_path / "d" / "GTSRB" / "GT-final_test.csv").is_file()


def test_check_distinguishes_missing_published_different_and_damaged_data(tmp_path, monkeypatch):
    assert sources.check("mnist", tmp_path).state == "missing"
    write_idx(tmp_path / "MNIST")
    result = sources.check("mnist", tmp_path)
    assert result.state == "different"
    assert "40 + 10 images, 10 classes; 60,000 + 10,000 were published" in result.message
    assert "not the published bytes: train-images-idx3-ubyte" in result.message
    known = sources.DATASETS["mnist"]
    files = [tmp_path / "MNIST" / f"{name}.gz" for name in known.files]
    md5 = {file.stem: hashlib.md5(gzip.decompress(file.read_bytes())).hexdigest() for file in files}
    published = Dataset("mnist", "MNIST", known.folders, known.files, (40, 10), md5=md5)
    monkeypatch.setitem(sources.DATASETS, "mnist", published)
    assert sources.check("mnist", tmp_path).state == "published"
    file = files[3]
    file.write_bytes(gzip.compress(idx_bytes(np.full(10, 77, np.uint8))))
    assert sources.check("mnist", tmp_path).state == "damaged"
    file.write_bytes(b"")
    assert sources.check("mnist", tmp_path).state == "damaged"


def test_the_data_command_lists_and_checks_and_its_exit_codes_say_what_failed(tmp_path, monkeypatch, capsys):
    def run(*arguments):
        code = main(["data", *arguments])
        return code, *capsys.readouterr()

    write_idx(tmp_path / "MNIST")
    monkeypatch.setenv("SPACECL_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run("list")
    assert code == 0
    assert "available" in next(line for line in out.splitlines() if " mnist " in line)
    missing = next(line for line in out.splitlines() if " cifar10 " in line)
    assert "missing" in missing
    assert "spacecl data fetch cifar10" in missing
    assert run("check", "p-mnist")[0] == 0
    assert run("check", "split-cifar10")[0] == 1
    code, out, _ = run("fetch", "mnist")
    assert code == 0
    assert "mnist: already available" in out
    assert "--force downloads it again" in out
    (tmp_path / "MNIST" / "train-labels-idx1-ubyte.gz").write_bytes(b"x")
    code, out, _ = run("check")
    assert code == 1
    assert "damaged" in out
    code, out, errors = run("list", "mnits")
    assert (code, out) == (1, "")
    assert "No such dataset: mnits" in errors
    assert run("list", "permuted-digits")[1].count("missing") == 0, "it needs no data"
    code, _, errors = run("fetch", "facescrub")
    assert code == 1
    assert "put either" in errors


def test_the_data_command_runs_in_a_process_of_its_own(tmp_path):
    write_idx(tmp_path / "MNIST")
    result = run_spacecl("data", "check", "mnist", "cifar10", SPACECL_DATA=str(tmp_path))
    assert result.returncode == 1, "cifar10 is missing"
    assert "readable" in next(line for line in result.stdout.splitlines() if " mnist " in line)
    assert "missing" in next(line for line in result.stdout.splitlines() if " cifar10 " in line)


@pytest.mark.parametrize("name", list(sources.DATASETS))
def test_the_real_dataset_is_complete(name, monkeypatch):
    monkeypatch.setattr(sources, "SYSTEM", (Path("/usr/share/datasets"),))
    if sources.DATASETS[name].find(sources.search_folders(REAL)) is None:
        pytest.skip(f"no {name}: set SPACECL_DATA to a folder that holds it")
    result = sources.check(name, REAL)
    assert result.state in ("published", "different"), result.message
    loaded = sources.load(name, REAL)
    assert loaded.train[0].dtype == np.uint8
    assert set(np.unique(loaded.train[1])) == set(range(len(loaded.classes)))
    assert set(np.unique(loaded.test[1])) == set(range(len(loaded.classes)))
