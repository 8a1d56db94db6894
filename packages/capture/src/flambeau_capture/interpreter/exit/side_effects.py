"""What the frame did to objects that existed before the call, as side effects that its entry
replays at exit.

self.steps = self.steps + 1    ->    SetAttr(self, 'steps', s0 + 1)
cache["x"] = y                 ->    ReplaceDict(cache, [..., ('x', y)])

What the frame has set of context variables (`contextvars`): nothing is really set before its exit.
"""

from __future__ import annotations

import collections
import sys
import types
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.semantics.drawn_numbers import DrawnNumbers
from flambeau_capture.interpreter.values.classes import Proxy, slot_values
from flambeau_capture.interpreter.values.numbers import context_flags
from flambeau_capture.interpreter.values.objects import DELETED, dict_items
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import (
    CallRecipe,
    CallSideEffect,
    Const,
    DelAttr,
    FromSource,
    MakeList,
    ReplaceDict,
    ReplaceList,
    ReplaceSet,
    SetAttr,
    StoreCell,
    StoreGlobal,
)
from flambeau_capture.sources import (
    MODULE_TABLES,
    Constant,
    DictEntry,
    InstanceDict,
    TypeAttribute,
)
from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_capture.interpreter.exit.rebuild import Rebuilder
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.protocols import RecipeMaker
    from flambeau_capture.interpreter.values.objects import TrackedCopy
    from flambeau_capture.record import Recipe, SideEffect
    from flambeau_capture.sources import Source


def guard_distinct(machine: Machine) -> None:
    """Guard that an object which the frame changed is not also what another source holds."""
    objects = machine.objects
    changed = [tracked.real for tracked in objects.tracked_copies.values() if tracked.is_changed()]
    changed += [obj for obj, _ in objects.pending_writes.values() if objects.is_known(obj)]
    targets = [target for target in objects.append_targets.values() if target.tracked is None]
    changed += [target.real for target in targets if target.items]
    held = [(tracked.real, tracked.source) for tracked in objects.tracked_copies.values()]
    held += [*objects.known.values(), *((target.real, target.source) for target in targets)]
    held += objects.read_in_part
    source_of = {id(obj): source for obj, source in held}
    done: set[int] = set()
    for obj in changed:
        done.add(id(obj))
        for other, source in held:
            if type(other) is type(obj) and id(other) not in done:
                machine.guard("NOT_ALIAS", source_of[id(obj)], source)


def side_effects(machine: Machine, rebuild: Rebuilder) -> list[SideEffect]:
    """Everything the frame did to what existed before the call."""
    found: list[SideEffect] = []
    objects = machine.objects
    for tracked in list(objects.tracked_copies.values()):
        _contents_side_effects(tracked, rebuild, found)
    for appended in objects.append_targets.values():
        if appended.items:
            items = MakeList([rebuild.recipe(item) for item in appended.items])
            found.append(CallSideEffect(list.extend, (FromSource(appended.source), items)))
    found += _attribute_side_effects(machine, rebuild)
    of_classes = len(found)
    for (_, name), (module_globals, value) in objects.globals_written.items():
        if value is not DELETED or name in module_globals:
            stored = None if value is DELETED else rebuild.recipe(value)
            found.append(StoreGlobal(module_globals, name, stored))
    for cell, value in objects.cells_written.values():
        stored = None if value is DELETED else rebuild.recipe(value)
        found.append(StoreCell(rebuild.recipe(cell), stored))
    if any(tensor._version != version for tensor, version in machine.objects.deferred.tensors):
        raise GraphBreak("side-effect", "a tensor is changed after it was printed")
    for target, what in machine.objects.deferred.targets:
        if objects.is_seen(target):
            raise GraphBreak("side-effect", f"{what} where the frame reads it")
    _, stdout = objects.globals_written.get((id(vars(sys)), "stdout"), (sys, sys.stdout))
    for function, args, kwargs in machine.objects.deferred.calls:
        if function is print and kwargs.get("file") is None and stdout is not sys.stdout:
            raise GraphBreak("side-effect", "sys.stdout is replaced after print() has written")
        named = {name: rebuild.recipe(value) for name, value in kwargs.items()}
        found.append(CallSideEffect(function, tuple(rebuild.recipe(arg) for arg in args), named))
    after = context_flags(machine) + context_side_effects(machine, rebuild)
    # Last: whether a counter is guarded depends on all that outlives the frame.
    found[of_classes:of_classes] = [
        _class_side_effect(machine, rebuild, cls, name, value)
        for (cls, name), (value,) in objects.classes_written.items()
    ]
    return found + after


