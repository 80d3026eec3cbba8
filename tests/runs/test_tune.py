"""Choosing settings on validation data."""

import json

import pytest
from pydantic import TypeAdapter

from spacecl import ConfigError
from spacecl.cli import main as cli
from spacecl.runs import run, tune
from spacecl.runs.resolve import resolve

GIVEN = {"benchmark": "permuted-digits", "method": "ewc", "tasks": 2, "limit": 20, "device": "cpu"}
SHORT = {"train": {"epochs": 1, "retrain_epochs": 0}}


def quiet(text):
    pass


def test_values_to_try_are_read_as_in_toml():
    result = tune.parse_choices(
        ["strength=0.1,1,10", "train.lr=0.1", 'options.variance=0.9,{conv1=0.95, "*"=0.8}', "freeze=subnet,filters"]
    )
    assert result == {
        "options.strength": [0.1, 1, 10],
        "train.lr": [0.1],
        "options.variance": [0.9, {"conv1": 0.95, "*": 0.8}],
        "options.freeze": ["subnet", "filters"],
    }
    for wrong in ("strength", "strength=", "strength=1,,2", "seed.x=1"):
        with pytest.raises(ConfigError, match="is not of the form KEY=V1,V2"):
            tune.parse_choices([wrong])


def test_the_best_on_validation_data_is_chosen_and_the_budget_recorded(tmp_path):
    over = {"train.lr": [1e-7, 3e-3], "options.strength": [1, 10]}
    result = tune.tune(GIVEN | {"train": {"epochs": 3, "retrain_epochs": 0}}, over, tmp_path, print_line=quiet)
    assert result == json.loads((tmp_path / "tune.json").read_text())
    TypeAdapter(tune.TuneResult).validate_python(result, strict=True)
    assert [row["values"] for row in result["candidates"]] == [
        {"train.lr": lr, "options.strength": s} for lr in (1e-7, 3e-3) for s in (1, 10)
    ]
    best = max(result["candidates"], key=lambda row: row["average_accuracy"])
    assert result["best"] == best["values"]
    assert result["best"]["train.lr"] == 3e-3
    assert result["budget"]["runs"] == 4
    assert result["budget"]["epochs"] == 4 * 2 * 3
    assert result["budget"]["seconds"] > 0


def test_test_data_are_never_read(tmp_path):
    """A task whose test data cannot be read at all, and one candidate's run beside a plain run with the same settings."""
    file = tmp_path / "mine.py"
    text = """
import torch, spacecl

class Sealed(torch.utils.data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, number):
        raise RuntimeError("the test data were read")

def tasks():
    x, y = torch.randn(90, 4, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3
    return [spacecl.Task(name, (x, y), test={test}) for name in ("a", "b")]
"""
    file.write_text(text.format(test="Sealed()"))
    given = {"benchmark": str(file), "method": "ewc", "model": "mlp-small", "device": "cpu", **SHORT}
    result = tune.tune(given, {"options.strength": [1, 5]}, tmp_path / "tune", print_line=quiet)
    assert all("average_accuracy" in row for row in result["candidates"])
    with pytest.raises(Exception, match="the test data were read"):
        run.run(resolve(given), tmp_path / "plain", print_line=quiet)
    file.write_text(text.format(test="(x, y)"))
    plain = run.run(resolve(given | {"options": {"strength": 5}}), tmp_path / "run", print_line=quiet)
    tuned = json.loads((tmp_path / "tune" / "strength=5" / "result.json").read_text())
    assert [task["digest"] for task in tuned["tasks"]] == [task["digest"] for task in plain["tasks"]], "training is the same"
    assert [task["accuracy_when_learned"] for task in tuned["tasks"]] == [t["validation_accuracy"] for t in plain["tasks"]]


def test_a_combination_that_diverges_does_not_stop_the_others_and_nothing_is_done_twice(tmp_path):
    given = GIVEN | {"train": {"epochs": 1, "retrain_epochs": 0, "optimizer": "sgd"}}
    result = tune.tune(given, {"train.lr": [1e9, 0.01]}, tmp_path, print_line=quiet)
    failed, good = result["candidates"]
    assert "diverged" in failed["failed"]
    assert "average_accuracy" not in failed
    assert result["best"] == good["values"] == {"train.lr": 0.01}
    before = (tmp_path / "lr=0.01" / "result.json").stat().st_mtime_ns
    again = tune.tune(given, {"train.lr": [1e9, 0.01]}, tmp_path, print_line=quiet)
    assert again["best"] == result["best"]
    assert (tmp_path / "lr=0.01" / "result.json").stat().st_mtime_ns == before


def test_every_combination_is_checked_before_the_first_run(tmp_path):
    with pytest.raises(ConfigError, match="strength=-1 must be a number at least 0"):
        tune.tune(GIVEN | SHORT, {"options.strength": [1, -1]}, tmp_path / "out", print_line=quiet)
    assert not (tmp_path / "out").exists()


def test_the_command_shows_a_table_and_how_to_use_the_best(tmp_path, capsys):
    common = ["permuted-digits", "--method", "ewc", "--tasks", "2", "--limit", "20", "--epochs", "1", "--retrain-epochs", "1"]
    common += ["--quiet"]
    out = str(tmp_path / "a")
    assert cli.main(["tune", *common, "--over", "strength=1,100", "--out", out]) == 0
    printed = capsys.readouterr().out
    assert "Cost: 2 runs, 8 epochs" in printed
    assert "To run the best one: spacecl run permuted-digits --method ewc --tasks 2 --limit 20" in printed
    assert "--quiet --set options.strength=" in printed
    settings = ["--set", "train.optimizer=sgd", "--over", "train.lr=1e9", "--out", str(tmp_path / "b")]
    assert cli.main(["tune", *common, *settings]) == 1
    assert "every combination diverged" in capsys.readouterr().err
