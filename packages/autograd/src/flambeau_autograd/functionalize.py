"""Functionalize: remove mutation from a tape.

    y = aten.select.int(x, 0, 1)             y = aten.select.int(x, 0, 1)
    aten.add_.Tensor(y, 1)            ->     y2 = aten.add.Tensor(y, 1)
    return (x,)                              x2 = aten.select_scatter(x, y2, 0, 1)
                                             return (x2,)       and, if x is an input: write x <- x2

Each memory (the root of an alias chain) has a current Value and a version. A write through a view
scatters the new contents up the chain to the root; a view that is out of date when read replays its
chain from the root. A Value keeps the shape and dtype of the traced tensor it stands for, and its
strides too, save where the program wrote to memory with gaps (a slice): there the view is read back
from its base. No Value is lazily conjugated or negated: such a view is computed where it is read.
Relies on `aliases.AliasMap` of the same tape and on the shape rules for the Specs of the calls it
adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.aliases import Alias, AliasMap, argument_named
from flambeau_autograd.functional_forms import (
    UNDECLARED,
    FunctionalForm,
    functional_form,
)
from flambeau_autograd.reasons import MutationInBackward, NoFunctionalForm, ViewWrite
from flambeau_autograd.scatters import LAZY, scatter
from flambeau_prims import sizes
from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.layouts import overlaps
from flambeau_prims.rules.registry import aliasing, infer, is_view
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

aten = torch.ops.aten


def functionalize(
    tape: Graph, aliases: AliasMap, split: int | None = None, forward_outputs: int | None = None
) -> Graph:
    """The functional form of `tape`.

    Of a joint tape, the first `split` nodes are the forward and the first `forward_outputs` outputs
    are its results, which are read when the forward ends. Writes to inputs after that raise
    `MutationInBackward`.
    """
    work = _Functionalizer(tape, aliases)
    split = len(tape.nodes) if split is None else split
    count = len(tape.outputs) if forward_outputs is None else forward_outputs
    work.run(tape.nodes[:split])
    results = [work.output(out) for out in tape.outputs[:count]]
    writes = work.writes()
    work.run(tape.nodes[split:])
    results += [work.output(out) for out in tape.outputs[count:]]
    if work.writes() != writes:
        raise MutationInBackward("the backward writes to an input of the forward")
    return Graph(list(tape.inputs), work.nodes, results, writes, tape.env, tape.name)


class _Memory:
    """The contents of one root."""

    __slots__ = ("replays", "version")

    def __init__(self) -> None:
        self.version = 0
        # Views taken of a Value, so that the outputs of one split share one call.
        self.replays: dict[tuple[Value, Node], tuple[Value | None, ...]] = {}


class _Functionalizer:
    def __init__(self, tape: Graph, aliases: AliasMap) -> None:
        self.nodes: list[Node] = []
        self._inputs = tape.inputs
        self._aliases = aliases
        self._memory: dict[Alias, _Memory] = {}
        # What an alias holds, and the version of its memory at which it was so.
        self._current: dict[Alias, tuple[Value, int]] = {}
        self._where = ""
        self._named = 0
        for value in tape.inputs:
            if isinstance(value, Value):
                self._own(aliases[value], value)
        self._of_inputs = frozenset(self._memory)

    # Running the tape

    def run(self, nodes: Iterable[Node]) -> None:
        """Append the functional form of `nodes`."""
        for node in nodes:
            self._where = node.where
            if node.op in UNDECLARED and self._trains(node):
                self._write_functional(node, UNDECLARED[node.op])
                continue
            facts = aliasing(node.op)
            if facts.view:
                self._take_view(node)
            elif not facts.mutated:
                self._call(node)
            elif node.op in _OVERWRITES:
                self._overwrite(node)
            elif node.op in _DRAWS:
                self._draw(node)
            elif node.op is aten.as_strided_.default:
                # autograd's way of stating a geometry the tensor has already; the tracer refuses
                # others
                continue
            else:
                self._write_functional(node, functional_form(node.op))

    def output(self, out: Any) -> Any:
        """The Value that stands for a traced output now, in the strides it was traced with."""
        if not isinstance(out, Value):
            return out
        alias = self._aliases[out]
        value = self._laid_out(self._read(alias), alias.spec)
        is_own = alias.parent is None and alias not in self._of_inputs
        return self._spread(value, alias.spec) if is_own else value

    def writes(self) -> list[tuple[Value, Value]]:
        """(input, new contents) for the inputs written to so far."""
        result = []
        for value in self._inputs:
            if isinstance(value, Value):
                current = self._read(self._aliases[value])
                if current is not value:
                    result.append((value, current))
        return result

    # Calls of each kind

    def _call(self, node: Node) -> None:
        drifted = False

        def read(value: Value) -> Value:
            nonlocal drifted
            result = self._read(self._aliases[value])
            drifted = drifted or result.spec is not value.spec
            return result

        args = map_values(node.args, read)
        kwargs = map_values(node.kwargs, read) if node.kwargs else {}
        call = Node(node.op, args, kwargs, (), node.where)
        specs = self._infer(node.op, args, kwargs) if drifted else None
        call.outputs = tuple(
            None
            if out is None
            else Value(out.name, (specs[i] if specs is not None else None) or out.spec, call)
            for i, out in enumerate(node.outputs)
        )
        self.nodes.append(call)
        for traced, out in zip(node.outputs, call.outputs, strict=True):
            if traced is not None and out is not None:
                self._own(self._aliases[traced], out)

    def _take_view(self, node: Node) -> None:
        for out in node.outputs:
            if out is not None:
                self._read(self._aliases[out])

    def _overwrite(self, node: Node) -> None:
        """copy_, fill_ and zero_: the old contents do not matter."""
        target = self._aliases[node.args[0]]
        spec = target.spec
        source: Any = 0 if node.op is aten.zero_.default else _parameter(node, 1)
        if isinstance(source, Value):
            new = self._read(self._aliases[source])
            if new.spec.dtype != spec.dtype or new.spec.device != spec.device:
                new = self._emit(aten._to_copy.default, new, dtype=spec.dtype, device=spec.device)
            if new.spec.shape != spec.shape:
                new = self._emit(aten.expand.default, new, list(spec.shape))
            new = self._laid_out(new, spec)
        else:
            new = self._emit(
                aten.full.default, list(spec.shape), source, dtype=spec.dtype, device=spec.device
            )
        self._write(target, new)

    def _draw(self, node: Node) -> None:
        """bernoulli_: in place it draws in the order of memory, out of place row by row; so draw
        for the permuted tensor.

        normal_ draws rows of 16 numbers or more another way than memory with gaps, which its
        functional form does not have.
        """
        form = functional_form(node.op)
        target = self._aliases[node.args[0]]
        order = stride_order(target.spec)
        in_rows = order == list(range(target.spec.ndim))
        if node.op is aten.normal_.default:
            gaps = dense_order(target.spec) is None and target.spec.device.type == "cpu"
            if gaps and in_rows and not sizes.known_lt(target.spec.numel, 16):
                raise NoFunctionalForm(
                    f"{node.op} of memory with gaps draws as no other call does", node.op
                )
            in_rows = True
        if in_rows:
            self._write_functional(node, form)
            return
        subject, chance, *rest = map_values(form.with_defaults(node), self._read_value)
        if isinstance(chance, Value):
            chance = self._emit(aten.expand.default, chance, list(target.spec.shape))
            chance = self._emit(aten.permute.default, chance, order)
        drawn = self._emit(
            form.op, self._emit(aten.permute.default, subject, order), chance, *rest, **node.kwargs
        )
        inverse = [order.index(dim) for dim in range(target.spec.ndim)]
        self._store(target, self._emit(aten.permute.default, drawn, inverse))

    def _write_functional(self, node: Node, form: FunctionalForm) -> None:
        read = self._read_value
        kwargs = {
            key: map_values(arg, read)
            for key, arg in node.kwargs.items()
            if key not in form.dropped
        }
        args = map_values(form.with_defaults(node), read)
        results = self._emit_all(form.op, args, kwargs)
        kept = len(results) - sum(self._count(node, name) for name in form.written)
        facts = aliasing(node.op)
        fresh = [
            out for out, source in zip(node.outputs, facts.returns, strict=False) if source is None
        ]
        for traced, out in zip(fresh, results[:kept], strict=True):
            if traced is not None and out is not None:
                self._own(self._aliases[traced], out)
        position = kept
        for name in form.written:
            written = argument_named(node, name)
            for value in written if isinstance(written, (list, tuple)) else [written]:
                self._store(self._aliases[value], results[position])
                position += 1

    def _count(self, node: Node, name: str) -> int:
        written = argument_named(node, name)
        return len(written) if isinstance(written, (list, tuple)) else 1

    def _store(self, target: Alias, new: Value | None) -> None:
        """Write a functional result, maybe of a promoted dtype or another layout, to `target`."""
        assert new is not None
        if new.spec.dtype != target.spec.dtype:
            new = self._emit(aten._to_copy.default, new, dtype=target.spec.dtype)
        self._write(target, new)

    @staticmethod
    def _trains(node: Node) -> bool:
        return (
            bool(argument_named(node, "training"))
            and argument_named(node, "running_mean") is not None
        )

    # Memory

    def _own(self, alias: Alias, value: Value) -> None:
        self._memory[alias] = _Memory()
        self._current[alias] = (value, 0)

    def _read_value(self, value: Value) -> Value:
        return self._read(self._aliases[value])

    def _read(self, alias: Alias) -> Value:
        memory = self._memory[alias.root]
        stale: list[Alias] = []
        while (result := self._current.get(alias)) is None or result[1] != memory.version:
            assert alias.parent is not None and alias.step is not None
            stale.append(alias)
            alias = alias.parent
        value = result[0]
        for view in reversed(stale):
            value = self._replay(memory, view, value)
            self._current[view] = (value, memory.version)
        return value

    def _write(self, alias: Alias, new: Value) -> None:
        memory = self._memory[alias.root]
        views: list[tuple[Alias, Value]] = []
        _require_apart(alias)
        while alias.parent is not None:
            _require_apart(alias.parent)
            base = self._read(alias.parent)
            if alias.step is not None and alias.step.op is aten.as_strided.default:
                _require_whole(alias)
            if dense_order(base.spec) is None:
                # The scatter operators keep the gaps of their operand, which no compiled graph
                # could.
                base = self._emit(aten.clone.default, base, memory_format=torch.contiguous_format)
            views.append((alias, new))
            alias, new = alias.parent, scatter(self._emit, base, new, alias)
        new = self._laid_out(new, alias.spec)
        memory.version += 1
        memory.replays.clear()
        self._current[alias] = (new, memory.version)
        for view, written in views:
            if same_layout(written.spec, view.spec):
                self._current[view] = (written, memory.version)
            # Else it is read back from the base, which has the traced strides.

    def _replay(self, memory: _Memory, alias: Alias, base: Value) -> Value:
        """Take the view `alias` of the current contents of its parent."""
        step = alias.step
        assert step is not None and alias.parent is not None
        outputs = memory.replays.get((base, step))
        if outputs is None:
            args = step.args[1:]
            specs: Any = None
            if step.op is aten.as_strided.default:
                if memory.version:
                    _require_whole(alias)
                base = self._own_memory(base)
                size, stride, offset = args
                args = (size, stride, offset - alias.root.spec.offset + base.spec.offset)
            if step.op in LAZY:
                outputs = (self._turned(LAZY[step.op], base),)
            else:
                if base.spec is alias.parent.spec:
                    specs = [None if out is None else out.spec for out in step.outputs]
                outputs = self._emit_all(step.op, (base, *args), step.kwargs, specs)
            memory.replays[base, step] = outputs
        value = outputs[alias.index]
        assert value is not None
        return value

    def _turned(self, op: Any, base: Value) -> Value:
        """`base` conjugated or negated, in separate memory; twice is not at all."""
        producer = base.producer
        if producer is not None and producer.op is op:
            return producer.operands()[0]
        return self._emit(op, base)

    def _own_memory(self, value: Value) -> Value:
        """`value`, or a copy if it views other memory, where offsets would differ."""
        if value.producer is not None and is_view(value.producer.op):
            return self._relaid(value, value.spec, force=True)
        return value

    # Emitting

    def _laid_out(self, value: Value, spec: Spec) -> Value:
        """`value` with the strides of `spec`; as it is if `spec` has gaps.

        Those of dims of size 1, too, which the caller may see, where a copy has them.
        """
        if _same_strides(value.spec.stride, spec.stride):
            return value
        if same_layout(value.spec, spec) and not _is_of_a_copy(spec):
            return value  # a dim of size 1 has a stride that no copy gives it
        return self._relaid(value, spec)

    def _spread(self, value: Value, spec: Spec) -> Value:
        """`value` with the strides of `spec`, also where no copy has them (gaps, dims of size 1).

        Eager gives such strides to what it makes of memory with gaps, as `slice_scatter` does.
        """
        if not spec.ndim or _same_strides(value.spec.stride, spec.stride):
            return value
        stride = [sizes.hint_of(step) for step in spec.stride]
        if overlaps([sizes.hint_of(size) for size in spec.shape], stride):
            return value
        memory = self._emit(
            aten.empty_strided.default,
            list(spec.shape), list(spec.stride), dtype=spec.dtype, device=spec.device,
        )  # fmt: skip
        return self._emit(aten.slice_scatter.default, memory, value, 0, 0, spec.shape[0], 1)

    def _relaid(self, value: Value, spec: Spec, force: bool = False) -> Value:
        order = dense_order(spec)
        if order is None:
            return value
        if order == list(range(spec.ndim)):
            return self._emit(aten.clone.default, value, memory_format=torch.contiguous_format)
        inverse = [order.index(dim) for dim in range(spec.ndim)]
        moved = self._emit(aten.permute.default, value, order)
        if force or moved.spec.stride != Spec.of(moved.spec.shape).stride:
            moved = self._emit(aten.clone.default, moved, memory_format=torch.contiguous_format)
        return self._emit(aten.permute.default, moved, inverse)

    def _emit(self, op: Any, *args: Any, **kwargs: Any) -> Value:
        (value,) = self._emit_all(op, args, kwargs)
        assert value is not None
        return value

    def _emit_all(
        self, op: Any, args: Any, kwargs: dict[str, Any], specs: Any = None
    ) -> tuple[Value | None, ...]:
        if specs is None:
            specs = self._infer(op, args, kwargs)
        node = Node(op, tuple(args), kwargs, (), self._where)
        result = []
        for spec in specs:
            self._named += 1
            result.append(None if spec is None else Value(f"f{self._named}", spec, node))
        node.outputs = tuple(result)
        self.nodes.append(node)
        return node.outputs

    @staticmethod
    def _infer(op: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Spec | None, ...]:
        specs = infer(
            op, _specs_in(tuple(args)), {key: _specs_in(arg) for key, arg in kwargs.items()}
        )
        return (specs,) if specs is None or isinstance(specs, Spec) else tuple(specs)


def _require_apart(alias: Alias) -> None:
    """A written tensor, and what it is a view of, must have memory for each of its elements."""
    spec = alias.spec
    shape, stride = (tuple(map(sizes.hint_of, dims)) for dims in (spec.shape, spec.stride))
    if 0 not in shape and overlaps(shape, stride):
        raise ViewWrite("a write to a tensor, or to a part of one, whose elements share memory")


def _require_whole(alias: Alias) -> None:
    """A written view of any geometry must cover a whole value: no gaps, nothing in front."""
    root = alias.root.spec
    if dense_order(root) is None or sizes.hint_of(alias.spec.offset) < sizes.hint_of(root.offset):
        raise ViewWrite("as_strided reaches into memory around a tensor that is written to")


_DRAWS = {aten.bernoulli_.float, aten.bernoulli_.Tensor, aten.normal_.default}
_OVERWRITES = {aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default}


def _specs_in(arg: Any) -> Any:
    """An argument as shape rules take it: Specs for Values, tuples for lists."""
    if isinstance(arg, Value):
        return arg.spec
    return tuple([_specs_in(item) for item in arg]) if isinstance(arg, (tuple, list)) else arg


def _parameter(node: Node, position: int) -> Any:
    return node.args[position] if position < len(node.args) else next(iter(node.kwargs.values()))


def same_layout(one: Spec, other: Spec) -> bool:
    """Whether two Specs of one shape place elements alike, up to offset and dims of size 1."""
    if one is other or one.stride == other.stride:
        return True
    return all(
        sizes.known_eq(a, b) or sizes.known_eq(size, 1)
        for size, a, b in zip(one.shape, one.stride, other.stride, strict=True)
    )


def _same_strides(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(sizes.known_eq(*pair) for pair in zip(one, other, strict=True))


def _is_of_a_copy(spec: Spec) -> bool:
    """Whether a copy in the order of the strides has these strides, in dims of size 1, too."""
    order = stride_order(spec)
    copied = Spec.of([spec.shape[dim] for dim in order]).stride
    return _same_strides(copied, [spec.stride[dim] for dim in order])


def stride_order(spec: Spec) -> list[int]:
    """The dims from outermost to innermost in memory; of equal strides, those of size 1 last."""

    def place(dim: int) -> tuple[int, bool, int]:
        is_one = sizes.known_eq(spec.shape[dim], 1)
        return -sizes.hint_of(spec.stride[dim]), is_one, dim

    return sorted(range(spec.ndim), key=place)


def dense_order(spec: Spec) -> list[int] | None:
    """The dims, outermost first, of a tensor without gap or overlap in memory, else None."""
    order = stride_order(spec)
    expected: Any = 1
    for dim in reversed(order):
        if sizes.known_eq(spec.shape[dim], 1):
            continue
        if not sizes.known_eq(spec.stride[dim], expected):
            return None
        expected = expected * spec.shape[dim]
    return order
