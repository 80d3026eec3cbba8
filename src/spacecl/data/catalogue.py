"""The known datasets: their folders and files, where they are published, and what they contain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .pictures import list_pictures


@dataclass(frozen=True)
class Download:
    """A file to download, and the folder that it is saved or unpacked to."""

    url: str
    md5: str
    into: str = ""
    unpack: bool = False

    @property
    def name(self) -> str:
        return self.url.split("?")[0].rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Dataset:
    """A dataset: the folders where it may be, the files that it needs, and where to get it."""

    name: str
    title: str
    folders: tuple[str, ...]
    files: tuple[str, ...]  # an IDX file may also end in .gz; "a|b" is one of two files
    counts: tuple[int, int]  # published training and test images
    downloads: tuple[Download, ...] = ()
    md5: dict[str, str] = field(default_factory=dict)  # of the published files, decompressed, as far as they are known
    by_hand: str = ""  # how to get what cannot be downloaded

    @property
    def instructions(self) -> str:
        """How to get this dataset, as a sentence without its full stop."""
        return self.by_hand or f"Get it with: spacecl data fetch {self.name}"

    def is_in(self, folder: Path) -> bool:
        """Whether a folder contains all of this dataset's files."""
        if self.name == "facescrub":
            return folder.is_dir() and _has_faces(folder)
        return folder.is_dir() and all(
            any(_find_file(folder / file) is not None for file in alternatives.split("|")) for alternatives in self.files
        )

    def find(self, roots: Sequence[Path]) -> Path | None:
        """Find the folder with this dataset's files below one of several folders."""
        return next((root / name for root in roots for name in self.folders if self.is_in(root / name)), None)

    def list_files(self, folder: Path) -> Iterator[Path]:
        """List the files in a folder that this dataset is decoded from."""
        if self.name == "facescrub" and (folder / "facescrub_train_100.pkl").is_file():
            yield from (folder / f"facescrub_{part}_100.pkl" for part in ("train", "test"))
            return
        for alternatives in self.files or (".",):
            for file in alternatives.split("|"):
                path = _find_file(folder / file)
                if path is not None and path.is_dir():
                    yield from list_pictures(path)
                elif path is not None and path.is_file():
                    yield path


def _find_file(file: Path) -> Path | None:
    """Return a file or folder if it exists; otherwise the compressed form of an IDX file, if that exists."""
    if file.exists():
        return file
    compressed = file.with_name(f"{file.name}.gz")
    return compressed if file.name.endswith("-ubyte") and compressed.is_file() else None


def _has_faces(folder: Path) -> bool:
    pickles = all((folder / f"facescrub_{part}_100.pkl").is_file() for part in ("train", "test"))
    return pickles or any(path.is_dir() for path in folder.iterdir())


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_SIGNS = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370"


def _make_idx_dataset(
    name: str, title: str, folders: tuple[str, ...], url: str, into: str, checksums: Sequence[tuple[str, str]]
) -> Dataset:
    """Describe a dataset of four IDX files. `checksums` has the MD5 of each, compressed and decompressed."""
    downloads = tuple(Download(f"{url}/{file}.gz", md5, into) for file, (md5, _) in zip(_IDX, checksums))
    md5 = {file: md5 for file, (_, md5) in zip(_IDX, checksums)}
    return Dataset(name, title, folders, _IDX, (60_000, 10_000), downloads, md5)


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "cifar10",
            "CIFAR-10",
            ("cifar-10-batches-py", "CIFAR10/cifar-10-batches-py", "cifar10"),
            (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
            (50_000, 10_000),
            (
                Download(
                    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", unpack=True
                ),
            ),
            {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
        ),
        Dataset(
            "cifar100",
            "CIFAR-100",
            ("cifar-100-python", "CIFAR100/cifar-100-python", "cifar100"),
            ("train", "test", "meta"),
            (50_000, 10_000),
            (
                Download(
                    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", unpack=True
                ),
            ),
            {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        ),
        Dataset(
            "facescrub",
            "FaceScrub, 100 people",
            ("facescrub_100", "facescrub", "FaceScrub/faces", "FaceScrub"),
            (),
            (20_600, 2_289),
            by_hand="FaceScrub is not published as files: put either HAT's facescrub_train_100.pkl and facescrub_test_100.pkl "
            "(the archive facescrub_100.zip of its authors), or a folder of pictures for each person, into facescrub/ in "
            "your data folder",
        ),
        _make_idx_dataset(
            "mnist",
            "MNIST",
            ("MNIST/raw", "MNIST", "mnist"),
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "MNIST/raw",
            (
                ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
                ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
                ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
                ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
            ),
        ),
        Dataset(
            "svhn",
            "SVHN, cropped digits",
            ("SVHN", "svhn", "."),
            ("train_32x32.mat", "test_32x32.mat"),
            (73_257, 26_032),
            (
                Download("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", "SVHN"),
                Download("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", "SVHN"),
            ),
            {
                "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
            },
        ),
        _make_idx_dataset(
            "fashion-mnist",
            "Fashion-MNIST",
            ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "Fashion-MNIST"),
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "FashionMNIST/raw",
            (
                ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
                ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
                ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
                ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
            ),
        ),
        Dataset(
            "gtsrb",
            "GTSRB, traffic signs",
            ("GTSRB", "gtsrb", "gtsrb/GTSRB"),
            ("Final_Training/Images", "Final_Test/Images", "GT-final_test.csv|Final_Test/Images/GT-final_test.csv"),
            (39_209, 12_630),
            (
                Download(f"{_SIGNS}/GTSRB_Final_Training_Images.zip", "f33fd80ac59bff73c82d25ab499e03a3", unpack=True),
                Download(f"{_SIGNS}/GTSRB_Final_Test_Images.zip", "c7e4e6327067d32654124b0fe9e82185", unpack=True),
                Download(f"{_SIGNS}/GTSRB_Final_Test_GT.zip", "fe31e9c9270bbcd7b84b7f21a9d9d9e5", "GTSRB", unpack=True),
            ),
        ),
        Dataset(
            "notmnist",
            "notMNIST small",
            ("notMNIST_small", "notMNIST/notMNIST_small", "notmnist"),
            tuple("ABCDEFGHIJ"),
            (16_853, 1_873),
            (
                Download(
                    "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
                    "c9890a473a9769fda4bdf314aaf500dd",
                    unpack=True,
                ),
            ),
        ),
    )
}
