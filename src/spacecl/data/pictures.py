"""Read picture files, one at a time or in folders with one folder per class."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import ConfigError, DataError
from .arrays import Split, split_rows
from .files import open_file

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".ppm", ".bmp", ".webp")
FORMATS = ("PNG", "JPEG", "PPM", "BMP", "WEBP")  # the only ones that are opened: for some others Pillow starts programs
PIXELS = 32_000_000  # in the largest picture that is opened


class LargePictureError(ValueError):
    """A picture has more than PIXELS pixels. A file of some kilobytes can expand to gigabytes."""


@dataclass(frozen=True)
class LabelledPictures:
    """Picture files with a label for each, and a note about files that were left out."""

    files: list[Path]
    labels: np.ndarray
    note: str = ""


def list_pictures(folder: Path) -> list[Path]:
    """List the pictures in a folder and its subfolders, sorted. Hidden files and folders are left out."""
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in PICTURE_SUFFIXES)
    return sorted(path for path in paths if not any(is_hidden(part) for part in path.relative_to(folder).parts))


def is_hidden(name: str) -> bool:
    """Whether a file or folder is one that operating systems and tools hide."""
    return name.startswith((".", "__MACOSX", "@eaDir"))


def list_labelled_pictures(folders: Sequence[Path]) -> LabelledPictures:
    """List the pictures in one folder per class. Empty files are left out, which the note says."""
    files: list[Path] = []
    labels: list[int] = []
    empty = 0
    for label, folder in enumerate(folders):
        pictures = list_pictures(folder)
        filled = [file for file in pictures if not _is_empty(file)]
        if not filled:
            raise DataError(f"{folder} holds no pictures ({', '.join(PICTURE_SUFFIXES)}).")
        empty += len(pictures) - len(filled)
        files += filled
        labels += [label] * len(filled)
    return LabelledPictures(files, np.array(labels, np.int64), f"{empty} empty files left out" if empty else "")


def _is_empty(file: Path) -> bool:
    """Whether a path is a regular file of 0 bytes. Anything else that cannot be read is reported when it is opened."""
    try:
        status = file.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and not status.st_size


def read_class_folders(folders: Sequence[Path], size: int, channels: int, share: float) -> tuple[Split, Split, str]:
    """Read one folder of pictures per class, and set a `share` of all pictures aside as test data.

    Returns the training and test data and a note about what was left out.
    """
    pictures = list_labelled_pictures(folders)
    train, test = (
        Split(decode_pictures([pictures.files[row] for row in rows], (channels, size, size)), pictures.labels[rows])
        for rows in split_rows(len(pictures.files), share)
    )
    return train, test, pictures.note


def decode_pictures(files: Sequence[Path], shape: Sequence[int]) -> np.ndarray:
    """Decode pictures to bytes, all of one shape (channels, height, width). The error names the files that cannot be read."""
    require_pillow()
    pixels, problems = np.empty((len(files), *shape), np.uint8), []
    for row, file in enumerate(files):
        try:
            with open_file(file) as stream, open_picture(stream) as picture:
                pixels[row] = to_pixels(picture, shape)
        except Exception as error:  # Pillow's decoders raise errors of many types
            problems.append(f"{file} ({str(error) or type(error).__name__})")
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise DataError(f"These pictures cannot be read: {'; '.join(problems[:5])}{more}. Remove or replace them.")
    return pixels


@contextmanager
def open_picture(stream: BinaryIO) -> Iterator[Any]:
    """Open a picture of one of FORMATS with Pillow, with at most PIXELS pixels."""
    Image = require_pillow()  # noqa: N806
    too_large = LargePictureError(f"it has more than {PIXELS:,} pixels")
    try:
        picture = Image.open(stream, formats=FORMATS)
        if picture.width * picture.height > PIXELS:
            raise too_large
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # Pillow's own limit is higher
        raise too_large from None
    except Image.UnidentifiedImageError:
        raise ValueError(f"its format is not one of {', '.join(FORMATS)}") from None
    with picture:
        yield picture


def to_pixels(picture: Any, shape: Sequence[int]) -> np.ndarray:
    """Convert a picture to bytes of a shape (channels, height, width), as a viewer would show it.

    It is rotated as its EXIF data says, transparent parts become white, and 16 bits per channel become 8.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):
        picture = Image.fromarray((np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8))
    if picture.has_transparency_data:
        transparent = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", transparent.size, "white"), transparent)
    picture = picture.convert("L" if channels == 1 else "RGB")
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(picture).reshape(height, width, channels).transpose(2, 0, 1)


def require_pillow() -> Any:
    """Return Pillow's module `Image`, or say how to install Pillow."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError('Reading pictures needs Pillow. Install it with: pip install "spacecl[data]"') from error
    return Image
