"""Task inference: by what tasks remember of their inputs, only on request, and always with a confidence."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from models import FAMILIES, IMAGE, ConvNet, chain, tasks
from torch import nn

from spacecl import EWC, SPACE, ConfigError, FineTune, Identified, Images, Inferred, Learner, Recipe, Task, TaskError
from spacecl.data.task_data import Data
from spacecl.inference.task_inference import (
    CLASSES,
    FEATURES,
    MAX_ENERGY,
    REJECTION_RATE,
    accept_features,
    compute_scores,
    estimate_bounds,
    estimate_quantile,
    extract_features,
    make_signature,
    score_features,
)
from spacecl.learning.learn_task import _sample
from spacecl.runs.inference_accuracy import BATCH_ROWS, average_accuracies, evaluate_inference
from spacecl.runs.open_run import open_run

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")
VECTOR = torch.zeros(1, 6)
QUICK = Recipe(epochs=2, batch_size=32, retrain_epochs=1)


def shifted_tasks(count=3, examples=120, by=2.5, seed=0):
    """Tasks with the same labels whose inputs are shifted in different directions."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for number in range(count):
        x = torch.randn(examples, 6, generator=generator)
        y = (x[:, 0] > 0).long()
        x[:, 1 + number] += by
        result.append((x, y))
    return result


def teach(method=None, count=3, **options):
    torch.manual_seed(0)
    learner = Learner(chain(), method or SPACE(variance=0.9), example_input=VECTOR)
    for number, data in enumerate(shifted_tasks(count, **options)):
        learner.learn(Task(f"task {number}", data), QUICK)
    return learner


@pytest.fixture(scope="module")
def learner():
    return teach()


def test_the_task_of_rows_is_inferred_with_more_confidence_for_all_together(learner):
    for number, (x, _) in enumerate(shifted_tasks(seed=9)):
        alone, together = learner.identify(x), learner.identify(x, together=True)
        assert isinstance(alone, Identified)
        assert alone.tasks.count(f"task {number}") > 0.6 * len(x)
        assert set(together.tasks) == {f"task {number}"}
        assert len(together.tasks) == len(x)
        assert float(together.confidence.min()) > float(alone.confidence.mean())
        assert torch.allclose(alone.scores.sum(1), torch.ones(len(x)))
        best = [learner.tasks[number] for number in alone.scores.argmax(1).tolist()]
        assert [task or likeliest for task, likeliest in zip(alone.tasks, best)] == best
        assert float(alone.unknown.float().mean()) < 0.05
        assert alone.unknown.tolist() == [task is None for task in alone.tasks]
        assert torch.equal(alone.confidence, torch.where(alone.unknown, 0.0, alone.scores.amax(1)))


def test_a_wrong_inference_has_less_confidence_than_a_right_one(learner):
    """Confidence is calibrated: over all rows, it is about the share of right inferences."""
    confidence, right = [], []
    for number, (x, _) in enumerate(shifted_tasks(seed=9, examples=400)):
        identified = learner.identify(x)
        confidence.append(identified.confidence)
        right.append(torch.tensor([name == f"task {number}" for name in identified.tasks]))
    confidence, right = torch.cat(confidence), torch.cat(right)
    assert abs(float(confidence.mean()) - float(right.float().mean())) < 0.1
    assert float(confidence[right].mean()) > float(confidence[~right].mean()) + 0.1


def test_predict_infers_the_task_only_on_request_and_returns_it(learner):
    x, _ = shifted_tasks(seed=9)[1]
    inferred = learner.predict(x, task="infer")
    assert isinstance(inferred, Inferred)
    identified = learner.identify(x)
    assert inferred.tasks == identified.tasks
    assert torch.equal(inferred.confidence, identified.confidence)
    known = ~identified.unknown
    assert torch.equal(inferred.labels[known], learner.predict(x[known], [task for task in inferred.tasks if task]))
    assert set(inferred.labels[~known].tolist()) <= {-1}
    assert set(learner.predict(x, "infer", together=True).tasks) == {"task 1"}
    with pytest.raises(TaskError, match=r'Which task\? .*task="infer" to infer it. The tasks are: task 0, task 1, task 2'):
        learner.predict(x)
    with pytest.raises(TaskError, match=r"Which task\?"):
        learner.predict(x, 7)
    names = np.array(["task 1"] * len(x))
    assert torch.equal(learner.predict(x, names), learner.predict(x, "task 1"))
    with pytest.raises(ConfigError, match='together=True is for task="infer"'):
        learner.predict(x, "task 1", together=True)
    with pytest.raises(TaskError, match="No task can be named 'infer'"):
        learner.learn(Task("infer", shifted_tasks()[0]), QUICK)
    with pytest.raises(TaskError, match="No task has been learned yet"):
        Learner(chain(), example_input=VECTOR).predict(x, "infer")
    assert learner.identify(x[:0]).tasks == ()


