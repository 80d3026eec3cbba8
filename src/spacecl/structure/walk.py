"""The walk through a model's exported graph that finds the owners of all its channels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Node

from ..errors import UnsupportedModelError
from .calling import Inputs
from .contractions import find_head_splits
from .graph import (
    export_graph,
    find_effects,
    fix_sizes,
    format_reasons,
    layer_of,
    layers_of,
    make_probe,
    matches,
    place_of,
    source_of,
)
from .operation import Attribute, Operation, Rejection, unowned_ids, value_ids
from .operators import apply_rule
from .owners import RULES, Owners, compress
from .sizes import observe_sizes

_WRAPPERS = ("wrap_with_autocast", "wrap_with_set_grad_enabled")  # they call a part of the graph, in another mode


def find_owners(
    model: nn.Module, example: Inputs, head: str | None = None, shared: Sequence[str] = (), rules: int = RULES
) -> Owners:
    """Push owner ids through a model and return what they met; one error names all layers that are not supported."""
    first: dict[int, str] = {}
    aliases = {n: first.setdefault(id(p), n) for n, p in model.named_parameters(remove_duplicate=False)}
    exported = export_graph(model, example)
    fix_sizes(exported)
    owners = Owners(head=head or "", rules=rules)
    if rules >= 2:
        owners.head_splits = find_head_splits(exported.graph)
        owners.sizes = observe_sizes(model, make_probe(example), exported.graph, owners.head_splits, rules >= 4, rules >= 5)
    return _Walk(exported, shared, aliases, owners).run()


class _Walk:
    """One walk through an exported graph, with the ids of every value so far."""

    def __init__(
        self,
        exported: torch.export.ExportedProgram,
        shared: Sequence[str],
        aliases: Mapping[str, str],
        owners: Owners,
    ):
        self.exported, self.shared, self.aliases = exported, shared, aliases
        self.owners = owners
        self.values: dict[Node, Any] = {}
        self.effects = find_effects(exported.graph)  # what the scores depend on
        self.scores = torch.zeros(0)  # their ids
        self.problems: list[tuple[str, str]] = []  # places and reasons: what no option can solve
        self.rejections: list[Rejection] = []  # what can be solved by sharing layers

    def run(self) -> Owners:
        signature, owners = self.exported.graph_signature, self.owners
        names: Mapping[str, str] = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        for node in self.exported.graph.nodes:
            value = node.meta.get("val")
            if node.op == "get_attr":  # a part of the graph that runs in another mode
                self.values[node] = getattr(self.exported.graph_module, str(node.target))
            elif node.op == "placeholder" and node.name in names:
                name = names[node.name]
                self.values[node] = Attribute(self.aliases.get(name, name), tuple(value.shape))
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                self.scores = value_ids(node.args[0][-1], self.values, owners)  # type: ignore[index]
            else:
                self.values[node] = unowned_ids(value)
        for name in owners.elements.keys() & owners.dims.keys():  # read as a layer's weight, and otherwise too
            for ids in owners.dims[name]:
                owners.mark_unprunable(ids, f"{name} is used in more than one way")
        if owners.rules >= 4:
            self._drop_unused(names)
        owners.sizes.collect_ids(self.values)
        owners.number_units()
        self._find_heads()
        self._raise_problems()
        return owners

    def _call(self, node: Node) -> Any:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            if getattr(node.target, "__name__", "") == "getitem":
                return self.values[node.args[0]][node.args[1]]  # type: ignore[index]
            name = getattr(node.target, "__name__", node.target)
            if name in _WRAPPERS and not (name == "wrap_with_autocast" and node.args[2]):  # in full precision
                return self._call_part(node)
            if isinstance(node.meta.get("val"), (bool, int, float)):  # computed from sizes
                return node.meta["val"]
            if node in self.effects:
                reason = f"{name} inside forward(); move it out of the model{source_of(node)}"
                self.problems.append((place_of(node), reason))
            return unowned_ids(node.meta.get("val"))
        namespace, name = schema.name.split("::")
        arguments = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
        arguments |= dict(zip((argument.name for argument in schema.arguments), node.args)) | dict(node.kwargs)
        self.owners.operations.append(f"{name}{torch.fx.node.map_arg((node.args, node.kwargs), lambda _: '')}")
        name = name.removesuffix("_") if namespace == "aten" else schema.name
        if node not in self.effects and self.owners.rules >= 2:
            return self._call_unused(node, name, arguments) if self.owners.rules >= 4 else unowned_ids(node.meta.get("val"))
        context = (self.owners, self.values, self.shared, self.rejections, self.problems)
        ids = apply_rule(Operation(node, name, arguments, *context))
        ids = torch.utils._pytree.tree_map_only(Tensor, compress, ids)
        changed = node.args[0] if schema.is_mutable and node.args else None
        if isinstance(changed, Node) and isinstance(ids, Tensor):
            self.values[changed] = ids  # later uses of a tensor changed in place see what it became
        return ids

    def _call_unused(self, node: Node, name: str, arguments: Mapping[str, Any]) -> Any:
        """The ids of a result that the scores do not depend on. Layers that make it still read channels, and need no others."""
        owners = self.owners
        unprunable, lists = dict(owners.unprunable), (owners.ties, owners.unless_tied, owners.unless_contained)
        counts = [len(some) for some in lists]
        try:
            ids = apply_rule(Operation(node, name, arguments, owners, self.values, self.shared, [], []))
        except Exception:
            ids = unowned_ids(node.meta.get("val"))
        owners.unprunable = unprunable
        for some, count in zip(lists, counts):
            del some[count:]  # type: ignore[attr-defined]
        return ids

    def _drop_unused(self, names: Mapping[str, str]) -> None:
        """Keep the full width of layers that the scores do not depend on, and never observe what they read."""
        nodes = [node for node in self.exported.graph.nodes if node.op == "placeholder" and node.name in names]
        used = {self.values[node].name for node in nodes if any(user in self.effects for user in node.users)}
        for name in self.owners.outputs.keys() - used:
            self.owners.mark_unprunable(torch.arange(*self.owners.outputs[name]), None)
            for dims in (self.owners.input_dims, self.owners.output_dims):
                dims.pop(name, None)

    def _call_part(self, node: Node) -> list[Any]:
        """Walk through a part of the graph that runs in another mode, such as without autocast."""
        start = next(i for i, arg in enumerate(node.args) if isinstance(arg, Node) and arg.op == "get_attr")
        part, inputs = self.values[node.args[start]].graph, list(node.args[start + 1 :])  # type: ignore[index]
        self.effects |= find_effects(part) if node in self.effects else set()
        results: list[Any] = []
        for inner in part.nodes:
            if inner.op == "placeholder":
                self.values[inner] = self.values[inputs.pop(0)]  # type: ignore[index]
            elif inner.op == "output":
                results = [self.values[value] for value in inner.args[0]]
            else:
                self.values[inner] = self._call(inner)
        return results

    def _raise_problems(self) -> None:
        """Raise one error for all that is not supported, unless the channels that reach it are unprunable anyway."""
        owners = self.owners
        unprunable = set(owners.units[list(owners.unprunable)].tolist())
        prunable = owners.channel_units() - unprunable
        reasons = list(self.problems)
        share: dict[str, None] = {}
        for rejection in self.rejections:
            units = owners.units_of(torch.cat([ids.flatten() for ids in rejection.inputs])) & prunable
            if units:
                node = rejection.node
                reasons.append((place_of(node), f"{rejection.reason}{source_of(node)}"))
                path = (layers_of(node) or [("", "")])[-1][0]
                feeding = [layer_of(w) for w, ids in owners.outputs.items() if units & owners.units_of(torch.arange(*ids))]
                share |= dict.fromkeys([path] if path else feeding)
        if reasons:
            count = len(set(reasons))
            title = "1 layer of the model is" if count == 1 else f"{count} layers of the model are"
            raise UnsupportedModelError(f"{title} not supported:{format_reasons(reasons)}{self._advise(share, prunable)}")

    def _advise(self, share: Collection[str], prunable: set[int]) -> str:
        """To share the layers that the rejected operations need, if others can still be pruned then."""
        if not share:
            return ""
        owners, left = self.owners, set(prunable)
        for weight, span in owners.outputs.items():
            if layer_of(weight) in owners.heads or matches(layer_of(weight), share):
                left -= owners.units_of(torch.arange(*span))
        for rejection in self.rejections:
            left -= owners.units_of(torch.cat([ids.flatten() for ids in rejection.inputs]))
        if not left:
            return "\nReplace them. If all tasks shared them, no layer would be left to prune."
        names = ", ".join(f'"{name}"' for name in share)
        return f"\nReplace them, or share them between all tasks with shared=[{names}]."

    def _find_heads(self) -> None:
        """Find the layers that make the scores, all of which are heads. If the user named one, it must be among them."""
        owners, ids = self.owners, self.scores
        heads = []
        if ids.dim() == 2 and bool((ids[0] >= 0).all()):
            columns = owners.units[ids[0].numpy()]
            spans = {weight: owners.units[slice(*span)] for weight, span in owners.outputs.items()}
            heads = [layer_of(weight) for weight, units in spans.items() if np.array_equal(units, columns)]
        if not heads or owners.head not in ("", *heads):
            expected = f"its head {owners.head!r}" if owners.head else "a linear layer or a convolution"
            hint = f"; try head={heads[0]!r}" if heads else ""
            reason = f"does not return the output of {expected}, one row of scores per example{hint}"
            self.problems.append(("forward()", reason))
            return
        last = [layer for layer in heads if torch.equal(ids[0], torch.arange(*owners.outputs[f"{layer}.weight"]))]
        owners.head = owners.head or (last or heads)[0]
        owners.heads = tuple(dict.fromkeys(heads))
        owners.mark_unprunable(ids, None)
