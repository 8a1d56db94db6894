"""Find attention that a program writes out, before autograd records it.

    s = q @ k.transpose(-2, -1) / 8
    s = s.masked_fill(mask, -inf)                a: Attention(q, k, v, scale=0.125,
    p = softmax(s, dim=-1)              ->                    masks=(mask, fill=-inf))
    y = dropout(p, 0.1, training=False) @ v      y = a.call(...)

`joint_trace` leaves the calls of an Attention out and makes the call of a fused kernel where the
last of them stands (`fused_attention.py`), so that its backward is the kernel's too; or makes them
all there, if no kernel takes the operands. The program is read from each softmax: upwards through
what changes scores (`_Reader.scores`) to a product, downwards through what leaves weights as they
are to the product with values. Relied on: nothing else reads what is between, so writes in place
are seen by nobody; nothing between the first call and the last writes to memory, or changes torch's
state, but these calls themselves; none draws random numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from flambeau_autograd.attention_masks import (
    ABSORBING,
    LEAST_FILL,
    Mask,
    Seen,
    never_infinite,
    seen_keys,
)
from flambeau_autograd.constant_calls import ConstantCalls
from flambeau_autograd.torch_calls import Call, call_of
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from flambeau_prims.spec import Size


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices as torch.matmul takes them, `left` and `right` permuted first."""

    node: fx.Node
    left: fx.Node
    right: fx.Node
    left_dims: tuple[int, ...] | None = None
    right_dims: tuple[int, ...] | None = None
    result_dims: tuple[int, ...] | None = None


@dataclass(slots=True)
class Attention:
    """softmax(first * scale, masked) @ second.right; `masks` in the order of their steps.

    `nodes` are the calls it is made of, in order, the last one the product with values.
    """

    first: Product
    second: Product
    scale: float
    masks: list[Mask]
    nodes: list[fx.Node]
    seen: Seen


@dataclass(frozen=True, slots=True)
class _Scores:
    product: Product
    scale: float
    masks: tuple[Mask, ...]
    nodes: tuple[fx.Node, ...]


def match_attention(gm: fx.GraphModule) -> list[Attention]:
    """The attention that `gm` writes out, in order."""
    softmaxes = [
        node for node in gm.graph.nodes if (call := call_of(node)) and call.name == "softmax"
    ]
    if not softmaxes:
        return []
    place = {node: at for at, node in enumerate(gm.graph.nodes)}
    writes = [at for node, at in place.items() if _may_write(node)]
    reader = _Reader(gm.graph)
    result: list[Attention] = []
    for node in softmaxes:
        attention = reader.attention(node)
        if attention is None:
            continue
        attention.nodes.sort(key=place.__getitem__)
        own = {place[each] for each in attention.nodes}
        first, last = min(own), max(own)
        if any(first < at < last and at not in own for at in writes):
            continue
        result.append(attention)
    return result


def _may_write(node: fx.Node) -> bool:
    """Whether a node may write to memory or change the state of torch."""
    if node.op in ("placeholder", "get_attr", "output") or node.meta.get("pure"):
        return False
    call = call_of(node)
    return call is None or call.in_place


