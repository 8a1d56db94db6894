"""Shape rules of matrix products: mm, bmm, addmm, baddbmm, mv, dot and relatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.promotion import dtype_name
from flambeau_prims.rules.overloads import overloads
from flambeau_prims.rules.registry import rule
from flambeau_prims.sizes import ceil_div, eq
from flambeau_prims.spec import Spec, contiguous_stride
from flambeau_prims.strides import (
    broadcast_shapes,
    elementwise_layout,
    is_contiguous,
    same_shape,
    wrap_dim,
)

if TYPE_CHECKING:
    from flambeau_prims.spec import Size

aten = torch.ops.aten


def _check_dtypes(name: str, *operands: Spec) -> None:
    first = operands[0]
    for operand in operands[1:]:
        if operand.dtype != first.dtype:
            raise RuntimeError(
                f"{name}: expected tensors to have the same dtype, but got: "
                f"{dtype_name(first.dtype)} != {dtype_name(operand.dtype)}"
            )
        if operand.device != first.device:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two "
                f"devices, {first.device} and {operand.device}!"
            )


def _check_broadcasts(bias: Spec, shape: tuple[Size, ...]) -> None:
    if bias.ndim > len(shape) or not same_shape(broadcast_shapes(bias.shape, shape), shape):
        raise RuntimeError(
            f"The expanded size of the tensor {list(shape)} must match the existing size "
            f"{list(bias.shape)}"
        )


@rule(*overloads("mm"))
def mm(self: Spec, mat2: Spec, out_dtype: torch.dtype | None = None) -> Spec:
    """[m, k] x [k, n] -> [m, n], row-major."""
    if self.ndim != 2:
        raise RuntimeError("self must be a matrix")
    if mat2.ndim != 2:
        raise RuntimeError("mat2 must be a matrix")
    _check_dtypes("mm", self, mat2)
    if not eq(self.shape[1], mat2.shape[0]):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({self.shape[0]}x{self.shape[1]} "
            f"and {mat2.shape[0]}x{mat2.shape[1]})"
        )
    result = self.fresh((self.shape[0], mat2.shape[1]))
    return result if out_dtype is None else result.replace(dtype=out_dtype)


@rule(aten.addmm.default, aten._addmm_activation.default)
def addmm(self: Spec, mat1: Spec, mat2: Spec, **_factors: Any) -> Spec:
    """A bias broadcast onto mm."""
    for name, matrix in (("mat1", mat1), ("mat2", mat2)):
        if matrix.ndim != 2:
            raise RuntimeError(f"{name} must be a matrix, got {matrix.ndim}-D tensor")
    _check_dtypes("addmm", mat1, mat2, self)
    result = mm(mat1, mat2)
    _check_broadcasts(self, result.shape)
    return result


@rule(aten.addmm_.default)
def addmm_(self: Spec, mat1: Spec, mat2: Spec) -> Spec:
    """self, which must have the product's shape."""
    if not same_shape(self.shape, addmm(self, mat1, mat2).shape):
        raise RuntimeError(
            f"addmm_: self {list(self.shape)} does not have the shape of the product"
        )
    return self


@rule(*overloads("bmm"))
def bmm(self: Spec, mat2: Spec, out_dtype: torch.dtype | None = None) -> Spec:
    """[b, m, k] x [b, k, n] -> [b, m, n], row-major."""
    if self.ndim != 3 or mat2.ndim != 3:
        name = "batch1" if self.ndim != 3 else "batch2"
        raise RuntimeError(f"{name} must be a 3D tensor")
    _check_dtypes("bmm", self, mat2)
    if not (eq(self.shape[0], mat2.shape[0]) and eq(self.shape[2], mat2.shape[1])):
        raise RuntimeError(
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"{[self.shape[0], self.shape[2]]} but got: {[mat2.shape[0], mat2.shape[1]]}."
        )
    result = self.fresh((self.shape[0], self.shape[1], mat2.shape[2]))
    return result if out_dtype is None else result.replace(dtype=out_dtype)


@rule(aten.baddbmm.default)
def baddbmm(self: Spec, batch1: Spec, batch2: Spec, **_factors: Any) -> Spec:
    """A bias broadcast onto bmm."""
    for batch in (batch1, batch2):
        wrap_dim(2, batch.ndim)
    _check_dtypes("baddbmm", batch1, batch2, self)
    result = bmm(batch1, batch2)
    _check_broadcasts(self, result.shape)
    return result


@rule(aten.baddbmm_.default)
def baddbmm_(self: Spec, batch1: Spec, batch2: Spec) -> Spec:
    """self, which must have the product's shape."""
    if not same_shape(self.shape, baddbmm(self, batch1, batch2).shape):
        raise RuntimeError(
            f"baddbmm_: self {list(self.shape)} does not have the shape of the product"
        )
    return self


