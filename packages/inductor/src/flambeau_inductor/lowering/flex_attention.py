"""Lower attention whose scores a function changes: its operators as one `attention.Attention`.

    scores = flex_scores(q, k, 0.25); changed = add(scores, bias); out, lse, _ = flex_attend(...)
    ->  forward { v0 = load scores[...]; v1 = load bias[...]; v2 = add v0 v1; changed v2 }

What lies between the operators is computed element by element, as inside any loop nest.
"""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING, Any

import sympy
import torch

from flambeau_inductor.attention import (
    AXES,
    GRADIENTS,
    LONGEST,
    SCORES,
    Attention,
    Blocks,
    Operand,
    Scatter,
)
from flambeau_inductor.attention_options import (
    FORWARD,
    KEY_VALUE_GRADIENTS,
    QUERY_GRADIENT,
    options_of,
)
from flambeau_inductor.graph_passes.fuse_attention import (
    joined_sums,
    packs_heads,
    partner,
    scores_behind,
    slopes_behind,
)
from flambeau_inductor.indexing.expressions import (
    FloorDiv,
    Mod,
    free_names,
    int_if_known,
    linear,
    sympify,
)
from flambeau_inductor.ir import CheckIndex, Constant, Load, index_of, operands
from flambeau_inductor.lowering.elements import Elements
from flambeau_inductor.lowering.narrow_integers import narrow_integers
from flambeau_inductor.nodes import ExternCall
from flambeau_prims import sizes
from flambeau_prims.flex_attention import (
    SCORES_OF,
    blocks_of,
    flex_attend,
    flex_attend_parts,
    flex_query_gradient,
    flex_scatter_add,
    flex_value_gradient,
)
from flambeau_prims.graph import Value, values_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flambeau_inductor.ir import Body, Statement
    from flambeau_prims.graph import Node


def lower_attention(lowering: Any, node: Node) -> None:
    """Append the kernel of a call, if it has one: scores have none, and the gradient of values
    shares that of the gradient of keys.
    """
    if node.op in SCORES_OF:
        return
    if node.op in (flex_attend, flex_attend_parts):
        scores, visible, query, value, *_ = node.args
        parts_of_keys = node.args[-1] if node.op is flex_attend_parts else 1
        begin = scores_behind(scores)
        parts = {"query": query, "key": begin.args[1], "value": value}
        packed = int(query.spec.shape[2]) if packs_heads(node) else 0
        builder = _AttentionBuilder(lowering, begin, scores, visible, packed=packed)
        out, lse, most = node.outputs
        users = lowering.graph.users()
        kept = set(lowering.graph.live_at_exit())
        results = {"out": out} | {
            role: one for role, one in (("lse", lse), ("most", most))
            if one is not None and (users.get(one) or one in kept)
        }  # fmt: skip
        builder.finish(node, FORWARD, parts, results, parts_of_keys)
        return
    if node.op is flex_value_gradient and partner(lowering.graph.nodes, node) is not None:
        return
    if node.op is flex_value_gradient:
        scores, visible, lse, dout, value, *_ = node.args
        begin = scores_behind(scores)
        results = {"dv": node.outputs[0]}
        parts = {"query": begin.args[0], "key": begin.args[1], "value": value, "dout": dout,
                 "lse": lse}  # fmt: skip
        builder = _AttentionBuilder(lowering, begin, scores, visible)
        builder.finish(node, KEY_VALUE_GRADIENTS, parts, results)
        return
    nodes = lowering.graph.nodes
    if node.op is flex_scatter_add and any(
        other.op is flex_query_gradient and node in joined_sums(nodes, other) for other in nodes
    ):
        return
    slopes = slopes_behind(node.args[0])
    assert slopes is not None
    scores, visible, lse, delta, dout, value = slopes.args
    begin = scores_behind(scores)
    parts = {"query": begin.args[0], "key": begin.args[1], "value": value, "dout": dout,
             "lse": lse, "delta": delta}  # fmt: skip
    sums = [node] if node.op is flex_scatter_add else []
    if node.op is flex_query_gradient:
        sums = joined_sums(nodes, node)
    gradient = None if node.op is flex_scatter_add else node.args[0]
    builder = _AttentionBuilder(lowering, begin, scores, visible, (slopes, gradient), sums=sums)
    if node.op is flex_scatter_add:
        builder.finish(begin, QUERY_GRADIENT, parts, {})
        return
    if node.op is flex_query_gradient:
        builder.finish(node, QUERY_GRADIENT, parts, {"dq": node.outputs[0]})
        return
    results = {"dk": node.outputs[0]}
    for other in lowering.graph.nodes:
        if other.op is flex_value_gradient and partner(lowering.graph.nodes, other) is node:
            results["dv"] = other.outputs[0]
    builder.finish(node, KEY_VALUE_GRADIENTS, parts, results)


