"""Losses, metrics and answers of each kind of target, compared with plain transcriptions."""

import math

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from models import VECTOR, chain, tasks
from sklearn.metrics import average_precision_score, r2_score
from torch import nn

from spacecl import SPACE, ConfigError, FineTune, Images, Joint, Learner, Recipe, Task, TaskError, compress
from spacecl.data.targets import Scaling, Targets
from spacecl.data.task_data import Data
from spacecl.learning.metrics import mean_average_precision, r2
from spacecl.learning.objective import ANSWERS, Objective
from spacecl.learning.trainer import Trainer, evaluate_with_loss
from spacecl.serving.pictures import classify

X = tasks(VECTOR, 1, examples=300)[0][0]
OUTPUTS = torch.randn(300, 3, generator=torch.Generator().manual_seed(1))
REFERENCE = torch.randn(300, 3, generator=torch.Generator().manual_seed(2))
CPU = Fabric(accelerator="cpu", devices=1)
QUICK = Recipe(epochs=2, retrain_epochs=1)


def gradient_of(kind, drawn):
    """The gradient of -log p(drawn | outputs) by the outputs, by autograd of the textbook formula."""
    outputs = OUTPUTS.clone().requires_grad_()
    if kind == "classes":
        value = -(drawn * outputs.log_softmax(1)).sum()
    elif kind == "labels":
        value = F.binary_cross_entropy_with_logits(outputs, drawn, reduction="sum")
    else:
        value = -torch.distributions.Normal(outputs, 1.0).log_prob(drawn).sum()
    return torch.autograd.grad(value, outputs)[0]


@pytest.mark.parametrize("kind", ANSWERS)
def test_gradients_are_those_of_targets_drawn_from_the_answers(kind):
    answers, objective = ANSWERS[kind], Objective(Targets(kind, 3))
    slope = objective.sample_gradient(OUTPUTS, torch.Generator().manual_seed(0))
    drawn = answers.draw(answers.expect(OUTPUTS, 0.0), torch.Generator().manual_seed(0))
    assert torch.allclose(slope, gradient_of(kind, drawn), atol=1e-6)
    many = torch.stack([objective.sample_gradient(OUTPUTS, torch.Generator().manual_seed(n)) for n in range(200)])
    assert float(many.mean(0).abs().mean()) < 0.1, "in the mean, nobody is surprised by his own answers"


@pytest.mark.parametrize("kind", ANSWERS)
def test_divergences_are_those_of_the_distributions(kind):
    outputs, reference = OUTPUTS.double(), REFERENCE.double()
    make = {
        "classes": lambda logits: torch.distributions.Categorical(logits=logits),
        "labels": lambda logits: torch.distributions.Bernoulli(logits=logits),
        "values": lambda mean: torch.distributions.Normal(mean, 1.0),
    }[kind]
    wanted = torch.distributions.kl_divergence(make(reference), make(outputs)).reshape(300, -1).sum(1).mean()
    assert float(ANSWERS[kind].divergence(OUTPUTS, REFERENCE)) == pytest.approx(float(wanted), rel=1e-4)
    assert float(ANSWERS[kind].divergence(OUTPUTS, OUTPUTS)) == pytest.approx(0, abs=1e-6)
    mean = {
        "classes": lambda o: o.softmax(1).mean(0).log(),
        "labels": lambda o: o.sigmoid().mean(0).logit(),
        "values": lambda o: o.mean(0),
    }
    constant = make(mean[kind](reference).expand(300, 3))
    told_apart = torch.distributions.kl_divergence(make(reference), constant).reshape(300, -1).sum(1).mean()
    assert ANSWERS[kind].information(REFERENCE) == pytest.approx(float(told_apart), rel=1e-3)
    assert ANSWERS[kind].information(REFERENCE[:1].expand(50, 3)) == pytest.approx(0, abs=1e-6)


