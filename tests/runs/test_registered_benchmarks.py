"""Benchmarks that users register, in Python and through a file that the command line names."""

import shutil

import pytest
import torch
from helpers import ROOT

import spacecl
from spacecl import ConfigError, Recipe, Task, benchmarks
from spacecl.cli.main import main
from spacecl.data import registry
from spacecl.runs.config import Config
from spacecl.runs.resolve import resolve
from spacecl.runs.result import read_result
from spacecl.runs.run_folder import choose_folder

EXAMPLE = ROOT / "examples" / "own_benchmarks.py"


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    """Nothing that a test registers stays registered."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr("spacecl.user_code._namespaces", {})


def signs():
    x = torch.randn(60, 4)
    y = (x[:, 0] > 0).long()
    return [Task(name, (x, y), test=(x, y)) for name in ("a", "b")]


def test_a_registered_benchmark_is_loaded_by_its_name():
    benchmarks.register("signs", signs)
    assert [task.name for task in benchmarks.load("signs")] == ["a", "b"]
    assert [task.name for task in benchmarks.load("signs", order=[2, 1], tasks=1)] == ["b"]
    benchmarks.register("signs", lambda: signs()[:1])
    assert len(benchmarks.load("signs")) == 1, "the latest counts"
    assert spacecl.benchmarks is benchmarks


def test_what_cannot_be_registered_is_refused_with_a_reason():
    for arguments, message in (
        (("p-mnist", signs), "'p-mnist' is a benchmark of spacecl"),
        (("a/b", signs), "'a/b' is not a name of letters"),
        (("a.py", signs), r"'a\.py' is not a name"),
        ((3, signs), "3 is not a name"),
        (("x", []), r"tasks=\[\] must be a function"),
    ):
        with pytest.raises(ConfigError, match=message):
            benchmarks.register(*arguments)
    with pytest.raises(ConfigError, match="network=3 must be a function"):
        benchmarks.register("x", signs, network=3)
    with pytest.raises(ConfigError, match=r"recipe=7 must be a dictionary or a spacecl.Recipe"):
        benchmarks.register("x", signs, recipe=7)
    benchmarks.register("x", lambda: [1])
    with pytest.raises(ConfigError, match=r"The function of the benchmark x must return a list of spacecl.Task"):
        benchmarks.load("x")


def test_the_example_runs_from_the_command_line_with_its_network_and_recipe(tmp_path):
    name = f"{EXAMPLE}:digit-questions"
    assert main(["run", name, "--tasks", "2", "--epochs", "1", "--out", str(tmp_path), "--quiet", "--no-measure"]) == 0
    config = Config.from_file(tmp_path / "config.json")
    assert (config.benchmark, config.model, config.recipe) == (name, name, "auto")
    assert config.train == {"epochs": 1, "retrain_epochs": 5, "lr": 0.002}, "the flag counts more than the file"
    assert config.find_user_code() == [name, name]
    result = read_result(tmp_path / "result.json")
    assert [task["name"] for task in result["tasks"]] == ["odd-or-even", "low-or-high"]
    assert list(result["network"]["widths"]) == ["0", "3"], "the convolutions of the file's own network"
    assert main(["verify", str(tmp_path)]) == 1
    assert main(["verify", str(tmp_path), "--trust-code", "--accuracy"]) == 0
    assert main(["verify", str(tmp_path), "--model", name]) == 0
    (tmp_path / "result.json").unlink()
    assert main(["run", "--resume", "--out", str(tmp_path), "--quiet"]) == 1
    assert main(["run", name, "--tasks", "2", "--epochs", "1", "--out", str(tmp_path), "--quiet", "--no-measure"]) == 0


def test_settings_of_a_registered_benchmark_are_defaults_that_users_replace(tmp_path):
    config = resolve({"benchmark": f"{EXAMPLE}:digit-questions", "model": "mlp-small", "train": {"lr": 0.5}})
    assert config.model == "mlp-small"
    assert config.make_recipe(1, 1000, 100).lr == 0.5
    assert config.make_recipe(1, 1000, 100).batch_size == Recipe.auto(1000, 100).batch_size, "the rest follows the data"
    assert choose_folder(config).name == "digit-questions-space-auto-seed0"
    resumed = resolve({key: value for key, value in config.to_json().items() if value is not None})
    assert resumed == config


def write(folder, *registrations):
    lines = ["import torch, spacecl", "x = torch.arange(240.0).reshape(60, 4)", "y = torch.arange(60) % 2"]
    lines += ["def get():\n    return [spacecl.Task('a', (x, y), test=(x, y))]", *registrations]
    (folder / "mine.py").write_text("\n".join(lines))
    return str(folder / "mine.py")


def test_a_file_with_one_benchmark_needs_no_name_and_one_with_more_says_which_there_are(tmp_path):
    file = write(tmp_path, "spacecl.benchmarks.register('one', get, network='mlp-small', recipe={'epochs': 7})")
    config = resolve({"benchmark": file})
    assert (config.benchmark, config.model, config.train) == (file, "mlp-small", {"epochs": 7})
    assert [task.name for task in benchmarks.load(file)] == ["a"]
    full = Recipe(epochs=4)
    file = write(
        tmp_path, *(f"spacecl.benchmarks.register('{n}', get, recipe=spacecl.Recipe(epochs=4))" for n in ("one", "two"))
    )
    assert resolve({"benchmark": f"{file}:two"}).make_recipe(1, 50, 10) == full
    with pytest.raises(ConfigError, match=r"mine.py:one, .*mine.py:two"):
        benchmarks.load(file)
    assert [task.name for task in benchmarks.load(f"{file}:get")] == ["a"], "a function needs no registration"


def test_a_wrong_recipe_or_network_is_reported_before_anything_runs(tmp_path):
    file = write(tmp_path, "spacecl.benchmarks.register('one', get, network='cn', recipe={'epoch': 7})")
    with pytest.raises(ConfigError, match=r"(?s)train.epoch is not a setting.*model='cn' must be one of"):
        resolve({"benchmark": file})
    file = write(tmp_path, "spacecl.benchmarks.register('p-mnist', get)")
    with pytest.raises(ConfigError, match="is a benchmark of spacecl"):
        resolve({"benchmark": file})


def test_files_that_register_the_same_name_are_kept_apart(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, f"spacecl.benchmarks.register('one', get, recipe={{'epochs': {len(name) + ord(name)}}})")
    first, second = (resolve({"benchmark": f"{tmp_path}/{name}/mine.py:one"}).train["epochs"] for name in ("a", "b"))
    assert (first, second) == (98, 99)
    shutil.rmtree(tmp_path / "b")
    assert resolve({"benchmark": f"{tmp_path}/a/mine.py:one"}).train["epochs"] == 98
