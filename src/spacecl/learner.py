"""The learner, what users hold: teach it tasks, ask it about them, save it."""

from __future__ import annotations

import copy
import json
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from torch import Tensor, nn

from . import store
from .data.task import CLASSES, Source, Task
from .data.task import INFER as INFER
from .data.task_data import Data, check_input, prepare_data
from .errors import ConfigError, DataError, SpaceError, SpaceWarning, StoreError, TaskError, first_line, renamed
from .inference.task_inference import (
    SAMPLES,
    Identified,
    Inferred,
    accept_features,
    estimate_bounds,
    extract_features,
    make_signature,
    score_features,
)
from .learning.checkpoints import Checkpointer
from .learning.core import Core
from .learning.recipe import Recipe
from .learning.record import TaskContext, TaskRecord
from .learning.saved import SavedLearner, compare_tensors, example_input, from_files, given_tensors, to_files
from .learning.state import Method as Method
from .learning.state import State
from .learning.trainer import Row, Trainer, evaluate
from .methods import METHODS, SPACE
from .progress import Progress
from .seeds import task_seed, use_seed
from .structure.blueprint import rebuild, repeat_to_shape
from .structure.memory_format import run_model
from .structure.validate import check_model, validate_model
from .validation import check_flag, check_path, file_errors, is_integer, show

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Learner:
    """Teaches one network many tasks, one after another.

    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> learner = Learner(model, SPACE(variance=0.9), example_input=torch.zeros(1, 4))
    >>> x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    >>> record = learner.learn(Task("sign", (x, (x[:, 0] > 0).long())), Recipe(epochs=10))
    >>> learner.predict(x[:3], task="sign").shape, record.widths["0"] < 16
    (torch.Size([3]), True)

    **Threads.** Any number of threads may query a learner (`logits`, `predict`, `identify`, `task_scores`, `subnet`, `export`,
    `records`, `digests`, `save`, ...) while one thread learns: each query is answered from the state before the commit or
    from the one after it, never from a mixture. `learn`, `remember` and setting `method` are refused with a SpaceError
    while another thread learns. Training, `evaluate`, `dense` and making a learner use the random generators of the
    process: for the same bits on every run, let one thread at a time do any of these.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method | None = None,
        *,
        example_input: Tensor,
        head: str | None = None,
        shared: Sequence[str] = (),
        seed: int = 0,
        fabric: Fabric | None = None,
        progress: Progress = None,
    ):
        """Check the model and the method against each other; the model itself is copied and never changed.

        `head` is the dotted name of the classifier (default: the Linear layer whose output the model returns); each
        task gets one of its own. Layers in `shared`, by name or pattern, have no width of their own: they are learned
        with the first task and then fixed, but for weights on channels that later tasks add; norms are each task's own
        all the same. `fabric` sets devices, precision and processes; `progress` shows or hides progress bars (default:
        shown on a terminal).
        """
        method = SPACE() if method is None else method
        _check_method(method)
        if fabric is not None:
            _check_fabric(fabric)
        self.seed, self.progress = seed, progress
        core = Core.empty(validate_model(model, example_input, head, shared))
        method.check(core.channels)
        self._state = State(method, core)  # replaced in one step, and read once by everything that reads it
        self._changing = threading.Lock()  # held while a task is learned or anything else makes a new state of the old
        self._fabric = fabric

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_changing"}  # a lock cannot be copied

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values, _changing=threading.Lock())

    @property
    def _core(self) -> Core:
        return self._state.core

    @contextmanager
    def _change(self) -> Iterator[State]:
        """Hold the lock while a new state is made of the present one; another thread that tries the same is refused."""
        if self._changing.locked():
            raise SpaceError(
                "This learner is learning a task already, in another thread or around this call. "
                "Wait until it is done; queries, such as logits(), need not wait."
            )
        with self._changing:  # a thread that came between the two lines waits here, and goes on with the new state
            yield self._state

    # -- what it knows --------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks learned so far, in order."""
        return tuple(self._state.records)

    @property
    def records(self) -> Mapping[str, TaskRecord]:
        """What learning each task came to, by its name."""
        return dict(self._state.records)

    @property
    def method(self) -> Method:
        """The method; another of the same kind may be set between tasks, for instance with another variance."""
        return self._state.method

    @method.setter
    def method(self, method: Method) -> None:
        _check_method(method)
        with self._change() as state:
            if type(method) is not type(state.method):
                raise ConfigError(
                    f"This learner uses {type(state.method).__name__}; it cannot go on with {type(method).__name__}."
                )
            method.check(state.core.channels)
            self._state = replace(state, method=method).with_networks_of(state)

    @property
    def seed(self) -> int:
        """What training draws from: the same seed, model and data give the same bits."""
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        if not is_integer(seed) or int(seed) < 0:
            raise ConfigError(f"seed={show(seed)} must be a whole number, at least 0.")
        self._seed = int(seed) % 2**40

    @property
    def progress(self) -> Progress:
        """Whether progress bars are shown: True, False, None for on a terminal, or a way of your own to show them."""
        return self._progress

    @progress.setter
    def progress(self, progress: Progress) -> None:
        if not (progress is None or isinstance(progress, bool) or (callable(progress) and not isinstance(progress, type))):
            raise ConfigError(f"progress={show(progress)} must be True, False, None or a function.")
        self._progress = progress

    @property
    def size(self) -> float:
        """The share of the full backbone's parameters in use by all tasks together, heads left out."""
        return self._core.size()

    @property
    def storage(self) -> dict[str, int]:
        """The bytes that are kept: weights in common, tensors of single tasks, masks, and what only later tasks need."""
        return self._core.storage()

    @property
    def widths(self) -> dict[str, int]:
        """How many output channels each layer of the full network has."""
        channels = self._core.channels
        return channels.widths(channels.all_units())

    @property
    def example(self) -> Tensor:
        """One input of the shape that the network takes."""
        return self._core.blueprint.example

    @property
    def capacity(self) -> dict[str, dict[str, int]]:
        """What tasks take from, layer by layer: how much there is, how much is taken, and by the last task alone.

        Counted in output channels or, with a method that shares out single weights, in weights. Empty where
        every task has the whole network.
        """
        state = self._state
        return {} if state.method.forgets else state.core.capacity()

    def full(self) -> nn.Module:
        """The full network, with the weights and the head that it was given, grown if it has grown since."""
        blueprint = self._core.blueprint
        shapes = blueprint.channels.shapes
        return blueprint.build({name: repeat_to_shape(tensor, shapes[name]) for name, tensor in blueprint.tensors().items()})

    def dense(self, classes: int) -> nn.Module:
        """The network as it was given, never grown, with a new head for so many classes: what a single task would have."""
        if not is_integer(classes) or not 1 <= int(classes) <= CLASSES:
            raise ConfigError(f"classes={show(classes)} must be a whole number from 1 to {CLASSES:,}.")
        blueprint = self._core.blueprint
        tensors = blueprint.tensors()
        with use_seed(self.seed):
            return blueprint.build(tensors | blueprint.new_head(tensors, classes))

    @property
    def fabric(self) -> Fabric:
        if self._fabric is None:
            from lightning_fabric import Fabric

            self._fabric = Fabric(accelerator="auto", devices=1)
        return self._fabric

    @property
    def channels_last(self) -> bool:
        """Whether images are trained on and asked about in that memory format: on CPUs, where the model can take it.

        Fed so, `subnet(task)` gives the very bits of `logits`; otherwise the last bits may differ.
        """
        return self._core.blueprint.channels_last and self.fabric.device.type == "cpu"

    # -- learning -------------------------------------------------------------------------------------------------

    def learn(
        self,
        task: Task,
        recipe: Recipe | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        on_epoch: Callable[[Row], None] | None = None,
    ) -> TaskRecord:
        """Learn one task more and commit it. If anything goes wrong, the learner stays as it was.

        Every finished epoch is kept in the folder `checkpoint`, if one is given: after a crash, the same call on a learner
        in the same state goes on from there and ends with the same bits. Remove the folder when the learner is saved.
        `on_epoch` is called with every epoch's row, those of an earlier process first.
        """
        return self._commit(task, recipe, None, checkpoint, on_epoch)

    def _commit(
        self,
        task: Task,
        recipe: Recipe | None,
        learn: Learn | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        on_epoch: Callable[[Row], None] | None = None,
    ) -> TaskRecord:
        """Learn a task, by the method or in a way of its own, and replace the state by one that has it."""
        with self._change() as state:
            new = self._learn(state, task, recipe, learn or state.method.learn, checkpoint, on_epoch)
            self._state = new
        return new.records[task.name]

    def _learn(
        self,
        state: State,
        task: Task,
        recipe: Recipe | None,
        learn: Learn,
        checkpoint: str | os.PathLike[str] | None,
        on_epoch: Callable[[Row], None] | None,
    ) -> State:
        """Check a task's data and learn it; returns the state that has it, and changes nothing that the given one holds."""
        _check_task(task, "learn()")
        if recipe is not None and not isinstance(recipe, Recipe):
            raise ConfigError(f"recipe={show(recipe)} must be a Recipe, such as Recipe(epochs=20).")
        if on_epoch is not None and not callable(on_epoch):
            raise ConfigError(f"on_epoch={show(on_epoch)} must be a function; it is called with every epoch's row.")
        if checkpoint is not None:
            checkpoint = check_path("checkpoint", checkpoint)
            with file_errors("No checkpoint can be kept"):
                is_file = checkpoint.exists() and not checkpoint.is_dir()
            if is_file:
                raise ConfigError(f"checkpoint={str(checkpoint)!r} is a file. Give a folder, which need not exist yet.")
        if task.name in state.records:
            raise TaskError(f"A task named {task.name!r} has been learned already. Give this one another name.")
        _check_data(state)
        number = len(state.records)
        seed = task_seed(self.seed, number)
        recipe = recipe or Recipe()
        title = f"{task.name}:"
        trainer = Trainer(self.fabric, recipe, seed, self.channels_last, title, self.progress, on_epoch=on_epoch)
        with use_seed(seed):
            train, valid, classes = prepare_data(task, state.core.blueprint.example, torch.Generator().manual_seed(seed))
            torch.manual_seed(seed)  # however much was drawn while the data was read
            if checkpoint is not None:
                data = {"examples": [len(train), len(valid)], "classes": classes}
                trainer = replace(trainer, keeper=self._keeper(state, checkpoint, task.name, recipe, data))
            before = tuple(state.data[name] for name in state.records) if state.method.needs_data else ()
            core, found = learn(state.core, TaskContext(task.name, train, valid, classes, trainer, before))
            network = core.network(number).to(self.fabric.device)
            accuracy = evaluate(network, valid, self.fabric, self.channels_last)
            signed = make_signature(self._examples(train, network, seed), classes)
            signed |= estimate_bounds((x for x, _, _ in self._examples(valid, network, seed)), signed) if signed else {}
            kept = [*core.signatures, *({} for _ in range(number - len(core.signatures)))]  # none of tasks of older versions
            core = replace(core, signatures=(*kept, signed))
        record = TaskRecord(
            name=task.name,
            classes=classes,
            class_names=task.class_names,
            accuracy=accuracy,
            digest=core.digest(number),
            widths=core.channels.widths(core.keep(number)),
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            size=core.size(),
            used=core.channels.widths(core.committed),
            pictures=None if train.images is None else train.images.preprocessing(),
            **found,
        )
        records = {**state.records, task.name: record}
        if state.method.forgets:
            records = {name: replace(r, digest=core.digest(n)) for n, (name, r) in enumerate(records.items())}
        given = {**state.data, task.name: (train, valid)} if state.method.needs_data else state.data
        new = replace(state, core=core, records=records, data=given).with_networks_of(state)
        new.networks[task.name] = network
        return new

    def _examples(self, data: Data, network: nn.Module, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Random examples with the answers of a network, as many as a signature needs."""
        seen = 0
        for x, y in data.batches(500, torch.Generator().manual_seed(seed)):
            x = data.finish(x)
            yield x, y, self._answers(x, network)
            seen += len(x)
            if seen >= SAMPLES:
                return

    def remember(self, task: Task) -> None:
        """Give the data of a learned task again, for a method that needs them, to a learner that was loaded.

        Data are kept as they are given, not copied.
        """
        _check_task(task, "remember()")
        with self._change() as state:
            seed = task_seed(self.seed, state.number(task.name))
            with use_seed(seed):
                train, valid, classes = prepare_data(task, state.core.blueprint.example, torch.Generator().manual_seed(seed))
            known = state.records[task.name].classes
            if classes != known:
                raise DataError(f"Task {task.name!r} was learned with {known} classes; these data have {classes}.")
            self._state = replace(state, data={**state.data, task.name: (train, valid)}).with_networks_of(state)

    def _keeper(self, state: State, folder: Path, task: str, recipe: Recipe, data: Mapping[str, Any]) -> Checkpointer:
        """Checkpoints that know what they belong to: the task, how it is learned, and what was learned before."""
        if self.fabric.world_size > 1:
            raise ConfigError(
                f"Checkpoints are for one process, but {self.fabric.world_size} are at work. Leave checkpoint out."
            )
        before = {name: record.digest for name, record in state.records.items()}
        method = {"name": type(state.method).__name__, "options": asdict(state.method)}  # type: ignore[call-overload]
        identity = {"task": task, "before": before, "seed": self.seed, "method": method, "recipe": asdict(recipe), **data}
        identity["model"] = state.core.channels.fingerprint()
        return Checkpointer(folder, json.loads(json.dumps(identity)))

    # -- asking ---------------------------------------------------------------------------------------------------

    def logits(self, x: Tensor, task: str) -> Tensor:
        """The scores of a task's classes, of shape (rows, classes)."""
        return self._logits(self._state, x, task)

    def _logits(self, state: State, x: Tensor, task: str) -> Tensor:
        network = state.network(task, self.fabric.device)
        _check_input(state, x, f"Task {task!r}")
        return self._answers(x, network)

    def _answers(self, x: Tensor, network: nn.Module) -> Tensor:
        try:
            with torch.no_grad():
                parts = [run_model(network, part, self.channels_last) for part in x.split(1024)]
                return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(x.device)
        except (IndexError, RuntimeError) as error:  # tokens beyond its vocabulary, above all
            raise DataError(f"The network does not know these inputs: {first_line(error)}") from error

    @overload
    def predict(self, x: Tensor, task: Literal["infer"], *, together: bool = False) -> Inferred: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, x: Tensor, task: str | Sequence[str] | None = None, *, together: bool = False) -> Tensor: ...

    def predict(self, x: Tensor, task: str | Sequence[str] | None = None, *, together: bool = False) -> Tensor | Inferred:
        """The labels of some inputs, all of one task or with one task's name per row.

        `task="infer"` finds out the task of every row (or, with `together`, one task for all rows, which is far surer) and
        tells it, and how sure it is, with the labels. It is never done unasked.
        """
        state = self._state
        check_flag("together", together)
        infer = isinstance(task, str) and task == INFER
        if together and not infer:
            raise ConfigError('together=True is for task="infer": rows whose task is named need no finding out.')
        if not isinstance(task, (str, Sequence, np.ndarray)) or getattr(task, "ndim", 1) != 1:
            raise TaskError(f'Which task? Give its name, one name per row, or task="infer" to find out. {state.list_tasks()}')
        if infer:
            found = self._identify(state, x, together)
            return Inferred(self._labels(state, x, found.tasks), found.tasks, found.confidence)
        if isinstance(task, str):
            return self._logits(state, x, task).argmax(1)
        _check_input(state, x, "Mixed tasks")
        names = list(task)
        if len(names) != len(x):
            raise TaskError(f"{len(names)} task names for {len(x)} rows; give one name, or one per row.")
        unknown = [f"row {row}: {show(n)}" for row, n in enumerate(names) if not isinstance(n, str) or n not in state.records]
        if unknown:
            raise TaskError(f"No such task: {', '.join(unknown[:5])}. {state.list_tasks()}")
        return self._labels(state, x, names)

    def _labels(self, state: State, x: Tensor, tasks: Sequence[str | None]) -> Tensor:
        """The label of every row by the network of its task, and -1 where it has none."""
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(tasks):
            if name is not None:
                rows.setdefault(name, []).append(row)
        labels = torch.full((len(x),), -1, device=x.device)
        for name, some in rows.items():
            index = torch.tensor(some, device=x.device)
            labels[index] = self._answers(x[index], state.network(name, self.fabric.device)).argmax(1)
        return labels

    def identify(self, x: Tensor, *, together: bool = False) -> Identified:
        """Which task each row belongs to, judged by what the tasks remember of their own inputs; all are one's with `together`.

        A row that is unlike the inputs of all tasks, such as a blank image or one of another scale, belongs to none (None);
        with `together`, if most rows do. A task takes about one in a hundred of its own inputs for such a row.

        Permuted pixels or other kinds of pictures are told apart row by row. Where tasks are classes of the same kind
        of pictures a single row is often taken for another task's, with low `confidence`; tens of rows `together` are not.
        """
        check_flag("together", together)
        return self._identify(self._state, x, together)

    def _identify(self, state: State, x: Tensor, together: bool) -> Identified:
        if not state.records:
            raise TaskError("No task has been learned yet, so none can be found out.")
        _check_input(state, x, "identify()")
        if not len(x):
            return Identified((), torch.zeros(0, len(state.records)))
        names = list(state.records)
        seen = extract_features(x)
        found = self._task_scores(state, x, names, seen)
        possible = torch.stack([accept_features(seen, _signature(state, number)) for number in range(len(names))], 1)
        known = possible.any(1) & torch.isfinite(found).all(1)
        found = found.masked_fill(~known[:, None], 0.0)
        if together:  # rows that belong to none have no say, unless they are the most
            known = (known.float().mean() >= 0.5).expand(len(x))
            found = found.sum(0, keepdim=True).expand_as(found)
        shares = found.softmax(1)
        best = zip(known.tolist(), shares.argmax(1).tolist())
        return Identified(tuple(names[number] if good else None for good, number in best), shares.float())

    def task_scores(self, x: Tensor, task: str | None = None) -> Tensor:
        """How much inputs are like those that a task was taught with, a number for each row; higher is more.

        Without a task's name, all tasks have a column each. Numbers of different tasks can be held against each other: that
        is what `identify` does.
        """
        state = self._state
        names = list(state.records) if task is None else [task]
        _check_input(state, x, "task_scores()")
        found = self._task_scores(state, x, names, extract_features(x))
        return found if task is None else found[:, 0]

    def accepts(self, x: Tensor, task: str) -> Tensor:
        """Whether inputs are like those that a task was taught with, for each row; a task of an older version takes all.

        The bounds come from the task's validation data: about 99 of 100 of its own inputs are accepted.
        """
        state = self._state
        number = state.number(task)
        _check_input(state, x, "accepts()")
        return accept_features(extract_features(x), _signature(state, number))

    def _task_scores(self, state: State, x: Tensor, names: Sequence[str], seen: Tensor) -> Tensor:
        """How much inputs are like those of some tasks, (rows, tasks)."""
        numbers = [state.number(name) for name in names]
        lost = [name for name, number in zip(names, numbers) if not _signature(state, number)]
        if lost:
            raise TaskError(
                f"Task {lost[0]!r} kept nothing to know its inputs by: an older version of spacecl learned it, or they were "
                "beyond all bounds. Give the task's name."
            )
        found = []
        for name, number in zip(names, numbers):
            logits = None if state.method.forgets else self._logits(state, x, name)  # what was usual then need not be now
            found.append(score_features(seen, _signature(state, number), logits))
        return torch.stack(found, 1)

    def has_signature(self, task: str) -> bool:
        """Whether a task kept what its inputs are like: tasks that older versions learned have not."""
        state = self._state
        return bool(_signature(state, state.number(task)))

    def evaluate(self, data: Source, task: str) -> float:
        """The share of some labelled data that a task's network gets right."""
        state = self._state
        network, checked = state.network(task, self.fabric.device), Data(data, f"Task {task!r}, data")
        with use_seed(self.seed):
            largest, classes = checked.check(state.core.blueprint.example, least=1), state.records[task].classes
            if largest >= classes:
                raise DataError(
                    f"Task {task!r}, data: the label {largest} is outside its {classes} classes, 0 to {classes - 1}."
                )
            return evaluate(network, checked, self.fabric, self.channels_last)

    def subnet(self, task: str) -> nn.Module:
        """A task's network as a plain, physically small module of its own, in eval mode."""
        state = self._state
        return state.core.network(state.number(task))

    @file_errors("The network cannot be exported")
    def export(
        self,
        task: str,
        file: str | os.PathLike[str],
        *,
        format: str | None = None,
        fold: bool = True,
        int8: Tensor | None = None,
    ) -> dict[str, Any]:
        """Write a task's small network to a file for other programs, and return what there is to say of it.

        `cats.onnx` runs in onnxruntime, `cats.pt2` is a `torch.export` program, `cats.safetensors` has plain weights with
        `cats.json` beside it; `format` names one for a file that ends otherwise. Batch norms are folded into the layers
        before them where they can be, unless `fold=False`. `int8`, inputs to calibrate by, makes an ONNX file one of bytes.
        """
        from .export.export import export_network

        file = check_path("file", file)
        check_flag("fold", fold)
        if format is not None and not isinstance(format, str):
            raise ConfigError(f"format={show(format)} must be the name of a format, as text.")
        state = self._state
        module, record = state.core.network(state.number(task)), state.records[task]
        about = {
            "task": task,
            "classes": list(record.class_labels),
            "digest": record.digest,
            "widths": dict(record.widths),
            "pictures": record.pictures,
        }
        if int8 is not None:
            _check_input(state, int8, "int8, the inputs to calibrate by")
            if not len(int8):
                raise DataError("int8, the inputs to calibrate by: there are none.")
        return export_network(module, state.core.blueprint.example, file, about, format=format, fold=fold, int8=int8)

    def digests(self) -> dict[str, str]:
        """Every task's digest, computed anew from the bits that are there."""
        return _digests(self._state)

    def verify(self) -> dict[str, str]:
        """Compute every task's digest anew and return them; raise StoreError if one is not what it was at its commit."""
        return _verify(self._state)

    # -- keeping --------------------------------------------------------------------------------------------------

    @file_errors("The learner cannot be saved")
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the learner into a folder: JSON and safetensors, whole or not at all.

        A second process that saves to the same folder waits for the first, at most 30 seconds; then it raises StoreError.
        """
        folder = check_path("folder", folder)
        state = self._state
        body, files = to_files(state.core, state.records.values())
        method = {"name": type(state.method).__name__, "options": asdict(state.method)}  # type: ignore[call-overload]
        if self.fabric.is_global_zero:
            store.save(folder, {"method": method, "seed": self.seed, **body}, files)
        self.fabric.barrier()

    @classmethod
    @file_errors("The learner cannot be loaded")
    def load(
        cls,
        folder: str | os.PathLike[str],
        model: nn.Module,
        *,
        method: Method | None = None,
        fabric: Fabric | None = None,
        progress: Progress = None,
        verify: bool = True,
    ) -> Learner:
        """Read a learner back. `model` is one of the same architecture; its own weights do not matter.

        `method` is needed only where it is one of your own. Files are checked in any case; `verify=False` leaves it to you
        to hold the networks against their digests.
        """
        folder = check_path("folder", folder)
        check_flag("verify", verify)
        check_model(model)
        body, files = store.load(folder, SavedLearner)
        compare_tensors(body.tensors, model, folder)
        method = _method_of(body, None, folder) if method is None else method
        _check_method(method)
        if type(method).__name__ != body.method.name:
            raise ConfigError(f"{folder} was learned with {body.method.name}; it cannot go on with {type(method).__name__}.")
        model = rebuild(model, given_tensors(files, model, folder))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpaceWarning)  # said when the learner was made
            learner = cls(
                model,
                method,
                example_input=example_input(files, folder),
                head=body.head,
                shared=body.shared,
                seed=body.seed,
                fabric=fabric,
                progress=progress,
            )
        learner._state = State(method, *from_files(learner._core, body, files, folder))
        if verify:
            learner.verify()
        return learner

    @file_errors("The learner cannot be loaded")
    def reload(self, folder: str | os.PathLike[str]) -> Learner:
        """A learner with what the folder holds now, of the same architecture: far quicker than to load it anew.

        This one stays as it is. Networks of tasks that have not changed are the very same modules.
        """
        state, folder = self._state, check_path("folder", folder)
        body, files = store.load(folder, SavedLearner)
        compare_tensors(body.tensors, state.core.blueprint.module, folder)
        method = _method_of(body, type(state.method), folder)
        new = State(method, *from_files(state.core, body, files, folder))
        _verify(new)
        found = copy.copy(self)
        found._state, found.seed = new.with_networks_of(state), body.seed
        return found

    # -- names of version 0.1 -------------------------------------------------------------------------------------

    room = renamed("room", "capacity")
    given = renamed("given", "dense")
    likeness = renamed("likeness", "task_scores")
    remembers = renamed("remembers", "has_signature")
    reloaded = renamed("reloaded", "reload")


Learn = Callable[[Core, TaskContext], tuple[Core, dict[str, Any]]]  # how one task more is learned


def _check_task(task: object, where: str) -> None:
    if not isinstance(task, Task):
        raise DataError(f"{where} takes a Task, such as Task('name', (x, y)); got a {type(task).__name__}.")


def _check_method(method: object) -> None:
    """A method is a dataclass instance, so that its options can be saved, with all that the protocol asks for."""
    if isinstance(method, type):
        raise ConfigError(f"method={method.__name__} is a class. Give one with its options, such as {method.__name__}().")
    missing = [name for name in ("check", "plan", "learn") if not callable(getattr(method, name, None))]
    missing += [name for name in ("forgets", "needs_data") if not isinstance(getattr(method, name, None), bool)]
    if missing or not is_dataclass(method):
        what = f"it lacks {', '.join(missing)}" if missing else "it is no dataclass"
        raise ConfigError(f"method={show(method)} is no method: {what}. Give one of spacecl's, such as SPACE().")


def _check_fabric(fabric: object) -> None:
    from lightning_fabric import Fabric

    if not isinstance(fabric, Fabric):
        raise ConfigError(f"fabric={show(fabric)} must be a lightning_fabric.Fabric.")


def _check_input(state: State, x: Tensor, what: str) -> None:
    problem = check_input(x, state.core.blueprint.example)
    if problem:
        raise DataError(f"{what}: {problem}")


def _check_data(state: State) -> None:
    lost = [repr(name) for name in state.records if name not in state.data]
    if lost and state.method.needs_data:
        raise TaskError(
            f"{type(state.method).__name__} trains on the data of all tasks; those of {', '.join(lost)} are not at hand. "
            "Give them again with learner.remember(Task(...))."
        )


def _signature(state: State, number: int) -> Mapping[str, Tensor]:
    """What a task kept of its inputs; nothing if an older version learned it."""
    return state.core.signatures[number] if number < len(state.core.signatures) else {}


def _digests(state: State) -> dict[str, str]:
    return {name: state.core.digest(number) for number, name in enumerate(state.records)}


def _verify(state: State) -> dict[str, str]:
    found = _digests(state)
    changed = [name for name, digest in found.items() if digest != state.records[name].digest]
    if changed:
        raise StoreError(f"The networks of these tasks are not those of their commit: {', '.join(changed)}.")
    return found


def _method_of(body: SavedLearner, kind: type[Method] | None, folder: object) -> Method:
    """The method that a learner was saved with: one of spacecl's, or of the kind that is known already."""
    name = body.method.name
    if kind is not None and kind.__name__ != name:
        raise StoreError(f"{folder} was learned with {name}, not with {kind.__name__}. Load it anew.")
    if kind is None and name not in METHODS:
        raise StoreError(f"{folder} was saved with the method {name}, which is not one of spacecl's. Give it with method=...")
    made: Callable[..., Method] = kind or METHODS[name]
    try:
        return made(**body.method.options)
    except (TypeError, SpaceError) as error:
        raise StoreError(f"{folder} was saved with options that {name} does not take: {error}") from error
