"""Export: files that run without spacecl, compute what the network does, and have its weights and no more."""

import json
import zipfile

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from models import FAMILIES, IMAGE, ConvNet, ResNet, tasks
from torch import nn

from spacecl import SPACE, ConfigError, DataError, Images, Learner, Recipe, SpaceError, Task, TaskError
from spacecl.cli.main import main
from spacecl.export import formats
from spacecl.export.export import export_network, file_names, open_session
from spacecl.export.fold_batchnorm import fold_batchnorm
from spacecl.runs.open_run import OpenRun

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")
QUICK = Recipe(epochs=2, batch_size=32, retrain_epochs=1)
COMMON = ("chain", "mobilenet", "text")  # most kinds of layers and inputs; the rest is slow


def draw_rows(example, count):
    if example.is_floating_point():
        return torch.randn(count, *example.shape[1:])
    return torch.randint(0, 20, (count, *example.shape[1:]))


def teach(model, example, shared=(), count=2):
    torch.manual_seed(0)
    learner = Learner(model, SPACE(variance=0.7), example_input=example, shared=shared)
    for number, data in enumerate(tasks(example, count)):
        learner.learn(Task(f"task {number}", data), QUICK)
    return learner


CONVERTED = {}


@pytest.fixture(autouse=True)
def _convert_once(monkeypatch):
    """Convert a network that several tests export to ONNX only once: nothing else here takes as long."""
    convert = formats.WRITERS["onnx"]

    def convert_once(network, probe, expected, about):
        tensors = b"".join(tensor.numpy().tobytes() for tensor in network.state_dict().values())
        key = (repr(network), tensors, json.dumps(about), str(formats._export_program))
        if key not in CONVERTED:
            CONVERTED[key] = convert(network, probe, expected, about)
        return CONVERTED[key]

    monkeypatch.setitem(formats.WRITERS, "onnx", convert_once)


@pytest.fixture(scope="module")
def resnet():
    return teach(ResNet(), IMAGE, count=1)


@pytest.fixture(scope="module")
def convnet():
    return teach(ConvNet(), IMAGE)


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=() if family in COMMON else pytest.mark.slow) for family in FAMILIES]
)
def test_onnxruntime_and_torch_export_compute_what_the_network_does_for_any_number_of_rows(family, tmp_path):
    make, example, shared = FAMILIES[family]
    learner = teach(make(), example, shared, count=1)
    learner.export("task 0", tmp_path / "a.onnx")
    learner.export("task 0", tmp_path / "a.pt2")
    onnx, program = open_session(tmp_path / "a.onnx"), torch.export.load(tmp_path / "a.pt2").module()
    for count in (1, 2, 7):
        x = draw_rows(example, count)
        expected = learner.logits(x, "task 0")
        assert (onnx(x) - expected).abs().max() < 1e-4
        with torch.no_grad():
            assert (program(x) - expected).abs().max() < 1e-4


def test_files_have_the_subnets_weights_and_no_more(resnet, tmp_path):
    small = resnet.subnet("task 0")
    folded_small, pairs = fold_batchnorm(small, IMAGE)
    assert len(pairs) == sum(isinstance(layer, nn.BatchNorm2d) for layer in small.modules()), "all norms of a ResNet fold"
    weights = 4 * sum(parameter.numel() for parameter in folded_small.parameters())
    layers = sum(1 for layer in small.modules() if not list(layer.children()))
    infos = {end: resnet.export("task 0", tmp_path / f"a.{end}") for end in ("onnx", "pt2", "safetensors")}
    x = torch.randn(7, 3, 8, 8)
    assert (open_session(tmp_path / "a.onnx")(x) - resnet.logits(x, "task 0")).abs().max() < 1e-4
    for end, info in infos.items():
        assert info["bytes"] == (tmp_path / f"a.{end}").stat().st_size
        assert info["parameters"] * 4 == weights
    assert weights < infos["onnx"]["bytes"] < weights + 1500 + 200 * layers
    assert weights < infos["safetensors"]["bytes"] < weights + 500 + 150 * layers
    with zipfile.ZipFile(tmp_path / "a.pt2") as archive:
        size = sum(i.file_size for i in archive.infolist() if "/weights/weight_" in i.filename)
        texts = b"".join(archive.read(i) for i in archive.infolist() if i.filename.endswith(".json"))
    assert size == weights
    for data in (texts, (tmp_path / "a.onnx").read_bytes()):
        assert b".py" not in data, "no paths and no lines of source code"