def test_signatures_are_saved_and_loaded(learner, tmp_path):
    x = torch.randn(5, 6)
    expected = learner.identify(x)
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, chain())
    assert torch.equal(loaded.identify(x).scores, expected.scores)
    assert loaded.storage["signatures"] == learner.storage["signatures"] > 0


def test_a_task_with_huge_inputs_is_learned_without_a_signature():
    learner = Learner(chain().double(), FineTune(), example_input=VECTOR.double())
    x = torch.randn(80, 6, dtype=torch.float64)
    learner.learn(Task("huge", (x * 1e300, (x[:, 0] > 0).long())), Recipe(epochs=1, lr=1e-12))
    assert not learner.has_signature("huge")
    for far in (1e160, 1e300):
        assert make_signature([(x * far, torch.zeros(80, dtype=torch.int64), torch.zeros(80))], 1) == {}


def with_signatures(core, signatures):
    tasks = [replace(task, signature=signature) for task, signature in zip(core.tasks, signatures)]
    return replace(core, tasks=tuple(tasks))


def test_a_task_without_a_signature_is_reported_and_later_tasks_have_one(learner, tmp_path):
    other, x = Learner(chain(), SPACE(variance=0.9), example_input=VECTOR), torch.randn(2, 6)
    other._state = replace(learner._state, core=with_signatures(learner.core, [{}] * 3))
    with pytest.raises(TaskError, match="Task 'task 0' has no signature of its inputs: an older version"):
        other.identify(x)
    assert other.predict(x, "task 0").shape == (2,)
    other.learn(Task("new", shifted_tasks(4, seed=3)[3]), QUICK)
    other.save(tmp_path)
    for one in (other, Learner.load(tmp_path, chain())):
        assert [one.has_signature(task) for task in one.tasks] == [False, False, False, True]
        assert one.task_scores(x, "new").shape == (2,)
        with pytest.raises(TaskError, match="Task 'task 2' has no signature"):
            one.task_scores(x, "task 2")
    assert average_accuracies(list(evaluate_inference(other, []).values())) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_can_be_inferred_for_every_family_of_models(family):
    make, example, shared = FAMILIES[family]
    torch.manual_seed(0)
    learner = Learner(make(), SPACE(variance=0.7), example_input=example, shared=shared)
    sets = tasks(example, 2)
    if example.is_floating_point():
        sets[1] = (sets[1][0] * 0.3 + 1, sets[1][1])
    else:
        sets[1] = (sets[1][0] // 4, sets[1][1])  # other words
    for number, data in enumerate(sets):
        learner.learn(Task(str(number), data), Recipe(epochs=1, batch_size=90, retrain_epochs=0))
    for number, (x, _) in enumerate(sets):
        assert learner.identify(x).tasks.count(str(number)) > 0.9 * len(x)


def test_the_networks_of_a_method_that_forgets_do_not_count():
    """Their energy may have changed since the task was learned: only the inputs count."""
    learner = teach(EWC(), 2)
    x = shifted_tasks(2, seed=9)[0][0]
    expected = score_features(x, learner.core.tasks[0].signature, None)
    assert torch.equal(learner.task_scores(x, "task 0"), expected)
    assert set(learner.identify(x, together=True).tasks) == {"task 0"}


def test_signatures_do_not_change_what_is_learned():
    """Their examples are drawn by generators of their own, after all training."""
    digests = []
    for _ in range(2):
        torch.manual_seed(0)
        learner = Learner(ConvNet(), SPACE(variance=0.8), example_input=IMAGE)
        for number, data in enumerate(tasks(IMAGE, 2)):
            learner.learn(Task(str(number), data), QUICK)
            torch.randn(number + 1)
        digests.append((learner.verify(), learner.core.tasks[1].signature["root"]))
    assert digests[0][0] == digests[1][0]
    assert torch.equal(digests[0][1], digests[1][1])


# -- inputs that belong to no task --------------------------------------------------------------------------------------


OUTLIERS = torch.cat(
    [
        torch.full((1, 6), 50.0),
        torch.full((1, 6), 1e30),
        torch.full((1, 6), 3e38),
        100 * torch.randn(1, 6, generator=torch.Generator().manual_seed(0)),
    ]
)


@pytest.mark.parametrize("method", [SPACE(variance=0.9), FineTune()], ids=["SPACE", "FineTune"])
def test_an_input_that_is_unlike_those_of_all_tasks_belongs_to_none(method):
    learner = teach(method, 2)
    x = torch.cat([shifted_tasks(2, seed=9)[0][0][:9], OUTLIERS])
    identified, inferred = learner.identify(x), learner.predict(x, "infer")
    assert identified.tasks[9:] == (None,) * 4
    assert None not in identified.tasks[:5]
    assert inferred.tasks == identified.tasks
    assert inferred.labels[9:].tolist() == [-1] * 4
    assert inferred.confidence[9:].tolist() == [0] * 4
    assert not learner.accepts(x, "task 0")[9:].any()
    for row in OUTLIERS:  # alone, too
        assert learner.identify(row[None]).tasks == (None,)


def test_blank_and_noisy_images_belong_to_no_task():
    """Although they are as likely as usual ones: they are far out in the direction of the most variance, the contrast."""
    generator = torch.Generator().manual_seed(0)

    def smooth(count):
        x = torch.nn.functional.interpolate(torch.randn(count, 3, 3, 3, generator=generator), 16, mode="bilinear")
        return x * (0.5 + torch.rand(count, 1, 1, 1, generator=generator))

    x = smooth(600)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))
    learner = Learner(model, FineTune(), example_input=x[:1])
    learner.learn(Task("smooth", (x, (x.mean((1, 2, 3)) > 0).long())), QUICK)
    assert float(learner.identify(smooth(500)).unknown.float().mean()) < 0.04
    blank = torch.linspace(-1, 1, 9)[:, None, None, None].expand(9, 3, 16, 16)
    assert bool(learner.identify(blank).unknown.all())
    assert bool(learner.identify(torch.randn(9, 3, 16, 16, generator=generator)).unknown.all())


