"""Builder: appends primitives to a graph, with their Specs; what decompositions are written with.

    def silu(b, x):                     # aten.silu: x / (1 + exp(-x))
        x = b.widen(x)
        return b.div(x, b.add(b.exp(b.neg(x)), 1.0))

`b.<primitive>(...)` appends that primitive and returns its result. Values and numbers are operands;
nothing is broadcast or promoted unless asked for by `promote`, `broadcast`, `widen`. Calls that
change nothing (a cast to the same dtype, a reshape to the same shape, a product with 1) return
their operand.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_prims import sizes
from flambeau_prims.graph import Node, Value
from flambeau_prims.primitives import PRIMS, Kind, Prim
from flambeau_prims.promotion import float_result, is_integral, result_type
from flambeau_prims.strides import broadcast_shapes, wrap_dim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flambeau_prims.spec import Size, Spec

Operand: TypeAlias = Any
"""A Value or a number."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which eager computes for `dtype`: float32 for float16 and bfloat16."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class Builder:
    """Appends nodes to `nodes`.

    `results` are the Specs of the ATen node that is being decomposed, one a result (None where it
    returns no tensor); `line` is its place in the user's program, which all nodes made for it
    carry. `aligned` is as in `Graph`. `strict` asks for formulas that give eager's bits.
    """

    def __init__(
        self,
        nodes: list[Node],
        names: Iterable[str] = (),
        aligned: Mapping[Value, bool] = MappingProxyType({}),
        *,
        strict: bool = False,
    ) -> None:
        self.strict = strict
        self.nodes = nodes
        self.aligned = dict(aligned)
        self.results: tuple[Spec | None, ...] = ()
        self.line = ""
        self._names = set(names)
        self._count = 0
        self.facts: dict[Value, Any] = {}
        """What the decomposition of a Value knows of it, for those of its readers."""
        self._inferred: dict[tuple[Any, ...], Spec] = {}

    if TYPE_CHECKING:

        def __getattr__(self, primitive: str) -> Callable[..., Value]: ...

    def emit(self, prim: Prim, *args: Any) -> Value:
        """Append one primitive, unless it changes nothing; returns its result."""
        if prim.kind is _POINTWISE:
            args = _numbers_for_constants(prim, args)
            if prim is _CAST and _constant(args[0]) is not None:
                return self._constant_as(args[0], dtype=args[1])
        elif prim is _FULL:
            shape, number, dtype, device = args
            args = (shape, _number_of(number, dtype), dtype, device)
        fold = _FOLDS.get(prim.name)
        if fold is not None:
            folded = fold(*args)
            if folded is not None:
                return folded
        return self._append(prim, args)

    def _append(self, prim: Prim, args: tuple[Any, ...]) -> Value:
        value = Value(self.fresh_name(), self._infer(prim, args))
        value.producer = Node(prim, args, {}, (value,), self.line)
        self.nodes.append(value.producer)
        return value

    def _infer(self, prim: Prim, args: tuple[Any, ...]) -> Spec:
        known = tuple([_spec_argument(arg) for arg in args])
        key = (prim, *known)
        cached = self._inferred.get(key)
        if cached is None:
            cached = self._inferred[key] = prim.infer(*known)
        return cached

    def _constant_as(self, x: Value, *, dtype: torch.dtype) -> Value:
        """A constant in another dtype."""
        source = _constant(x)
        assert source is not None
        number = source.args[1]
        if x.spec.dtype is dtype or not isinstance(number, (bool, int, float)):
            return x if x.spec.dtype is dtype else self._append(_CAST, (x, dtype))
        number = torch.full((), number, dtype=x.spec.dtype).to(dtype).item()
        return self._append(_FULL, (x.spec.shape, number, dtype, x.spec.device))

    def fresh_name(self) -> str:
        """A name that no other Value of the graph has."""
        while True:
            name = f"t{self._count}"
            self._count += 1
            if name not in self._names:
                return name

    @property
    def result(self) -> Spec:
        """The Spec of the only, or first, result of the node that is being decomposed."""
        spec = self.results[0]
        assert spec is not None
        return spec

    # Dtypes

    def widen(self, x: Value) -> Value:
        """x in the dtype that eager computes in (float32 for float16 and bfloat16)."""
        return self.emit(_CAST, x, compute_dtype(x.spec.dtype))

    def promote(self, operands: Sequence[Operand], *, to_float: bool = False) -> list[Operand]:
        """The operands of an elementwise operator in its compute dtype and common shape, on its
        device.

        `to_float`: integers become the default floating dtype (true division, exp, ...).
        """
        dtype = self.promoted_dtype(operands, to_float=to_float)
        if not any(isinstance(op, Value) for op in operands):
            number, *others = operands  # `torch.div(7, 2)` is a tensor
            operands = [self._append(_FULL, ((), number, dtype, self.result.device)), *others]
        return self.broadcast(operands, compute_dtype(dtype))

    def promoted_dtype(self, operands: Sequence[Operand], *, to_float: bool = False) -> torch.dtype:
        """The dtype of an elementwise operator's result on these operands."""
        dtype = result_type([op.spec if isinstance(op, Value) else op for op in operands])
        return float_result(dtype) if to_float else dtype

    def broadcast(
        self, operands: Sequence[Operand], dtype: torch.dtype | None = None
    ) -> list[Operand]:
        """Tensors expanded to their common shape, on one device, and cast to `dtype` if given."""
        tensors = [op for op in operands if isinstance(op, Value)]
        shape = broadcast_shapes(*[op.spec.shape for op in tensors])
        # A 0-dim CPU tensor may meet tensors of any device.
        device = next(
            (op.spec.device for op in tensors if op.spec.shape or op.spec.device.type != "cpu"),
            None,
        )
        ready = []
        for op in operands:
            if isinstance(op, Value):
                if dtype is not None:
                    op = self.emit(_CAST, op, dtype)
                op = self._spread_out(op, shape, device)
            ready.append(op)
        return ready

    def _spread_out(self, x: Value, shape: tuple[Size, ...], device: torch.device | None) -> Value:
        """x expanded, on this device; a constant is made there."""
        source = _constant(x)
        if source is not None and (x.spec.shape != shape or device not in (None, x.spec.device)):
            return self._append(
                _FULL, (shape, source.args[1], x.spec.dtype, device or x.spec.device)
            )
        if device is not None:
            x = self.emit(_TO_DEVICE, x, device)
        return self.emit(_EXPAND, x, shape)

    def tensor(self, number: Any, like: Spec, dtype: torch.dtype | None = None) -> Value:
        """A constant of the shape and device of `like`, for when every operand is a number."""
        return self.full(like.shape, number, dtype or like.dtype, like.device)

    def check(self, condition: Value) -> None:
        """Append a call that raises unless all of a bool tensor is true."""
        dims = tuple(range(len(condition.spec.shape)))
        holds = self.all(condition, dims) if dims else condition
        self.nodes.append(Node(torch.ops.aten._assert_async.default, (holds,), {}, (), self.line))

    # Reductions over dims that come back

    def restore(self, x: Value, dims: Sequence[int]) -> Value:
        """x with dims of size 1 where a reduction dropped `dims`."""
        for dim in sorted(dims):
            x = self.unsqueeze(x, dim)
        return x

    def spread(self, x: Value, dims: Sequence[int], shape: Sequence[Size]) -> Value:
        """A reduction's result repeated along the reduced dims: of `shape` again."""
        inner = [d for d in sorted(dims) if not all(outer in dims for outer in range(d))]
        lead = len(dims) - len(inner)  # dims in front of all others come by expanding
        return self.expand(self.restore(x, [d - lead for d in inner]), tuple(shape))

    def along(self, x: Value, dims: Sequence[int], shape: Sequence[Size]) -> Value:
        """A tensor whose dims are the ascending `dims` of `shape`, repeated along all others."""
        return self.spread(x, [d for d in range(len(shape)) if d not in dims], shape)


