"""Images as bytes: what networks read, and augmentation."""

import json

import numpy as np
import pytest
import torch

from spacecl import DataError, Images, Learner, Recipe, Task
from spacecl.data.images import augment, compute_statistics, preprocess
from spacecl.data.prepare import fingerprint, prepare_data
from spacecl.data.task_data import Data

PIXELS = np.random.default_rng(0).integers(0, 256, (50, 3, 6, 6), dtype=np.uint8)
LABELS = np.arange(50) % 2


def test_every_channel_of_a_batch_has_mean_0_and_standard_deviation_1():
    images = Images(PIXELS, LABELS)
    x = images.finish(images.batch(range(50))[0])
    assert x.dtype == torch.float32
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(x.std((0, 2, 3), unbiased=False), torch.ones(3), atol=1e-5)


def test_statistics_are_those_of_numpy():
    mean, std = compute_statistics(PIXELS)
    assert mean == pytest.approx(PIXELS.mean((0, 2, 3)))
    assert std == pytest.approx(PIXELS.std((0, 2, 3)))
    assert compute_statistics(np.full((3, 1, 2, 2), 9, np.uint8)) == ((9.0,), (1.0,)), "a constant channel is not divided by 0"


def test_another_shape_adds_black_borders_and_repeats_a_single_channel():
    grey = PIXELS[:, :1, :, :5]
    images = Images(grey, LABELS, shape=(3, 8, 8))
    x = images.finish(images.batch(range(50))[0])
    assert x.shape == (50, 3, 8, 8)
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std(unbiased=False)) == pytest.approx(1, abs=1e-4)
    padded = np.pad(grey, ((0, 0), (0, 0), (1, 1), (1, 2)))
    expected = (padded - padded.mean()) / padded.std()
    assert np.allclose(x[:, 1].numpy(), expected[:, 0], atol=1e-4)


def test_an_order_permutes_the_pixels_of_every_image_alike():
    order = torch.randperm(108)
    images, plain = Images(PIXELS, LABELS, order=order), Images(PIXELS, LABELS)
    x = images.finish(images.batch([3, 4])[0])
    assert torch.equal(x, plain.finish(plain.batch([3, 4])[0]).flatten(1)[:, order])


def test_subsets_of_subsets_name_the_right_images():
    images = Images(PIXELS, LABELS).subset([10, 20, 31, 41]).subset([2, 3])
    assert np.array_equal(images.batch([0, 1])[0].numpy(), PIXELS[[31, 41]])
    assert images.targets.tolist() == [1, 1]
    assert len(images) == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((PIXELS.astype(float), LABELS), "pixels must be uint8"),
        ((PIXELS[:, 0], LABELS), "pixels must be uint8 of shape"),
        ((PIXELS, LABELS[:3]), "one for each of 50 images"),
        ((PIXELS, LABELS.astype(str)), "labels must be numbers"),
        ((PIXELS, LABELS[:, None, None]), "labels must be numbers"),
        ((PIXELS, LABELS, None, None, (3, 4, 4)), "cannot be given the shape"),
        ((PIXELS, LABELS, (1.0,)), "mean and std belong together"),
        ((PIXELS, LABELS, (1.0, 2.0), (1.0, 2.0)), "a value for each of 3 channels"),
    ],
)
def test_images_that_cannot_be_used_are_refused(values, message):
    with pytest.raises(DataError, match=message):
        Images(*values)


def test_a_learner_takes_images_as_it_takes_tensors():
    images = Images(PIXELS, LABELS)
    x = images.finish(images.batch(range(50))[0])

    def digest(train):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 12), torch.nn.ReLU(), torch.nn.Linear(12, 2))
        learner = Learner(model, example_input=x[:1])
        record = learner.learn(Task("t", train), Recipe(epochs=2))
        return record.digest, learner.evaluate(train, "t")

    assert digest(images) == digest((x, torch.from_numpy(LABELS)))


