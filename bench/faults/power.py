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

import hashlib
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spacecl import SPACE, Learner, Recipe, Task, disk, store
from spacecl.benchmarks import cache
from spacecl.benchmarks.formats import Decoded
from spacecl.checkpoint import Epoch, Keeper, PhaseState, randomness
from spacecl.config import resolve
from spacecl.errors import SpaceError
from spacecl.folder import alone, begin, compare, settings_in, tasks_of
from spacecl.journal import Journal, read_rows
from spacecl.run import _learner
from spacecl.run import run as run_tasks
from spacecl.tasks import check_whole

from .guard import run_guarded
from .outcome import Outcome

RANDOM = 6  # random states for every prefix, beside the extreme ones
RUNS = 200  # states of a whole run that are resumed to its end
WHOLE_RUN = "whole run"
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


# -- what is written ------------------------------------------------------------------------------------------------


def digest(*values: Any) -> str:
    """A short name for JSON values and tensors."""
    made = hashlib.sha256()
    for value in values:
        if isinstance(value, (torch.Tensor, np.ndarray)):
            array = np.asarray(value)
            made.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        elif isinstance(value, Mapping):
            for key in sorted(value):
                made.update(f"{key}:{digest(value[key])}".encode())
        else:
            made.update(json.dumps(value).encode())
    return made.hexdigest()[:12]


def scenarios(seed: int) -> Iterator[Scenario]:
    yield _learner_scenario(seed)
    yield _checkpoint_scenario()
    yield from _journal_scenarios()
    yield _result_scenario()
    yield _folder_scenario()
    yield _cache_scenario()


def _learner_scenario(seed: int) -> Scenario:
    """`Learner.save`: into new folders, the same again, and after one more task."""
    draw = torch.Generator().manual_seed(seed)

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 2))

    def task(name: str) -> Task:
        x = torch.randn(300, 6, generator=draw)
        return Task(name, (x, (x[:, 0] > 0).long()))

    first = Learner(network(), SPACE(variance=0.8, samples=60), example_input=torch.zeros(1, 6), progress=False)
    first.learn(task("one"), Recipe(epochs=1, retrain_epochs=1))
    with workspace() as top:
        first.save(top / "copy")
        second = Learner.load(top / "copy", network(), progress=False)
    second.learn(task("two"), Recipe(epochs=1, retrain_epochs=1))
    loaded: dict[str, Any] = {}

    def read(folder: Path) -> Parts:
        if not (folder / "new" / "folders" / "model" / store.MANIFEST).exists():
            return {"learner": None}
        body, files = store.load(folder / "new" / "folders" / "model", dict)
        name = digest(body["tasks"], files)
        if name not in loaded:  # the rest of loading follows from what was read
            loaded[name] = Learner.load(folder / "new" / "folders" / "model", network(), progress=False).verify()
        return {"learner": name}

    def save(learner: Learner) -> Callable[[Path], None]:
        return lambda folder: learner.save(folder / "new" / "folders" / "model")

    return Scenario("learner", (save(first), save(first), save(second), save(first)), read)


def _checkpoint_scenario() -> Scenario:
    """`Keeper.save` after every epoch of two phases, and the removal of the checkpoint."""

    def keeper(folder: Path) -> Keeper:
        return Keeper(folder / "checkpoints" / "1", {"task": "one", "seed": 0})

    def save(phase: str, epoch: int) -> Callable[[Path], None]:
        state, drawn = randomness(torch.device("cpu"))
        tensors = {"weight": torch.full((40, 40), float(epoch)), "never the same": torch.arange(epoch)}
        row = Epoch(phase=phase, epoch=epoch, loss=0.5, accuracy=0.75, valid_loss=0.4, lr=0.1, seconds=1.5)
        kept = PhaseState((row,), 0.75, False, (0.1,), {"last_epoch": epoch}, state)
        return lambda folder: keeper(folder).save(phase, kept, {"module": tensors, "random": drawn})

    def read(folder: Path) -> Parts:
        found = {phase: keeper(folder).load(phase) for phase in ("train", "retrain")}
        return {
            phase: kept and [kept[0].history[0]["epoch"], digest(asdict(kept[0]), kept[1])] for phase, kept in found.items()
        }

    def remove(folder: Path) -> None:
        with alone(folder):
            disk.remove(folder / "checkpoints")

    steps = (*(save("train", epoch) for epoch in (1, 2, 3)), *(save("retrain", epoch) for epoch in (1, 2)))
    return Scenario("checkpoints", (*steps, remove), read)


def _journal_scenarios() -> Iterator[Scenario]:
    """Rows, short ones and one of several blocks, in a new journal and in one with a line that was cut."""
    epoch = {"loss": 0.5, "accuracy": 0.75, "valid_loss": 0.4, "lr": 0.1, "seconds": 1.5}
    rows: list[dict[str, Any]] = [
        *({"kind": "epoch", "task": "one", "phase": "train", "epoch": number, **epoch} for number in (1, 2)),
        {"kind": "test", "after": 1, "accuracy": {f"task {n}": n / 300 for n in range(300)}, "size": 0.5, "seconds": 1.0},
        {"kind": "test", "after": 2, "accuracy": {"one": 1.0, "two": 0.5}, "size": 0.5, "seconds": 1.0},
    ]

    def add(row: dict[str, Any]) -> Callable[[Path], None]:
        return lambda folder: Journal(folder / "metrics.jsonl").add(row)

    def read(folder: Path) -> Parts:
        return {"rows": read_rows(folder / "metrics.jsonl")[0]}

    def cut(folder: Path) -> None:
        (folder / "metrics.jsonl").write_text(f"{json.dumps(rows[0])}\n{json.dumps(rows[1])[:50]}")

    yield Scenario("journal", tuple(map(add, rows)), read)
    yield Scenario("journal with a cut line", tuple(map(add, rows[1:])), read, cut)


