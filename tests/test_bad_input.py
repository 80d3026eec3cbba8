"""Bad input gets a clear error before any training, and nothing committed is lost."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from faults.calls import run as run_odd_calls
from models import IMAGE, ConvNet, Text, chain, tasks
from torch import nn
from torch.utils.data import DataLoader

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
        r"with exactly one 1 in each row. If each example has one class, give its number: y.argmax\(1\)",
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
    monkeypatch.setattr(spacecl.learning.trainer.Trainer, "fit", lambda *a, **k: pytest.fail("training began"))
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
    again._state = replace(learner._state)
    expected = again.learn(Task("second", fresh, (X, Y)), QUICK).digest
    assert learner.learn(Task("second", fresh, (X, Y)), QUICK).digest == expected, "the interrupted try left a trace"


def test_a_method_of_another_kind_cannot_take_over(learner):
    with pytest.raises(ConfigError, match="uses SPACE; it cannot continue with FineTune"):
        learner.method = spacecl.FineTune()


def test_odd_calls_of_every_public_function_get_a_sentence_and_change_nothing():
    outcome = run_odd_calls(400, seed=0)
    assert outcome.tried > 400
    assert outcome.failures == []


BAD_NAMES = [None, 3, b"cats", "", " \t", "a\0b", "a\nb", "a\x7f", "a\ud800b"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_names_of_tasks_and_classes_are_text_that_can_be_printed(name):
    with pytest.raises(DataError, match="A task needs a name, as text; got"):
        Task(name, (X, Y))
    with pytest.raises(DataError, match="Task 't': these names of classes cannot be used: class 1,"):
        Task("t", (X, Y), classes=["a", name])


def test_no_task_is_named_as_the_word_that_asks_for_its_name():
    with pytest.raises(TaskError, match="No task can be named 'infer'"):
        Task("infer", (X, Y))


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["a", "b", "a"], "'a' is there 2 times"),
        ([["a"], "b"], "class 0, .*: it is a list, not text"),
        ([0, 1, 2], "class 0, 0: it is a int, not text"),
        ("abc", "neither a number of classes nor a list"),
        ({"a"}, "neither a number of classes nor a list"),
        ({"a": 0}, "neither a number of classes nor a list"),
        (True, "neither a number of classes nor a list"),
        (2.0, "neither a number of classes nor a list"),
        ([], "a task has 1 to 1,000,000 classes"),
        (0, "a task has 1 to 1,000,000 classes"),
        (10**7, "a task has 1 to 1,000,000 classes"),
    ],
    ids=str,
)
def test_classes_are_counted_or_have_names_of_their_own(classes, message):
    with pytest.raises(DataError, match=message):
        Task("t", (X, Y), classes=classes)


def test_names_of_classes_may_come_as_any_list():
    for classes in (["a", "b"], ("a", "b"), np.array(["a", "b"]), (name for name in "ab")):
        task = Task("t", (X, Y), classes=classes)
        assert task.class_names == ("a", "b")
        assert all(type(name) is str for name in task.class_names)


@pytest.mark.parametrize(
    "example",
    [
        torch.full((1, 6), float("nan")),
        torch.full((1, 6), float("inf")),
        torch.zeros(1, 6, dtype=torch.complex64),
        torch.zeros(1, 6, device="meta"),
        torch.zeros(1, 6).to_sparse(),
        torch.zeros(1, 0),
        [[0.0] * 6],
    ],
    ids=["NaN", "infinity", "complex", "meta", "sparse", "empty", "list"],
)
def test_an_example_input_has_finite_values_in_a_plain_tensor(example):
    with pytest.raises(ConfigError, match="example_input"):
        Learner(chain(), example_input=example)


@pytest.mark.parametrize("seed", ["x", "1", 1.0, -1, True, None, float("nan")], ids=repr)
def test_a_seed_is_a_whole_number_from_zero(learner, seed):
    with pytest.raises(ConfigError, match="must be a whole number, at least 0"):
        Learner(chain(), example_input=VECTOR, seed=seed)
    with pytest.raises(ConfigError, match="must be a whole number, at least 0"):
        learner.seed = seed
    assert Learner(chain(), example_input=VECTOR, seed=np.int64(7)).seed == 7


def test_true_and_false_are_no_numbers():
    for make in (
        lambda: SPACE(variance=True),
        lambda: SPACE(task_variance={"t": True}),
        lambda: SPACE(samples=True),
        lambda: SPACE(trainable_fraction=True),
        lambda: spacecl.EWC(strength=True),
        lambda: Recipe(epochs=True),
    ):
        with pytest.raises(ConfigError, match="=True must be a"):
            make()


def test_numbers_of_other_libraries_become_plain_ones():
    recipe = Recipe(epochs=np.int64(3), lr=np.float32(0.5), milestones=[np.int64(1)])
    assert [type(value) for value in (recipe.epochs, recipe.lr, recipe.milestones[0])] == [int, float, int]


def test_a_method_is_made_before_it_is_given():
    with pytest.raises(ConfigError, match=r"method=SPACE is a class. Give an instance, such as SPACE\(\)"):
        Learner(chain(), SPACE, example_input=VECTOR)
    with pytest.raises(ConfigError, match=r"is not a spacecl\.Method"):
        Learner(chain(), "SPACE", example_input=VECTOR)


@pytest.mark.parametrize(
    "end", [nn.Softmax(1), nn.LogSoftmax(-1), nn.Sigmoid(), nn.LogSigmoid()], ids=lambda e: type(e).__name__
)
def test_a_model_that_ends_in_probabilities_is_warned_of(end):
    with pytest.warns(spacecl.SpaceWarning, match=r"The model ends in \w+\(\), but training takes the scores before it"):
        Learner(nn.Sequential(*chain(), end), example_input=VECTOR)


def test_a_model_that_ends_in_scores_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error", spacecl.SpaceWarning)
        Learner(chain(), example_input=VECTOR)
        Learner(nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 3)), example_input=VECTOR)


def test_tokens_beyond_the_vocabulary_are_refused_when_asked_about():
    text = Learner(Text(), example_input=torch.zeros(1, 7, dtype=torch.int64))
    text.learn(Task("words", tasks(torch.zeros(1, 7, dtype=torch.int64), 1)[0]), QUICK)
    for token in (20, -1):
        with pytest.raises(DataError, match="The network cannot read these inputs"):
            text.predict(torch.full((2, 7), token), "words")


def test_examples_that_make_no_batch_are_refused(learner):
    rows = [(torch.zeros(6), 0), (torch.zeros(5), 1)] * 4
    with pytest.raises(DataError, match="Task 't', train: the examples cannot be put into one batch"):
        learner.learn(Task("t", Listed(rows)), QUICK)
    with pytest.raises(DataError, match="Task 't', train: 3 inputs, but 2 labels in one batch"):
        learner.learn(Task("t", DataLoader(Listed(rows), collate_fn=lambda _: (X[:3], Y[:2])), (X, Y)), QUICK)


class Listed(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


@pytest.mark.parametrize("path", ["", "a\0b", b"x", None, 3, "a\ud800"], ids=ascii)
def test_a_path_is_text_or_a_path(learner, path):
    for use in (
        lambda: learner.save(path),
        lambda: Learner.load(path, chain()),
        lambda: learner.reload(path),
        lambda: learner.export("first", path),
    ):
        with pytest.raises(ConfigError, match=" is not a path"):
            use()


def test_what_the_system_says_of_files_is_told_as_an_error_of_the_store(learner, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(spacecl.StoreError, match=r"file cannot be written: File exists .*choose another"):
        learner.save(tmp_path / "file" / "below")
    with pytest.raises(spacecl.StoreError, match=r"file cannot be written: File exists .*choose another"):
        learner.export("first", tmp_path / "file" / "below.safetensors")
    with pytest.raises(spacecl.ConfigError, match=r"is a file\. Give a folder"):
        learner.learn(Task("t", (X, Y)), QUICK, checkpoint=tmp_path / "file")
    assert_untouched(learner)
