"""What calls of products with scales or groups multiply.

aten._scaled_mm.default(x, w, a, b, bias)   ->  x @ w * a * b + bias, of float8 matrices
aten._grouped_mm.default(x, w, offs)        ->  rows of x up to offs[g], times w[g]
aten._scaled_grouped_mm.default(...)        ->  both
aten._weight_int8pack_mm.default(x, q, a)   ->  x @ q.t() * a, of floats and int8, on a CPU
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.lowering.product import Product
from flambeau_inductor.nodes import TensorRef

if TYPE_CHECKING:
    from flambeau_inductor.nodes import ExternCall

_V1 = ("self", "mat2", "scale_a", "scale_b")
_V2 = (
    "self", "mat2", "scale_a", "recipe_a", "swizzle_a", "scale_b", "recipe_b", "swizzle_b",
)  # fmt: skip
ARGUMENTS = {
    "aten._scaled_mm.default": (*_V1, "bias", "scale_result", "out_dtype", "use_fast_accum"),
    "aten._scaled_mm_v2.default": (*_V2, "bias", "out_dtype", "contraction_dim", "use_fast_accum"),
    "aten._grouped_mm.default": ("self", "mat2", "offs", "bias", "out_dtype"),
    "aten._scaled_grouped_mm.default": (
        *_V1, "offs", "bias", "scale_result", "out_dtype", "use_fast_accum",
    ),
    "aten._scaled_grouped_mm_v2.default": (
        *_V2, "offs", "bias", "out_dtype", "contraction_dim", "use_fast_accum",
    ),
}  # fmt: skip
"""The names of the operators' arguments, in order."""

RECIPES = ([0], [1])
"""Of `torch.nn.functional.ScalingType`: a scale for the tensor, or for each row."""


INT8_WEIGHTS = "aten._weight_int8pack_mm.default"


def product_with_int8_weights(call: ExternCall) -> Product | None:
    """The product, on a CPU."""
    left, stored, scale = call.args
    if call.device != "cpu":
        return None
    spec = stored.spec
    right = TensorRef(stored.buffer, spec.replace(shape=spec.shape[::-1], stride=spec.stride[::-1]))
    return Product("weight_int8pack_mm", left, right, None, (-1, -2), scales=(scale,))


def product_with_scales_or_groups(call: ExternCall) -> Product | None:
    """The product; None for scales of blocks, for float8 results, and where columns or the inner
    axis are cut into groups.
    """
    given = dict(zip(ARGUMENTS[call.op], call.args, strict=False)) | call.kwargs
    left, right, bounds = given["self"], given["mat2"], given.get("offs")
    dims = len(left.spec.shape), len(right.spec.shape)
    scales: list[TensorRef] | None = []
    if "scale_a" in given:
        scales = _scales(given, bounds is not None)
    if scales is None or given.get("scale_result") is not None or given.get("contraction_dim"):
        return None
    default = torch.bfloat16 if scales and "_grouped" in call.op else left.spec.dtype
    if (given.get("out_dtype") or default).itemsize == 1:
        return None
    if not scales and given.get("out_dtype") not in (None, left.spec.dtype):
        return None
    added = given.get("bias")
    if "_grouped" not in call.op:
        allowed = dims == (2, 2)
    elif bounds is None:
        allowed = dims == (3, 3) and added is None and not scales
    else:
        allowed = dims == (2, 3) and added is None and _cuts_rows(bounds, right)
    if not allowed:
        return None
    name = call.op.split(".")[1].lstrip("_").removesuffix("_v2")
    rough = bool(given.get("use_fast_accum"))
    return Product(
        name, left, right, added, (-1, -2), scales=tuple(scales), rough=rough, bounds=bounds
    )


def _cuts_rows(bounds: TensorRef, right: TensorRef) -> bool:
    known = isinstance(right.spec.shape[0], int) and isinstance(bounds.spec.shape[0], int)
    return known and bounds.spec.dtype is torch.int32 and bounds.spec.stride == (1,)


def _scales(given: dict[str, Any], grouped: bool) -> list[TensorRef] | None:
    """The scales of both factors; None if they are of blocks."""
    left, right = given["self"].spec.shape, given["mat2"].spec.shape
    spread = [(left[0],), (right[0], right[-1])] if grouped else [(left[0], 1), (1, right[-1])]
    scales = []
    for side, shape in zip("ab", spread, strict=True):
        scale = given[f"scale_{side}"]
        if isinstance(scale, (list, tuple)):
            if len(scale) != 1 or list(given[f"recipe_{side}"]) not in RECIPES:
                return None
            (scale,) = scale
        if scale.spec.dtype is not torch.float32:
            return None
        one = all(size == 1 for size in scale.spec.shape)
        if scale.spec.shape != shape and (grouped or not one):
            return None
        if given.get(f"swizzle_{side}") not in (None, [], [0], (), (0,)):
            return None
        scales.append(scale)
    return scales