@rule(aten.addbmm.default)
def addbmm(self: Spec, batch1: Spec, batch2: Spec) -> Spec:
    """The products of a batch summed, plus a bias."""
    product = bmm(batch1, batch2)
    result = self.fresh((product.shape[1], product.shape[2]))
    _check_broadcasts(self, result.shape)
    return result


@rule(aten.mv.default)
def mv(self: Spec, vec: Spec) -> Spec:
    """[m, k] x [k] -> [m]."""
    if self.ndim != 2 or vec.ndim != 1:
        raise RuntimeError(f"vector + matrix @ vector expected, got 1, {self.ndim}, {vec.ndim}")
    _check_dtypes("mv", self, vec)
    if not eq(self.shape[1], vec.shape[0]):
        raise RuntimeError(
            f"size mismatch, got input ({self.shape[0]}), mat "
            f"({self.shape[0]}x{self.shape[1]}), vec ({vec.shape[0]})"
        )
    return self.fresh((self.shape[0],))


@rule(aten.addmv.default)
def addmv(self: Spec, mat: Spec, vec: Spec) -> Spec:
    """A bias broadcast onto mv."""
    result = mv(mat, vec)
    _check_broadcasts(self, result.shape)
    return result


@rule(aten.dot.default, aten.vdot.default)
def dot(self: Spec, tensor: Spec) -> Spec:
    """[k] x [k] -> []."""
    if self.ndim != 1 or tensor.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {self.ndim}D and {tensor.ndim}D tensors")
    if self.dtype != tensor.dtype:
        raise RuntimeError(
            f"dot : expected both vectors to have same dtype, but found "
            f"{dtype_name(self.dtype)} and {dtype_name(tensor.dtype)}"
        )
    if not eq(self.shape[0], tensor.shape[0]):
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor [{self.shape[0]}] and src "
            f"[{tensor.shape[0]}] to have the same number of elements, but got different sizes"
        )
    return self.fresh(())


@rule(aten.addr.default)
def addr(self: Spec, vec1: Spec, vec2: Spec) -> Spec:
    """A bias broadcast onto an outer product."""
    if vec1.ndim != 1 or vec2.ndim != 1:
        raise RuntimeError(f"addr: Expected 1-D arguments, but got {vec1.ndim}-D and {vec2.ndim}-D")
    shape = (vec1.shape[0], vec2.shape[0])
    _check_broadcasts(self, shape)
    column = ((vec1.shape[0], 1), (vec1.stride[0], 1))
    layouts = [(self.shape, self.stride), column, (vec2.shape, vec2.stride)]
    stride = elementwise_layout(layouts)[1]  # it is one elementwise loop
    return self.fresh(shape, stride)


@rule(aten.linear.default)
def linear(input: Spec, weight: Spec) -> Spec:
    """[..., k] x [n, k] -> [..., n], row-major."""
    _check_dtypes("linear", input, weight)
    if not eq(input.shape[-1], weight.shape[-1]):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({list(input.shape)} and "
            f"{list(weight.shape)} transposed)"
        )
    return input.fresh((*input.shape[:-1], *weight.shape[:-1]))


@rule(aten._trilinear.default)
def trilinear(
    i1: Spec, i2: Spec, i3: Spec, expand1: Any, expand2: Any, expand3: Any, sumdim: Any
) -> Spec:
    """A product of three tensors, expanded and summed."""
    shapes = []
    ndim = i1.ndim + len(expand1)
    for spec, expanded in ((i1, expand1), (i2, expand2), (i3, expand3)):
        sizes = iter(spec.shape)
        shapes.append(tuple(1 if d in expanded else next(sizes) for d in range(ndim)))
    full = broadcast_shapes(*shapes)
    return i1.fresh((*(size for d, size in enumerate(full) if d not in sumdim),))


# Grouped, scaled and integer products


@rule(aten._int_mm.default)
def int_mm(self: Spec, mat2: Spec) -> Spec:
    """int8 matrices, int32 product; on a CPU the first may be uint8."""
    if self.dtype is torch.uint8 and self.device.type == "cpu":
        self = self.replace(dtype=torch.int8)
    return mm(self, mat2).replace(dtype=torch.int32)


@rule(aten._weight_int8pack_mm.default)
def weight_int8pack_mm(self: Spec, mat2: Spec, scales: Spec) -> Spec:
    """[m, k] x int8 [n, k] transposed, times [n] -> [m, n]; the kernel believes its sizes."""
    _check_weight_product("_weight_int8pack_mm", self, mat2, torch.int8)
    if not eq(self.stride[1], 1) and not eq(self.shape[1], 1):
        raise RuntimeError("_weight_int8pack_mm : A must be contiguous on the last dimension.")
    if scales.dtype is not self.dtype:
        raise RuntimeError(f"expected scalar type {self.dtype} but found {scales.dtype}")
    if not eq(self.shape[1], mat2.shape[1]):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({list(self.shape)} and "
            f"{list(mat2.shape)} transposed)"
        )
    if scales.ndim != 1 or not eq(scales.shape[0], mat2.shape[0]):
        raise RuntimeError(f"expect scales to be 1d tensor with size {mat2.shape[0]}")
    return self.fresh((self.shape[0], mat2.shape[0]))


