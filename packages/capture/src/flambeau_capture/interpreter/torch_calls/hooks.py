"""Hooks that a frame registers on tensors and on nodes of autograd: noted, and registered when the
frame's graph has run.

What the program holds is a `HookHandle`, by which it may remove the hook again in the frame, and
which becomes torch's own handle when it leaves the frame. A tensor that the graph computes is
marked in it (`flambeau_capture.graphs.autograd_calls`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from flambeau_capture.graphs.autograd_calls import hook_point, register_on_node, removed_handle
from flambeau_capture.graphs.graph_module import values_in
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, CallSideEffect, Const
from flambeau_prims.wrapper_subclasses import is_wrapper_subclass

if TYPE_CHECKING:
    from flambeau_capture.interpreter.protocols import RecipeMaker, Recorder
    from flambeau_capture.record import Recipe, SideEffect


class HookHandle(Proxy):
    """What the frame holds for a `RemovableHandle`: the registering function and arguments."""

    __slots__ = ("arguments", "is_removed", "register")

    def __init__(self, register: Any, arguments: tuple[Any, ...]) -> None:
        self.register, self.arguments = register, arguments
        self.is_removed = False

    @staticmethod
    def instance_of(classes: Any) -> bool:
        """As torch's handle."""
        return issubclass(RemovableHandle, classes)

    def seen_attribute(self, name: str) -> Any:
        """A method of the handle; a graph break for its other attributes."""
        if name not in ("remove", "__enter__", "__exit__"):
            raise GraphBreak("tensor-attribute", f"attribute {name!r} of a hook's handle is read")
        return getattr(self, name)

    def remove(self) -> None:
        """Remove the hook."""
        self.is_removed = True

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def recipe(self, rebuild: RecipeMaker) -> Recipe:
        """The call that registers the hook and gives its handle."""
        if self.is_removed:
            return CallRecipe(removed_handle)
        return CallRecipe(self.register, tuple(map(rebuild.recipe, self.arguments)))


class GradFn(Proxy):
    """What the frame holds for the node of autograd that made a tensor."""

    __slots__ = ("machine", "node", "tensor")

    def __init__(self, machine: Recorder, tensor: torch.Tensor) -> None:
        self.machine, self.tensor = machine, tensor
        self.node: Any = tensor.grad_fn

    def seen_attribute(self, name: str) -> Any:
        """A method of the node; a graph break for its other attributes."""
        if name in ("name", "register_hook", "register_prehook"):
            return getattr(self, name)
        raise GraphBreak("tensor-attribute", f"attribute {name!r} of a tensor's grad_fn is read")

    def name(self) -> str:
        """The name of the operator's node."""
        return self.node.name()  # type: ignore[no-any-return]

    def register_hook(self, hook: Any) -> HookHandle:
        """Register a hook that sees the gradients that the node has computed."""
        return self._register("register_hook", hook)

    def register_prehook(self, hook: Any) -> HookHandle:
        """Register a hook that sees the gradients that the node is given."""
        return self._register("register_prehook", hook)

    def _register(self, method: str, hook: Any) -> HookHandle:
        getattr(self.node, method)(hook).remove()  # for its errors: fake tensors have no backward
        make_node(self.machine, self.tensor)
        return note(self.machine, register_on_node, (self.tensor, method, hook))

    def recipe(self, rebuild: RecipeMaker) -> Recipe:
        """The node of the real tensor."""
        return CallRecipe(getattr, (rebuild.recipe(self.tensor), Const("grad_fn")))


def make_node(machine: Recorder, tensor: torch.Tensor) -> None:
    """Have the call that computed a tensor of the frame run apart from the graph's other calls: by
    its own node of autograd, as in eager.
    """
    tape = machine.tape
    if tape.input_of(tensor) is not None:
        return
    value = tape.value_of(tensor)
    for call in reversed(tape.calls):
        if value in values_in(call.result) or value in call.mutates:
            call.untraced, call.pure = True, False
            return
    raise GraphBreak("tensor-attribute", "a hook is registered on a node outside the frame")


def note(machine: Recorder, register: Any, arguments: tuple[Any, ...]) -> HookHandle:
    """Note a hook on a tensor, or several, the first of `arguments`: registered after the graph."""
    tape, first = machine.tape, arguments[0]
    if tape.subgraphs:
        detail = "a hook is registered in a function given to torch"
        raise GraphBreak("higher-order-operator", detail)
    for tensor in (first,) if isinstance(first, torch.Tensor) else first:
        if tape.subclasses.of(tensor) is not None:
            raise GraphBreak("tensor-subclass", "a hook is registered on a tensor of a subclass")
        if is_wrapper_subclass(type(tensor)) and not tensor.is_leaf:
            raise GraphBreak("tensor-subclass", "a hook is registered on a wrapper subclass")
        given = tape.input_of(tensor)
        if given is None:
            tape.call_untraced(hook_point, (tensor,))
        else:
            given[1].hooked = True
        if not tensor.is_leaf:
            tape.hooked.append(tensor.storage_record)  # type: ignore[union-attr]
    handle = HookHandle(register, arguments)
    tape.hooks.append(handle)
    return handle


def hook_side_effects(machine: Recorder, rebuild: RecipeMaker) -> list[SideEffect]:
    """The side effects that register the frame's hooks."""
    kept = [handle for handle in machine.tape.hooks if not handle.is_removed]
    return [CallSideEffect(id, (rebuild.recipe(handle),)) for handle in kept]