def test_metrics_are_scikit_learn_s():
    labels, values = (REFERENCE > 0.3).float(), REFERENCE + OUTPUTS
    wanted = average_precision_score(labels.numpy(), OUTPUTS.numpy())
    assert mean_average_precision(OUTPUTS, labels) == pytest.approx(wanted)
    none = labels.clone()
    none[:, 1] = 0
    wanted = average_precision_score(labels[:, [0, 2]].numpy(), OUTPUTS[:, [0, 2]].numpy())
    assert mean_average_precision(OUTPUTS, none) == pytest.approx(wanted), "a label that nobody has does not count"
    assert mean_average_precision(OUTPUTS, torch.zeros(300, 3)) == 0
    assert r2(OUTPUTS, values) == pytest.approx(r2_score(values.numpy(), OUTPUTS.numpy()), rel=1e-5)
    constant = torch.ones(5, 1)
    assert (r2(constant, constant), r2(2 * constant, constant)) == (1.0, 0.0)


@pytest.mark.parametrize("kind", ["labels", "values"])
def test_scores_and_losses_are_of_all_batches_together(kind):
    torch.manual_seed(0)
    module = chain().eval()
    outputs = module(X).detach()
    y = (REFERENCE > 0).long() if kind == "labels" else 50 + 10 * REFERENCE
    scaling = Scaling.measure(y) if kind == "values" else None
    score, loss = evaluate_with_loss(module, Data((X, y), "data"), CPU, False, Objective(Targets(kind, 3), scaling))
    if kind == "labels":
        assert score == pytest.approx(average_precision_score(y.numpy(), outputs.numpy()))
        assert loss == pytest.approx(float(F.binary_cross_entropy_with_logits(outputs, y.float())), rel=1e-5)
    else:
        standard = (y - y.mean(0)) / y.std(0, correction=0)
        assert score == pytest.approx(r2_score(standard.numpy(), outputs.numpy()), rel=1e-4)
        assert loss == pytest.approx(float((outputs - standard).square().mean()), rel=1e-5)


def test_label_smoothing_and_class_weights_change_the_training_loss_as_they_should():
    y = torch.arange(300) % 3
    weights = torch.tensor([1.0, 2.0, 4.0])
    classes = Objective(Targets("classes", 3), weights=weights, smoothing=0.1)
    assert torch.allclose(classes.loss(OUTPUTS, y), F.cross_entropy(OUTPUTS, y, weights, label_smoothing=0.1))
    labels = (REFERENCE > 0).long()
    smooth = 0.9 * labels + 0.05
    wanted = F.binary_cross_entropy_with_logits(OUTPUTS, smooth, pos_weight=weights)
    assert torch.allclose(Objective(Targets("labels", 3), weights=weights, smoothing=0.1).loss(OUTPUTS, labels), wanted)


def catch_objective(monkeypatch, task, recipe):
    """The objective that a task is trained with."""
    caught = []
    fit = Trainer.fit

    def watched(self, *args, **kwargs):
        caught.append(self.objective)
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "fit", watched)
    Learner(chain(), SPACE(), example_input=VECTOR).learn(task, recipe)
    return caught[0]


def test_balanced_weights_follow_from_the_training_targets(monkeypatch):
    y = torch.tensor([0] * 200 + [1] * 80 + [2] * 20)
    recipe = Recipe(epochs=1, retrain_epochs=0, class_weights="balanced")
    objective = catch_objective(monkeypatch, Task("t", (X, y), valid=(X, y)), recipe)
    assert objective.weights.tolist() == pytest.approx([300 / 3 / 200, 300 / 3 / 80, 300 / 3 / 20])
    labels = torch.stack([y == 0, y == 2], 1)
    objective = catch_objective(monkeypatch, Task("t", (X, labels), valid=(X, labels), target="labels"), recipe)
    assert objective.weights.tolist() == pytest.approx([100 / 200, 280 / 20])


