"""Masks of attention that a program writes out: several steps on scores as one mask.

    s = s + bias; s = s.masked_fill(padding, -inf)   ->   torch.where(padding, -inf, bias)

Computed on fake tensors while a program is traced (`combined`), and on real ones where the masks
depend on no input, to know which keys are seen (`seen_keys`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_autograd.torch_calls import call_of
from flambeau_prims.sizes_node import to_symint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from flambeau_autograd.constant_calls import ConstantCalls
    from flambeau_prims.spec import Size

Leading: TypeAlias = "tuple[Size, ...]"

ABSORBING = -1e25
"""In float32 and bfloat16, any score plus such a number is this number."""
LEAST_FILL = -6e4
"""Finite numbers up to this one, in place of a score, give a weight of 0 beside any score."""


class Refused(Exception):
    """No kernel computes the same, or none that is faster."""


class Seen(Enum):
    """Which keys the queries see; SOME: each at least one."""

    UNKNOWN = "unknown"
    ALL = "all"
    CAUSAL = "causal"
    SOME = "some"


@dataclass(frozen=True, slots=True)
class Mask:
    """A step on scores: adds `tensor`, or fills where `tensor` is True (False, if `negated`).

    `leading` is the shape of the scores there, without rows and columns.
    """

    tensor: fx.Node
    leading: tuple[Size, ...]
    fill: float | None = None
    negated: bool = False
    adds: bool = False
    """Whether `tensor` is added, whose elements are 0 or `fill` (before `factor`): gradients flow
    through filled scores.
    """
    factor: float = 1.0
    has_infinities: bool = True
    """Whether -inf may be among what is added."""


# 1. One mask of several


def combined(
    masks: Sequence[Mask],
    tensors: Sequence[Any],
    regrouped: Regrouped,
    dtype: torch.dtype,
    *,
    each_sees: bool = False,
    trains: bool = False,
) -> tuple[Any, Any, Any]:
    """One mask, to be added or, if it is boolean, True where a key is seen; the queries that weigh
    all keys alike, since each of their scores is one great negative number; those that see none.

    If `each_sees`, each query is known to see a key: the others then have no weight, whatever
    their scores are. If the program `trains`, a number that is added lets gradients through to
    scores that it absorbs, which no kernel does.
    """
    fills = {mask.fill for mask in masks if mask.fill is not None}
    finite = not each_sees and any(math.isfinite(fill) for fill in fills)
    adding = sum(mask.adds and mask.fill != -math.inf for mask in masks)
    filling = sum(mask.fill is not None for mask in masks)
    if finite and (len(fills) > 1 or (adding and (trains or filling > 1))):
        raise Refused
    least = max(min(fills), torch.finfo(dtype).min) if finite else -math.inf
    bias: Any = None
    hidden: Any = None
    for mask, tensor in zip(masks, tensors, strict=True):
        placed = regrouped.placed(tensor, mask.leading)
        if mask.fill is not None:
            if mask.adds:
                placed = placed < 0
            elif mask.negated:
                placed = ~placed
            hidden = placed if hidden is None else hidden | placed
            continue
        if trains or torch.promote_types(placed.dtype, dtype) is not dtype:
            raise Refused  # or the mask would be rounded
        if finite and (max(fills) > ABSORBING or dtype is torch.float16):
            raise Refused
        added = placed.to(dtype)
        added = added if mask.factor == 1 else added * mask.factor
        if hidden is not None:
            bias = _hide(bias, hidden, least, dtype)
            hidden = None
        bias = added if bias is None else bias + added
    if each_sees:
        return (~hidden if bias is None else _hide(bias, hidden, least, dtype)), None, None
    if bias is None:
        assert hidden is not None
        none = hidden.all(-1, keepdim=True)
        return (~hidden | none, none, None) if finite else (~hidden, None, none)
    bias = _hide(bias, hidden, least, dtype)
    most = bias.amax(-1, keepdim=True)
    blind = None
    if finite or torch.finfo(dtype).min <= ABSORBING:
        # Of several great numbers, the keys with the greatest are weighed.
        blind = (most <= ABSORBING) & (most > -math.inf)
        bias = torch.where(blind, bias - most, bias)
    # Two numbers near the least one add up to -inf.
    added_masks = [mask for mask in masks if mask.fill is None]
    may_be_empty = -math.inf in fills or len(added_masks) > 1 or added_masks[0].has_infinities
    return bias, blind, most == -math.inf if may_be_empty else None


def _hide(bias: Any, hidden: Any, least: float, dtype: torch.dtype) -> Any:
    if hidden is None:
        return bias
    if bias is None:
        bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return bias.masked_fill(hidden, least)


# 2. What is known of a mask


def seen_keys(
    masks: Sequence[Mask],
    stages: Sequence[Leading],
    square: tuple[Size, Size],
    dtype: torch.dtype,
    constants: ConstantCalls,
) -> Seen:
    """What the queries see, if no mask depends on inputs; `square`: the numbers of rows and columns
    of scores.
    """
    if not masks:
        return Seen.ALL
    known = [constants.value(mask.tensor) for mask in masks]
    if any(each is None for each in known):
        return Seen.UNKNOWN
    try:
        tensors = [each[0] for each in known if each is not None]
        mask, _, _ = combined(masks, tensors, Regrouped(stages), dtype, each_sees=True)
    except Refused:
        return Seen.UNKNOWN
    seen = mask if mask.dtype is torch.bool else mask == 0
    if mask.dtype is not torch.bool and not bool((seen | (mask <= ABSORBING)).all()):
        return Seen.UNKNOWN
    if bool(seen.all()):
        return Seen.ALL
    if not bool(seen.any(-1).all()):
        return Seen.UNKNOWN
    rows, columns = square
    if isinstance(rows, int) and rows == columns and seen.shape[-2:] == square:
        if bool((seen == torch.ones(rows, rows, dtype=torch.bool).tril()).all()):
            return Seen.CAUSAL
    return Seen.SOME


def never_infinite(tensor: Any, constants: ConstantCalls) -> bool:
    """Whether what is added holds no -inf."""
    while call_of(tensor) is not None and tensor not in constants.written:
        known = constants.value(tensor)
        if known is not None:
            return not bool((known[0] == -math.inf).any())
        call = call_of(tensor)
        if call is None:
            return False
        if call.name in ("reshape", "transpose", "permute", "copy", "expand", "getitem"):
            tensor = call.args["input"]
        elif call.name == "where":
            parts = [call.args.get("input"), call.args.get("other")]
            return all(_is_finite(part, constants) for part in parts)
        else:
            return False
    return False


def _is_finite(part: Any, constants: ConstantCalls) -> bool:
    known = constants.value(part)
    if known is None:
        return False
    value = known[0]
    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all())
    return isinstance(value, (int, float)) and math.isfinite(value)


# 3. Leading dims


class Regrouped:
    """Leading dims that views regroup: the finest ones of all stages, and how these become a batch
    and heads.
    """

    def __init__(self, stages: Sequence[Leading]) -> None:
        self.dims = _finest(stages)
        self.batch = max(len(self.dims) - 1, 0)
        """How many of the dims are the batch's."""

    def placed(self, tensor: Any, leading: Leading) -> Any:
        """A tensor that broadcasts to `leading`, rows and columns, with the dims of all stages."""
        tensor = tensor.reshape((*(1,) * (len(leading) + 2 - tensor.ndim), *tensor.shape))
        if leading == self.dims:
            return tensor
        shape: list[Any] = []
        dims = list(self.dims)
        for size, own in zip(leading, tensor.shape[:-2], strict=True):
            total: Size = 1
            while total != size:
                part = dims.pop(0)
                total *= part
                shape.append(part if own != 1 else 1)
        return tensor.reshape((*shape, *tensor.shape[-2:]))

    def choose_split(self, mask: Any) -> None:
        """Choose which dims are the batch's: those by which no mask is repeated."""
        if mask is None:
            return
        for batch in range(len(self.dims) - 1, 0, -1):
            parts = self.parts(mask, batch)
            if all(_is_even(part) for part in parts):
                self.batch = batch
                return

    def parts(self, tensor: Any, batch: int) -> list[list[tuple[Any, Any]]]:
        """The sizes of a placed tensor beside those of all, for the batch and for heads."""
        pairs = list(zip(tensor.shape, map(to_symint, self.dims), strict=False))
        return [pairs[:batch], pairs[batch:]]

    def joined(self, tensor: Any) -> Any:
        """A placed tensor as [batch or 1, heads or 1, rows, columns]."""
        shape: list[Any] = []
        sizes = list(tensor.shape[:-2])
        for at, part in enumerate(self.parts(tensor, self.batch)):
            even = _is_even(part)
            size = math.prod(own if even else whole for own, whole in part)
            shape.append(size)
            if not even:
                where = slice(0, self.batch) if at == 0 else slice(self.batch, None)
                sizes[where] = [whole for _, whole in part]
        if len(sizes) == 2 == len(self.dims) and self.batch == 1:
            return tensor
        return tensor.expand(*sizes, *tensor.shape[-2:]).reshape((*shape, *tensor.shape[-2:]))

    def heads(self, tensor: Any, leading: Leading) -> Any:
        """An operand of a stage with these leading dims, as [batch, heads, length, width]."""
        joined = self.joined(self.placed(tensor, leading))
        sizes = [to_symint(size) for size in self.dims]
        batch, heads = math.prod(sizes[: self.batch]), math.prod(sizes[self.batch :])
        return joined.expand(batch, heads, *joined.shape[-2:])


def _is_even(part: list[tuple[Any, Any]]) -> bool:
    """Whether a tensor has all of some dims, or repeats along all."""
    return all(own == whole for own, whole in part) or all(own == 1 for own, _ in part)


def _finest(stages: Sequence[Leading]) -> Leading:
    """The leading dims that those of all stages are products of."""
    if all(stage == stages[0] for stage in stages):
        return stages[0]
    ends: set[int] = set()
    totals = set()
    for stage in stages:
        if not all(isinstance(size, int) and size > 0 for size in stage):
            raise Refused
        products = [math.prod(stage[: at + 1]) for at in range(len(stage))]  # type: ignore[arg-type]
        ends.update(product for product in products if product != 1)  # type: ignore[misc]
        totals.add(math.prod(stage))  # type: ignore[arg-type]
    if len(totals) != 1:
        raise Refused
    result: list[Size] = []
    start = 1
    for end in sorted(ends):
        if end % start:
            raise Refused
        result.append(end // start)
        start = end
    return tuple(result)
