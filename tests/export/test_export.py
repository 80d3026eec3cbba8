"""Export: files that run without spacecl, answer as the network does, and hold its weights and no more."""

import json
import zipfile

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from models import FAMILIES, IMAGE, ConvNet, ResNet, tasks
from torch import nn

import spacecl.export
from spacecl import SPACE, ConfigError, DataError, Images, Learner, Recipe, SpaceError, Task, TaskError
from spacecl.cli.main import main
from spacecl.export.export import file_names, open_session
from spacecl.export.fold_batchnorm import folded
from spacecl.runs.open_run import OpenRun

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")
QUICK = Recipe(epochs=2, batch_size=32, retrain_epochs=1)


def rows(example, count):
    if example.is_floating_point():
        return torch.randn(count, *example.shape[1:])
    return torch.randint(0, 20, (count, *example.shape[1:]))


def taught(model, example, shared=(), count=2):
    torch.manual_seed(0)
    learner = Learner(model, SPACE(variance=0.7), example_input=example, shared=shared)
    for number, data in enumerate(tasks(example, count)):
        learner.learn(Task(f"task {number}", data), QUICK)
    return learner


@pytest.fixture(scope="module")
def learner():
    return taught(ResNet(), IMAGE)


@pytest.mark.parametrize("family", FAMILIES)
def test_onnxruntime_and_torch_export_answer_as_the_network_does_for_any_number_of_rows(family, tmp_path):
    make, example, shared = FAMILIES[family]
    learner = taught(make(), example, shared, count=1)
    learner.export("task 0", tmp_path / "a.onnx")
    learner.export("task 0", tmp_path / "a.pt2")
    onnx, program = open_session(tmp_path / "a.onnx"), torch.export.load(tmp_path / "a.pt2").module()
    for count in (1, 2, 7):
        x = rows(example, count)
        expected = learner.logits(x, "task 0")
        assert (onnx(x) - expected).abs().max() < 1e-4
        with torch.no_grad():
            assert (program(x) - expected).abs().max() < 1e-4


def test_files_hold_the_subnets_weights_and_no_more(learner, tmp_path):
    """The dense network's file beside it is several times as large."""
    small = learner.subnet("task 0")
    folded_small, into = folded(small, IMAGE)
    assert len(into) == sum(isinstance(layer, nn.BatchNorm2d) for layer in small.modules()), "all norms of a ResNet fold"
    weights = 4 * sum(parameter.numel() for parameter in folded_small.parameters())
    layers = sum(1 for layer in small.modules() if not list(layer.children()))
    found = {end: learner.export("task 0", tmp_path / f"a.{end}") for end in ("onnx", "pt2", "safetensors")}
    for end, about in found.items():
        assert about["bytes"] == (tmp_path / f"a.{end}").stat().st_size
        assert about["parameters"] * 4 == weights
    assert weights < found["onnx"]["bytes"] < weights + 1500 + 200 * layers
    assert weights < found["safetensors"]["bytes"] < weights + 500 + 150 * layers
    with zipfile.ZipFile(tmp_path / "a.pt2") as archive:
        held = sum(i.file_size for i in archive.infolist() if "/weights/weight_" in i.filename)
        texts = b"".join(archive.read(i) for i in archive.infolist() if i.filename.endswith(".json"))
    assert held == weights
    for data in (texts, (tmp_path / "a.onnx").read_bytes()):
        assert b".py" not in data, "no paths and no lines of source"


def test_weights_load_into_a_network_written_by_hand(tmp_path):
    """From the JSON's widths alone; with norms folded away, and with norms kept."""
    learner = taught(ConvNet(), IMAGE)
    about = learner.export("task 1", tmp_path / "a.safetensors")
    said = json.loads((tmp_path / "a.json").read_text())
    wide = said["widths"]
    assert said["folded"] == {"norm1": "conv1"} == about["folded"]
    a, b, c = wide["conv1"], wide["conv2"], wide["hidden"]

    def by_hand(norm):
        return nn.ModuleDict(
            {
                "conv1": nn.Conv2d(3, a, 3, padding=1),
                "conv2": nn.Conv2d(a, b, 3, padding=1),
                "hidden": nn.Linear(b * 16, c),
                "fc": nn.Linear(c, 3),
            }
            | ({"norm1": nn.BatchNorm2d(a)} if norm else {})
        ).eval()

    def answer(net, x):
        y = net["conv1"](x)
        y = net["norm1"](y) if "norm1" in net else y
        y = net["conv2"](torch.max_pool2d(y.relu(), 2)).relu()
        return net["fc"](net["hidden"](y.flatten(1)).relu())

    x = torch.randn(5, 3, 8, 8)
    for norm in (False, True):
        learner.export("task 1", tmp_path / "b.safetensors", fold=not norm)
        net = by_hand(norm)
        net.load_state_dict(safetensors.torch.load_file(tmp_path / "b.safetensors"))
        with torch.no_grad():
            assert (answer(net, x) - learner.logits(x, "task 1")).abs().max() < 1e-4
    assert json.loads((tmp_path / "b.json").read_text())["folded"] == {}