def test_rows_together_belong_to_no_task_if_most_of_them_do(learner):
    own, far = shifted_tasks(seed=9)[1][0][:10], torch.full((10, 6), 99.0)
    assert set(learner.identify(torch.cat([own, far[:9]]), together=True).tasks) == {"task 1"}
    assert set(learner.identify(torch.cat([own[:8], far]), together=True).tasks) == {None}
    assert set(learner.predict(far, "infer", together=True).labels.tolist()) == {-1}


def test_a_learner_of_an_older_version_accepts_all_inputs_as_before(learner, tmp_path):
    names = ("means", "spread", "root", "numbers")
    old = [{name: task.signature[name] for name in names} for task in learner.core.tasks]
    other = Learner(chain(), SPACE(variance=0.9), example_input=VECTOR)
    other._state = replace(learner._state, core=with_signatures(learner.core, old))
    other.save(tmp_path)
    loaded = Learner.load(tmp_path, chain())
    x = torch.cat([torch.randn(5, 6), torch.full((1, 6), 99.0)])
    identified = loaded.identify(x)
    assert None not in identified.tasks
    assert torch.equal(identified.scores[:5], learner.identify(x).scores[:5])
    assert bool(loaded.accepts(x, "task 0").all())


def test_a_tasks_own_inputs_are_accepted_but_for_about_one_in_a_hundred():
    generator = torch.Generator().manual_seed(0)
    for size, rows in ((20, 1000), (20, 150), (20, 20), (112, 300), (3, 5), (3, 1)):
        draw = lambda count, size=size: torch.randn(count, size, generator=generator)  # noqa: E731
        signature = make_signature([(draw(2000), torch.arange(2000) % 2, torch.zeros(2000))], 2)
        signature |= estimate_bounds([draw(rows)], signature)
        assert float((~accept_features(draw(4000), signature)).float().mean()) < (0.025 if rows > 100 else 0.06), (size, rows)
        assert not bool(accept_features(1000 + draw(50), signature).any())


