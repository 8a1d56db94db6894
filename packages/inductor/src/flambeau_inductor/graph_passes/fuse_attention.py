"""Decide which attention becomes kernels of `codegen/triton/flex_attention.py`, and write the rest
out as matrix products.

    scores = flambeau.flex_scores(q, k, ...); ...; out, lse, most = flambeau.flex_attend(...)
    ->  the same, if `refusal` has nothing against it
    ->  aten.bmm, ..., aten.bmm on all scores

One kernel computes the gradients of values and keys: the former's call, and what reads it, is moved
behind the latter's. So do gradients of queries and those of what a score function reads, which
`scatter_scores` makes. Where queries are too few to fill a GPU, the keys are cut into parts, whose
results are combined:

    out, lse, most = flex_attend(...)  ->  outs, lses, mosts = flex_attend_parts(..., 4)
                                           out = sum(outs * 2**(lses - lse)), ...
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.attention_options import (
    check_options,
    parts_asked_for,
    refuses_decoding,
    wants_decoding,
    without_effect,
)
from flambeau_inductor.graph_passes.scatter_scores import scatter_scores
from flambeau_prims import sizes
from flambeau_prims.builder import Builder
from flambeau_prims.decompose import decompose
from flambeau_prims.flex_attention import (
    EAGER,
    READERS,
    SCORES_OF,
    blocks_of,
    flex_attend,
    flex_attend_parts,
    flex_key_gradient,
    flex_query_gradient,
    flex_scatter_add,
    flex_scores,
    flex_slopes,
    flex_value_gradient,
    values_of_scores,
)
from flambeau_prims.function_table import FunctionTable
from flambeau_prims.gpu_draws import gpu_facts
from flambeau_prims.graph import Graph, Node, Value, map_values, values_in
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.sizes import hint_of
from flambeau_prims.tracer import Tracer
from flambeau_prims.unsupported import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST = 256
"""The widest head of a tile."""
SMALLEST_BLOCK = 16
MOST_QUERIES_OF_DECODING = 127
MOST_QUERIES_OF_PACKED_HEADS = 32
ROWS_OF_PROGRAM, KEYS_OF_PART = 64, 256
"""Queries that a program has, and the keys that are worth one, as far as parts are concerned."""
_BY_ELEMENT = (Kind.POINTWISE, Kind.VIEW, Kind.INDEX, Kind.FACTORY, Kind.LAYOUT)

_READ_ELSEWHERE = "scores that something else reads"
_OTHER_SLOPES = "slopes of several scores, or of none"


def fuse_attention(graph: Graph) -> Graph:
    """Rewrite the attention of `graph`, in place."""
    if not any(node.op in EAGER for node in graph.nodes):
        return graph
    for text in {blocks_of(node)[-1]: None for node in graph.nodes if node.op is flex_scores}:
        check_options(text)
    for name, why in options_without_effect(graph):
        warning = f"flex_attention: kernel_options[{name!r}] has no effect: {why}"
        warnings.warn(warning, UserWarning, stacklevel=2)
    if any(reason == _READ_ELSEWHERE for _, reason in attention_groups(graph)):
        scatter_scores(graph)
    for group, reason in attention_groups(graph):
        if reason is None:
            continue
        if any(value.spec.device.type == "cuda" for value in group[0].operands()):
            warning = f"flex_attention stores a tensor of all its scores: {reason}"
            warnings.warn(warning, UserWarning, stacklevel=2)
        _write_out(graph, set(group))
    cut_keys(graph)
    pair_gradients(graph)
    join_sums(graph)
    return graph


def attention_groups(graph: Graph) -> list[tuple[list[Node], str | None]]:
    """The calls that share scores, and why they cannot become kernels, if so."""
    if not any(node.op in EAGER for node in graph.nodes):
        return []
    between = values_of_scores(graph)
    users = graph.users()
    kept = set(graph.live_at_exit())
    # The call that the scores of a Value begin with.
    begins: dict[Value, set[Node]] = {}
    groups: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        own = set().union(*(begins.get(value, ()) for value in node.operands()))
        if node.op in SCORES_OF and node.op not in READERS:
            groups[node] = [node]
            own = {node}
        elif node.op in READERS:
            for begin in own:
                groups[begin].append(node)
        for out in node.outputs:
            if out is not None and out in between:
                begins[out] = own
    reasons: dict[Node, str] = {}
    for node in graph.nodes:
        if node.op in EAGER:
            own = {node} if node in groups else set().union(
                *(begins.get(value, ()) for value in node.operands())
            )  # fmt: skip
            reason = refusal(node, between) if len(own) == 1 else "scores of several products"
            if reason is not None:
                reasons |= dict.fromkeys(own, reason)
    for value, own in begins.items():
        leaves = value in kept or any(
            not (
                all(out in between for out in user.outputs)
                or (user.op in READERS and _reads_only_scores(user, value))
            )
            for user in users[value]
        )
        if leaves:
            reasons |= dict.fromkeys(own, _READ_ELSEWHERE)
    alone = [
        ([node], "scores that do not begin with a product")
        for node in graph.nodes
        if node.op in READERS and not any(node in group for group in groups.values())
    ]
    return [*((group, reasons.get(begin)) for begin, group in groups.items()), *alone]


def options_without_effect(graph: Graph) -> list[tuple[str, str]]:
    """The `kernel_options` of `graph`'s attention that no kernel has, and why."""
    texts = {blocks_of(node)[-1]: None for node in graph.nodes if node.op is flex_scores}
    return [pair for text in texts for pair in without_effect(text)]