class Tied(nn.Module):
    """A norm that is used twice, one whose layer is read elsewhere, too, and one that forward() looks into."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(3, 4, 3) for _ in range(4))
        self.twice, self.seen, self.looked, self.plain = (nn.BatchNorm2d(4) for _ in range(4))
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        y = self.twice(self.a(x)) + self.twice(self.b(x))
        c = self.c(x)
        y = y + self.seen(c) * c + self.plain(self.d(x))
        return self.fc((y + self.looked.running_mean[:, None, None]).mean((2, 3)))


def with_statistics(module):
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    return module.eval()


def test_only_norms_that_can_be_folded_are():
    module = with_statistics(Tied())
    small, into = folded(module, torch.zeros(1, 3, 8, 8))
    assert into == {"plain": "d"}
    x = torch.randn(3, 3, 8, 8)
    assert (small(x) - module(x)).abs().max() < 1e-5
    assert isinstance(module.plain, nn.BatchNorm2d), "the network itself is left as it is"


def test_a_norm_that_forward_looks_into_is_left_alone():
    class Looked(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(self.norm(self.conv(x)).mean((2, 3)) + self.norm.running_mean)

    module = with_statistics(Looked())
    small, into = folded(module, torch.zeros(1, 3, 8, 8))
    assert into == {}
    x = torch.randn(3, 3, 8, 8)
    assert torch.equal(small(x), module(x))


def test_norms_behind_linear_layers_fold_where_features_come_last():
    flat = with_statistics(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)))
    assert folded(flat, torch.zeros(1, 6))[1] == {"1": "0"}
    plain = with_statistics(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 2)))
    small, into = folded(plain, torch.zeros(1, 6))
    x = torch.randn(4, 6)
    assert into == {"1": "0"}
    assert (small(x) - plain(x)).abs().max() < 1e-5
    batch = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 2)).eval()
    assert folded(batch, torch.zeros(1, 6))[1] == {}, "it normalises by what it is given"
    spread = with_statistics(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(7), nn.Flatten(), nn.Linear(35, 2)))
    assert folded(spread, torch.zeros(1, 7, 6))[1] == {}


def test_int8_is_a_quarter_of_the_size_and_answers_nearly_the_same(tmp_path):
    torch.manual_seed(0)
    learner = Learner(ConvNet(24), SPACE(variance=0.99), example_input=IMAGE)
    x, y = tasks(IMAGE, 1, examples=300)[0]
    learner.learn(Task("a", (x, y)), Recipe(epochs=8, batch_size=32))
    plain = learner.export("a", tmp_path / "a.onnx")
    small = learner.export("a", tmp_path / "b.onnx", int8=x[:100])
    assert (small["int8"], plain["int8"]) == (True, False)
    assert small["bytes"] < 0.5 * plain["bytes"]
    labels = open_session(tmp_path / "b.onnx")(x).argmax(1)
    assert (labels == learner.predict(x, "a")).float().mean() > 0.95
    assert not torch.equal(open_session(tmp_path / "b.onnx")(x), open_session(tmp_path / "a.onnx")(x))


def test_onnx_files_say_what_they_are(tmp_path):
    import onnx

    pixels = np.random.default_rng(0).integers(0, 255, (80, 3, 8, 8), dtype=np.uint8)
    learner = Learner(ConvNet(), SPACE(variance=0.7), example_input=IMAGE)
    images = Images(pixels, np.arange(80) % 2)
    learner.learn(Task("cats", images, classes=("cat", "dog")), QUICK)
    learner.export("cats", tmp_path / "cats.onnx")
    said = {entry.key: entry.value for entry in onnx.load(tmp_path / "cats.onnx").metadata_props}
    assert said["task"] == "cats"
    assert json.loads(said["classes"]) == ["cat", "dog"]
    assert said["digest"] == learner.records["cats"].digest
    assert json.loads(said["pictures"])["mean"] == list(images.mean)
    learner.export("cats", tmp_path / "cats.pt2")
    files = {"about.json": ""}
    torch.export.load(tmp_path / "cats.pt2", extra_files=files)
    assert json.loads(files["about.json"])["pictures"] == json.loads(said["pictures"])
    assert json.loads(files["about.json"])["classes"] == ["cat", "dog"]


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_a_file_that_does_not_answer_as_pytorch_does_is_refused(tmp_path, monkeypatch, ending):
    made = spacecl.export.export._program
    monkeypatch.setattr(spacecl.export.export, "_program", lambda network, probe: made(nn.Linear(6, 2).eval(), probe))
    with pytest.raises(SpaceError, match="does not answer as PyTorch does"):
        spacecl.export.export.export(nn.Linear(6, 2).eval(), torch.zeros(1, 6), tmp_path / f"a.{ending}", {})
    assert not any(tmp_path.iterdir())


def test_one_row_alone_must_get_its_answer_too():
    x = torch.randn(3, 2)
    with pytest.raises(SpaceError, match="off by"):
        spacecl.export.export._held(lambda rows: rows + (len(rows) == 1), x, x, "it")


def test_other_files_say_what_they_are_too(tmp_path):
    learner = taught(ConvNet(), IMAGE, count=1)
    for ending in ("pt2", "safetensors"):
        learner.export("task 0", tmp_path / f"a.{ending}")
    more = {"about.json": ""}
    program = torch.export.load(tmp_path / "a.pt2", extra_files=more)
    said, record = json.loads(more["about.json"]), learner.records["task 0"]
    assert said == {"task": "task 0", "classes": ["0", "1", "2"], "digest": record.digest, "widths": dict(record.widths)}
    assert program.example_inputs is None
    with safetensors.safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata() == {"task": "task 0", "digest": record.digest}


def test_onnx_files_tell_widths(tmp_path):
    import onnx

    learner = taught(ConvNet(), IMAGE, count=1)
    learner.export("task 0", tmp_path / "a.onnx")
    said = {entry.key: entry.value for entry in onnx.load(tmp_path / "a.onnx").metadata_props}
    assert json.loads(said["widths"]) == dict(learner.records["task 0"].widths)


def test_files_of_bytes_say_what_they_are_and_follow_what_they_are_calibrated_by(tmp_path):
    import onnx

    learner = taught(ConvNet(), IMAGE, count=1)
    x = tasks(IMAGE, 1)[0][0]
    learner.export("task 0", tmp_path / "a.onnx", int8=x)
    learner.export("task 0", tmp_path / "b.onnx", int8=30 * x)
    said = {entry.key: entry.value for entry in onnx.load(tmp_path / "a.onnx").metadata_props}
    assert (said["task"], said["digest"]) == ("task 0", learner.records["task 0"].digest)
    assert b".py" not in (tmp_path / "a.onnx").read_bytes()
    expected = learner.logits(x, "task 0")
    near, far = ((open_session(tmp_path / f"{name}.onnx")(x) - expected).abs().mean() for name in "ab")
    assert float(far) > 3 * float(near), "ranges that are far too wide leave few steps for the real inputs"


def test_what_cannot_be_exported_is_refused_with_a_reason(learner, tmp_path):
    x = torch.randn(4, 3, 8, 8)
    with pytest.raises(TaskError, match="No such task: 'dogs'"):
        learner.export("dogs", tmp_path / "a.onnx")
    with pytest.raises(ConfigError, match="no format to export to"):
        learner.export("task 0", tmp_path / "a.pickle")
    with pytest.raises(ConfigError, match="int8 is for ONNX files"):
        learner.export("task 0", tmp_path / "a.pt2", int8=x)
    with pytest.raises(DataError, match="calibrate"):
        learner.export("task 0", tmp_path / "a.onnx", int8=x[:, :2])
    with pytest.raises(DataError, match="there are none"):
        learner.export("task 0", tmp_path / "a.onnx", int8=x[:0])
    with pytest.raises(ConfigError, match="a name for JSON"):
        learner.export("task 0", tmp_path / "a.json", format="safetensors")
    assert not list(tmp_path.iterdir())


class Branching(nn.Module):
    """A network that does one thing or another, by what it is given."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        y = self.a(x)
        return self.b(y.relu() if y.sum() > 0 else y.tanh())


