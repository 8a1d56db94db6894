"""Which C functions run natively during capture, and how their arguments are made safe for them.

A C function is pure if what it does depends on its arguments only and it changes nothing but its
receiver, an object that the frame made or a tracked copy. All others break the graph.
"""

from __future__ import annotations

import _collections_abc
import _functools
import _operator
import array
import builtins
import collections
import contextvars
import copyreg
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import operator
import os
import re
import sys
import threading
import types
import typing
import weakref
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.semantics.items import (
    mapping_items,
    native_iterable,
    note_order,
)
from flambeau_capture.interpreter.semantics.operators import COMPARISONS, compare, truth
from flambeau_capture.interpreter.values.classes import Proxy, as_index, python_method
from flambeau_capture.interpreter.values.keys import native_key
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.protocols import Args, Kwargs

BUILTIN_TYPES: frozenset[type] = frozenset(
    {types.BuiltinFunctionType, types.MethodWrapperType, type(re.compile("").match)}
)
"""Types of C functions and bound C methods; methods that know their class have another type."""

_VALUE_TYPES: tuple[type, ...] = (
    int, float, complex, bool, str, bytes, bytearray, tuple, list, dict, set, frozenset, range,
    slice, type(None), object, collections.OrderedDict, collections.defaultdict, collections.deque,
    type({}.keys()), type({}.values()), type({}.items()), types.MappingProxyType, re.Pattern,
    re.Match, torch.Size, torch.dtype, torch.device, property, BaseException, type(iter([])),
    type(iter(())), type(iter({})), type(iter(range(0))), zip, enumerate, map, filter, reversed,
    types.SimpleNamespace, itertools.chain, itertools.count, itertools.product, itertools.islice,
    itertools.cycle, itertools.repeat, itertools.zip_longest, collections.Counter,
    types.GenericAlias, types.CellType, types.CodeType, torch.finfo, torch.iinfo, types.UnionType,
    torch.SymInt, torch.SymFloat, torch.SymBool, staticmethod, classmethod,
)  # fmt: skip
"""C types whose methods are pure (but for their receiver)."""

_EXCLUDED = {
    "open", "input", "exec", "eval", "compile", "breakpoint", "print", "globals", "locals", "vars",
    "dir", "__import__", "__build_class__", "setattr", "delattr", "getattr", "hasattr", "exit",
    "quit", "help", "copyright", "credits", "license", "aiter", "anext", "memoryview",
}  # fmt: skip


def _functions_of(module: Any) -> list[Any]:
    return [
        value
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("__")
    ]


def _pure_ids() -> dict[int, Any]:
    found: list[Any] = [
        value for name, value in vars(builtins).items() if callable(value) and name not in _EXCLUDED
    ]
    for module in (math, operator, _operator, itertools, _functools):
        found += _functions_of(module)
    found += _VALUE_TYPES
    found += [
        sys.intern,
        id,
        functools.cmp_to_key,
        functools.partial,
        collections.Counter,
        types.MethodType,
        types.SimpleNamespace,
        types.MappingProxyType,
        types.GenericAlias,
        re.compile,
        sys.getdefaultencoding,
        object.__new__,
        tuple.__new__,
        dict.__new__,
        list.__new__,
        set.__new__,
        frozenset.__new__,
        int.__new__,
        float.__new__,
        str.__new__,
        dict.fromkeys,
        inspect.Parameter,
        array.array,
        threading.get_ident,
        str.maketrans,
        bytes.maketrans,
        bytearray.maketrans,
        operator.length_hint,
        operator.methodcaller,
        contextvars.Context.get,
        typing.TypeVar,
        typing.ParamSpec,
        typing.TypeVarTuple,
        os.fspath,
        weakref.ref,
        collections._count_elements,  # type: ignore[attr-defined]
        _collections_abc._check_methods,  # type: ignore[attr-defined]
        torch.SymInt,
        torch.device,
        torch.Size,
        torch.finfo,
        torch.iinfo,
    ]
    return {id(value): value for value in found}


_PURE = _pure_ids()

# Functions of the standard library that are written in Python but are about types only, or cache:
# run natively.
PYTHON_NATIVE: dict[int, Any] = {
    id(function): function
    for function in (
        inspect.signature,
        inspect.getfullargspec,
        inspect.isfunction,
        inspect.ismethod,
        inspect.isclass,
        inspect.isgeneratorfunction,
        inspect.iscoroutinefunction,
        dataclasses.fields,
        dataclasses.is_dataclass,
        typing.get_type_hints,
        typing.get_origin,
        typing.get_args,
        typing.cast,
        re.compile,
        re.match,
        re.search,
        re.fullmatch,
        re.sub,
        re.split,
        re.findall,
        re.escape,
        copyreg.__newobj__,  # type: ignore[attr-defined]
        copyreg._slotnames,  # type: ignore[attr-defined]
        inspect.unwrap,  # type: ignore[attr-defined]
        enum.EnumMeta.__call__,
        enum.EnumMeta.__getitem__,
        enum.EnumMeta.__iter__,
        enum.EnumMeta.__contains__,
        enum.EnumMeta.__len__,
        enum.Enum.__hash__,
        enum.Enum.__str__,
        enum.Enum.__repr__,
        enum.Enum.__format__,
    )
}


