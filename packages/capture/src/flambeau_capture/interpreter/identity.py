"""Identity as the program observes it: by `is`, by the default `==`, by hashing a function.

What exists before the call is guarded by what is read of it, not by which object it is.  Two objects that the program has told apart
must be two in later calls; a function that it has hashed must be that function.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.constant_types import IDENTITY_TYPES, SCALARS, TORCH_CONSTANTS
from flambeau_capture.origins import CallOf

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.origins import Origin


_OF_THE_PROGRAM = (IDENTITY_TYPES - {types.FunctionType}) | SCALARS | TORCH_CONSTANTS | {type, str}
"""Types of which records hold the very objects."""


def identical(machine: Machine, left: Any, right: Any) -> bool:
    """`left is right`."""
    if left is right:
        return True
    if type(left) is type(right):
        tell_apart(machine, left, right)
    return False


def tell_apart(machine: Machine, left: Any, right: Any) -> None:
    """Two objects of one type were found to be two."""
    one, other = _origin_of(machine, left), _origin_of(machine, right)
    if one is not None and other is not None:
        if one is not other:
            machine.guard("NOT_ALIAS", one, other)
    elif type(left) is types.FunctionType:
        observe(machine, left)
        observe(machine, right)


def observe(machine: Machine, value: Any) -> None:
    """The identity of a value has been looked at: guarded, where it is a function's; other objects' are not seen to matter."""
    if type(value) is types.FunctionType:
        known = machine.objects.known.get(id(value))
        if known is not None:
            machine.guard("IS", known[1], value)
    elif type(value) is types.MethodType:
        observe(machine, value.__func__)
    elif type(value) is tuple:
        for item in value:
            observe(machine, item)


def address_read(machine: Machine, value: Any) -> None:
    """The program has read `id(value)`, or a hash that is made of it.

    What the frame has made must not be rebuilt as another object; another object of the program has another address.
    """
    frame = machine.frame
    if frame is None or machine.is_library(frame.globals) or type(value) in _OF_THE_PROGRAM:
        return
    origin = _origin_of(machine, value)
    if origin is None:
        machine.addresses_read[id(value)] = value
    else:
        machine.guard("EQUALS", CallOf(id, (origin,)), id(real_object(machine, value)))


def real_object(machine: Machine, value: Any) -> Any:
    """The object of the program that a fake tensor or a shadow stands for; others are themselves."""
    if isinstance(value, torch.Tensor):
        found = machine.tape.input_of(value)
        return value if found is None else found[0]
    shadow = machine.objects.shadows.get(id(value))
    return value if shadow is None else shadow.real


def _origin_of(machine: Machine, value: Any) -> Origin | None:
    if isinstance(value, torch.Tensor):
        found = machine.tape.input_of(value)
        return None if found is None else found[1].origin
    return machine.objects.origin_of(value)