def _reads_only_scores(node: Node, value: Value) -> bool:
    others = [arg for at, arg in enumerate(node.args) if at not in READERS[node.op]]
    return all(other is not value for other in values_in(others))


# 1. Matrix products instead


def _write_out(graph: Graph, calls: set[Node]) -> None:
    """Replace calls by what they do in eager torch."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node not in calls:
            nodes.append(node)
            continue
        written = _functional(node, graph)
        given: dict[Any, Any] = dict(
            zip(written.inputs, dict.fromkeys(node.operands()), strict=True)
        )
        prefix = next(out.name for out in node.outputs if out is not None)
        for inner in written.nodes:
            _substitute(inner, given)
            inner.where = node.where
            for out in inner.outputs:
                if out is not None:
                    out.name = f"{prefix}_{out.name}"
            nodes.append(inner)
        new = {
            old: given.get(result, result)
            for old, result in zip(node.outputs, written.outputs, strict=True)
        }
        _replace_uses(graph, new)
    graph.nodes = nodes


def _substitute(node: Node, new: dict[Any, Any]) -> None:
    node.args = map_values(node.args, lambda x: new.get(x, x))
    node.kwargs = map_values(node.kwargs, lambda x: new.get(x, x))


def _replace_uses(graph: Graph, new: dict[Any, Any]) -> None:
    for node in graph.nodes:
        _substitute(node, new)
    graph.outputs = [new.get(out, out) if isinstance(out, Value) else out for out in graph.outputs]
    graph.writes = [(target, new.get(value, value)) for target, value in graph.writes]


def _functional(node: Node, graph: Graph) -> Graph:
    """What a call does, in primitives and ATen calls; its inputs are the call's operands."""
    operands = list(dict.fromkeys(node.operands()))
    tracer = Tracer(graph.env, device=operands[0].spec.device)
    fakes = {value: tracer.fake(value.spec) for value in operands}
    with torch.no_grad(), FunctionTable(tracer.device), tracer:
        results = EAGER[node.op](*map_values(node.args, fakes.__getitem__))
    results = results if isinstance(results, tuple) else (results,)
    assert not tracer.constants, node
    outputs = [result.value for result in results]
    return decompose(Graph(list(tracer.inputs), tracer.nodes, outputs, env=graph.env))


# 2. Several gradients in one kernel


def pair_gradients(graph: Graph) -> None:
    """Move each gradient of values to the gradient of keys of the same scores."""
    for value_node in [node for node in graph.nodes if node.op is flex_value_gradient]:
        key_node = partner(graph.nodes, value_node)
        if key_node is None:
            continue
        _delay(graph, value_node, key_node)


def join_sums(graph: Graph) -> None:
    """Move sums of slopes in front of the gradient of queries of the same slopes."""
    for leader in [node for node in graph.nodes if node.op is flex_query_gradient]:
        slopes = slopes_behind(leader.args[0])
        sums = [
            node for node in graph.nodes
            if node.op is flex_scatter_add and slopes_behind(node.args[0]) is slopes
        ]  # fmt: skip
        for one in sums:
            _delay(graph, leader, one, behind=True)
        for one in sums:
            _delay(graph, one, leader)


def joined_sums(nodes: Sequence[Node], leader: Node) -> list[Node]:
    """The sums whose kernel is that of a gradient of queries: those directly in front of it."""
    slopes = slopes_behind(leader.args[0])
    at = start = nodes.index(leader)
    while (
        start
        and nodes[start - 1].op is flex_scatter_add
        and slopes_behind(nodes[start - 1].args[0]) is slopes
    ):
        start -= 1
    return list(nodes[start:at])


