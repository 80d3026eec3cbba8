"""What makes for speed and can be counted: kernels, multiply-adds, bytes, memory formats. Times are in `make bench` only."""

import json
import os
import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from models import FAMILIES, IMAGE, ConvNet, chain, tasks
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from spacecl import SPACE, Learner, Recipe, Task
from spacecl.data.task_data import Data
from spacecl.learning.trainer import Trainer
from spacecl.methods.space.moments import collect_statistics
from spacecl.runs.costs import TrafficCounter, multiply_adds
from spacecl.structure.memory_format import protect_gradients, to_memory_format
from spacecl.structure.tensors import named_tensors
from spacecl.structure.trace import trace

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")

ROOT = Path(__file__).parents[1]
CPU = Fabric(accelerator="cpu", devices=1)
QUICK = Recipe(epochs=2, retrain_epochs=1)


class Kernels(TorchDispatchMode):
    """Counts the operations that run."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found[func] += 1
        return func(*args, **(kwargs or {}))


class Viewing(nn.Module):
    """Asks for a view that only the plain memory format has."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 64, 3)

    def forward(self, x):
        x = F.relu(self.conv(x))
        return self.fc(x.view(x.size(0), -1))


def taught(model, count=2, shared=(), **options):
    torch.manual_seed(0)
    learner = Learner(model, SPACE(variance=0.8, **options), example_input=IMAGE, shared=shared)
    for number, data in enumerate(tasks(IMAGE, count)):
        learner.learn(Task(f"task {number}", data), QUICK)
    return learner


def seen_by_fit(monkeypatch):
    """The networks that the training loop gets, by phase, with the memory formats that they have in a step."""
    seen, fit = {}, Trainer.fit

    def watched(self, module, *args, **kwargs):
        def after():
            lasts = [p.is_contiguous(memory_format=torch.channels_last) for p in module.parameters() if p.dim() == 4]
            seen.setdefault(kwargs["phase"], []).append((module, all(lasts)))

        return fit(self, module, *args, **(kwargs | {"after_step": after}))

    monkeypatch.setattr(Trainer, "fit", watched)
    return seen


# -- memory formats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [(), ("conv2",)])
def test_convolutions_are_trained_channels_last_and_committed_plainly(monkeypatch, shared):
    seen = seen_by_fit(monkeypatch)
    learner = taught(ConvNet(), shared=shared)
    assert learner.channels_last
    assert all(last for steps in seen.values() for _, last in steps)
    assert all(tensor.is_contiguous() for tensor in learner.core.shared.values())
    assert all(tensor.is_contiguous() for task in learner.tasks for tensor in learner.subnet(task).state_dict().values())


def test_a_model_that_needs_the_plain_format_is_trained_in_it(monkeypatch):
    with pytest.raises(RuntimeError, match="view"):  # the trap is real
        Viewing()(to_memory_format(torch.randn(2, 3, 8, 8), channels_last=True))
    seen = seen_by_fit(monkeypatch)
    learner = taught(Viewing())
    assert not learner.channels_last
    assert not any(last for steps in seen.values() for _, last in steps)
    x = torch.randn(5, 3, 8, 8)
    given = to_memory_format(x, channels_last=True)  # which users may have
    assert torch.equal(learner.logits(given, "task 0"), learner.logits(x, "task 0"))


@pytest.mark.parametrize("augment", ["none", "flip", "shift", "flip-shift"])
def test_a_model_that_needs_the_plain_format_gets_augmented_images_in_it(augment):
    learner = Learner(Viewing(), SPACE(variance=0.8), example_input=IMAGE)
    learner.learn(Task("images", tasks(IMAGE, 1)[0]), Recipe(epochs=1, augment=augment))


class Strided(Viewing):
    """Runs in every memory format, but computes something else."""

    def forward(self, x):
        x = F.relu(self.conv(x))
        return self.fc(x.as_strided((len(x), 512), (512, 1)))


def test_a_model_that_computes_something_else_channels_last_is_not_trained_so():
    from spacecl.structure.validate import _supports_channels_last

    assert not _supports_channels_last(Strided().eval(), IMAGE)
    assert _supports_channels_last(ConvNet().eval(), IMAGE)
    assert not _supports_channels_last(chain().eval(), torch.zeros(1, 6)), "it has nothing to gain"


