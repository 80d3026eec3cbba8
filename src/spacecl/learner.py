"""The learner, the public face of the library: it learns tasks, answers queries about them, and is saved and loaded."""

from __future__ import annotations

import copy
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from torch import Tensor, nn

from . import store
from .data.inputs import Keys
from .data.prepare import check_targets, prepare_data
from .data.query_inputs import Query
from .data.task import CLASSES, Source, Task, check_reading
from .data.task import INFER as INFER
from .data.task_data import Data
from .errors import ConfigError, DataError, SpaceError, SpaceWarning, StoreError, TaskError, renamed
from .inference.task_inference import Identified, Inferred, Predictions
from .learning.checkpoints import Epoch
from .learning.core import Core
from .learning.learn_task import learn_task
from .learning.method import AbsentMethod, describe_method, name_method
from .learning.method import Method as Method
from .learning.objective import Metric, make_objective
from .learning.ownership import LayerCapacity
from .learning.queries import Queries
from .learning.recipe import Recipe
from .learning.record import TaskRecord
from .learning.saved import SavedLearner, compare_tensors, example_input, from_files, initial_tensors, to_files
from .learning.state import State
from .learning.trainer import Trainer, evaluate
from .methods import METHODS
from .methods.space import SPACE
from .options import add_former_values
from .os_errors import file_errors
from .progress import Progress
from .seeds import task_seed, use_seed
from .structure.auxiliary import without_auxiliary_layers
from .structure.blueprint import rebuild, repeat_to_shape
from .structure.calling import Inputs, count_rows
from .structure.validate import check_model, validate_model
from .validation import check_flag, check_path, is_integer, show

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .export.export import ExportInfo, NetworkInfo
    from .export.together import TogetherInfo
    from .export.tune import TunedInfo