class _Reader:
    """Reads the calls around softmaxes of one graph."""

    def __init__(self, graph: fx.Graph) -> None:
        self.constants = ConstantCalls(graph)

    def attention(self, softmax: fx.Node) -> Attention | None:
        """The attention around a softmax."""
        call = call_of(softmax)
        spec = _spec(softmax)
        if call is None or spec is None or call.args.get("dim") not in (-1, spec.ndim - 1):
            return None
        scores = self.scores(call.args["input"], softmax, 1.0)
        if scores is None:
            return None
        nodes = [*scores.nodes, softmax]
        second = self.values(softmax, nodes)
        if second is None:
            return None
        region = {(each.meta.get("region", 0), "region_saves" in each.meta) for each in nodes}
        first = _spec(scores.product.node)
        last = _spec(second.node)
        if len(region) != 1 or (True in {saves for _, saves in region}):
            return None
        if first is None or last is None or first.dtype is not last.dtype:
            return None
        allowed = {first.dtype, torch.float32}
        if any((each := _spec(node)) is None or each.dtype not in allowed for node in nodes):
            return None
        if first.dtype is torch.float64 and any(_dtype(n) is not torch.float64 for n in nodes):
            return None
        masks = list(scores.masks)[::-1]
        stages = [first.shape[:-2], *(mask.leading for mask in masks), spec.shape[:-2]]
        seen = seen_keys(masks, stages, spec.shape[-2:], first.dtype, self.constants)  # type: ignore[arg-type]
        return Attention(scores.product, second, scores.scale, masks, nodes, seen)

    # 1. From the softmax up to the product of queries and keys

    def scores(self, node: Any, user: fx.Node, factor: float) -> _Scores | None:
        """Scores that `user` alone reads; what follows them multiplies them by `factor`."""
        call, spec = call_of(node), _spec(node)
        if call is None or spec is None or not _only_user(node, user) or spec.ndim < 2:
            return None
        product = _product(node, call)
        if product is not None:
            return _Scores(product, factor, (), (node,))
        match call.name:
            case "cast" | "copy":
                return self.step(call.args["input"], node, factor)
            case "reshape":
                below = _spec(call.args["input"])
                if below is None or below.shape[-2:] != spec.shape[-2:]:
                    return None
                return self.step(call.args["input"], node, factor)
            case "mul" | "div":
                return self.scaled(node, call, factor)
            case "add" | "sub":
                return self.added(node, call, factor)
            case "masked_fill" | "where":
                return self.filled(node, call, factor)
            case "baddbmm":
                return self.added_product(node, call, factor)
        return None

    def step(
        self, below: Any, node: fx.Node, factor: float, mask: Mask | None = None
    ) -> _Scores | None:
        """The scores below `node`, and the mask that it applies."""
        scores = self.scores(below, node, factor)
        if scores is None:
            return None
        masks = scores.masks if mask is None else (mask, *scores.masks)
        return _Scores(scores.product, scores.scale, masks, (node, *scores.nodes))

    def scaled(self, node: fx.Node, call: Call, factor: float) -> _Scores | None:
        left, right = call.args.get("input"), call.args.get("other")
        if call.args.get("rounding_mode") is not None:
            return None
        if call.name == "mul" and self.number(right) is None:
            left, right = right, left
        number = self.number(right)
        if number is None or not 0 < number < math.inf:
            return None
        scale = number if call.name == "mul" else 1.0 / number
        return self.step(left, node, factor * scale) if 0 < factor * scale < math.inf else None

    def added(self, node: fx.Node, call: Call, factor: float) -> _Scores | None:
        left, right = call.args.get("input"), call.args.get("other")
        if call.args.get("alpha", 1) != 1:
            return None
        for below, mask in ((left, right), (right, left)):
            if _keeps_shape(below, node) and _is_float(mask):
                factor_of_mask = -factor if call.name == "sub" else factor
                added = self.as_fill(mask, node, factor_of_mask)
                scores = self.step(below, node, factor, added)
                if scores is not None:
                    return scores
            if call.name == "sub" or call.in_place:
                return None
        return None

    def as_fill(self, tensor: Any, node: fx.Node, factor: float) -> Mask:
        """The mask that `node` adds: as one that fills, where each element is 0 or one number."""
        fill = self.other_than_zero(tensor)
        if fill is not None and fill * factor <= ABSORBING and _dtype(node) is not torch.float64:
            if _represents(node, fill * factor):
                return Mask(tensor, _leading(node), fill * factor, adds=True, has_infinities=False)
        infinite = factor != 1 or not never_infinite(tensor, self.constants)
        return Mask(tensor, _leading(node), factor=factor, has_infinities=infinite)

    def other_than_zero(self, tensor: Any) -> float | None:
        """The one number that elements of a tensor are which are not 0, if the calls that make it
        say so.
        """
        dtypes: list[fx.Node] = []
        while (call := call_of(tensor)) is not None and call.name in _MOVES and not call.in_place:
            dtypes.append(tensor)
            tensor = call.args["input"]
        dtypes.append(tensor)
        if call is None or call.in_place or not self.constants.written.isdisjoint(dtypes):
            return None
        if call.name == "where":
            numbers = [self.number(call.args.get(name)) for name in ("input", "other")]
        elif call.name == "masked_fill":
            known = self.constants.value(call.args["input"])
            if known is None or bool((known[0] != 0).any()):
                return None
            numbers = [0.0, self.number(call.args.get("value"))]
        else:
            return None
        if None in numbers or 0.0 not in numbers:
            return None
        fill = min(number for number in numbers if number is not None)
        return fill if all(_represents(each, fill) for each in dtypes) else None

    def filled(self, node: fx.Node, call: Call, factor: float) -> _Scores | None:
        if call.name == "masked_fill":
            choices = [(call.args["input"], call.args.get("mask"), call.args.get("value"), False)]
        else:
            yes, no = call.args.get("input"), call.args.get("other")
            condition = call.args.get("condition")
            choices = [(no, condition, yes, False), (yes, condition, no, True)]
        for below, condition, fill, negated in choices:
            number = self.number(fill)
            if number is None or not _keeps_shape(below, node):
                continue
            if _dtype(condition) is not torch.bool or not number * factor <= LEAST_FILL:
                continue
            if not _represents(node, number) or not _represents(node, number * factor):
                continue
            mask = Mask(condition, _leading(node), number * factor, negated)  # type: ignore[arg-type]
            return self.step(below, node, factor, mask)
        return None

    def added_product(self, node: fx.Node, call: Call, factor: float) -> _Scores | None:
        alpha, beta = (self.number(call.args.get(name, 1)) for name in ("alpha", "beta"))
        if alpha is None or beta is None or not 0 < alpha < math.inf:
            return None
        product = Product(node, call.args["batch1"], call.args["batch2"])
        scores = _Scores(product, factor * alpha, (), (node,))
        if beta == 0:  # the other operand is not read
            return scores
        tensor = call.args["input"]
        if not 0 < beta < math.inf or not _is_float(tensor):
            return None
        mask = Mask(tensor, _leading(node), factor=factor * beta)
        return _Scores(product, factor * alpha, (mask,), (node,))

    def number(self, arg: Any) -> float | None:
        """A number, or the element of a constant tensor of one; None if it is none."""
        if isinstance(arg, fx.Node):
            spec = _spec(arg)
            if spec is None or spec.ndim:
                return None
            known = self.constants.value(arg)
            arg = None if known is None else known[0].item()
        if isinstance(arg, bool) or not isinstance(arg, (int, float)) or math.isnan(arg):
            return None
        return float(arg)

    # 2. From the softmax down to the product with values

    def values(self, node: fx.Node, nodes: list[fx.Node]) -> Product | None:
        """The product of weights with values; adds what is on the way to `nodes`."""
        while True:
            if len(node.users) != 1:
                return None
            (user,) = node.users
            call, spec = call_of(user), _spec(user)
            if call is None or spec is None or not _only_user(node, user):
                return None
            nodes.append(user)
            if call.name in ("matmul", "einsum"):
                product = _product(user, call)
                return product if product is not None and product.left is node else None
            if call.name == "dropout":
                if call.in_place or call.args.get("inplace") or call.args.get("input") is not node:
                    return None
                if call.args.get("training", True) and call.args.get("p", 0.5) != 0:
                    return None
            elif call.name == "reshape":
                below = _spec(node)
                if below is None or spec.ndim < 2 or below.shape[-2:] != spec.shape[-2:]:
                    return None
            elif call.name not in ("cast", "copy") or call.args.get("input") is not node:
                return None
            node = user


