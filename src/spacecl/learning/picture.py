"""Draw a network as HTML without a script: a strip for each layer, with the filters of each task in its colour."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from .core import Core
from .record import TaskRecord

FREE = -1  # the owner of a filter that no task has
ABSENT = -2  # of one that a task's network does not have
_SEPARATED = 80  # filters in a layer, up to which lines are drawn between them
_WIDTH, _HEIGHT = 640, 18


@dataclass(frozen=True)
class LayerPicture:
    """A layer: for each filter the number of the task that committed it first, FREE or ABSENT."""

    name: str
    owners: Sequence[int]

    @property
    def free(self) -> int:
        return sum(owner == FREE for owner in self.owners)

    @property
    def present(self) -> int:
        return sum(owner >= 0 for owner in self.owners)


def picture_core(core: Core, task: int | None = None) -> list[LayerPicture]:
    """The layers of all tasks together or, with `task`, of its network; filters keep their places."""
    channels = core.channels
    first = [FREE] * channels.units
    for number in reversed(range(len(core.tasks))):
        for unit in core.tasks[number].units.nonzero()[:, 0].tolist():
            first[unit] = number
    kept = None if task is None else core.tasks[task].units.tolist()
    fixed = FREE if not core.tasks else 0  # unprunable layers are committed by the first task

    def find_owner(unit: int) -> int:
        if unit < 0:
            return fixed
        return first[unit] if kept is None or kept[unit] else ABSENT

    return [
        LayerPicture(layer, [find_owner(unit) for unit in owner.tolist()])
        for layer, owner in channels.layers.items()
        if not channels.is_head(f"{layer}.weight")
    ]


def picture_record(record: TaskRecord) -> list[LayerPicture]:
    """The layers of a task's network as its record knows them: filters of earlier tasks (0), and new ones (1)."""
    layers = []
    for layer, width in record.widths.items():
        seen = record.spectrum.get(layer)
        new = seen.get("new", 0) if seen else 0
        layers.append(LayerPicture(layer, [0] * max(0, width - new) + [1] * min(new, width)))
    return layers


def draw_network(layers: Sequence[LayerPicture], labels: Sequence[str], colours: Mapping[int, str] | None = None) -> str:
    """Draw layers as HTML with inline SVG; every text is escaped. `labels` has the name of each owner, by number.

    `colours` are CSS colours by owner; by default each has one that can be read on light and on dark pages.
    """
    rows = "".join(_draw_layer(layer, labels, colours or {}) for layer in layers)
    return f'<table class="network" style="border-collapse:collapse;width:100%;max-width:54rem"><tbody>{rows}</tbody></table>'


def draw_key(labels: Sequence[str], free: bool = True) -> str:
    """The legend: the colour of every task, and grey for free filters."""
    entries = [(colour_of(number), label) for number, label in enumerate(labels)]
    entries += [(colour_of(FREE), "free")] if free else []
    return (
        '<p class="networkkey">'
        + " ".join(
            f'<span style="white-space:nowrap;margin-right:1em"><span style="display:inline-block;width:.8em;height:.8em;'
            f'background:{colour}"></span> {_to_text(label)}</span>'
            for colour, label in entries
        )
        + "</p>"
    )


def colour_of(owner: int) -> str:
    """The colour of a task: hues far apart for numbers near each other."""
    return "#8c959f55" if owner < 0 else f"hsl({(212 + 137.508 * owner) % 360:.0f} 65% 50%)"


def _draw_layer(layer: LayerPicture, labels: Sequence[str], colours: Mapping[int, str]) -> str:
    count = max(1, len(layer.owners))
    step, place, shapes = _WIDTH / count, 0, []
    for owner, group in groupby(layer.owners):
        length = len(list(group))
        if owner != ABSENT:
            label = "free" if owner == FREE else labels[owner]
            colour = colours.get(owner, colour_of(owner))
            shapes.append(
                f'<rect x="{place * step:.2f}" y="0" width="{length * step:.2f}" height="{_HEIGHT}" style="fill:{colour}">'
                f"<title>{_to_text(label)}: {length}</title></rect>"
            )
            if count <= _SEPARATED:
                lines = "".join(f"M{(place + number) * step:.2f} 0V{_HEIGHT}" for number in range(length + 1))
                shapes.append(f'<path d="{lines}" style="stroke:var(--back,#fff);stroke-width:1;fill:none"/>')
        place += length
    text = f"{layer.present} of {len(layer.owners)}"
    image = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{_to_text(layer.name)}: '
        f'{text} filters" style="width:100%;height:1.1em;display:block">{"".join(shapes)}</svg>'
    )
    return (
        f'<tr><th scope="row" style="text-align:left;padding-right:.8em;font-weight:600">{_to_text(layer.name)}</th>'
        f'<td style="width:100%">{image}</td><td style="white-space:nowrap;padding-left:.8em;text-align:right">{text}</td></tr>'
    )


def _to_text(text: str) -> str:
    """Text of users as HTML, without characters that pages cannot hold."""
    return escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text))


def show_learner(core: Core, records: Sequence[TaskRecord], method: str) -> str:
    """A learner as HTML for notebooks."""
    names = [record.name for record in records]
    title = f"{_to_text(method)}, {len(names)} {'task' if len(names) == 1 else 'tasks'}, {core.size():.1%} of the network used"
    rows = "".join(
        f"<tr><td>{_to_text(r.name)}</td><td>{_to_text(r.metric)} {r.score:.4f}</td><td>{r.parameters:,} parameters</td></tr>"
        for r in records
    )
    return f"<div><b>{title}</b>{draw_key(names)}{draw_network(picture_core(core), names)}<table>{rows}</table></div>"


def show_record(record: TaskRecord) -> str:
    """A task's record as HTML for notebooks."""
    title = f"{record.metric} {record.score:.4f} on validation data, {record.parameters:,} parameters"
    labels = ["filters that earlier tasks have, too", "new filters"]
    drawing = draw_network(picture_record(record), labels)
    return f"<div><b>{_to_text(record.name)}</b>: {_to_text(title)}{draw_key(labels, free=False)}{drawing}</div>"
