"""result.json is read whatever version wrote it: older schemas are upgraded, newer ones refused."""

import json

import pytest
from helpers import ROOT

from spacecl import StoreError
from spacecl.runs.result import SCHEMA, read_result

NEW_IN_3 = ("target_kind", "metric", "score", "score_when_learned", "validation_score")  # of a task


@pytest.fixture
def as_schema_1(digits_run, tmp_path):
    """Write the result of a run as the first version of spacecl wrote it, with changes, and read it."""

    def read(**changes):
        result = json.loads((digits_run / "result.json").read_text())
        for key in ("forgetting", "inferred", "storage"):
            del result[key]
        for task in result["tasks"]:
            for key in ("spectrum", "used", "costs", "inferred", *NEW_IN_3):
                del task[key]
        for key in ("metric", "average_score", "score_matrix"):
            del result[key]
        del result["config"]["options"]["growth"]
        (tmp_path / "result.json").write_text(json.dumps(result | {"schema": 1} | changes))
        return read_result(tmp_path / "result.json")

    return read


def test_a_result_of_schema_1_gets_what_can_be_derived_and_none_for_the_rest(digits_run, as_schema_1):
    current, upgraded = read_result(digits_run / "result.json"), as_schema_1()
    assert upgraded["schema"] == current["schema"] == SCHEMA
    assert upgraded.keys() == current.keys()
    for key in ("forgetting", "config", "accuracy_matrix", "network"):
        assert upgraded[key] == current[key], key
    for old, new in zip(upgraded["tasks"], current["tasks"]):
        assert old.keys() == new.keys()
        assert old["used"] == old["widths"], "of version 0.1, SPACE's networks contain all earlier ones"
        assert old["spectrum"] is old["inferred"] is None
        for kind, costs in old["costs"].items():
            assert costs.keys() == new["costs"][kind].keys()
            for key, value in costs.items():
                assert value == (new["costs"][kind][key] if key in ("parameters", "multiply_adds") else None)


def test_a_later_result_of_schema_1_keeps_what_it_has(digits_run, as_schema_1):
    tasks = json.loads((digits_run / "result.json").read_text())["tasks"]
    for task in tasks:
        for spectrum in task["spectrum"].values():
            del spectrum["wanted"], spectrum["lost"]
    upgraded = as_schema_1(tasks=tasks)
    for old, new in zip(upgraded["tasks"], read_result(digits_run / "result.json")["tasks"]):
        assert old == new, "without a budget, wanted is new and lost is 0"


def test_networks_that_need_not_contain_earlier_ones_have_no_derived_widths(as_schema_1, digits_run):
    config = json.loads((digits_run / "result.json").read_text())["config"]
    upgraded = as_schema_1(method="hat", config=config | {"method": "hat", "options": {}})
    assert [task["used"] for task in upgraded["tasks"]] == [None, None]


def test_a_damaged_result_of_schema_1_and_an_unknown_schema_are_refused(as_schema_1):
    for changes in ({"tasks": [{}]}, {"tasks": 7}, {"accuracy_matrix": "x"}, {"network": None}, {"accuracy_matrix": []}):
        with pytest.raises(StoreError, match="is damaged"):
            as_schema_1(**changes)
    for schema in (0, SCHEMA + 1):
        with pytest.raises(StoreError, match=f"has schema {schema}; this version of spacecl reads schemas 1 to {SCHEMA}"):
            as_schema_1(schema=schema)


def test_the_published_results_are_read():
    files = list(ROOT.glob("results/*/result.json"))
    assert files
    for file in files:
        result = read_result(file)
        assert result["tasks"][0]["costs"]["network"]["multiply_adds"] == result["tasks"][0]["multiply_adds"]
