"""Comparisons: the grid of runs, in processes of their own, here and on a Ray cluster; what fails, and going on."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest

from spacecl import ConfigError
from spacecl.cli import main as cli
from spacecl.cli.options import collect_settings
from spacecl.runs import config, run
from spacecl.runs import sweep as compare

ROOT = Path(__file__).parents[2]
SHORT = ["--tasks", "2", "--epochs", "1", "--retrain-epochs", "1"]


def spacecl(*arguments, **environment):
    command = [sys.executable, "-m", "spacecl", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=1800, env={**os.environ, "COLUMNS": "200", **environment}
    )


def started(*arguments):
    command = [sys.executable, "-m", "spacecl", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def planned(tmp_path, *arguments):
    """The settings of every run that a command would make, by its folder."""
    options = cli.build_parser().parse_args(["compare", "permuted-digits", "--out", str(tmp_path), *arguments])
    given = collect_settings(options)
    arms = compare.preset_arms(options.preset, given) if options.preset else compare.methods_arms(options.methods or "all")
    compare.plan(given, arms, compare.seeds_of(options.seeds), tmp_path, None)
    return {
        str(file.parent.relative_to(tmp_path)): json.loads(file.read_text()) for file in sorted(tmp_path.rglob("config.json"))
    }


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_all_methods_with_several_seeds_are_planned_before_anything_runs(tmp_path):
    found = planned(tmp_path, "--seeds", "2", "--limit", "30", "--set", "ewc.strength=7", "--lr", "0.01")
    assert set(found) == {f"{method}/seed{seed}" for method in config.get_methods() for seed in (0, 1)}
    assert {entry["limit"] for entry in found.values()} == {30}
    assert {entry["train"]["lr"] for entry in found.values()} == {0.01}
    assert [found[f"{method}/seed1"]["options"].get("strength") for method in ("ewc", "lwf")] == [7, 10]
    assert {entry["seed"] for name, entry in found.items() if name.endswith("seed1")} == {1}


def test_wrong_settings_are_told_at_once_for_all_methods_and_nothing_is_written(tmp_path):
    with pytest.raises(ConfigError) as told:
        planned(
            tmp_path / "a", "--methods", "ewc,space", "--set", "ewc.strenght=1", "--set", "space.variance=3", "--epochs", "0"
        )
    text = str(told.value)
    assert "options.strenght is not a setting (did you mean options.strength?)" in text
    assert "variance=3" in text
    assert "ewc: " in text
    assert "space: " in text
    assert not (tmp_path / "a").exists()
    for arguments, match in (
        (["--methods", "ewc,swim"], "No such method: swim"),
        (["--methods", "ewc", "--set", "hat.s_max=9"], "There are settings for hat, but the methods are ewc"),
        (["--set", "options.strength=9"], "say of which, such as --set space.variance"),
        (["--seeds", "0"], "neither a number of seeds"),
        (["--seeds", "a"], "neither a number of seeds"),
    ):
        with pytest.raises(ConfigError, match=re.escape(match)):
            planned(tmp_path / "b", *arguments)


def test_a_folder_with_other_settings_is_left_alone(tmp_path):
    planned(tmp_path, "--methods", "ewc", "--limit", "30")
    planned(tmp_path, "--methods", "ewc,stl", "--limit", "30")  # more of the same may come
    with pytest.raises(ConfigError, match="limit was 30 and is 40"):
        planned(tmp_path, "--methods", "ewc", "--limit", "40")


def options_of(found):
    return {name.split("/")[0]: entry["options"] for name, entry in found.items()}


def test_the_presets_change_what_they_say_and_nothing_else(tmp_path):
    plain = planned(tmp_path / "s", "--methods", "space")["space/seed0"]
    found = options_of(planned(tmp_path / "p", "--preset", "projection"))
    assert found == {"space": plain["options"], "space-without-projection": plain["options"] | {"projection": False}}
    found = options_of(planned(tmp_path / "t", "--preset", "threshold"))
    assert found["space-uniform"]["variance"] == 0.99
    assert found["space-first-higher"] == found["space-uniform"] | {"variance": {"hidden1": 0.999, "*": 0.99}}
    assert found["space-uniform"]["activations"] == "pre"
    found = options_of(planned(tmp_path / "c", "--preset", "choices"))
    paper, switches = found.pop("paper"), ("activations", "selection", "freeze", "compensate")
    assert len(found) == 5
    for name in switches:
        changed = {key for key in paper if found[f"paper-{name}"][key] != paper[key]}
        assert changed == ({"activations", "variance"} if name == "activations" else {name})
    assert {key for key in paper if found["all"][key] != paper[key]} == {*switches, "variance"}
    found = planned(tmp_path / "f", "--preset", "frontier")
    assert len(found) == 20
    assert {entry["method"] for entry in found.values()} == {"space", "packnet", "hat"}


def test_presets_name_layers_of_the_network_that_is_used(tmp_path):
    own = str(ROOT / "examples" / "own_tasks.py") + ":network"
    found = planned(tmp_path / "t", "--preset", "threshold", "--model", own)
    assert list(found["space-first-higher/seed0"]["options"]["variance"]) == ["0", "*"]
    found = planned(tmp_path / "c", "--preset", "choices", "--model", own)
    assert {type(entry["options"]["variance"]) for entry in found.values()} == {float}
    given = {"benchmark": str(ROOT / "examples" / "own_tasks.py")}  # whose network is then an MLP
    assert list(compare.preset_arms("threshold", given)["space-first-higher"]["options"]["variance"]) == ["hidden1", "*"]
    with pytest.raises(ConfigError, match="does not exist"):
        compare.preset_arms("threshold", given | {"model": "none.py:network"})


def test_the_frontier_compares_both_kinds_of_space_whatever_the_recipe(tmp_path):
    found = options_of(planned(tmp_path, "--preset", "frontier", "--recipe", "paper"))
    assert found["space-0.9"] != found["paper-0.9"]
    assert {name for name, value in found["space-0.9"].items() if found["paper-0.9"][name] != value} == set(compare.OURS)


def test_a_finished_run_with_other_settings_is_not_taken_for_this_one(tmp_path):
    planned(tmp_path, "--methods", "ewc", "--limit", "30")
    file = tmp_path / "ewc" / "seed0" / "config.json"
    run.run(config.Config.from_file(file), file.parent, say=lambda text: None)
    file.unlink()
    with pytest.raises(ConfigError, match="limit was 30 and is 40"):
        planned(tmp_path, "--methods", "ewc", "--limit", "40")


def test_only_runs_are_gone_on_with(tmp_path):
    planned(tmp_path, "--methods", "ewc", "--seeds", "2")
    for name, text in (("list", "[1]"), ("strange", '{"model_type": "x"}'), ("broken", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    assert [str(folder.relative_to(tmp_path)) for folder in compare.planned(tmp_path)] == ["ewc/seed0", "ewc/seed1"]


def test_threads_are_shared_out_and_a_users_own_limit_is_kept(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert compare._room(2, 9, "local") == (2, 4)
    assert compare._room(4, 1, "local") == (1, 8)
    assert compare._room(None, 3, "ray") == (3, 1)
    assert compare._room(4, 3, "ray") == (3, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert compare._room(2, 9, "local") == (2, 3)


def test_a_failed_run_is_told_of_in_its_own_words(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b"old\nspacecl: of an earlier try\n")
    began = log.stat().st_size
    with log.open("ab") as stream:
        stream.write(b"task 1\nspacecl: The data are not those:\n  - a was 1\nGive another folder.\n")
    assert compare._problem(0, log, began) is None
    assert compare._problem(1, log, began).startswith("The data are not those:\n  - a was 1\nGive another folder. (all")
    assert compare._problem(3, log, log.stat().st_size).startswith("exit code 3 (all")
    assert "SIGSEGV" in compare._problem(-11, log, 0)


# -- running it -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A comparison of three methods with two seeds, one of whose runs another process keeps from beginning."""
    out = tmp_path_factory.mktemp("compare") / "cmp"
    arguments = ["compare", "permuted-digits", "--methods", "space,stl,ewc", "--seeds", "2", *SHORT, "--out", out]
    blocked = out / "ewc" / "seed1"
    blocked.mkdir(parents=True)
    with filelock.FileLock(blocked / ".lock"):
        first = spacecl(*arguments)
    stamps = {file: file.stat().st_mtime_ns for file in out.rglob("result.json")}
    return out, first, stamps, spacecl("compare", "--resume", "--out", out)


