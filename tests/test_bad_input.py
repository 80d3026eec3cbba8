"""Bad input gets a clear error before any training, and nothing committed is lost."""

import pytest
import torch
from models import IMAGE, ConvNet, chain, tasks
from torch import nn

import spacecl
from spacecl import SPACE, ConfigError, DataError, Learner, Recipe, Task, TaskError, TrainingError

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*")

QUICK = Recipe(epochs=1, retrain_epochs=1)
VECTOR = torch.zeros(1, 6)
X, Y = tasks(VECTOR, 1)[0]


@pytest.fixture
def learner():
    """A learner with one task, and what it knew then."""
    learner = Learner(chain(), SPACE(variance=0.8), example_input=VECTOR)
    learner.learn(Task("first", (X, Y)), QUICK)
    learner.untouched = learner.verify(), learner.logits(X, "first")
    return learner


def assert_untouched(learner):
    assert learner.tasks == ("first",)
    assert learner.verify() == learner.untouched[0]
    assert torch.equal(learner.logits(X, "first"), learner.untouched[1])


def changed(x, index, value):
    x = x.clone()
    x[index] = value
    return x


BAD_DATA = {
    "labels outside the classes": (Task("t", (X, Y + 5), classes=3), "the label 7 is outside its 3 classes, 0 to 2"),
    "negative labels": (Task("t", (X, Y - 1)), "the label -1 is negative"),
    "labels that are not whole": (Task("t", (X, Y.float())), "labels must be whole numbers"),
    "one-hot labels": (
        Task("t", (X, nn.functional.one_hot(Y))),
        "90 inputs, but labels of shape .90, 3.; give one label per input",
    ),
    "empty": (Task("t", (X[:0], Y[:0])), "0 examples; at least 2 are needed"),
    "one sample": (Task("t", (X[:1], Y[:1])), "1 examples; at least 2 are needed"),
    "fewer labels": (Task("t", (X, Y[:50])), "90 inputs, but labels of shape .50,.; give one label per input"),
    "another size": (Task("t", (X[:, :5], Y)), r"inputs have shape \(5,\), but the model's example input has \(6,\)"),
    "whole pixels": (
        Task("t", (X.to(torch.uint8), Y)),
        "inputs are torch.uint8, but the model's example input is torch.float32",
    ),
    "a NaN": (Task("t", (changed(X, (7, 2), float("nan")), Y)), "the input in row 7 holds NaN or infinite"),
    "an infinite value": (Task("t", (changed(X, (8, 0), float("inf")), Y)), "the input in row 8 holds NaN or infinite"),
    "bad validation data": (Task("t", (X, Y), (X[:, :4], Y)), r"Task 't', valid: inputs have shape \(4,\)"),
    "not data": (Task("t", 5), "expected a pair .x, y., Images, a Dataset or a DataLoader; got int"),
}


@pytest.mark.parametrize(("task", "message"), BAD_DATA.values(), ids=BAD_DATA)
def test_bad_data_is_refused_before_training(learner, monkeypatch, task, message):
    monkeypatch.setattr(spacecl.training.Trainer, "fit", lambda *a, **k: pytest.fail("training began"))
    with pytest.raises(DataError, match=message):
        learner.learn(task, QUICK)
    assert_untouched(learner)


def test_wrong_channels_of_images_are_refused():
    learner = Learner(ConvNet(), example_input=IMAGE)
    with pytest.raises(DataError, match=r"inputs have shape \(1, 8, 8\), but the model's example input has \(3, 8, 8\)"):
        learner.learn(Task("grey", (torch.zeros(10, 1, 8, 8), torch.zeros(10, dtype=torch.int64))))


def test_task_names_are_used_once_and_must_be_known(learner):
    with pytest.raises(TaskError, match="'first' has been learned already"):
        learner.learn(Task("first", (X, Y)), QUICK)
    for ask in (lambda: learner.logits(X, "birds"), lambda: learner.predict(X, "birds"), lambda: learner.subnet("birds")):
        with pytest.raises(TaskError, match=r"No such task: 'birds'\. The tasks are: first\."):
            ask()
    with pytest.raises(TaskError, match="No such task: row 1: 'birds'"):
        learner.predict(X[:3], ["first", "birds", "first"])
    with pytest.raises(TaskError, match="2 task names for 3 rows"):
        learner.predict(X[:3], ["first", "first"])
    with pytest.raises(DataError, match="A task needs a name"):
        Task("", (X, Y))
    with pytest.raises(DataError, match=r"Task 'first': inputs have shape \(4,\)"):
        learner.logits(X[:, :4], "first")
    assert_untouched(learner)


