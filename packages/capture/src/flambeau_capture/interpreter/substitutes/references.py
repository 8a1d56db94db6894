"""Weak references and weak proxies that the frame makes."""

from __future__ import annotations

import operator
import types
import weakref
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.semantics import attribute_writes
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.interpreter.values.lifetimes import dereference
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, Recipe

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.protocols import RecipeMaker


class WeakProxies(dict[int, Any]):
    """The weak proxies of one capture, held weakly, by the id of the object."""


class WeakProxy(Proxy):
    """A `weakref.proxy`: what is done with it is done with the object, while that lives."""

    __slots__ = ("__weakref__", "machine", "reference")

    def __init__(self, machine: Machine, referent: Any) -> None:
        self.machine, self.reference = machine, weakref.ref(referent)

    def referent(self) -> Any:
        """The object; ReferenceError if it is dead."""
        found = dereference(self.machine, self.reference)
        if found is None:
            raise ReferenceError("weakly-referenced object no longer exists")
        return found

    def seen_type(self) -> type:
        """The type that the program sees."""
        return weakref.CallableProxyType if callable(self.referent()) else weakref.ProxyType

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.referent())

    def seen_attribute(self, name: str) -> Any:
        """An attribute of the object."""
        return load_attr(self.machine, self.referent(), name)

    def store_seen(self, name: str, value: Any) -> None:
        """Set an attribute of the object."""
        attribute_writes.store_attr(self.machine, self.referent(), name, value)

    def delete_seen(self, name: str) -> None:
        """Delete an attribute of the object."""
        attribute_writes.delete_attr(self.machine, self.referent(), name)

    def recipe(self, rebuild: RecipeMaker) -> Recipe | None:
        """The proxy of the object that is rebuilt."""
        return CallRecipe(weakref.proxy, (rebuild.recipe(self.referent()),))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.machine.call(self.referent(), args, kwargs)

    def __hash__(self) -> int:
        raise TypeError(f"unhashable type: {self.seen_type().__name__!r}")


def _forward(function: Any) -> Any:
    def method(self: WeakProxy, *args: Any) -> Any:
        plain = [arg.referent() if type(arg) is WeakProxy else arg for arg in args]
        return self.machine.call(function, (self.referent(), *plain), {})

    return method


for _name, _function in {
    "__getitem__": operator.getitem, "__setitem__": operator.setitem,
    "__delitem__": operator.delitem, "__contains__": operator.contains, "__len__": len,
    "__iter__": iter, "__next__": next, "__bool__": bool, "__str__": str, "__eq__": operator.eq,
    "__ne__": operator.ne, "__lt__": operator.lt, "__le__": operator.le, "__gt__": operator.gt,
    "__ge__": operator.ge, "__add__": operator.add, "__sub__": operator.sub,
    "__mul__": operator.mul, "__index__": operator.index, "__int__": int, "__float__": float,
}.items():  # fmt: skip
    setattr(WeakProxy, _name, _forward(_function))


@substitute_for(weakref.proxy)
def _proxy(machine: Machine, args: Any, kwargs: Any) -> Any:
    _refuse_callback(args)
    weakref.proxy(*args, **kwargs)  # raises what cannot be referred to
    made = machine.state_of(WeakProxies)
    known = made.get(id(args[0]), types.NoneType)()
    if known is None or known.reference() is not args[0]:
        known = WeakProxy(machine, args[0])
        made[id(args[0])] = weakref.ref(known)
    return known


@substitute_for(weakref.ref)
def _reference(machine: Machine, args: Any, kwargs: Any) -> Any:
    _refuse_callback(args)
    return weakref.ref(*args, **kwargs)


def _refuse_callback(args: Any) -> None:
    if len(args) > 1 and args[1] is not None:
        raise GraphBreak("side-effect", "a weak reference with a callback is made")
