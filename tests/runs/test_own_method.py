"""A method of the user's own, named as file.py:Class, on the command line and in saved runs."""

import json
import shutil
from dataclasses import dataclass

import pytest
import torch
from helpers import ROOT
from models import VECTOR, chain, tasks

from spacecl import ConfigError, FineTune, Learned, Learner, Method, Recipe, StoreError, Task, TrainingError, store
from spacecl.cli.main import main
from spacecl.documents import digest_json
from spacecl.reporting.arms import read_comparisons
from spacecl.runs.config import Config
from spacecl.runs.open_run import open_run
from spacecl.runs.resolve import resolve, to_command
from spacecl.runs.result import read_result
from spacecl.runs.sweep_plan import make_method_arms
from spacecl.user_code import run_file

EXAMPLE = ROOT / "examples" / "own_method.py"
NAME = f"{EXAMPLE}:L2Anchor"
QUICK = ["--tasks", "2", "--limit", "20", "--epochs", "1", "--retrain-epochs", "1", "--quiet", "--device", "cpu"]


def start(command, *arguments):
    return main([command, "permuted-digits", *QUICK, *map(str, arguments)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of a copy of the example, whose execution leaves a mark: its folder, the file and the mark."""
    top = tmp_path_factory.mktemp("own")
    code, mark = top / "my_method.py", top / "mark"
    code.write_text(f"{EXAMPLE.read_text()}\n\nopen({str(mark)!r}, 'a').close()\n")
    run = top / "run"
    assert start("run", "--method", f"{code}:L2Anchor", "--set", "options.strength=3", "--no-measure", "--out", run) == 0
    return run, code, mark


@pytest.fixture
def own(finished, tmp_path):
    """A copy of the folder, the file and the mark, which is not there."""
    run, code, mark = finished
    mark.unlink(missing_ok=True)
    run_file.__globals__["_namespaces"].pop(code, None)  # as in a new process
    return shutil.copytree(run, tmp_path / "run"), code, mark


def test_a_run_takes_an_own_method_with_its_options(finished, capsys):
    run, code, _ = finished
    result = read_result(run / "result.json")
    assert result["method"] == result["config"]["method"] == f"{code}:L2Anchor"
    assert result["config"]["options"] == {"strength": 3.0}
    command = to_command(Config.from_file(run / "config.json"))
    assert command[3:5] == ["--method", f"{code}:L2Anchor"]
    assert "options.strength=3.0" in command
    weak = resolve({"benchmark": "permuted-digits", "method": NAME, "options": {"strength": 0}})
    assert weak.make_method().strength == 0
    assert weak.make_recipe(1, 100, 10).epochs == 45, "an own method trains for the epochs of both phases, too"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"strength": -1}}, r"options.strength=-1 must be a number at least 0"),
        ({"options": {"strengt": 1}}, r"options.strengt is not a setting \(did you mean options.strength\?\)"),
        ({"options": {"strength": "much"}}, "options.strength='much' must be a number"),
        ({"method": f"{EXAMPLE}:Other"}, "own_method.py has no class Other"),
        ({"method": "nowhere.py:L2Anchor"}, "nowhere.py does not exist"),
        ({"method": f"{EXAMPLE}:Method"}, "the class lacks learn|is not a dataclass"),
        ({"method": "spacecl.methods.ewc:EWC"}, "a method of spacecl is called EWC, too"),
        ({"method": "collections:OrderedDict"}, "not a subclass of spacecl.Method"),
        ({"method": "l2anchor"}, "must be one of stl, .* or your own as file.py:Class"),
    ],
)
def test_an_own_method_and_its_options_are_checked_before_anything_runs(settings, message):
    with pytest.raises(ConfigError, match=message):
        resolve({"benchmark": "permuted-digits", "method": NAME, **settings})


def test_a_class_that_cannot_be_a_method_is_refused_with_a_reason(tmp_path):
    head, end = "from dataclasses import dataclass\nimport spacecl\n", "    def learn(self, core, task): ...\n"
    for body, message in {
        f"class Bare(spacecl.Method):\n{end}": "is not a dataclass",
        f"@dataclass(frozen=True)\nclass Bare(spacecl.Method):\n    x: int\n{end}": "x has none",
        f"@dataclass(frozen=True)\nclass Other(spacecl.Method):\n{end}Bare = Other\n": "called Other",
        f"@dataclass(frozen=True)\nclass Bare(spacecl.Method):\n    x: object = print\n{end}": "JSON",
        "class Bare: ...\nraise ValueError('broken')\n": "ValueError: broken .*bare.py, line 4",
    }.items():
        (tmp_path / "bare.py").write_text(head + body)
        with pytest.raises(ConfigError, match=message):
            resolve({"benchmark": "permuted-digits", "method": f"{tmp_path}/bare.py:Bare"})


def test_a_plain_dataclass_is_checked_by_its_annotations_too(tmp_path):
    """Annotations as text, of names that only the file knows."""
    (tmp_path / "plain.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport spacecl\nPace = float\n\n\n"
        "@dataclass(frozen=True)\nclass Plain(spacecl.Method):\n    pace: Pace = 1.0\n\n    def learn(self, core, task): ...\n"
    )
    given = {"benchmark": "permuted-digits", "method": f"{tmp_path}/plain.py:Plain"}
    assert resolve(given | {"options": {"pace": 2}}).options == {"pace": 2}
    with pytest.raises(ConfigError, match=r"options.pace='fast' must be a number"):
        resolve(given | {"options": {"pace": "fast"}})


def test_no_code_of_a_method_runs_unless_trusted_and_none_is_needed_to_use_the_networks(own, capsys):
    run, code, mark = own
    assert main(["inspect", str(run)]) == 0
    assert "L2Anchor" in capsys.readouterr().out
    assert main(["verify", str(run), "--accuracy"]) == 0
    assert main(["export", str(run), "--all", "--format", "safetensors"]) == 0
    assert main(["report", str(run)]) == 0
    assert "L2Anchor" in capsys.readouterr().out
    learner = open_run(run).learner()
    assert learner.reload(run / "model").predict(learner.example, "digits-1").shape == (1,)
    (run / "result.json").unlink()
    for command in (["run", "--resume", "--out", run], ["compare", "--resume", "--out", run.parent]):
        assert main([*map(str, command), "--quiet"]) == 1
        assert f"names code that would be run: {code}:L2Anchor" in capsys.readouterr().err
    assert not mark.exists()


def test_a_run_of_an_own_method_resumes_if_the_user_names_or_trusts_it(own, finished, capsys):
    run, code, mark = own
    before = read_result(run / "result.json")
    metrics = (run / "metrics.jsonl").read_text()
    for how in (["--trust-code"], ["--method", f"{code}:L2Anchor"]):
        (run / "result.json").unlink()
        assert main(["run", "--resume", "--out", str(run), "--quiet", "--no-measure", *how]) == 0
        assert "Resuming after 2 of 2 tasks" in capsys.readouterr().out
        assert read_result(run / "result.json")["tasks"][0]["digest"] == before["tasks"][0]["digest"]
    assert mark.exists()
    assert (run / "metrics.jsonl").read_text() == metrics
    assert main(["run", "--resume", "--out", str(run), "--quiet", "--method", NAME]) == 1
    assert "method was" in capsys.readouterr().err


def test_an_interrupted_run_of_an_own_method_continues_to_the_same_bits(tmp_path, monkeypatch):
    assert start("run", "--method", NAME, "--no-measure", "--out", tmp_path / "whole") == 0
    from spacecl.runs import run as run_module

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "format_task", stop)  # when the first task is done
        assert start("run", "--method", NAME, "--no-measure", "--out", tmp_path / "half") == 130
    assert start("run", "--method", NAME, "--no-measure", "--out", tmp_path / "half") == 0
    whole, half = (read_result(tmp_path / name / "result.json") for name in ("whole", "half"))
    assert [task["digest"] for task in half["tasks"]] == [task["digest"] for task in whole["tasks"]]


def test_compare_and_tune_take_own_methods_and_the_report_names_them(tmp_path, capsys):
    out = tmp_path / "cmp"
    assert start("compare", "--methods", f"finetune,{NAME}", "--set", "L2Anchor.strength=2", "--jobs", 1, "--out", out) == 0
    (comparison,), left_out = read_comparisons(out)
    assert [arm.label for arm in comparison.arms] == ["Fine-tuning", "L2Anchor"]
    assert not left_out
    assert comparison.arms[1].config.options == {"strength": 2.0}
    assert main(["compare", "--resume", "--out", str(out), "--quiet"]) == 1
    assert main(["compare", "--resume", "--out", str(out), "--quiet", "--trust-code"]) == 0
    capsys.readouterr()
    assert start("tune", "--method", NAME, "--over", "strength=0.1,1", "--out", tmp_path / "tune") == 0
    assert "permuted-digits, L2Anchor, recipe fast" in capsys.readouterr().out
    assert json.loads((tmp_path / "tune" / "tune.json").read_text())["method"] == NAME


def test_arms_of_own_methods_have_the_names_of_their_classes():
    assert make_method_arms(f"EWC, {NAME}") == {"ewc": {"method": "ewc"}, "L2Anchor": {"method": NAME}}
    assert list(make_method_arms(f"all,{NAME}"))[-2:] == ["space", "L2Anchor"]
    with pytest.raises(ConfigError, match=r"are called L2Anchor. Give one class another name"):
        make_method_arms(f"{NAME},other.py:L2Anchor")
    with pytest.raises(ConfigError, match=r"There is no method l2. The methods are stl, .* or your own as file.py:Class"):
        make_method_arms("l2")


def test_classes_of_one_name_in_two_files_are_told_apart_in_a_report(finished, tmp_path):
    run, code, _ = finished
    for name in ("a", "b"):
        folder = shutil.copytree(run, tmp_path / name)
        text = (folder / "result.json").read_text().replace(str(code), f"/{name}.py")
        (folder / "result.json").write_text(text)
    (comparison,), _ = read_comparisons(tmp_path)
    assert [arm.label for arm in comparison.arms] == [f"L2Anchor: method /{name}.py:L2Anchor" for name in "ab"]


# -- in Python ---------------------------------------------------------------------------------------------------------


def taught(strength=2.0, epochs=1):
    kind = run_file(EXAMPLE)["L2Anchor"]
    torch.manual_seed(0)
    learner = Learner(chain(), kind(strength=strength), example_input=VECTOR)
    for number, data in enumerate(tasks(VECTOR, 2)):
        learner.learn(Task(str(number), data), Recipe(epochs=epochs))
    return learner, kind


def test_a_penalty_is_added_to_the_loss():
    """A large one keeps the weights of the task before."""
    free, held = (taught(strength, epochs=20)[0].core.shared["0.weight"] for strength in (0.0, 1e4))
    torch.manual_seed(0)
    alone = Learner(chain(), FineTune(), example_input=VECTOR)
    alone.learn(Task("0", tasks(VECTOR, 2)[0]), Recipe(epochs=20))
    first = alone.core.shared["0.weight"]
    assert (held - first).norm() < 0.5 * (free - first).norm()
    alone.learn(Task("1", tasks(VECTOR, 2)[1]), Recipe(epochs=20))
    assert torch.equal(alone.core.shared["0.weight"], free), "without a penalty it is fine-tuning"


def test_a_learner_of_an_own_method_is_used_without_it_and_taught_with_it(tmp_path):
    learner, kind = taught()
    learner.save(tmp_path / "saved")
    x, more = tasks(VECTOR, 3)[0][0], Task("2", tasks(VECTOR, 3)[2])
    loaded = Learner.load(tmp_path / "saved", chain())
    assert torch.equal(loaded.logits(x, "0"), learner.logits(x, "0"))
    assert loaded.identify(x).tasks == learner.identify(x).tasks
    assert (loaded.capacity, repr(loaded)) == (learner.capacity, repr(learner))
    with pytest.raises(ConfigError, match=r"taught with L2Anchor, .* Learner.load\(..., method=L2Anchor\(...\)\)"):
        loaded.learn(more, Recipe(epochs=1))
    loaded.save(tmp_path / "again")
    again = Learner.load(tmp_path / "again", chain(), method=kind(strength=2))
    loaded.method = kind(strength=2)
    for one in (learner, again, loaded):
        one.learn(more, Recipe(epochs=1))
        assert one.verify() == learner.verify()
    with pytest.raises(ConfigError, match="was learned with L2Anchor; it cannot continue with Other"):
        Learner.load(tmp_path / "saved", chain(), method=make_other())


def make_other():
    @dataclass(frozen=True)
    class Other(Method):
        def learn(self, core, task):
            return Learned(core, [])

    return Other()


def test_a_learner_of_version_0_1_with_an_own_method_counts_as_one_that_forgets(tmp_path):
    learner, _ = taught()
    learner.save(tmp_path)
    document = json.loads((tmp_path / store.MANIFEST).read_text())
    assert document["content"]["method"].pop("forgets") is True
    document["sha256"] = digest_json(document["content"])
    (tmp_path / store.MANIFEST).write_text(json.dumps(document))
    assert Learner.load(tmp_path, chain()).method.forgets
    document["content"]["method"]["name"] = "[red]\n"
    document["sha256"] = digest_json(document["content"])
    (tmp_path / store.MANIFEST).write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"method.name"):
        Learner.load(tmp_path, chain())


def double(core):
    return {name: 2 * tensor for name, tensor in core.initial_tensors(3).items()}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda core: None, r"Odd.learn\(\) returned a NoneType. Return spacecl.Learned"),
        (lambda core: Learned(core, []), r"returned a core of 1 tasks instead of 2"),
        (lambda core: Learned(core.replace_weights(double(core)), []), "changed the networks of '0', but says"),
    ],
)
def test_what_a_method_may_not_return_is_refused_and_changes_nothing(result, message):
    @dataclass(frozen=True)
    class Odd(Method):
        def learn(self, core, task):
            module = core.blueprint.build(core.initial_tensors(task.classes))
            first = core.commit(core.blueprint.extract_tensors(module), core.channels.all_units())
            return result(core) if core.tasks else Learned(first, [])

    learner = Learner(chain(), Odd(), example_input=VECTOR)
    first, second = tasks(VECTOR, 2)
    learner.learn(Task("0", first), Recipe(epochs=1))
    digests = learner.verify()
    with pytest.raises(TrainingError, match=message):
        learner.learn(Task("1", second), Recipe(epochs=1))
    assert learner.verify() == digests
