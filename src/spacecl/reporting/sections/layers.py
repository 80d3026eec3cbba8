"""Layers that sections show together because they are tied."""

from __future__ import annotations

from collections.abc import Sequence

from ..arms import Arm


def was_analysed(arm: Arm) -> bool:
    """Whether an arm's results have spectra: SPACE's do, unless an early version wrote them."""
    return bool(list_analysed_layers(arm))


def list_analysed_layers(arm: Arm) -> list[str]:
    """The layers that the analysis saw in every task and run."""
    spectra = [task["spectrum"] or {} for result in arm.results for task in result["tasks"]]
    return [layer for layer in spectra[0] if all(layer in spectrum for spectrum in spectra)]


def group_analysed_layers(arm: Arm) -> list[list[str]]:
    """The layers that the analysis saw; those with the same spectra, which are tied, in one group."""
    groups: dict[str, list[str]] = {}
    for layer in list_analysed_layers(arm):
        spectra = [(task["spectrum"] or {})[layer] for task in arm.results[0]["tasks"]]
        groups.setdefault(str(spectra), []).append(layer)
    return list(groups.values())


def group_narrowed_layers(arms: Sequence[Arm]) -> list[list[str]]:
    """The layers that some task narrows; those with the same widths everywhere in one group."""
    results = [result for arm in arms for result in arm.results]
    groups: dict[str, list[str]] = {}
    for layer in dict.fromkeys(layer for result in results for layer in result["network"]["widths"]):
        used = [[(task["used"] or {}).get(layer) for task in result["tasks"]] for result in results]
        full = [result["network"]["widths"].get(layer) for result in results]
        if any(width != full_width for widths, full_width in zip(used, full) for width in widths):
            groups.setdefault(str(used), []).append(layer)
    return list(groups.values())


def name_group(layers: Sequence[str]) -> str:
    """A title for a panel."""
    return layers[0] if len(layers) == 1 else f"{layers[0]} + {len(layers) - 1} tied"
