"""Models with several inputs: every method learns, and everything after learning takes the inputs in the same form."""

import numpy as np
import pytest
import torch
from helpers import QUICK
from models import CAPTIONED, LENGTH, WORDS, Captioned
from torch.utils.data import DataLoader

import spacecl
from spacecl import ConfigError, DataError, Learner, Recipe, Task
from spacecl.data.prepare import fingerprint
from spacecl.data.task_data import Data
from spacecl.methods import METHODS
from spacecl.runs.costs import count_costs, measure_costs

pytestmark = pytest.mark.filterwarnings("ignore:.*(too few samples|validation examples).*")
FORMS = {"names": CAPTIONED, "order": tuple(CAPTIONED.values())}


def make_inputs(rows=120, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(rows, 6, generator=generator)
    ids = torch.randint(0, WORDS, (rows, LENGTH), generator=generator)
    return {"pixels": pixels, "ids": ids, "mask": (ids > 3).long()}


def make_data(form="names", rows=120, seed=0):
    x = make_inputs(rows, seed)
    y = (x["pixels"][:, seed] > 0).long() + (x["ids"][:, 0] > 10).long()
    return (x if form == "names" else tuple(x.values())), y


def select(x, rows):
    return {name: part[rows] for name, part in x.items()} if isinstance(x, dict) else tuple(part[rows] for part in x)


def teach(method=None, form="names", tasks=2):
    torch.manual_seed(0)
    learner = Learner(Captioned(), method or spacecl.SPACE(variance=0.8), example_input=FORMS[form])
    for number in range(tasks):
        learner.learn(Task(f"task {number}", make_data(form, seed=number)), QUICK)
    return learner


@pytest.fixture(scope="module", params=FORMS)
def taught(request):
    return teach(form=request.param), request.param


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_a_model_with_several_inputs(name):
    learner = teach(METHODS[name](**{"UCB": {"samples": 2}, "EWC": {"samples": 20}}.get(name, {})))
    x, y = make_data()
    assert learner.logits(x, "task 0").shape == (120, 3)
    assert 0 <= learner.evaluate((x, y), "task 0") <= 1
    learner.verify()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_labels_and_values_of_several_inputs(name, tmp_path):
    x = make_inputs()
    labels = torch.stack([x["pixels"][:, 0] > 0, x["ids"][:, 0] > 10], 1).long()
    values = 1e3 * (x["pixels"][:, :2] + x["ids"][:, :2] / 10)
    method = METHODS[name](**{"UCB": {"samples": 2}, "EWC": {"samples": 20}}.get(name, {}))
    torch.manual_seed(0)
    learner = Learner(Captioned(), method, example_input=CAPTIONED)
    learner.learn(Task("labels", (x, labels)), QUICK)
    before = learner.logits(x, "labels")
    rows = [({key: part[row] for key, part in x.items()}, values[row]) for row in range(len(values))]
    learner.learn(Task("values", rows), QUICK)  # as a dataset
    assert torch.equal(learner.logits(x, "labels"), before) is not method.forgets
    assert (learner.records["labels"].metric, learner.records["values"].metric) == ("mean average precision", "R²")
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, Captioned())
    for task, y in (("labels", labels), ("values", values)):
        assert loaded.predict(x, task).shape == y.shape
        assert loaded.evaluate((x, y), task) == learner.evaluate((x, y), task)
        with torch.no_grad():
            assert torch.equal(loaded.subnet(task)(**x), learner.logits(x, task))


def test_committed_tasks_keep_their_bits_and_narrowed_networks_equal_the_saved_ones(taught, tmp_path):
    learner, form = taught
    x, _ = make_data(form)
    before = learner.logits(x, "task 0")
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, Captioned())
    assert type(loaded.example) is type(learner.example)
    assert torch.equal(loaded.logits(x, "task 0"), before)
    loaded.learn(Task("third", make_data(form, seed=2)), QUICK)
    assert torch.equal(loaded.logits(x, "task 0"), before)
    network = learner.subnet("task 0")
    with torch.no_grad():
        assert torch.equal(network(**x) if form == "names" else network(*x), before)


def test_tasks_are_told_apart_by_all_inputs_together(taught):
    learner, form = taught
    x, _ = make_data(form)
    identified = learner.identify(x)
    assert len(identified.tasks) == 120
    inferred = learner.predict(x, task="infer")
    rows = [row for row, name in enumerate(inferred.tasks) if name == "task 0"]
    assert torch.equal(inferred.labels[rows], learner.predict(select(x, rows), "task 0"))
    mixed = learner.predict(x, ["task 0", "task 1"] * 60)
    assert torch.equal(mixed[1::2], learner.predict(x, "task 1")[1::2])
    assert learner.accepts(x, "task 0").float().mean() > 0.8
    far = {name: part * (100 if part.is_floating_point() else 1) for name, part in make_inputs().items()}
    assert not learner.accepts(far if form == "names" else tuple(far.values()), "task 0").any()