@pytest.mark.parametrize("family", ["convnet", "resnet", "densenet", "mobilenet", "norms", "twice"])
def test_families_with_convolutions_run_channels_last(family):
    make, example, shared = FAMILIES[family]
    assert Learner(make(), SPACE(), example_input=example, shared=shared).channels_last


def test_the_memory_format_of_the_input_does_not_change_a_bit_of_the_answer():
    learner, x = taught(ConvNet()), torch.randn(9, 3, 8, 8)
    for task in learner.tasks:
        expected = learner.logits(x, task)
        assert torch.equal(learner.logits(to_memory_format(x, channels_last=True), task), expected)
        assert torch.equal(learner.subnet(task)(to_memory_format(x, channels_last=True)), expected)
        torch.testing.assert_close(learner.subnet(task)(x), expected, rtol=1e-4, atol=1e-5)


LEARNING = """
import sys
import torch
from models import ResNet
from spacecl import SPACE, Learner, Recipe, Task
side, width = int(sys.argv[1]), int(sys.argv[2])
x, y = torch.randn(120, 3, side, side), torch.arange(120) % 3
learner = Learner(ResNet(width), SPACE(variance=0.9), example_input=x[:1])
assert learner.channels_last
learner.learn(Task("images", (x, y)), Recipe(epochs=int(sys.argv[3]), retrain_epochs=1, batch_size=10))
assert torch.isfinite(learner.logits(x, "images")).all()
print("learned")
"""


@pytest.mark.parametrize(("isa", "side", "width", "epochs"), [("AVX2", 8, 5, 6), ("DEFAULT", 64, 6, 1)])
def test_narrow_strided_convolutions_are_trained_without_corrupting_memory(isa, side, width, epochs):
    """oneDNN's own kernels write out of bounds here; its instruction set can only be chosen before torch is imported."""
    if not torch.backends.mkldnn.is_available() or platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("only oneDNN's kernels for x86-64 write out of bounds, and this torch has none")
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": "1", "MALLOC_PERTURB_": "165"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    command = [sys.executable, "-W", "ignore", "-c", LEARNING, str(side), str(width), str(epochs)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "learned\n"), found.stderr


SMALL_3D = """
import torch
from torch import nn
from spacecl.structure.memory_format import protect_gradients
layer = nn.Conv3d(16, 16, 6, stride=2, padding=3)
for _ in range(20):
    with protect_gradients(layer):
        layer(torch.randn(2, 16, 4, 4, 4)).square().sum().backward()
print("done")
"""


