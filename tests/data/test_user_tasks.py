"""Users' own data as tasks: folders of pictures and Python files."""

import warnings

import numpy as np
import pytest
import torch
from faults.datasets import write_pictures
from helpers import ROOT
from PIL import Image

from spacecl import ConfigError, DataError
from spacecl.cli.main import main
from spacecl.data.benchmarks.streams import load_stream


def test_a_folder_of_class_folders_is_a_task_with_a_tenth_set_aside_for_testing(tmp_path):
    write_pictures(tmp_path / "own" / "birds", ["crow", "robin"], 10, (40, 30), "RGB", ".jpg")
    write_pictures(tmp_path / "own" / "trees" / "train", ["elm", "oak", "yew"], 4, (40, 30), "RGB")
    write_pictures(tmp_path / "own" / "trees" / "test", ["elm", "oak", "yew"], 2, (40, 30), "L")
    write_pictures(tmp_path / "own" / "trees" / "valid", ["elm", "oak", "yew"], 1, (40, 30), "RGB")
    birds, trees = load_stream(str(tmp_path / "own"), image_size=16)
    assert (birds.classes, len(birds.train), len(birds.test), birds.valid) == (("crow", "robin"), 18, 2, None)
    assert (trees.classes, len(trees.train), len(trees.valid), len(trees.test)) == (("elm", "oak", "yew"), 12, 3, 6)
    assert birds.train.finish(birds.train.batch([0])[0]).shape == (1, 3, 16, 16)
    assert not set(map(bytes, birds.train.pixels)) & set(map(bytes, birds.test.pixels))
    assert sorted(birds.test.targets.tolist()) == [0, 1], "of every class"
    with Image.open(tmp_path / "own" / "trees" / "valid" / "oak" / "0.png") as picture:
        expected = np.asarray(picture.resize((16, 16), Image.Resampling.BILINEAR, reducing_gap=3.0)).transpose(2, 0, 1)
    assert np.array_equal(trees.valid.pixels[1], expected)
    assert trees.valid.mean == trees.train.mean == trees.test.mean
    assert load_stream(str(tmp_path / "own"), image_size=20)[0].train.pixels.shape[1:] == (3, 20, 20)
    limited = load_stream(str(tmp_path / "own"), image_size=16, limit=2)[1]
    assert (len(limited.train), len(limited.valid), len(limited.test)) == (6, 3, 6)


def test_folders_are_sorted_by_their_numbers(tmp_path):
    for number in (1, 2, 10):
        write_pictures(tmp_path / f"task{number}", ["a", "b"], 3)
    assert [task.name for task in load_stream(str(tmp_path))] == ["task1", "task2", "task10"]


def test_all_problems_with_folders_are_reported_at_once(tmp_path):
    write_pictures(tmp_path / "one", ["only"], 3)
    write_pictures(tmp_path / "two" / "train", ["a", "b"], 3)
    write_pictures(tmp_path / "two" / "test", ["a", "c"], 3)
    write_pictures(tmp_path / "two" / "val", ["a", "b"], 3)
    write_pictures(tmp_path / "test", ["a", "b"], 3)
    (tmp_path / "three" / "x").mkdir(parents=True)
    write_pictures(tmp_path / "three", ["y"], 1)
    with pytest.raises(DataError) as failed:
        load_stream(str(tmp_path))
    text = str(failed.value)
    assert "one needs at least two class folders" in text
    assert "has the classes ['a', 'c'], but train has ['a', 'b']" in text
    assert "holds no pictures" in text
    assert "has val next to train, valid and test, which is not allowed" in text
    assert "holds train, valid or test itself" in text


def test_a_python_file_returns_tasks_and_its_problems_are_reported(tmp_path):
    file = tmp_path / "mine.py"
    body = "import torch, spacecl\nx, y = torch.randn(60, 4), torch.arange(60) % 3\n"
    file.write_text(f"{body}def tasks():\n    return [spacecl.Task('a', (x, y), test=(x, y))]\ndef nothing():\n    return 3\n")
    assert load_stream(str(file))[0].name == "a"
    limited = load_stream(str(file), limit=5)[0]
    assert torch.bincount(limited.train[1]).tolist() == [5, 5, 5]
    with pytest.raises(ConfigError, match=r"must return a list of spacecl\.Task; it returned a int"):
        load_stream(f"{file}:nothing")
    with pytest.raises(ConfigError, match=r"has no function other\(\)"):
        load_stream(f"{file}:other")
    file.write_text(f"{body}def tasks():\n    return [spacecl.Task('a', (x, y))] * 2\n")
    with pytest.raises(ConfigError, match="no test data for a, a"):
        load_stream(str(file))
    file.write_text(f"{body}def tasks():\n    return [spacecl.Task('a', (x, y), test=(x, y))] * 2\n")
    with pytest.raises(ConfigError, match="names are there twice: a"):
        load_stream(str(file))


def test_a_file_of_tasks_can_import_files_from_its_folder(tmp_path):
    (tmp_path / "neighbour.py").write_text("NAME = 'imported'\n")
    body = "import torch, spacecl, neighbour\nx, y = torch.randn(60, 4), torch.arange(60) % 3\n"
    (tmp_path / "mine.py").write_text(f"{body}def tasks():\n    return [spacecl.Task(neighbour.NAME, (x, y), test=(x, y))]\n")
    assert load_stream(str(tmp_path / "mine.py"))[0].name == "imported"


def test_the_example_of_own_data_runs_as_the_readme_says(tmp_path):
    file = ROOT / "examples" / "own_tasks.py"
    arguments = ["run", str(file), "--model", f"{file}:network", "--out", str(tmp_path / "r"), "--epochs", "1"]
    assert main([*arguments, "--no-measure", "--quiet"]) == 0
    assert (tmp_path / "r" / "result.json").is_file()


def test_a_folder_of_pictures_is_run_by_the_command(tmp_path, capsys):
    generator = np.random.default_rng(0)
    for task in ("a", "b"):
        for shade, name in ((60, "dark"), (190, "light")):
            folder = tmp_path / "own" / task / name
            folder.mkdir(parents=True)
            for number in range(30):
                noise = generator.integers(-50, 50, (20, 20, 3)) + shade
                Image.fromarray(noise.astype(np.uint8)).save(folder / f"{number}.png")
    arguments = ["run", str(tmp_path / "own"), "--out", str(tmp_path / "r"), "--no-measure", "--quiet"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert (
            main(
                [*arguments, "--set", "image_size=16", "--epochs", "3", "--variance", "0.8", "--set", "options.shrinkage=false"]
            )
            == 0
        )
    out, errors = capsys.readouterr()
    assert "2/2  b" in out
    assert "spacecl: warning: Task 'a': too few samples" in errors