def test_one_failed_run_does_not_lose_the_others_and_resume_does_only_what_is_missing(done):
    out, first, stamps, second = done
    assert first.returncode == 1
    assert len(stamps) == 5
    assert "failed: ewc/seed1: Another process is at work" in first.stderr
    assert f"spacecl compare --resume --out {out}" in first.stderr
    assert "Left out: ewc/seed1 (not finished)." in first.stdout
    assert second.returncode == 0, second.stderr
    assert "5 of 6 runs are finished already." in second.stdout
    assert "1 run to do" in second.stdout
    assert {file: file.stat().st_mtime_ns for file in stamps} == stamps
    assert (out / "ewc" / "seed1" / "result.json").exists()


def test_each_run_is_what_the_same_run_alone_gives_and_its_cost_is_measured(done, tmp_path, monkeypatch):
    out = done[0]
    result = json.loads((out / "space" / "seed1" / "result.json").read_text())
    alone = run.run(config.Config.from_json(result["config"]), tmp_path / "alone", say=lambda text: None)
    assert [task["digest"] for task in alone["tasks"]] == [task["digest"] for task in result["tasks"]]
    for task in result["tasks"]:
        for cost in task["costs"].values():
            assert cost["measured"]["latency"]["64"]["median"] > 0
    assert "measured" not in alone["tasks"][0]["costs"]["network"]
    assert not list(out.rglob("checkpoints"))


