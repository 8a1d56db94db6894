"""ATen's composites that take another way on tensors without data, with other strides: `one_hot`
compares with the classes in the order of the argument's dims, where it writes into contiguous zeros
eagerly; `max_pool1d` has a kernel for itself on a CPU, where no gradient is wanted, whose results
are contiguous, and which takes no integers.

The check of `one_hot` on a CPU looks at its classes before it calls any operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_prims.rules.pointwise import not_implemented

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute


def _contiguous(machine: Machine, result: Any) -> Any:
    return result if result.is_contiguous() else machine.tape.call_method("contiguous", (result,))


@substitute_for(torch.nn.functional.one_hot)
def _one_hot(machine: Machine, args: Any, kwargs: Any) -> Any:
    tape = machine.tape
    result = tape.call_function(torch.nn.functional.one_hot, args, kwargs)
    classes = args[0] if args else kwargs["input"]
    if classes.device.type == "cpu":
        inside = tape.call_function(torch.ge, (classes, 0))
        below = tape.call_function(torch.lt, (classes, result.shape[-1]))
        all_are = tape.call_function(
            torch.all, (tape.call_function(torch.logical_and, (inside, below)),)
        )
        tape.call_function(torch._assert_async, (all_are,))
    return _contiguous(machine, result)


def _declare_pools() -> None:
    def pooling(function: Any) -> Substitute:
        def pool(machine: Machine, args: Any, kwargs: Any) -> Any:
            result = machine.tape.call_function(function, args, kwargs)
            if not isinstance(result, torch.Tensor):  # with indices
                return result
            if result.device.type != "cpu" or result.requires_grad:
                return result
            if not result.dtype.is_floating_point:
                raise not_implemented("max_pool1d_impl", result.dtype)
            return _contiguous(machine, result)

        return pool

    for function in (torch.max_pool1d, torch.nn.functional.max_pool1d):
        substitute_for(function)(pooling(function))


_declare_pools()
