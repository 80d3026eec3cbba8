"""Results read together: which runs belong to one arm, and what arms are called."""

import json
from pathlib import Path

import pytest
from reporting_helpers import SHORT, example_result, read_comparison, resolve_settings, write_result

from spacecl import ConfigError
from spacecl.data.benchmarks.published import PUBLISHED
from spacecl.reporting.arms import group_runs, read_comparisons
from spacecl.reporting.energy import choose_source
from spacecl.reporting.summary_table import explain_summary_table, make_summary_table


def group(*settings):
    """Group runs with some settings; none of them has been trained."""
    results = {}
    for number, entry in enumerate(settings):
        config = resolve_settings(SHORT, entry)
        fields = {"config": config.to_json(), "method": config.method, "seed": config.seed, "size": number, "tasks": [{}]}
        results[Path(f"/runs/folder{number}")] = fields
    return group_runs(results, Path("/runs"))


def labels(*settings):
    return {arm.label for arm in group(*settings)[0]}


def test_arms_are_named_by_the_settings_that_differ():
    assert labels({"method": "ewc"}, {"method": "space"}) == {"EWC", "SPACE"}
    assert labels({"options": {"projection": False}}, {}) == {"SPACE (without projection)", "SPACE"}
    assert labels({"options": {"variance": 0.9}}, {"options": {"variance": 0.8}}, {"method": "stl"}) == {
        "SPACE: variance 0.9",
        "SPACE: variance 0.8",
        "STL",
    }
    paper = dict(PUBLISHED)
    assert labels({"options": paper}, {"options": paper | {"selection": "pivoted"}}) == {
        "SPACE.paper",
        "SPACE.paper (selection pivoted)",
    }
    assert labels({"options": paper | {"variance": 0.9}}, {"options": paper | {"activations": "post", "variance": 0.8}}) == {
        "SPACE.paper: variance 0.9",
        "SPACE.paper (activations post): variance 0.8",
    }
    assert labels({"method": "ewc", "limit": 30}, {"method": "hat"}) == {"EWC: limit 30", "HAT: limit none"}
    nested = {"options": {"task_variance": {"a": {"hidden1": 0.9, "*": 0.8}}}}
    assert 'SPACE: task_variance {"a"={"hidden1"=0.9, "*"=0.8}}' in labels(nested, {})


def test_arms_that_differ_in_many_settings_are_named_after_their_folders():
    train = {"epochs": 7, "retrain_epochs": 5, "batch_size": 32, "lr": 0.1, "schedule": "cosine"}
    assert labels({"train": train}, {}) == {"SPACE: folder0", "SPACE: folder1"}


def test_a_run_that_is_there_twice_counts_once():
    arms, repeated = group({"method": "ewc"}, {"method": "ewc"}, {"method": "ewc", "seed": 1})
    assert [len(arm.results) for arm in arms] == [2]
    assert repeated == [Path("/runs/folder1")]


def test_tasks_are_numbered_where_seeds_have_them_in_another_order(report):
    arm = next(arm for arm in read_comparison(report).arms if arm.method == "space")
    assert arm.tasks == [f"digits-{n}" for n in range(1, 6)]
    arm.results[1]["tasks"][0]["name"] = "digits-3"
    assert arm.tasks == [f"task {n}" for n in range(1, 6)]


def test_a_folder_without_finished_runs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no finished run that can be shown"):
        read_comparisons(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        read_comparisons(tmp_path / "none")


def test_every_benchmark_gets_a_comparison(tmp_path):
    result = example_result("stl")
    other = result | {"benchmark": "p-mnist", "config": result["config"] | {"benchmark": "p-mnist"}}
    write_result(tmp_path / "a", result)
    write_result(tmp_path / "b", other)
    comparisons, left_out = read_comparisons(tmp_path)
    assert [comparison.benchmark for comparison in comparisons] == ["p-mnist", "permuted-digits"]
    assert left_out == []


def test_runs_that_cannot_be_read_are_left_out_with_the_reason(tmp_path):
    result = example_result("stl")
    write_result(tmp_path / "a", result)
    write_result(tmp_path / "b", {})
    (tmp_path / "b" / "result.json").write_text("{")
    write_result(tmp_path / "c", {key: value for key, value in result.items() if key != "size"})
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text(json.dumps(result["config"]))
    write_result(tmp_path / "e", result)
    comparisons, (d, b, c, e) = read_comparisons(tmp_path)
    assert [len(comparison.arms) for comparison in comparisons] == [1]
    assert (d, e) == ("d (not finished)", "e (the same settings and seed as another)")
    assert "result.json is damaged or truncated" in b
    assert "size is missing" in c


def test_energy_is_called_measured_only_where_every_run_was(report):
    comparison = read_comparison(report)
    arms = comparison.arms
    assert choose_source(arms) == "modelled"
    for arm in arms:
        for result in arm.results:
            for task in result["tasks"]:
                for kind, cost in task["costs"].items():
                    cost["measured"]["energy"] = {"1": 2.0, "64": 1.0 if kind == "dense" else 0.25}
                    cost["measured"]["meter"] = "a meter"
    assert choose_source(arms) == "measured"
    table = make_summary_table(comparison)
    assert "energy / STL (measured)" in table.titles
    energy = table.titles.index("energy / STL (measured)")
    assert {row[energy] for row in table.rows} == {"0.250 ± 0.000"}
    assert "measured (a meter)" in explain_summary_table(comparison)
    arms[0].results[0]["tasks"][0]["costs"]["network"]["measured"]["energy"] = None
    assert choose_source(arms) == "modelled"