def test_weights_load_into_a_network_written_by_hand(convnet, tmp_path):
    """With the widths in the JSON file alone; with folded norms, and without."""
    info = convnet.export("task 1", tmp_path / "a.safetensors")
    description = json.loads((tmp_path / "a.json").read_text())
    widths = description["widths"]
    assert description["folded"] == {"norm1": "conv1"} == info["folded"]
    a, b, c = widths["conv1"], widths["conv2"], widths["hidden"]

    def build(norm):
        return nn.ModuleDict(
            {
                "conv1": nn.Conv2d(3, a, 3, padding=1),
                "conv2": nn.Conv2d(a, b, 3, padding=1),
                "hidden": nn.Linear(b * 16, c),
                "fc": nn.Linear(c, 3),
            }
            | ({"norm1": nn.BatchNorm2d(a)} if norm else {})
        ).eval()

    def run(net, x):
        y = net["conv1"](x)
        y = net["norm1"](y) if "norm1" in net else y
        y = net["conv2"](torch.max_pool2d(y.relu(), 2)).relu()
        return net["fc"](net["hidden"](y.flatten(1)).relu())

    x = torch.randn(5, 3, 8, 8)
    for norm in (False, True):
        convnet.export("task 1", tmp_path / "b.safetensors", fold=not norm)
        net = build(norm)
        net.load_state_dict(safetensors.torch.load_file(tmp_path / "b.safetensors"))
        with torch.no_grad():
            assert (run(net, x) - convnet.logits(x, "task 1")).abs().max() < 1e-4
    assert json.loads((tmp_path / "b.json").read_text())["folded"] == {}