def test_small_3d_inputs_are_trained_on_without_corrupting_memory():
    """With AVX-512, oneDNN writes the gradient of such a weight out of bounds in every memory format."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_PERTURB_": "165", "PYTHONPATH": str(ROOT / "src")}
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", SMALL_3D], env=environment, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr


def test_protected_3d_convolutions_compute_what_plain_ones_do():
    inputs = torch.randn(2, 4, 5, 6, 7, dtype=torch.float64)
    for options in ({"stride": 2, "padding": 3}, {"stride": (2, 1, 3), "padding": (3, 0, 4)}, {"padding": "same"}):
        layer = nn.Conv3d(4, 3, 6, **options).double()
        expected = layer(inputs)
        grads = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
        layer = layer.float()
        with protect_gradients(layer):
            found = layer(inputs.float())
            again = torch.autograd.grad(found.square().sum(), list(layer.parameters()))
        torch.testing.assert_close([found, *again], [t.float() for t in (expected, *grads)], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("channels_last", [False, True])
def test_protected_convolutions_compute_what_plain_ones_do(channels_last):
    inputs = torch.randn(4, 5, 12, 12, dtype=torch.float64)
    for kernel, options in [
        (1, {"stride": 2}),
        (1, {"stride": (3, 1)}),
        (1, {"stride": 2, "padding": "valid"}),
        (1, {"stride": 5}),  # which leaves pixels over
        (1, {"stride": 2, "padding": 1}),
        (1, {"stride": 2, "groups": 5}),
        (3, {"stride": 2}),
    ]:
        layer = nn.Conv2d(5, 10, kernel, **options).double()
        x = inputs.clone().requires_grad_()
        expected = layer(x)
        grads = torch.autograd.grad(expected.square().sum(), [x, *layer.parameters()])
        layer, x = layer.float(), to_memory_format(inputs.float(), channels_last).requires_grad_()
        with protect_gradients(layer):
            found = layer(x)
            again = torch.autograd.grad(found.square().sum(), [x, *layer.parameters()])
        torch.testing.assert_close([found, *again], [t.float() for t in (expected, *grads)], rtol=1e-4, atol=1e-4)


# -- counts --------------------------------------------------------------------------------------------------------------


def kernels_of_a_step(epoch):
    """What runs in every step, apart from what a phase begins and ends with: four steps' kernels less two steps'."""
    x, y = tasks(IMAGE, 1, examples=120)[0]
    found = []
    for rows in (60, 120):
        with Kernels() as kernels:
            epoch(x[:rows], y[:rows])
        found.append(kernels.found)
    found[1].subtract(found[0])
    return Counter({func: count / 2 for func, count in found[1].items() if count})


def fitting(held=0, channels_last=True):
    """An epoch in the library's loop, with batches of 30; of three tensors so many filters are held."""

    def epoch(x, y):
        model, data = ConvNet(), Data((x, y), "data")
        masks = {name: torch.zeros(t.shape, dtype=torch.bool) for name, t in named_tensors(model).items()}
        for name in ("conv1.weight", "conv1.bias", "conv2.weight"):
            masks[name][:held] = True
        trainer = Trainer(CPU, Recipe(epochs=1, batch_size=30, optimizer="sgd"), 0, channels_last)
        trainer.fit(model, data, data, freeze=masks, validate=lambda module: (0.0, 0.0))

    return epoch


