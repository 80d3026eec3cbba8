"""Comparisons: the grid of runs, in processes of their own, here and on a Ray cluster; what fails, and resuming."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import filelock
import pytest
from helpers import ROOT, run_spacecl
from process_helpers import ray_cluster

from spacecl import ConfigError
from spacecl.cli import main as cli
from spacecl.cli.options import collect_settings
from spacecl.runs import executors, measure_run, run, sweep, sweep_plan, worker
from spacecl.runs.config import Config
from spacecl.runs.costs import measure_costs
from spacecl.runs.events import EVENTS, Failed, Finished, Started, TasksDone, read_events, report_events, write_event
from spacecl.runs.methods import get_methods

SHORT = ["--tasks", "2", "--epochs", "1", "--retrain-epochs", "1"]


def quiet(text):
    pass


def plan(tmp_path, *arguments):
    """The settings of every run that a command would make, by its folder."""
    options = cli.build_parser().parse_args(["compare", "permuted-digits", "--out", str(tmp_path), *arguments])
    settings = collect_settings(options)
    if options.preset:
        arms = sweep_plan.make_preset_arms(options.preset, settings)
    else:
        arms = sweep_plan.make_method_arms(options.methods or "all")
    sweep_plan.plan_runs(settings, arms, sweep_plan.parse_seeds(options.seeds), tmp_path, None)
    return {
        str(file.parent.relative_to(tmp_path)): json.loads(file.read_text()) for file in sorted(tmp_path.rglob("config.json"))
    }


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_all_methods_with_several_seeds_are_planned_before_anything_runs(tmp_path):
    runs = plan(tmp_path, "--seeds", "2", "--limit", "30", "--set", "ewc.strength=7", "--lr", "0.01")
    assert set(runs) == {f"{method}/seed{seed}" for method in get_methods() for seed in (0, 1)}
    assert {entry["limit"] for entry in runs.values()} == {30}
    assert {entry["train"]["lr"] for entry in runs.values()} == {0.01}
    assert [runs[f"{method}/seed1"]["options"].get("strength") for method in ("ewc", "lwf")] == [7, 10]
    assert {entry["seed"] for name, entry in runs.items() if name.endswith("seed1")} == {1}


def test_wrong_settings_are_reported_at_once_for_all_methods_and_nothing_is_written(tmp_path):
    with pytest.raises(ConfigError) as error:
        plan(tmp_path / "a", "--methods", "ewc,space", "--set", "ewc.strenght=1", "--set", "space.variance=3", "--epochs", "0")
    text = str(error.value)
    assert "options.strenght is not a setting (did you mean options.strength?)" in text
    assert "variance=3" in text
    assert "ewc: " in text
    assert "space: " in text
    assert not (tmp_path / "a").exists()
    for arguments, match in (
        (["--methods", "ewc,swim"], "There is no method swim"),
        (["--methods", "ewc", "--set", "hat.s_max=9"], "There are settings for hat, but the methods are ewc"),
        (["--set", "options.strength=9"], "name it, as in --set space.variance"),
        (["--seeds", "0"], "neither a number of seeds"),
        (["--seeds", "a"], "neither a number of seeds"),
    ):
        with pytest.raises(ConfigError, match=re.escape(match)):
            plan(tmp_path / "b", *arguments)


def test_a_folder_with_other_settings_is_refused(tmp_path):
    plan(tmp_path, "--methods", "ewc", "--limit", "30")
    plan(tmp_path, "--methods", "ewc,stl", "--limit", "30")  # more of the same may come
    with pytest.raises(ConfigError, match="limit was 30 and is 40"):
        plan(tmp_path, "--methods", "ewc", "--limit", "40")


def get_options(runs):
    return {name.split("/")[0]: entry["options"] for name, entry in runs.items()}


def test_a_preset_changes_the_options_that_it_names_and_nothing_else(tmp_path):
    plain = plan(tmp_path / "s", "--methods", "space")["space/seed0"]
    runs = get_options(plan(tmp_path / "p", "--preset", "projection"))
    assert runs == {"space": plain["options"], "space-without-projection": plain["options"] | {"projection": False}}
    runs = get_options(plan(tmp_path / "t", "--preset", "threshold"))
    assert runs["space-uniform"]["variance"] == 0.99
    assert runs["space-first-higher"] == runs["space-uniform"] | {"variance": {"hidden1": 0.999, "*": 0.99}}
    assert runs["space-uniform"]["activations"] == "pre"
    runs = get_options(plan(tmp_path / "c", "--preset", "choices"))
    paper, switches = runs.pop("paper"), ("activations", "selection", "freeze", "compensate", "shrinkage")
    assert len(runs) == 6
    for name in switches:
        changed = {key for key in paper if runs[f"paper-{name}"][key] != paper[key]}
        assert changed == ({"activations", "variance"} if name == "activations" else {name})
    assert {key for key in paper if runs["all"][key] != paper[key]} == {*switches, "variance"}
    runs = get_options(plan(tmp_path / "a", "--preset", "parts"))
    assert runs.pop("space") == plain["options"]
    assert len(runs) == 8
    for name, options in runs.items():
        part = name.removeprefix("space-without-")
        assert {key for key in options if options[key] != plain["options"][key]} == {part}
    runs = plan(tmp_path / "f", "--preset", "frontier")
    assert len(runs) == 25
    assert {entry["method"] for entry in runs.values()} == {"space", "packnet", "wsn", "hat"}


def test_presets_name_layers_of_the_network_that_is_used(tmp_path):
    own = str(ROOT / "examples" / "own_tasks.py") + ":network"
    runs = plan(tmp_path / "t", "--preset", "threshold", "--model", own)
    assert list(runs["space-first-higher/seed0"]["options"]["variance"]) == ["0", "*"]
    runs = plan(tmp_path / "c", "--preset", "choices", "--model", own)
    assert {type(entry["options"]["variance"]) for entry in runs.values()} == {float}
    given = {"benchmark": str(ROOT / "examples" / "own_tasks.py")}  # whose network is then an MLP
    arms = sweep_plan.make_preset_arms("threshold", given)
    assert list(arms["space-first-higher"]["options"]["variance"]) == ["hidden1", "*"]
    with pytest.raises(ConfigError, match="does not exist"):
        sweep_plan.make_preset_arms("threshold", given | {"model": "none.py:network"})


def test_the_frontier_compares_both_kinds_of_space_whatever_the_recipe(tmp_path):
    runs = get_options(plan(tmp_path, "--preset", "frontier", "--recipe", "paper"))
    different = {name for name, value in runs["space-0.2"].items() if runs["paper-0.9"][name] != value}
    assert different == {*sweep_plan.OURS, "size", "variance"}


def test_a_finished_run_with_other_settings_is_not_mistaken_for_this_one(tmp_path):
    plan(tmp_path, "--methods", "ewc", "--limit", "30", *SHORT)
    file = tmp_path / "ewc" / "seed0" / "config.json"
    run.run(Config.from_file(file), file.parent, print_line=quiet)
    file.unlink()
    with pytest.raises(ConfigError, match="limit was 30 and is 40"):
        plan(tmp_path, "--methods", "ewc", "--limit", "40", *SHORT)


def test_only_runs_are_resumed(tmp_path):
    plan(tmp_path, "--methods", "ewc", "--seeds", "2")
    for name, text in (("list", "[1]"), ("strange", '{"model_type": "x"}'), ("broken", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    folders = sweep_plan.find_planned_runs(tmp_path)
    assert [str(folder.relative_to(tmp_path)) for folder in folders] == ["ewc/seed0", "ewc/seed1"]


def test_cores_are_divided_between_runs_and_the_users_own_limit_is_respected(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert sweep.share_cores(2, 9, "local") == (2, 4)
    assert sweep.share_cores(4, 1, "local") == (1, 8)
    assert sweep.share_cores(None, 3, "ray") == (3, 1)
    assert sweep.share_cores(4, 3, "ray") == (3, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert sweep.share_cores(2, 9, "local") == (2, 3)


# -- events -----------------------------------------------------------------------------------------------------------


def test_the_events_of_a_run_say_how_it_started_and_ended(tmp_path):
    assert read_events(tmp_path) == [], "an older run has none"
    with report_events(tmp_path):
        write_event(tmp_path, TasksDone(1, 2))
    assert read_events(tmp_path) == [Started(), TasksDone(1, 2), Finished()]
    for error, failed in (
        (ConfigError("No.\nDo this."), Failed("error", "No.\nDo this.")),
        (ValueError("x"), Failed("crash", "ValueError: x")),
        (KeyboardInterrupt(), Failed("interrupt", "interrupted")),
    ):
        with pytest.raises(type(error)), report_events(tmp_path):
            raise error
        assert read_events(tmp_path)[-1] == failed


def test_an_event_that_a_crash_cut_off_is_left_out_and_a_damaged_file_counts_as_none(tmp_path):
    write_event(tmp_path, Started())
    whole = (tmp_path / EVENTS).read_bytes()
    (tmp_path / EVENTS).write_bytes(whole + b'{"kind": "progr')
    assert read_events(tmp_path) == [Started()]
    (tmp_path / EVENTS).write_bytes(b'{"kind": "dance"}\n' + whole)
    assert read_events(tmp_path) == []


def test_a_failed_run_is_reported_with_its_own_message(tmp_path):
    assert executors.describe_problem(0, tmp_path) is None
    assert executors.describe_problem(None, tmp_path) == "it was not started"
    assert executors.describe_problem(3, tmp_path).startswith("its process ended with exit code 3 and did not say why; see ")
    assert executors.describe_problem(-11, tmp_path).startswith("its process was ended by SIGSEGV; see ")
    with contextlib.suppress(ConfigError), report_events(tmp_path):
        raise ConfigError("The data differ:\n  - a was 1\nGive another folder.")
    problem = executors.describe_problem(1, tmp_path)
    assert problem.startswith("The data differ:\n  - a was 1\nGive another folder. (full output: ")
    assert "SIGKILL (out of memory?)" in executors.describe_problem(-9, tmp_path)


def test_progress_is_that_of_the_latest_event_or_all_of_a_finished_run(tmp_path):
    assert sweep.read_progress(tmp_path, 5) == TasksDone(0, 5)
    for done in (1, 2):
        write_event(tmp_path, TasksDone(done, 3))
    assert sweep.read_progress(tmp_path, 5) == TasksDone(2, 3)
    (tmp_path / "result.json").write_text("{}")
    assert sweep.read_progress(tmp_path, 5) == TasksDone(3, 3)
    (tmp_path / EVENTS).unlink()
    assert sweep.read_progress(tmp_path, 5) == TasksDone(5, 5), "an older run has no events"


def test_a_worker_reports_every_task_and_refuses_code_that_is_not_trusted(tmp_path, capsys):
    plan(tmp_path, "--methods", "finetune", *SHORT)
    folder = tmp_path / "finetune" / "seed0"
    assert worker.main([str(folder)]) == 0
    assert read_events(folder) == [Started(), TasksDone(0, 2), TasksDone(1, 2), TasksDone(2, 2), Finished()]
    assert "2/2  digits-2" in capsys.readouterr().out
    code = tmp_path / "code.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef network():\n    return None\n")
    settings = json.loads((folder / "config.json").read_text()) | {"model": f"{code}:network"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(settings))
    assert worker.main([str(tmp_path / "other")]) == 1
    assert not (tmp_path / "ran").exists()
    event = read_events(tmp_path / "other")[-1]
    assert (event.reason, "names code that would be run" in event.message) == ("error", True)


# -- running it -------------------------------------------------------------------------------------------------------


def run_worker_here(processes, command, log, environment):
    """Stand in for the process of a run."""
    with log.open("a") as stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        return worker.main(command[3:])


def compare(*arguments):
    """Run spacecl compare in this process; returns its exit code and what it printed."""
    import io

    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = cli.main(["compare", *map(str, arguments)])
    return code, out.getvalue(), errors.getvalue()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A comparison of two methods with two seeds, one of whose runs is blocked by another process; then the rest."""
    out = tmp_path_factory.mktemp("compare") / "cmp"
    blocked = out / "stl" / "seed1"
    blocked.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        patch.setattr(executors.Processes, "run", run_worker_here)
        patch.setattr(measure_run, "measure_costs", partial(measure_costs, seconds=0.01))
        with filelock.FileLock(blocked / ".lock"):
            arguments = ["permuted-digits", "--methods", "space,stl", "--seeds", "2", *SHORT, "--jobs", "1"]
            first = compare(*arguments, "--out", out)
        stamps = {file: file.stat().st_mtime_ns for file in out.rglob("result.json")}
        second = compare("--resume", "--out", out, "--jobs", "1")
    return out, first, stamps, second


