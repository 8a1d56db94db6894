"""Which traced tensors share memory: for each Value of a tape, the tensor it is a view of, and by
which call.

    y = aten.view(x, [4, 2]); z = aten.select(y, 0, 1)      z: select of y: view of x
    x2 = aten.add_(x, 1)                                    x2 is x

Relies on `flambeau_prims.rules.registry.aliasing`, which reads operator schemas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.functional_forms import UNDECLARED
from flambeau_prims.graph import Value
from flambeau_prims.per_operator import per_operator
from flambeau_prims.rules.registry import aliasing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flambeau_prims.graph import Node
    from flambeau_prims.spec import Spec

aten = torch.ops.aten


class Alias:
    """A traced tensor: a root that owns memory, or output `index` of view `step` of `parent`."""

    __slots__ = ("_root", "index", "parent", "spec", "step", "value")

    def __init__(
        self, value: Value, parent: Alias | None = None, step: Node | None = None, index: int = 0
    ) -> None:
        self.value = value
        self.spec: Spec = value.spec
        self.parent = parent
        self.step = step
        self.index = index
        # A root does not refer to itself: it would hold the whole trace as a cycle.
        self._root: Alias | None = None if parent is None else parent.root

    @property
    def root(self) -> Alias:
        """The tensor that owns the memory."""
        return self if self._root is None else self._root

    def chain(self) -> list[Alias]:
        """The views from the root (left out) to this tensor (included)."""
        steps: list[Alias] = []
        alias = self
        while alias.parent is not None:
            steps.append(alias)
            alias = alias.parent
        return steps[::-1]


class AliasMap:
    """The Alias of every Value of a tape; `extend` it as the tape grows."""

    def __init__(self, inputs: Iterable[Value]) -> None:
        self._found: dict[Value, Alias] = {value: Alias(value) for value in inputs}

    def __getitem__(self, value: Value) -> Alias:
        return self._found[value]

    def __contains__(self, value: object) -> bool:
        return value in self._found

    def extend_inputs(self, inputs: Iterable[Value]) -> None:
        """Take in further inputs; those known already stay as they are."""
        for value in inputs:
            if value not in self._found:
                self._found[value] = Alias(value)

    def extend(self, nodes: Iterable[Node]) -> None:
        """Take in the results of further nodes, in tape order."""
        for node in nodes:
            self._add(node)

    def written_roots(self, nodes: Iterable[Node]) -> set[Alias]:
        """The memories that `nodes` write to."""
        written: set[Alias] = set()
        for node in nodes:
            for name in written_parameters(node):
                argument = argument_named(node, name)
                values = argument if isinstance(argument, (list, tuple)) else [argument]
                written.update(
                    self._found[value].root for value in values if isinstance(value, Value)
                )
        return written

    def _add(self, node: Node) -> None:
        facts = aliasing(node.op)
        result = self._found
        if not facts.view and not facts.mutated:
            for out in node.outputs:
                if out is not None:
                    result[out] = Alias(out)
            return
        for position, out in enumerate(node.outputs):
            if out is None or out in result:
                continue
            source = self._source(node, position)
            if source is None:
                result[out] = Alias(out)
            elif not facts.view:
                result[out] = source
            elif node.op is aten.as_strided.default:
                # as_strided sees the storage, not the view it is called on.
                result[out] = Alias(out, source.root, _absolute(node, source), position)
            else:
                result[out] = Alias(out, source, node, position)

    def _source(self, node: Node, position: int) -> Alias | None:
        """What result `position` of a view or mutating call is (a view of)."""
        facts = aliasing(node.op)
        # An operator that returns a list has one entry for it in `returns`.
        name = (
            facts.returns[position if len(facts.returns) == len(node.outputs) else 0]
            if facts.returns
            else None
        )
        if name is None:
            return None
        argument = argument_named(node, name)
        if isinstance(argument, Value):
            return self._found[argument]
        return self._found[argument[position]]


def written_parameters(node: Node) -> tuple[str, ...]:
    """The parameters that a call writes to."""
    return _written(node.op)


@per_operator
def _written(op: Any) -> tuple[str, ...]:
    hidden = UNDECLARED.get(op)
    return aliasing(op).mutated if hidden is None else hidden.written


def argument_named(node: Node, name: str) -> Any:
    """The argument that `node` passes for the parameter `name`, or None if it is left out."""
    if name in node.kwargs:
        return node.kwargs[name]
    for position, parameter in enumerate(node.op._schema.arguments):
        if parameter.name == name:
            return node.args[position] if position < len(node.args) else None
    raise KeyError(f"{node.op} has no parameter {name}")


def _absolute(node: Node, source: Alias) -> Node:
    """An as_strided call with its offset spelled out."""
    _, size, stride, *offset = (*node.args, *node.kwargs.values())
    start = offset[0] if offset and offset[0] is not None else source.spec.offset
    return type(node)(node.op, (node.args[0], size, stride, start), {}, node.outputs, node.where)