class _AttentionBuilder:
    """Builds the body, then the call."""

    def __init__(
        self, lowering: Any, begin: Node, scores: Value, visible: Value,
        slopes: tuple[Node, Value | None] | None = None, packed: int = 0,
        sums: Sequence[Node] = (),
    ) -> None:  # fmt: skip
        self.lowering = lowering
        self.packed = packed
        self.sizes = lowering.sizes
        self.begin = begin
        (raw,) = begin.outputs
        assert raw is not None
        shape = self.sizes.convert_all(raw.spec.shape)
        self.index = tuple(
            sympy.S.Zero if size is sympy.S.One else axis
            for size, axis in zip(shape, AXES, strict=True)
        )
        self.shape = raw.spec.shape
        if packed:
            batch, heads, _, keys = self.shape
            groups = int(heads) // int(begin.args[1].spec.shape[1])
            self.shape = (batch, int(heads) // groups, groups * packed, keys)
            head = AXES[1] * groups + FloorDiv(AXES[2], sympify(packed))
            query = Mod(AXES[2], sympify(packed))
            self.index = (self.index[0], head, query, self.index[3])
        virtual = {raw: SCORES}
        if slopes is not None:
            virtual |= {out: GRADIENTS for out in slopes[0].outputs if out is not None}
        self.virtual = virtual
        elements = Elements(
            ChainMap(virtual, lowering.memory),  # type: ignore[arg-type]
            lowering.realized.roots,
            self.sizes,
            {
                axis.name: size
                for axis, size in zip(AXES, self.sizes.convert_all(self.shape), strict=True)
            },
            raw.spec.device,
            lowering.on_device,
            lowering.options.elides_casts,
        )
        self.elements = elements
        self.changed = elements.element(scores, self.index)
        self.visible: str | None = elements.element(visible, self.index)
        self.gradient = elements.element(slopes[1], self.index) if slopes and slopes[1] else None
        # Values and places of elements, and what they are added to, which is copied beforehand.
        self.scatters = [
            (
                one,
                elements.element(one.args[0], self.index),
                elements.element(one.args[1], self.index),
            )
            for one in sums
        ]
        seen = elements.builder.by_name[self.visible]
        if isinstance(seen, Constant) and seen.value:
            self.visible = None
        names = [name for name in (self.changed, self.visible, self.gradient) if name]
        names += [name for _, value, place in self.scatters for name in (value, place)]
        body = live_statements(elements.builder.statements, names)
        self.check(body, raw)
        bounds = {}
        for axis, size in zip(AXES, self.shape, strict=True):
            if isinstance(size, int) or sizes.lt(size, LONGEST):
                bounds[axis.name] = size if isinstance(size, int) else LONGEST
        self.body = narrow_integers(body, bounds)

    def check(self, body: Body, raw: Value) -> None:
        """Each score depends on its own products alone."""
        place = linear(self.index, self.sizes.convert_all(raw.spec.stride), sympy.S.Zero)
        for statement in body:
            if isinstance(statement, Load) and statement.buffer in (SCORES, GRADIENTS):
                if sympy.expand(statement.index - place) != 0:
                    raise ValueError(f"a score that depends on another: {statement}")
        if self.elements.host_reads:
            raise ValueError("a score that depends on the state of a generator")

    def operand(self, value: Value, *, has_parts: bool = False) -> Operand:
        """A tensor of the call; with results for each part of the keys in its first dim."""
        buffer = self.lowering.memory[self.lowering.realized.root(value)]
        base = self.lowering.lowered.buffers[buffer].spec
        spec = value.spec
        strides = list(self.sizes.convert_all(spec.stride))
        for dim, size in enumerate(spec.shape):
            if isinstance(size, int) and size == 1:
                strides[dim] = sympy.S.Zero
        offset = self.sizes.convert(spec.offset - base.offset)
        part_stride = strides.pop(0) if has_parts else sympy.S.Zero
        return Operand(buffer, spec.dtype, tuple(strides), offset, part_stride)

    def blocks(self, tables: Sequence[Value], block: Sequence[int]) -> Blocks | None:
        """Which blocks are computed; None: all."""
        if not tables:
            return None
        counts, indices, *full = map(self.operand, tables)
        batches, heads = tables[0].spec.shape[:2]
        full_counts, full_indices = full or (None, None)
        queries, keys = block
        return Blocks(
            counts, indices, full_counts, full_indices, queries, keys,
            self.size(batches), self.size(heads),
        )  # fmt: skip

    def copied(self, node: Node) -> Value:
        """The result of a scatter, which holds what elements are added to."""
        (out,) = node.outputs
        assert out is not None
        lowering = self.lowering
        axes, index = lowering.axes(out.spec.shape, out.spec.stride, "i")
        elements = lowering.elements(axes, out.spec.device)
        name = elements.element(node.args[2], index)
        lowering.finish(elements, lowering.make(out), out.spec, index, name, axes, (), node.where)
        return out

    def size(self, size: Any) -> Any:
        return int_if_known(self.sizes.convert(size))

    def finish(
        self, node: Node, form: str, parts: dict[str, Value], results: dict[str, Any],
        parts_of_keys: int = 1,
    ) -> None:  # fmt: skip
        """Append the call."""
        rows, columns, *block, options = blocks_of(node)
        tables = columns if form == KEY_VALUE_GRADIENTS else rows
        lowering = self.lowering
        query, key, value = (parts[role].spec for role in ("query", "key", "value"))
        reads = {lowering.memory[lowering.realized.root(one)] for one in parts.values()}
        reads |= {lowering.memory[lowering.realized.root(one)] for one in values_in(list(tables))}
        reads |= {
            s.buffer for s in self.body
            if isinstance(s, Load) and s.buffer not in (SCORES, GRADIENTS)
        }  # fmt: skip
        operands_ = tuple((role, self.operand(one)) for role, one in parts.items())
        made = {role: lowering.make(one) for role, one in results.items()}
        scatters = tuple(
            Scatter(self.operand(self.copied(one)), value, place)
            for one, value, place in self.scatters
        )
        mutated = tuple(scatter.into.buffer for scatter in scatters)
        lowering.lowered.updated.update(mutated)
        attention = Attention(
            form=form,
            batch=self.size(query.shape[0]),
            heads=int(self.shape[1]),
            groups=int(self.shape[1]) // int(key.shape[1]),
            queries=self.size(self.shape[2]),
            keys=self.size(key.shape[2]),
            width=int(query.shape[3]),
            value_width=int(value.shape[3]),
            scale=self.begin.args[2],
            tf32=torch.get_float32_matmul_precision() != "highest",
            operands=operands_,
            results=tuple(
                (role, self.operand(one, has_parts=parts_of_keys > 1))
                for role, one in results.items()
            ),
            blocks=self.blocks(tables, block),
            body=self.body,
            changed=self.changed,
            visible=self.visible,
            gradient=self.gradient,
            parts=parts_of_keys,
            packed=self.packed,
            scatters=scatters,
            options=options_of(options, form),
        )
        nodes = lowering.lowered.nodes
        nodes.append(
            ExternCall(
                len(nodes),
                f"flambeau.attention_{form}",
                tuple(lowering.tensor(one) for one in parts.values()),
                {},
                (),
                tuple(made.items()),
                reads | {*mutated},
                str(query.device),
                where=node.where,
                mutates=mutated,
                attention=attention,
            )
        )


def live_statements(statements: Sequence[Statement], names: Iterable[str]) -> Body:
    """The statements that some values depend on, with the checks of their indices."""
    live = set(names)
    kept = []
    for statement in reversed(statements):
        if isinstance(statement, CheckIndex) or getattr(statement, "name", None) in live:
            kept.append(statement)
            live.update(operands(statement))
            index = index_of(statement)
            if index is not None:
                live.update(free_names(index))
    return tuple(reversed(kept))
