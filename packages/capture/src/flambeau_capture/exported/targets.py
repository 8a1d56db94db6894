"""What a file may call, by name: torch's operators, torch.nn.functional, methods of tensors,
torch.ops, operator, math.

A file names the functions of its graph; loading looks each name up here, so that a file cannot make
a process call anything else. The tables hold what capture records: functions that compute on
tensors, the setters of torch's grad and autocast modes, and recurrent networks in a state of these.
"""

from __future__ import annotations

import functools
import math
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from flambeau_capture.graphs.recurrent_networks import in_autocast
from flambeau_capture.interpreter.torch_calls.tape import is_recorded_method
from flambeau_capture.interpreter.torch_calls.torch_functions import RECORDED, SETTERS, is_operator
from flambeau_prims.kernel_launches import NAMESPACE

_OPERATORS = (
    "abs", "add", "and_", "concat", "contains", "eq", "floordiv", "ge", "getitem", "gt",
    "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "index", "inv",
    "invert", "ior", "ipow", "irshift", "is_", "is_not", "isub", "itruediv", "ixor", "le",
    "lshift", "lt", "matmul", "mod", "mul", "ne", "neg", "not_", "or_", "pos", "pow", "rshift",
    "setitem", "sub", "truediv", "truth", "xor",
)  # fmt: skip
_BUILTINS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (abs, getattr, min, max, pow, round, divmod, float, int)
}
_MATH = (
    "sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "acos", "asin", "atan", "log2", "exp",
    "log", "floor", "ceil", "trunc",
)  # fmt: skip
_TORCH = ("sym_min", "sym_max", "sym_float", "sym_int", "sym_sqrt", "sym_not", "sym_ite", "sym_sum")
ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data", "grad"})
"""What `getattr` may read."""
_FORBIDDEN = frozenset({"from_file", "overload", "boolean_dispatch"})
"""Functions that read or write files, or make functions."""
_NAMESPACES: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.nn.functional", F),
    *(
        (f"torch.{name}", getattr(torch, name))
        for name in ["linalg", "fft", "special", "functional"]
    ),
    *(
        (f"torch._C.{name}", getattr(torch._C, name))
        for name in ["_nn", "_linalg", "_special", "_fft", "_VariableFunctions"]
    ),
)


_ARITHMETIC = frozenset(
    f"__{kind}{name.strip('_')}__" for name in (*_OPERATORS, "divmod") for kind in ("", "r")
)
"""Tensor methods with underscores that a graph may call: the operators."""


class UnknownTarget(LookupError):
    """A name that is no function of a graph, or a function without such a name."""


@functools.cache
def _functions() -> dict[str, Any]:
    """Every callable target by name; files use the first name of a function."""
    return dict(_named_functions())


def _named_functions() -> Iterator[tuple[str, Any]]:
    for namespace, module in _NAMESPACES:
        for name, value in (
            vars(module).items() if isinstance(module, types.ModuleType) else _members(module)
        ):
            if name.startswith("__") or name in _FORBIDDEN:
                continue
            if is_operator(value) or (id(value) in RECORDED and not name.startswith("_")):
                yield f"{namespace}.{name}", value
    for name in _TORCH:
        if hasattr(torch, name):
            yield f"torch.{name}", getattr(torch, name)
    for function in SETTERS.values():
        yield f"torch._C.{function.__name__}", function
    for name in _OPERATORS:
        yield f"operator.{name}", getattr(operator, name)
    for name in _MATH:
        yield f"math.{name}", getattr(math, name)
    for name, function in _BUILTINS.items():
        yield f"builtins.{name}", function
    yield f"{in_autocast.__module__}.{in_autocast.__name__}", in_autocast


def _members(namespace: Any) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(namespace, name)) for name in dir(namespace))


@functools.cache
def _names() -> dict[int, str]:
    names: dict[int, str] = {}
    for name, function in _functions().items():
        names.setdefault(id(function), name)
    return names


def name_of(target: Any) -> str:
    """The name that a file gives a function; UnknownTarget for one that no file may call."""
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, rest = str(target).partition(".")
        if namespace == NAMESPACE:
            raise UnknownTarget(f"{rest}, a launch of a Triton kernel of this process")
        return f"torch.ops.{namespace}.{rest}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"torch.ops.{str(target).replace('::', '.')}"
    found = _names().get(id(target))
    if found is None:
        module, name = (getattr(target, part, "") for part in ("__module__", "__qualname__"))
        raise UnknownTarget(
            f"{module or type(target).__module__}.{name or type(target).__qualname__}"
        )
    return found


def function_named(name: str) -> Any:
    """The function that a file calls by this name."""
    if name.startswith("torch.ops."):
        return _operator_named(name)
    found = _functions().get(name)
    if found is None:
        raise UnknownTarget(f"{name!r} is no function that a file may call")
    return found


def _operator_named(name: str) -> Any:
    parts = name.split(".")[2:]
    if len(parts) in (2, 3) and all(part.isidentifier() for part in parts):
        namespace, operator_name = parts[:2]
        if operator_name not in _FORBIDDEN and torch._C._jit_get_schemas_for_operator(
            f"{namespace}::{operator_name}"
        ):
            found = getattr(getattr(torch.ops, namespace), operator_name)
            if len(parts) == 2:
                return found
            if parts[2] in found.overloads():
                return getattr(found, parts[2])
    raise UnknownTarget(f"the operator {name} is not registered in this process")


@functools.cache
def _is_private_operator(name: str) -> bool:
    """Whether a method is an operator that torch keeps to itself (`_is_all_true`)."""
    public = name.startswith("__") or name in _FORBIDDEN
    return not public and bool(torch._C._jit_get_schemas_for_operator(f"aten::{name}"))


def check_method(name: Any) -> str:
    """The name of a tensor method that a graph may call."""
    if isinstance(name, str) and is_recorded_method(name):
        if not name.startswith("_") or name in _ARITHMETIC or _is_private_operator(name):
            return name
    raise UnknownTarget(f"{name!r} is no tensor method that a file may call")


@functools.cache
def _tensor_types() -> dict[str, type]:
    return {f"torch.{kind.__name__}": kind for kind in torch._tensor_classes} | {
        "torch.Tensor": torch.Tensor
    }  # type: ignore[attr-defined]


def type_named(name: str) -> type:
    """A tensor type (torch.FloatTensor) by name."""
    found = _tensor_types().get(name) or {
        "builtins.float": float,
        "builtins.int": int,
        "builtins.bool": bool,
    }.get(name)
    if found is None:
        raise UnknownTarget(f"{name!r} is no type that a file may name")
    return found


def name_of_type(kind: type) -> str:
    """The name of a type that a graph may hold."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    if type_named(name) is not kind:
        raise UnknownTarget(name)
    return name
