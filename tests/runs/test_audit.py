"""Verify and inspect: committed tasks are proved to be unchanged, damage is named, and capacity is reported."""

import json
import shutil

import pytest
import torch
from helpers import teach
from models import VECTOR, chain, tasks

from spacecl import EWC, HAT, SPACE, STL, Learner, PackNet, Recipe, StoreError, Task, store
from spacecl.cli.inspect import describe_forecast
from spacecl.cli.main import main
from spacecl.runs.audit import forecast, inspect

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")


@pytest.fixture
def run(digits_run, tmp_path):
    """A copy of a finished run, to be damaged."""
    return shutil.copytree(digits_run, tmp_path / "run")


def verify_run(folder, capsys, *more):
    """The exit code of spacecl verify, and what it says as JSON."""
    capsys.readouterr()
    code = main(["verify", str(folder), "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def rewrite_learner(folder, change):
    """Change a saved learner's content and make all its checksums right again: only digests can tell."""
    body, files = store.load(folder, dict)
    change(body, files)
    store.save(folder, {key: value for key, value in body.items() if key not in ("format", "files")}, files)


def test_a_run_that_nobody_touched_is_what_was_committed(digits_run, capsys):
    code, report = verify_run(digits_run, capsys, "--accuracy")
    assert code == 0
    assert report["ok"]
    result = json.loads((digits_run / "result.json").read_text())["tasks"]
    assert [task["digest"] for task in report["tasks"]] == [task["digest"] for task in result]
    assert [task["accuracy"] for task in report["tasks"]] == [task["accuracy"] for task in result]
    assert main(["verify", str(digits_run)]) == 0
    assert "All 2 tasks are as committed." in capsys.readouterr().out


def test_one_bit_of_a_weight_in_common_is_found_though_every_checksum_is_right(run, capsys):
    def flip(body, files):
        weight = files["core"]["core.hidden1.weight"].reshape(-1)
        weight.view(torch.int32)[int(torch.nonzero(weight)[0])] ^= 1

    rewrite_learner(run / "model", flip)
    code, report = verify_run(run, capsys)
    assert code == 1
    assert [task["problem"] for task in report["tasks"]].count("its bytes are not those of its commit") >= 1
    assert main(["verify", str(run)]) == 1
    assert "NOT as committed" in capsys.readouterr().out


def test_another_head_with_a_matching_digest_is_found_by_the_runs_own_record(run, capsys):
    """Somebody may rewrite network, digest and checksums, but result.json has the digest, too."""

    def change_head(body, files):
        files["task 1"]["head.bias"] += 1

    def change_digest(body, files):
        body["tasks"][1]["digest"] = Learner.load(run / "model", _network(run), verify=False).digests()["digits-2"]

    rewrite_learner(run / "model", change_head)
    rewrite_learner(run / "model", change_digest)
    code, report = verify_run(run, capsys)
    assert code == 1
    assert report["tasks"][0]["problem"] is None
    assert report["tasks"][1]["problem"] == "result.json has the digest of another network"


def _network(run):
    from spacecl.runs.config import Config

    return Config.from_json(json.loads((run / "config.json").read_text())).make_model(torch.zeros(1, 64), 10)


def test_a_damaged_file_is_reported_for_its_task(run, capsys):
    _, listed = store.read_manifest(run / "model", dict)
    file = run / "model" / listed["task 1"].file
    file.write_bytes(file.read_bytes()[:-5])
    code, report = verify_run(run, capsys)
    assert code == 1
    assert report["tasks"][0]["problem"].startswith("not checked")
    assert "truncated" in report["tasks"][1]["problem"]
    assert verify_run(run, capsys, "--accuracy")[1]["measured"] is False
    file.unlink()
    assert "missing" in verify_run(run, capsys)[1]["tasks"][1]["problem"]
    (run / "model" / store.MANIFEST).write_text("{")
    code, report = verify_run(run, capsys)
    assert code == 1
    assert "damaged" in report["error"]


def test_an_accuracy_that_is_not_the_recorded_one_is_found(run, capsys):
    result = json.loads((run / "result.json").read_text())
    result["tasks"][0]["accuracy"] -= 0.01
    result["tasks"][0]["score"] = result["tasks"][0]["accuracy"]
    (run / "result.json").write_text(json.dumps(result))
    assert verify_run(run, capsys)[0] == 0, "bytes alone do not tell"
    code, report = verify_run(run, capsys, "--accuracy")
    assert code == 1
    assert report["tasks"][0]["problem"].startswith("its accuracy is")
    assert report["tasks"][1]["problem"] is None
    assert verify_run(run, capsys, "--accuracy", "--tolerance", "0.02")[0] == 0
    for wrong in ("nan", "-1", "x"):
        with pytest.raises(SystemExit, match="2"):
            main(["verify", str(run), "--tolerance", wrong])


def test_a_run_that_is_not_finished_is_compared_with_its_journal(run, capsys):
    (run / "result.json").unlink()
    code, report = verify_run(run, capsys, "--accuracy")
    assert code == 0
    assert [task["accuracy"] for task in report["tasks"]] == [task["recorded"] for task in report["tasks"]]


@pytest.mark.parametrize(("file", "text"), [("result.json", b"{"), ("result.json", b"[]"), ("config.json", b"\xff\x00")])
def test_a_damaged_record_is_reported(run, capsys, file, text):
    (run / file).write_bytes(text)
    assert main(["verify", str(run)]) == 1
    assert f"{file} is damaged" in capsys.readouterr().err


def test_a_task_that_only_the_record_has_is_reported(run, capsys):
    result = json.loads((run / "result.json").read_text())
    result["tasks"].append({**result["tasks"][0], "name": "digits-3"})
    result["score_matrix"] = result["accuracy_matrix"] = [[1.0] * 3] * 3
    (run / "result.json").write_text(json.dumps(result))
    code, report = verify_run(run, capsys)
    assert (code, report["lost"]) == (1, ["digits-3: in the run's record, but not in the learner"])


def test_damage_to_common_tensors_is_reported_for_every_task(run, capsys):
    _, listed = store.read_manifest(run / "model", dict)
    file = run / "model" / listed["core"].file
    file.write_bytes(file.read_bytes()[:-5])
    code, report = verify_run(run, capsys)
    assert code == 1
    assert all("truncated" in task["problem"] for task in report["tasks"])


def test_the_folder_of_a_runs_learner_stands_for_the_run(run, capsys):
    code, report = verify_run(run / "model", capsys)
    assert (code, report["folder"]) == (0, str(run))


def test_a_run_that_has_not_learned_a_task_yet_is_refused(run, capsys):
    shutil.rmtree(run / "model")
    assert main(["inspect", str(run)]) == 1
    assert "has not learned a task yet" in capsys.readouterr().err


def test_accuracy_that_was_not_recorded_cannot_be_compared(run, capsys):
    (run / "result.json").unlink()
    (run / "metrics.jsonl").write_text("")
    code, report = verify_run(run, capsys, "--accuracy")
    assert (code, "has no record of it" in report["error"]) == (1, True)


def test_a_learner_is_reloaded_and_verified_and_keeps_networks_that_have_not_changed(tmp_path):
    data = tasks(VECTOR, 2)
    learner = Learner(chain(), SPACE(variance=0.7), example_input=VECTOR)
    learner.learn(Task("one", data[0]), Recipe(epochs=2))
    learner.save(tmp_path)
    served, x = Learner.load(tmp_path, chain()), torch.randn(3, 6)
    served.logits(x, "one")
    learner.learn(Task("two", data[1]), Recipe(epochs=2))
    learner.save(tmp_path)
    reloaded = served.reload(tmp_path)
    assert (served.tasks, reloaded.tasks) == (("one",), ("one", "two"))
    assert reloaded._state.networks["one"] is served._state.networks["one"]
    assert torch.equal(reloaded.logits(x, "two"), learner.logits(x, "two"))
    other = Learner(chain(), SPACE(variance=0.7), example_input=VECTOR)
    other.learn(Task("one", data[1]), Recipe(epochs=2))
    other.save(tmp_path / "other")
    assert torch.equal(served.reload(tmp_path / "other").logits(x, "one"), other.logits(x, "one")), "the same name only"
    rewrite_learner(tmp_path, lambda body, files: files["task 1"]["4.bias"].add_(1))
    with pytest.raises(StoreError, match="have changed since their commit: two"):
        served.reload(tmp_path)


def test_a_folder_without_a_run_is_refused_with_what_to_do(tmp_path, capsys):
    for folder, text in ((tmp_path / "none", "is not a folder"), (tmp_path, "holds neither a run")):
        assert main(["verify", str(folder)]) == 1
        assert text in capsys.readouterr().err
    learner = Learner(chain(), SPACE(), example_input=VECTOR)
    learner.learn(Task("a", tasks(VECTOR, 1)[0]), Recipe(epochs=1))
    learner.save(tmp_path / "saved")
    assert main(["inspect", str(tmp_path / "saved")]) == 1
    assert "--model my_net.py:network" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "saved"), "--model", "models:chain"]) == 0
    assert main(["verify", str(tmp_path / "saved"), "--model", "models:chain", "--accuracy"]) == 1
    assert "no run that would name the data" in capsys.readouterr().err


