"""Owner ids: which output channel of which layer owns each element of every tensor in a network.

Every convolution, linear layer and embedding gives its output channels fresh integer ids. The ids flow through the
exported graph in tensors shaped like the activations; `operators.py` says what each operation does to them. Ids that
are tied become one *unit*: channels that can only be kept or removed together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from ..errors import UnsupportedModelError
from .graph import layer_of, layers_of, matches, place_of, source_of

NOBODY = -1  # the owner of what no layer's width can change, such as the pixels of the input

_UNOWNED = "its channels meet values that no layer owns"

Arguments = dict[str, Any]
Rules = Callable[["Walk", Node, str, Arguments], Any]


@dataclass
class Owners:
    """What a walk through the graph found."""

    count: int = 0  # ids given out
    made: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # a layer's weight -> its output channels' ids, start to stop
    followers: dict[str, Tensor] = field(default_factory=dict)  # a depthwise convolution's weight -> the ids of its outputs
    dims: dict[str, list[Tensor | None]] = field(default_factory=dict)  # tensor -> per dimension the id that owns each index
    elements: dict[str, Tensor] = field(default_factory=dict)  # loose tensor -> the id of each of its elements
    ties: list[Tensor] = field(default_factory=list)  # (2, n) ids that belong together
    pins: dict[int, str | None] = field(default_factory=dict)  # id -> why it stays; None where the user asked for it
    norms: set[str] = field(default_factory=set)  # tensors of norm layers
    readers: dict[str, int] = field(default_factory=dict)  # weight that mixes channels -> the channel dimension of its input
    biases: dict[str, list[str]] = field(default_factory=dict)  # weight -> biases of the layers that use it
    operations: list[str] = field(default_factory=list)  # what the model does, in order
    head: str = ""  # the layer whose output the model returns
    units: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # id -> the number of its unit


@dataclass
class Attribute:
    """A parameter or buffer as it enters the graph; it gets ids of its own only when an operation computes with it."""

    name: str
    shape: tuple[int, ...]


class Walk:
    """One walk through an exported graph, with the ids of every value met so far."""

    def __init__(
        self,
        exported: torch.export.ExportedProgram,
        head: str | None,
        shared: Sequence[str],
        aliases: Mapping[str, str],
        rules: Rules,
    ):
        self.exported, self.shared, self.aliases, self.rules = exported, shared, aliases, rules
        self.found = Owners(head=head or "")
        self.values: dict[Node, Any] = {}
        self.problems: list[str] = []  # what no option can mend
        self.doubts: list[tuple[Node, str, list[Tensor]]] = []  # operations that need these ids to stay whole
        self.suspects: list[tuple[Tensor, Tensor, Tensor, str]] = []  # see `whole_if_apart`
        self.slices: list[tuple[Tensor, Tensor, str]] = []  # see `whole_if_lost`

    def run(self) -> Owners:
        """Walk the graph; raise one error that names every layer that cannot be served."""
        signature = self.exported.graph_signature
        names: Mapping[str, str] = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        for node in self.exported.graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder" and node.name in names:
                name = names[node.name]
                self.values[node] = Attribute(self.aliases.get(name, name), tuple(value.shape))
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                self._check_output(node)
            else:
                self.values[node] = self.nobody(value)
        for name in self.found.elements.keys() & self.found.dims.keys():  # read as a layer's weight, and otherwise too
            for ids in self.found.dims[name]:
                self.pin(ids, f"{name} is used in more than one way")
        self._find_units()
        self._refuse()
        return self.found

    # -- what operators use ---------------------------------------------------------------------------------------

    def ids(self, argument: Any) -> Any:
        """The ids of an argument of an operation; a loose parameter's elements get theirs here."""
        if isinstance(argument, Node):
            return self.ids(self.values[argument])
        if isinstance(argument, Attribute):
            if argument.name not in self.found.elements:
                size = int(np.prod(argument.shape, dtype=np.int64))
                self.found.elements[argument.name] = self.fresh(size).reshape(argument.shape)
            return self.found.elements[argument.name]
        if isinstance(argument, (list, tuple)):
            return [self.ids(item) for item in argument]
        return argument

    def activations(self, node: Node, attributes: bool = True) -> list[Tensor]:
        """The ids of all tensors that an operation takes, with or without parameters and buffers."""
        nodes = [item for item in node.all_input_nodes if attributes or self.attribute(item) is None]
        found = [self.ids(item) for item in nodes]
        flat = [item for value in found for item in (value if isinstance(value, list) else [value])]
        return [item for item in flat if isinstance(item, Tensor)]

    def attribute(self, argument: Any) -> str | None:
        """The name of the parameter or buffer that an argument is, if it is one."""
        value = self.values.get(argument) if isinstance(argument, Node) else None
        return value.name if isinstance(value, Attribute) else None

    def nobody(self, value: Any) -> Any:
        """Ids of nobody, in the shape of an example value."""
        if isinstance(value, (list, tuple)):
            return [self.nobody(item) for item in value]
        return torch.full(tuple(value.shape), NOBODY) if isinstance(value, Tensor) else None

    def fresh(self, count: int) -> Tensor:
        self.found.count += count
        return torch.arange(self.found.count - count, self.found.count)

    def tie(self, left: Tensor, right: Tensor) -> None:
        """Ids that meet belong together."""
        pairs = _apart(left, right)
        if pairs.numel():
            self.found.ties.append(pairs)

    def pin(self, ids: Tensor | None, reason: str | None) -> None:
        """The layers of these ids stay whole."""
        if ids is not None:
            for index in torch.unique(ids[ids >= 0]).tolist():
                self.found.pins.setdefault(index, reason)

    def whole_if_apart(self, left: Tensor, right: Tensor, reason: str) -> None:
        """Pin `left` if, when all ties are known, it is found to differ from `right`."""
        self.suspects.append((*_apart(left, right), torch.unique(left), reason))

    def whole_if_lost(self, before: Tensor, after: Tensor, reason: str) -> None:
        """Pin `before` if, when all ties are known, some of its units are not in `after`."""
        self.slices.append((torch.unique(before), torch.unique(after), reason))

    def along(self, ids: Tensor, dim: int) -> Tensor:
        """One id for every index along `dim`: those that meet at an index are tied, or pinned where nobody's meet them."""
        columns = ids.movedim(dim, -1).reshape(-1, ids.shape[dim])  # (places, channels)
        best = columns.max(0).values
        self.tie(columns, best)
        self.pin(best[(columns == NOBODY).any(0)], _UNOWNED)
        return best

    def own(self, argument: Any, dim: int, ids: Tensor) -> str | None:
        """Note that `ids` own the indices of a parameter's dimension; a parameter used twice ties both owners."""
        name = self.attribute(argument)
        if name is None:
            return None
        dims = self.found.dims.setdefault(name, [None] * len(self.values[argument].shape))
        before = dims[dim]
        if before is not None:
            self.tie(before, ids)
            self.pin(torch.where((before >= 0) != (ids >= 0), torch.maximum(before, ids), NOBODY), _UNOWNED)
            ids = torch.where(ids >= 0, ids, before)
        dims[dim] = ids
        return name

    def make(self, node: Node, weight: Node, dim: int, out: int) -> Tensor:
        """Ids for a layer's output channels, fresh when the layer is first used and the same ones after that."""
        attribute, shape = self.values[weight], tuple(node.meta["val"].shape)
        name, size = attribute.name, attribute.shape[dim]
        if name not in self.found.made:
            self.found.made[name] = (self.found.count, self.found.count + size)
            self.fresh(size)
        ids = torch.arange(*self.found.made[name])
        if len(ids) != size:
            self.problem(node, f"its weight {name} serves another layer in another way; give it one of its own")
            return self.nobody(node.meta["val"])
        self.own(weight, dim, ids)
        if matches(layer_of(name), self.shared):
            self.pin(ids, None)
        return spread_along(ids, out, shape)

    def unknown(self, node: Node, why: str) -> Any:
        """An operation that needs what it reads whole: refused unless its layer, or all that feeds it, is shared."""
        for argument in node.all_input_nodes:
            if self.attribute(argument) is not None:
                self.pin(self.ids(argument), None)  # its own parameters stay whole
        ids = self.activations(node, attributes=False)
        if any(matches(path, self.shared) for path, _ in layers_of(node) if path):
            for item in ids:
                self.pin(item, None)
        elif ids:
            self.doubts.append((node, why, ids))
        return self.nobody(node.meta["val"])

    def problem(self, node: Node, why: str) -> None:
        self.problems.append(f"{place_of(node)}: {why}{source_of(node)}")

    # -- the walk -------------------------------------------------------------------------------------------------

    def _call(self, node: Node) -> Any:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            if getattr(node.target, "__name__", "") == "getitem":
                return self.values[node.args[0]][node.args[1]]  # type: ignore[index]
            self.problem(node, f"{getattr(node.target, '__name__', node.target)} inside forward(); move it out of the model")
            return self.nobody(node.meta.get("val"))
        name = schema.name.split("::")[1]
        arguments = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
        arguments |= dict(zip((argument.name for argument in schema.arguments), node.args)) | dict(node.kwargs)
        self.found.operations.append(f"{name}{torch.fx.node.map_arg((node.args, node.kwargs), lambda _: '')}")
        result = self.rules(self, node, name.removesuffix("_"), arguments)
        changed = node.args[0] if schema.is_mutable and node.args else None
        if isinstance(changed, Node) and isinstance(result, Tensor):
            self.values[changed] = result  # later uses of a tensor changed in place see what it became
        return result

    def _find_units(self) -> None:
        """Number the units: ids that were tied, directly or through others, share one. Then settle what waited for this."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        pairs = torch.cat(self.found.ties, 1).numpy() if self.found.ties else np.zeros((2, 0), dtype=np.int64)
        graph = coo_array((np.ones(pairs.shape[1], dtype=np.int8), (pairs[0], pairs[1])), shape=(self.found.count,) * 2)
        self.found.units = connected_components(graph, directed=False)[1]
        self.channels = {unit for made in self.found.made.values() for unit in self.found.units[slice(*made)].tolist()}
        for left, right, ids, reason in self.suspects:
            if bool((self.found.units[left] != self.found.units[right]).any()):
                self.pin(ids, reason)
        for before, after, reason in self.slices:
            if (self._units(before) - self._units(after)) & self.channels:
                self.pin(before, reason)

    def _units(self, ids: Tensor) -> set[int]:
        return set(self.found.units[torch.unique(ids[ids >= 0]).numpy()].tolist())

    def _refuse(self) -> None:
        """One error for all that cannot be served, unless what reaches it stays whole anyway."""
        whole = set(self.found.units[list(self.found.pins)].tolist())
        lines, share = list(self.problems), []
        for node, why, arriving in self.doubts:
            units = self._units(torch.cat([item.flatten() for item in arriving])) & self.channels - whole
            if units:
                lines.append(f"{place_of(node)}: {why}{source_of(node)}")
                path = (layers_of(node) or [("", "")])[-1][0]
                feeding = [layer_of(w) for w, r in self.found.made.items() if units & self._units(torch.arange(*r))]
                share += [path] if path else feeding
        if lines:
            lines = list(dict.fromkeys(lines))
            count = "1 layer" if len(lines) == 1 else f"{len(lines)} layers"
            text = "\n".join(f"  {line}" for line in lines)
            names = ", ".join(f'"{name}"' for name in dict.fromkeys(share))
            advice = f"\nReplace them, or share them between all tasks with shared=[{names}]." if share else ""
            raise UnsupportedModelError(f"{count} of the model cannot be served:\n{text}{advice}")

    def _check_output(self, node: Node) -> None:
        """The model returns its head's output and nothing else; where no head was named, that tells which it is."""
        results: Any = node.args[0]
        if len(results) != 1:
            self.problems.append(f"forward(): returns {len(results)} values; a classifier returns its head's output alone")
            return
        ids = self.ids(results[0])
        returned = [w for w, made in self.found.made.items() if ids.dim() == 2 and torch.equal(ids[0], torch.arange(*made))]
        named = self.found.head
        if not returned or named not in ("", layer_of(returned[0])):
            what = f"its head {named!r}" if named else "a linear layer"
            more = f"; head={layer_of(returned[0])!r} would do" if returned else ""
            self.problems.append(f"forward(): does not return the output of {what}, a row of scores per example{more}")
            return
        self.found.head = layer_of(returned[0])
        self.pin(ids, None)


def spread_along(ids: Tensor, dim: int, shape: tuple[int, ...]) -> Tensor:
    """Ids of channels in the shape of an activation, channels along `dim`."""
    dim %= len(shape)
    return ids.reshape([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape)


def _apart(left: Tensor, right: Tensor) -> Tensor:
    """The different pairs of ids that meet and are not the same, of shape (2, n)."""
    left, right = torch.broadcast_tensors(left, right)
    differ = (left != right) & (left >= 0) & (right >= 0)
    keys = torch.unique(left[differ] << 32 | right[differ])  # one number per pair: much faster than unique columns
    return torch.stack([keys >> 32, keys & 0xFFFFFFFF])