_WARNING_METHODS = ("__reduce__", "__setstate__", "__copy__", "__deepcopy__")
"""Methods of itertools that may warn: `native_calls` runs them."""


def is_pure(function: Any) -> bool:
    """Whether a C function or type may run natively."""
    if id(function) in _PURE:
        return True
    name = getattr(function, "__name__", "")
    if name in ("__enter__", "__exit__"):
        return False
    if name in _WARNING_METHODS and _is_of_itertools(function):
        return False
    kind = type(function)
    if kind in BUILTIN_TYPES:
        receiver = function.__self__
        if receiver is None or isinstance(receiver, types.ModuleType):
            return False
        if isinstance(receiver, type):
            return receiver in _VALUE_TYPES or function.__name__ in (
                "__subclasses__",
                "mro",
                "fromkeys",
                "__init_subclass__",
            )
        if type(receiver) in _VALUE_TYPES:
            return True
        return any(base in _VALUE_TYPES for base in type(receiver).__mro__[:-1])
    if kind in (
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
    ):
        owner = function.__objclass__
        return owner in _VALUE_TYPES or issubclass(owner, BaseException)
    return False


def _is_of_itertools(function: Any) -> bool:
    owner = getattr(function, "__objclass__", type(getattr(function, "__self__", None)))
    return bool(owner.__module__ == "itertools")


def pure_twin(function: Any) -> Any:
    """The pure function of a module that runs the same C code, where a module was imported once
    more; None where there is none.

    A builtin function's hash is that of its C code's address, mixed with that of its receiver's.
    """
    if type(function) is not types.BuiltinFunctionType:
        return None
    receiver = function.__self__
    if not isinstance(receiver, types.ModuleType):
        return None
    return _PURE_BY_CODE.get((function.__name__, hash(function) ^ object.__hash__(receiver)))


def _by_code() -> dict[tuple[str, int], Any]:
    return {
        (value.__name__, hash(value) ^ object.__hash__(value.__self__)): value
        for value in _PURE.values()
        if type(value) is types.BuiltinFunctionType and isinstance(value.__self__, types.ModuleType)
    }


_PURE_BY_CODE = _by_code()


class InterpretedCallable(Proxy):
    """A function of the program as native code may call it: each call is interpreted."""

    __slots__ = ("function", "machine")

    def __init__(self, machine: Machine, function: Any) -> None:
        self.machine, self.function = machine, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.machine.call(self.function, args, kwargs)

    @staticmethod
    def instance_of(classes: Any) -> bool:
        """What `isinstance` answers for the function."""
        return issubclass(types.FunctionType, classes)


class InterpretedOrder(Proxy):
    """A value as native sorting may compare it: `<` and `>` are interpreted."""

    __slots__ = ("machine", "value")

    def __init__(self, machine: Machine, value: Any) -> None:
        self.machine, self.value = machine, value

    def __lt__(self, other: Any) -> bool:
        return self._compare("<", other)

    def __gt__(self, other: Any) -> bool:
        return self._compare(">", other)

    def _compare(self, symbol: str, other: Any) -> bool:
        """With another value that Python or torch compares, or with one that is sorted as it is."""
        value = other.value if type(other) is InterpretedOrder else other
        return truth(self.machine, compare(self.machine, COMPARISONS[symbol], self.value, value))


def sorting_key(machine: Machine, items: list[Any], key: Any) -> Any:
    """The `key=` for native sorting of items whose keys or comparisons are Python."""
    keyed = None if key is None else InterpretedCallable(machine, key)
    if key is None and not any(_orders_in_python(machine, item) for item in items):
        return None

    def ordered(item: Any) -> Any:
        if keyed is None:
            return InterpretedOrder(machine, item)
        value = keyed(item)
        return InterpretedOrder(machine, value) if _orders_in_python(machine, value) else value

    return ordered


def _orders_in_python(machine: Machine, value: Any) -> bool:
    kind = type(value)
    return isinstance(value, torch.Tensor) or any(
        python_method(machine, kind, name) is not None for name in ("__lt__", "__gt__")
    )


_ITERABLE_TYPES = frozenset({
    list, tuple, set, frozenset, dict, collections.OrderedDict, collections.deque, zip, enumerate,
    collections.Counter,
})  # fmt: skip
_ITERABLE_METHODS = frozenset({
    "extend", "join", "update", "union", "intersection", "difference", "symmetric_difference",
    "issubset", "issuperset", "extendleft", "fromkeys", "from_iterable", "__init__",
    "intersection_update", "difference_update", "__new__", "isdisjoint",
    "symmetric_difference_update",
})  # fmt: skip


_SEQUENCES: tuple[type, ...] = (list, tuple, collections.deque, type({}.values()), type({}.items()))


