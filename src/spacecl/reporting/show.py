"""One page about one run: its network with the filters of every task, what tasks reuse, and for pictures what it sees."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import disk
from ..data.sources import find_absent
from ..data.task import Task
from ..data.task_data import open_data
from ..errors import SpaceError
from ..learner import Learner
from ..learning.method import name_method
from ..learning.picture import draw_key, draw_network, picture_core
from ..learning.record import TaskRecord
from ..progress import format_score
from ..runs.config import find_benchmark
from ..runs.open_run import OpenRun
from ..runs.result import TaskResult, read_result
from ..structure.calling import select_rows
from .html import make_environment
from .text import DASH

EXAMPLES = 8  # right ones and wrong ones, of each task
_SEEN = 500  # test examples that are looked through for them
_FILTERS = 64


@dataclass(frozen=True)
class Picture:
    """A picture as a data URI, with a text."""

    source: str
    text: str


@dataclass(frozen=True)
class TaskPart:
    """What the page has of one task; drawings are HTML."""

    name: str
    text: str
    network: Any
    layer: str
    filters: Sequence[Picture]
    right: Sequence[Picture]
    wrong: Sequence[Picture]


@dataclass(frozen=True)
class Show:
    """The page; drawings are HTML."""

    title: str
    lead: str
    key: Any
    network: Any
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    tasks: Sequence[TaskPart]


def write_show(
    run: OpenRun, data: str | os.PathLike[str] | None = None, out: str | os.PathLike[str] | None = None
) -> tuple[Path, list[str]]:
    """Write the page, by default `show.html` in the run's folder; return its path, and notes on what it lacks."""
    environment = make_environment()
    show = make_show(run, data)
    file = run.folder / "show.html" if out is None else Path(out)
    disk.make_folder(file.parent)
    disk.write_file(file, environment.get_template("show.html.j2").render(show=show, colours=_colours()).encode())
    return file, list(show.notes)


def make_show(run: OpenRun, data: str | os.PathLike[str] | None = None) -> Show:
    """Collect what the page shows. Test examples are left out if the data are not there, and a note says so."""
    from markupsafe import Markup

    learner, notes = run.learner(), []
    names, core = list(learner.tasks), learner.core
    results = _read_results(run)
    streams: dict[str, Task] = {}
    if any(record.pictures is not None for record in learner.records.values()):
        try:
            absent = [] if run.config is None else find_absent(find_benchmark(run.config.benchmark).datasets, data)
            if absent:  # a page about a finished run downloads nothing
                notes.append(f"There are no test examples here: name the folder of {' and '.join(absent)} with --data.")
            else:
                streams = run.tasks(data)
        except (SpaceError, OSError) as error:
            notes.append(f"There are no test examples here, because their data could not be read: {error}")
    if not any("measured" in result["costs"]["network"] for result in results.values()):
        notes.append("Latency was not measured in this run.")
    reused = [_count_reused(learner, number) for number in range(len(names))]
    titles = ["task", "score", "filters", "reused", "parameters", "kB", "multiply-adds", "one row, ms", "dense, ms"]
    rows = [
        _make_row(learner.records[name], results.get(name), count, kept, _count_bytes(learner, name))
        for name, (count, kept) in zip(names, reused)
    ]
    parts = [
        TaskPart(
            name,
            _describe_reuse(number, *reused[number]),
            Markup(draw_network(picture_core(core, number), names)),
            *_draw_filters(learner, name),
            *_find_examples(learner, name, streams.get(name)),
        )
        for number, name in enumerate(names)
    ]
    what = run.config.benchmark if run.config is not None else run.folder.name
    count = "1 task" if len(names) == 1 else f"{len(names)} tasks"
    lead = f"{name_method(learner.method)}: {count} in {core.size():.1%} of the network."
    return Show(
        what, lead, Markup(draw_key(names)), Markup(draw_network(picture_core(core), names)), titles, rows, notes, parts
    )