def test_a_network_that_no_graph_can_hold_is_told_with_what_to_do(tmp_path):
    export = spacecl.export.export.export
    with pytest.raises(SpaceError, match=r"(?s)cannot be written for any number of rows.*safetensors"):
        export(Branching().eval(), torch.zeros(1, 6), tmp_path / "a.onnx", {}, fold=False)
    assert export(Branching().eval(), torch.zeros(1, 6), tmp_path / "a.safetensors", {}, fold=False)["parameters"] == 74


def test_every_task_has_a_file_name_that_all_systems_can_have():
    names = file_names(["a/b", "a b", "A b", "...", "con:1", "index", "x" * 300], "torch")
    assert len({name.lower() for name in names.values()} - {"index.pt2"}) == 7
    assert max(map(len, names.values())) < 100
    assert all(not set(name) & set('/\\:*?"<>| ') for name in names.values())


def test_the_command_writes_every_task_and_an_index(digits_run, tmp_path, capsys):
    assert main(["export", str(digits_run), "--all", "--out", str(tmp_path)]) == 0
    listed = json.loads((tmp_path / "index.json").read_text())["tasks"]
    assert [entry["task"] for entry in listed] == ["digits-1", "digits-2"]
    assert {entry["file"] for entry in listed} | {"index.json"} == {file.name for file in tmp_path.iterdir()}
    assert main(["export", str(digits_run), "--task", "digits-1", "--out", str(tmp_path / "one.safetensors")]) == 0
    assert (tmp_path / "one.json").is_file()
    capsys.readouterr()
    assert main(["export", str(digits_run), "--task", "digits-9"]) == 1
    assert "No such task: 'digits-9'. The tasks are: digits-1, digits-2." in capsys.readouterr().err
    assert main(["export", str(digits_run), "--all", "--out", str(tmp_path / "all.onnx")]) == 1
    assert "all.onnx is a file, but 2 tasks are to be written" in capsys.readouterr().err
    assert main(["export", str(digits_run), "--all", "--int8"]) == 1
    assert "--calibrate" in capsys.readouterr().err