def test_a_failed_run_does_not_lose_the_others_and_resume_does_only_what_is_missing(done):
    out, (code, printed, errors), stamps, second = done
    assert code == 1
    assert len(stamps) == 3
    assert "failed: stl/seed1: Another process is working in" in errors
    assert f"spacecl compare --resume --out {out}" in errors
    assert "Left out: stl/seed1 (not finished)." in printed
    assert second[0] == 0, second
    assert "3 of 4 runs are finished already." in second[1]
    assert "1 run to do" in second[1]
    assert {file: file.stat().st_mtime_ns for file in stamps} == stamps
    assert (out / "stl" / "seed1" / "result.json").exists()


def test_each_run_is_the_same_as_if_it_were_alone_and_its_cost_is_measured(done, tmp_path):
    out = done[0]
    result = json.loads((out / "space" / "seed1" / "result.json").read_text())
    alone = run.run(Config.from_json(result["config"]), tmp_path / "alone", print_line=quiet)
    assert [task["digest"] for task in alone["tasks"]] == [task["digest"] for task in result["tasks"]]
    for task in result["tasks"]:
        for cost in task["costs"].values():
            assert cost["measured"]["latency"]["64"]["median"] > 0
    assert "measured" not in alone["tasks"][0]["costs"]["network"]
    assert not list(out.rglob("checkpoints"))


