"""Files of others: damaged or forged ones are refused with a sentence, no link is followed, and no code runs unless trusted."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from faults import files as damaged_files
from helpers import teach
from models import chain

from spacecl import SPACE, Learner, Recipe, StoreError, store
from spacecl.cli.main import main
from spacecl.documents import digest_json, parse_document, read_bytes, read_document
from spacecl.runs.config import Config
from spacecl.runs.result import read_result

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a saved learner of two tasks; copy it before you change anything."""
    folder = tmp_path_factory.mktemp("saved")
    teach(method=SPACE(variance=0.8, samples=60), recipe=Recipe(epochs=1, retrain_epochs=1)).save(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def forge(folder, change):
    """Edit the content of a manifest and update its checksum."""
    document = json.loads((folder / store.MANIFEST).read_text())
    change(document["content"])
    document["sha256"] = digest_json(document["content"])
    (folder / store.MANIFEST).write_text(json.dumps(document))


def test_only_regular_files_of_the_expected_size_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert read_bytes(tmp_path / "file", 3) == b"abc"
    for name, reason in {
        "link": "is a link",
        "pipe": "not a regular file",
        "folder": "not a regular",
        "none": "missing",
    }.items():
        with pytest.raises(StoreError, match=reason):
            read_bytes(tmp_path / name, 3)
    with pytest.raises(StoreError, match="has 3 bytes; at most 2 are expected"):
        read_bytes(tmp_path / "file", 2)
    with pytest.raises(StoreError, match="not a file name"):
        read_bytes(tmp_path / "a\0b", 2)


def test_problems_of_a_document_are_reported_with_their_place():
    with pytest.raises(StoreError, match=r"x.json is damaged: a.0 is 'x': input should be a valid integer. Restore"):
        parse_document(b'{"a": ["x"]}', dict[str, list[int]], "x.json")
    with pytest.raises(StoreError, match=r"x.json is damaged or truncated: it cannot be read as JSON"):
        parse_document(b'{"a": ', dict[str, list[int]], "x.json")
    with pytest.raises(StoreError, match="cannot be read as JSON"):
        parse_document(b"[" * 100_000, list[int], "x.json")


@pytest.mark.parametrize("name", ["/etc/hostname", "../x.safetensors", "a/b", "", ".", "..", ".hidden", "a\0b", "c:x", 7, None])
def test_a_manifest_names_plain_files_in_its_own_folder_only(folder, name):
    forge(folder, lambda content: content["files"]["core"].update(file=name))
    with pytest.raises(StoreError, match=r"files.core.file"):
        Learner.load(folder, chain())


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "sparse"])
def test_only_regular_files_of_the_right_size_are_opened(folder, kind):
    file = folder / store.read_manifest(folder, dict)[1]["core"].file
    data = file.read_bytes()
    file.unlink()
    if kind == "link":
        (folder / "elsewhere").write_bytes(data)
        file.symlink_to(folder / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        with file.open("wb") as stream:
            stream.truncate(5 << 30)  # no disk is used, but reading it would take 5 GB of memory
    with pytest.raises(StoreError, match=r"is a link|not a regular file|too long: 5368709120 bytes"):
        Learner.load(folder, chain())


def remove(*keys):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return change


def put(value, *keys):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return change


FORGED = {
    "no tasks": (remove("tasks"), "tasks is missing"),
    "a record without a digest": (remove("tasks", 0, "digest"), r"tasks.0.digest is missing"),
    "an empty name": (put("", "tasks", 0, "name"), "A task needs a name"),
    "no name": (put(None, "tasks", 0, "name"), "tasks.0.name is None"),
    "a reserved name": (put("infer", "tasks", 0, "name"), "No task can be named 'infer'"),
    "a name that is there twice": (put("task 1", "tasks", 0, "name"), "two tasks have the same name"),
    "an accuracy in words": (put("x", "tasks", 0, "accuracy"), "tasks.0.accuracy is 'x'"),
    "an accuracy above 1": (put(1.5, "tasks", 0, "accuracy"), "tasks.0.accuracy is 1.5"),
    "repeated class names": (put(["a", "a", "b"], "tasks", 0, "class_names"), "'a' is there 2 times"),
    "nested class names": (put([["a"], "b", "c"], "tasks", 0, "class_names"), "tasks.0.class_names.0"),
    "two names for three classes": (put(["a", "b"], "tasks", 0, "class_names"), "3 classes, but 2 names"),
    "a million classes": (put(10**6, "tasks", 0, "classes"), "task 0, 4.weight is float32"),
    "units for 40 GB": (put([10**5, 10**5], "units"), r"task 0, units is bool \[\d+\] instead of bool \[200000\]"),
    "a truth value as a number": (put(True, "seed"), "seed is True"),
    "deep nesting": (put(json.loads("[" * 400 + "]" * 400), "method", "options", "variance"), "recursion limit"),
    "options of no method": (put({"x": 1}, "method", "options"), "options that SPACE does not accept"),
    "files without sizes": (put({"file": "x"}, "files", "core"), "files.core.bytes is missing"),
    "no file of a task": (remove("files", "task 1"), "lists no tensors of 'task 1'"),
}


@pytest.mark.parametrize(("change", "message"), FORGED.values(), ids=FORGED)
def test_a_forged_manifest_with_a_valid_checksum_is_refused_with_a_reason(folder, change, message):
    forge(folder, change)
    with pytest.raises(StoreError, match=message):
        Learner.load(folder, chain())


def test_forged_tensors_are_refused_by_what_does_not_fit(folder):
    body, files = store.load(folder, dict)
    plain = {key: value for key, value in body.items() if key not in ("format", "files")}
    for change, message in (
        (lambda files: files["task 1"].pop(".units"), "task 1 lacks its units"),
        (lambda files: files["core"].pop("example"), "no example input"),
        (lambda files: files["core"].update({"core.0.weight": torch.zeros(5)}), r"core.0.weight is float32 \[5\] instead of"),
        (lambda files: files["task 0"].pop("4.bias"), "task 0 lacks 4.bias"),
        (lambda files: files["task 0"].update(x=torch.zeros(1)), "task 0 has x, which the model does not have"),
        (lambda files: files["task 0"].update({".signature.root": torch.zeros(3)}), "its signature does not fit"),
    ):
        changed = {name: dict(tensors) for name, tensors in files.items()}
        change(changed)
        store.save(folder, plain, changed)
        with pytest.raises(StoreError, match=message):
            Learner.load(folder, chain())


def test_a_network_that_has_grown_is_made_only_as_large_as_its_tensors(folder):
    body, files = store.load(folder, dict)
    plain = {key: value for key, value in body.items() if key not in ("format", "files")}
    units = [10**5, 10**5]
    for name in ("task 0", "task 1"):
        files[name][".units"] = torch.ones(sum(units), dtype=torch.bool)
    store.save(folder, {**plain, "units": units}, files)
    with pytest.raises(StoreError, match=r"would have the shape \[100000, 6\]"):
        Learner.load(folder, chain())


# -- a run's folder ---------------------------------------------------------------------------------------------------

EDITED = {
    "config.json": [
        (put("nope", "method"), "must be one of"),
        (put({"x": 1}, "train"), "train.x is not a setting"),
        (put(1, "more"), "more"),
    ],
    "tasks.json": [(put(7, "digits-1"), "tasks.json is damaged"), (put("x", "digits-1", "classes"), "digits-1.classes")],
    "environment.json": [(lambda content: content.clear(), None)],
    "result.json": [(put("x", "tasks", 0, "accuracy"), "tasks.0.accuracy is 'x'"), (put([], "tasks"), "tasks is")],
}


@pytest.mark.parametrize("name", EDITED)
def test_an_edited_file_of_a_run_is_refused_with_a_reason(digits_run, tmp_path, capsys, name):
    for number, (change, message) in enumerate(EDITED[name]):
        run = shutil.copytree(digits_run, tmp_path / f"run{number}")
        content = json.loads((run / name).read_text())
        change(content)
        (run / name).write_text(json.dumps(content))
        if name != "result.json":
            (run / "result.json").unlink()
        code = main(["run", "--resume", "--out", str(run), "--quiet", "--no-measure"])
        text = capsys.readouterr().err
        assert (code, text) == (0, "") if message is None else (code == 1 and message in text)


def test_a_result_whose_parts_do_not_fit_each_other_is_refused(digits_run, tmp_path):
    result = json.loads((digits_run / "result.json").read_text())
    for change, message in (
        (put([[1.0]], "score_matrix"), "not a row and a column for every task"),
        (put(None, "score_matrix", 1, 0), "a value is missing"),
        (put("digits-2", "tasks", 0, "name"), "a name is there twice"),
        (put(5, "schema"), "has schema 5"),
        (put("p-mnist", "benchmark"), "settings are those of another run"),
    ):
        changed = json.loads(json.dumps(result))
        change(changed)
        (tmp_path / "result.json").write_text(json.dumps(changed))
        with pytest.raises(StoreError, match=message):
            read_result(tmp_path / "result.json")


def test_results_of_earlier_versions_are_still_read():
    for file in Path(__file__).parent.parent.glob("results/*/result.json"):
        assert read_result(file)["tasks"]


@pytest.fixture
def foreign_run(digits_run, tmp_path):
    """A run whose settings name a Python file as its network; running it leaves a mark."""
    run = shutil.copytree(digits_run, tmp_path / "stranger")
    mark = tmp_path / "mark"
    code = tmp_path / "evil.py"
    code.write_text(
        f"open({str(mark)!r}, 'w').close()\n"
        "from spacecl.data.benchmarks.networks import NETWORKS\n"
        "def network():\n    return NETWORKS['mlp-small']((64,), 10)\n"
    )
    for name, place in (("config.json", lambda content: content), ("result.json", lambda content: content["config"])):
        content = json.loads((run / name).read_text())
        place(content)["model"] = f"{code}:network"
        (run / name).write_text(json.dumps(content))
    return run, mark, code


def test_no_code_of_a_foreign_folder_runs_by_default(foreign_run, capsys):
    run, mark, code = foreign_run
    for command in (["verify"], ["export", "--all", "--format", "safetensors"], ["serve", "--port", "0"]):
        assert main([command[0], str(run), *command[1:]]) == 1
        assert f"names code that would be run: {code}:network" in capsys.readouterr().err
    (run / "result.json").unlink()
    assert main(["run", "--resume", "--out", str(run), "--quiet"]) == 1
    assert main(["compare", "--resume", "--out", str(run.parent), "--quiet"]) == 1
    assert capsys.readouterr().err.count("--trust-code") == 2
    assert main(["inspect", str(run)]) == 0
    assert "Free channels are not shown" in capsys.readouterr().out
    assert not mark.exists()


@pytest.mark.parametrize("name", ["evil", "evil.py", "evil.py:tasks", "a:b/evil.py", "evil.txt"])
def test_no_code_of_the_tasks_of_a_foreign_folder_runs_by_default(digits_run, tmp_path, capsys, name):
    """Whatever the file is called that a folder names as its tasks."""
    run, mark = shutil.copytree(digits_run, tmp_path / "stranger"), tmp_path / "mark"
    code = tmp_path / name.removesuffix(":tasks")
    code.parent.mkdir(exist_ok=True)
    code.write_text(f"open({str(mark)!r}, 'w').close()\n")
    for file, place in (("config.json", lambda content: content), ("result.json", lambda content: content["config"])):
        content = json.loads((run / file).read_text())
        place(content)["benchmark"] = content["benchmark"] = str(tmp_path / name)
        (run / file).write_text(json.dumps(content))
    assert main(["verify", str(run), "--accuracy"]) == 1
    assert "names code that would be run" in (text := capsys.readouterr().err) or "neither a folder of pictures" in text
    assert not mark.exists()


def test_code_runs_if_the_user_trusts_or_names_it(foreign_run, capsys):
    run, mark, code = foreign_run
    assert main(["inspect", str(run), "--trust-code"]) == 0
    assert " like the last one fit" in capsys.readouterr().out
    assert mark.exists()
    assert main(["verify", str(run), "--model", f"{code}:network"]) == 0


def test_a_run_of_the_users_own_code_is_resumed_by_the_same_command(tmp_path):
    """Whoever names a file on the command line knows what it is."""
    example = Path(__file__).parent.parent / "examples" / "own_tasks.py"
    command = ["run", str(example), "--model", f"{example}:network", "--epochs", "1", "--retrain-epochs", "1"]
    for _ in range(2):
        assert main([*command, "--out", str(tmp_path), "--quiet", "--no-measure"]) == 0
    config = Config.from_file(tmp_path / "config.json")
    assert len(config.find_user_code()) == 2
    assert main(["run", "--resume", "--out", str(tmp_path), "--quiet"]) == 1
    assert main(["run", "--resume", "--out", str(tmp_path), "--quiet", "--trust-code"]) == 0


@pytest.mark.slow
def test_damaged_files_of_every_kind_are_refused_with_a_sentence():
    """A small dose of `python -m bench.faults --only files`."""
    outcome = damaged_files.run_saved(60, seed=1)
    assert not outcome.failures
    assert outcome.tried == 60


def test_a_document_must_be_of_the_expected_type(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(StoreError, match="valid array"):
        read_document(tmp_path / "x.json", list[dict])