def test_values_of_a_recipe_that_do_not_fit_a_task_are_refused_before_training():
    learner = Learner(chain(), SPACE(), example_input=VECTOR)
    for y, recipe, message in (
        (torch.arange(300) % 3, Recipe(class_weights=(1.0, 2.0)), "but there are 3 classes"),
        (X[:, 0], Recipe(class_weights=(1.0,)), "values have no weights"),
    ):
        with pytest.raises(ConfigError, match=message):
            learner.learn(Task("t", (X, y)), recipe, on_epoch=pytest.fail)
    with pytest.raises(ConfigError, match="has a loss of its own"):
        learner.learn(Task("t", (X, X[:, 0]), loss=F.l1_loss), Recipe(label_smoothing=0.1), on_epoch=pytest.fail)
    with pytest.raises(ConfigError, match="class_weights='even' must be balanced, or a list"):
        Recipe(class_weights="even")
    assert Recipe(class_weights=[1, 2.5]).class_weights == (1, 2.5)
    assert learner.tasks == ()


def test_a_loss_and_a_metric_of_one_s_own_get_the_user_s_unit(tmp_path):
    seen = []

    def huber(outputs, y):
        seen.append((outputs.shape, y.shape, float(y.abs().max())))
        return F.huber_loss(outputs, y, delta=50.0)

    def closeness(outputs, y):
        return -float((outputs - y).abs().mean())

    y = 1000 + 100 * X[:, 0]
    learner = Learner(chain(), SPACE(), example_input=VECTOR)
    record = learner.learn(Task("y", (X, y), loss=huber, metric=closeness), Recipe(epochs=30, lr=0.01))
    assert record.metric == "closeness"
    assert record.accuracy is None
    assert -100 < record.score < 0, "in the user's unit, far better than the first guess"
    assert {shape == target for shape, target, _ in seen} == {True}
    assert all(500 < most < 2000 for _, _, most in seen)
    assert learner.evaluate((X, y), "y") == pytest.approx(closeness(learner.predict(X, "y"), y), rel=1e-5)
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, chain())
    with pytest.raises(TaskError, match="learned with a metric of its own, 'closeness'"):
        loaded.evaluate((X, y), "y")
    assert loaded.evaluate((X, y), "y", metric=closeness) == learner.evaluate((X, y), "y")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": lambda outputs, y: (outputs - y).square()}, "must return one number as a tensor"),
        ({"loss": lambda outputs, y: outputs.no_such_thing}, "its own loss or metric failed: AttributeError"),
        ({"metric": lambda outputs, y: None}, "its own loss or metric failed: TypeError"),
    ],
)
def test_mistakes_in_one_s_own_functions_are_found_before_training(options, message):
    learner = Learner(chain(), SPACE(), example_input=VECTOR)
    with pytest.raises(ConfigError, match=message):
        learner.learn(Task("t", (X, X[:, 0]), **options), QUICK, on_epoch=pytest.fail)


def test_a_metric_chooses_the_best_epoch():
    scores = iter([math.nan, 3.0, 9.0, 4.0, 9.5])  # the first call only tries the function

    def draw(outputs, y):
        return next(scores, 0.0)

    networks = []
    for metric, recipe in (
        (draw, Recipe(epochs=3, keep="best", schedule="constant")),
        (None, Recipe(epochs=2, keep="last", schedule="constant")),
    ):
        torch.manual_seed(0)
        learner = Learner(chain(), FineTune(), example_input=VECTOR)
        record = learner.learn(Task("t", (X, X[:, 0]), metric=metric), recipe)
        networks.append((record, learner.verify()))
    (record, best), (_, second) = networks
    assert [row["score"] for row in record.history] == [3.0, 9.0, 4.0]
    assert record.score == 9.5
    assert "accuracy" not in record.history[0]
    assert best == second, "the weights of the second epoch"


def test_a_head_without_a_bias_learns_values_too():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1, bias=False))
    learner = Learner(model, SPACE(), example_input=VECTOR)
    y = 1e4 * X[:, 0]
    assert learner.learn(Task("y", (X, y)), Recipe(epochs=30, lr=0.01)).score > 0.8


