"""A call of torch that asks what is in a tensor that it has made, as the ATen operators in it.

    torch.istft(s, ...)     ->      transpose, _fft_c2r, mul, unfold_backward, ..., abs, min, lt
                                    and then: is that true? which is asked of a value of the graph

The question is answered as one of the program's own would be (data_dependent_predicates.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from flambeau_capture.interpreter.protocols import CallTape


class OperatorsInside(TorchDispatchMode):
    """Records each operator on the tape."""

    def __init__(self, tape: CallTape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype is torch.bool:
            return self._tape.truth(args[0])
        return self._tape.call_function(func, args, kwargs)
