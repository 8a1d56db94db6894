"""Recurrent networks that a graph leaves to torch, in the autocast state of the program's call."""

from __future__ import annotations

from typing import Any

import torch

NETWORKS = {
    function.__name__: function
    for function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
}


def in_autocast(name: str, dtype: torch.dtype | None, *args: Any) -> Any:
    """A call of the network `name` on a GPU, under autocast to `dtype` or, for None, without.

    A compiled graph has its casts inside and runs in the caller's state, which can be another.
    """
    with torch.autocast("cuda", dtype, enabled=dtype is not None):
        return NETWORKS[name](*args)
