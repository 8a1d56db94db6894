"""Compute at compile time what calls of a captured graph give that depend on no input: masks made
of ranges.

    arange = torch.arange(8); a = arange[:, None]; b = arange[None, :]; mask = torch.le(b, a)
      ->  a tensor of bool[8, 8], True on the diagonal and below

The graph stays as it is: passes ask, and the answer says more of a mask than its Spec. Nothing is
known of what the program writes to (`mask[2:] = True`), whenever it does. Computed on the CPU,
whatever device the program names: only operators that give the same everywhere.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from flambeau_autograd.torch_calls import call_of
from flambeau_prims.spec import Spec

MOST_ELEMENTS = 1 << 24
"""Larger results are not computed."""

_FACTORIES = {"arange", "ones", "zeros", "full", "eye", "tensor", "scalar_tensor", "new_ones",
              "new_zeros", "new_full", "ones_like", "zeros_like", "full_like"}  # fmt: skip
_EXACT = {
    *_FACTORIES, "add", "and_", "bool", "broadcast_to", "cat", "clone", "contiguous", "cumsum",
    "diff", "eq", "expand", "expand_as", "flip", "float", "ge", "getitem", "gt", "int",
    "invert", "le", "logical_and", "logical_not", "logical_or", "long", "lt", "masked_fill", "mul",
    "ne", "neg", "not_", "or_", "permute", "repeat", "reshape", "rsub", "squeeze", "stack", "sub",
    "t", "to", "transpose", "tril", "triu", "type", "unsqueeze", "view", "where", "xor",
    "__and__", "__or__", "__invert__", "bitwise_and", "bitwise_not", "bitwise_or", "type_as",
}  # fmt: skip
"""By name; none draws, writes, or reads uninitialized memory. Floats are only moved, added and
multiplied, each result rounded once.
"""


class ConstantCalls:
    """The answers for one graph, each computed once; `written`: the nodes whose memory the program
    writes to.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.written = _written(graph)
        self._known: dict[fx.Node, tuple[Any] | None] = {}

    def value(self, arg: Any) -> tuple[Any] | None:
        """(what an argument of a call is,), or None if it depends on inputs."""
        if not isinstance(arg, fx.Node):
            return (arg,)
        if arg not in self._known:
            # Without recursion, which a long program would exhaust.
            pending = [arg]
            while pending:
                node = pending[-1]
                unknown = [each for each in node.all_input_nodes if each not in self._known]
                if unknown and _is_exact(node):
                    pending += unknown
                    continue
                pending.pop()
                self._known[node] = self._compute(node)
        return self._known[arg]

    def _compute(self, node: fx.Node) -> tuple[Any] | None:
        if node in self.written or not _is_exact(node):
            return None
        answers = [self._known[each] for each in node.all_input_nodes]
        if any(answer is None for answer in answers):
            return None

        def real(each: fx.Node) -> Any:
            answer = self._known[each]
            assert answer is not None
            return answer[0]

        args, kwargs = (fx.node.map_arg(arg, real) for arg in (node.args, node.kwargs))
        args, kwargs = _on_cpu(args), _on_cpu(kwargs)
        with torch.no_grad():
            if node.op == "call_method":
                result = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                result = node.target(*args, **kwargs)  # type: ignore[operator]
        spec = node.meta["spec"]
        if not isinstance(result, torch.Tensor) or result.dtype is not spec.dtype:
            return None
        return (result,) if tuple(result.shape) == tuple(spec.shape) else None


_FRESH = {
    "matmul",
    "baddbmm",
    "einsum",
    "add",
    "sub",
    "mul",
    "div",
    "masked_fill",
    "where",
    "softmax",
}
"""Calls of `torch_calls` whose results share no memory with operands, unless they are in place."""


def _written(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that calls write to, and those that these may be views of."""
    pending: list[fx.Node] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or node.meta.get("pure"):
            continue
        call = call_of(node)
        writes = call is None or call.in_place or call.name == "dropout"
        if writes:
            first_only = (call is not None and call.in_place) or node.target is operator.setitem
            pending += node.all_input_nodes[:1] if first_only else node.all_input_nodes
    written: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in written:
            continue
        written.add(node)
        call = call_of(node)
        if call is None or call.in_place or call.name not in _FRESH:
            pending += node.all_input_nodes
    return written


def _is_exact(node: fx.Node) -> bool:
    """Whether a call has the same result everywhere, if its operands are known."""
    spec = node.meta.get("spec")
    if not isinstance(spec, Spec) or spec.env is not None or not node.meta.get("pure"):
        return False
    if math.prod(spec.shape) > MOST_ELEMENTS or node.meta.get("requires_grad"):  # type: ignore[arg-type]
        return False
    if node.op == "call_method":
        return str(node.target) in _EXACT
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "")
    owners = (torch, operator, torch.Tensor)
    return name in _EXACT and any(getattr(each, name, None) is node.target for each in owners)


def _on_cpu(arg: Any) -> Any:
    if isinstance(arg, torch.device) or (isinstance(arg, str) and arg.startswith("cuda")):
        return torch.device("cpu")
    if isinstance(arg, (tuple, list)):
        return type(arg)(_on_cpu(item) for item in arg)
    if isinstance(arg, dict):
        return {
            key: "cpu" if key == "device" and item is not None else _on_cpu(item)
            for key, item in arg.items()
        }
    return arg