def _class_side_effect(
    machine: Machine, rebuild: Rebuilder, cls: type, name: str, value: Any
) -> SideEffect:
    """`cls.name = value`. The number of a trusted class is guarded, as others follow from it: but
    where the frame has only drawn numbers from a counter, as for hooks, and nothing depends on
    them, the counter moves on by as many.
    """
    before = getattr(cls, name, None)
    if is_trusted(cls.__module__) and type(before) is int:
        drawn = machine.state_of(DrawnNumbers)
        if not drawn.seen and rebuild.numbers.isdisjoint(range(before, value)):
            return CallSideEffect(_advance, (Const(cls), Const(name), Const(value - before)))
        machine.guard("EQUALS", TypeAttribute.of(cls, name), before)
    return SetAttr(Const(cls), name, rebuild.recipe(value), raw=False)


def _advance(cls: type, name: str, steps: int) -> None:
    setattr(cls, name, getattr(cls, name) + steps)


def _attribute_side_effects(machine: Machine, rebuild: Rebuilder) -> Iterator[SideEffect]:
    """Attributes set and deleted, in the order in which they were last written."""
    objects = machine.objects
    for (_, name), (obj, raw) in machine.objects.attribute_writes.items():
        pending = objects.pending_writes_of(obj)
        assert pending is not None
        value = _last_written(machine, obj, name, pending[name])
        own = getattr(obj, "__dict__", None) or {}
        if value is DELETED:
            if name in own or _has_slot(obj, name):
                yield DelAttr(rebuild.recipe(obj), name, raw)
            continue
        if (id(obj), name) in objects.set_anew and name in own:
            yield DelAttr(rebuild.recipe(obj), name, raw)  # it moves to the end
        elif raw and _restored(machine, obj, name, value):
            continue
        yield SetAttr(rebuild.recipe(obj), name, rebuild.recipe(value), raw)


def _last_written(machine: Machine, obj: Any, name: str, value: Any) -> Any:
    """The value to write: a later write of the frame to `obj.__dict__` itself counts."""
    tracked = machine.objects.tracked_copy_of.get(id(getattr(obj, "__dict__", None)))
    if tracked is None or isinstance(obj, torch.nn.Module) or _has_slot(obj, name):
        return value
    return tracked.copy.get(name, DELETED)


def _restored(machine: Machine, obj: Any, name: str, value: Any) -> bool:
    """Whether a flag was set and set back: with a guard on its first value nothing is written."""
    own = getattr(obj, "__dict__", None)
    source = machine.objects.source_of(obj)
    if (value is not None and type(value) is not bool) or type(own) is not dict or source is None:
        return False
    if name not in own or own[name] is not value:
        return False
    machine.guard("IS", DictEntry(InstanceDict(source), name), value)
    return True


def _has_slot(obj: Any, name: str) -> bool:
    """Whether an attribute is outside the instance dict: a slot, or in a module's table."""
    if isinstance(obj, torch.nn.Module):
        return any(name in obj.__dict__[table] for table in MODULE_TABLES)
    is_slot = isinstance(getattr(type(obj), name, None), types.MemberDescriptorType)
    return is_slot and hasattr(obj, name)