class Tied(nn.Module):
    """A norm that is used twice, one whose layer is also read elsewhere, and one whose statistics forward() reads."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(3, 4, 3) for _ in range(4))
        self.twice, self.second, self.inspected, self.plain = (nn.BatchNorm2d(4) for _ in range(4))
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        y = self.twice(self.a(x)) + self.twice(self.b(x))
        c = self.c(x)
        y = y + self.second(c) * c + self.plain(self.d(x))
        return self.fc((y + self.inspected.running_mean[:, None, None]).mean((2, 3)))


def with_statistics(module):
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    return module.eval()


def test_only_norms_that_alone_read_a_layer_are_folded():
    module = with_statistics(Tied())
    small, layers = fold_batchnorm(module, torch.zeros(1, 3, 8, 8))
    assert layers == {"plain": "d"}
    x = torch.randn(3, 3, 8, 8)
    assert (small(x) - module(x)).abs().max() < 1e-5
    assert isinstance(module.plain, nn.BatchNorm2d), "the network itself is not changed"


def test_a_norm_whose_statistics_forward_reads_is_not_folded():
    class Inspected(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(self.norm(self.conv(x)).mean((2, 3)) + self.norm.running_mean)

    module = with_statistics(Inspected())
    small, layers = fold_batchnorm(module, torch.zeros(1, 3, 8, 8))
    assert layers == {}
    x = torch.randn(3, 3, 8, 8)
    assert torch.equal(small(x), module(x))


def test_norms_behind_linear_layers_fold_where_features_come_last():
    flat = with_statistics(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)))
    assert fold_batchnorm(flat, torch.zeros(1, 6))[1] == {"1": "0"}
    plain = with_statistics(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 2)))
    small, layers = fold_batchnorm(plain, torch.zeros(1, 6))
    x = torch.randn(4, 6)
    assert layers == {"1": "0"}
    assert (small(x) - plain(x)).abs().max() < 1e-5
    batch = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 2)).eval()
    assert fold_batchnorm(batch, torch.zeros(1, 6))[1] == {}, "it normalises by its own batch"
    spread = with_statistics(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(7), nn.Flatten(), nn.Linear(35, 2)))
    assert fold_batchnorm(spread, torch.zeros(1, 7, 6))[1] == {}


def test_int8_files_are_small_nearly_exact_and_follow_their_calibration(tmp_path):
    import onnx

    torch.manual_seed(0)
    learner = Learner(ConvNet(24), SPACE(variance=0.99), example_input=IMAGE)
    x, y = tasks(IMAGE, 1, examples=300)[0]
    learner.learn(Task("a", (x, y)), Recipe(epochs=8, batch_size=32))
    plain = learner.export("a", tmp_path / "a.onnx")
    small = learner.export("a", tmp_path / "b.onnx", int8=x[:100])
    learner.export("a", tmp_path / "c.onnx", int8=30 * x[:100])
    assert (small["int8"], plain["int8"]) == (True, False)
    assert small["bytes"] < 0.5 * plain["bytes"]
    exact, near, far = (open_session(tmp_path / f"{name}.onnx")(x) for name in "abc")
    assert (near.argmax(1) == learner.predict(x, "a")).float().mean() > 0.95
    assert not torch.equal(near, exact)
    errors = [float((output - exact).abs().mean()) for output in (near, far)]
    assert errors[1] > 3 * errors[0], "ranges that are far too wide leave few steps for the real inputs"
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "b.onnx").metadata_props}
    assert (metadata["task"], metadata["digest"]) == ("a", learner.records["a"].digest)
    assert b".py" not in (tmp_path / "b.onnx").read_bytes()


def test_files_describe_their_network(tmp_path):
    import onnx

    pixels = np.random.default_rng(0).integers(0, 255, (80, 3, 8, 8), dtype=np.uint8)
    learner = Learner(ConvNet(), SPACE(variance=0.7), example_input=IMAGE)
    images = Images(pixels, np.arange(80) % 2)
    learner.learn(Task("cats", images, classes=("cat", "dog")), QUICK)
    record = learner.records["cats"]
    learner.export("cats", tmp_path / "cats.onnx")
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "cats.onnx").metadata_props}
    assert metadata["task"] == "cats"
    assert json.loads(metadata["classes"]) == ["cat", "dog"]
    assert metadata["digest"] == record.digest
    assert json.loads(metadata["widths"]) == dict(record.widths)
    assert json.loads(metadata["pictures"])["mean"] == list(images.mean)
    learner.export("cats", tmp_path / "cats.pt2")
    files = {"about.json": ""}
    torch.export.load(tmp_path / "cats.pt2", extra_files=files)
    assert json.loads(files["about.json"])["pictures"] == json.loads(metadata["pictures"])
    assert json.loads(files["about.json"])["classes"] == ["cat", "dog"]


def test_files_of_a_task_without_pictures_do_not_mention_them(convnet, tmp_path):
    for ending in ("pt2", "safetensors"):
        convnet.export("task 0", tmp_path / f"a.{ending}")
    extra, record = {"about.json": ""}, convnet.records["task 0"]
    program = torch.export.load(tmp_path / "a.pt2", extra_files=extra)
    about = {"task": "task 0", "target_kind": "classes", "classes": ["0", "1", "2"], "digest": record.digest}
    about["widths"] = dict(record.widths)
    assert json.loads(extra["about.json"]) == about
    assert program.example_inputs is None
    with safetensors.safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata() == {"task": "task 0", "digest": record.digest}


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_a_file_that_does_not_compute_what_pytorch_does_is_refused(tmp_path, monkeypatch, ending):
    original = formats._export_program
    monkeypatch.setattr(formats, "_export_program", lambda network, probe: original(nn.Linear(6, 2).eval(), probe))
    with pytest.raises(SpaceError, match="does not compute what PyTorch does"):
        export_network(nn.Linear(6, 2).eval(), torch.zeros(1, 6), tmp_path / f"a.{ending}", {})
    assert not any(tmp_path.iterdir())


def test_a_single_row_is_compared_too():
    x = torch.randn(3, 2)
    with pytest.raises(SpaceError, match="off by"):
        formats.check_output(lambda rows: rows + (len(rows) == 1), x, x, "onnxruntime")


def test_what_cannot_be_exported_is_refused_with_a_reason(resnet, tmp_path):
    x = torch.randn(4, 3, 8, 8)
    with pytest.raises(TaskError, match="No such task: 'dogs'"):
        resnet.export("dogs", tmp_path / "a.onnx")
    with pytest.raises(ConfigError, match="not a format to export to"):
        resnet.export("task 0", tmp_path / "a.pickle")
    with pytest.raises(ConfigError, match="int8 is for ONNX files"):
        resnet.export("task 0", tmp_path / "a.pt2", int8=x)
    with pytest.raises(DataError, match="calibration inputs"):
        resnet.export("task 0", tmp_path / "a.onnx", int8=x[:, :2])
    with pytest.raises(DataError, match="there are none"):
        resnet.export("task 0", tmp_path / "a.onnx", int8=x[:0])
    with pytest.raises(ConfigError, match="a name for JSON"):
        resnet.export("task 0", tmp_path / "a.json", format="safetensors")
    assert not list(tmp_path.iterdir())


class Branching(nn.Module):
    """A network that branches on the values of its input."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        y = self.a(x)
        return self.b(y.relu() if y.sum() > 0 else y.tanh())


