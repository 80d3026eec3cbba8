"""Power cuts: what a disk may hold after one, at every moment of every sequence of writes, and whether it can be read.

The operations of `spacecl.disk` are recorded while it works on a real folder. For every prefix of them, the states that a
file system may leave are made and read. The model is the harshest that POSIX allows:

- data that was not synced is lost, torn, or replaced by zeros of the same length;
- names that were not synced (created, renamed, removed) are kept or lost one by one, in any combination; file systems
  that keep their order leave a prefix of them, which is one of these combinations;
- a file that was synced is lost all the same if its name was not.

Each state must be read as the version before or as the new one, and the interrupted step must succeed when done again.
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

RANDOM = 6  # random states for every prefix, beside the extreme ones
ROOT = 0  # the inode of the recorded folder
MODES = ("lost", "kept", "cut", "zeros", "first half zeros")

Tree = dict[str, bytes | None]  # path -> content, None for a folder
Parts = dict[str, Any]  # what a folder holds, part by part; each is a version of its own


@dataclass(frozen=True)
class Operation:
    """One primitive operation: on the data of a file, or on names."""

    kind: str
    text: str
    inode: int = ROOT
    names: tuple[tuple[int, str, int | None], ...] = ()  # (folder, name, what it names from now on)
    data: bytes = b""
    size: int = 0
    folder: bool = False


class Recorder(disk.System):
    """Does every operation and notes it, with inodes in place of paths."""

    def __init__(self, root: Path):
        self.root, self.log = root, list[Operation]()
        self.folders: dict[int, dict[str, int]] = {ROOT: {}}
        self.open_files: dict[int, int] = {}
        self.count = ROOT
        self.first = self._scan(root, ROOT)

    def _scan(self, folder: Path, inode: int) -> Tree:
        """What is there before the first operation is on the disk."""
        tree: Tree = {}
        for path in sorted(folder.iterdir()):
            self.count += 1
            self.folders[inode][path.name] = number = self.count
            tree[str(path.relative_to(self.root))] = None if path.is_dir() else path.read_bytes()
            if path.is_dir():
                self.folders[number] = {}
                tree |= self._scan(path, number)
        return tree

    def _place(self, path: Path) -> tuple[int, str]:
        inode = ROOT
        *parents, name = path.absolute().relative_to(self.root).parts
        for part in parents:
            inode = self.folders[inode][part]
        return inode, name

    def _change(self, kind: str, text: str, *names: tuple[int, str, int | None], **more: Any) -> None:
        for folder, name, inode in names:
            if inode is None:
                self.folders[folder].pop(name, None)
            else:
                self.folders[folder][name] = inode
        self.log.append(Operation(kind, text, names=names, **more))

    def open(self, file: Path, flags: int) -> int:
        new = not file.exists()
        descriptor = super().open(file, flags)
        folder, name = self._place(file)
        if new:
            self.count += 1
            self._change("create", f"create {name}", (folder, name, self.count), inode=self.count)
        self.open_files[descriptor] = self.folders[folder][name]
        return descriptor

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        del self.open_files[descriptor]

    def write(self, descriptor: int, data: Any) -> int:
        size = super().write(descriptor, data)
        inode = self.open_files[descriptor]
        self.log.append(Operation("write", f"write {size} bytes to {inode}", inode, data=bytes(data[:size])))
        return size

    def truncate(self, descriptor: int, size: int) -> None:
        super().truncate(descriptor, size)
        inode = self.open_files[descriptor]
        self.log.append(Operation("truncate", f"truncate {inode} to {size}", inode, size=size))

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        inode = self.open_files[descriptor]
        self.log.append(Operation("sync", f"sync {inode}", inode))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        (before, old), (after, new) = self._place(source), self._place(target)
        self._change("rename", f"rename {old} to {new}", (before, old, None), (after, new, self.folders[before][old]))

    def unlink(self, file: Path) -> None:
        super().unlink(file)
        folder, name = self._place(file)
        if name in self.folders[folder]:  # locks are not made here
            self._change("unlink", f"unlink {name}", (folder, name, None))

    def make_folder(self, folder: Path) -> None:
        super().make_folder(folder)
        parent, name = self._place(folder)
        self.count += 1
        self.folders[self.count] = {}
        self._change("make folder", f"make folder {name}", (parent, name, self.count), inode=self.count, folder=True)

    def remove_folder(self, folder: Path) -> None:
        super().remove_folder(folder)
        parent, name = self._place(folder)
        self._change("remove folder", f"remove folder {name}", (parent, name, None))

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        if folder.absolute() == self.root:
            inode = ROOT
        elif self.root in folder.absolute().parents:
            parent, name = self._place(folder)
            inode = self.folders[parent][name]
        else:
            return
        self.log.append(Operation("sync folder", f"sync folder {inode}", inode))


@contextmanager
def recorded(root: Path) -> Iterator[Recorder]:
    usual, disk.system = disk.system, Recorder(root.absolute())
    try:
        yield disk.system
    finally:
        disk.system = usual


@dataclass
class Machine:
    """A disk, and what has not reached it yet."""

    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytes] = field(default_factory=dict)
    names: list[tuple[tuple[int, str, int | None], ...]] = field(default_factory=list)  # not synced, in their order
    data: dict[int, bytes] = field(default_factory=dict)  # not synced: what the file would be

    @classmethod
    def holding(cls, tree: Tree) -> Machine:
        """A disk that holds a tree, numbered as `Recorder` numbers it."""
        found, inodes = cls(), {".": ROOT}
        for number, (path, content) in enumerate(tree.items(), 1):
            parent = inodes[os.path.dirname(path) or "."]
            found.folders[parent][os.path.basename(path)] = inodes[path] = number
            if content is None:
                found.folders[number] = {}
            else:
                found.files[number] = content
        return found

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
        """What is there after a power cut that lost all names but these, and unsynced data as `modes` say."""
        folders = {inode: dict(entries) for inode, entries in self.folders.items()}
        for number in names:
            self._put(folders, self.names[number])
        tree: Tree = {}

        def walk(inode: int, path: str) -> None:
            for name, below in sorted(folders[inode].items()):
                place = f"{path}{name}"
                if below in folders:
                    tree[place] = None
                    walk(below, f"{place}/")
                else:
                    tree[place] = self._content(below, modes.get(below, "lost"))

        walk(ROOT, "")
        return tree

    def _content(self, inode: int, mode: str) -> bytes:
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

    def states(self, draw: random.Random) -> Iterator[Tree]:
        """The extreme states that a power cut may leave now, and some random ones."""
        count = len(self.names)
        everything = range(count)
        if count <= 5:
            kept = [chosen for size in range(count + 1) for chosen in combinations(everything, size)]
        else:
            kept = [tuple(range(size)) for size in range(count + 1)]
            kept += [(one,) for one in everything] + [tuple(n for n in everything if n != one) for one in everything]
        for names in kept:
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
    first: Callable[[Path], None] = lambda folder: None  # what is there before, on the disk


@dataclass(frozen=True)
class Case:
    """One state after a power cut, and the versions that it may be read as."""

    scenario: Scenario
    tree: Tree
    old: Parts
    new: Parts
    step: int
    text: str


def cases_of(scenario: Scenario, seed: int, forget: Callable[[Operation], bool] = lambda operation: False) -> list[Case]:
    """Every different state of a scenario. `forget` leaves out operations, to see that the simulation finds what is missing."""
    draw, found = random.Random(f"{scenario.name} {seed}"), []
    with workspace() as top:
        root = top / "recorded"
        root.mkdir()
        scenario.first(root)
        versions, ends = [scenario.read(root)], []
        with recorded(root) as recorder:
            for step in scenario.steps:
                step(root)
                ends.append(len(recorder.log))
                versions.append(scenario.read(root))
    machine, step, seen = Machine.holding(recorder.first), 0, set()
    for number in range(len(recorder.log) + 1):
        while step < len(ends) and number >= ends[step] and number > 0:
            step += 1
        after = recorder.log[number - 1].text if number else "nothing"
        for tree in machine.states(draw):
            key = (step, *tree.items())
            if key not in seen:
                seen.add(key)
                old, new = versions[step], versions[min(step + 1, len(ends))]
                found.append(Case(scenario, tree, old, new, step, f"step {step + 1}, cut after operation {number}: {after}"))
        if number < len(recorder.log) and not forget(recorder.log[number]):
            machine.apply(recorder.log[number])
    return found


def check(case: Case) -> str:
    """Read a state, do the step that was interrupted again, and read once more."""
    with workspace() as folder:
        write_tree(folder, case.tree)
        try:
            found = case.scenario.read(folder)
        except SpaceError as error:
            raise AssertionError(f"it cannot be read: {error}") from error
        for part in case.old.keys() | case.new.keys() | found.keys():
            if found.get(part) not in (case.old.get(part), case.new.get(part)):
                raise AssertionError(f"{part} is neither the old version nor the new one: {str(found.get(part))[:80]}")
        if case.step < len(case.scenario.steps):
            try:
                case.scenario.steps[case.step](folder)
                again = case.scenario.read(folder)
            except SpaceError as error:
                raise AssertionError(f"it cannot be written again: {error}") from error
            if again != case.new:
                raise AssertionError("written again, it is not the new version")
            left = [path.name for path in folder.rglob(f"*{disk.TEMPORARY}")]
            if left:
                raise AssertionError(f"written again, it leaves {left}")
    return (
        "old and new are the same"
        if case.old == case.new
        else "old"
        if found == case.old
        else "new"
        if found == case.new
        else "both"
    )


def write_tree(folder: Path, tree: Tree) -> None:
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


@contextmanager
def workspace() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of states are synced to it."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder).absolute()
