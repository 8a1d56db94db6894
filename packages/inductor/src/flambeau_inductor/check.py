"""Checkers of borders and IR: what each stage relies on, run with `debug_checks` and in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_inductor.indexing.expressions import free_names
from flambeau_inductor.ir import (
    COLUMN_KINDS,
    REDUCE_KINDS,
    SCAN_KINDS,
    SHARE,
    SORT_KINDS,
    TILE,
    CheckIndex,
    ColumnReduce,
    Compute,
    Reduce,
    Scan,
    Sort,
    Store,
    TileReduce,
    format_statement,
    index_of,
    operands,
    reduces_columns,
    scan_direction,
)
from flambeau_inductor.nodes import LoopNest
from flambeau_inductor.scalar_ops import SCALAR_OPS
from flambeau_prims.graph import Value
from flambeau_prims.primitives import FLOAT8, Kind, Prim

if TYPE_CHECKING:
    from flambeau_inductor.ir import Axis, Body, Integer, LoopKernel, Statement
    from flambeau_inductor.nodes import Lowered
    from flambeau_inductor.schedule import Schedule
    from flambeau_prims.graph import Graph

STORAGE_TYPES = frozenset({torch.float16, torch.bfloat16, *FLOAT8})
"""Values of these are only moved, selected and cast."""


class BorderError(ValueError):
    """A graph, body or schedule that breaks a law of its stage."""


def _broken(law: str, statement: Statement) -> BorderError:
    """The error of a statement, whose text takes longer to print than its laws to check."""
    return BorderError(f"{law}: {format_statement(statement)}")


def check_graph(graph: Graph) -> None:
    """Border 2: values are defined before use; operators are primitives or functional ATen."""
    defined = set(graph.inputs)
    for node in graph.nodes:
        for value in node.operands():
            if value not in defined:
                raise BorderError(f"{value} is read before it is defined, in `{node}`")
        if isinstance(node.op, Prim):
            tensors = [arg for arg in node.args if isinstance(arg, Value)]
            if (
                node.op.kind is Kind.POINTWISE
                and len({len(value.spec.shape) for value in tensors}) > 1
            ):
                raise BorderError(f"operands of different shapes in `{node}`")
            if len(node.outputs) != 1 or node.outputs[0] is None:
                raise BorderError(f"a primitive has one result: `{node}`")
        elif not isinstance(node.op, torch._ops.OpOverload):
            raise BorderError(f"neither a primitive nor an ATen overload: `{node}`")
        elif node.op._schema.is_mutable:
            raise BorderError(f"an operator that mutates: `{node}`")
        defined.update(out for out in node.outputs if out is not None)
    for value in graph.live_at_exit():
        if value not in defined:
            raise BorderError(f"{value} leaves the graph undefined")
    for target, _ in graph.writes:
        if not any(target is value for value in graph.inputs):
            raise BorderError(f"a write to {target}, which is no input")


def check_body(body: Body, outer: tuple[Axis, ...], inner: tuple[Axis, ...]) -> None:
    """Laws 2, 5, 6 of `ir`: single assignment, definitions before uses, one operand dtype."""
    dtypes: dict[str, torch.dtype] = {}
    axes = {axis.symbol.name for axis in (*outer, *inner)}
    for statement in body:
        for name in operands(statement):
            if name not in dtypes:
                raise _broken(f"{name} is used before it is defined", statement)
        index = index_of(statement)
        if index is not None:
            for name in free_names(index):
                if (
                    name.startswith("v")
                    and name[1:].isdigit()
                    and dtypes.get(name) is not torch.int64
                ):
                    raise _broken("an indirect index must be an int64 value", statement)
                if name[0] in "ir" and name[1:].isdigit() and name not in axes:
                    raise _broken(f"{name} is no axis of this nest", statement)
        if isinstance(statement, Compute):
            check_compute(statement, dtypes)
        if isinstance(statement, (Reduce, TileReduce)) and statement.kind not in REDUCE_KINDS:
            raise _broken("no such reduction", statement)
        if isinstance(statement, ColumnReduce) and statement.kind not in COLUMN_KINDS:
            raise _broken("no such reduction of columns", statement)
        if isinstance(statement, Scan):
            check_scan(statement, body)
        if isinstance(statement, Sort) and statement.kind not in SORT_KINDS:
            raise _broken("no such sort", statement)
        if isinstance(statement, (Scan, Sort)) and not inner:
            raise _broken("no inner axes to follow", statement)
        if not isinstance(statement, (Store, CheckIndex)):
            if statement.name in dtypes:
                raise _broken(f"{statement.name} is defined twice", statement)
            dtypes[statement.name] = statement.dtype


def check_partial_results(body: Body, shares: Integer) -> None:
    """Laws 7 and 8 of `ir`: results of ColumnReduces and of TileReduces are stored, once for each
    share, or tile.
    """
    if reduces_columns(body) is not (shares != 0):
        raise BorderError(f"{shares} shares of the outer points: {body}")
    if len({s.points for s in body if isinstance(s, TileReduce)}) > 1:
        raise BorderError(f"tiles of different sizes: {body}")
    for kind, number in ((ColumnReduce, SHARE), (TileReduce, TILE)):
        partial = {s.name for s in body if isinstance(s, kind)}
        for statement in body:
            if isinstance(statement, Store):
                if (statement.value in partial) is not (number in statement.index.free_symbols):
                    raise _broken(f"{number} is where partial results are stored", statement)
            elif not partial.isdisjoint(operands(statement)):
                raise _broken("partial results are only stored", statement)


def check_scan(statement: Scan, body: Body) -> None:
    """Its kind, and that the body has one direction."""
    if statement.kind not in SCAN_KINDS:
        raise _broken("no such scan", statement)
    if statement.reverse is not scan_direction(body):
        raise _broken("scans in both directions", statement)


def check_compute(statement: Compute, dtypes: dict[str, torch.dtype]) -> None:
    """Arity and dtypes of one operator."""
    op = SCALAR_OPS.get(statement.op)
    if op is None or len(statement.args) != op.arity:
        raise _broken("no such operator, or not of that many operands", statement)
    kinds = [dtypes[arg] for arg in statement.args]
    if statement.op == "where":
        if kinds.pop(0) is not torch.bool:
            raise _broken("a condition must be bool", statement)
    if len(set(kinds)) > 1:
        raise _broken(f"operands of dtypes {kinds}", statement)
    if statement.op != "cast":
        result = kinds[0] if op.result == "same" else getattr(torch, op.result)
        if statement.dtype is not result:
            raise _broken(f"the result should be {result}", statement)
        if kinds[0] in STORAGE_TYPES and statement.op != "where":
            raise _broken("arithmetic in a storage type", statement)


def check_kernel(kernel: LoopKernel) -> None:
    """A kernel's body, and that it uses the buffers and sizes it declares."""
    check_body(kernel.body, kernel.outer, kernel.inner)
    check_partial_results(kernel.body, kernel.shares)
    declared = {param.name for param in kernel.params}
    used = {buffer for s in kernel.body if (buffer := getattr(s, "buffer", None)) is not None}
    if used != declared:
        raise BorderError(f"parameters {sorted(declared)}, but the body uses {sorted(used)}")