def test_the_command_tells_the_accuracy_of_bytes_before_and_after(digits_run, tmp_path, capsys):
    command = [
        "export",
        str(digits_run),
        "--task",
        "digits-1",
        "--int8",
        "--json",
        "--out",
        str(tmp_path / "a.onnx"),
        "--calibrate",
    ]
    assert main([*command, "train"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    result = json.loads((digits_run / "result.json").read_text())["tasks"][0]
    assert found["accuracy"]["before"] == result["accuracy"]
    assert abs(found["accuracy"]["after"] - result["accuracy"]) < 0.03
    pixels = np.random.default_rng(0).integers(0, 255, (50, 1, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "noise.npy", pixels)
    assert main([*command, str(tmp_path / "noise.npy")]) == 0
    assert json.loads(capsys.readouterr().out)[0]["calibrated"] == 50
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    for number in range(3):
        Image.fromarray(pixels[number, 0]).save(tmp_path / "pictures" / f"{number}.png")
    assert main([*command, str(tmp_path / "pictures")]) == 0
    assert json.loads(capsys.readouterr().out)[0]["calibrated"] == 3
    assert main([*command, str(tmp_path / "nothing.npy")]) == 1
    assert "neither" in capsys.readouterr().err
    for wrong in (np.array(3.0), np.array(["a"]), np.zeros((0, 64), np.float32), np.zeros((4, 9), np.float32)):
        np.save(tmp_path / "wrong.npy", wrong)
        assert main([*command, str(tmp_path / "wrong.npy")]) == 1
        assert "calibrate" in capsys.readouterr().err
    np.savez(tmp_path / "wrong.npz", a=pixels)
    assert main([*command, str(tmp_path / "wrong.npz")]) == 1
    assert "not one array" in capsys.readouterr().err


def test_what_is_calibrated_badly_or_cannot_be_measured_is_told(digits_run, tmp_path, capsys, monkeypatch):
    assert main(["export", str(digits_run), "--task", "digits-1", "--task", "digits-9", "--out", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists(), "an unknown name is told before anything is written"
    np.save(tmp_path / "tiny.npy", np.full((50, 64), 1e-3, np.float32))
    command = ["export", str(digits_run), "--task", "digits-1", "--int8", "--json", "--out", str(tmp_path / "a.onnx")]
    capsys.readouterr()
    assert main([*command, "--calibrate", str(tmp_path / "tiny.npy")]) == 0
    found = json.loads(capsys.readouterr().out)[0]["accuracy"]
    assert found["after"] < found["before"] - 0.1, "calibrated by inputs that are like none"

    def lost(self, data):
        raise DataError("the data is not at hand")

    monkeypatch.setattr(OpenRun, "tasks", lost)
    assert main([*command, "--calibrate", str(tmp_path / "tiny.npy")]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    assert (found["accuracy"], found["not_measured"]) == (None, "the data is not at hand")
    assert main([*command, "--calibrate", "train"]) == 1
    assert "the data is not at hand" in capsys.readouterr().err
