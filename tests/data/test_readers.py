"""Readers of the publishers' formats: intact files, damaged files and hostile files."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from data_helpers import limited_memory
from faults.data_files import HOSTILE_PICKLES, HOSTILE_ROWS, HOSTILE_SHAPES, ODD_FILES, idx_header, put_odd_file, run
from faults.datasets import idx_bytes, write_cifar10, write_gtsrb, write_idx, write_pictures, write_svhn
from PIL import Image

from spacecl import DataError
from spacecl.data import readers, sources


@pytest.mark.parametrize("compressed", [True, False])
def test_idx_files_are_read_compressed_or_not(tmp_path, compressed):
    images = write_idx(tmp_path, compressed)
    dataset = readers.read_idx(tmp_path)
    assert np.array_equal(dataset.train[0][:, 0], images)
    assert dataset.train[1].tolist()[:12] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert len(dataset.test[1]) == 10


@pytest.mark.parametrize("cut", [2, 9, 500, -1])
def test_truncated_idx_files_are_named(tmp_path, cut):
    write_idx(tmp_path, compressed=False)
    file = tmp_path / "t10k-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte"):
        readers.read_idx(tmp_path)


def test_a_truncated_gz_file_is_named(tmp_path):
    write_idx(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz cannot be decompressed"):
        readers.read_idx(tmp_path)


def test_cifar_batches_are_read_in_order(tmp_path):
    write_cifar10(tmp_path / "c")
    dataset = readers.read_cifar10(tmp_path / "c")
    batches = [pickle.loads((tmp_path / "c" / f"data_batch_{number}").read_bytes()) for number in range(1, 6)]
    assert np.array_equal(dataset.train[0].reshape(-1, 3072), np.concatenate([batch[b"data"] for batch in batches]))
    assert dataset.train[1].tolist() == [label for batch in batches for label in batch[b"labels"]]
    assert dataset.classes[3] == "cat"


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn"])
def test_a_file_with_a_flipped_bit_is_read_or_reported_but_never_a_traceback(tmp_path, name):
    """Whatever a disk or a network does to a file, reading it works or raises an error that names the file."""
    folder = tmp_path / name
    {"mnist": write_idx, "cifar10": write_cifar10, "svhn": write_svhn}[name](folder)
    generator, failed = np.random.default_rng(0), 0
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        for position in generator.integers(0, len(data), 8):
            file.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
            try:
                readers.read_dataset(name, folder)
            except DataError:
                failed += 1
        file.write_bytes(data)
    assert failed


def test_pixels_that_bytes_cannot_hold_and_labels_outside_the_classes_are_refused(tmp_path):
    from scipy.io import savemat

    for part in ("train", "test"):
        savemat(tmp_path / f"{part}_32x32.mat", {"X": np.full((32, 32, 3, 4), 0.5), "y": np.ones((4, 1))})
    with pytest.raises(DataError, match="not whole numbers from 0 to 255"):
        readers.read_dataset("svhn", tmp_path)
    write_cifar10(tmp_path / "c")
    batch = {b"data": np.zeros((20, 3072), np.uint8), b"labels": [77] * 20}
    (tmp_path / "c" / "data_batch_2").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match="training labels are not whole numbers from 0 to 9"):
        readers.read_dataset("cifar10", tmp_path / "c")
    (tmp_path / "c" / "data_batch_2").write_bytes(pickle.dumps({**batch, b"labels": [1] * 19}))
    with pytest.raises(DataError, match="100 training images and 99 labels"):
        readers.read_dataset("cifar10", tmp_path / "c")


def test_svhn_is_read_with_the_label_ten_for_zero(tmp_path):
    from scipy.io import savemat

    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    for part in ("train", "test"):
        savemat(tmp_path / f"{part}_32x32.mat", {"X": pixels, "y": np.array([[10], [1], [9], [10]], np.uint8)})
    dataset = readers.read_svhn(tmp_path)
    assert dataset.train[1].tolist() == [0, 1, 9, 0]
    assert np.array_equal(dataset.train[0][2], pixels[:, :, :, 2].transpose(2, 0, 1))
    (tmp_path / "test_32x32.mat").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"test_32x32\.mat cannot be read"):
        readers.read_svhn(tmp_path)


def test_gtsrb_is_read_with_its_table_and_resized(tmp_path):
    signs = [f"{number:05}" for number in range(43)]
    write_pictures(tmp_path / "Final_Training" / "Images", signs, 2, (40, 25), "RGB", ".ppm")
    write_pictures(tmp_path / "Final_Test", ["Images"], 3, (15, 60), "RGB", ".ppm")
    (tmp_path / "GT-final_test.csv").write_text("Filename;Width;ClassId\n2.ppm;9;41\n0.ppm;9;3\n")
    dataset = readers.read_gtsrb(tmp_path)
    assert dataset.train[0].shape == (86, 3, 32, 32)
    assert dataset.train[1].tolist() == [label for label in range(43) for _ in range(2)]
    assert dataset.test[1].tolist() == [41, 3]
    with Image.open(tmp_path / "Final_Test" / "Images" / "2.ppm") as picture:
        mean = np.asarray(picture).mean((0, 1))
    assert dataset.test[0][0].mean((1, 2)) == pytest.approx(mean, abs=4)


def test_notmnist_leaves_out_empty_files_with_a_note_but_reports_damaged_ones(tmp_path):
    write_pictures(tmp_path, "ABCDEFGHIJ", 10)
    (tmp_path / "A" / "empty.png").write_bytes(b"")
    dataset = readers.read_notmnist(tmp_path)
    assert (len(dataset.train[1]), len(dataset.test[1]), dataset.note) == (90, 10, "1 empty files left out")
    second = readers.read_notmnist(tmp_path)
    assert np.array_equal(dataset.test[0], second.test[0])
    (tmp_path / "B" / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"broken.png"):
        readers.read_notmnist(tmp_path)


def test_facescrub_is_read_from_hats_pickles_or_from_folders_of_people(tmp_path):
    pickles, people = tmp_path / "p", tmp_path / "f"
    pickles.mkdir()
    for part, count in (("train", 200), ("test", 100)):
        values = {"features": np.full((count, 3, 32, 32), 7.0), "labels": np.arange(count) % 100}
        (pickles / f"facescrub_{part}_100.pkl").write_bytes(pickle.dumps(values))
    dataset = readers.read_facescrub(pickles)
    assert dataset.train[0].dtype == np.uint8
    assert (len(dataset.train[1]), len(dataset.test[1]), dataset.train[0].max()) == (200, 100, 7)
    write_pictures(people, [f"person {number:03}" for number in range(101)], 2, (50, 40), "RGB", ".jpg")
    write_pictures(people, ["aaa few"], 1, (50, 40), "RGB", ".jpg")
    dataset = readers.read_facescrub(people)
    assert len(dataset.classes) == 100
    assert "aaa few" not in dataset.classes
    assert len(dataset.train[1]) + len(dataset.test[1]) == 200


# -- hostile files -----------------------------------------------------------------------------------------------------


def test_no_more_is_decompressed_than_the_header_of_an_idx_file_says(tmp_path):
    write_idx(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(idx_bytes(np.zeros((40, 28, 28), np.uint8)) + bytes(100 << 20), 1))
    with limited_memory(), pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is longer than its array"):
        readers.read_dataset("mnist", tmp_path)


@pytest.mark.parametrize("shape", HOSTILE_SHAPES)
def test_an_idx_header_with_a_false_shape_is_refused(tmp_path, shape):
    write_idx(tmp_path, compressed=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_header(shape))
    with limited_memory(), pytest.raises(DataError, match=r"train"):
        readers.read_dataset("mnist", tmp_path)


@pytest.mark.parametrize("name", HOSTILE_PICKLES)
def test_a_pickle_cannot_use_more_memory_than_its_size_justifies(tmp_path, name):
    write_cifar10(tmp_path / "c")
    (tmp_path / "c" / "data_batch_2").write_bytes(HOSTILE_PICKLES[name])
    with limited_memory(), pytest.raises(DataError, match="data_batch_2"):
        readers.read_dataset("cifar10", tmp_path / "c")


def test_labels_in_a_pickle_must_be_a_flat_row_of_whole_numbers(tmp_path):
    """NumPy would make one array of a thousand references to the same megabyte."""
    write_cifar10(tmp_path / "c")
    row = np.zeros(1 << 20, np.uint8)
    for labels in ([row] * 1000, [[1]] * 20, [1.0] * 20, ["1"] * 20, None, np.zeros((20, 1), int), [10**30] * 20):
        batch = {"data": np.zeros((20, 3072), np.uint8), "labels": labels}
        (tmp_path / "c" / "data_batch_2").write_bytes(pickle.dumps(batch))
        with limited_memory(), pytest.raises(DataError, match=r"data_batch_2 holds labels that are not a row|cannot be read"):
            readers.read_dataset("cifar10", tmp_path / "c")


@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.parametrize(
    ("name", "place"),
    [("mnist", "train-images-idx3-ubyte.gz"), ("cifar10", "test_batch"), ("svhn", "train_32x32.mat"), ("notmnist", "C/0.png")],
)
def test_only_regular_files_of_a_plausible_size_are_read(tmp_path, name, place, kind):
    folder = tmp_path / sources.DATASETS[name].folders[0]
    if name == "notmnist":
        write_pictures(folder, "ABCDEFGHIJ", 3)
    else:
        {"mnist": write_idx, "cifar10": write_cifar10, "svhn": write_svhn}[name](folder)
    file = folder / place
    put_odd_file(file, kind)
    if (name, kind) == ("notmnist", "endless"):  # size 0, so it counts as empty
        assert sources.load(name, tmp_path).note == "1 empty files left out"
        return
    with limited_memory(), pytest.raises(DataError, match=Path(place).name if name == "notmnist" else None):
        readers.read_dataset(name, folder)
    with pytest.raises(DataError):
        sources.load(name, tmp_path)


def test_links_to_regular_files_are_followed(tmp_path):
    write_pictures(tmp_path / "elsewhere", "ABCDEFGHIJ", 2)
    (tmp_path / "n").mkdir()
    for letter in "ABCDEFGHIJ":
        (tmp_path / "n" / letter).mkdir()
        for number in range(2):
            (tmp_path / "n" / letter / f"{number}.png").symlink_to(tmp_path / "elsewhere" / letter / f"{number}.png")
    assert len(readers.read_dataset("notmnist", tmp_path / "n").train[1]) == 18


@pytest.mark.parametrize("row", HOSTILE_ROWS)
def test_the_table_of_signs_may_only_name_pictures_in_its_folder_and_known_classes(tmp_path, row):
    write_gtsrb(tmp_path)
    Image.new("RGB", (9, 9)).save(tmp_path / "x.ppm")
    (tmp_path / "GT-final_test.csv").write_text(f"Filename;ClassId\n2.ppm;41\n{row}\n")
    with pytest.raises(DataError, match=r"GT-final_test\.csv is not the table of test signs"):
        readers.read_dataset("gtsrb", tmp_path)


def test_damaged_data_files_are_refused_with_a_message_or_read_correctly():
    outcome = run(60, seed=1)
    assert outcome.failures == []
    assert outcome.tried == 60