def test_the_table_has_means_and_deviations_over_seeds(done):
    out, _, _, second = done
    for name, label in (("stl", "STL"), ("ewc", "EWC"), ("space", "SPACE")):
        values = [json.loads((out / name / f"seed{seed}" / "result.json").read_text()) for seed in (0, 1)]
        accuracy = [100 * value["average_accuracy"] for value in values]
        size = [value["size"] for value in values]
        spread = abs(accuracy[0] - accuracy[1]) / 2**0.5
        row = next(line for line in second.stdout.splitlines() if f"│ {label} " in line)
        assert f"{sum(accuracy) / 2:.2f} ± {spread:.2f}" in row
        assert f"{sum(size) / 2:.3f} ± " in row
    assert "energy / STL (modelled)" in second.stdout
    assert re.search(r"│ STL .*│ +1.000 ± 0.000 │", second.stdout)


def test_a_killed_process_is_told_of_and_the_rest_is_done(tmp_path):
    out = tmp_path / "cmp"
    arguments = [
        "compare",
        "permuted-digits",
        "--methods",
        "space,finetune",
        "--tasks",
        "2",
        "--epochs",
        "40",
        "--out",
        str(out),
    ]
    process = started(*arguments, "--jobs", "2")
    victim = wait_for(lambda: next((pid for pid, line in processes() if str(out / "space") in line), None))
    wait_for((out / "space" / "seed0" / "metrics.jsonl").exists)
    os.kill(victim, signal.SIGKILL)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "space/seed0: its process was ended by SIGKILL (out of memory?)" in errors
    assert (out / "finetune" / "seed0" / "result.json").exists()
    assert not (out / "space" / "seed0" / "result.json").exists()


