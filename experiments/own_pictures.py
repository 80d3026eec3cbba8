"""Folders of pictures as users have them, learned with `spacecl run FOLDER --method METHOD` and no other option.

    python experiments/own_pictures.py --data DIR [--out DIR] [--seeds 0] [--methods space,stl,packnet]

Writes four folders of pictures for each seed: letters (from notMNIST), signs (GTSRB), photos (CIFAR-10 and CIFAR-100) and
drawings (made here, without data). Each has three tasks with a folder per class, in train/ and test/. Then runs every method on
every folder, and prints a table for each. The same command resumes; finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from rows import Row, format_table, parse_names, parse_seeds

from spacecl import SpaceWarning
from spacecl.data.sources import load
from spacecl.errors import TrainingError
from spacecl.runs.methods import METHOD_ORDER
from spacecl.runs.resolve import resolve
from spacecl.runs.run import run

Classes = tuple[str, ...]
NAMES = {"space": "SPACE", "stl": "STL", "packnet": "PackNet"}


@dataclass(frozen=True)
class PictureSet:
    """A folder of pictures to write: the classes of each task, and how many pictures of a class there are."""

    train: int
    test: int
    tasks: Mapping[str, tuple[str, Classes]]  # of each task the dataset, or "drawn", and its classes


SETS = {
    "letters": PictureSet(
        300,
        500,
        {f"{number}-{text.lower()}": ("notmnist", tuple(text)) for number, text in enumerate(("ABC", "DEF", "GHI"), 1)},
    ),
    "signs": PictureSet(
        40,
        50,
        {
            "1-speed": ("gtsrb", ("1", "2", "4", "7")),  # 30, 50, 70 and 100 km/h
            "2-priority": ("gtsrb", ("11", "12", "13", "14")),  # at the next crossing, on this road, yield, stop
            "3-direction": ("gtsrb", ("33", "34", "35", "38")),  # right, left, ahead, keep right
        },
    ),
    "photos": PictureSet(
        100,
        500,
        {
            "1-pets": ("cifar10", ("cat", "dog")),
            "2-vehicles": ("cifar10", ("automobile", "airplane")),
            "3-fruit": ("cifar100", ("apple", "orange")),
        },
    ),
    "drawings": PictureSet(
        40,
        100,
        {
            "1-shape": ("drawn", ("circle", "square")),
            "2-stripes": ("drawn", ("horizontal", "vertical")),
            "3-size": ("drawn", ("large", "small")),
        },
    ),
}


# -- pictures ----------------------------------------------------------------------------------------------------------


def write_pictures(folder: Path, pictures: PictureSet, data: str | None, seed: int) -> None:
    """Write a folder of pictures, which appears when it is complete. One that is there already is left as it is."""
    if folder.exists():
        return
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    for number, (task, (source, classes)) in enumerate(pictures.tasks.items()):
        for label, name in enumerate(classes):
            generator = np.random.default_rng([seed, number, label])
            images = choose_images(source, name, pictures, data, generator)
            for row, image in enumerate(images):
                part = "train" if row < pictures.train else "test"
                file = unfinished / task / part / name / f"{row:04}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                image.save(file)
    unfinished.rename(folder)


def choose_images(
    source: str, name: str, pictures: PictureSet, data: str | None, generator: np.random.Generator
) -> Iterator[Image.Image]:
    """Yield the pictures of a class at random, none twice: first those to train on, then those to test on."""
    count = pictures.train + pictures.test
    if source == "drawn":
        yield from (draw(name, generator) for _ in range(count))
        return
    dataset = load(source, data)
    label = dataset.classes.index(name)
    pixels = np.concatenate([split.pixels[split.labels == label] for split in (dataset.train, dataset.test)])
    if len(pixels) < count:
        raise SystemExit(f"{source} has {len(pixels)} pictures of {name}; {count} are needed.")
    for row in generator.permutation(len(pixels))[:count]:
        yield Image.fromarray(pixels[row].transpose(1, 2, 0).squeeze())


def draw(name: str, generator: np.random.Generator, side: int = 48) -> Image.Image:
    """Draw a picture of a class in two random colors, with noise: a shape, stripes, or a shape that is large or small."""
    foreground, background = draw_colors(generator)
    picture = Image.new("RGB", (side, side), background)
    brush = ImageDraw.Draw(picture)
    if name in ("horizontal", "vertical"):
        width, start = int(generator.integers(3, 8)), int(generator.integers(0, 16))
        for offset in range(start - 16, side, 2 * width):
            box = (0, offset, side, offset + width - 1) if name == "horizontal" else (offset, 0, offset + width - 1, side)
            brush.rectangle(box, foreground)
    else:
        low, high = {"large": (26, 40), "small": (8, 18)}.get(name, (12, 36))
        size = generator.integers(low, high)
        left, top = generator.integers(0, side - size, 2)
        is_round = generator.random() < 0.5 if name in ("large", "small") else name == "circle"
        (brush.ellipse if is_round else brush.rectangle)((left, top, left + size, top + size), foreground)
    noise = generator.normal(0, 20, (side, side, 3))
    return Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8))


def draw_colors(generator: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw two colors that can be told apart."""
    while True:
        colors = generator.integers(0, 256, (2, 3))
        if np.abs(colors[0] - colors[1]).sum() > 150:
            return tuple(map(int, colors[0])), tuple(map(int, colors[1]))


# -- runs --------------------------------------------------------------------------------------------------------------


def run_method(pictures: Path, method: str, seed: int, out: Path) -> Row:
    """Do what `spacecl run PICTURES --method METHOD --seed SEED --out OUT` does, unless it is done."""
    config = resolve({"benchmark": str(pictures), "method": method, "seed": seed})
    result = run(config, out, progress=False, print_line=lambda text: print(text, file=sys.stderr, flush=True))
    return Row(
        NAMES.get(method, method),
        seed,
        {task["name"]: task["accuracy"] for task in result["tasks"]},
        [task["size_after"] for task in result["tasks"]],
        [sum(task["seconds"].values()) for task in result["tasks"]],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/own-pictures"), help="for pictures and runs (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=parse_seeds, default="0", help="of pictures and of learning, such as 0,1,2")
    parser.add_argument("--methods", type=parse_names(METHOD_ORDER), default="space,stl,packnet", help="default: %(default)s")
    parser.add_argument("--sets", type=parse_names(SETS), default=",".join(SETS), help="default: %(default)s")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", SpaceWarning)
    for name in options.sets:
        rows, failures = [], []
        for seed in options.seeds:
            folder = options.out / f"seed-{seed}"
            write_pictures(folder / name, SETS[name], options.data, seed)
            for method in options.methods:
                print(f"{name}, {method}, seed {seed}", file=sys.stderr, flush=True)
                try:
                    rows.append(run_method(folder / name, method, seed, folder / f"{name}-{method}"))
                except TrainingError as error:  # a result, too: the defaults do not work here
                    failures.append(f"{NAMES.get(method, method)}, seed {seed}: {error}")
        classes = len(next(iter(SETS[name].tasks.values()))[1])
        print(f"\n{name}: {len(SETS[name].tasks)} tasks of {classes} classes, {SETS[name].train} pictures a class\n")
        print(format_table(rows) if rows else "No run has finished.")
        print(*(f"\n{line}" for line in failures), sep="\n", flush=True)


if __name__ == "__main__":
    main()
