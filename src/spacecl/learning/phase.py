"""The state of one phase of training, and how it becomes a checkpoint and comes back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..errors import StoreError, first_line
from ..seeds import seed_process
from ..structure.tensors import named_tensors
from .checkpoints import Epoch, PhaseState, RandomState, random_state, restore_random_state, select_prefix
from .distributed import gather_tensors, gather_values
from .recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass
class Phase:
    """Everything that the rest of a phase depends on."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    generators: list[torch.Generator]  # of the order of the examples, which is the same in every process
    seed: int = 0
    history: list[Epoch] = field(default_factory=list)
    best: dict[str, Tensor] | None = None  # the tensors of the best epoch so far
    highest: float = float("-inf")  # its validation score
    average: dict[str, Tensor] | None = None  # the mean of the tensors after each of the last epochs so far
    done: bool = False

    @property
    def score(self) -> float:
        """The validation score of the last epoch."""
        return self.history[-1]["score"] if self.history else float("nan")

    def finish_epoch(self, row: Epoch, recipe: Recipe) -> None:
        """Record an epoch, and its weights as the recipe keeps them: if they are the best so far, or in the average."""
        self.history.append(row)
        if recipe.keep == "best" and row["score"] >= self.highest:
            self.highest = row["score"]
            self.best = {name: tensor.clone() for name, tensor in named_tensors(self.module).items()}
        count = len(self.history) - recipe.epochs + max(1, recipe.epochs // 4)  # epochs in the average, this one included
        if recipe.keep == "average" and count >= 1:
            self._add_to_average(count)

    def _add_to_average(self, count: int) -> None:
        """Update the mean of the weights after `count` epochs. What is no fraction, such as counters, keeps the last value."""
        tensors = named_tensors(self.module)
        before = self.average or {}
        self.average = {
            name: tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
            if tensor.is_floating_point() or tensor.is_complex()
            else tensor.clone()
            for name, tensor in tensors.items()
        }
        for name, mean in before.items():
            if tensors[name].is_floating_point() or tensors[name].is_complex():
                self.average[name] = mean + (self.average[name] - mean) / count

    def to_checkpoint(self, fabric: Fabric) -> tuple[PhaseState, dict[str, dict[str, Tensor]]]:
        """The state as plain values and files of tensors. All processes call this, and each gets the state of all."""
        own, tensors = random_state(fabric.device)
        drawn, *others = gather_values(fabric, asdict(own))
        generators = {
            _name_by_rank(name, rank): state
            for name, tensor in tensors.items()
            for rank, state in enumerate(gather_tensors(fabric, tensor))
        }
        schedule = {key: value for key, value in self.schedule.state_dict().items() if key in _SCHEDULE_STATE}
        rates = tuple(float(group["lr"]) for group in self.optimizer.param_groups)
        states = RandomState(**drawn), tuple(RandomState(**other) for other in others)
        body = PhaseState(tuple(self.history), self.highest, self.done, rates, schedule, *states)
        moments = self.optimizer.state_dict()["state"]
        files = {
            "module": named_tensors(self.module),
            "optimizer": {f"{number}.{name}": value for number, values in moments.items() for name, value in values.items()},
            "random": generators | {f"order{number}": order.get_state() for number, order in enumerate(self.generators)},
        }
        kept = {"best": self.best, "average": self.average}
        return body, files | {name: tensors for name, tensors in kept.items() if tensors is not None}

    def restore(self, body: PhaseState, tensors: dict[str, Tensor], fabric: Fabric) -> None:
        """Take over the state of a checkpoint; raise StoreError if it does not fit the module and its optimizer.

        With another number of processes than it was saved with, their random numbers begin anew. The order of the examples
        stays what it was.
        """
        try:
            self._restore(body, tensors, fabric.device)
            states, rank = (body.random, *body.others), fabric.global_rank
            if len(states) == fabric.world_size:
                names = {name: _name_by_rank(name, rank) for name in ("torch", "device")}
                drawn = select_prefix(tensors, "random")
                own = {name: drawn[key] for name, key in names.items() if key in drawn}
                restore_random_state(states[rank], own, fabric.device)
            else:
                seed_process(self.seed, len(body.history), rank)
        except (KeyError, IndexError, ValueError, TypeError, RuntimeError, AttributeError) as error:
            raise StoreError(
                f"The checkpoint does not fit the network: {type(error).__name__}: {first_line(error)}. "
                "Remove its folder to train this task from the start."
            ) from error

    @torch.no_grad()
    def _restore(self, body: PhaseState, tensors: dict[str, Tensor], device: torch.device) -> None:
        module, generators = (select_prefix(tensors, name) for name in ("module", "random"))
        for name, tensor in named_tensors(self.module).items():
            tensor.copy_(module[name])
        moments: dict[int, dict[str, Tensor]] = {}
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for key, value in select_prefix(tensors, "optimizer").items():
            index, name = key.split(".", 1)
            like = parameters[int(index)]
            if value.shape == like.shape:
                value = torch.empty_like(like, dtype=value.dtype).copy_(value)  # in the parameter's memory format
            moments.setdefault(int(index), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        for group, rate in zip(groups, body.rates):
            group["lr"] = rate
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.schedule.load_state_dict(body.schedule)
        self.history, self.highest, self.done = list(body.history), body.highest, body.done
        self.best, self.average = (
            self._restore_kept(select_prefix(tensors, name), name, device) for name in ("best", "average")
        )
        for number, generator in enumerate(self.generators):
            generator.set_state(generators[f"order{number}"])

    def _restore_kept(self, tensors: dict[str, Tensor], name: str, device: torch.device) -> dict[str, Tensor] | None:
        """The best or the averaged weights so far; None if the checkpoint has none."""
        misfits = [key for key, tensor in named_tensors(self.module).items() if tensors and tensors[key].shape != tensor.shape]
        if misfits:
            raise ValueError(f"the {name} weights so far of {misfits[0]} have another shape")
        return {key: tensor.to(device) for key, tensor in tensors.items()} or None


def _name_by_rank(name: str, rank: int) -> str:
    return f"rank{rank}.{name}" if rank else name


_SCHEDULE_STATE = {"last_epoch", "_step_count", "_last_lr", "best", "num_bad_epochs"}  # what changes as a schedule advances
