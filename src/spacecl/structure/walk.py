"""The walk through a model's exported graph that finds the owners of all its channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from ..errors import UnsupportedModelError
from .contractions import find_head_splits
from .graph import export_graph, layer_of, layers_of, make_probe, place_of, source_of
from .operation import Attribute, Operation, Rejection, unowned_ids, value_ids
from .operators import apply_rule
from .owners import RULES, Owners
from .sizes import find_means, observe_run


def find_owners(
    model: nn.Module, example: Tensor, head: str | None = None, shared: Sequence[str] = (), rules: int = RULES
) -> Owners:
    """Push owner ids through a model and return what they met; one error names all layers that are not supported."""
    first: dict[int, str] = {}
    aliases = {n: first.setdefault(id(p), n) for n, p in model.named_parameters(remove_duplicate=False)}
    exported = export_graph(model, example)
    owners = Owners(head=head or "", rules=rules)
    if rules >= 2:
        owners.head_splits = find_head_splits(exported.graph)
        owners.uses, counted = observe_run(model, make_probe(example), exported.graph)
        owners.means = {node: number for number, node in enumerate(find_means(exported.graph))} if counted else {}
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
        self.problems: list[str] = []  # what no option can solve
        self.rejections: list[Rejection] = []  # what can be solved by sharing layers

    def run(self) -> Owners:
        signature, owners = self.exported.graph_signature, self.owners
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
                self.values[node] = unowned_ids(value)
        for name in owners.elements.keys() & owners.dims.keys():  # read as a layer's weight, and otherwise too
            for ids in owners.dims[name]:
                owners.mark_unprunable(ids, f"{name} is used in more than one way")
        for node, sources in owners.uses.items():
            for dim, source in sources.items():
                ids = self.values[node]
                owners.sizes.append((source, ids[tuple(slice(None) if d == dim else 0 for d in range(ids.dim()))]))
        owners.number_units()
        self._raise_problems()
        return owners

    def _call(self, node: Node) -> Any:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            if getattr(node.target, "__name__", "") == "getitem":
                return self.values[node.args[0]][node.args[1]]  # type: ignore[index]
            name = getattr(node.target, "__name__", node.target)
            self.problems.append(f"{place_of(node)}: {name} inside forward(); move it out of the model{source_of(node)}")
            return unowned_ids(node.meta.get("val"))
        namespace, name = schema.name.split("::")
        arguments = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
        arguments |= dict(zip((argument.name for argument in schema.arguments), node.args)) | dict(node.kwargs)
        self.owners.operations.append(f"{name}{torch.fx.node.map_arg((node.args, node.kwargs), lambda _: '')}")
        name = name.removesuffix("_") if namespace == "aten" else schema.name
        context = (self.owners, self.values, self.shared, self.rejections, self.problems)
        ids = apply_rule(Operation(node, name, arguments, *context))
        changed = node.args[0] if schema.is_mutable and node.args else None
        if isinstance(changed, Node) and isinstance(ids, Tensor):
            self.values[changed] = ids  # later uses of a tensor changed in place see what it became
        return ids

    def _raise_problems(self) -> None:
        """Raise one error for all that is not supported, unless the channels that reach it are unprunable anyway."""
        owners = self.owners
        unprunable = set(owners.units[list(owners.unprunable)].tolist())
        prunable = owners.channel_units() - unprunable
        lines, share = list(self.problems), []
        for rejection in self.rejections:
            units = owners.units_of(torch.cat([ids.flatten() for ids in rejection.inputs])) & prunable
            if units:
                node = rejection.node
                lines.append(f"{place_of(node)}: {rejection.reason}{source_of(node)}")
                path = (layers_of(node) or [("", "")])[-1][0]
                feeding = [layer_of(w) for w, ids in owners.outputs.items() if units & owners.units_of(torch.arange(*ids))]
                share += [path] if path else feeding
        if lines:
            lines = list(dict.fromkeys(lines))
            count = "1 layer of the model is" if len(lines) == 1 else f"{len(lines)} layers of the model are"
            text = "\n".join(f"  {line}" for line in lines)
            names = ", ".join(f'"{name}"' for name in dict.fromkeys(share))
            advice = f"\nReplace them, or share them between all tasks with shared=[{names}]." if share else ""
            raise UnsupportedModelError(f"{count} not supported:\n{text}{advice}")

    def _check_output(self, node: Node) -> None:
        """Check that the model returns its head's output and nothing else; if the user named no head, find it by that."""
        results: Any = node.args[0]
        if len(results) != 1:
            self.problems.append(f"forward(): returns {len(results)} values; a classifier returns its head's output alone")
            return
        owners = self.owners
        ids = value_ids(results[0], self.values, owners)
        heads = [w for w, span in owners.outputs.items() if ids.dim() == 2 and torch.equal(ids[0], torch.arange(*span))]
        if not heads or owners.head not in ("", layer_of(heads[0])):
            expected = f"its head {owners.head!r}" if owners.head else "a linear layer"
            hint = f"; try head={layer_of(heads[0])!r}" if heads else ""
            self.problems.append(f"forward(): does not return the output of {expected}, one row of scores per example{hint}")
            return
        owners.head = layer_of(heads[0])
        owners.mark_unprunable(ids, None)