def test_a_quantile_is_exceeded_by_the_requested_share():
    values = torch.arange(1, 2000).double()
    assert estimate_quantile(values) == 2000 * (1 - REJECTION_RATE)
    assert estimate_quantile(values[:3]) > 3
    tail = -torch.rand(50, 4000, generator=torch.Generator().manual_seed(0)).double().log()
    for count in (10, 50, 150):
        shares = [float((row[count:] > estimate_quantile(row[:count])).float().mean()) for row in tail]
        assert 0.1 * REJECTION_RATE < sum(shares) / len(shares) < 4 * REJECTION_RATE


# -- the maths ----------------------------------------------------------------------------------------------------------


def naive(x, y, query, degrees=12.0):
    """The log-density of a mixture of Student's t around class means, with SciPy, on the shrunk covariance."""
    from scipy.stats import multivariate_t

    x, y, query = x.double().numpy(), y.numpy(), query.double().numpy()
    means = np.stack([x[y == label].mean(0) for label in np.unique(y)])
    residuals = x - means[y]
    freedom = len(x) - len(means)
    spread = np.sqrt((residuals**2).sum(0) / freedom)
    residuals = residuals / spread
    covariance = residuals.T @ residuals / freedom
    mean = np.trace(covariance) / len(covariance)
    distance = ((covariance - mean * np.eye(len(covariance))) ** 2).sum()
    noise = ((residuals**2).sum(1) ** 2).mean() - (covariance**2).sum()
    shrink = min(1, max(0.05, noise / len(x) / distance))
    covariance = (1 - shrink) * covariance + shrink * mean * np.eye(len(covariance))
    shape = covariance * np.outer(spread, spread) * (degrees - 2) / degrees  # has this covariance
    density = np.stack([multivariate_t(mean, shape, degrees).logpdf(query) for mean in means])
    return np.log(np.exp(density).mean(0))


def test_scores_are_log_densities_of_a_mixture_of_students_t():
    x, y = torch.randn(400, 5) @ torch.randn(5, 5), torch.arange(400) % 2
    x[y == 1] += 1
    query = torch.randn(30, 5) * 2
    signature = make_signature([(x, y, torch.zeros(400))], classes=2)
    expected = naive(x, y, query)
    scores = score_features(query, signature, None).numpy() - float(signature["numbers"][1]) / 2
    assert np.abs((scores - scores.mean()) - (expected - expected.mean())).max() < 1e-4, "up to a constant"


def test_many_and_few_examples_of_the_same_inputs_are_about_equal():
    generator = torch.Generator().manual_seed(0)
    draw = lambda count: torch.randn(count, 112, generator=generator)  # noqa: E731
    many, few = (make_signature([(draw(n), torch.arange(n) % 2, torch.zeros(n))], 2) for n in (4000, 150))
    x = draw(500)
    better = (score_features(x, few, None) > score_features(x, many, None)).float().mean()
    assert 0.35 < float(better) < 0.75, "0.20 without the correction for optimism, 0.87 with all of it"


def test_the_networks_energy_counts_in_deviations_from_the_usual():
    x, energy = torch.randn(300, 6), 4 * torch.randn(300)
    signature = make_signature([(x, torch.arange(300) % 2, energy)], 2)
    bonus = score_features(x, signature, energy) - score_features(x, signature, None)
    assert float(bonus.mean()) == pytest.approx(0, abs=1e-6)
    assert float(bonus.std()) == pytest.approx(1, abs=1e-6)


def test_many_features_count_as_fewer_independent_ones():
    x, y, query = torch.randn(400, 50) @ torch.randn(50, 50), torch.arange(400) % 2, 2 * torch.randn(30, 50)
    scores, expected = (
        score_features(query, make_signature([(x, y, torch.zeros(400))], 2), None).numpy(),
        naive(x, y, query) / 2,
    )
    assert np.abs((scores - scores.mean()) - (expected - expected.mean())).max() < 1e-3


def test_the_number_of_classes_does_not_make_a_task_likelier():
    x, query = torch.randn(4000, 5), torch.randn(500, 5)
    one_class, twenty = (make_signature([(x, torch.arange(4000) % n, torch.zeros(4000))], n) for n in (1, 20))
    assert abs(float((score_features(query, one_class, None) - score_features(query, twenty, None)).mean())) < 0.3


