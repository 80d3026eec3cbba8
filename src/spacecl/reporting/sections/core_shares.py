"""The paper's Figure S4: how much the first task's filters explain of later tasks, and how much new filters add."""

from __future__ import annotations

from collections.abc import Sequence

from ..arms import Arm
from ..figures import Figure, Panel, Series
from ..page import Section
from .layers import group_analysed_layers, name_group
from .values import make_value_tables


def make_core_section(arms: Sequence[Arm]) -> Section:
    figures = [
        Figure(
            "core-and-residual" if number == 1 else f"core-and-residual-{number}",
            f"Variance explained by the first core and by the residual: {arm.label}",
            [_make_panel(arm, layers) for layers in group_analysed_layers(arm)],
            folded=number > 1,
        )
        for number, arm in enumerate(arms, 1)
    ]
    note = (
        "Share of the variance of a layer's activations, after a task has been learned at full width, that the channels of "
        "the first task's network explain, and the share that all other channels of the task's network add (the paper's "
        "Figure S4). The rest is lost to the threshold. High first bars mean that the layer's features serve every task."
    )
    title = "Variance explained by the first core and by each task's filters"
    return Section("core", title, [note], figures, make_value_tables(figures))


def _make_panel(arm: Arm, layers: Sequence[str]) -> Panel:
    layer = layers[0]
    core = arm.mean_by_task(lambda result, n: (result["tasks"][n]["spectrum"] or {})[layer]["first_core"])
    total = arm.mean_by_task(lambda result, n: (result["tasks"][n]["spectrum"] or {})[layer]["kept"])
    rest = [max(0.0, together - first) for first, together in zip(core, total)]
    x = range(1, len(core) + 1)
    core_tips = [f"{layer}, {task}: the first core explains {share:.1%}" for task, share in zip(arm.tasks, core)]
    rest_tips = [f"{layer}, {task}: filters beyond the first core explain {share:.1%}" for task, share in zip(arm.tasks, rest)]
    series = [
        Series("the first task's core", x, core, core_tips, 0, "bar"),
        Series("residual: filters kept beyond it", x, rest, rest_tips, 1, "bar", base=core),
    ]
    return Panel(name_group(layers), "task", "variance explained", series, integer_ticks=True, percent=True, floor=0)