def test_the_table_has_means_and_deviations_over_seeds(done):
    out, _, _, (_, printed, _) = done
    for name, label in (("stl", "STL"), ("space", "SPACE")):
        values = [json.loads((out / name / f"seed{seed}" / "result.json").read_text()) for seed in (0, 1)]
        accuracy = [100 * value["average_accuracy"] for value in values]
        size = [value["size"] for value in values]
        spread = abs(accuracy[0] - accuracy[1]) / 2**0.5
        row = next(line for line in printed.splitlines() if f"│ {label} " in line)
        assert f"{sum(accuracy) / 2:.2f} ± {spread:.2f}" in row
        assert f"{sum(size) / 2:.3f} ± " in row
    assert "energy / STL (modelled)" in printed
    assert re.search(r"│ STL .*│ +1.000 ± 0.000 │", printed)


MINE = """
import os, pathlib, signal, time
import torch, spacecl

def tasks():
    folder = pathlib.Path({folder!r})
    if (folder / "kill").exists():
        (folder / "kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    while (folder / "wait").exists():
        (folder / str(os.getpid())).touch()
        time.sleep(0.05)
    x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    return [spacecl.Task("a", (x, y), test=(x, y))]
"""


@pytest.fixture
def mine(tmp_path):
    """The arguments of a comparison whose runs kill themselves, or wait, while there is a file of such a name."""
    (tmp_path / "mine.py").write_text(MINE.format(folder=str(tmp_path)))
    arguments = [str(tmp_path / "mine.py"), "--methods", "finetune", "--seeds", "2", "--epochs", "1", "--model", "mlp-small"]
    return [*arguments, "--out", str(tmp_path / "cmp")]


