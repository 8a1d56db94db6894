"""Containers of the program that a frame reads or extends in part: only the parts are guarded.

    config["lr"]                 the entry 'lr' of a dict, or its absence; other keys may change
    self.losses.append(x)        the list's contents and length are neither read nor guarded

If the code after a load (code/data_flow.py) takes one entry of a container, or appends to a list,
the load gives a stand-in, which that code consumes. A container that is stored in a local variable,
or passed to a function of the program, is a LazyValue until it is used. Any other read makes the
usual tracked copy, with all that was appended in it.

def loss(batch): return batch["x"].sum()
loss(batch)                  of `batch` one entry is read, in the frame of `loss`
"""

from __future__ import annotations

import collections
import functools
import logging
import operator
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.code.data_flow import Use, use_of
from flambeau_capture.interpreter.values.classes import SCALARS, Proxy, python_method
from flambeau_capture.interpreter.values.deferred_strings import DeferredString, readable
from flambeau_capture.interpreter.values.numbers import concrete_key
from flambeau_capture.interpreter.values.program_functions import is_fixed
from flambeau_capture.sources import DictEntry, Item
from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    from flambeau_capture.interpreter.protocols import ActiveFrame, Args, Kwargs, Recorder
    from flambeau_capture.sources import Source

APPENDING = {"append": list.append, "extend": list.extend}
_MAPPINGS = frozenset({dict, collections.OrderedDict, collections.defaultdict})
PARTIAL_TYPES = _MAPPINGS | {list}
"""Types of containers that may be read in part."""


class LazyValue:
    """What a frame was handed and has not looked at.  Nothing is guarded about it before that.

    `for_append`: what is on the stack of a resumed frame under it takes `append` or `extend` of it.
    """

    __slots__ = ("for_append", "source", "value")

    def __init__(self, value: Any, source: Source, *, for_append: bool = False) -> None:
        self.value, self.source, self.for_append = value, source, for_append


class AppendTarget(Proxy):
    """Stands for a list from before the call, `real`; the frame has appended `items`."""

    __slots__ = ("items", "real", "source", "tracked")

    def __init__(self, real: list[Any], source: Source) -> None:
        self.real, self.source = real, source
        self.items: list[Any] = []
        self.tracked: list[Any] | None = None
        """The list that the frame sees, once it has read it elsewhere."""

    def extend(self, items: list[Any]) -> None:
        """Note what is appended."""
        (self.items if self.tracked is None else self.tracked).extend(items)

    @staticmethod
    def instance_of(classes: Any) -> bool:
        """As a list's."""
        return issubclass(list, classes)


class EntryTarget(Proxy):
    """Stands for `real`, a dict or list from before the call, of which one entry is read next."""

    __slots__ = ("machine", "real", "source")

    def __init__(self, machine: Recorder, real: Any, source: Source) -> None:
        self.machine, self.real, self.source = machine, real, source

    def seen_type(self) -> type:
        """The container's type."""
        return type(self.real)

    def item(self, key: Any) -> Any:
        """`container[key]`."""
        machine, real = self.machine, self.real
        key = concrete_key(key)
        if not self._is_read_in_part(key):
            return machine.call(operator.getitem, (machine.objects.whole(self), key), {})
        if type(real) is list:
            return machine.objects.wrap(list.__getitem__(real, key), Item(self.source, key))
        if not dict.__contains__(real, key):
            machine.guard("ABSENT", self.source, key)
            raise KeyError(key)
        return machine.objects.wrap(dict.__getitem__(real, key), DictEntry(self.source, key))

    def has(self, key: Any) -> bool | None:
        """`key in container`; None where that is to be asked of all that it holds."""
        key = concrete_key(key)
        if type(self.real) is list or not self._is_read_in_part(key):
            return None
        found = dict.__contains__(self.real, key)
        self.machine.guard("HAS_KEY" if found else "ABSENT", self.source, key)
        return found

    def get(self, key: Any, default: Any = None, /) -> Any:
        """`container.get(key, default)`."""
        machine = self.machine
        key = concrete_key(key)
        if type(self.real) is list or not self._is_read_in_part(key):
            whole = machine.objects.whole(self)
            return machine.call(machine.load(whole, "get"), (key, default), {})
        if not dict.__contains__(self.real, key):
            machine.guard("ABSENT", self.source, key)
            return default
        expect_use(machine.frame)
        return self.item(key)

    def _is_read_in_part(self, key: Any) -> bool:
        """Whether an entry can be read alone: no tracked copy, and keys compare natively."""
        real = self.real
        if id(real) in self.machine.objects.tracked_copy_of:
            return False
        if type(real) is list:
            return type(key) is int and 0 <= key < list.__len__(real)
        if type(real) is collections.defaultdict and not dict.__contains__(real, key):
            return False
        return _is_plain_key(key) and all(map(_is_plain_key, dict.keys(real)))