@pytest.mark.parametrize("value", [0, -0.1, 1.01, float("nan")])
def test_variance_lies_above_zero_and_at_most_at_one(value):
    with pytest.raises(ConfigError, match="must be a number above 0 and at most 1"):
        SPACE(variance=value)
    with pytest.raises(ConfigError, match="must be a number above 0 and at most 1"):
        SPACE(variance={"0": 0.9, "*": value})


def test_patterns_must_match_a_layer_and_cover_all():
    with pytest.raises(ConfigError, match=r'the pattern "conv1" matches no layer.*The layers are: 0, 2'):
        Learner(chain(), SPACE(variance={"conv1": 0.9, "*": 0.8}), example_input=VECTOR)
    with pytest.raises(ConfigError, match=r'no pattern matches 2; add "\*" for the rest'):
        Learner(chain(), SPACE(variance={"0": 0.9}), example_input=VECTOR)


def test_all_wrong_options_are_told_at_once():
    with pytest.raises(ConfigError) as error:
        SPACE(activations="during", selection="last", samples=1, growth=1.0)
    assert all(name in str(error.value) for name in ("activations", "selection", "samples", "growth"))
    with pytest.raises(ConfigError) as error:
        Recipe(epochs=-1, optimizer="lion", lr=0, schedule="wild")
    assert all(name in str(error.value) for name in ("epochs", "optimizer", "lr", "schedule"))


def test_an_example_input_must_be_a_batch_that_the_model_takes():
    with pytest.raises(ConfigError, match="example_input must be a batch"):
        Learner(chain(), example_input=torch.zeros(6))
    with pytest.raises(spacecl.UnsupportedModelError, match=r"cannot be traced with an input of shape \(2, 5\)"):
        Learner(chain(), example_input=torch.zeros(1, 5))


@pytest.mark.parametrize(
    ("lr", "epochs", "batch", "message"),
    [
        (1e38, 3, 16, r"diverged in epoch \d of 3"),
        (1e30, 1, len(X), "overflow"),  # its one step is the last: the loss before it is finite, what the analysis sees is not
    ],
)
def test_a_loss_that_turns_nan_leaves_the_learner_as_it_was(learner, lr, epochs, batch, message):
    wild = Recipe(epochs=epochs, batch_size=batch, optimizer="sgd", lr=lr, schedule="constant")
    with pytest.raises(TrainingError, match=rf"{message}.*Nothing was committed"):
        learner.learn(Task("second", (X, Y)), wild)
    assert_untouched(learner)
    learner.learn(Task("second", (X, Y)), QUICK)


class Interrupting(torch.utils.data.Dataset):
    """Stops the program after so many examples were read."""

    def __init__(self, reads, error):
        self.reads, self.error = reads, error

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        self.reads -= 1
        if self.reads < 0:
            raise self.error
        return X[index], int(Y[index])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the disk is gone")])
@pytest.mark.parametrize("reads", [50, 130, 300, 400])  # while checking, training, analysing, retraining
def test_an_interrupted_learn_leaves_the_learner_as_it_was(learner, error, reads):
    data = Interrupting(reads, error)
    with pytest.raises(type(error)):
        learner.learn(Task("second", data, (X, Y)), Recipe(epochs=2, retrain_epochs=2))
    assert_untouched(learner)
    again, fresh = Learner(chain(), SPACE(variance=0.8), example_input=VECTOR), Interrupting(10**9, error)
    again._state = learner._core, dict(learner._records)
    expected = again.learn(Task("second", fresh, (X, Y)), QUICK).digest
    assert learner.learn(Task("second", fresh, (X, Y)), QUICK).digest == expected, "the interrupted try left a trace"


def test_a_method_of_another_kind_cannot_take_over(learner):
    with pytest.raises(ConfigError, match="uses SPACE; it cannot go on with FineTune"):
        learner.method = spacecl.FineTune()
