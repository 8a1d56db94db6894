"""Calls of a captured graph by one name and by parameter, however the program wrote them.

    q @ k, torch.matmul(q, k), q.matmul(k), torch.bmm(q, k)   ->   Call("matmul", input=q, other=k)
    s /= 8, s.div_(8), torch.div(s, 8)                        ->   Call("div", input=s, other=8)

An in-place call has the name of the functional one: whoever asks must see to it that nothing else
reads what it writes to (`Call.in_place`). Only calls in the table are known.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

_SIGNATURES: dict[str, tuple[str, ...]] = {
    "matmul": ("input", "other"),
    "baddbmm": ("input", "batch1", "batch2"),
    "einsum": ("equation", "*operands"),
    "add": ("input", "other"),
    "sub": ("input", "other"),
    "mul": ("input", "other"),
    "div": ("input", "other"),
    "masked_fill": ("input", "mask", "value"),
    "where": ("condition", "input", "other"),
    "softmax": ("input", "dim", "dtype"),
    "dropout": ("input", "p", "training"),
    "transpose": ("input", "dim0", "dim1"),
    "permute": ("input", "*dims"),
    "cast": ("input",),
    "copy": ("input",),
    "reshape": ("input",),
    "expand": ("input",),
    "getitem": ("input", "index"),
}
"""By name: the parameters, in order; the last may stand for the rest."""

_SPELLINGS: dict[str, tuple[str, ...]] = {
    "matmul": ("matmul", "bmm", "__matmul__"),
    "baddbmm": ("baddbmm",),
    "einsum": ("einsum",),
    "add": ("add", "iadd", "add_"),
    "sub": ("sub", "isub", "sub_", "subtract"),
    "mul": ("mul", "imul", "mul_", "multiply"),
    "div": ("div", "truediv", "itruediv", "div_", "true_divide", "divide"),
    "masked_fill": ("masked_fill", "masked_fill_"),
    "where": ("where",),
    "softmax": ("softmax",),
    "dropout": ("dropout",),
    "transpose": ("transpose", "swapaxes", "swapdims", "t"),
    "permute": ("permute",),
    "cast": ("to", "float", "half", "bfloat16", "double", "type_as", "type"),
    "copy": ("contiguous", "clone"),
    "reshape": ("view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten"),
    "expand": ("expand", "expand_as", "broadcast_to"),
    "getitem": ("getitem", "__getitem__"),
}

_NAMES = {spelling: name for name, all_ in _SPELLINGS.items() for spelling in all_}
_FUNCTIONS = {
    function: name
    for spelling, name in _NAMES.items()
    for owner in (operator, torch, torch.Tensor, F)
    if (function := getattr(owner, spelling, None)) is not None
}


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the table; `args` by parameter, those left out missing."""

    name: str
    args: dict[str, Any]
    in_place: bool


def call_of(node: Any) -> Call | None:
    """What a node calls, if the table knows it."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return None
    if node.target is getattr and node.args[1] in ("mT", "T", "mH", "H"):
        return Call("transpose", {"input": node.args[0]}, False)
    method = node.op == "call_method"
    name = _NAMES.get(str(node.target)) if method else _FUNCTIONS.get(node.target)
    if name is None or "out" in node.kwargs:
        return None
    parameters = _SIGNATURES[name]
    if name == "where" and method:
        parameters = ("input", "condition", "other")
    elif name == "softmax" and node.target is F.softmax:
        parameters = ("input", "dim", "_stacklevel", "dtype")
    args = dict(node.kwargs)
    for at, parameter in enumerate(parameters):
        if parameter.startswith("*"):
            args[parameter[1:]] = node.args[at:]
        elif at < len(node.args):
            args[parameter] = node.args[at]
    spelled = str(node.target) if method else getattr(node.target, "__name__", "")
    in_place = spelled.endswith("_") or spelled in ("iadd", "isub", "imul", "itruediv")
    return Call(name, args, in_place)