PARTIAL_READS: frozenset[type] = frozenset({LazyValue, AppendTarget, EntryTarget})
"""Types of what stands for a container until it is used."""


def _is_plain_key(key: Any) -> bool:
    kind = type(key)
    return kind in SCALARS or (kind is tuple and all(map(_is_plain_key, key)))


def expect_use(frame: ActiveFrame | None) -> None:
    """Before a load: what it gives may be read in part, as the code that follows says."""
    if frame is not None:
        frame.machine.objects.loading = (frame, frame.ip)


def expected_use(frame: ActiveFrame | None, loading: tuple[ActiveFrame, int] | None) -> Use | None:
    """The use of the value being loaded, if the expectation is of this very instruction."""
    if loading is None or frame is None or loading[0] is not frame or loading[1] != frame.ip:
        return None
    return use_in(frame)


def use_in(frame: ActiveFrame, above: int = 0) -> Use | None:
    """The use of the value that this instruction pushes; `above` others lie on it then."""
    use = use_of(frame.code, frame.ip, above)
    return None if use is Use.RETURN and frame.parent is not None else use


# ---------------------------------------------------------------- unread arguments

_MODULE_CALL = torch.nn.Module.__call__


def realize_arguments(
    machine: Recorder, function: Any, args: Args, kwargs: Kwargs
) -> tuple[Args, Kwargs]:
    """The arguments as `function` takes them: only local variables may hold LazyValues."""
    if not any(type(arg) is LazyValue for arg in (*args, *kwargs.values())):
        return args, kwargs
    if python_method(machine, type(function), "__call__") is _MODULE_CALL:
        return args, kwargs  # call_module realizes them for `forward`
    if function is isinstance:
        return tuple(_used_as(machine, Use.ENTRY, arg) for arg in args), kwargs
    count, names = _parameters(machine, function)
    whole = machine.objects.whole
    if _takes_text(function):
        whole = functools.partial(_used_as, machine, Use.TEXT)
    return (
        tuple(arg if at < count else whole(arg) for at, arg in enumerate(args)),
        {name: arg if name in names else whole(arg) for name, arg in kwargs.items()},
    )


def read_texts(machine: Recorder, function: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments as `function` takes them: known texts as str if it may read them."""
    if not any(type(arg) is DeferredString for arg in (*args, *kwargs.values())):
        return args, kwargs
    count, names = _parameters(machine, function)
    if count > 0 or names or _takes_text(function):
        return args, kwargs
    return tuple(map(readable, args)), {name: readable(arg) for name, arg in kwargs.items()}


def _takes_text(function: Any) -> bool:
    """Whether a function stores what it is given, or shows it at exit."""
    name = getattr(function, "__name__", "")
    if isinstance(function, (types.MethodDescriptorType, types.BuiltinFunctionType)):
        return name in ("append", "extend", "insert", "print", "join", "format", "isinstance")
    if isinstance(function, type):
        return issubclass(function, (BaseException, str))
    return function is warnings.warn or (
        type(function) is types.MethodType and isinstance(function.__self__, logging.Logger)
    )


def _used_as(machine: Recorder, use: Use, arg: Any) -> Any:
    """What stands for an argument that is only put to this use."""
    if type(arg) is not LazyValue:
        return arg
    return machine.objects.wrap_for(arg.value, arg.source, use)


def _parameters(machine: Recorder, function: Any) -> tuple[int, tuple[str, ...]]:
    """How many positional parameters, and which by name, become locals of an interpreted frame."""
    bound = 0
    while type(function) is types.MethodType and not isinstance(function.__self__, Proxy):
        bound += 1
        function = function.__func__
    if type(function) is not types.FunctionType:
        function = python_method(machine, type(function), "__call__")
        bound += 1
    if (
        type(function) is not types.FunctionType
        or is_trusted(function.__globals__.get("__name__"))
        or is_fixed(machine, function)
    ):
        return 0, ()
    code = function.__code__
    named = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return code.co_argcount - bound, named
