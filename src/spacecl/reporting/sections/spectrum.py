"""The spectra of SPACE's analysis: how many filters other thresholds would have taken."""

from __future__ import annotations

from collections.abc import Sequence

from ...runs.result import Spectrum, TaskResult
from ..arms import Arm
from ..figures import Figure, Panel, Series
from ..page import Section, Table
from .layers import group_analysed_layers, name_group


def make_spectrum_section(arms: Sequence[Arm]) -> Section:
    notes = [
        "Share of the residual's variance that the core and n new filters explain, task by task, for the first seed. The "
        "dotted line, if all tasks have the same threshold, is that; where a curve crosses it is the number of filters that "
        "the task got. The residual is "
        "all channels outside the core.",
        "The table shows how many filters a layer would have had after the task with another threshold, all else the same.",
    ]
    endings = ["", *(f"-{number}" for number in range(2, len(arms) + 1))]
    figures = [_draw_spectra(arm, ending) for arm, ending in zip(arms, endings)]
    tables = [_make_table(arm, ending) for arm, ending in zip(arms, endings)]
    return Section("spectrum", "Filters at other thresholds", notes, figures, tables)


def _draw_spectra(arm: Arm, ending: str) -> Figure:
    result = arm.results[0]
    panels = [_make_panel(layers, result["tasks"]) for layers in group_analysed_layers(arm)]
    return Figure(f"spectrum{ending}", f"Spectrum per layer: {arm.label}, seed {result['seed']}", panels, folded=bool(ending))


def _make_panel(layers: Sequence[str], tasks: Sequence[TaskResult]) -> Panel:
    layer, series = layers[0], []
    for number, task in enumerate(tasks):
        spectrum = _get_spectrum(task, layer)
        tips = [
            f"{layer}, {task['name']}: {count} new filters with the core's {spectrum['core']} explain {share:.1%}"
            for count, share in zip(spectrum["filters"], spectrum["explained"])
        ]
        series.append(Series(task["name"], spectrum["filters"], spectrum["explained"], tips, number))
    thresholds = {_get_spectrum(task, layer)["threshold"] for task in tasks}
    return Panel(
        name_group(layers),
        "new filters",
        "variance explained",
        series,
        levels=[(threshold, f"threshold {threshold:g}") for threshold in thresholds] if len(thresholds) == 1 else [],
        percent=True,
        saturating=True,
    )


def _make_table(arm: Arm, ending: str) -> Table:
    """The filters of each layer after each task, with the run's threshold and with others."""
    rows, thresholds = [], dict[str, None]()
    for layers in group_analysed_layers(arm):
        for task in arm.results[0]["tasks"]:
            spectrum = _get_spectrum(task, layers[0])
            core, filters = spectrum["core"], {name: spectrum["core"] + n for name, n in spectrum["needed"].items()}
            thresholds |= dict.fromkeys(filters)
            counts = [core, f"{spectrum['threshold']:g}", core + spectrum["new"], *filters.values()]
            rows.append([name_group(layers), task["name"], *map(str, counts)])
    titles = ["layer", "task", "core", "threshold", "filters", *(f"at {float(threshold):g}" for threshold in thresholds)]
    return Table(f"thresholds{ending}", f"thresholds{ending}".replace("-", " "), titles, rows, folded=True)


def _get_spectrum(task: TaskResult, layer: str) -> Spectrum:
    return (task["spectrum"] or {})[layer]
