"""The table of substitutes, filled by the files of substitutes/.

A substitute takes (machine, args, kwargs). Functions are found by identity:
`SUBSTITUTES[id(function)]`. A function that a library makes anew each time is found by its code:
`CODE_SUBSTITUTES[id(function.__code__)]` takes (machine, function, args, kwargs).

A substitute is Python that takes its arguments apart in its own way. Before it, `checked` refuses
what CPython refuses: the number and the names of the arguments of a C function, and the type of a
method's receiver. The error is CPython's own.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    import types

    from flambeau_capture.interpreter.protocols import Args, Kwargs, Recorder

    Substitute = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
    CodeSubstitute = Callable[[Any, types.FunctionType, tuple[Any, ...], dict[str, Any]], Any]

SUBSTITUTES: dict[int, Substitute] = {}
CODE_SUBSTITUTES: dict[int, CodeSubstitute] = {}
RECORDED: dict[int, Substitute] = {}
"""By id: functions of torch that are recorded as one call if they have no other substitute."""
_KEPT_ALIVE: list[Any] = []  # what SUBSTITUTES is keyed by, so that ids stay theirs


def substitute_for(
    *functions: Any, unpacked: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function stands in for these; a second substitute for one is an error.

    It takes (machine, args, kwargs); or if `unpacked`, the machine and then the arguments.
    """

    def declare(substitute: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            if id(function) in SUBSTITUTES:
                raise ValueError(f"{function!r} has two substitutes")
            called = forwarding(substitute) if unpacked else substitute
            SUBSTITUTES[id(function)] = checked(function, called)
            _KEPT_ALIVE.append(function)
        return substitute

    return declare


def is_replaced(function: types.FunctionType) -> bool:
    """Whether a substitute, not its code, defines what a call of a function does."""
    key = id(function)
    return key in SUBSTITUTES or key in RECORDED or id(function.__code__) in CODE_SUBSTITUTES


def substitute_for_code(code: types.CodeType) -> Callable[[CodeSubstitute], CodeSubstitute]:
    """Decorator: stands in for every function of this code."""

    def declare(substitute: CodeSubstitute) -> CodeSubstitute:
        if id(code) in CODE_SUBSTITUTES:
            raise ValueError(f"{code!r} has two substitutes")
        CODE_SUBSTITUTES[id(code)] = substitute
        _KEPT_ALIVE.append(code)
        return substitute

    return declare


def substitute_if_new(function: Any, substitute: Substitute) -> None:
    """Substitute a function that has no substitute yet; None (a missing function) is skipped."""
    if function is not None and id(function) not in SUBSTITUTES:
        substitute_for(function)(substitute)


def answering(value: Any) -> Substitute:
    """The substitute that returns this value, whatever the arguments."""
    return lambda machine, args, kwargs: value


def natively(function: Any) -> Substitute:
    """The substitute that calls the function as it is."""
    return lambda machine, args, kwargs: function(*args, **kwargs)


def forwarding(function: Callable[..., Any], *first: Any) -> Substitute:
    """The substitute that calls `function(machine, *first, *args)`."""
    return lambda machine, args, kwargs: function(machine, *first, *args, **kwargs)


def breaking(id: str, detail: str, *, hint: str = "") -> Substitute:
    """The substitute that is a graph break, whatever the arguments."""

    def break_here(machine: Recorder, args: Any, kwargs: Any) -> NoReturn:
        raise GraphBreak(id, detail, hint=hint)

    return break_here


_CALL_WITH_HOOKS = torch.nn.Module._call_impl.__code__


def compiling(machine: Recorder, args: Args, kwargs: Kwargs) -> bool:
    """`is_compiling()`: the program may now take a path that eager does not take.

    torch's call of a module with hooks asks for the sake of torch's compiler, which does without
    the hooks that are to be called if `forward` raises.
    """
    frame = machine.frame
    if frame is not None and frame.code.code_reference() is _CALL_WITH_HOOKS:
        return False
    machine.observed_is_compiling |= machine.strategy.compiling
    return machine.strategy.compiling


# ---------------------------------------------------------------- arguments

_ANY = 1 << 30


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The parameters of a C function: how many are positional, required, or named."""

    least: int
    most: int
    names: tuple[str, ...] = ()
    """Names of the last positional parameters that have one, then of the keyword-only ones."""
    keyword_only: int = 0
    receiver: type | None = None

    def refuse(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether CPython refuses a call for its number of arguments, or their names."""
        count = len(args)
        if not self.least <= count <= self.most:
            named = self.names[: len(self.names) - self.keyword_only]
            first = self.most - len(named)  # the position of named[0]
            missing = count < self.least and any(
                at < first or named[at - first] not in kwargs for at in range(count, self.least)
            )
            if count > self.most or missing:
                return True
        if kwargs:
            named = self.names[: len(self.names) - self.keyword_only]
            first = self.most - len(named)
            for name in kwargs:
                if name not in self.names or (name in named and first + named.index(name) < count):
                    return True
        receiver = self.receiver
        return receiver is not None and count > 0 and _is_other(args[0], receiver)


def _is_other(value: Any, receiver: type) -> bool:
    """Whether a value cannot be the receiver; the interpreter's own stand-ins may be anything."""
    kind = type(value)
    return not issubclass(kind, receiver) and not kind.__module__.startswith("flambeau_capture.")


_WITHOUT_SIGNATURE: dict[Any, _Parameters] = {
    bool: _Parameters(0, 1),
    iter: _Parameters(1, 2),
    next: _Parameters(1, 2),
    getattr: _Parameters(2, 3),
    vars: _Parameters(0, 1),
    dir: _Parameters(0, 1),
    super: _Parameters(0, 2),
    functools.reduce: _Parameters(2, 3),
    filter: _Parameters(2, 2),
    map: _Parameters(2, _ANY),
    max: _Parameters(1, _ANY, ("key", "default"), 2),
    min: _Parameters(1, _ANY, ("key", "default"), 2),
    bytes: _Parameters(0, 3, ("source", "encoding", "errors")),
    str: _Parameters(0, 3, ("object", "encoding", "errors")),
}
"""Functions that `inspect.signature` knows nothing of."""
_CHECKED_MODULES = ("builtins", "_operator", "math", "itertools", "_functools", "posix", "sys")


def _parameters_of(function: Any) -> _Parameters | None:
    """What a C function takes; None where that is unknown or for others to check."""
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType):
        if function.__objclass__ not in (list, tuple, object):
            return None
    elif isinstance(function, types.BuiltinFunctionType) or function in (
        bool, float, complex, bytes, str, map, filter, super, reversed, itertools.starmap,
        itertools.takewhile, itertools.dropwhile, itertools.filterfalse, itertools.groupby,
        itertools.accumulate,
    ):  # fmt: skip
        if function.__module__ not in _CHECKED_MODULES:
            return None
    else:
        return None
    if function in _WITHOUT_SIGNATURE:
        return _WITHOUT_SIGNATURE[function]
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    least = most = keyword_only = 0
    named, keywords = [], []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            most = _ANY
        elif parameter.kind is parameter.VAR_KEYWORD:
            return None
        elif parameter.kind is parameter.KEYWORD_ONLY:
            keyword_only += 1
            keywords.append(parameter.name)
        else:
            most += 1
            least += parameter.default is parameter.empty
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                named.append(parameter.name)
    receiver = getattr(function, "__objclass__", None)
    return _Parameters(least, most, (*named, *keywords), keyword_only, receiver)