def check_lowered(lowered: Lowered) -> None:
    """Every nest is well formed and touches declared buffers."""
    for node in lowered.nodes:
        unknown = (node.reads | node.writes) - lowered.buffers.keys()
        if unknown:
            raise BorderError(f"buffers {sorted(unknown)} are not declared: {node}")
        if isinstance(node, LoopNest):
            check_body(node.body, node.outer, node.inner)
            check_partial_results(node.body, node.shares)


def check_schedule(schedule: Schedule) -> None:
    """Buffers are written before read, and not used after they are freed or taken over."""
    buffers = schedule.lowered.buffers
    written = {name for name, buffer in buffers.items() if buffer.role == "input"}
    dead: set[str] = set()
    for step, group in enumerate(schedule.groups):
        given = schedule.memory.allocate[step]
        dead.update(each.reuse for each in given if each.reuse and not each.in_place)
        for node in group.nodes:
            for name in node.reads:
                if name not in written and any(
                    name in other.writes
                    for g in schedule.groups
                    for other in g.nodes
                    if other is not node  # which may update memory that nothing is in
                ):
                    raise BorderError(f"{name} is read before it is written: {node}")
            if (node.reads | node.writes) & dead:
                raise BorderError(
                    f"dead memory {sorted((node.reads | node.writes) & dead)} is used: {node}"
                )
            written |= node.writes
        dead.update(schedule.memory.free[step])
        dead.update(each.reuse for each in given if each.reuse)
