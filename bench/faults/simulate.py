"""Simulate power cuts at every moment of every sequence of writes, and check that the disk can be read afterwards.

The operations of `spacecl.disk` are recorded while it works on a real folder. For every prefix of them, the states in which a
file system may be after a power cut are made and read. The model is the worst that POSIX allows:

- data that was not synced is lost, torn, or replaced by zeros of the same length;
- names that were not synced (created, renamed, removed) are kept or lost one by one, in any combination; file systems
  that keep their order leave a prefix of them, which is one of these combinations;
- a file that was synced is lost nevertheless if its name was not.

Each state must be read as the old version or the new one, and the interrupted step must succeed when repeated.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from spacecl import disk
from spacecl.errors import SpaceError

from .recorder import ROOT, Operation, Tree, record

RANDOM = 6  # random states for every prefix, besides the extreme ones
MODES = ("lost", "kept", "cut", "zeros", "first half zeros")

Parts = dict[str, Any]  # the content of a folder, part by part; each part has its own version


@dataclass
class Machine:
    """A disk, and the data and names that have not reached it yet."""

    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytes] = field(default_factory=dict)
    names: list[tuple[tuple[int, str, int | None], ...]] = field(default_factory=list)  # not synced, in their order
    data: dict[int, bytes] = field(default_factory=dict)  # not synced: what the file would be

    @classmethod
    def from_tree(cls, tree: Tree) -> Machine:
        """Return a disk with the content of a tree, with the inodes of `Recorder`."""
        machine, inodes = cls(), {".": ROOT}
        for number, (path, content) in enumerate(tree.items(), 1):
            parent = inodes[os.path.dirname(path) or "."]
            machine.folders[parent][os.path.basename(path)] = inodes[path] = number
            if content is None:
                machine.folders[number] = {}
            else:
                machine.files[number] = content
        return machine

    def apply(self, operation: Operation) -> None:
        inode = operation.inode
        if operation.kind == "write":
            self.data[inode] = self.data.get(inode, self.files[inode]) + operation.data
        elif operation.kind == "truncate":
            self.data[inode] = self.data.get(inode, self.files[inode])[: operation.size]
        elif operation.kind == "sync":
            self.files[inode] = self.data.pop(inode, self.files[inode])
        elif operation.kind == "sync folder":
            rest = []
            for change in self.names:
                self._put(self.folders, [one for one in change if one[0] == inode])
                rest.append(tuple(one for one in change if one[0] != inode))
            self.names = [change for change in rest if change]
        else:
            if operation.kind == "create":
                self.files[inode] = b""
            elif operation.kind == "make folder":
                self.folders[inode] = {}
            self.names.append(operation.names)

    @staticmethod
    def _put(folders: dict[int, dict[str, int]], names: Sequence[tuple[int, str, int | None]]) -> None:
        for folder, name, inode in names:
            if inode is None:
                folders[folder].pop(name, None)
            else:
                folders[folder][name] = inode

    def cut(self, names: Sequence[int], modes: Mapping[int, str]) -> Tree:
        """Return what is there after a power cut that lost all unsynced names but these, and unsynced data as `modes` say."""
        folders = {inode: dict(entries) for inode, entries in self.folders.items()}
        for number in names:
            self._put(folders, self.names[number])
        tree: Tree = {}

        def walk(inode: int, path: str) -> None:
            for name, below in sorted(folders[inode].items()):
                full = f"{path}{name}"
                if below in folders:
                    tree[full] = None
                    walk(below, f"{full}/")
                else:
                    tree[full] = self._get_content(below, modes.get(below, "lost"))

        walk(ROOT, "")
        return tree

    def _get_content(self, inode: int, mode: str) -> bytes:
        old = self.files[inode]
        new = self.data.get(inode, old)
        if mode == "lost" or new == old:
            return old
        if mode == "kept" or len(new) <= len(old):
            return new
        half = len(old) + (len(new) - len(old)) // 2
        if mode == "cut":
            return new[:half]
        return old + bytes(len(new) - len(old)) if mode == "zeros" else old + bytes(half - len(old)) + new[half:]

    def list_states(self, draw: random.Random) -> Iterator[Tree]:
        """Yield the extreme states that a power cut may leave now, and some random ones."""
        count = len(self.names)
        everything = range(count)
        if count <= 5:
            subsets = [chosen for size in range(count + 1) for chosen in combinations(everything, size)]
        else:
            subsets = [tuple(range(size)) for size in range(count + 1)]
            subsets += [(one,) for one in everything] + [tuple(n for n in everything if n != one) for one in everything]
        for names in subsets:
            for mode in MODES if self.data else MODES[:1]:
                yield self.cut(names, dict.fromkeys(self.data, mode))
        for _ in range(RANDOM):
            names = tuple(number for number in everything if draw.random() < 0.5)
            yield self.cut(names, {inode: draw.choice(MODES) for inode in self.data})


@dataclass(frozen=True)
class Scenario:
    """Steps that each write a new version, and how to read it."""

    name: str
    steps: tuple[Callable[[Path], None], ...]
    read: Callable[[Path], Parts]
    first: Callable[[Path], None] = lambda folder: None  # makes the content before the first step


@dataclass(frozen=True)
class Case:
    """One state after a power cut, and the versions as which it may be read."""

    scenario: Scenario
    tree: Tree
    old: Parts
    new: Parts
    step: int
    text: str


def make_cases(scenario: Scenario, seed: int, forget: Callable[[Operation], bool] = lambda operation: False) -> list[Case]:
    """Return all different states of a scenario. `forget` leaves out operations, to test that the simulation detects it."""
    draw, cases = random.Random(f"{scenario.name} {seed}"), []
    with make_workspace() as top:
        root = top / "recorded"
        root.mkdir()
        scenario.first(root)
        versions, ends = [scenario.read(root)], []
        with record(root) as recorder:
            for step in scenario.steps:
                step(root)
                ends.append(len(recorder.log))
                versions.append(scenario.read(root))
    machine, step, keys = Machine.from_tree(recorder.first), 0, set()
    for number in range(len(recorder.log) + 1):
        while step < len(ends) and number >= ends[step] and number > 0:
            step += 1
        after = recorder.log[number - 1].text if number else "nothing"
        for tree in machine.list_states(draw):
            key = (step, *tree.items())
            if key not in keys:
                keys.add(key)
                old, new = versions[step], versions[min(step + 1, len(ends))]
                cases.append(Case(scenario, tree, old, new, step, f"step {step + 1}, cut after operation {number}: {after}"))
        if number < len(recorder.log) and not forget(recorder.log[number]):
            machine.apply(recorder.log[number])
    return cases


def check(case: Case) -> str:
    """Read a state, repeat the interrupted step, and read again."""
    with make_workspace() as folder:
        write_tree(folder, case.tree)
        try:
            parts = case.scenario.read(folder)
        except SpaceError as error:
            raise AssertionError(f"it cannot be read: {error}") from error
        for part in case.old.keys() | case.new.keys() | parts.keys():
            if parts.get(part) not in (case.old.get(part), case.new.get(part)):
                raise AssertionError(f"{part} is neither the old version nor the new one: {str(parts.get(part))[:80]}")
        if case.step < len(case.scenario.steps):
            try:
                case.scenario.steps[case.step](folder)
                again = case.scenario.read(folder)
            except SpaceError as error:
                raise AssertionError(f"the step cannot be repeated: {error}") from error
            if again != case.new:
                raise AssertionError("the repeated step does not give the new version")
            left = [path.name for path in folder.rglob(f"*{disk.TEMPORARY}")]
            if left:
                raise AssertionError(f"the repeated step leaves {left}")
    return (
        "old and new are the same"
        if case.old == case.new
        else "old"
        if parts == case.old
        else "new"
        if parts == case.new
        else "both"
    )


def write_tree(folder: Path, tree: Tree) -> None:
    """Write a tree to a real folder."""
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


@contextmanager
def make_workspace() -> Iterator[Path]:
    """Give a temporary folder, in memory if possible, because thousands of states are synced to it."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder).absolute()