def checked(function: Any, substitute: Substitute) -> Substitute:
    """The substitute behind the checks that CPython makes of the arguments."""
    if type(function) is types.FunctionType:
        return _bound(function, substitute)
    parameters = _parameters_of(function)
    if parameters is None:
        return substitute

    def check(machine: Recorder, args: Args, kwargs: Kwargs) -> Any:
        if parameters.refuse(args, kwargs):
            _raise_refusal(function, parameters, args, kwargs)
        return substitute(machine, args, kwargs)

    return check


def _bound(function: types.FunctionType, substitute: Substitute) -> Substitute:
    """The substitute of a function in Python, behind the binding of its arguments."""
    stub = stub_of(function)

    def bind(machine: Recorder, args: Args, kwargs: Kwargs) -> Any:
        stub(*args, **kwargs)  # for its errors
        return substitute(machine, args, kwargs)

    return bind


def _stub() -> None:
    """Has the body of every stub."""


def stub_of(function: types.FunctionType) -> types.FunctionType:
    """A function of the same names and parameters that does nothing."""
    code, body = function.__code__, _stub.__code__
    starred = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred.bit_count()]
    stub_code = body.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_varnames=names,
        co_nlocals=len(names),
        co_flags=body.co_flags | starred,
    )
    stub = types.FunctionType(stub_code, {}, function.__name__, function.__defaults__)
    stub.__kwdefaults__ = function.__kwdefaults__  # type: ignore[assignment]
    stub.__qualname__ = function.__qualname__
    return stub


def _raise_refusal(function: Any, parameters: _Parameters, args: Args, kwargs: Kwargs) -> NoReturn:
    """Raise CPython's error: it checks the number and the names before any value."""
    first: list[Any] = [() for _ in args]  # `sorted` makes a list of it before it checks names
    receiver = parameters.receiver
    if receiver is not None and args:
        first[0] = args[0] if _is_other(args[0], receiver) else receiver()
    function(*first, **dict.fromkeys(kwargs))
    raise GraphBreak("internal-error", f"{function!r} takes arguments that its substitute refuses")
