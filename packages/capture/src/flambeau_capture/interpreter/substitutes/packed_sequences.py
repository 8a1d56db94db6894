"""Packed sequences: their sizes are lengths, which a tensor on the CPU holds.

    packed = pack_padded_sequence(x, lengths)     the operations of graphs/packed_sequences.py,
                                                  of data-dependent sizes
    out, h = lstm(packed)                         torch.lstm(data, batch_sizes, ...), one call that
                                                  compilers leave to torch

A recurrent network goes through as many steps as the data say, so no tracer can see into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from flambeau_capture.graphs.packed_sequences import pack, pad
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute


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


# ---------------------------------------------------------------- recurrent networks


def _on_packed(forward: Any) -> Substitute:
    """The module's own code, in which sizes may be lengths if the input is packed."""

    def call(machine: Machine, args: Any, kwargs: Any) -> Any:
        if not any(isinstance(arg, PackedSequence) for arg in (*args, *kwargs.values())):
            return machine.interpret(forward, args, kwargs)
        with machine.tape.unbacked.defined():
            return machine.interpret(forward, args, kwargs)

    return call


for _module in (nn.RNN, nn.LSTM, nn.GRU):
    substitute_for(_module.forward)(_on_packed(_module.forward))


def _network(function: Any, hidden: Callable[[Any], tuple[Any, ...]]) -> None:
    """`torch.lstm` and the like: `hidden` gives the initial hidden states of its `hx`."""

    def like(data: Any, batch_sizes: Any, hx: Any, params: Any, *options: Any) -> Any:
        """Tensors such as the results, with what autograd knows of these."""
        states = hidden(hx)
        seed = sum(tensor.flatten()[:0].sum() for tensor in (data, *states, *params))
        width = states[0].shape[-1] * (2 if options[4] else 1)
        return data.new_zeros(data.shape[0], width) + seed, *[
            state.new_zeros(state.shape) + seed for state in states
        ]

    @substitute_for(function)
    def call(machine: Machine, args: Any, kwargs: Any) -> Any:
        tape = machine.tape
        is_packed = len(args) > 1 and isinstance(args[1], torch.Tensor)
        if not is_packed or args[1].dtype is not torch.int64:
            return tape.call_function(function, args, kwargs)
        if torch.is_autocast_enabled(args[0].device.type):
            raise _refuse("a recurrent network reads packed sequences in an autocast block")
        return tape.call_left_to_torch(function, like, args, is_random=args[6] > 0 and args[7])


_network(torch.lstm, tuple)
for _function in (torch.gru, torch.rnn_tanh, torch.rnn_relu):
    _network(_function, lambda hx: (hx,))
