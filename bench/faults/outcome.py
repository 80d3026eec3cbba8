"""The outcome of a series of injected faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Counts per kind of fault and verdict, and a sentence for every failure."""

    part: str
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # (kind of fault, verdict) -> cases
    failures: list[str] = field(default_factory=list)  # what failed, and how to reproduce it
    peak_memory: int = 0  # bytes, of the largest process
    longest: float = 0.0  # seconds of the slowest case
    notes: dict[str, float] = field(default_factory=dict)  # further figures, such as requests per second

    @property
    def tried(self) -> int:
        return sum(self.counts.values())

    def add(self, kind: str, verdict: str, failure: str | None = None) -> None:
        self.counts[kind, verdict] += 1
        if failure is not None:
            self.failures.append(f"{kind}: {failure}")

    def join(self, other: Outcome) -> Outcome:
        """Add the cases of another outcome to this one, and return it."""
        self.counts.update(other.counts)
        self.failures += other.failures
        self.peak_memory = max(self.peak_memory, other.peak_memory)
        self.longest = max(self.longest, other.longest)
        self.notes |= other.notes
        return self


Part = Callable[[int, int], Outcome]  # (number of cases, seed) -> outcome


def damage(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Damage bytes in one of the ways that disks, networks and editors do; return the way, and the result."""
    how = draw.choice(("flip", "cut", "zero", "insert", "delete", "repeat", "swap", "noise", "empty"))
    if not data or how == "empty":
        return "empty", b""
    at = draw.randrange(len(data))
    size = min(len(data) - at, 2 ** draw.randrange(0, 12))
    if how == "flip":
        changed = bytearray(data)
        for _ in range(draw.choice((1, 1, 1, 4, 32))):
            changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        return how, bytes(changed)
    if how == "swap":
        other = draw.randrange(len(data))
        first, second = sorted((at, other))
        size = min(size, second - first, len(data) - second)
        return how, (
            data[:first]
            + data[second : second + size]
            + data[first + size : second]
            + data[first : first + size]
            + data[second + size :]
        )
    new = {
        "cut": data[:at],
        "zero": data[:at] + bytes(size) + data[at + size :],
        "insert": data[:at] + draw.randbytes(size) + data[at:],
        "delete": data[:at] + data[at + size :],
        "repeat": data[: at + size] + data[at:],
        "noise": data[:at] + draw.randbytes(size) + data[at + size :],
    }
    return how, new[how]
