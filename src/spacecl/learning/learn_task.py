"""Learning one more task: from a state and a user's task to the state that has it committed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.task import Task
from ..data.task_data import Data, prepare_data
from ..documents import digest_json
from ..errors import ConfigError, DataError, TaskError, TrainingError, warn_user
from ..inference.task_inference import SAMPLES as SIGNATURE_SAMPLES
from ..inference.task_inference import estimate_bounds, make_signature
from ..seeds import task_seed, use_seed
from ..structure.channels import Tensors
from .analysis import Analysis
from .checkpoints import Checkpointer
from .context import TaskContext
from .method import Learned, describe_method, name_method
from .quality import SAMPLES, Examples, Sampled, describe_weakness
from .queries import Queries
from .recipe import SPEED_ONLY, Recipe
from .record import TaskRecord
from .state import State
from .trainer import Trainer, evaluate


def learn_task(
    state: State, task: Task, recipe: Recipe | None, trainer: Trainer, seed: int, checkpoint: Path | None = None
) -> State:
    """Check a task's data, learn it by the state's method, and return the state that has it.

    Without a recipe, one is chosen by the amount of data. `seed` is the learner's, from which the task's own is derived. The
    state given is not changed.
    """
    if task.name in state.records:
        raise TaskError(f"A task named {task.name!r} has been learned already. Give this one another name.")
    _check_earlier_data(state)
    number = len(state.records)
    own_seed = task_seed(seed, number)
    trainer = replace(trainer, seed=own_seed, title=f"{task.name}:")
    with use_seed(own_seed):
        train, valid, classes = prepare_data(task, state.core.blueprint.example, torch.Generator().manual_seed(own_seed))
        torch.manual_seed(own_seed)  # however many numbers were drawn while the data were read
        if recipe is None:
            recipe = state.method.spend_all_epochs(_choose_recipe(train, valid, state.core.blueprint.pretrained), number)
        trainer = replace(trainer, recipe=recipe)
        train.workers = valid.workers = recipe.num_workers
        if checkpoint is not None:
            facts = {"examples": [len(train), len(valid)], "classes": classes}
            trainer = replace(trainer, checkpointer=_make_checkpointer(state, checkpoint, task.name, trainer, seed, facts))
        earlier = tuple(state.data[name] for name in state.records) if state.method.needs_data else ()
        context = TaskContext(task.name, train, valid, classes, trainer, earlier)
        try:
            learned = state.method.learn(state.core, context)
        except DataError as error:  # found in examples that were read for the first time
            raise DataError(f"{error} Nothing was committed; the learner is unchanged.") from error
        _check_learned(state, learned)
        network = learned.core.network(number).to(trainer.fabric.device)
        accuracy = evaluate(network, valid, trainer.fabric, trainer.channels_last)
        queries = Queries(state, trainer.fabric.device, trainer.channels_last)
        train_examples, valid_examples = Examples(limit=SAMPLES), Examples()
        signature = _measure_inputs(queries, network, context, train_examples, valid_examples)
        core = learned.core.with_signature(signature)
    weakness = describe_weakness(accuracy, len(valid), train_examples, valid_examples) if learned.history else None
    if weakness is not None and trainer.fabric.is_global_zero:
        warn_user(
            f"Task {task.name!r}: the network is right on {accuracy:.0%} of the {len(valid)} validation examples, {weakness}. "
            "Give more data, train for more epochs or at another learning rate, use a larger network, or check the labels."
        )
    record = TaskRecord(
        name=task.name,
        classes=classes,
        class_names=task.class_names,
        accuracy=accuracy,
        digest=core.digest(number),
        widths=core.channels.widths(core.tasks[number].units),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        size=core.size(),
        used=core.channels.widths(core.committed_units),
        pictures=None if train.images is None else train.images.preprocessing(),
        history=tuple(learned.history),
        seconds=_add_up_seconds(learned),
        **_fields(learned.analysis),
    )
    records = {**state.records, task.name: record}
    if state.method.forgets:
        records = {name: replace(old, digest=core.digest(n)) for n, (name, old) in enumerate(records.items())}
    data = {**state.data, task.name: (train, valid)} if state.method.needs_data else state.data
    new = replace(state, core=core, records=records, data=data).with_networks_of(state)
    new.networks[task.name] = network
    return new


def _choose_recipe(train: Data, valid: Data, pretrained: bool) -> Recipe:
    size = train.batch_size
    return Recipe.auto(len(train), len(valid), pretrained, **({} if size is None else {"batch_size": size}))


def _check_earlier_data(state: State) -> None:
    missing = [repr(name) for name in state.records if name not in state.data]
    if missing and state.method.needs_data:
        raise TaskError(
            f"{name_method(state.method)} trains on the data of all tasks; those of {', '.join(missing)} are not available. "
            "Give them again with learner.remember(Task(...))."
        )


def _check_learned(state: State, learned: Learned) -> None:
    """Refuse what a method returns if it is not one more task, or if it changed earlier ones and says that it never does."""
    name, number = name_method(state.method), len(state.records)
    if not isinstance(learned, Learned):
        raise TrainingError(f"{name}.learn() returned a {type(learned).__name__}. Return spacecl.Learned(core, history).")
    if len(learned.core.tasks) != number + 1:
        raise TrainingError(
            f"{name}.learn() returned a core of {len(learned.core.tasks)} tasks instead of {number + 1}. "
            "Return what core.commit() or core.replace_weights() returns."
        )
    records = enumerate(() if state.method.forgets else state.records.values())
    changed = [repr(record.name) for number, record in records if learned.core.digest(number) != record.digest]
    if changed:
        raise TrainingError(
            f"{name} changed the networks of {', '.join(changed)}, but says that it does not forget. Nothing was committed. "
            "Commit with core.commit(), which writes nothing that was committed, or set forgets = True."
        )


def _make_checkpointer(
    state: State, folder: Path, task: str, trainer: Trainer, seed: int, data: Mapping[str, Any]
) -> Checkpointer:
    """Checkpoints that know what they belong to: the task, how it is learned, and what was learned before."""
    if trainer.fabric.world_size > 1:
        raise ConfigError(f"Checkpoints are for one process, but there are {trainer.fabric.world_size}. Leave checkpoint out.")
    identity = {
        "task": task,
        "before": {name: record.digest for name, record in state.records.items()},
        "seed": seed,
        "method": describe_method(state.method),
        "recipe": {name: value for name, value in asdict(trainer.recipe).items() if name not in SPEED_ONLY},  # type: ignore[call-overload]
        **data,
        "model": state.core.channels.fingerprint(),
        "operations": {"torch": torch.__version__, "sha256": digest_json(state.core.channels.operations)},
    }
    method = state.method
    renamed, former = getattr(method, "renamed_options", {}), getattr(method, "former_values", {})
    return Checkpointer(folder, json.loads(json.dumps(identity)), renamed, former)


def _measure_inputs(
    queries: Queries, network: nn.Module, task: TaskContext, train_examples: Examples, valid_examples: Examples
) -> Tensors:
    """The signature of a task's inputs, with bounds from its validation data; empty if they are not finite.

    What is read for it is also kept in the examples.
    """
    train, valid = (_sample(queries, network, data, task.trainer.seed) for data in (task.train, task.valid))
    signature = make_signature(train_examples.keep(train), task.classes)
    bounds = estimate_bounds((x for x, _, _ in valid_examples.keep(valid)), signature) if signature else {}
    return signature | bounds


def _sample(queries: Queries, network: nn.Module, data: Data, seed: int) -> Iterator[Sampled]:
    """Batches of random examples, with the outputs of a network, as many as a signature needs."""
    count = 0
    for x, y in data.batches(500, torch.Generator().manual_seed(seed)):
        x = data.finish(x)
        yield x, y, queries.run(network, x)
        count += len(y)
        if count >= SIGNATURE_SAMPLES:
            return


def _add_up_seconds(learned: Learned) -> dict[str, float]:
    """The seconds of every phase, whichever process trained it."""
    seconds = dict(learned.seconds)
    for row in learned.history:
        seconds[row["phase"]] = seconds.get(row["phase"], 0.0) + row["seconds"]
    return seconds


def _fields(analysis: Analysis) -> dict[str, Any]:
    return {name: getattr(analysis, name) for name in Analysis.__dataclass_fields__}