def test_optimism_is_how_much_better_training_rows_fit_than_new_ones():
    centres = 100 * torch.randn(2, 20)
    draw = lambda count: torch.randn(count, 20) + centres[torch.arange(count) % 2]  # noqa: E731
    own, new = draw(60), draw(3000)
    signature = make_signature([(own, torch.arange(60) % 2, torch.zeros(60))], 2)
    better = float(score_features(own, signature, None).mean() - score_features(new, signature, None).mean())
    assert 0.6 < float(signature["numbers"][1]) / better < 1.6


def test_edges_are_detected_in_four_directions():
    i, j = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    for number, along in enumerate((i, j, i - j, i + j)):  # stripes: without edges in one direction each
        stripes = (along % 4 < 2).float()[None, None]
        assert int(extract_features(stripes)[0, 16:].view(4, 16).mean(1).argmin()) == number


def test_projections_keep_lengths_and_thin_images_are_treated_as_vectors():
    assert float(extract_features(torch.randn(500, 300)).std()) == pytest.approx(1, abs=0.05)
    assert extract_features(torch.zeros(2, 1, 3, 9)).shape == (2, 27)


def test_features_are_few_and_do_not_change():
    assert extract_features(torch.zeros(2, 3, 224, 224)).shape == (2, 112)
    assert extract_features(torch.zeros(2, 1, 3, 3)).shape == (2, 9), "too small to be divided into parts"
    assert extract_features(torch.zeros(2, 40, 50)).shape == (2, FEATURES)
    tokens = torch.tensor([[1, 1, 5], [130, 0, 0]])
    assert extract_features(tokens)[0, 1] == pytest.approx(2**0.5)
    x = torch.randn(3, 300)
    assert torch.equal(extract_features(x), extract_features(x))
    assert torch.allclose(extract_features(x)[1:2], extract_features(x[1:2]), atol=1e-12)


def test_many_classes_share_one_mean_and_degenerate_tasks_do_not_fail():
    x = torch.randn(200, 4)
    assert make_signature([(x, torch.arange(200) % (CLASSES + 1), torch.zeros(200))], CLASSES + 1)["means"].shape == (1, 4)
    for rows in (torch.zeros(2, 4), x[:2], torch.ones(50, 4)):
        signature = make_signature([(rows, torch.zeros(len(rows), dtype=torch.int64), torch.zeros(len(rows)))], 1)
        assert bool(torch.isfinite(score_features(x, signature, torch.zeros(200))).all())


def test_a_signature_is_computed_from_some_examples_drawn_from_all(learner, monkeypatch):
    monkeypatch.setattr("spacecl.learning.learn_task.SIGNATURE_SAMPLES", 600)
    x, y = torch.randn(4000, 6), torch.arange(4000) // 2000
    labels = torch.cat([y for _, y, _ in _sample(learner._queries, learner.subnet("task 0"), Data((x, y), "data"), 0)])
    assert len(labels) == 1000
    assert 400 < int(labels.sum()) < 600


def test_inferred_tasks_are_counted_by_row_and_by_batch():
    learner = teach(by=1.0)
    tests = shifted_tasks(by=1.0, seed=9, examples=5 * BATCH_ROWS)
    shares = evaluate_inference(learner, [Task(f"task {number}", data, test=data) for number, data in enumerate(tests)])
    for name, (x, y) in zip(learner.tasks, tests):
        parts = list(x.split(BATCH_ROWS))
        for unit, answers in (
            ("row", [learner.predict(part, "infer") for part in parts]),
            ("batch", [learner.predict(part, "infer", together=True) for part in parts]),
        ):
            right = torch.tensor([task == name for one in answers for task in one.tasks])
            labels = torch.cat([one.labels for one in answers])
            assert shares[name][unit]["identified"] == pytest.approx(float(right.float().mean()), abs=0.01)
            assert shares[name][unit]["accuracy"] == pytest.approx(float((right & (labels == y)).float().mean()), abs=0.01)
    assert shares["task 0"]["row"]["identified"] < shares["task 0"]["batch"]["identified"]


