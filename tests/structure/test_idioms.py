"""Common ways to write a model: each is supported as an expert would expect, or refused with a clear message."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from models import IMAGE, tasks
from torch import nn

from spacecl import SPACE, ConfigError, DataError, Learner, Recipe, Task, UnsupportedModelError
from spacecl.learning.growth import grow
from spacecl.structure.validate import validate_model

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")

QUICK = Recipe(epochs=1, retrain_epochs=1)
VECTOR = torch.zeros(1, 6)


class Custom(nn.Module):
    """A model of some layers and a function of itself and its input."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            if isinstance(layer, nn.Parameter):
                self.register_parameter(name, layer)
            elif isinstance(layer, torch.Tensor):
                self.register_buffer(name, layer)
            else:
                setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def conv(inputs=3, outputs=8, **options):
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


def linear(inputs=6, outputs=10):
    return nn.Linear(inputs, outputs)


def tied():
    model = Custom(
        lambda m, x: m.fc(F.relu(m.second(F.relu(m.first(F.relu(m.stem(x))))))),
        stem=linear(6, 9),
        first=linear(9, 9),
        second=linear(9, 9),
        fc=linear(9, 3),
    )
    model.second.weight = model.first.weight
    return model


class LayerNorm2d(nn.LayerNorm):
    """As in torchvision: a subclass that moves the channels itself."""

    def forward(self, x):
        return F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias).permute(0, 3, 1, 2)


class HandmadeNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x):
        scale = self.weight / self.var.sqrt()
        return x * scale[:, None, None] + self.bias[:, None, None]


