"""What a comparison opens with: what came out, in a sentence or two."""

from __future__ import annotations

from collections.abc import Callable

from ..progress import format_score
from ..runs.result import Result
from .arms import REFERENCES, Arm, Comparison

_NOTHING = 5e-4  # forgetting that is not worth a word


def summarize(comparison: Comparison) -> str:
    """Say which methods have the best score and the smallest network, and what the reference methods have."""
    own = [arm for arm in comparison.arms if arm.method not in REFERENCES] or list(comparison.arms)
    metric = comparison.metric
    best, smallest = max(own, key=_get_score), min(own, key=_get_size)
    if len(own) == 1:
        text = f"{best.label} has {metric} {_describe_score(best, metric)} with {_get_size(best):.3f} of the network"
        text += " and forgets nothing" if _get_forgetting(best) < _NOTHING else ""
    elif best is smallest:
        text = (
            f"Of {len(own)} methods, {best.label} has the highest {metric}, {_describe_score(best, metric)}, and the smallest "
            f"network, {_get_size(best):.3f} of the full one"
        )
    else:
        text = (
            f"Of {len(own)} methods, {best.label} has the highest {metric}, {_describe_score(best, metric)} with "
            f"{_get_size(best):.3f} of the network, and {smallest.label} the smallest network, {_get_size(smallest):.3f}, "
            f"with {_describe_score(smallest, metric)}"
        )
    references = [arm for arm in comparison.arms if arm.method in REFERENCES and arm not in own]
    compared = [f"{REFERENCES[arm.method]} {_describe_score(arm, metric)}" for arm in references]
    return ". ".join([text, *compared]) + "."


def _describe_score(arm: Arm, metric: str) -> str:
    deviation = arm.deviation(lambda result: result["average_score"])
    return format_score(_get_score(arm), metric) + (f" ± {format_score(deviation, metric)}" if deviation is not None else "")


def _mean(value: Callable[[Result], float]) -> Callable[[Arm], float]:
    return lambda arm: arm.mean(value) or 0.0


_get_score = _mean(lambda result: result["average_score"])
_get_size = _mean(lambda result: result["size"])
_get_forgetting = _mean(lambda result: result["forgetting"])