def test_a_dataset_or_loader_of_such_examples_gives_the_same_network_as_tensors():
    x, y = make_data()
    rows = [(select(x, row), int(y[row])) for row in range(120)]
    digests = []
    for source in ((x, y), rows):
        torch.manual_seed(0)
        learner = Learner(Captioned(), example_input=CAPTIONED)
        digests.append(learner.learn(Task("one", source), QUICK).digest)
    assert digests[0] == digests[1]
    learner = Learner(Captioned(), example_input=FORMS["order"])
    rows = [(tuple(select(x, row).values()), int(y[row])) for row in range(120)]
    learner.learn(Task("one", DataLoader(rows, batch_size=30, shuffle=True), (tuple(x.values()), y)), QUICK)
    assert learner.evaluate(DataLoader(rows, batch_size=7), "one") == learner.evaluate((tuple(x.values()), y), "one")


def change(name, value):
    x, y = make_data()
    return Task("t", ({**x, name: value}, y))


MASK = make_inputs()["mask"]
BAD = {
    "another shape": (change("mask", MASK[:, :3]), r"input 'mask' has shape \(3,\), but the model's example input has \(5,\)"),
    "fractions": (change("mask", MASK.float()), "input 'mask' is torch.float32, but the model's example input is torch.int64"),
    "a NaN": (change("pixels", torch.full((120, 6), float("nan"))), "input 'pixels' in row 0 holds NaN"),
    "fewer rows": (change("mask", MASK[:9]), "9 or 120 inputs, but labels of shape"),
    "a name too many": (
        change("other", MASK),
        "the tensors ids, mask, pixels, but the inputs are the tensors ids, mask, other",
    ),
    "one tensor": (Task("t", (MASK, MASK[:, 0])), "the tensors ids, mask, pixels, but the inputs are one tensor"),
    "an order": (Task("t", (tuple(make_inputs().values()), MASK[:, 0])), "but the inputs are 3 tensors"),
}


@pytest.mark.parametrize(("task", "message"), BAD.values(), ids=BAD)
def test_bad_inputs_are_refused_by_name_before_training(monkeypatch, task, message):
    learner = Learner(Captioned(), example_input=CAPTIONED)
    monkeypatch.setattr(spacecl.learning.trainer.Trainer, "fit", lambda *a, **k: pytest.fail("training began"))
    with pytest.raises(DataError, match=message):
        learner.learn(task, QUICK)


def test_a_batch_with_different_numbers_of_rows_is_refused():
    x = make_inputs()
    batch = {**x, "mask": x["mask"][:9]}, torch.zeros(120, dtype=torch.int64)
    learner = Learner(Captioned(), example_input=CAPTIONED)
    with pytest.raises(DataError, match="input 'mask' has 9 rows, but 'ids' has 120"):
        learner.learn(Task("t", list(range(120)), make_data(), collate=lambda _: batch), QUICK)


def test_what_is_for_one_input_alone_says_so(taught):
    learner, form = taught
    with pytest.raises(ConfigError, match='augment="mask" is for models with one input'):
        learner.learn(Task("new", make_data(form)), Recipe(epochs=1, augment="mask"))
    for example in ({}, (), {"a b": torch.zeros(1, 2)}, (torch.zeros(1, 2), 3), (torch.zeros(1, 2), torch.zeros(2, 2))):
        with pytest.raises(ConfigError, match="example_input"):
            Learner(Captioned(), example_input=example)


def test_costs_are_counted_and_measured(taught):
    learner, _ = taught
    network = learner.subnet("task 0")
    costs = count_costs(network, learner.example)
    assert costs["multiply_adds"] == sum(p.numel() for n, p in network.named_parameters() if p.dim() == 2 and "words" not in n)
    assert measure_costs(network, learner.example, seconds=0.01)["latency"]["64"]["median"] > 0


@pytest.mark.parametrize("ending", ["onnx", "pt2", "safetensors"])
def test_exported_networks_have_the_inputs_by_name(taught, tmp_path, ending):
    learner, form = taught
    x, _ = make_data(form, rows=7)
    names = sorted(CAPTIONED) if form == "names" else ["input_0", "input_1", "input_2"]
    info = learner.export("task 0", tmp_path / f"net.{ending}")
    assert [entry["name"] for entry in info["inputs"]] == names
    assert "input" not in info
    expected = learner.logits(x, "task 0")
    if ending == "pt2":
        program = torch.export.load(tmp_path / "net.pt2").module()
        torch.testing.assert_close(program(**x) if form == "names" else program(*x), expected, rtol=1e-4, atol=1e-5)
    if ending == "onnx":
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
        tensors = x if form == "names" else dict(zip(names, x))
        arrays = {entry.name: tensors[entry.name].numpy() for entry in session.get_inputs()}
        assert sorted(arrays) == names
        np.testing.assert_allclose(session.run(["logits"], arrays)[0], expected.numpy(), rtol=1e-4, atol=1e-5)
        small = learner.export("task 0", tmp_path / "small.onnx", int8=make_data(form)[0])
        assert small["int8"]


def test_other_inputs_have_another_fingerprint():
    x, y = make_data()
    other = {**x, "mask": 1 - x["mask"]}
    assert fingerprint(Data((x, y), "a")) == fingerprint(Data((dict(reversed(x.items())), y), "a"))
    assert fingerprint(Data((x, y), "a")) != fingerprint(Data((other, y), "a"))