def test_inputs_that_overflow_every_network_belong_to_no_task(digits_run):
    learner = open_run(digits_run).learner()
    large = 3e38 * learner.subnet("digits-1").hidden1.weight[:1].sign()  # overflows the first neuron
    x = torch.cat([learner.example, large, large])
    assert learner.identify(x).tasks[1:] == (None, None)
    assert torch.allclose(learner.identify(x).scores.sum(1), torch.ones(3))
    inferred = learner.predict(x, "infer")
    assert inferred.labels.tolist()[1:] == [-1, -1]
    assert inferred.confidence.tolist()[1:] == [0, 0]


def test_a_run_reports_accuracy_with_inferred_and_with_given_tasks(digits_run):
    result = json.loads((digits_run / "result.json").read_text())
    run = open_run(digits_run)
    learner, streams = run.learner(), run.tasks(None)
    for entry in result["tasks"]:
        test: Images = streams[entry["name"]].test
        x, y = test.finish(test.batch(np.arange(len(test)))[0]), test.targets
        best = learner.task_scores(x).argmax(1)
        right, identified = best == learner.tasks.index(entry["name"]), learner.identify(x)
        labels = learner.predict(x, [learner.tasks[number] for number in best.tolist()])
        row = entry["inferred"]["row"]
        assert row["identified"] == pytest.approx(float(right.float().mean()), abs=0.005)
        assert row["accuracy"] == pytest.approx(float((right & (labels == y)).float().mean()), abs=0.005)
        assert row["refused"] == pytest.approx(float(identified.unknown.float().mean()), abs=0.005)
        assert row["refused"] < 0.05
        assert entry["inferred"]["batch"]["refused"] == 0
        assert entry["inferred"]["batch"]["identified"] == 1
        assert entry["inferred"]["batch"]["accuracy"] == entry["accuracy"]
    mean = sum(entry["inferred"]["row"]["accuracy"] for entry in result["tasks"]) / 2
    assert result["inferred"]["row"]["accuracy"] == pytest.approx(mean)


def test_a_network_far_more_confident_than_on_its_own_inputs_is_no_evidence():
    """Inputs of another scale make logits explode; that alone must not win."""
    x, y = torch.randn(200, 6), torch.arange(200) % 2
    energy = torch.randn(200)
    signature = make_signature([(x, y, energy)], 2)
    usual, high, huge = (score_features(x[:5], signature, energy[:5] + more) for more in (0.0, 100.0, 1e9))
    assert torch.equal(high, huge)
    plain = score_features(x[:5], signature, None)
    assert torch.allclose(high - plain, torch.full((5,), 3.0, dtype=torch.float64))
    assert bool((usual <= high).all())


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("spread", "runs_all"), [(1.0, (True, True)), (20.0, (True, False)), (300.0, (False, False))])
def test_networks_that_cannot_matter_are_not_run_and_change_no_share(spread, runs_all, together):
    draw = torch.Generator().manual_seed(0)
    likelihoods = spread * torch.randn(5, 40, generator=draw, dtype=torch.float64)
    full = likelihoods + torch.randn(5, 40, generator=draw, dtype=torch.float64).clamp(max=MAX_ENERGY)
    ran = []
    scores = compute_scores(likelihoods, lambda number: ran.append(number) or full[:, number], together)
    assert len(set(ran)) == len(ran)
    assert (len(ran) == 40) == runs_all[together]
    expected, found = (rows.sum(0, keepdim=True) if together else rows for rows in (full, scores))
    assert torch.equal(found.argmax(1), expected.argmax(1))
    assert float((found.softmax(1) - expected.softmax(1)).abs().max()) < 1e-15
    if not together:  # rows do not depend on each other
        pairs = zip(likelihoods.split(1), full.split(1))
        alone = [compute_scores(row, partial(torch.select, own, 1), together=False) for row, own in pairs]
        assert torch.equal(torch.cat(alone), scores)


def test_all_networks_are_run_if_one_has_no_finite_score():
    likelihoods = torch.tensor([[0.0, -1000.0, -2000.0]], dtype=torch.float64)
    full = torch.tensor([[float("nan"), -1001.0, -2001.0]], dtype=torch.float64)
    assert torch.equal(compute_scores(likelihoods, lambda number: full[:, number], False).isnan(), full.isnan())
    assert compute_scores(likelihoods, lambda number: full[:, number], False)[0, 2] == -2001.0