def _colours() -> Any:
    from .drawing import COLOUR_VARIABLES

    return COLOUR_VARIABLES


def _read_results(run: OpenRun) -> dict[str, TaskResult]:
    """The results of the tasks by name; none if the run is not finished."""
    file = run.folder / "result.json"
    if run.config is None or not file.exists():
        return {}
    return {task["name"]: task for task in read_result(file)["tasks"]}


def _count_reused(learner: Learner, number: int) -> tuple[int, int]:
    """How many filters a task's network has, without its head, and how many of them earlier tasks have, too."""
    owners = [owner for layer in picture_core(learner.core, number) for owner in layer.owners if owner >= 0]
    return len(owners), sum(owner < number for owner in owners)


def _describe_reuse(number: int, count: int, reused: int) -> str:
    if number == 0:
        return f"The first task: all of its {count} filters are its own."
    return f"Of its {count} filters, {reused} ({reused / max(1, count):.0%}) are those of earlier tasks, in their colors."


def _count_bytes(learner: Learner, name: str) -> int:
    network = learner.subnet(name)
    return sum(tensor.nbytes for tensor in [*network.parameters(), *network.buffers()])


def _make_row(record: TaskRecord, result: TaskResult | None, count: int, reused: int, size: int) -> list[str]:
    score = format_score(record.score if result is None else result["score"], record.metric)
    share = f"{reused} ({reused / max(1, count):.0%})"
    row = [record.name, score, f"{count}", share, f"{record.parameters:,}", f"{size / 1e3:,.1f}"]
    if result is None:
        return [*row, DASH, DASH, DASH]
    return [*row, f"{result['multiply_adds']:,}", *(_format_latency(result["costs"][which]) for which in ("network", "dense"))]  # type: ignore[literal-required]


def _format_latency(costs: Any) -> str:
    latency = costs.get("measured", {}).get("latency", {}).get("1")
    return DASH if latency is None else f"{1e3 * latency['median']:.3f}"


def _draw_filters(learner: Learner, name: str) -> tuple[str, list[Picture]]:
    """The first layer's name and its filters as pictures, where these read pictures of one or three channels."""
    network, record = learner.subnet(name), learner.records[name]
    layer = next(iter(record.widths), "")
    module = dict(network.named_modules()).get(layer)
    if record.pictures is None or not isinstance(module, torch.nn.Conv2d) or module.in_channels not in (1, 3):
        return "", []
    filters = module.weight.detach()[:_FILTERS]
    return layer, [Picture(_to_uri(one), f"filter {number}") for number, one in enumerate(filters, 1)]


def _find_examples(learner: Learner, name: str, stream: Task | None) -> tuple[list[Picture], list[Picture]]:
    """Pictures of the task's test data that it gets right, and wrong ones."""
    record, seen = learner.records[name], 0
    right: list[Picture] = []
    wrong: list[Picture] = []
    if stream is None or record.pictures is None or record.target_kind != "classes" or record.pictures["order"] is not None:
        return [], []
    data, labels = open_data(stream, "test"), record.class_labels
    for x, y in data.batches(100):
        x = data.finish(x)
        answers = learner.predict(x, name)
        for row, (answer, truth) in enumerate(zip(answers.tolist(), y.tolist())):  # type: ignore[union-attr]
            chosen = right if answer == truth else wrong
            if len(chosen) < EXAMPLES:
                text = labels[truth] if answer == truth else f"{labels[answer]}, not {labels[truth]}"
                chosen.append(Picture(_to_uri(select_rows(x, slice(row, row + 1))[0]), text))  # type: ignore[index]
        seen += len(y)
        if seen >= _SEEN or len(right) == len(wrong) == EXAMPLES:
            break
    return right, wrong


def _to_uri(pixels: Tensor) -> str:
    """A tensor of one or three channels as a PNG in a data URI, from its darkest value to its brightest."""
    from PIL import Image

    low, high = pixels.min(), pixels.max()
    scaled = ((pixels - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)
    array = scaled.movedim(0, -1).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
