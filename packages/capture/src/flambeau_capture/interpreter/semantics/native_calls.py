"""C functions of the standard library that run at capture on objects that the frame owns.

    heapq.heappush(heap, Task(3))     ->   runs natively on the frame's list
                                           calls Task.__lt__, which is interpreted

Such a function reads and changes nothing but what its arguments reach (`_MODULES`, `_TYPES`). If
all of that was made in the frame, or cannot change, the call has no side effects outside and needs
no guards. The frame hook hands each Python function that the C code calls to the interpreter. So
what the function reads is guarded, what it writes is a side effect, and its tensors are recorded.
"""

from __future__ import annotations

import _thread
import enum
import gc
import io
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.core import core
from flambeau_capture.frame_hook import hook_works
from flambeau_capture.guards.constants import HEAP_TYPE
from flambeau_capture.interpreter.frame import Stopped
from flambeau_capture.interpreter.values.classes import (
    IDENTITY_TYPES,
    SCALARS,
    SYMBOLIC_NUMBERS,
    TORCH_CONSTANTS,
    Proxy,
    has_slots,
    python_method,
)
from flambeau_capture.interpreter.values.lazy_values import PARTIAL_READS
from flambeau_capture.interpreter.values.numbers import enter_context
from flambeau_capture.interpreter.values.objects import VALUE_BASES
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import CallOf
from flambeau_capture.trusted import is_trusted
from flambeau_prims.concrete_sizes import concrete

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine

_MODULES = frozenset(
    {
        "_bisect", "_codecs", "_collections", "_csv", "_functools", "_heapq", "_json", "_operator",
        "_pickle", "_sre", "_statistics", "_string", "_struct", "array", "binascii", "cmath",
        "decimal", "itertools", "marshal", "math", "unicodedata", "zlib",
    }
)  # fmt: skip
"""Modules whose C functions and types use nothing but their arguments, and what those hold."""

_TYPES: tuple[type, ...] = (
    memoryview,
    type(_thread.allocate_lock()),
    _thread.RLock,
    io.StringIO,
    io.BytesIO,
    io.TextIOWrapper,
    io.BufferedReader,
    io.BufferedWriter,
    io.BufferedRandom,
    io.BufferedRWPair,
    io.IncrementalNewlineDecoder,
    *io.StringIO.__mro__[1:-1],
    *io.BytesIO.__mro__[1:-1],
)
"""Types of other modules whose methods are such functions."""

_PUBLIC_NAMES = frozenset({"collections", "datetime", "functools", "operator"})
"""Modules that types written in C name as theirs, also where they were imported once more."""

_COMPARING = frozenset({"_bisect", "_heapq"})
"""Modules whose functions do nothing but compare what containers hold."""

_OF_THE_PROCESS = frozenset(
    {
        ("_codecs", "register"), ("_codecs", "register_error"), ("_codecs", "unregister"),
        ("_csv", "field_size_limit"), ("_csv", "register_dialect"), ("_csv", "unregister_dialect"),
        ("datetime", "__format__"), ("datetime", "astimezone"), ("datetime", "fromtimestamp"),
        ("datetime", "now"), ("datetime", "strftime"), ("datetime", "timestamp"),
        ("datetime", "today"), ("datetime", "utcnow"), ("decimal", "getcontext"),
        ("decimal", "localcontext"), ("decimal", "setcontext"), ("marshal", "dump"),
        ("marshal", "load"),
    }
)  # fmt: skip
"""Functions that read or change the process: its clock, its tables, its files."""


_ITERTOOLS_WARN = (3, 12) <= sys.version_info < (3, 14)
"""Whether copies and pickles of objects of itertools are deprecated."""
_WARNING = frozenset({"_codecs", "array", *(("_pickle", "itertools") if _ITERTOOLS_WARN else ())})
"""Modules with functions that may warn."""


