"""Recurrent networks: where a library computes them whole, graphs leave the call to torch.

    out, h = lstm(packed)      as many steps as the data say, which no tracer can see into
    out, h = lstm(x.cuda())    cuDNN goes through all steps of all layers, with the weights where
                               the module has packed them, and its dropout

Elsewhere tracers see the cells and products that torch composes them of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from flambeau_capture.graphs.recurrent_networks import NETWORKS, in_autocast
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import Substitute
    from flambeau_capture.interpreter.torch_calls.tape import Tape


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


def _is_packed(args: Any) -> bool:
    """Of `torch.lstm(data, batch_sizes, ...)`, unlike `torch.lstm(input, hx, ...)`."""
    return isinstance(args[1], torch.Tensor) and args[1].dtype is torch.int64


def _results(hidden: Any, args: Any, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Tensors such as the results, in a tuple as these, with what autograd knows of them."""
    is_packed = _is_packed(args)
    data = args[0]
    hx, params, *_, is_bidirectional, batch_first = args[2:] + (False,) if is_packed else args[1:]
    states = hidden(hx)
    sizes = data.shape[:-1]
    steps_first = sizes[::-1] if batch_first else sizes
    width = states[0].shape[-1] * (2 if is_bidirectional else 1)
    output = data.new_zeros(*steps_first, width, dtype=dtype)
    seed = sum(tensor.flatten()[:0].sum(dtype=dtype) for tensor in (data, *states, *params))
    last = [state.new_zeros(state.shape, dtype=dtype) + seed for state in states]
    return ((output.transpose(0, 1) if batch_first else output) + seed, *last)


def _network(function: Any, hidden: Callable[[Any], tuple[Any, ...]]) -> None:
    """`torch.lstm` and the like: `hidden` gives the initial hidden states of its `hx`."""

    @substitute_for(function)
    def call(machine: Machine, args: Any, kwargs: Any) -> Any:
        tape = machine.tape
        if kwargs or len(args) != 9 or not (_is_packed(args) or _computed_whole(args[0], tape)):
            return tape.call_function(function, args, kwargs)
        data, is_packed = args[0], _is_packed(args)
        dropout, is_training = args[6:8] if is_packed else args[5:7]
        is_cast = torch.is_autocast_enabled(data.device.type)
        leading: tuple[Any, ...] = ()
        target, dtype = function, data.dtype
        if not data.is_cuda and is_cast:
            detail = "a recurrent network reads packed sequences in an autocast block"
            raise GraphBreak("data-dependent", detail)
        if data.is_cuda and (is_cast or tape.autocast_nesting):
            to = torch.get_autocast_dtype("cuda") if is_cast else None
            target, leading = in_autocast, (function.__name__, to)
            if to is not None and dtype is not torch.float64:  # which autocast leaves as it is
                dtype = to

        def like(*given: Any) -> tuple[torch.Tensor, ...]:
            return _results(hidden, given[len(leading) :], dtype)

        is_random = dropout > 0 and is_training
        return tape.call_left_to_torch(target, like, (*leading, *args), is_random=is_random)


def _computed_whole(input: Any, tape: Tape) -> bool:
    """Whether a library may compute the network on this input. In functions that are given to torch
    tracers see the cells nevertheless.
    """
    return isinstance(input, torch.Tensor) and input.is_cuda and not tape.subgraphs


for _name, _function in NETWORKS.items():
    _network(_function, tuple if _name == "lstm" else lambda hx: (hx,))
