"""Which extern calls go through libtorch's dispatcher, and their arguments in its terms
(csrc/dispatch.c).

    extern aten.cat.default([buf0, arg1], 1)  ->  LIST 2 TENSOR 4 TENSOR 1 | WORD 1

Such a call makes no Python object. If it fails, the executor repeats it through Python, where it
raises eager's exception; if it does not raise there, later calls go through Python at once. So it
must be repeatable: it writes to nothing but its out= tensors and draws no random numbers. Arguments
are given for the whole schema, by its types.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_runtime.externs import BACKWARD_DATA, bits_of, is_random, overload_of
from flambeau_runtime.program import (
    Device,
    Dtype,
    Extern,
    Float,
    Layout,
    MemoryFormat,
    Ref,
    SizeExpr,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# The numbers are those of `enum Argument` in csrc/dispatch.h.
WORD, VALUE, TENSOR, STRING, SOME, LIST = range(6)
MAX_OPERANDS = 40

# torch's ScalarType numbers, fixed by its serialisation format; likewise for the others.
DTYPE_CODES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "complex32": 8,
    "complex64": 9,
    "complex128": 10,
    "bool": 11,
    "bfloat16": 15,
    "float8_e5m2": 23,
    "float8_e4m3fn": 24,
    "float8_e5m2fnuz": 25,
    "float8_e4m3fnuz": 26,
    "uint16": 27,
    "uint32": 28,
    "uint64": 29,
    "float8_e8m0fnu": 44,
}
DEVICE_CODES = {"cpu": 0, "cuda": 1}
_LAYOUT_CODES = {"strided": 0}
_FORMAT_CODES = {"contiguous_format": 0, "preserve_format": 1, "channels_last": 2}

Kind: TypeAlias = tuple[str, ...]
"""A type of a schema, outermost first: ("Optional", "List", "Tensor")."""


class Unsupported(Exception):
    """An argument that the C interface cannot carry."""


def dispatched(
    step: Extern,
    slot: Callable[[str], int],
    value: Callable[[str], int],
    object_of: Callable[[bytes], int],
) -> list[int] | None:
    """The operands of OP_DISPATCH for a call, without the two lengths; None if the call has to go
    through Python. `slot`, `value` and `object_of` number tensors, size expressions and objects.
    """
    signature = _signature(step.op)
    if signature is None or is_random(step):
        return None
    arguments, n_results = signature
    out = dict(step.out)
    given = dict(zip((name for name, _, _ in arguments), step.args, strict=False)) | step.kwargs
    code: list[int] = []
    try:
        for name, kind, default in arguments:
            arg = Ref(out[name]) if name in out else given.get(name, default)
            code += _Encoder(slot, value, object_of).encode(arg, kind)
    except Unsupported:
        return None
    results = [-1 if name is None else slot(name) for name in step.outputs]
    results += [-1] * (n_results - len(results) if step.out or not results else 0)
    if len(results) != n_results:
        return None
    namespace, name, overload = step.op.split(".")
    overload = "" if overload == "default" else overload
    names = [object_of(f"{namespace}::{name}".encode()), object_of(overload.encode())]
    return [*names, n_results, *results, len(arguments), *code]


@lru_cache(maxsize=1024)
def _signature(op: str) -> tuple[list[tuple[str, Kind, Any]], int] | None:
    """(name, type, default) of each argument, and the number of results; None if a call cannot be
    repeated.
    """
    if not op.startswith("aten.") or op in BACKWARD_DATA:
        return None
    schema = overload_of(op)._schema
    if any(each.is_write and not each.is_out for each in schema.arguments):
        return None
    if any(_kind(each.type) != ("Tensor",) for each in schema.returns):
        return None
    if max(len(schema.arguments), len(schema.returns)) > MAX_OPERANDS:
        return None
    arguments = [(each.name, _kind(each.type), each.default_value) for each in schema.arguments]
    return arguments, len(schema.returns)


def _kind(kind: Any) -> Kind:
    name = kind.kind()
    if name in ("OptionalType", "ListType"):
        return (name.removesuffix("Type"), *_kind(kind.getElementType()))
    return (name.removesuffix("Type"),)


class _Encoder:
    """Writes one argument by its type."""

    def __init__(
        self,
        slot: Callable[[str], int],
        value: Callable[[str], int],
        object_of: Callable[[bytes], int],
    ) -> None:
        self.slot = slot
        self.value = value
        self.object_of = object_of

    def encode(self, arg: Any, kind: Kind) -> list[int]:
        if kind[0] == "Optional":
            return [WORD, 0] if arg is None else [SOME, *self.encode(arg, kind[1:])]
        if kind[0] == "List":
            if not isinstance(arg, (list, tuple)):
                raise Unsupported
            return [LIST, len(arg), *(word for item in arg for word in self.encode(item, kind[1:]))]
        if kind == ("Tensor",):
            if not isinstance(arg, Ref):
                raise Unsupported
            return [TENSOR, self.slot(arg.name)]
        if kind == ("String",):
            if not isinstance(arg, str):
                raise Unsupported
            return [STRING, self.object_of(arg.encode())]
        if isinstance(arg, SizeExpr) and kind == ("Int",):
            return [VALUE, self.value(arg.text)]
        if isinstance(arg, Float) and kind == ("Float",):
            return [VALUE, self.value(arg.text)]
        return [WORD, _word(arg, kind[0])]


def _word(arg: Any, kind: str) -> int:
    """A constant as the 64 bits that stand for it."""
    if kind == "Float" and isinstance(arg, (int, float)):
        return bits_of(float(arg))
    if kind in ("Int", "Bool") and isinstance(arg, int):
        return int(arg)
    if kind == "Int" and isinstance(arg, Dtype):
        return _code(DTYPE_CODES, arg.name)
    if kind == "Int" and isinstance(arg, Layout):
        return _code(_LAYOUT_CODES, arg.name)
    if kind == "Int" and isinstance(arg, MemoryFormat):
        return _code(_FORMAT_CODES, arg.name)
    if kind == "DeviceObj" and isinstance(arg, Device):
        device = torch.device(arg.name)
        index = -1 if device.index is None else device.index
        return _code(DEVICE_CODES, device.type) << 32 | index & 0xFFFFFFFF
    raise Unsupported


def _code(codes: dict[str, int], name: str) -> int:
    if name not in codes:
        raise Unsupported
    return codes[name]