def test_inspect_reports_tasks_capacity_and_how_many_will_fit(digits_run, capsys):
    capsys.readouterr()
    assert main(["inspect", str(digits_run), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    result = json.loads((digits_run / "result.json").read_text())
    assert [task["widths"] for task in report["tasks"]] == [task["widths"] for task in result["tasks"]]
    for layer, counts in report["layers"].items():
        used = [task["used"][layer] for task in result["tasks"]]
        assert counts == {"of": 100, "taken": used[-1], "last": used[-1] - used[-2], "free": 100 - used[-1]}
    layer = report["forecast"]["layer"]
    assert report["forecast"]["tasks"] == report["layers"][layer]["free"] // report["layers"][layer]["last"]
    assert main(["inspect", str(digits_run)]) == 0
    assert "like the last one fit" in capsys.readouterr().out


def test_the_forecast_counts_what_the_method_divides_between_tasks():
    packed = teach(method=PackNet())
    counts = packed.capacity["0"]
    assert counts["of"] == 12 * 6 + 12, "weights and biases of a layer together"
    assert 0 < counts["last"] < counts["taken"] < counts["of"]
    assert teach(method=HAT()).capacity["0"]["of"] == 12
    for method in (EWC(), STL()):
        assert teach(method=method).capacity == {}
        assert inspect(teach(method=method))["forecast"]["tasks"] is None


@pytest.mark.parametrize("method", [SPACE(variance=0.7), PackNet()])
def test_what_the_last_of_three_tasks_took_is_what_was_free_before_it(method):
    learner, before = Learner(chain(), method, example_input=VECTOR), {}
    for number, data in enumerate(tasks(VECTOR, 3)):
        before = learner.capacity
        learner.learn(Task(str(number), data), Recipe(epochs=2))
    second = {layer: counts["taken"] for layer, counts in before.items()}
    for layer, counts in learner.capacity.items():
        assert counts["last"] == counts["taken"] - second[layer]
    assert any(before[layer]["last"] > 0 for layer in before), "the second took some, too"


def test_a_first_task_that_uses_everything_leaves_no_capacity():
    torch.manual_seed(0)
    learner = Learner(chain(), SPACE(variance=1.0), example_input=VECTOR)
    assert describe_forecast(inspect(learner)) == "No task has been learned yet."
    learner.learn(Task("all", tasks(VECTOR, 1)[0]), Recipe(epochs=2))
    assert learner.capacity == {"0": {"of": 12, "taken": 12, "last": 12}, "2": {"of": 10, "taken": 10, "last": 10}}
    assert describe_forecast(inspect(learner)).startswith("No more task like the last one fits: layer 0 has 0 free")


def test_a_full_layer_leaves_no_capacity_for_a_task_like_the_last():
    a, b = {"of": 8, "taken": 8, "last": 2, "free": 0}, {"of": 12, "taken": 3, "last": 3, "free": 9}
    assert forecast({"a": a, "b": b}) == {"tasks": 0, "layer": "a", "full": ["a"]}
    assert forecast({"a": {"of": 8, "taken": 3, "last": 0, "free": 5}}) == {"tasks": None, "layer": None, "full": []}