def wrap_dims(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Reduced dims, ascending and counted from the front; None and () mean all of them."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(ndim))
    if ndim == 0:
        return ()
    return tuple(sorted(wrap_dim(d, ndim) for d in ([dims] if isinstance(dims, int) else dims)))


def memory_of(x: Value) -> Value:
    """The Value whose memory x is a view of: an input, or a result that is no view."""
    while (source := viewed_by(x)) is not None:
        x = source
    return x


def viewed_by(x: Value) -> Value | None:
    """The Value that a view primitive makes x of, or None if x is no such view."""
    node = x.producer
    if node is None or not isinstance(node.op, Prim) or node.op.kind is not _VIEW:
        return None
    source: Value = node.args[0]
    return source


def is_float(x: Operand) -> bool:
    """Whether an operand is floating (a number's type counts)."""
    return x.spec.dtype.is_floating_point if isinstance(x, Value) else isinstance(x, float)


def is_int(x: Operand) -> bool:
    """Whether an operand is an integer or bool."""
    return is_integral(x.spec.dtype) if isinstance(x, Value) else not isinstance(x, float)


def _spec_argument(arg: Any) -> Any:
    if isinstance(arg, Value):
        return arg.spec
    if isinstance(arg, (list, tuple)):
        return tuple([_spec_argument(item) for item in arg])
    return arg


# Constants


def _constant(x: Operand) -> Node | None:
    """The `full` that x is, or is a view of; None if it is anything else."""
    if not isinstance(x, Value):
        return None
    source = memory_of(x).producer
    return source if source is not None and source.op is _FULL else None


def _number_of(number: Any, dtype: torch.dtype) -> Any:
    """A Python number in the type that goes with a dtype; a symbolic one as it is."""
    if not isinstance(number, (bool, int, float)):
        return number
    return (
        bool(number)
        if dtype is torch.bool
        else float(number)
        if dtype.is_floating_point
        else int(number)
    )


def _numbers_for_constants(prim: Prim, operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """A pointwise primitive's operands, with constants as numbers if a tensor remains."""
    first = 1 if prim is _WHERE else 0  # where's condition stays a tensor
    constants = [_constant(op) for op in operands[first:]]
    if not any(constants) or not any(
        isinstance(op, Value) and constant is None
        for op, constant in zip(operands[first:], constants, strict=True)
    ):
        return operands
    ready = [
        op if constant is None else constant.args[1]
        for op, constant in zip(operands[first:], constants, strict=True)
    ]
    return (*operands[:first], *ready)


# Calls that change nothing


def _is_number(x: Operand, number: int) -> bool:
    return isinstance(x, (int, float)) and x == number


def _fold_mul(a: Operand, b: Operand) -> Value | None:
    if _is_number(b, 1) and isinstance(a, Value):
        return a
    return b if _is_number(a, 1) and isinstance(b, Value) else None


def _fold_add(a: Operand, b: Operand) -> Value | None:
    """Of integers only: -0.0 + 0 is +0.0."""
    if _is_number(b, 0) and isinstance(a, Value) and is_int(a):
        return a
    return b if _is_number(a, 0) and isinstance(b, Value) and is_int(b) else None


def _fold_sub(a: Operand, b: Operand) -> Value | None:
    return a if _is_number(b, 0) and isinstance(a, Value) and str(b)[0] != "-" else None


def _fold_div(a: Operand, b: Operand) -> Value | None:
    return a if _is_number(b, 1) and isinstance(a, Value) else None


def _fold_slice(x: Value, dim: int, start: Size, stop: Size, step: Size) -> Value | None:
    if type(start) is int and start == 0 and type(step) is int and step == 1:
        return x if sizes.known_eq(stop, x.spec.shape[dim]) else None
    return None


def _fold_shape(x: Value, shape: Sequence[Size]) -> Value | None:
    return x if x.spec.shape == tuple(shape) else None


def _fold_pad(x: Value, lows: Sequence[Size], highs: Sequence[Size], value: Any) -> Value | None:
    return x if all(type(size) is int and size == 0 for size in (*lows, *highs)) else None


_FOLDS: dict[str, Callable[..., Value | None]] = {
    "mul": _fold_mul,
    "add": _fold_add,
    "sub": _fold_sub,
    "div": _fold_div,
    "cast": lambda x, dtype: x if x.spec.dtype is dtype else None,
    "to_device": lambda x, device: x if x.spec.device == device else None,
    "expand": _fold_shape,
    "reshape": _fold_shape,
    "permute": lambda x, dims: x if tuple(dims) == tuple(range(len(dims))) else None,
    "squeeze": lambda x, dims: None if dims else x,
    "slice": _fold_slice,
    "flip": lambda x, dims: None if dims else x,
    "pad": _fold_pad,
    "cat": lambda xs, dim: xs[0] if len(xs) == 1 else None,
    "sum": lambda x, dims: None if dims else x,
    "prod": lambda x, dims: None if dims else x,
    "amax": lambda x, dims: None if dims else x,
    "amin": lambda x, dims: None if dims else x,
    "any": lambda x, dims: None if dims else x,
    "all": lambda x, dims: None if dims else x,
}


def _method(prim: Prim) -> Callable[..., Value]:
    def call(self: Builder, *args: Any) -> Value:
        return self.emit(prim, *args)

    call.__name__ = prim.name
    call.__doc__ = prim.meaning
    return call


for _prim in PRIMS.values():
    setattr(Builder, _prim.name, _method(_prim))

_POINTWISE, _VIEW = Kind.POINTWISE, Kind.VIEW  # in Python 3.11 slow to read, as enums' members are
_CAST, _EXPAND, _TO_DEVICE = PRIMS["cast"], PRIMS["expand"], PRIMS["to_device"]
_FULL, _WHERE = PRIMS["full"], PRIMS["where"]