def _product(node: fx.Node, call: Call) -> Product | None:
    """A product of two matrices, or batches of them."""
    if call.name == "matmul":
        left, right = call.args.get("input"), call.args.get("other")
        specs = _spec(left), _spec(right)
        if any(spec is None or spec.ndim < 2 for spec in specs):
            return None
        return Product(node, left, right)  # type: ignore[arg-type]
    return _einsum(node, call) if call.name == "einsum" else None


def _einsum(node: fx.Node, call: Call) -> Product | None:
    """An einsum of batches of matrices, with one letter for rows, columns and what is summed."""
    equation, operands = call.args.get("equation"), call.args.get("operands", ())
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        (operands,) = operands
    if not isinstance(equation, str) or len(operands) != 2 or "->" not in equation:
        return None
    inputs, result = equation.replace(" ", "").split("->")
    terms = inputs.split(",")
    if len(terms) != 2 or any(len(set(term)) != len(term) for term in (*terms, result)):
        return None
    left, right = terms
    if not all(term.isalpha() for term in (left, right, result)):
        return None
    specs = _spec(operands[0]), _spec(operands[1])
    if any(spec is None or spec.ndim != len(term) for spec, term in zip(specs, terms, strict=True)):
        return None
    batch = [letter for letter in result if letter in left and letter in right]
    rows = [letter for letter in result if letter in left and letter not in right]
    columns = [letter for letter in result if letter in right and letter not in left]
    summed = [letter for letter in left if letter in right and letter not in result]
    if not len(rows) == len(columns) == len(summed) == 1:
        return None
    if any(len(term) != len(batch) + 2 for term in (left, right, result)):
        return None
    (letter,) = summed
    if specs[0].shape[left.index(letter)] != specs[1].shape[right.index(letter)]:  # type: ignore[union-attr]
        return None  # repeated
    order = [*batch, *rows, *columns]
    return Product(
        node,
        operands[0],
        operands[1],
        tuple(left.index(letter) for letter in (*batch, *rows, *summed)),
        tuple(right.index(letter) for letter in (*batch, *summed, *columns)),
        tuple(order.index(letter) for letter in result),
    )