class Storing(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.fc = linear(), linear(10, 3)

    def forward(self, x):
        self.features = self.hidden(x)
        return self.fc(self.features)


class NoReturn(nn.Module):
    """Leaves its norm in eval mode, and does not return itself from train()."""

    def __init__(self):
        super().__init__()
        self.hidden, self.norm, self.fc = linear(), nn.BatchNorm1d(10), linear(10, 3)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()

    def forward(self, x):
        return self.fc(self.norm(self.hidden(x)))


def encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return Custom(lambda m, x: m.fc(m.layer(m.embed(x)).mean(1)), embed=linear(4, 16), layer=layer, fc=linear(16, 3))


def convnext(m, x):
    y = m.norm(m.depthwise(m.stem(x)).permute(0, 2, 3, 1))
    y = m.down(F.gelu(m.up(y))) * m.gamma
    return m.fc((m.stem(x) + y.permute(0, 3, 1, 2)).mean((2, 3)))


def auxiliary_head(m, x):
    x = F.relu(m.a(x))
    return (m.fc(x), m.aux(x)) if m.training else m.fc(x)


def skipping(m, x):
    """As LayerDrop in transformers: the number is drawn in eval mode, too."""
    skip, x = torch.rand(()), F.relu(m.a(x))
    if not m.training or skip > 0.5:
        x = x + m.b(x)
    return m.fc(x)


def full_precision(m, x):
    with torch.autocast("cpu", enabled=False):
        x = m.a(x.float())
    return m.fc(F.relu(x))


SUPPORTED = {  # name: (model, example, options, groups that it should have)
    "a view after pooling": (
        lambda: Custom(lambda m, x: m.fc(F.max_pool2d(F.relu(m.a(x)), 2).view(x.size(0), -1)), a=conv(), fc=linear(128, 3)),
        IMAGE,
        {},
        {("a",): 8},
    ),
    "a contiguous view after a transpose": (
        lambda: Custom(
            lambda m, x: m.fc(m.a(x).flatten(2).transpose(1, 2).contiguous().view(x.size(0), -1)), a=conv(), fc=linear(512, 3)
        ),
        IMAGE,
        {},
        {("a",): 8},
    ),
    "two layers with one weight": (tied, VECTOR, {}, {("stem", "first"): 9}),
    "one module under two names": (
        lambda: Custom(
            lambda m, x: m.fc(m.b(m.a(m.stem(x)))), stem=linear(6, 9), a=(layer := linear(9, 9)), b=layer, fc=linear(9, 3)
        ),
        VECTOR,
        {},
        {("stem", "a"): 9},
    ),
    "a subclass of LayerNorm": (
        lambda: Custom(lambda m, x: m.fc(m.n(m.a(x)).mean((2, 3))), a=conv(), n=LayerNorm2d(8), fc=linear(8, 3)),
        IMAGE,
        {},
        {("a",): 8},
    ),
    "a norm by hand": (
        lambda: Custom(lambda m, x: m.fc(m.n(m.a(x)).mean((2, 3))), a=conv(), n=HandmadeNorm(), fc=linear(8, 3)),
        IMAGE,
        {},
        {("a",): 8},
    ),
    "a transformer layer of torch's own": (
        encoder,
        torch.zeros(1, 5, 4),
        {"shared": ["embed", "layer.self_attn", "layer.linear2"]},
        {("layer.linear1",): 32},
    ),
    "a ConvNeXt block": (
        lambda: Custom(
            convnext,
            stem=conv(3, 6),
            depthwise=conv(6, 6, groups=6),
            norm=nn.LayerNorm(6),
            up=linear(6, 24),
            down=linear(24, 6),
            gamma=nn.Parameter(torch.full((6,), 0.1)),
            fc=linear(6, 3),
        ),
        IMAGE,
        {},
        {("stem", "down"): 6, ("up",): 24},
    ),
    "integer pixels scaled in forward": (
        lambda: Custom(lambda m, x: m.fc(m.a(x.float() / 255).mean((2, 3))), a=conv(), fc=linear(8, 3)),
        torch.zeros(1, 3, 8, 8, dtype=torch.uint8),
        {},
        {("a",): 8},
    ),
    "padding of its own": (
        lambda: Custom(
            lambda m, x: m.fc(F.max_pool2d(F.pad(m.b(m.p(m.a(x))), (1, 1, 1, 1)), 2).mean((2, 3))),
            a=conv(),
            p=nn.ZeroPad2d(1),
            b=nn.Conv2d(8, 7, 3),
            fc=linear(7, 3),
        ),
        IMAGE,
        {},
        {("a",): 8, ("b",): 7},
    ),
    "a table of positions longer than the input": (
        lambda: Custom(
            lambda m, x: m.fc(F.relu(m.a(m.e(x) + m.pos[:, : x.shape[1]])).mean(1)),
            e=nn.Embedding(20, 8),
            a=linear(8, 9),
            pos=nn.Parameter(torch.randn(1, 30, 8)),
            fc=linear(9, 3),
        ),
        torch.zeros(1, 7, dtype=torch.int64),
        {},
        {("e",): 8, ("a",): 9},
    ),
    "a stack of branches": (
        lambda: Custom(lambda m, x: m.fc(torch.stack([m.a(x), m.b(x)]).sum(0)), a=linear(), b=linear(), fc=linear(10, 3)),
        VECTOR,
        {},
        {("a", "b"): 10},
    ),
    "a mask expanded to its features": (
        lambda: Custom(
            lambda m, x: m.fc((m.a(x) * (x[..., :1] > 0).expand_as(m.a(x))).mean(1)), a=linear(4, 9), fc=linear(9, 3)
        ),
        torch.zeros(1, 5, 4),
        {},
        {("a",): 9},
    ),
    "weights by keyword": (
        lambda: Custom(
            lambda m, x: m.fc(F.relu(F.linear(x, weight=m.w))), w=nn.Parameter(torch.randn(10, 6)), fc=linear(10, 3)
        ),
        VECTOR,
        {},
        {("w",): 10},
    ),
    "two loose weights in one module": (
        lambda: Custom(
            lambda m, x: m.fc(F.relu(F.linear(F.relu(F.linear(x, m.w)), m.v))),
            w=nn.Parameter(torch.randn(10, 6)),
            v=nn.Parameter(torch.randn(9, 10)),
            fc=linear(9, 3),
        ),
        VECTOR,
        {},
        {("w",): 10, ("v",): 9},
    ),
    "activations stored in itself": (Storing, VECTOR, {}, {("hidden",): 10}),
    "a train() that returns nothing": (NoReturn, VECTOR, {}, {("hidden",): 10}),
    "a head that is not the last layer made": (
        lambda: Custom(lambda m, x: m.fc(F.relu(m.a(x))), fc=linear(10, 3), a=linear()),
        VECTOR,
        {},
        {("a",): 10},
    ),
    "double precision": (
        lambda: Custom(lambda m, x: m.fc(F.relu(m.a(x))), a=linear(), fc=linear(10, 3)).double(),
        VECTOR.double(),
        {},
        {("a",): 10},
    ),
    "scores first in a tuple": (
        lambda: Custom(lambda m, x: (m.fc(F.relu(m.a(x))), x), a=linear(), fc=linear(10, 3)),
        VECTOR,
        {},
        {("a",): 10},
    ),
    "scores by name": (
        lambda: Custom(lambda m, x: {"features": x, "logits": m.fc(F.relu(m.a(x)))}, a=linear(), fc=linear(10, 3)),
        VECTOR,
        {},
        {("a",): 10},
    ),
    "an auxiliary head in training": (
        lambda: Custom(auxiliary_head, a=linear(), aux=nn.Sequential(linear(10, 5), linear(5, 3)), fc=linear(10, 3)),
        VECTOR,
        {},
        {("a",): 10},
    ),
    "a scale and a norm for every class": (
        lambda: Custom(
            lambda m, x: m.norm(m.fc(F.relu(m.a(x)))) * m.scale,
            a=linear(),
            fc=linear(10, 3),
            norm=nn.BatchNorm1d(3),
            scale=nn.Parameter(torch.ones(3)),
        ),
        VECTOR,
        {},
        {("a",): 10},
    ),
    "random numbers that only training uses": (
        lambda: Custom(skipping, a=linear(), b=linear(10, 10), fc=linear(10, 3)),
        VECTOR,
        {},
        {("a", "b"): 10},
    ),
    "a table selected by a buffer": (
        lambda: Custom(
            lambda m, x: m.fc(F.relu(m.a(x)[:, None] + m.table[m.index]).mean(1)),
            a=linear(),
            table=nn.Parameter(torch.randn(4, 10)),
            index=torch.tensor([3, 1, 1]),
            fc=linear(10, 3),
        ),
        VECTOR,
        {},
        {("a",): 10},
    ),
    "a computed table selected by a buffer": (
        lambda: Custom(
            lambda m, x: m.fc(F.relu(m.a(x)[:, None] + m.b(m.table)[m.index]).mean(1)),
            a=linear(),
            b=linear(),
            table=torch.randn(4, 6),
            index=torch.tensor([3, 1, 1]),
            fc=linear(10, 3),
        ),
        VECTOR,
        {},
        {("a", "b"): 10},
    ),
    "patches": (
        lambda: Custom(
            lambda m, x: m.fc(m.b(F.unfold(m.a(x), 2, stride=2).mT).mean(1)), a=conv(), b=linear(32, 9), fc=linear(9, 3)
        ),
        IMAGE,
        {},
        {("a",): 8, ("b",): 9},
    ),
    "without autocast": (
        lambda: Custom(full_precision, a=linear(), fc=linear(10, 3)),
        VECTOR,
        {},
        {("a",): 10},
    ),
    "a gated linear unit": (
        lambda: Custom(lambda m, x: m.fc(F.glu(m.a(x))), a=linear(6, 14), fc=linear(7, 3)),
        VECTOR,
        {},
        {("a",): 7},
    ),
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_common_ways_to_write_a_model_are_supported(name, tmp_path):
    make, example, options, groups = SUPPORTED[name]
    model = make()
    learner = Learner(model, SPACE(variance=0.8), example_input=example, **options)  # warns, and fails, if the ids are wrong
    assert {group.layers: len(group.units) for group in learner.core.channels.groups} == groups
    kind = example.float() if example.dtype == torch.uint8 else example
    streams = [(x.to(example.dtype), y) for x, y in tasks(kind, 3)]
    before = {}

    def assert_unchanged(learner):
        assert all(torch.equal(learner.logits(streams[0][0], task), logits) for task, logits in before.items())

    for number, data in enumerate(streams[:2]):
        learner.learn(Task(str(number), data), QUICK)
        before[str(number)] = learner.logits(streams[0][0], str(number))
        assert_unchanged(learner)
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, make())
    assert_unchanged(loaded)
    third = Task("third", streams[2])
    assert loaded.learn(third, QUICK).digest == learner.learn(third, QUICK).digest
    assert_unchanged(learner)
    learner._state = replace(learner._state, core=grow(learner.core, 1.5))
    learner.verify()


REFUSED = {
    "a dictionary without scores": (lambda m, x: {"a": m.a(x), "b": m.fc(m.a(x))}, "returns a dict with a, b. Let it return"),
    "a fixed number of classes": (lambda m, x: m.fc(m.a(x)) * torch.ones(3), "with a head for any number of classes"),
    "something after the head": (lambda m, x: m.fc(m.a(x)).sort(1).values, "does not return the output of a linear layer"),
    "a computed weight": (lambda m, x: m.fc(F.linear(m.a(x), m.fc.weight.t() @ m.fc.weight)), "its weight is computed"),
    "a precision of its own": (None, "inside forward..; move it out of the model"),
}


def own_precision(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        x = m.a(x)
    return m.fc(x.float())


def test_an_unsupported_model_is_refused_with_a_clear_message():
    for forward, message in REFUSED.values():
        with pytest.raises(UnsupportedModelError, match=message):
            validate_model(Custom(forward or own_precision, a=linear(), fc=linear(10, 3)), VECTOR)


def test_a_hard_coded_size_before_the_head_leaves_nothing_to_prune():
    with pytest.raises(UnsupportedModelError, match="No layer of the model can be pruned"):
        validate_model(Custom(lambda m, x: m.fc(m.a(x).view(-1, 10)), a=linear(), fc=linear(10, 3)), VECTOR)


def test_a_layer_before_a_squeeze_that_a_width_of_one_would_break_is_unprunable():
    model = Custom(lambda m, x: m.fc(F.adaptive_avg_pool2d(m.b(m.a(x)), 1).squeeze()), a=conv(), b=conv(8, 9), fc=linear(9, 3))
    with pytest.warns(UserWarning, match="b: its code needs all channels"):
        channels = validate_model(model, IMAGE).channels
    assert {group.layers for group in channels.groups} == {("a",)}


def test_a_head_with_a_tied_weight_is_refused():
    model = Custom(lambda m, x: m.fc(m.b(m.a(x))), a=linear(), b=linear(10, 10), fc=linear(10, 10))
    model.fc.weight = model.b.weight
    with pytest.raises((ConfigError, UnsupportedModelError), match="weight"):
        validate_model(model, VECTOR)


def test_loose_tensors_of_free_channels_begin_as_given():
    """A buffer or a loose parameter at zero would leave the channels it belongs to dead for every later task."""
    scaled = Custom(
        lambda m, x: m.fc(F.relu(m.a(x)) * m.table * m.scale),
        a=linear(),
        table=torch.linspace(1, 2, 10),
        scale=nn.Parameter(torch.full((10,), 0.7)),
        fc=linear(10, 3),
    )
    learner = Learner(scaled, SPACE(variance=0.6), example_input=VECTOR)
    widths = [learner.learn(Task(str(n), data), Recipe(epochs=4)).widths["a"] for n, data in enumerate(tasks(VECTOR, 3, 300))]
    assert widths[-1] > widths[0]
    core = grow(learner.core, 2)
    start = core.initial_tensors(3)
    assert float(start["table"].min()) >= 1
    free = ~core.committed_units[core.channels.dims["scale"][0]]
    assert torch.equal(start["scale"][free], torch.full((int(free.sum()),), 0.7))


def test_what_the_user_froze_is_never_changed():
    model = Custom(lambda m, x: m.fc(F.relu(m.b(F.relu(m.a(x))))), a=linear(), b=linear(10, 12), fc=linear(12, 3))
    model.b.requires_grad_(False)
    weight = model.b.weight.clone()
    learner = Learner(model, SPACE(variance=0.6), example_input=VECTOR)
    for number, data in enumerate(tasks(VECTOR, 3, 200)):
        learner.learn(Task(str(number), data), QUICK)
        core = learner.core
        used = core.used_positions("b.weight")
        assert torch.equal(core.shared["b.weight"][used], weight[used])
        assert torch.equal(core.initial_tensors(3)["b.weight"], weight)
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing to learn"):
        Learner(model, example_input=VECTOR)


def test_data_may_have_another_precision():
    x, y = tasks(VECTOR, 1)[0]
    for source in (x.double(), x.half(), x.double().numpy()):
        learner = Learner(nn.Sequential(linear(), nn.ReLU(), linear(10, 3)), example_input=VECTOR)
        learner.learn(Task("one", (source, y.to(torch.int32))), QUICK)
        assert learner.logits(torch.as_tensor(source), "one").dtype == torch.float32


def test_short_trainings_work_with_the_default_schedule():
    x, y = tasks(VECTOR, 1)[0]
    for steps in range(1, 10):
        learner = Learner(nn.Sequential(linear(), nn.ReLU(), linear(10, 3)), example_input=VECTOR)
        recipe = Recipe(epochs=steps, batch_size=8, retrain_epochs=1)
        learner.learn(Task("one", (x[:8], y[:8] * 0), (x[8:], y[8:])), recipe)


def test_a_task_is_learned_even_with_a_dead_layer():
    model = nn.Sequential(linear(), nn.ReLU(), linear(10, 9), nn.ReLU(), linear(9, 3))
    nn.init.constant_(model[0].bias, -100)
    record = Learner(model, SPACE(variance=0.9), example_input=VECTOR).learn(Task("one", tasks(VECTOR, 1)[0]), QUICK)
    assert record.widths["0"] == 1


def test_batches_of_one_are_all_trained_on():
    x, y = tasks(VECTOR, 1, 20)[0]
    model = nn.Sequential(linear(), nn.ReLU(), linear(10, 3))
    learner = Learner(model, example_input=VECTOR)
    learner.learn(Task("one", (x, y), (x, y)), Recipe(epochs=1, batch_size=1, retrain_epochs=0))
    from lightning_fabric import Fabric

    from spacecl.data.task_data import Data
    from spacecl.learning.distributed import shards

    for size, count in ((1, 20), (3, 20), (19, 19), (20, 20)):  # a last batch of a single row is left out
        sizes = [len(part) for part, _ in shards(Data((x, y), "x").batches(size), Fabric(accelerator="cpu", devices=1))]
        assert sum(sizes) == count, size


INVALID_DATA = {
    "three values": (
        torch.utils.data.TensorDataset(torch.randn(9, 6), torch.zeros(9), torch.zeros(9)),
        "a batch holds 3 values",
    ),
    "strings for labels": ((torch.randn(3, 6), ["cat", "dog", "cow"]), "the labels are text. Number the classes from 0"),
    "two examples to split": ((torch.randn(2, 6), torch.tensor([0, 1])), "1 examples are left to train on"),
    "one label for all": ((torch.randn(9, 6), torch.tensor(1)), "labels of shape ..; give one label per input"),
}


def test_invalid_data_is_refused_with_a_clear_message():
    learner = Learner(nn.Sequential(linear(), nn.ReLU(), linear(10, 3)), example_input=VECTOR)
    for source, message in INVALID_DATA.values():
        with pytest.raises(DataError, match=message):
            learner.learn(Task("one", source), QUICK)


def test_iterable_datasets_and_rows_that_are_not_tasks_are_refused():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield torch.zeros(6), 0

        def __len__(self):
            return 5

    learner = Learner(nn.Sequential(linear(), nn.ReLU(), linear(10, 3)), example_input=VECTOR)
    with pytest.raises(DataError, match="can only be iterated"):
        learner.learn(Task("one", Stream()), QUICK)
    with pytest.raises(DataError, match=r"learn\(\) needs a Task"):
        learner.learn((torch.zeros(9, 6), torch.zeros(9)), QUICK)
    x, y = tasks(VECTOR, 1)[0]
    learner.learn(Task("one", (x, y)), QUICK)
    with pytest.raises(DataError, match="the label 7 is outside its 3 classes"):
        learner.evaluate((x, torch.full((90,), 7)), "one")
    bad = torch.randn(9000, 6)
    bad[5000, 3] = float("nan")
    with pytest.raises(DataError, match="in row 5000"):
        learner.learn(Task("two", (bad, torch.zeros(9000, dtype=torch.int64))), QUICK)