def is_native(function: Any) -> bool:
    """Whether a C function or type uses only what its arguments reach."""
    if isinstance(function, type):
        return _is_type(function)
    owner = getattr(function, "__objclass__", None)
    receiver = getattr(function, "__self__", None)
    if owner is None and receiver is not None and not isinstance(receiver, types.ModuleType):
        cls = receiver if isinstance(receiver, type) else type(receiver)
        owner = next((base for base in cls.__mro__[:-1] if _is_type(base)), cls)
    module = function.__module__ if owner is None else owner.__module__
    if (module, getattr(function, "__name__", "")) in _OF_THE_PROCESS:
        return False
    return module in _MODULES if owner is None else _is_type(owner)


def _is_type(cls: type) -> bool:
    return cls in _TYPES or (
        cls.__module__ in _MODULES | _PUBLIC_NAMES
        and (not cls.__flags__ & HEAP_TYPE or _is_written_in_c(cls))
    )


def _is_written_in_c(cls: type) -> bool:
    """Whether a heap type was not made by a class statement: it has methods written in C."""
    return any(
        type(member) in (types.MethodDescriptorType, types.WrapperDescriptorType)
        and member.__objclass__ is cls
        for member in vars(cls).values()
    )


def _module_of(function: Any) -> str:
    """The module of a function, or of the type that a method belongs to."""
    owner = getattr(function, "__objclass__", getattr(function, "__self__", None))
    if owner is None or isinstance(owner, types.ModuleType):
        owner = function
    elif not isinstance(owner, type):
        owner = type(owner)
    module: str = owner.__module__ or ""
    return module


