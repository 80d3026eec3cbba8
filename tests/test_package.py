"""The package as a whole: what it exports, how its packages import each other, its command line, its README."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import ROOT, run_spacecl

import spacecl
from spacecl.cli.main import COMMANDS, main
from spacecl.runs.demo import network
from spacecl.runs.result import read_result


def test_packages_import_downwards_only():
    """The layers are listed in pyproject.toml, under tool.importlinter."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    process = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout


def test_every_public_name_has_a_docstring_and_the_main_ones_an_example():
    for name in spacecl.__all__:
        assert getattr(spacecl, name).__doc__, name
    for name in ("Learner", "SPACE", "FineTune", "Task", "Recipe", "compress"):
        assert ">>>" in getattr(spacecl, name).__doc__, name
    with pytest.raises(AttributeError, match="nothing"):
        _ = spacecl.nothing


def test_help_lists_every_command_without_loading_torch_or_pydantic():
    code = (
        "import sys, spacecl.cli.main as cli; print(cli.build_parser().format_help());"
        "sys.exit(', '.join({'torch', 'numpy', 'pydantic', 'rich'} & set(sys.modules)) or 0)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert all(re.search(rf"^    {name}\b", process.stdout, re.MULTILINE) for name in COMMANDS)
    assert "Exit codes" in process.stdout


def test_every_command_has_help_that_fits_a_terminal_of_100_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for name in COMMANDS:
        with pytest.raises(SystemExit) as ending:
            main([name, "--help"])
        assert ending.value.code == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"usage: spacecl {name} ")
        if "HelpFormatter" in vars(COMMANDS[name]):
            assert not [line for line in shown.splitlines() if len(line) > 100 and not line.startswith("  ")]


def test_the_demo_shows_that_space_forgets_nothing_and_saves_its_model(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["demo", "--tasks", "2", "--epochs", "2", "--out", str(tmp_path / "model"), "--quiet"]) == 0
    rows = re.findall(r"digits-\d +│ +([\d.]+)% +│ +([\d.]+)% +│", capsys.readouterr().out)
    assert len(rows) == 2
    assert all(then == now for then, now in rows)
    assert spacecl.Learner.load(tmp_path / "model", network()).tasks == ("digits-1", "digits-2")


def test_wrong_usage_has_exit_code_2_and_failure_1(tmp_path, capsys):
    assert run_spacecl("demo", "--tasks", "0").returncode == 2
    assert main(["demo", "--seed", "-1", "--out", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "seed=-1 must be a whole number, at least 0" in message
    assert "Traceback" not in message


def test_the_readmes_example_runs_as_written(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    (tmp_path / "example.py").write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    runpy.run_path("example.py", run_name="__main__")


def test_progress_is_shown_on_request_and_hidden_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    x = torch.randn(90, 4)
    for progress in (True, None):
        model = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Linear(9, 2))
        learner = spacecl.Learner(model, example_input=x[:1], progress=progress)
        learner.learn(spacecl.Task("signs", (x, (x[:, 0] > 0).long())), spacecl.Recipe(epochs=2))
        captured = capsys.readouterr()
        if progress:
            assert "signs: train" in captured.err
            assert re.search(r"epoch 2/2 +loss [\d.]+ +accuracy [\d.]+%", captured.err)
        else:
            assert "epoch" not in captured.err + captured.out


def test_the_version_is_that_of_the_changelog():
    assert f"## [{spacecl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_page_of_results_is_made_from_the_result_files():
    make_page = runpy.run_path(str(ROOT / "results" / "table.py"))["make_page"]
    assert make_page() == (ROOT / "results" / "README.md").read_text()
    files = list((ROOT / "results").glob("*/result.json"))
    assert files
    for file in files:
        assert read_result(file)["tasks"]
