"""The package as a whole: what it exports, how its rooms import each other, its command line, its README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spacecl
from spacecl.runs.result import read_result

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "spacecl"


def test_packages_import_downwards_only():
    """The layers stand in pyproject.toml, under tool.importlinter."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    found = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout


def test_every_public_name_is_there_and_has_a_docstring_and_the_main_ones_an_example():
    for name in spacecl.__all__:
        assert getattr(spacecl, name).__doc__, name
    for name in ("Learner", "SPACE", "FineTune", "Task", "Recipe", "compress"):
        assert ">>>" in getattr(spacecl, name).__doc__, name
    with pytest.raises(AttributeError, match="nothing"):
        _ = spacecl.nothing


def run(*command, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "spacecl", *command],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=300,
    )


def test_help_is_there_for_every_command_without_loading_torch():
    top = run("--help")
    assert top.returncode == 0
    assert "demo" in top.stdout
    assert "Exit codes" in top.stdout
    assert "fine-tuning" in run("demo", "--help").stdout
    code = "import sys, spacecl.cli.main; spacecl.cli.main.parser().format_help(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_demo_shows_that_space_forgets_nothing_and_saves_its_model(tmp_path):
    done = run("demo", "--tasks", "2", "--epochs", "6", "--out", str(tmp_path / "model"), COLUMNS="160")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"digits-\d +│ +([\d.]+)% +│ +([\d.]+)% +│", done.stdout)
    assert len(rows) == 2
    assert all(then == now for then, now in rows)
    from spacecl.runs.demo import network

    assert spacecl.Learner.load(tmp_path / "model", network()).tasks == ("digits-1", "digits-2")


def test_wrong_usage_and_errors_for_users_have_their_exit_codes(tmp_path):
    assert run("demo", "--tasks", "0").returncode == 2
    failed = run("demo", "--variance", "2", "--out", str(tmp_path))
    assert failed.returncode == 1
    assert "must be a number above 0 and at most 1" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_the_readmes_example_runs_as_written(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    (tmp_path / "example.py").write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_progress_is_shown_when_asked_and_silent_when_there_is_no_terminal():
    code = (
        "import torch, spacecl; x = torch.randn(90, 4); m = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Linear(9, 2));"
        "task = spacecl.Task('signs', (x, (x[:, 0] > 0).long()));"
        "spacecl.Learner(m, example_input=x[:1], progress={}).learn(task, spacecl.Recipe(epochs=2))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code.format(True)], capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"}
    )
    assert "signs: train" in shown.stderr
    assert re.search(r"epoch 2/2 +loss [\d.]+ +accuracy [\d.]+%", shown.stderr)
    silent = subprocess.run([sys.executable, "-c", code.format(None)], capture_output=True, text=True)
    assert "epoch" not in silent.stderr + silent.stdout


def test_version_is_that_of_the_changelog():
    assert f"## [{spacecl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_page_of_results_says_what_the_result_files_say():
    assert subprocess.run([sys.executable, str(ROOT / "results" / "table.py"), "--check"]).returncode == 0
    files = list((ROOT / "results").glob("*/result.json"))
    assert files
    for file in files:
        assert read_result(file)["tasks"]
