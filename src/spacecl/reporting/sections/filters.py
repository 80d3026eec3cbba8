"""Filters per layer and task: how much of each layer the tasks use."""

from __future__ import annotations

from collections.abc import Sequence

from ...runs.result import Spectrum
from ..arms import Arm
from ..figures import Figure, Panel, Series
from ..page import Section
from .layers import group_narrowed_layers, list_analysed_layers, name_group
from .values import make_value_tables

TITLE = "Filters per layer and task"


def make_filters_section(arms: Sequence[Arm]) -> Section:
    notes = [
        "Output channels of each layer that the tasks so far use together; the dotted line is the layer's full width. "
        "Methods that do not narrow layers use all channels."
    ]
    narrowing = [arm for arm in arms if arm.method in ("space", "hat") and _has_used(arm)]
    if not narrowing:
        return Section("filters", TITLE, [*notes, "No method here narrows layers."])
    without_projection = any(arm.method == "space" and not arm.config.options["projection"] for arm in arms)
    show_unprojected = not without_projection and any(list_analysed_layers(arm) for arm in narrowing)
    if show_unprojected:
        notes.append(
            "Dashed: the filters that SPACE would use if it did not subtract what the core explains, counted on the same "
            "activations, task by task (spacecl compare --preset projection learns the tasks both ways)."
        )
    panels = [_make_panel(layers, narrowing, show_unprojected) for layers in group_narrowed_layers(narrowing)]
    figures = [Figure("filters", TITLE, panels)] if panels else []
    return Section("filters", TITLE, notes, figures, make_value_tables(figures))


def _make_panel(layers: Sequence[str], arms: Sequence[Arm], show_unprojected: bool) -> Panel:
    layer, series, full_widths = layers[0], [], set()
    for arm in arms:
        widths = arm.results[0]["network"]["widths"]
        if layer not in widths:  # another network
            continue
        full_widths.add(widths[layer])
        used = arm.mean_by_task(lambda result, n: (result["tasks"][n]["used"] or {}).get(layer))
        series.append(_make_series(arm, arm.label, layer, used))
        if show_unprojected and layer in list_analysed_layers(arm):
            unprojected = arm.mean_by_task(lambda result, n: _count_unprojected((result["tasks"][n]["spectrum"] or {})[layer]))
            series.append(_make_series(arm, f"{arm.label}, not subtracted", layer, unprojected, dashed=True))
    levels = [(width, f"all {width}") for width in sorted(full_widths)]
    return Panel(name_group(layers), "task", "filters", series, integer_ticks=True, levels=levels, floor=0)


def _make_series(arm: Arm, label: str, layer: str, counts: Sequence[float], dashed: bool = False) -> Series:
    tips = [f"{label}, {layer}, {task}: {count:g} filters" for task, count in zip(arm.tasks, counts)]
    return Series(label, range(1, len(counts) + 1), counts, tips, arm.look, dashed=dashed)


def _count_unprojected(spectrum: Spectrum) -> int:
    """The filters that a layer would have after a task without projection-subtraction."""
    return spectrum["core"] + spectrum["new_without_projection"]


def _has_used(arm: Arm) -> bool:
    return all(task["used"] is not None for result in arm.results for task in result["tasks"])
