"""What the frame did to objects that existed before the call, as effects that its entry replays at exit.

self.steps = self.steps + 1; cache["x"] = y     ->     SetAttr(self, 'steps', s0 + 1); ReplaceDict(cache, [..., ('x', y)])
"""

from __future__ import annotations

import collections
import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.context_writes import context_effects
from flambeau_capture.interpreter.objects import DELETED, dict_items, slot_values
from flambeau_capture.origins import MODULE_TABLES, DictEntry, InstanceDict
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import (
    CallEffect,
    Const,
    DelAttr,
    FromOrigin,
    MakeList,
    ReplaceDict,
    ReplaceList,
    ReplaceSet,
    SetAttr,
    StoreCell,
    StoreGlobal,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.objects import Shadow
    from flambeau_capture.interpreter.rebuild import Rebuilder
    from flambeau_capture.record import Effect


def guard_distinct(machine: Machine) -> None:
    """An object that the frame changed must not be, on a later call, also what another origin holds."""
    objects = machine.objects
    changed = [shadow.real for shadow in objects.shadows.values() if shadow.is_changed()]
    changed += [obj for obj, _ in objects.overlays.values() if objects.is_known(obj)]
    targets = [target for target in objects.append_targets.values() if target.shadow is None]
    changed += [target.real for target in targets if target.items]
    held = [(shadow.real, shadow.origin) for shadow in objects.shadows.values()]
    held += [*objects.known.values(), *((target.real, target.origin) for target in targets)]
    held += objects.read_in_part
    origin_of = {id(obj): origin for obj, origin in held}
    done: set[int] = set()
    for obj in changed:
        done.add(id(obj))
        for other, origin in held:
            if type(other) is type(obj) and id(other) not in done:
                machine.guard("NOT_ALIAS", origin_of[id(obj)], origin)


def effects(machine: Machine, rebuild: Rebuilder) -> list[Effect]:
    """Everything the frame did to what existed before the call."""
    found: list[Effect] = []
    objects = machine.objects
    for shadow in list(objects.shadows.values()):
        _contents_effects(shadow, rebuild, found)
    for appended in objects.append_targets.values():
        if appended.items:
            items = MakeList([rebuild.recipe(item) for item in appended.items])
            found.append(CallEffect(list.extend, (FromOrigin(appended.origin), items)))
    found += _attribute_effects(machine, rebuild)
    for (cls, name), (value,) in objects.classes_written.items():
        found.append(SetAttr(Const(cls), name, rebuild.recipe(value), raw=False))
    for (_, name), (module_globals, value) in objects.globals_written.items():
        if value is DELETED and name not in module_globals:
            continue
        found.append(
            StoreGlobal(module_globals, name, None if value is DELETED else rebuild.recipe(value))
        )
    for cell, value in objects.cells_written.values():
        found.append(
            StoreCell(rebuild.recipe(cell), None if value is DELETED else rebuild.recipe(value))
        )
    if any(tensor._version != version for tensor, version in machine.deferred_tensors):
        raise GraphBreak("side-effect", "a tensor is changed after it was printed")
    for target, what in machine.deferred_targets:
        if objects.is_seen(target):
            raise GraphBreak("side-effect", f"{what} where the frame reads it")
    for function, args, kwargs in machine.deferred:
        named = {name: rebuild.recipe(value) for name, value in kwargs.items()}
        found.append(CallEffect(function, tuple(rebuild.recipe(arg) for arg in args), named))
    return found + context_effects(machine, rebuild)


def _attribute_effects(machine: Machine, rebuild: Rebuilder) -> Iterator[Effect]:
    """Attributes set and deleted, in the order in which they were last written."""
    objects = machine.objects
    for (_, name), (obj, raw) in machine.attribute_writes.items():
        overlay = objects.overlay_of(obj)
        assert overlay is not None
        value = _last_written(machine, obj, name, overlay[name])
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
    """The value to write: what the frame has put into `obj.__dict__` itself after it had set the attribute counts."""
    shadow = machine.objects.shadow_of.get(id(getattr(obj, "__dict__", None)))
    if shadow is None or isinstance(obj, torch.nn.Module) or _has_slot(obj, name):
        return value
    return shadow.copy.get(name, DELETED)


def _restored(machine: Machine, obj: Any, name: str, value: Any) -> bool:
    """Whether a flag ends as it began (it was set for a while and set back): guarded to begin so, there is nothing to write."""
    own = getattr(obj, "__dict__", None)
    origin = machine.objects.origin_of(obj)
    if (value is not None and type(value) is not bool) or type(own) is not dict or origin is None:
        return False
    if name not in own or own[name] is not value:
        return False
    machine.guard("IS", DictEntry(InstanceDict(origin), name), value)
    return True


def _has_slot(obj: Any, name: str) -> bool:
    """Whether a real attribute that is not in the instance dict is there: a slot, or an entry of a module's tables."""
    if isinstance(obj, torch.nn.Module):
        return any(name in obj.__dict__[table] for table in MODULE_TABLES)
    return isinstance(getattr(type(obj), name, None), types.MemberDescriptorType) and hasattr(
        obj, name
    )


def _contents_effects(shadow: Shadow, rebuild: Rebuilder, found: list[Effect]) -> None:
    """The change of a container's contents, and of a container subclass's attributes."""
    copy, target = shadow.copy, FromOrigin(shadow.origin)
    if shadow.contents_changed():
        if isinstance(copy, collections.deque):
            items = MakeList([rebuild.recipe(item) for item in copy])
            found.append(CallEffect(_replace_deque, (target, items)))
        elif isinstance(copy, list):
            found.append(
                ReplaceList(target, [rebuild.recipe(item) for item in list.__iter__(copy)])
            )
        elif isinstance(copy, dict):
            found.append(
                ReplaceDict(
                    target,
                    [(rebuild.recipe(key), rebuild.recipe(item)) for key, item in dict_items(copy)],
                )
            )
        else:
            found.append(ReplaceSet(target, [rebuild.recipe(item) for item in copy]))
    if shadow.slots_changed():
        held = slot_values(copy)
        for name in shadow.slots_snapshot.keys() - held.keys():
            found.append(DelAttr(target, name))
        for name, value in held.items():
            if shadow.slots_snapshot.get(name, DELETED) is not value:
                found.append(SetAttr(target, name, rebuild.recipe(value)))
    if shadow.state_snapshot is not None:
        now = copy.__dict__
        for name in shadow.state_snapshot.keys() - now.keys():
            found.append(DelAttr(target, name))
        for name, value in now.items():
            if name not in shadow.state_snapshot or shadow.state_snapshot[name] is not value:
                found.append(SetAttr(target, name, rebuild.recipe(value)))


def _replace_deque(obj: collections.deque[Any], items: list[Any]) -> None:
    obj.clear()
    obj.extend(items)
