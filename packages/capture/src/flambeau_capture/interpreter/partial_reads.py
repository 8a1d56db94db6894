"""Containers of the program that a frame reads or extends in part: only what is read of them is guarded.

    config["lr"]                 the entry 'lr' of a dict, or that there is none; other keys may come and go
    self.losses.append(x)        the list's contents and length are neither read nor guarded

Where the code that follows a load (uses.py) takes but one entry of a container, or appends to a list, the load gives a stand-in, which that
code consumes; what is stored in a local variable or passed to a function of the program is an Unread until it is used.  As soon as the
container is read otherwise it gets its usual shadow, with all that was appended in it.
"""

from __future__ import annotations

import collections
import operator
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.classes import Native
from flambeau_capture.interpreter.constant_types import SCALARS
from flambeau_capture.interpreter.symbolic import concrete_key
from flambeau_capture.interpreter.uses import Use, use_of
from flambeau_capture.origins import DictEntry, Item

if TYPE_CHECKING:
    from flambeau_capture.interpreter.frame import Frame
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.origins import Origin

APPENDING = {"append": list.append, "extend": list.extend}
_MAPPINGS = frozenset({dict, collections.OrderedDict, collections.defaultdict})
PARTIAL_TYPES = _MAPPINGS | {list}
"""Types of containers that may be read in part."""


class Unread:
    """What a frame was handed and has not looked at.  Nothing is guarded about it before that.

    `for_append`: what is on the stack of a resumed frame under it takes `append` or `extend` of it.
    """

    __slots__ = ("for_append", "origin", "value")

    def __init__(self, value: Any, origin: Origin, *, for_append: bool = False) -> None:
        self.value, self.origin, self.for_append = value, origin, for_append


class AppendTarget(Native):
    """Stands for a list that existed before the call, `real`; `items` were appended in the frame."""

    __slots__ = ("items", "origin", "real", "shadow")

    def __init__(self, real: list[Any], origin: Origin) -> None:
        self.real, self.origin = real, origin
        self.items: list[Any] = []
        self.shadow: list[Any] | None = None
        """The list that the frame sees, once it has read it elsewhere."""

    def extend(self, items: list[Any]) -> None:
        """Note what is appended."""
        (self.items if self.shadow is None else self.shadow).extend(items)

    @staticmethod
    def instance_of(classes: Any) -> bool:
        return issubclass(list, classes)


class EntryTarget(Native):
    """Stands for a dict or list that existed before the call, `real`, of which the next operation reads one entry."""

    __slots__ = ("machine", "origin", "real")

    def __init__(self, machine: Machine, real: Any, origin: Origin) -> None:
        self.machine, self.real, self.origin = machine, real, origin

    def seen_type(self) -> type:
        return type(self.real)

    def item(self, key: Any) -> Any:
        """`container[key]`."""
        machine, real = self.machine, self.real
        key = concrete_key(key)
        if not self._is_read_in_part(key):
            return machine.call(operator.getitem, (machine.objects.whole(self), key), {})
        if type(real) is list:
            return machine.objects.wrap(list.__getitem__(real, key), Item(self.origin, key))
        if not dict.__contains__(real, key):
            machine.guard("ABSENT", self.origin, key)
            raise KeyError(key)
        return machine.objects.wrap(dict.__getitem__(real, key), DictEntry(self.origin, key))

    def has(self, key: Any) -> bool | None:
        """`key in container`; None where that is to be asked of all that it holds."""
        key = concrete_key(key)
        if type(self.real) is list or not self._is_read_in_part(key):
            return None
        found = dict.__contains__(self.real, key)
        self.machine.guard("HAS_KEY" if found else "ABSENT", self.origin, key)
        return found

    def get(self, key: Any, default: Any = None, /) -> Any:
        """`container.get(key, default)`."""
        machine = self.machine
        key = concrete_key(key)
        if type(self.real) is list or not self._is_read_in_part(key):
            whole = machine.objects.whole(self)
            return machine.call(machine.load(whole, "get"), (key, default), {})
        if not dict.__contains__(self.real, key):
            machine.guard("ABSENT", self.origin, key)
            return default
        expect_use(machine.frame)
        return self.item(key)

    def _is_read_in_part(self, key: Any) -> bool:
        """Whether the entry can be read apart from the others: it has no shadow, and comparing keys runs no code of the program."""
        real = self.real
        if id(real) in self.machine.objects.shadow_of:
            return False
        if type(real) is list:
            return type(key) is int and 0 <= key < list.__len__(real)
        if type(real) is collections.defaultdict and not dict.__contains__(real, key):
            return False
        return _is_plain_key(key) and all(map(_is_plain_key, dict.keys(real)))


PARTIAL_READS = frozenset({Unread, AppendTarget, EntryTarget})
"""Types of what stands for a container until it is used."""


def _is_plain_key(key: Any) -> bool:
    kind = type(key)
    return kind in SCALARS or (kind is tuple and all(map(_is_plain_key, key)))


def expect_use(frame: Frame | None) -> None:
    """Before a load: what it gives may be read in part, as the code that follows says."""
    if frame is not None:
        frame.machine.loading = (frame, frame.ip)


def expected_use(frame: Frame | None, loading: tuple[Frame, int] | None) -> Use | None:
    """The use of what is being loaded: the expectation is of this very instruction (it may have raised before)."""
    if loading is None or frame is None or loading[0] is not frame or loading[1] != frame.ip:
        return None
    return use_in(frame)


def use_in(frame: Frame, above: int = 0) -> Use | None:
    """The use of the value that the running instruction pushes, `above` others being pushed upon it."""
    use = use_of(frame.code, frame.ip, above)
    return None if use is Use.RETURN and frame.parent is not None else use
