"""Learning one more task: from a state and a user's task to the state that has it committed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.prepare import prepare_data
from ..data.targets import TargetKind
from ..data.task import Task
from ..data.task_data import Data
from ..documents import digest_json
from ..errors import DataError, TaskError, TrainingError, warn_user
from ..inference.task_inference import SAMPLES as SIGNATURE_SAMPLES
from ..inference.task_inference import estimate_bounds, make_signature
from ..seeds import task_seed, use_seed
from ..structure.tensors import Tensors
from .analysis import Analysis
from .checkpoints import Checkpointer
from .context import TaskContext
from .method import Learned, describe_method, name_method
from .objective import ANSWERS, Objective, add_recipe, check_recipe, make_objective
from .quality import SAMPLES, Examples, Sampled, describe_weakness
from .queries import Queries
from .recipe import SPEED_ONLY, Recipe
from .record import TaskRecord
from .seal import extend_seal, has_seal, make_seal
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
        train, valid, targets = prepare_data(task, state.core.blueprint.example, torch.Generator().manual_seed(own_seed))
        state.method.check_target(task.name, targets.kind)
        if recipe is None:
            recipe = Recipe.auto(len(train), len(valid), state.core.blueprint.pretrained, **train.recipe_values)
            recipe = state.method.spend_all_epochs(recipe, number)
        check_recipe(task, targets, recipe)
        train.workers = valid.workers = recipe.num_workers
        objective = make_objective(task, targets, train, state.core.blueprint.has_bias, own_seed)
        trainer = replace(trainer, recipe=recipe, objective=add_recipe(objective, recipe, train, own_seed))
        torch.manual_seed(own_seed)  # however many numbers were drawn while the data were read
        if checkpoint is not None:
            facts: dict[str, Any] = {"examples": [len(train), len(valid)], "classes": targets.outputs}
            facts |= {} if objective.is_accuracy else {"target_kind": targets.kind, "metric": objective.metric}
            trainer = replace(trainer, checkpointer=_make_checkpointer(state, checkpoint, task.name, trainer, seed, facts))
        earlier = tuple(state.data[name] for name in state.records) if state.method.needs_data else ()
        before = _get_objectives(state, recipe, own_seed)
        context = TaskContext(task.name, train, valid, targets.outputs, trainer, earlier, before)
        try:
            learned = state.method.learn(state.core, context)
        except DataError as error:  # found in examples that were read for the first time
            raise DataError(f"{error} Nothing was committed; the learner is unchanged.") from error
        _check_learned(state, learned)
        learned = replace(learned, core=learned.core.with_scaling(objective.scaling))
        network = learned.core.network(number).to(trainer.fabric.device)
        score = evaluate(network, valid, trainer.fabric, trainer.channels_last, objective.of_committed)
        queries = Queries(state, trainer.fabric.device, trainer.channels_last)
        train_examples, valid_examples = Examples(limit=SAMPLES), Examples()
        signature = _measure_inputs(queries, network, context, train_examples, valid_examples)
        core = learned.core.with_signature(signature)
    weakness = describe_weakness(score, len(valid), train_examples, valid_examples, objective) if learned.history else None
    if weakness is not None and trainer.fabric.is_global_zero:
        result = f"is right on {score:.0%} of" if objective.is_accuracy else f"has {objective.metric} {score:.2f} on"
        warn_user(
            f"Task {task.name!r}: the network {result} the {len(valid)} validation examples, {weakness}. "
            "Give more data, train for more epochs or at another learning rate, use a larger network, or check the labels."
        )
    record = TaskRecord(
        name=task.name,
        classes=targets.outputs,
        class_names=task.class_names,
        accuracy=score if objective.is_accuracy else None,
        digest=core.digest(number),
        widths=core.channels.widths(core.tasks[number].units),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        size=core.size(),
        used=core.channels.widths(core.committed_units),
        pictures=None if train.images is None else train.images.preprocessing(),
        history=tuple(learned.history),
        seconds=_add_up_seconds(learned),
        target_kind=targets.kind,
        flat=targets.flat,
        metric=objective.metric,
        score=score,
        **_fields(learned.analysis),
    )
    records = {**state.records, task.name: record}
    if state.method.forgets:
        records = {name: replace(old, digest=core.digest(n)) for n, (name, old) in enumerate(records.items())}
    data = {**state.data, task.name: (train, valid)} if state.method.needs_data else state.data
    objectives = {**state.objectives, task.name: objective}
    known = None if state.seal is None or core.channels is not state.core.channels else state.seal
    seal = None if state.method.forgets else make_seal(core) if known is None else extend_seal(known, core)
    new = replace(state, core=core, records=records, data=data, objectives=objectives, seal=seal).with_networks_of(state)
    new.networks[task.name] = network
    return new


def _get_objectives(state: State, recipe: Recipe, seed: int) -> tuple[Objective, ...]:
    """What earlier tasks were trained for; where a method trains them again, with this recipe. Its own weights fit one task."""
    recipe = recipe if recipe.class_weights == "balanced" else replace(recipe, class_weights=None)
    objectives = {name: state.objective(name) for name in state.records}
    if state.method.needs_data:
        objectives = {n: add_recipe(objective, recipe, state.data[n][0], seed) for n, objective in objectives.items()}
    return tuple(objectives.values())


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
    if state.method.forgets or (state.seal is not None and has_seal(learned.core, state.seal, state.core)):
        return
    records = enumerate(state.records.values())
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
    identity = {
        "task": task,
        "before": {name: record.digest for name, record in state.records.items()},
        "seed": seed,
        "method": describe_method(state.method),
        "recipe": {name: value for name, value in asdict(trainer.recipe).items() if name not in SPEED_ONLY},  # type: ignore[call-overload]
        "precision": trainer.fabric.strategy.precision.precision,
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
    kind = task.objective.targets.kind
    signature = make_signature(_describe_inputs(train_examples.keep(train), kind), task.classes)
    bounds = estimate_bounds((x for x, _, _ in valid_examples.keep(valid)), signature) if signature else {}
    return signature | bounds


def _describe_inputs(batches: Iterator[Sampled], kind: TargetKind) -> Iterator[Sampled]:
    """Inputs with their classes, all the same where the task has none, and the confidence of the network's outputs."""
    for x, y, outputs in batches:
        classes = y if kind == "classes" else torch.zeros(len(y), dtype=torch.int64)
        yield x, classes, ANSWERS[kind].energy(outputs)


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
