"""Tensors made by their type: `torch.Tensor([1, 2])`, `torch.LongTensor(3, 4)`, as the functions that say the same.

torch.IntTensor([4, 5])   ->   torch.tensor([4, 5], dtype=torch.int32)          torch.Tensor(2, 3)   ->   torch.empty((2, 3))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.substitutes.registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitutes.registry import Substitute

_TYPES: tuple[Any, ...] = (
    torch.FloatTensor, torch.DoubleTensor, torch.HalfTensor, torch.BFloat16Tensor, torch.LongTensor, torch.IntTensor, torch.ShortTensor,
    torch.CharTensor, torch.ByteTensor, torch.BoolTensor,
)  # fmt: skip
_SIZES = (int, torch.SymInt)


def _maker(cls: Any) -> Substitute:
    def make(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = torch.get_default_dtype() if cls is torch.Tensor else cls.dtype
        given = {"dtype": dtype, "device": torch.device("cpu")}
        if not kwargs and all(type(arg) in _SIZES for arg in args):
            return machine.tape.call_function(torch.empty, (args or (0,),), given)
        if not kwargs and len(args) == 1 and type(args[0]) in (list, tuple):
            if _is_plain(args[0]):
                with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
                    cls(*args)  # for its errors
            return machine.call(torch.tensor, args, given)
        kinds = ", ".join(type(arg).__name__ for arg in (*args, *kwargs.values()))
        raise GraphBreak("unknown-c-function", f"a torch.{cls.__name__} is made of {kinds}")

    return make


def _is_plain(data: Any) -> bool:
    """Whether data are numbers in lists."""
    if type(data) in (list, tuple):
        return all(map(_is_plain, data))
    return type(data) in (int, float, bool)


for _type in (torch.Tensor, *_TYPES):
    substitute_for(_type)(_maker(_type))
