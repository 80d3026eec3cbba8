"""Write the table of docs/models.md: `python tests/zoo/table.py`, with names of models to measure only those.

Takes about a quarter of an hour on one core. What was measured before stays, for models that are not named.
"""

import json
import math
import sys
import time
import warnings
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from zoo_models import ZOO

from spacecl.errors import SpaceError, first_line
from spacecl.structure.channels import Channels
from spacecl.structure.validate import validate_model

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
MEASURED = Path(__file__).parent / "measured.json"
BEGIN, END = "<!-- zoo: generated -->", "<!-- end of zoo -->"


@dataclass(frozen=True)
class Measurement:
    """What the table says about a model."""

    parameters: int
    seconds: float  # of CPU time, for tracing and validation
    share: float | None = None  # of the backbone's parameters that is left when every group is halved; None: refused
    reason: str = ""


def half_width_share(channels: Channels, parameters: Collection[str]) -> float:
    """The share of the backbone's parameters that is left when every group of units is halved, heads left out."""
    keep = channels.all_units()
    for group in channels.groups:
        keep[group.units[(len(group.units) + 1) // 2 :]] = False
    backbone = [name for name in channels.shapes if name in parameters and not channels.is_head(name)]
    left = sum(math.prod(channels.narrowed_shape(name, keep)) for name in backbone)
    return left / sum(math.prod(channels.shapes[name]) for name in backbone)


def measure(name: str) -> Measurement:
    torch.manual_seed(0)
    model, example = ZOO[name].make()
    parameters, start = sum(parameter.numel() for parameter in model.parameters()), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            channels = validate_model(model, example).channels
        except SpaceError as error:
            return Measurement(parameters, time.process_time() - start, None, first_line(error))
    return Measurement(parameters, time.process_time() - start, half_width_share(channels, dict(model.named_parameters())))


def format_table(measured: dict[str, Measurement]) -> str:
    admitted = sum(result.share is not None for result in measured.values())
    lines = [f"{admitted} of {len(measured)} models are admitted as they are.", ""]
    lines += ["| model | parameters | admitted | left at half width | seconds |", "|---|---|---|---|---|"]
    for name, result in measured.items():
        share = "" if result.share is None else f"{result.share:.2f}"
        admitted_text = "yes" if result.share is not None else "no"
        lines.append(f"| {name} | {result.parameters / 1e6:.2f} M | {admitted_text} | {share} | {result.seconds:.1f} |")
    return "\n".join(lines)


def main(patterns: list[str]) -> None:
    torch.set_num_threads(1)
    before = {k: Measurement(**v) for k, v in json.loads(MEASURED.read_text()).items()} if MEASURED.exists() else {}
    for name in ZOO:
        if (not patterns and name in before) or (patterns and not any(pattern in name for pattern in patterns)):
            continue
        before[name] = result = measure(name)
        print(f"{name}: {result}", flush=True)
        MEASURED.write_text(json.dumps({name: asdict(before[name]) for name in ZOO if name in before}, indent=1) + "\n")
    text = PAGE.read_text()
    first, last = text.index(BEGIN) + len(BEGIN), text.index(END)
    table = format_table({name: before[name] for name in ZOO if name in before})
    PAGE.write_text(f"{text[:first]}\n\n{table}\n\n{text[last:]}")


if __name__ == "__main__":
    main(sys.argv[1:])