def call_native(
    machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call such a function; GraphBreak if it could reach what the frame does not own."""
    args = tuple([_plain_number(arg) for arg in args])
    kwargs = {name: _plain_number(arg) for name, arg in kwargs.items()}
    if _module_of(function) == "decimal":
        enter_context(machine)
    check_owned(machine, function, (getattr(function, "__self__", None), *args, *kwargs.values()))
    if _module_of(function) in _WARNING:
        guard_filters(machine)
    return machine.state_of(Interception).call(machine, function, args, kwargs)


def reduce_native(machine: Machine, args: tuple[Any, ...]) -> Any:
    """`object.__reduce_ex__` in C."""
    if _ITERTOOLS_WARN and type(args[0]).__module__ == "itertools":
        guard_filters(machine)
    return object.__reduce_ex__(*args)


def guard_filters(machine: Machine) -> None:
    """C code that is about to run may warn: it sees the filters of the process."""
    objects = machine.objects
    if objects.has_written_globals(vars(warnings)) or any(
        getattr(function, "__module__", None) == "warnings"
        for function, _, _ in objects.deferred.calls
    ):
        raise GraphBreak("side-effect", "C code may warn where the frame filters warnings")
    machine.guard("EQUALS", CallOf(_filter_texts, ()), _filter_texts())


def _filter_texts() -> tuple[str, ...]:
    return tuple(map(str, warnings.filters))


def _plain_number(value: Any) -> Any:
    """`value`, or the number that a symbolic one is; containers stay the objects that they are."""
    return concrete(value) if type(value) in SYMBOLIC_NUMBERS else value


# ---------------------------------------------------------------- what native code may reach

_ENDS = (
    SCALARS
    | (IDENTITY_TYPES - {types.BuiltinFunctionType, types.MethodWrapperType})
    | TORCH_CONSTANTS
    | {types.MethodType, types.TracebackType, range, slice}
)
"""Types of values that are constant, or whose uses the interpreter sees."""
_CONSTANT_BASES = (type, enum.Enum, types.ModuleType)
_IMMUTABLE = (tuple, frozenset, *[base for base, _ in VALUE_BASES])
"""Bases of objects that are guarded by what they hold, but for the attributes of a subclass."""
_STAND_INS = (torch.Tensor, Proxy, *SYMBOLIC_NUMBERS, *PARTIAL_READS)
_MOST_REACHED = 200_000


def check_owned(machine: Machine, function: Any, values: Any) -> None:
    """GraphBreak if C code that is given these values could read or change an object that existed
    before the call, or meet a stand-in of the interpreter.
    """
    pending, seen = list(values), set[int]()
    module = _module_of(function)
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind in _ENDS or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _CONSTANT_BASES) and not machine.objects.classes_written:
            continue
        if module in _COMPARING and (
            kind in SYMBOLIC_NUMBERS or _is_compared_in_python(value, kind)
        ):
            continue
        problem = _problem(machine, value, kind)
        if problem is None and len(seen) > _MOST_REACHED:
            problem = f"more than {_MOST_REACHED} objects"
        if problem is not None:
            name = getattr(function, "__qualname__", type(function).__qualname__)
            raise GraphBreak("unknown-c-function", f"call of {module}.{name} with {problem}")
        pending += gc.get_referents(value)


def _is_compared_in_python(value: Any, kind: type) -> bool:
    """Whether an object is one of a class written in Python, whose comparison is interpreted."""
    return kind.__new__ is object.__new__ and all(
        base.__flags__ & HEAP_TYPE for base in kind.__mro__[:-1]
    )


def _problem(machine: Machine, value: Any, kind: type) -> str | None:
    if issubclass(kind, _STAND_INS):
        return f"a {SYMBOLIC_NUMBERS.get(kind, kind).__qualname__}"
    cls = value if isinstance(value, type) else kind
    if any(owner in cls.__mro__ for owner, _ in machine.objects.classes_written):
        return f"class {cls.__qualname__}, which the frame has changed"
    if isinstance(value, types.GeneratorType | types.FrameType):
        return f"a {kind.__qualname__}"
    known = machine.objects.is_known(value) and id(value) not in machine.objects.values
    if known and not (isinstance(value, _IMMUTABLE) and not _has_attributes(kind)):
        return f"a {kind.__qualname__} that existed before the call"
    return None


def _has_attributes(kind: type) -> bool:
    """Whether instances have a dict, or slots."""
    return kind.__dictoffset__ != 0 or has_slots(kind)


# ---------------------------------------------------------------- what native code calls


class Interception:
    """Has the Python functions that C code calls interpreted by one machine."""

    def __init__(self) -> None:
        self._ended: BaseException | None = None
        self._handler: Any = None

    def call(
        self, machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """`function(*args, **kwargs)`; what ends the interpretation below it ends the call, even if
        the C code clears errors.
        """
        if core is None or not hook_works():
            raise GraphBreak("unknown-c-function", "the frame hook does not work here")
        if self._handler is None:

            def interpret(called: types.FunctionType, arguments: tuple[Any, ...] | None) -> Any:
                return self._interpret(machine, called, arguments)

            self._handler = core.FrameHandler(interpret, intercepts=True)
        try:
            result = core.call_with_handler(self._handler, function, *args, **kwargs)
        except BaseException as error:
            ended, self._ended = self._ended, None
            if ended is None or error is ended:
                raise
            raise ended from error
        ended, self._ended = self._ended, None
        if ended is not None:
            raise ended
        return result

    def _interpret(
        self, machine: Machine, function: types.FunctionType, arguments: tuple[Any, ...] | None
    ) -> Any:
        module = function.__globals__.get("__name__") or ""
        if module.startswith("flambeau_") or (
            arguments and isinstance(arguments[0], (torch.Tensor, *SYMBOLIC_NUMBERS))
        ):
            return True
        try:
            if arguments is None:
                raise GraphBreak(
                    "unknown-c-function", f"C code goes on with a frame of {function.__qualname__}"
                )
            args, kwargs = _unbound(function.__code__, arguments)
            if args and not is_trusted(type(args[0]).__module__):
                python_method(machine, type(args[0]), function.__name__)  # which guards it
            return (machine.call(function, args, kwargs),)
        except (GraphBreak, Stopped) as error:
            self._ended = error
            raise


def _unbound(
    code: types.CodeType, bound: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call whose flat locals are `bound`."""
    count, named = code.co_argcount, code.co_kwonlyargcount
    stop = count + named
    args = bound[:count]
    kwargs = dict(zip(code.co_varnames[count:stop], bound[count:stop], strict=True))
    for flag in (0x04, 0x08):
        if code.co_flags & flag:
            if flag == 0x04:
                args += bound[stop]
            else:
                kwargs.update(bound[stop])
            stop += 1
    return args, kwargs