def _result_scenario() -> Scenario:
    """result.json at the end of a run, and again when costs have been measured."""

    def write(value: Any) -> Callable[[Path], None]:
        def step(folder: Path) -> None:
            with alone(folder):
                disk.write_file(folder / "result.json", json.dumps(value, indent=1).encode())

        return step

    def read(folder: Path) -> Parts:
        file = folder / "result.json"
        return {"result": json.loads(file.read_bytes()) if file.exists() else None}

    return Scenario("result", (write({"schema": 1, "tasks": ["one"] * 900}), write({"schema": 1, "tasks": []})), read)


def _settings() -> Any:
    train = {"epochs": 2, "retrain_epochs": 1}
    return resolve({"benchmark": "permuted-digits", "tasks": 2, "limit": 200, "train": train, "device": "cpu"})


def _folder_scenario() -> Scenario:
    """The settings, tasks and machine of a run that begins, and begins again."""
    config = _settings()
    tasks, example = tasks_of(config, None)
    counts = [check_whole(task, example) for task in tasks]

    def start(folder: Path) -> None:
        disk.make_folder(folder / "run")
        with alone(folder / "run"):
            compare(folder / "run", config)
            begin(folder / "run", config, _learner(config, folder / "run", example, counts[0]["classes"]), tasks, counts)

    def read(folder: Path) -> Parts:
        run = folder / "run"
        found: Parts = {"config": settings_in(run) if (run / "config.json").exists() else None}
        for name in ("tasks", "environment"):
            file = run / f"{name}.json"
            found[name] = json.loads(file.read_bytes()) if file.exists() else None
        found["environment"] = found["environment"] and {start["machine"]["system"] for start in found["environment"]}
        return found

    return Scenario("folder of a run", (start, start), read)


def _cache_scenario() -> Scenario:
    """Decoded data: an entry, one more, and one that is made anew because it is damaged."""
    sources = [Path(__file__), Path(__file__).with_name("outcome.py")]
    pixels = np.arange(40 * 8 * 8 * 3, dtype=np.uint8).reshape(40, 8, 8, 3)
    labels = np.arange(40) % 2

    def decode(number: int) -> Callable[[], Decoded]:
        return lambda: Decoded((pixels + np.uint8(number), labels), (pixels[:9], labels[:9]), ("cat", "dog"))

    def use(number: int) -> Callable[[Path], None]:
        def step(folder: Path) -> None:
            with _cache_in(folder):
                cache.decoded(f"toy{number}", [sources[number]], decode(number))

        return step

    def spoil(folder: Path) -> None:
        for file in (folder / "decoded").glob("toy0-*/about.json"):
            disk.remove(file)

    def read(folder: Path) -> Parts:
        found: Parts = {}
        for number in (0, 1):
            entries = list((folder / "decoded").glob(f"toy{number}-*"))
            entry = cache._cached(entries[0]) if entries else None
            found[f"entry {number}"] = entry and digest(*entry.train, *entry.test, entry.classes, entry.note, entry.spread)
        return found

    return Scenario("cache", (use(0), use(1), use(0), spoil, use(0)), read)


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    before = os.environ.get("SPACECL_CACHE")
    os.environ["SPACECL_CACHE"] = str(folder)
    try:
        yield
    finally:
        del os.environ["SPACECL_CACHE"]
        if before is not None:
            os.environ["SPACECL_CACHE"] = before


def _run_scenario() -> Scenario:
    """A whole run of two tasks; any state is resumed to the same result."""
    config = _settings()

    def go(folder: Path) -> None:
        run_tasks(config, folder / "run", progress=False, say=lambda text: None)

    def read(folder: Path) -> Parts:
        file = folder / "run" / "result.json"
        return {"result": _without_times(json.loads(file.read_bytes())) if file.exists() else None}

    return Scenario(WHOLE_RUN, (go,), read)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(inner) for key, inner in value.items() if key not in ("seconds", "measured")}
    return [_without_times(inner) for inner in value] if isinstance(value, list) else value


def run(count: int, seed: int) -> Outcome:
    """Try a number of states of every scenario, or with 0 all of them, and some of a whole run."""
    torch.set_num_threads(1)
    draw, chosen, states = random.Random(seed), list[Case](), 0
    for scenario in (*scenarios(seed), _run_scenario()):
        cases = cases_of(scenario, seed)
        most = (count // 10 or 1 if count else RUNS) if scenario.name == WHOLE_RUN else count or len(cases)
        chosen += draw.sample(cases, min(most, len(cases)))
        states += len(cases)
    outcome = run_guarded(
        "power", chosen, check, kind=lambda case: case.scenario.name, describe=lambda case: case.text, seconds=60
    )
    outcome.notes["different_states"] = states
    return outcome