def test_a_killed_process_is_reported_and_the_other_runs_are_done(tmp_path, mine, monkeypatch):
    monkeypatch.setattr(measure_run, "measure_costs", partial(measure_costs, seconds=0.01))
    (tmp_path / "kill").touch()
    code, _, errors = compare(*mine, "--jobs", "1")
    assert code == 1
    assert "finetune/seed0: its process was ended by SIGKILL (out of memory?)" in errors
    killed, finished = (tmp_path / "cmp" / "finetune" / f"seed{seed}" for seed in (0, 1))
    assert read_events(killed) == [Started()]
    assert not (killed / "result.json").exists()
    assert read_events(finished)[-1] == Finished()
    assert (finished / "result.json").exists()


def test_a_comparison_ended_by_a_signal_ends_its_runs_and_can_be_resumed(tmp_path, mine):
    (tmp_path / "wait").touch()
    command = [sys.executable, "-m", "spacecl", "compare", *mine, "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def list_workers():
        return [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]

    wait_for(lambda: len(list_workers()) == 2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "To resume, repeat the command" in errors
    wait_for(lambda: not any(Path(f"/proc/{number}").exists() for number in list_workers()))
    (tmp_path / "wait").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executors.Processes, "run", run_worker_here)
        patch.setattr(measure_run, "measure_costs", partial(measure_costs, seconds=0.01))
        assert compare(*mine, "--jobs", "1")[0] == 0
    assert len(list(tmp_path.rglob("result.json"))) == 2


def wait_for(condition, seconds=600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError("it never happened")


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes_does_the_same_grid(tmp_path):
    with ray_cluster() as address:
        out, there = tmp_path / "cmp", {"RAY_ADDRESS": address}
        grid = ["compare", "permuted-digits", "--methods", "space,stl", "--seeds", "2", *SHORT]
        done = run_spacecl(*grid, "--engine", "ray", "--out", out, **there)
        assert done.returncode == 0, done.stderr
        assert len(list(out.rglob("result.json"))) == 4
        nodes = re.findall(r"on .*, node (\w+)", done.stdout)  # one node may do all while the other's worker starts
        assert len(nodes) == 4, done.stdout
        more = run_spacecl("compare", "permuted-digits", "--methods", "ewc", *SHORT, "--engine", "ray", "--out", out, **there)
        assert more.returncode == 0, more.stderr  # a single run asks for no more than a node has
    config_here = json.loads((out / "space" / "seed0" / "result.json").read_text())
    here = run.run(Config.from_json(config_here["config"]), tmp_path / "here", print_line=quiet)
    assert [task["digest"] for task in here["tasks"]] == [task["digest"] for task in config_here["tasks"]]


def test_ray_that_is_not_installed_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    job = executors.Job("a", "/nowhere", None, 1, False, {})
    with pytest.raises(ConfigError, match=re.escape('pip install "spacecl[ray]"')):
        next(executors.run_on_ray([job]))


def test_resume_needs_a_folder_with_runs_and_nothing_else(tmp_path, capsys):
    for arguments, match in (
        (["--resume"], "--resume needs the folder"),
        (["--resume", "--out", str(tmp_path / "none")], "holds no runs to resume"),
        (["--resume", "--out", str(tmp_path), "--epochs", "3"], "--resume takes all settings from the folder"),
        (["--resume", "--out", str(tmp_path), "--seeds", "3"], "--resume takes all settings from the folder"),
        ([], "Name a benchmark"),
    ):
        assert cli.main(["compare", *arguments]) == 1
        assert match in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", "permuted-digits", "--methods", "ewc", "--preset", "frontier"])
    assert ended.value.code == 2