class Learner:
    """Teaches one network many tasks, one after another, without forgetting any.

    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> learner = Learner(model, SPACE(variance=0.9), example_input=torch.zeros(1, 4))
    >>> x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    >>> record = learner.learn(Task("sign", (x, (x[:, 0] > 0).long())), Recipe(epochs=10))
    >>> learner.predict(x[:3], task="sign").shape, record.widths["0"] < 16
    (torch.Size([3]), True)

    **Threads.** Any number of threads may query a learner (`logits`, `predict`, `identify`, `task_scores`, `subnet`, `export`,
    `records`, `digests`, `save`, ...) while one thread learns: each query sees the state before the commit or the one
    after it, never a mixture. `learn`, `remember` and setting `method` are refused with a SpaceError
    while another thread learns. Training, `evaluate`, `dense` and making a learner use the random generators of the
    process: for the same bits on every run, let one thread at a time do any of these.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method | None = None,
        *,
        example_input: Inputs,
        head: str | None = None,
        shared: Sequence[str] = (),
        seed: int = 0,
        fabric: Fabric | None = None,
        progress: Progress = None,
    ):
        """Trace and validate the model. It is copied; the model itself is never changed.

        Parameters
        ----------
        model : a network that ends in a `torch.nn.Linear`
        method : how tasks are learned, by default `SPACE()`
        example_input : a batch of one or more inputs, on which the model is traced. For a model with several inputs, a tuple of
            them in the order of `forward()`, or a dictionary by the names of its arguments
        head : dotted name of the classifier layer, by default the Linear layer whose output the model returns; each task
            gets one of its own
        shared : layers, by name or pattern, that all tasks share at full width. They are learned with the first task and
            then frozen, except for weights on channels that later tasks add. Norms stay private to each task
        seed : the same seed, model and data give the same bits
        fabric : a `lightning_fabric.Fabric` that sets devices, precision and processes
        progress : True or False to show or hide progress bars; by default they are shown on a terminal
        """
        method = SPACE() if method is None else method
        _check_method(method)
        if fabric is not None:
            _check_fabric(fabric)
        self.seed, self.progress = seed, progress
        core = Core.empty(validate_model(model, example_input, head, shared))
        method.check(core.channels)
        self._state = State(method, core)  # replaced in one step, and read once by every query
        self._changing = threading.Lock()  # locked while a task is learned or the state is changed in another way
        self._fabric = fabric

    def __repr__(self) -> str:
        state = self._state
        return f"<Learner method={name_method(state.method)} tasks={len(state.records)} size={state.core.size():.3f}>"

    def _repr_html_(self) -> str:
        """How notebooks show the learner: its layers, with the filters of each task in its colour and free ones grey."""
        from .learning.picture import show_learner

        state = self._state
        return show_learner(state.core, list(state.records.values()), name_method(state.method))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_changing"}  # a lock cannot be copied

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values, _changing=threading.Lock())

    @property
    def core(self) -> Core:
        """What the tasks so far have committed; immutable, and replaced when a task is learned."""
        return self._state.core

    @contextmanager
    def _change(self) -> Iterator[State]:
        """Lock the learner while a new state is made; another thread that tries to change it meanwhile is refused."""
        if self._changing.locked():
            raise SpaceError(
                "This learner is already learning a task, in another thread or around this call. "
                "Wait until it has finished; queries, such as logits(), need not wait."
            )
        with self._changing:  # a thread that came between the two lines waits here, and continues with the new state
            yield self._state

    # -- properties -----------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks learned so far, in order."""
        return tuple(self._state.records)

    @property
    def records(self) -> Mapping[str, TaskRecord]:
        """The result of learning each task, by its name."""
        return dict(self._state.records)

    @property
    def method(self) -> Method:
        """The method; another of the same kind may be set between tasks, for instance with another variance."""
        return self._state.method

    @method.setter
    def method(self, method: Method) -> None:
        _check_method(method)
        with self._change() as state:
            if name_method(method) != name_method(state.method):
                raise ConfigError(
                    f"This learner uses {name_method(state.method)}; it cannot continue with {name_method(method)}."
                )
            method.check(state.core.channels)
            self._state = replace(state, method=method).with_networks_of(state)

    @property
    def seed(self) -> int:
        """The seed of all random numbers: the same seed, model and data give the same bits."""
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        if not is_integer(seed) or not 0 <= int(seed) < 2**40:
            raise ConfigError(f"seed={show(seed)} must be a whole number, at least 0 and below 2**40.")
        self._seed = int(seed)

    @property
    def progress(self) -> Progress:
        """Whether progress bars are shown: True, False, None for on a terminal, or a function that shows them."""
        return self._progress

    @progress.setter
    def progress(self, progress: Progress) -> None:
        if not (progress is None or isinstance(progress, bool) or (callable(progress) and not isinstance(progress, type))):
            raise ConfigError(f"progress={show(progress)} must be True, False, None or a function.")
        self._progress = progress

    @property
    def size(self) -> float:
        """The fraction of the full backbone's parameters that all tasks together use, without heads."""
        return self.core.size()

    @property
    def storage(self) -> dict[str, int]:
        """The bytes that are stored: shared weights, private tensors of tasks, masks, and what only later tasks need."""
        return self.core.storage()

    @property
    def widths(self) -> dict[str, int]:
        """How many output channels each layer of the full network has."""
        channels = self.core.channels
        return channels.widths(channels.all_units())

    @property
    def example(self) -> Inputs:
        """One input of the shape that the network takes; a tuple or a dictionary if it takes several."""
        return self.core.blueprint.example

    @property
    def capacity(self) -> dict[str, LayerCapacity]:
        """For every layer, how much there is (`of`), how much is `taken`, and how much the `last` task alone took.

        Counted in output channels or, with a method that assigns single weights to tasks, in weights. Empty where
        every task has the full network.
        """
        state = self._state
        return {} if state.method.forgets else state.core.capacity()

    def full(self) -> nn.Module:
        """The full network with its initial weights and head; larger than the model that was given if it has grown since."""
        blueprint = self.core.blueprint
        shapes = blueprint.channels.shapes
        return blueprint.build({name: repeat_to_shape(tensor, shapes[name]) for name, tensor in blueprint.tensors().items()})

    def dense(self, classes: int) -> nn.Module:
        """The model as it was given, never grown, with a new head of `classes` outputs: what a single task would have."""
        if not is_integer(classes) or not 1 <= int(classes) <= CLASSES:
            raise ConfigError(f"classes={show(classes)} must be a whole number from 1 to {CLASSES:,}.")
        blueprint = self.core.blueprint
        tensors = blueprint.tensors()
        with use_seed(self.seed):
            return blueprint.build(tensors | blueprint.new_head(tensors, classes))

    @property
    def head(self) -> str:
        """The dotted name of the classifier layer, of which every task has its own."""
        return self.core.blueprint.head

    @property
    def fabric(self) -> Fabric:
        if self._fabric is None:
            from lightning_fabric import Fabric

            self._fabric = Fabric(accelerator="auto", devices=1)
        return self._fabric

    @property
    def channels_last(self) -> bool:
        """Whether images are in the channels-last memory format: on CPUs, if the model supports it.

        With inputs in this format, `subnet(task)` returns exactly the bits of `logits`; otherwise the last bits may differ.
        """
        return self.core.blueprint.channels_last and self.fabric.device.type == "cpu"

    # -- learning -------------------------------------------------------------------------------------------------

    def learn(
        self,
        task: Task,
        recipe: Recipe | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
    ) -> TaskRecord:
        """Learn one more task and commit it. If anything goes wrong, the learner stays as it was.

        Without a recipe, `Recipe.auto` chooses one by the number of examples. A warning says if the network that was learned
        is not good.

        With a folder `checkpoint`, every finished epoch is saved there: after a crash, the same call on a learner in the
        same state resumes from it and ends with the same bits. Remove the folder when the learner is saved. `on_epoch`
        is called with every finished epoch, those of an interrupted process first.
        """
        with self._change() as state:
            _check_task(task, "learn()")
            if recipe is not None and not isinstance(recipe, Recipe):
                raise ConfigError(f"recipe={show(recipe)} must be a Recipe, such as Recipe(epochs=20).")
            if on_epoch is not None and not callable(on_epoch):
                raise ConfigError(f"on_epoch={show(on_epoch)} must be a function; it is called with every finished epoch.")
            folder = None if checkpoint is None else _check_checkpoint(checkpoint)
            trainer = Trainer(
                self.fabric, seed=self.seed, channels_last=self.channels_last, progress=self.progress, on_epoch=on_epoch
            )
            self._state = new = learn_task(state, task, recipe, trainer, self.seed, checkpoint=folder)
        return new.records[task.name]

    def remember(self, task: Task) -> None:
        """Give a loaded learner the data of a learned task again, for a method that needs them.

        The data are not copied.
        """
        _check_task(task, "remember()")
        with self._change() as state:
            seed = task_seed(self.seed, state.number(task.name))
            with use_seed(seed):
                train, valid, targets = prepare_data(task, state.core.blueprint.example, torch.Generator().manual_seed(seed))
            before = state.objective(task.name)
            if targets != before.targets:
                known, now = (f"{given.outputs} {given.kind}" for given in (before.targets, targets))
                raise DataError(f"Task {task.name!r} was learned with {known}; these data have {now}.")
            made = make_objective(task, targets, train, state.core.blueprint.has_bias, seed)
            objectives = {**state.objectives, task.name: replace(made, scaling=before.scaling)}
            data = {**state.data, task.name: (train, valid)}
            self._state = replace(state, data=data, objectives=objectives).with_networks_of(state)

    # -- queries --------------------------------------------------------------------------------------------------

    @property
    def _queries(self) -> Queries:
        """Queries of the present state; what is learned meanwhile does not change it."""
        return Queries(self._state, self.fabric.device, self.channels_last)

    def logits(self, x: Query, task: str) -> Tensor:
        """The outputs of a task's network, of shape (rows, outputs): logits before softmax or sigmoid, or values.

        `x` has tensors or NumPy arrays, or is a DataLoader of batches, whose labels are ignored. For a task that was taught
        with `Images`, it may be a list of PIL images or an array of bytes, which become inputs as the task's own did.
        """
        return self._queries.logits(x, task)

    @overload
    def predict(self, x: Query, task: Literal["infer"], *, together: bool = False) -> Inferred: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, x: Query, task: str | None = None, *, together: bool = False) -> Tensor: ...

    @overload
    def predict(self, x: Query, task: Sequence[str], *, together: bool = False) -> Predictions: ...

    def predict(self, x: Query, task: str | Sequence[str] | None = None, *, together: bool = False) -> Predictions | Inferred:
        """What is predicted for some inputs, as `logits` takes them, all of one task or with one task's name per row.

        That is the class of every row, (rows,); or its labels as zeros and ones, (rows, labels); or its values, in the shape
        that the task was learned with. Rows of tasks that predict different things come as a list with a tensor for each.

        `task="infer"` infers the task of every row, or with `together` one task for all rows, which is far more reliable. It
        returns the predictions with the tasks and the confidence in them. Tasks are never inferred unless you say so.
        """
        queries = self._queries
        state = queries.state
        check_flag("together", together)
        infer = isinstance(task, str) and task == INFER
        if together and not infer:
            raise ConfigError('together=True is for task="infer": rows whose task is named need no inference.')
        if not isinstance(task, (str, Sequence, np.ndarray)) or getattr(task, "ndim", 1) != 1:
            raise TaskError(f'Which task? Give its name, one name per row, or task="infer" to infer it. {state.list_tasks()}')
        if infer:
            x = queries.read(x, "identify()")
            identified = queries.identify(x, together)
            return Inferred(queries.predict_each(x, identified.tasks), identified.tasks, identified.confidence)
        if isinstance(task, str):
            return queries.predict(x, task)
        x, names = queries.read(x, "Mixed tasks"), list(task)
        if len(names) != count_rows(x):
            raise TaskError(f"{len(names)} task names for {count_rows(x)} rows; give one name, or one per row.")
        unknown = [f"row {row}: {show(n)}" for row, n in enumerate(names) if not isinstance(n, str) or n not in state.records]
        if unknown:
            raise TaskError(f"No such task: {', '.join(unknown[:5])}. {state.list_tasks()}")
        return queries.predict_each(x, names)

    def identify(self, x: Query, *, together: bool = False) -> Identified:
        """Infer which task each row belongs to, by what the tasks' own inputs were like; with `together`, one for all rows.

        A row that is unlike the inputs of all tasks, such as a blank image or one of another scale, belongs to none (None);
        with `together`, if most rows do. About one in a hundred of a task's own inputs is taken for such a row.

        Tasks with permuted pixels or with different kinds of pictures can be told apart row by row. Where tasks are classes
        of the same kind of pictures, a single row is often taken for another task's, with low `confidence`; tens of
        rows `together` are not.
        """
        check_flag("together", together)
        queries = self._queries
        return queries.identify(queries.read(x, "identify()"), together)

    def task_scores(self, x: Query, task: str | None = None) -> Tensor:
        """How well inputs fit those that a task was learned from, a number for each row; higher is better.

        Without a task's name, there is a column for every task. Scores of different tasks can be compared with each other:
        that is how `identify` works.
        """
        return self._queries.task_scores(x, task)

    def accepts(self, x: Query, task: str) -> Tensor:
        """Whether inputs are like those that a task was learned from, for each row.

        The bounds come from the task's validation data: about 99 of 100 of its own inputs are accepted. A task that version
        0.1 learned has no bounds and accepts everything.
        """
        return self._queries.accepts(x, task)

    def has_signature(self, task: str) -> bool:
        """Whether a task has a signature of its inputs, which task inference needs; those of older versions have none."""
        state = self._state
        return bool(state.core.tasks[state.number(task)].signature)

    def evaluate(
        self,
        data: Source,
        task: str,
        *,
        metric: Metric | None = None,
        keys: Keys | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> float:
        """The score of a task's network on some labelled data, by the metric of its record or by another.

        By default the metric is accuracy, from 0 to 1, mean average precision or R², by what the task predicts; `metric` is a
        function of outputs and targets as in `Task`.

        Data, `keys` and `collate` are those of a `Task`, and `num_workers` that of a `Recipe`. In a pair `(x, y)`, `x` is what
        `logits` takes.
        """
        queries, what = self._queries, f"Task {task!r}, data"
        network, record = queries.state.network(task, self.fabric.device), queries.state.records[task]
        objective = queries.state.objective(task).of_committed
        objective = objective if metric is None else replace(objective, own_metric=metric)
        if metric is None and objective.metric != record.metric:
            raise TaskError(
                f"Task {task!r} was learned with a metric of its own, {record.metric!r}, which no file can hold. "
                "Give it: evaluate(data, task, metric=...)."
            )
        check_reading(keys, collate, what)
        if not is_integer(num_workers) or num_workers < 0:
            raise ConfigError(f"num_workers={show(num_workers)} must be a number of processes, 0 or more.")
        if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], (list, np.ndarray)):
            data = queries.read(data[0], what, [task]), data[1]
        checked = Data(data, what, keys, collate)
        checked.workers = int(num_workers)
        with use_seed(self.seed):
            check_targets(checked, queries.state.core.blueprint.example, objective.targets)
            return evaluate(network, checked, self.fabric, self.channels_last, objective)

    def subnet(self, task: str) -> nn.Module:
        """A task's network as a plain, physically small module, in eval mode."""
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
        int8: Query | None = None,
        pad: int = 1,
        tune: bool = False,
    ) -> ExportInfo:
        """Write a task's small network to a file for other programs, and return a description of it.

        `cats.onnx` runs in onnxruntime, `cats.pt2` is a `torch.export` program, `cats.safetensors` has plain weights with
        `cats.json` beside it; `format` names one for a file with another ending. Batch norms are folded into the layers
        before them where possible, unless `fold=False`. With calibration inputs `int8`, an ONNX file is quantized to 8 bits.

        With `pad=16`, zero filters make widths multiples of 16, which runtimes may compute faster; the outputs stay the same.
        `tune=True` measures this machine's onnxruntime, on one thread, with several paddings and with the dense network, and
        writes the fastest file of the task. The description's `tuned` has what was measured.
        """
        from .export.export import FORMATS, export_network
        from .export.pad import pad_network

        file = check_path("file", file)
        check_flag("fold", fold)
        if format is not None and not isinstance(format, str):
            raise ConfigError(f"format={show(format)} must be the name of a format, as text.")
        check_flag("tune", tune)
        if not is_integer(pad) or not 1 <= pad <= 1024:
            raise ConfigError(f"pad={show(pad)} must be a whole number from 1, for no padding, to 1024.")
        if tune and (pad != 1 or int8 is not None or (format or file.suffix) not in ("onnx", FORMATS["onnx"])):
            raise ConfigError("tune=True chooses the padding of an ONNX file: leave out pad, int8 and other formats.")
        state = self._state
        core, number = state.core, state.number(task)
        module, record = core.network(number), state.records[task]
        tensors, units = core.task_tensors(number), core.tasks[number].units
        tuned: list[TunedInfo] = []
        if tune:
            from .export.tune import tune_padding

            dense = self.dense(record.classes)
            tuned = tune_padding(
                lambda n: pad_network(core.blueprint, tensors, units, n)[0], dense, core.blueprint.example, fold
            )
            pad = tuned[0]["pad"] or 1
        about = _describe_network(record)
        if pad > 1:
            module, about["padded"] = pad_network(core.blueprint, tensors, units, pad)
        inputs = None if int8 is None else self._queries.read(int8, "int8, the calibration inputs", [task])
        if inputs is not None and not count_rows(inputs):
            raise DataError("int8, the calibration inputs: there are none.")
        info = export_network(module, core.blueprint.example, file, about, format=format, fold=fold, int8=inputs)
        return info | {"tuned": list(map(dict, tuned))} if tuned else info  # type: ignore[return-value]

    @file_errors("The networks cannot be exported")
    def export_together(self, file: str | os.PathLike[str], tasks: Sequence[str] | None = None) -> TogetherInfo:
        """Write the networks of several tasks, by default of all, to one ONNX file with an output for each.

        The output of the task `cats` is called `cats/logits`, or `cats/values`. Weights that tasks share are in the file once.
        """
        from .export.together import TaskNetwork, export_together

        file, state = check_path("file", file), self._state
        core, names = state.core, list(dict.fromkeys(state.records if tasks is None else tasks))
        if not names:
            raise ConfigError("There is no task to export.")
        networks = []
        for name in names:
            number = state.number(name)
            networks.append(
                TaskNetwork(core.tasks[number].units, core.task_tensors(number), _describe_network(state.records[name]))
            )
        return export_together(core.blueprint, core.shared, networks, file)

    def digests(self) -> dict[str, str]:
        """Every task's digest, computed from the present bits of its network."""
        return _digests(self._state)

    def verify(self) -> dict[str, str]:
        """Compute every task's digest and return them; raise StoreError if one differs from that at its commit."""
        return _verify(self._state)

    # -- saving ---------------------------------------------------------------------------------------------------

    @file_errors("The learner cannot be saved")
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the learner into a folder, as JSON and safetensors. If it is interrupted, the folder stays as it was.

        A second process that saves to the same folder waits for the first, at most 30 seconds; then it raises StoreError.
        """
        folder = check_path("folder", folder)
        state = self._state
        body, files = to_files(state.core, state.records, state.saved)
        if self.fabric.is_global_zero:
            method = {**describe_method(state.method), "forgets": state.method.forgets}
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
        """Read a saved learner. `model` must have the same architecture; its weights do not matter.

        `method` is needed only to learn more tasks with a method of your own. Files are always checked; with `verify=False` the
        networks are not compared with their digests.
        """
        folder = check_path("folder", folder)
        check_flag("verify", verify)
        check_model(model)
        body, files = store.load(folder, SavedLearner)
        model = without_auxiliary_layers(model, example_input(files, folder))
        compare_tensors(body.tensors, model, folder)
        method = _make_method(body, None, folder) if method is None else method
        _check_method(method)
        if name_method(method) != body.method.name:
            raise ConfigError(f"{folder} was learned with {body.method.name}; it cannot continue with {name_method(method)}.")
        model = rebuild(model, initial_tensors(files, model, folder))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpaceWarning)  # the user saw them when the learner was made
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
            core = learner.core
            if body.rules != core.blueprint.rules:
                core = Core.empty(validate_model(model, core.blueprint.example, body.head, body.shared, body.rules))
        learner._state = State(method, *from_files(core, body, files, folder))
        if verify:
            learner.verify()
        return learner

    @file_errors("The learner cannot be loaded")
    def reload(self, folder: str | os.PathLike[str]) -> Learner:
        """A learner of the same architecture with what the folder holds now: far faster than `load`.

        This learner stays as it is. Networks of tasks that have not changed are the same modules.
        """
        state, folder = self._state, check_path("folder", folder)
        body, files = store.load(folder, SavedLearner)
        compare_tensors(body.tensors, state.core.blueprint.module, folder)
        method = _make_method(body, state.method, folder)
        new = State(method, *from_files(state.core, body, files, folder))
        _verify(new)
        learner = copy.copy(self)
        learner._state, learner.seed = new.with_networks_of(state), body.seed
        return learner

    # -- names of version 0.1 -------------------------------------------------------------------------------------

    room = renamed("room", "capacity")
    given = renamed("given", "dense")
    likeness = renamed("likeness", "task_scores")
    remembers = renamed("remembers", "has_signature")
    reloaded = renamed("reloaded", "reload")


def _check_task(task: object, where: str) -> None:
    if not isinstance(task, Task):
        raise DataError(f"{where} needs a Task, such as Task('name', (x, y)); got a {type(task).__name__}.")


def _check_method(method: object) -> None:
    """A method is an instance of a dataclass, so that its options can be saved."""
    if isinstance(method, type):
        raise ConfigError(f"method={method.__name__} is a class. Give an instance, such as {method.__name__}().")
    if not isinstance(method, Method) or not is_dataclass(method):
        what = "is not a dataclass" if isinstance(method, Method) else "is not a spacecl.Method"
        raise ConfigError(f"method={show(method)} {what}. Give a method of spacecl, such as SPACE(), or one of your own.")


def _check_fabric(fabric: object) -> None:
    from lightning_fabric import Fabric

    if not isinstance(fabric, Fabric):
        raise ConfigError(f"fabric={show(fabric)} must be a lightning_fabric.Fabric.")
    _check_strategy(fabric.strategy)


def _check_strategy(strategy: object) -> None:
    """Refuse strategies that divide a network between devices: freezing, narrowing and commits need whole tensors."""
    from lightning_fabric.strategies import DDPStrategy, SingleDeviceStrategy

    if not isinstance(strategy, (DDPStrategy, SingleDeviceStrategy)):
        raise ConfigError(
            f"The strategy of the Fabric is {type(strategy).__name__}, but every process must have the whole network on one "
            'device. Make the Fabric with strategy="ddp", or for one process without a strategy.'
        )


def _check_checkpoint(checkpoint: str | os.PathLike[str]) -> Path:
    folder = check_path("checkpoint", checkpoint)
    with file_errors("The checkpoint cannot be saved"):
        is_file = folder.exists() and not folder.is_dir()
    if is_file:
        raise ConfigError(f"checkpoint={str(folder)!r} is a file. Give a folder, which need not exist yet.")
    return folder


def _describe_network(record: TaskRecord) -> NetworkInfo:
    """What an exported file says of a task's network."""
    return {
        "task": record.name,
        "target_kind": record.target_kind,
        "classes": list(record.class_labels),
        "digest": record.digest,
        "widths": dict(record.widths),
        "pictures": record.pictures,
    }


def _digests(state: State) -> dict[str, str]:
    return {name: state.core.digest(number) for number, name in enumerate(state.records)}


def _verify(state: State) -> dict[str, str]:
    digests = _digests(state)
    changed = [name for name, digest in digests.items() if digest != state.records[name].digest]
    if changed:
        raise StoreError(f"The networks of these tasks have changed since their commit: {', '.join(changed)}.")
    return digests


def _make_method(body: SavedLearner, present: Method | None, folder: object) -> Method:
    """The method that a learner was saved with: of the same class as `present`, or one of spacecl's, or else an absent one."""
    name, forgets = body.method.name, body.method.forgets
    if present is not None and name_method(present) != name:
        raise StoreError(f"{folder} was learned with {name}, not with {name_method(present)}. Use Learner.load.")
    make: Callable[..., Method] = METHODS.get(name, AbsentMethod) if present is None else type(present)
    if make is AbsentMethod:
        return AbsentMethod(name, body.method.options, forgets is not False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # options of older versions had other names
            return make(**add_former_values(make, body.method.options))
    except (TypeError, SpaceError) as error:
        raise StoreError(f"{folder} was saved with options that {name} does not accept: {error}") from error