def test_images_of_another_shape_than_the_models_are_refused_with_both_shapes():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(27, 5), torch.nn.Linear(5, 2))
    learner = Learner(model, example_input=torch.zeros(1, 3, 3, 3))
    with pytest.raises(DataError, match=r"inputs have shape \(3, 6, 6\), but the model's example input has \(3, 3, 3\)"):
        learner.learn(Task("t", Images(PIXELS, LABELS)))


def test_flips_mirror_about_half_of_the_images_and_leave_the_others():
    x = torch.randn(400, 3, 6, 6)
    y = augment(x, "flip")
    same, mirrored = (y == x).flatten(1).all(1), (y == x.flip(-1)).flatten(1).all(1)
    assert bool((same ^ mirrored).all())
    assert 150 < int(mirrored.sum()) < 250


def test_shifts_move_images_by_up_to_two_pixels_each_way():
    x = torch.zeros(500, 1, 7, 7)
    x[:, 0, 3, 3] = 1
    y = augment(x, "shift")
    places = {tuple(place) for place in y[:, 0].nonzero()[:, 1:].tolist()}
    assert places == {(row, column) for row in range(1, 6) for column in range(1, 6)}
    assert torch.equal(y.sum((1, 2, 3)), torch.ones(500))


@pytest.mark.parametrize("shape", [(500, 3, 4, 4), (500, 30)])
def test_masking_makes_a_fifth_of_the_values_zero_and_leaves_the_rest(shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    y = augment(x, "mask")
    masked = y == 0
    assert masked.float().mean() == pytest.approx(0.2, abs=0.02)
    assert torch.equal(y[~masked], x[~masked])
    assert not torch.equal(masked[0], masked[1])


def test_the_augmentation_none_changes_nothing():
    x = torch.randn(5, 3, 6, 6)
    assert augment(x, "none") is x


def test_other_pixels_labels_or_orders_of_pixels_have_another_fingerprint():
    options = {"mean": (9.0, 9.0, 9.0), "std": (1.0, 1.0, 1.0)}  # or they would differ with the pixels
    changed = PIXELS.copy()
    changed[0] ^= 1
    fingerprints = {
        fingerprint(Data(Images(PIXELS, LABELS, **options), "images")),
        fingerprint(Data(Images(changed, LABELS, **options), "images")),
        fingerprint(Data(Images(PIXELS, 1 - LABELS, **options), "images")),
        fingerprint(Data(Images(PIXELS, LABELS, **options, order=torch.arange(108)), "images")),
        fingerprint(Data(Images(PIXELS, LABELS, **options, order=torch.arange(108).flip(0)), "images")),
    }
    assert len(fingerprints) == 5


def test_preprocessing_makes_the_same_inputs_of_pictures():
    pixels = np.random.default_rng(0).integers(0, 255, (5, 1, 2, 3), dtype=np.uint8)
    for more in ({}, {"order": torch.randperm(6)}, {"shape": (1, 4, 5)}):
        images = Images(pixels, np.zeros(5, np.int64), **more)
        preprocessing = json.loads(json.dumps(images.preprocessing()))
        assert torch.equal(preprocess(preprocessing, pixels), images.finish(images.batch(np.arange(5))[0]))
    with pytest.warns(DeprecationWarning, match=r"Images\.told is deprecated; use Images\.preprocessing"):
        assert images.told() == images.preprocessing()


def test_a_wrong_label_does_not_make_a_head_of_a_million_classes():
    labels = LABELS.copy()
    example = torch.zeros(1, 3, 6, 6)
    for largest, refused in ((49, False), (50, True), (10**6 - 1, True)):
        labels[7] = largest
        task = Task("a", Images(PIXELS, labels))
        if refused:
            with pytest.raises(
                DataError, match=rf"label {largest} needs .* classes, but there are 50 examples.*classes=\.\.\."
            ):
                prepare_data(task, example, torch.Generator())
        else:
            assert prepare_data(task, example, torch.Generator())[2].outputs == largest + 1
        sized = Task("a", Images(PIXELS, labels), classes=largest + 1)
        assert prepare_data(sized, example, torch.Generator())[2].outputs == largest + 1