@rule(aten._weight_int4pack_mm_for_cpu.default)
def weight_int4pack_mm_for_cpu(
    self: Spec, mat2: Spec, qGroupSize: int, qScaleAndZeros: Spec
) -> Spec:
    """[m, k] x a weight in the CPU's own order, two numbers a byte: [n, k / 2] -> [m, n]."""
    _check_weight_product("_weight_int4pack_mm_for_cpu", self, mat2, torch.uint8)
    if not is_contiguous(self):
        raise RuntimeError("_weight_int4pack_mm_for_cpu : expect A to be contiguous.")
    if qGroupSize not in (32, 64, 128, 256):
        raise RuntimeError(f"expect qGroupSize to be 32, 64, 128 or 256, got {qGroupSize}")
    groups = qScaleAndZeros
    if groups.ndim != 3 or not eq(groups.shape[1], mat2.shape[0]) or not eq(groups.shape[2], 2):
        raise RuntimeError(
            f"expect qScaleAndZeros to be 3d tensor with sizes [:, {mat2.shape[0]}, 2]"
        )
    return self.fresh((self.shape[0], mat2.shape[0]))


def _check_weight_product(name: str, self: Spec, mat2: Spec, dtype: torch.dtype) -> None:
    if self.ndim != 2 or mat2.ndim != 2:
        raise RuntimeError(f"{name} : expect A and B to be 2d tensors")
    if self.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise RuntimeError(f"{name} : expect A to be either 32-bit or 16-bit float tensor.")
    if mat2.dtype is not dtype:
        raise RuntimeError(f"{name} : expect B to be {str(dtype).partition('.')[2]} tensor.")
    if not is_contiguous(mat2):
        raise RuntimeError(f"{name} : expect B to be contiguous.")


@rule(aten._scaled_mm.default, aten._scaled_mm_v2.default)
def scaled_mm(self: Spec, mat2: Spec, out_dtype: torch.dtype | None) -> Spec:
    """mm of float8 matrices with scales."""
    if self.ndim != 2 or mat2.ndim != 2 or not eq(self.shape[1], mat2.shape[0]):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({list(self.shape)} and {list(mat2.shape)})"
        )
    return self.fresh((self.shape[0], mat2.shape[1])).replace(dtype=out_dtype or self.dtype)


@rule(aten._grouped_mm.default)
def grouped_mm(self: Spec, mat2: Spec, offs: Spec | None, out_dtype: torch.dtype | None) -> Spec:
    """Products of groups, cut by `offs` from 2d operands or stacked; rows padded to 16 bytes."""
    if not {self.ndim, mat2.ndim} <= {2, 3}:
        raise RuntimeError(
            f"Multiplicands must be 2D or 3D but got mat_a.dim()={self.ndim} and "
            f"mat_b.dim()={mat2.ndim}"
        )
    if (offs is None) != (self.ndim == 3 and mat2.ndim == 3):
        raise RuntimeError("offs is given exactly if one of the multiplicands is 2D")
    _check_groups(self, mat2, offs)
    rows, columns = self.shape[-2], mat2.shape[-1]
    if self.ndim == mat2.ndim:
        group: tuple[Size, ...] = (self.shape[0],) if offs is None else (offs.shape[0],)
    else:
        group = ()
    dtype = out_dtype or self.dtype
    aligned = 16 // dtype.itemsize
    stored = (*group, rows, ceil_div(columns, aligned) * aligned)
    return self.fresh((*group, rows, columns), contiguous_stride(stored), dtype=dtype)


def _check_groups(self: Spec, mat2: Spec, offs: Spec | None) -> None:
    """Raise what eager raises for groups that do not fit. The inner axis of two 2d operands is the
    concern of each product.
    """
    stacked = [each for each in (self, mat2) if each.ndim == 3]
    if stacked and not eq(self.shape[-1], mat2.shape[-2]):
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    if len(stacked) == 2 and not eq(self.shape[0], mat2.shape[0]):
        raise RuntimeError("batched dimension has to match")
    if offs is None:
        return
    if offs.ndim != 1:
        raise RuntimeError("offs has to be 1D")
    if offs.dtype is not torch.int32:
        raise RuntimeError("Offsets have to be int32")
    if stacked and not eq(offs.shape[0], stacked[0].shape[0]):
        raise RuntimeError("matrix batch sizes have to match")


@rule(aten._scaled_grouped_mm.default, aten._scaled_grouped_mm_v2.default)
def scaled_grouped_mm(
    self: Spec, mat2: Spec, offs: Spec | None, out_dtype: torch.dtype | None
) -> Spec:
    """grouped_mm of float8 matrices with scales."""
    return grouped_mm(self, mat2, offs, out_dtype or torch.bfloat16)