def prepare_arguments(
    machine: Machine, function: Any, args: Args, kwargs: Kwargs
) -> tuple[Args, Kwargs]:
    """Arguments as native code may use them: iterables made native, big dicts copied whole."""
    _refuse_live_iterators(machine, (*args, *kwargs.values()))
    if id(function) in _TAKES_INDEX:
        args = tuple([as_index(machine, arg) for arg in args])
    if _iterates(function):
        kept = 1 if getattr(function, "__name__", "") == "__new__" else 0  # the class
        mapping = _takes_mapping(function)
        if not _makes_set(function):
            for arg in args:
                note_order(machine, arg)
        args = (*args[:kept], *[_iterable(machine, arg, mapping) for arg in args[kept:]])
    if _hashes(function):
        pairs = _takes_mapping(function) and not _counts(function)
        hashed = 1 if getattr(function, "__name__", "") == "fromkeys" else len(args)
        args = (*[_hashable(machine, arg, pairs) for arg in args[:hashed]], *args[hashed:])
    whole = machine.objects.read_whole
    return tuple(map(whole, args)), {name: whole(arg) for name, arg in kwargs.items()}


def _refuse_live_iterators(machine: Machine, values: Iterable[Any]) -> None:
    """A C iterator that existed before the call is advanced by the interpreter only: capture may
    run more than once.

    One with a `__next__` written in Python is interpreted, and what it writes is a side effect.
    """
    for value in values:
        kind = type(value)
        if (
            machine.objects.is_known(value)
            and hasattr(kind, "__next__")
            and python_method(machine, kind, "__next__") is None
        ):
            detail = f"a {type(value).__name__} made outside the function is used"
            raise GraphBreak("unstable-iteration", detail)


_TAKES_INDEX = {
    id(function): function
    for function in (
        range,
        slice,
        hex,
        oct,
        bin,
        chr,
        operator.index,
        itertools.islice,
        itertools.repeat,
    )
}
_MATH_OF_ITERABLES = {
    id(function): function
    for name in ("fsum", "prod", "dist", "sumprod")
    if (function := getattr(math, name, None)) is not None
}


def _iterates(function: Any) -> bool:
    if isinstance(function, type):
        if function.__module__ == "itertools":
            return function not in (itertools.repeat, itertools.count)
        return function in _ITERABLE_TYPES or issubclass(function, (list, tuple, dict, set))
    if function.__name__ == "__new__" and isinstance(function.__self__, type):
        return _iterates(function.__self__)
    return (
        function.__name__ in _ITERABLE_METHODS
        or getattr(function, "__module__", None) == "itertools"
        or id(function) in _MATH_OF_ITERABLES
    )


def _makes_set(function: Any) -> bool:
    """Whether the order in which a C function iterates does not matter to its result."""
    owner = function if isinstance(function, type) else getattr(function, "__objclass__", None)
    return issubclass(owner or type(getattr(function, "__self__", None)), (set, frozenset))


def _takes_mapping(function: Any) -> bool:
    """Whether what a C function iterates is taken by its `keys()`, where it has them."""
    if isinstance(function, type):
        return issubclass(function, dict)
    if function.__name__ not in ("update", "__init__", "__or__", "__ror__", "__ior__"):
        return False
    owner = getattr(function, "__objclass__", None) or type(getattr(function, "__self__", None))
    return issubclass(owner, dict)


def _counts(function: Any) -> bool:
    return isinstance(function, type) and issubclass(function, collections.Counter)


def _hashes(function: Any) -> bool:
    """Whether a C function hashes what it iterates."""
    if isinstance(function, type):
        return issubclass(function, (set, frozenset, dict))
    if function.__name__ not in _ITERABLE_METHODS:
        return function is collections._count_elements  # type: ignore[attr-defined]
    receiver = getattr(function, "__self__", None)
    kind = receiver if isinstance(receiver, type) else type(receiver)
    owner = getattr(function, "__objclass__", None) or kind
    return issubclass(owner, (set, frozenset, dict))


def _hashable(machine: Machine, arg: Any, pairs: bool) -> Any:
    """`arg` with items that a dict or set may hash; with `pairs`, pairs with such keys."""

    def item_of(item: Any) -> Any:
        if not pairs:
            return native_key(machine, item)
        if type(item) in (tuple, list) and len(item) == 2:
            return native_key(machine, item[0]), item[1]
        return item

    kind = type(arg)
    if kind in _SEQUENCES:
        return [item_of(item) for item in arg]
    if hasattr(kind, "__next__"):
        return map(item_of, arg)
    return arg


def _iterable(machine: Machine, arg: Any, mapping: bool) -> Any:
    """`arg`, or a native iterator over it; the pairs of what is taken as a mapping."""
    kind = type(arg)
    if isinstance(arg, torch.Tensor):
        return native_iterable(machine, arg) if arg.ndim else arg
    if kind is dict and machine.objects.is_known(arg):
        return machine.objects.whole_dict(arg)
    if (
        python_method(machine, kind, "__iter__") is None
        and python_method(machine, kind, "__next__") is None
    ):
        return arg
    if mapping and (isinstance(arg, dict) or python_method(machine, kind, "keys") is not None):
        return mapping_items(machine, arg)
    return native_iterable(machine, arg)