def test_ended_by_a_signal_it_ends_its_runs_and_goes_on_later(tmp_path):
    out = tmp_path / "cmp"
    arguments = [
        "compare",
        "permuted-digits",
        "--methods",
        "stl,finetune,lwf",
        "--tasks",
        "2",
        "--epochs",
        "25",
        "--out",
        str(out),
    ]
    process = started(*arguments, "--jobs", "2")
    wait_for(lambda: len([line for _, line in processes() if str(out) in line and "--resume" in line]) == 2)
    wait_for(lambda: len(list(out.rglob("metrics.jsonl"))) == 2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "the same command goes on from there" in errors
    wait_for(lambda: not [line for _, line in processes() if str(out) in line])
    again = spacecl(*arguments)
    assert again.returncode == 0, again.stderr
    assert len(list(out.rglob("result.json"))) == 3


def processes():
    """All processes with their command lines."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append((int(file.parent.name), file.read_bytes().replace(b"\0", b" ").decode(errors="replace")))
    return found


def wait_for(condition, seconds=600):
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it never happened")


CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "wait": False})
cluster.add_node(num_cpus=1, wait=False)
cluster.wait_for_nodes(timeout=600)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@contextlib.contextmanager
def ray_cluster():
    """The address of a cluster of two nodes on this machine."""
    environment = {**os.environ, "RAY_TMPDIR": "/tmp", "RAY_USAGE_STATS_ENABLED": "0"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    for _ in range(3):  # Ray gives its own processes 30 seconds to start, which a busy machine may not have
        cluster = subprocess.Popen([sys.executable, "-c", CLUSTER], env=environment, **pipes)
        address = cluster.stdout.readline().decode().strip()
        try:
            if address:
                yield address
                return
        finally:
            cluster.communicate(timeout=600)
    pytest.skip("Ray cannot start a cluster on this machine now, three times in a row")


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes_does_the_same_grid(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    with ray_cluster() as address:
        out, there = tmp_path / "cmp", {"RAY_ADDRESS": address}
        grid = ["compare", "permuted-digits", "--methods", "space,stl", "--seeds", "2", *SHORT]
        done = spacecl(*grid, "--engine", "ray", "--out", out, **there)
        assert done.returncode == 0, done.stderr
        assert len(list(out.rglob("result.json"))) == 4
        nodes = re.findall(r"on .*, node (\w+)", done.stdout)  # one node may do all while the other's worker starts
        assert len(nodes) == 4, done.stdout
        more = spacecl("compare", "permuted-digits", "--methods", "ewc", *SHORT, "--engine", "ray", "--out", out, **there)
        assert more.returncode == 0, more.stderr  # a single run asks for no more than a node has
    config_here = json.loads((out / "space" / "seed0" / "result.json").read_text())
    here = run.run(config.Config.from_json(config_here["config"]), tmp_path / "here", say=lambda text: None)
    assert [task["digest"] for task in here["tasks"]] == [task["digest"] for task in config_here["tasks"]]


def test_ray_that_is_not_installed_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    cell = compare.Cell("a", "/nowhere", None, 1, False, {})
    with pytest.raises(ConfigError, match=re.escape('pip install "spacecl[ray]"')):
        next(compare._on_ray([cell]))


def test_resume_needs_a_folder_with_runs_and_nothing_else(tmp_path, capsys):
    for arguments, match in (
        (["--resume"], "--resume needs the folder"),
        (["--resume", "--out", str(tmp_path / "none")], "holds no runs to go on with"),
        (["--resume", "--out", str(tmp_path), "--epochs", "3"], "--resume takes all settings from the folder"),
        (["--resume", "--out", str(tmp_path), "--seeds", "3"], "--resume takes all settings from the folder"),
        ([], "Name a benchmark"),
    ):
        assert cli.main(["compare", *arguments]) == 1
        assert match in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", "permuted-digits", "--methods", "ewc", "--preset", "frontier"])
    assert ended.value.code == 2