def bare(x, y):
    model = ConvNet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)
    for part, labels in zip(to_memory_format(x, channels_last=True).split(30), y.split(30)):
        F.cross_entropy(model(part), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_holding_the_core_takes_a_light_kernel_or_two_for_each_tensor_that_has_some():
    free, held = kernels_of_a_step(fitting()), kernels_of_a_step(fitting(held=4))
    held.subtract(free)
    assert {str(func): count for func, count in held.items() if count} == {"aten.index_copy_.default": 3}


def test_a_step_runs_the_kernels_of_a_bare_one_and_few_light_ones_more():
    ours, theirs = kernels_of_a_step(fitting()), kernels_of_a_step(bare)
    heavy = [func for func in theirs if any(word in str(func) for word in ("convolution", "mm", "batch_norm", "pool", "fused"))]
    assert len(heavy) >= 8
    assert {func: ours[func] for func in heavy} == {func: theirs[func] for func in heavy}
    more = sum(ours.values()) - sum(theirs.values())
    assert more <= 20, ours - theirs


def test_a_mixed_batch_asks_every_task_once():
    learner = taught(ConvNet(), count=3)
    x = torch.randn(60, 3, 8, 8)
    names = [f"task {row % 3}" for row in range(60)]
    with Kernels() as kernels:
        learner.predict(x, names)
    assert kernels.found[torch.ops.aten.convolution.default] == 3 * 2, "tasks times convolutions, not rows"


def test_retraining_does_the_multiply_adds_of_the_narrowed_network(monkeypatch):
    seen = seen_by_fit(monkeypatch)
    learner = taught(ConvNet(width=16), count=1)
    full, small = (multiply_adds(seen[phase][-1][0], IMAGE) for phase in ("train", "retrain"))
    assert full == multiply_adds(learner.dense(3), IMAGE)
    assert small == multiply_adds(learner.subnet("task 0"), IMAGE) < full / 2


def test_the_analysis_costs_in_proportion_to_the_samples_and_keeps_none():
    model = ConvNet().eval()
    places = trace(model, IMAGE, "fc").readings
    operations, peaks = [], []
    for batches in (2, 8):
        given = [torch.randn(16, 3, 8, 8) for _ in range(batches)]
        with FlopCounterMode(display=False) as counter:
            collect_statistics(model, places, given, CPU)
        operations.append(counter.get_total_flops())
        with TrafficCounter(model) as watch:
            collect_statistics(model, places, given, CPU)
        peaks.append(watch.peak)
    assert operations[1] == 4 * operations[0] > 0
    assert peaks[1] <= 1.05 * peaks[0]


def test_what_is_saved_is_the_bytes_of_the_tensors_and_little_more(tmp_path):
    learner = taught(ConvNet(width=64), count=3)
    learner.save(tmp_path)
    kept = sum(learner.storage.values())
    written = {file.name: file.stat().st_size for file in tmp_path.glob("*.safetensors")}
    assert kept <= sum(written.values()) <= 1.1 * kept + 20_000
    learner.learn(Task("more", tasks(IMAGE, 4)[3]), QUICK)
    learner.save(tmp_path)
    assert len(written.keys() & {file.name for file in tmp_path.glob("*.safetensors")}) == 3, "earlier tasks were written again"


# -- a share of the free channels ------------------------------------------------------------------------------------------


def test_a_task_can_be_trained_with_a_share_of_the_free_channels(monkeypatch):
    seen = seen_by_fit(monkeypatch)
    learner = taught(ConvNet(width=16), count=1, trainable_fraction=0.5)
    first = seen["train"][0][0]
    assert (first.conv1.out_channels, first.conv2.out_channels, first.hidden.out_features) == (8, 8, 6)
    assert all(width <= most for width, most in zip(learner.records["task 0"].widths.values(), (8, 8, 6)))
    core = learner.core
    keep = core.committed_units
    seen.clear()
    learner.learn(Task("next", tasks(IMAGE, 2)[1]), QUICK)
    second = seen["train"][0][0]
    held = int(keep[core.channels.groups[0].units].sum())
    assert second.conv1.out_channels == held + -(-(16 - held) // 2), "the core, and half of what is free"
    assert bool((learner.core.committed_units >= keep).all())


def test_tasks_do_not_change_when_later_ones_train_with_a_share_of_the_free_channels(tmp_path):
    learner = Learner(ConvNet(width=16), SPACE(variance=0.6, trainable_fraction=0.4), example_input=IMAGE)
    x, before = torch.randn(9, 3, 8, 8), {}
    for number, data in enumerate(tasks(IMAGE, 4)):
        learner.learn(Task(str(number), data), QUICK)
        before[str(number)] = learner.logits(x, str(number))
        assert all(torch.equal(learner.logits(x, name), logits) for name, logits in before.items())
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, ConvNet(width=16))
    assert all(torch.equal(loaded.logits(x, name), logits) for name, logits in before.items())
    assert loaded.method.trainable_fraction == 0.4


def test_with_few_free_channels_what_is_committed_is_what_was_trained():
    """Nothing is lost when the narrow network is put into the full one to be analysed."""
    torch.manual_seed(0)
    learner = Learner(ConvNet(width=16), SPACE(variance=1.0, trainable_fraction=0.25), example_input=IMAGE)
    record = learner.learn(Task("all", tasks(IMAGE, 1, 300)[0]), Recipe(epochs=3, retrain_epochs=0))
    assert record.history[-1]["phase"] == "train"
    best = max(row["accuracy"] for row in record.history)
    assert record.accuracy == best
    assert [record.widths[layer] for layer in ("conv1", "conv2")] == [4, 4]


def test_a_share_that_is_none_is_refused():
    for fraction in (0, 1.5, -1, float("nan"), "half"):
        with pytest.raises(ValueError, match="trainable_fraction"):
            SPACE(trainable_fraction=fraction)


# -- the suite itself ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_suite_measures_and_writes_what_it_found(tmp_path):
    """One round of each: the figures mean nothing here, but every part runs."""
    out = tmp_path / "bench.json"
    command = [sys.executable, "bench", "--rounds", "1", "--only", "startup", "inference", "training", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert {row["part"] for row in found["rows"]} == {"startup", "inference", "training"}
    assert all(row["figures"] and all(value > 0 for value in row["figures"].values()) for row in found["rows"])
    assert "spacecl --help" in done.stdout