def test_mixed_tasks_are_predicted_row_by_row():
    learner = Learner(chain(), SPACE(), example_input=VECTOR)
    learner.learn(Task("class", (X, torch.arange(300) % 3)), QUICK)
    learner.learn(Task("labels", (X, (X[:, :2] > 0).long())), QUICK)
    learner.learn(Task("others", (-X, (X[:, :2] > 0).long())), QUICK)
    uniform = learner.predict(X[:3], ["labels", "others", "labels"])
    assert uniform.shape == (3, 2)
    assert torch.equal(uniform[1], learner.predict(X[:3], "others")[1])
    mixed = learner.predict(X[:2], ["class", "labels"])
    assert [tuple(row.shape) for row in mixed] == [(), (2,)]
    inferred = learner.predict(torch.cat([X[:3], 1e3 * torch.ones(1, 6)]), "infer")
    assert inferred.tasks[3] is None
    assert inferred.labels[3] is None or bool((torch.as_tensor(inferred.labels[3]) == -1).all())


def test_a_trained_regression_is_compressed_in_its_own_unit():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    y = 30 + 5 * (X[:, :1] + X[:, 1:2].relu())
    for _ in range(600):
        optimizer.zero_grad()
        F.mse_loss(model(X), y).backward()
        optimizer.step()
    small, record = compress(model, (X, y), example_input=VECTOR, recipe=Recipe(epochs=0, retrain_epochs=0))
    assert small[0].out_features < 64
    assert record.metric == "R²"
    assert record.score > 0.9, "without any training: the model's own values, estimated from fewer channels"
    assert float((small(X) - model(X)).abs().mean()) < 1.5
    assert float((small(X) - y).mean().abs()) < 1, "in the unit of the data"


def test_pictures_may_have_labels_and_values(tmp_path):
    pixels = (255 * torch.rand(80, 1, 8, 8)).byte().numpy()
    bright = pixels.reshape(80, -1).astype("float64").mean(1)
    labels = (pixels[:, 0, 0, :2] > 127).astype("int64")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 1))
    learner = Learner(model, SPACE(), example_input=torch.zeros(1, 1, 8, 8))
    learner.learn(Task("corners", Images(pixels, labels), classes=["left", "right"]), QUICK)
    learner.learn(Task("brightness", Images(pixels, bright)), QUICK)
    assert [record.target_kind for record in learner.records.values()] == ["labels", "values"]
    answers = {answer["task"]: answer["answers"] for answer in classify(learner, {(1, 8, 8): pixels[:1]})["tasks"]}
    x = Images(pixels, labels).finish(torch.from_numpy(pixels[:1]))
    probabilities = learner.logits(x, "corners")[0].sigmoid()
    assert {answer["class"]: answer["share"] for answer in answers["corners"]} == pytest.approx(
        dict(zip(["left", "right"], probabilities.tolist()))
    )
    assert answers["brightness"][0]["share"] is None
    assert answers["brightness"][0]["value"] == pytest.approx(float(learner.predict(x, "brightness")), rel=1e-5)


def test_joint_training_weighs_all_tasks_again_after_loading(tmp_path, monkeypatch):
    """Weights and smoothing of earlier tasks are those of the recipe that trains them now, whoever remembers them."""
    recipe = Recipe(epochs=2, label_smoothing=0.1, class_weights="balanced")
    first, second = Task("a", (X, (X[:, :2] > 0.5).long())), Task("b", (X, (X[:, 0] > 1).long()))
    digests, weights = [], []
    learn = Joint.learn

    def watched(self, core, task):
        weights.extend(objective.weights for objective in task.earlier_objectives)
        return learn(self, core, task)

    monkeypatch.setattr(Joint, "learn", watched)
    for load in (False, True):
        torch.manual_seed(0)
        learner = Learner(chain(), Joint(), example_input=VECTOR)
        learner.learn(first, recipe)
        if load:
            learner.save(tmp_path)
            learner = Learner.load(tmp_path, chain())
            learner.remember(first)
        learner.learn(second, recipe)
        digests.append(learner.verify())
    assert digests[0] == digests[1]
    assert [part.shape for part in weights] == [(2,), (2,)], "one for each label of the first task"
