"""Packed sequences: their sizes are lengths, which a tensor on the CPU holds.

`pack_padded_sequence(x, lengths)` is the operations of graphs/packed_sequences.py, of
data-dependent sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.graphs.packed_sequences import pack, pad
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


def _refuse(detail: str) -> GraphBreak:
    return GraphBreak("data-dependent", detail)


@substitute_for(torch._pack_padded_sequence)
def _pack(machine: Machine, args: Any, kwargs: Any) -> Any:
    if kwargs or len(args) != 3 or not _can_pack(*args):
        raise _refuse("a sequence is packed by lengths that do not fit it")
    with machine.tape.unbacked.defined():
        return machine.call(pack, args, {})


def _can_pack(input: Any, lengths: Any, batch_first: Any) -> bool:
    batch_dim = 0 if batch_first else 1
    return (
        isinstance(lengths, torch.Tensor)
        and lengths.dtype is torch.int64
        and lengths.is_cpu
        and lengths.ndim == 1
        and input.ndim >= 2
        and bool(lengths.shape[0] == input.shape[batch_dim])
        and bool(lengths.shape[0] > 0)
        and bool(input.shape[1 - batch_dim] > 0)
    )


@substitute_for(torch._pad_packed_sequence)
def _pad(machine: Machine, args: Any, kwargs: Any) -> Any:
    if kwargs or len(args) != 5 or not isinstance(args[1], torch.Tensor) or not args[1].is_cpu:
        raise _refuse("a packed sequence is padded in an unusual way")
    with machine.tape.unbacked.defined():
        return machine.call(pad, args, {})
