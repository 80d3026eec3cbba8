"""The sections of the page, one file each. `compose` has their order."""

from __future__ import annotations

from ..arms import Comparison
from ..page import Section
from .accuracy import make_accuracy_section, make_matrix_section
from .commands import make_commands_section
from .core_shares import make_core_section
from .filters import make_filters_section
from .inference_costs import make_costs_section
from .layers import was_analysed
from .spectrum import make_spectrum_section
from .summary import make_summary_section


def compose(comparison: Comparison) -> list[Section]:
    """All sections on one benchmark, in the page's order."""
    arms, split = comparison.arms, comparison.split.capitalize()
    analysed = [arm for arm in arms if was_analysed(arm)]
    return [
        make_summary_section(comparison),
        make_accuracy_section(arms, split, comparison.metric),
        make_matrix_section(arms, split, comparison.metric),
        make_filters_section(arms),
        make_costs_section(arms),
        *([make_core_section(analysed), make_spectrum_section(analysed)] if analysed else []),
        make_commands_section(arms),
    ]