def _delay(graph: Graph, node: Node, other: Node, *, behind: bool = False) -> None:
    """Move `node`, and what depends on it, next to `other`, unless that depends on it or is in
    front of it.
    """
    start, end = graph.nodes.index(node), graph.nodes.index(other)
    if end < start:
        return
    delayed = {out for out in node.outputs if out is not None}
    first: list[Node] = []
    then: list[Node] = []
    for one in graph.nodes[start + 1 : end + 1]:
        late = any(value in delayed for value in one.operands())
        (then if late else first).append(one)
        if late:
            delayed.update(out for out in one.outputs if out is not None)
    if other in first:
        pair = [other, node] if behind else [node, other]
        graph.nodes[start : end + 1] = [*first[:-1], *pair, *then]


# 3. Parts of the keys


def parts_of_keys(node: Node) -> int:
    """Into how many parts the keys of a call are cut: until programs fill the device twice."""
    scores = node.args[0].spec
    batch, heads, queries, keys = (hint_of(size) for size in scores.shape)
    options = blocks_of(node)[-1]
    if wants_decoding(options) and queries > MOST_QUERIES_OF_DECODING:
        raise InvalidOption(
            "flex_attention: BACKEND='TRITON_DECODE' is for at most "
            f"{MOST_QUERIES_OF_DECODING} queries, not {queries}"
        )
    chosen = parts_asked_for(options)
    if chosen is not None:
        return max(1, min(chosen, keys))
    if packs_heads(node):
        groups = heads // hint_of(node.args[3].spec.shape[1])
        heads, queries = heads // groups, queries * groups
    programs = max(1, batch * heads * -(-queries // ROWS_OF_PROGRAM))
    facts = gpu_facts(scores.device)
    processors = 132 if facts is None else facts.multiprocessors
    return max(1, min(2 * processors // programs, keys // KEYS_OF_PART))


def packs_heads(node: Node) -> bool:
    """Whether a program of a forward has the few queries of all heads that share keys."""
    query, value = node.args[2].spec, node.args[3].spec
    _, heads, queries, _ = query.shape
    rows, _, block, _, options = blocks_of(node)
    if heads == value.shape[1] or not isinstance(queries, int) or refuses_decoding(options):
        return False
    if rows and (rows[0].spec.shape[1] != 1 or queries > block):
        return False  # heads have blocks of their own
    return queries <= MOST_QUERIES_OF_PACKED_HEADS


def cut_keys(graph: Graph) -> None:
    """Compute parts of the keys in separate programs where queries are few."""
    if not any(node.op is flex_attend for node in graph.nodes):
        return
    nodes: list[Node] = []
    builder = Builder(nodes, (value.name for value in graph.users()))
    for node in graph.nodes:
        parts = parts_of_keys(node) if node.op is flex_attend else 1
        if parts == 1:
            nodes.append(node)
            continue
        new = _in_parts(builder, node, parts)
        _replace_uses(graph, new)
    graph.nodes = nodes


def _in_parts(b: Builder, node: Node, parts: int) -> dict[Any, Any]:
    """The results of a call, by those that it had."""
    old_out, old_lse, old_most = node.outputs
    assert old_out is not None and old_lse is not None and old_most is not None
    rows = old_lse.spec.fresh((parts, *old_lse.spec.shape))
    wide = old_lse.spec.fresh((parts, *old_out.spec.shape))
    outs, lses, mosts = (
        Value(f"{old.name}_parts", spec)
        for old, spec in ((old_out, wide), (old_lse, rows), (old_most, rows))
    )
    call = Node(flex_attend_parts, (*node.args, parts), {}, (outs, lses, mosts), node.where)
    for one in (outs, lses, mosts):
        one.producer = call
    b.nodes.append(call)
    b.line = node.where
    top = b.amax(lses, (0,))
    unseen = b.eq(top, -math.inf)
    shift = b.where(unseen, 0.0, top)
    shares = b.exp2(b.sub(lses, b.expand(b.unsqueeze(shift, 0), rows.shape)))
    total = b.sum(shares, (0,))
    weighted = b.mul(outs, b.expand(b.unsqueeze(shares, 4), wide.shape))
    whole = b.where(unseen, 1.0, total)
    shape = wide.shape[1:]
    out = b.div(b.sum(weighted, (0,)), b.expand(b.unsqueeze(whole, 3), shape))
    out = b.cast(out, old_out.spec.dtype)
    out.spec = old_out.spec
    lse = b.add(shift, b.log2(total))
    return {old_out: out, old_lse: lse, old_most: b.amax(mosts, (0,))}


# 4. What becomes a kernel


def refusal(node: Node, between: set[Value]) -> str | None:
    """Why a call cannot become a kernel, or None; `between`: `values_of_scores` of its graph."""
    tensors = [value for value in node.operands() if value not in between]
    result = next(out for out in node.outputs if out is not None)
    if result.spec.device.type != "cuda":
        return "a device without a kernel for attention"
    if node.op is flex_scatter_add:
        if slopes_behind(node.args[0]) is None:
            return _OTHER_SLOPES
        reasons = (_refused_element(value, between) for value in node.args[:2])
        return next((reason for reason in reasons if reason is not None), None)
    wide = [value for value in tensors if value.spec.ndim == 4 and _is_float(value)]
    if len({value.spec.dtype for value in wide}) != 1 or wide[0].spec.dtype not in DTYPES:
        return "queries, keys and values of several dtypes, or of one without a kernel"
    for value in wide:
        _, heads, _, width = value.spec.shape
        if not isinstance(heads, int) or not isinstance(width, int) or not 0 < width <= WIDEST:
            return f"heads that are wider than {WIDEST}, or of a width that varies"
        if any(size == 0 for size in value.spec.shape):
            return "no elements"
    if node.op in (flex_value_gradient, flex_key_gradient):
        of, by = (node.args[4], node.args[3]) if node.op is flex_value_gradient else (
            node.args[2], node.args[1]
        )  # fmt: skip
        if not sizes.eq(of.spec.shape[0], by.spec.shape[0]):
            return "gradients of keys and values that several batches share"
    for arg in node.args:
        if isinstance(arg, (list, tuple)):
            if any(table.spec.dtype is not torch.int32 for table in arg):
                return "a block mask that is not of int32"
            _, _, *block, _ = blocks_of(node)
            if arg and any(not isinstance(b, int) or b % SMALLEST_BLOCK for b in block):
                return f"blocks of a mask that are no multiple of {SMALLEST_BLOCK}"
    if node.op is flex_value_gradient or node.op is flex_key_gradient:
        rows, columns, *_ = blocks_of(node)
        if rows and not columns:
            return "a block mask without blocks by keys"
    if node.op is flex_scores and not isinstance(node.args[2], float):
        return "a scale that varies"
    for position in READERS.get(node.op, ()):
        reason = _refused_element(node.args[position], between)
        if reason is not None:
            return reason
    if node.op in (flex_query_gradient, flex_key_gradient) and slopes_behind(node.args[0]) is None:
        return _OTHER_SLOPES
    return None


def _is_float(value: Value) -> bool:
    return value.spec.dtype.is_floating_point


def _refused_element(value: Value, between: set[Value]) -> str | None:
    """Why the elements of a Value cannot be computed where scores are."""
    pending, visited = [value], set()
    while pending:
        one = pending.pop()
        producer = one.producer
        if one in visited or one not in between or producer is None or producer.op in EAGER:
            continue
        visited.add(one)
        if not isinstance(producer.op, Prim) or producer.op.kind not in _BY_ELEMENT:
            return f"scores that {producer.op} computes"
        if producer.op.name in ("random_words", "empty"):
            return f"scores that {producer.op} computes"
        pending += producer.operands()
    return None


def partner(nodes: Iterable[Node], value_node: Node) -> Node | None:
    """The call for the gradient of keys whose slopes are those of the same scores."""
    for node in nodes:
        if node.op is flex_key_gradient:
            slopes = slopes_behind(node.args[0])
            if slopes is not None and slopes.args[:2] == value_node.args[:2]:
                return node
    return None


def slopes_behind(value: Value) -> Node | None:
    """The one call of `flex_slopes` that a Value is computed from."""
    found: dict[Node, None] = {}
    pending, visited = [value], set()
    while pending:
        one = pending.pop()
        producer = one.producer
        if one in visited or producer is None:
            continue
        visited.add(one)
        if producer.op is flex_slopes:
            found[producer] = None
        elif producer.op not in EAGER:
            pending += producer.operands()
    return next(iter(found)) if len(found) == 1 else None


def scores_behind(value: Value) -> Node:
    """The call of `flex_scores` that a Value is computed from."""
    pending, visited = [value], set()
    while pending:
        one = pending.pop()
        producer = one.producer
        if one in visited or producer is None:
            continue
        visited.add(one)
        if producer.op is flex_scores:
            return producer
        if producer.op not in EAGER:
            pending += producer.operands()
    raise ValueError(f"{value} is computed from no scores")