# 3. What is known of nodes

_MOVES = ("cast", "copy", "reshape", "transpose", "permute", "expand", "getitem")


def _spec(node: Any) -> Spec | None:
    spec = node.meta.get("spec") if isinstance(node, fx.Node) else None
    return spec if isinstance(spec, Spec) else None


def _dtype(node: Any) -> torch.dtype | None:
    spec = _spec(node)
    return None if spec is None else spec.dtype


def _is_float(node: Any) -> bool:
    dtype = _dtype(node)
    return dtype is not None and dtype.is_floating_point


def _leading(node: fx.Node) -> tuple[Size, ...]:
    spec = _spec(node)
    assert spec is not None
    return spec.shape[:-2]


def _represents(node: fx.Node, number: float) -> bool:
    """Whether a number is finite in the dtype of a node, or -inf."""
    dtype = _dtype(node)
    return number == -math.inf or (dtype is not None and number >= torch.finfo(dtype).min)


def _keeps_shape(below: Any, node: fx.Node) -> bool:
    one, result = _spec(below), _spec(node)
    return one is not None and result is not None and one.shape == result.shape


def _only_user(node: fx.Node, user: fx.Node) -> bool:
    return list(node.users) == [user] and _reads(user, node) == 1


def _reads(user: fx.Node, node: fx.Node) -> int:
    """How often `user` reads `node`."""
    count = 0

    def note(each: fx.Node) -> fx.Node:
        nonlocal count
        count += each is node
        return each

    fx.node.map_arg((user.args, user.kwargs), note)
    return count