def _contents_side_effects(
    tracked: TrackedCopy, rebuild: Rebuilder, found: list[SideEffect]
) -> None:
    """The change of a container's contents, and of a container subclass's attributes."""
    copy, target = tracked.copy, FromSource(tracked.source)
    if tracked.contents_changed():
        if isinstance(copy, collections.deque):
            items = MakeList([rebuild.recipe(item) for item in copy])
            found.append(CallSideEffect(_replace_deque, (target, items)))
        elif isinstance(copy, list):
            found.append(ReplaceList(target, [*map(rebuild.recipe, list.__iter__(copy))]))
        elif isinstance(copy, dict):
            entries = dict_items(copy)
            pairs = [(rebuild.recipe(key), rebuild.recipe(item)) for key, item in entries]
            found.append(ReplaceDict(target, pairs))
        else:
            found.append(ReplaceSet(target, [rebuild.recipe(item) for item in copy]))
    if tracked.slots_changed():
        _written_attributes(tracked.slots_snapshot, slot_values(copy), target, rebuild, found)
    if tracked.state_snapshot is not None:
        _written_attributes(tracked.state_snapshot, copy.__dict__, target, rebuild, found)


def _written_attributes(
    before: dict[str, Any],
    now: dict[str, Any],
    target: Recipe,
    rebuild: Rebuilder,
    found: list[SideEffect],
) -> None:
    found += [DelAttr(target, name) for name in before.keys() - now.keys()]
    for name, value in now.items():
        if before.get(name, DELETED) is not value:
            found.append(SetAttr(target, name, rebuild.recipe(value)))


def _replace_deque(obj: collections.deque[Any], items: list[Any]) -> None:
    obj.clear()
    obj.extend(items)


# ---------------------------------------------------------------- context writes

UNWRITTEN: Any = object()
"""Stands for the value that a variable had when the frame began."""


@dataclass(slots=True)
class ContextWrites:
    """The context variables that the frame has set, and to what."""

    values: dict[int, tuple[ContextVar[Any], Any]] = field(default_factory=dict)
    in_tokens: set[int] = field(default_factory=set)
    """Ids of the variables that the recipe of a token sets."""


class ContextToken(Proxy):
    """The result of `ContextVar.set` in the frame; `before`: the replaced value, or UNWRITTEN."""

    __slots__ = ("before", "is_used", "machine", "var")

    def __init__(self, machine: Machine, var: ContextVar[Any], before: Any) -> None:
        self.machine = machine
        self.var = var
        self.before = before
        self.is_used = False

    def seen_attribute(self, name: str) -> Any:
        """`var`; the old value is the context's, which the frame has not read."""
        if name == "var":
            return self.var
        raise GraphBreak("unknown-c-function", f"Token.{name}")

    def recipe(self, rebuild: RecipeMaker) -> Recipe:
        """A token that outlives the frame is made by setting its variable."""
        value = written(self.machine, self.var)
        if self.is_used or self.before is not UNWRITTEN or value is UNWRITTEN:
            detail = "a token of a context variable that was set again or reset"
            raise GraphBreak("unsupported-result", detail)
        in_tokens = self.machine.state_of(ContextWrites).in_tokens
        if id(self.var) in in_tokens:
            raise GraphBreak("unsupported-result", "two tokens of one context variable")
        in_tokens.add(id(self.var))
        variable = _variable(self.machine, self.var)
        return CallRecipe(ContextVar.set, (variable, rebuild.recipe(value)))


def variable_source(machine: Machine, var: ContextVar[Any]) -> Source:
    """Where the program has the variable from; the capture holds for this variable only."""
    source = machine.objects.source_of(var)
    if source is None:
        return Constant(var)
    machine.guard("IS", source, var)
    return source


def written(machine: Machine, var: ContextVar[Any]) -> Any:
    """What the frame has set the variable to, or UNWRITTEN."""
    return machine.state_of(ContextWrites).values.get(id(var), (var, UNWRITTEN))[1]


def context_side_effects(machine: Machine, rebuild: Rebuilder) -> list[SideEffect]:
    """Settings of variables that keep the frame's value and that no token's recipe sets."""
    writes = machine.state_of(ContextWrites)
    return [
        CallSideEffect(ContextVar.set, (_variable(machine, var), rebuild.recipe(value)))
        for var, value in writes.values.values()
        if value is not UNWRITTEN and id(var) not in writes.in_tokens
    ]


def _variable(machine: Machine, var: ContextVar[Any]) -> Recipe:
    return FromSource(variable_source(machine, var))