def test_a_network_without_a_graph_can_only_be_exported_as_weights(tmp_path):
    with pytest.raises(SpaceError, match=r"(?s)cannot be exported for any number of rows.*safetensors"):
        export_network(Branching().eval(), torch.zeros(1, 6), tmp_path / "a.onnx", {}, fold=False)
    info = export_network(Branching().eval(), torch.zeros(1, 6), tmp_path / "a.safetensors", {}, fold=False)
    assert info["parameters"] == 74


def test_every_task_has_a_file_name_that_is_valid_on_all_systems():
    names = file_names(["a/b", "a b", "A b", "...", "con:1", "index", "x" * 300], "torch")
    assert len({name.lower() for name in names.values()} - {"index.pt2"}) == 7
    assert max(map(len, names.values())) < 100
    assert all(not set(name) & set('/\\:*?"<>| ') for name in names.values())


def test_the_command_writes_every_task_and_an_index(digits_run, tmp_path, capsys):
    assert main(["export", str(digits_run), "--all", "--out", str(tmp_path)]) == 0
    entries = json.loads((tmp_path / "index.json").read_text())["tasks"]
    assert [entry["task"] for entry in entries] == ["digits-1", "digits-2"]
    assert {entry["file"] for entry in entries} | {"index.json"} == {file.name for file in tmp_path.iterdir()}
    assert main(["export", str(digits_run), "--task", "digits-1", "--out", str(tmp_path / "one.safetensors")]) == 0
    assert (tmp_path / "one.json").is_file()
    capsys.readouterr()
    assert main(["export", str(digits_run), "--task", "digits-9"]) == 1
    assert "No such task: 'digits-9'. The tasks are: digits-1, digits-2." in capsys.readouterr().err
    assert main(["export", str(digits_run), "--all", "--out", str(tmp_path / "all.onnx")]) == 1
    assert "all.onnx is a file, but 2 tasks are to be written" in capsys.readouterr().err
    assert main(["export", str(digits_run), "--all", "--int8"]) == 1
    assert "--calibrate" in capsys.readouterr().err


def test_the_command_reports_the_accuracy_before_and_after_int8(digits_run, tmp_path, capsys):
    options = ["--task", "digits-1", "--int8", "--json", "--out", str(tmp_path / "a.onnx"), "--calibrate"]
    command = ["export", str(digits_run), *options]
    assert main([*command, "train"]) == 0
    info = json.loads(capsys.readouterr().out)[0]
    result = json.loads((digits_run / "result.json").read_text())["tasks"][0]
    assert info["accuracy"]["before"] == result["accuracy"]
    assert abs(info["accuracy"]["after"] - result["accuracy"]) < 0.03
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
    for array in (np.array(3.0), np.array(["a"]), np.zeros((0, 64), np.float32), np.zeros((4, 9), np.float32)):
        np.save(tmp_path / "wrong.npy", array)
        assert main([*command, str(tmp_path / "wrong.npy")]) == 1
        assert "calibrat" in capsys.readouterr().err
    np.savez(tmp_path / "wrong.npz", a=pixels)
    assert main([*command, str(tmp_path / "wrong.npz")]) == 1
    assert "not one array" in capsys.readouterr().err


def test_the_command_reports_bad_calibration_and_missing_data(digits_run, tmp_path, capsys, monkeypatch):
    assert main(["export", str(digits_run), "--task", "digits-1", "--task", "digits-9", "--out", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists(), "an unknown name is reported before anything is written"
    np.save(tmp_path / "tiny.npy", np.full((50, 64), 1e-3, np.float32))
    command = ["export", str(digits_run), "--task", "digits-1", "--int8", "--json", "--out", str(tmp_path / "a.onnx")]
    capsys.readouterr()
    assert main([*command, "--calibrate", str(tmp_path / "tiny.npy")]) == 0
    accuracy = json.loads(capsys.readouterr().out)[0]["accuracy"]
    assert accuracy["after"] < accuracy["before"] - 0.1, "calibrated with inputs unlike the task's"

    def fail(self, data):
        raise DataError("the data is not available")

    monkeypatch.setattr(OpenRun, "tasks", fail)
    assert main([*command, "--calibrate", str(tmp_path / "tiny.npy")]) == 0
    info = json.loads(capsys.readouterr().out)[0]
    assert (info["accuracy"], info["not_measured"]) == (None, "the data is not available")
    assert main([*command, "--calibrate", "train"]) == 1
    assert "the data is not available" in capsys.readouterr().err
