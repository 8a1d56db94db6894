"""Shape rules of elementwise operators: unary, binary, comparisons, activations, backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.torch_version import TorchVersion

from flambeau_prims.held_numbers import refuse_overflow
from flambeau_prims.promotion import (
    Number,
    Operand,
    complex_dtype,
    dtype_name,
    float_result,
    is_integral,
    number_dtype,
    real_dtype,
    result_type,
)
from flambeau_prims.rules.overloads import check_writable, declare, overloads, written_to_self
from flambeau_prims.rules.registry import rule
from flambeau_prims.spec import Spec
from flambeau_prims.strides import (
    broadcast_shapes,
    elementwise_layout,
    is_empty,
    preserved_stride,
    same_shape,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten


# 1. One elementwise loop


def elementwise(
    operands: Sequence[Operand], dtype: torch.dtype, computed_in: torch.dtype | None = None
) -> Spec:
    """The result of one loop over these operands.

    `computed_in` is the dtype to which the loop casts its inputs, None if it does not: on CPU such
    a cast makes a packed temporary before the loop's order is chosen.
    """
    tensors = [operand for operand in operands if isinstance(operand, Spec)]
    device = common_device(tensors)
    layouts = []
    for spec in tensors:
        cast = computed_in is not None and spec.dtype != computed_in and device.type == "cpu"
        layouts.append((spec.shape, preserved_stride(spec) if cast else spec.stride))
    if len(tensors) < len(operands):
        layouts.append(((), ()))
    shape, stride = elementwise_layout(layouts)
    return Spec.of(shape, stride=stride, dtype=dtype, device=device)


def common_device(tensors: Sequence[Spec]) -> torch.device:
    """The device of the result; 0-dim CPU tensors may join any. Of numbers: the CPU."""
    device = tensors[0].device if tensors else torch.device("cpu")
    for spec in tensors:
        if spec.device != device:
            if device.type == "cpu" and all(not t.shape for t in tensors if t.device == device):
                device = spec.device
            elif not (spec.device.type == "cpu" and not spec.shape):
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least "
                    f"two devices, {device} and {spec.device}!"
                )
    return device


def not_implemented(what: str, dtype: torch.dtype) -> NotImplementedError:
    """The error of a kernel that has no code for a dtype."""
    return NotImplementedError(f"\"{what}\" not implemented for '{dtype_name(dtype)}'")


_REDUCED = (torch.float16, torch.bfloat16)
_NO_BOOLS = NotImplementedError if TorchVersion(torch.__version__) >= "2.14" else RuntimeError
"""What eager raises for a subtraction of bools."""


def refuse(name: str, dtype: torch.dtype, device: torch.device, kinds: str) -> None:
    """Raise if `dtype` is of a kind the operator has no kernel for.

    Kinds are letters: b bool, u uint8, i any integer, f float32 and float64, h half and bfloat16, H
    these on CPU only, c complex.
    """
    for kind in kinds:
        if _IS_OF_KIND[kind.lower()](dtype) and (kind != "H" or device.type == "cpu"):
            raise not_implemented(name, dtype)


_IS_OF_KIND: dict[str, Callable[[torch.dtype], bool]] = {
    "b": lambda dtype: dtype == torch.bool,
    "u": lambda dtype: dtype == torch.uint8,
    "i": lambda dtype: is_integral(dtype, include_bool=False),
    "f": lambda dtype: dtype in (torch.float32, torch.float64),
    "h": lambda dtype: dtype in _REDUCED,
    "c": lambda dtype: dtype.is_complex,
}


# 2. Unary operators


def _same_dtype(name: str, refused: str) -> Callable[..., Spec]:
    def same_dtype(self: Spec) -> Spec:
        refuse(name, self.dtype, self.device, refused)
        return elementwise([self], self.dtype)

    return same_dtype


def _float_math(name: str, refused: str) -> Callable[..., Spec]:
    def float_math(self: Spec) -> Spec:
        refuse(name, self.dtype, self.device, refused)
        dtype = float_result(self.dtype)
        return elementwise([self], dtype, dtype)

    return float_math


def _predicate(name: str, refused: str) -> Callable[..., Spec]:
    def predicate(self: Spec) -> Spec:
        refuse(name, self.dtype, self.device, refused)
        return elementwise([self], torch.bool)

    return predicate


def declare_each(
    make: Callable[[str, str], Callable[..., Spec]], table: dict[str, str], **options: bool
) -> None:
    """Declare the families of a table {refused kinds: names}."""
    for refused, names in table.items():
        for name in names.split():
            declare(name, make(name, refused), **options)


declare_each(
    _float_math,
    {
        "": "acos acosh asin asinh atan atanh cos cosh sin sinh tan tanh exp exp2 expm1 log "
        "log2 log10 log1p sqrt rsqrt"
        " reciprocal sigmoid sinc",
        "c": "erf erfc erfinv lgamma digamma logit i0 special_i0e "
        "special_i1 special_i1e"
        " special_entr",
        "cH": "special_erfcx special_log_ndtr special_ndtri",
    },
)
declare_each(
    _same_dtype,
    {
        "": "sgn _conj_physical",
        "b": "neg",
        "fhc": "bitwise_not",
        "c": "sign",
        "bc": "ceil floor round trunc relu",
        "bi": "silu",
        "bic": "frac gelu mish hardswish hardsigmoid elu celu softplus softshrink hardshrink "
        "leaky_relu",
    },
)
declare_each(_predicate, {"": "isnan", "c": "isposinf isneginf signbit"}, in_place=False)
declare_each(_predicate, {"": "logical_not"})


def isinf(self: Spec) -> Spec:
    """The absolute value compared with a number; of integers, a copy's layout."""
    if is_integral(self.dtype):
        return self.fresh(stride=preserved_stride(self), dtype=torch.bool)
    return elementwise([abs_(self), 0.0], torch.bool)


declare("isinf", isinf, in_place=False)


def nan_to_num(self: Spec) -> Spec:
    """A copy that is written to."""
    return self.fresh(stride=preserved_stride(self))


declare("nan_to_num", nan_to_num)


def mvlgamma(self: Spec) -> Spec:
    """Row-major: the sum of its terms."""
    refuse("mvlgamma", self.dtype, self.device, "c")
    return self.fresh(dtype=float_result(self.dtype))


declare("mvlgamma", mvlgamma)


def _angle(name: str) -> Callable[..., Spec]:
    def angle(self: Spec) -> Spec:
        """A product that is written to a copy."""
        refuse(name, self.dtype, self.device, "c")
        return self.fresh(dtype=float_result(self.dtype), stride=preserved_stride(self))

    return angle


for _name in ("deg2rad", "rad2deg"):
    declare(_name, _angle(_name))


@rule(aten.positive.default)
def positive(self: Spec) -> Spec:
    """self."""
    refuse("positive", self.dtype, self.device, "b")
    return self


def in_place_on_complex(self: Spec) -> Spec:
    """self; real numbers are left alone."""
    if self.dtype.is_complex:
        check_writable(self)
    return self


rule(*overloads("conj_physical_"))(in_place_on_complex)


@rule(aten.square.default, aten.zero.default)
def like_self(self: Spec) -> Spec:
    """A loop over self."""
    return elementwise([self], self.dtype)


@rule(aten.zero_.default)
def zero_(self: Spec) -> Spec:
    """self."""
    return self


@rule(*overloads("polygamma"))
def polygamma(self: Spec) -> Spec:
    """Takes its order first."""
    dtype = float_result(self.dtype)
    return elementwise([self], dtype, dtype)


@rule(aten.abs.default)
def abs_(self: Spec) -> Spec:
    """Complex numbers to their real dtype."""
    refuse("abs", self.dtype, self.device, "b")
    return elementwise([self], real_dtype(self.dtype))


@rule(aten.abs_.default)
def abs_in_place(self: Spec) -> Spec:
    """self, which must be real."""
    if self.dtype.is_complex:
        raise RuntimeError("In-place abs is not supported for complex tensors.")
    return written_to_self(abs_)(self)


@rule(aten.angle.default)
def angle(self: Spec) -> Spec:
    """Real and floating; row-major for complex numbers, as the result is copied out of one."""
    if self.dtype.is_complex:
        return self.fresh(dtype=real_dtype(self.dtype))
    return elementwise([self], float_result(self.dtype))


def hardtanh(self: Spec, min_val: Number = -1, max_val: Number = 1) -> Spec:
    """Like clamp with the dtype kept; an integer dtype must hold the limits."""
    refuse("hardtanh", self.dtype, self.device, "bc")
    if kind := _INTEGER_KINDS.get(self.dtype):
        limits = [_whole_limit(limit) for limit in (min_val, max_val)]
        if self.dtype is torch.uint8 and any(limit < 0 for limit in limits):
            raise RuntimeError("cannot do hardtanh on an unsigned type with negative limits")
        held = torch.iinfo(self.dtype)
        if not all(held.min <= limit <= held.max for limit in limits):
            raise RuntimeError(f"value cannot be converted to type {kind} without overflow")
    return self.fresh(stride=preserved_stride(self))


_INTEGER_KINDS = {
    torch.uint8: "uint8_t", torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int",
    torch.int64: "int64_t",
}  # fmt: skip
"""How error messages name integer dtypes."""


def _whole_limit(limit: Number) -> Any:
    """A limit as an int64, which cuts off the fraction."""
    if not isinstance(limit, float):
        return limit
    if not -(2.0**63) <= limit < 2.0**63:
        raise RuntimeError("value cannot be converted to type int64_t without overflow")
    return int(limit)


def threshold(self: Spec, threshold: Number, value: Number) -> Spec:
    """The dtype kept."""
    refuse("threshold", self.dtype, self.device, "bc")
    return elementwise([self], self.dtype)


declare("hardtanh", hardtanh)
declare("threshold", threshold)


@rule(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(self: Spec) -> tuple[Spec, Spec]:
    """The result, and a buffer that only CPU fills; row-major on CPU."""
    refuse("log_sigmoid", self.dtype, self.device, "bic")
    if self.device.type != "cpu":
        return elementwise([self], self.dtype), self.fresh((0,))
    out = self.fresh()
    return out, out


# 3. Binary operators


def _check_alpha(dtype: torch.dtype, alpha: Number) -> None:
    if isinstance(alpha, bool) and dtype != torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, complex) and not dtype.is_complex:
        raise RuntimeError(
            "For non-complex input tensors, argument alpha must not be a complex number."
        )
    if isinstance(alpha, float) and is_integral(dtype):
        raise RuntimeError(
            "For integral input tensors, argument alpha must not be a floating point number."
        )


def add(self: Operand, other: Operand, alpha: Number = 1) -> Spec:
    """self + alpha * other."""
    dtype = result_type((self, other))
    _check_alpha(dtype, alpha)
    return elementwise((self, other), dtype, dtype)


def refuse_bools(*dtypes: torch.dtype) -> None:
    """Raise eager's error where an operand of a subtraction is boolean."""
    bools = [dtype == torch.bool for dtype in dtypes]
    if all(bools):
        raise _NO_BOOLS(
            "Subtraction, the `-` operator, with two bool tensors is not supported. "
            "Use the `^` or `logical_xor()` operator instead."
        )
    if any(bools):
        raise _NO_BOOLS(
            "Subtraction, the `-` operator, with a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )


def sub(self: Operand, other: Operand, alpha: Number = 1) -> Spec:
    """self - alpha * other; refuses bools."""
    refuse_bools(*(_operand_dtype(operand) for operand in (self, other)))
    return add(self, other, alpha)


def _operand_dtype(operand: Operand) -> torch.dtype:
    return operand.dtype if isinstance(operand, Spec) else number_dtype(operand)


def true_math(self: Operand, other: Operand) -> Spec:
    """Binary, computed in floating point."""
    dtype = float_result(result_type((self, other)))
    return elementwise((self, other), dtype, dtype)


def div(self: Operand, other: Operand, *, rounding_mode: str | None = None) -> Spec:
    """True division, or with a rounding mode in the promoted dtype."""
    if rounding_mode is None:
        return true_math(self, other)
    if rounding_mode not in ("trunc", "floor"):
        raise RuntimeError(
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
            f"'{rounding_mode}'"
        )
    return _arithmetic(f"div_{rounding_mode}", "bc")(self, other)


def _arithmetic(name: str, refused: str) -> Callable[..., Spec]:
    def arithmetic(self: Operand, other: Operand) -> Spec:
        dtype = result_type((self, other))
        result = elementwise((self, other), dtype, dtype)
        refuse(name, dtype, result.device, refused)
        return result

    return arithmetic


def _bit_arithmetic(name: str, refused: str) -> Callable[..., Spec]:
    """Arithmetic whose kernels are named after the device."""
    kernel = next((stem for stem in ("lshift", "rshift") if stem in name), name)
    kernel = {"bitwise_left_shift": "lshift", "bitwise_right_shift": "rshift"}.get(name, kernel)

    def bit_arithmetic(self: Operand, other: Operand) -> Spec:
        dtype = result_type((self, other))
        result = elementwise((self, other), dtype, dtype)
        refuse(f"{kernel}_{result.device.type}", dtype, result.device, refused)
        return result

    return bit_arithmetic


def _true_arithmetic(name: str, refused: str) -> Callable[..., Spec]:
    def true_arithmetic(self: Operand, other: Operand) -> Spec:
        result = true_math(self, other)
        refuse(name, result.dtype, result.device, refused)
        return result

    return true_arithmetic


def _check_exponent(base: Operand, exponent: Operand) -> None:
    negative = isinstance(exponent, int) and not isinstance(exponent, bool) and exponent < 0
    if negative and is_integral(_operand_dtype(base)):
        raise RuntimeError("Integers to negative integer powers are not allowed.")


@rule(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar)
def pow_(self: Spec, exponent: Operand) -> Spec:
    """Integers to a negative integer power are an error."""
    _check_exponent(self, exponent)
    trivial = isinstance(exponent, int) and exponent in (0, 1)
    dtype = result_type((self, exponent))
    # A number is no operand of the loop, which matters to the strides of an empty result.
    operands = (self, exponent) if isinstance(exponent, Spec) else (self,)
    result = elementwise(operands, dtype, dtype)
    refuse("pow", dtype, result.device, "" if trivial else "b")
    return result


@rule(aten.pow_.Tensor, aten.pow_.Scalar)
def pow_in_place(self: Spec, exponent: Operand) -> Spec:
    """self."""
    return written_to_self(pow_)(self, exponent)


@rule(aten.pow.Scalar)
def pow_of_number(self: Number, exponent: Spec) -> Spec:
    """Row-major."""
    dtype = result_type((self, exponent))
    refuse("pow", dtype, exponent.device, "b")
    return exponent.fresh(dtype=dtype)


def comparison(self: Operand, other: Operand) -> Spec:
    """Binary, compared in the promoted dtype, to bool."""
    return elementwise((self, other), torch.bool, result_type((self, other)))


def ordering(self: Operand, other: Operand) -> Spec:
    """A comparison that complex numbers do not have."""
    dtype = result_type((self, other))
    if dtype.is_complex:
        raise not_implemented("compare", dtype)
    return elementwise((self, other), torch.bool, dtype)


declare("add", add)
declare("sub", sub)
declare("div", div)
declare_each(
    _arithmetic,
    {
        "": "mul",
        "c": "maximum minimum fmax fmin",
        "bc": "floor_divide remainder fmod",
        "bic": "hypot nextafter igamma igammac logaddexp2",
        "bi": "logaddexp",
    },
)
declare_each(
    _bit_arithmetic,
    {
        "fhc": "bitwise_and bitwise_or bitwise_xor",
        "bfhc": "bitwise_left_shift bitwise_right_shift gcd lcm __lshift__ __rshift__",
    },
)
declare_each(_true_arithmetic, {"c": "atan2 xlogy copysign special_xlog1py special_zeta"})
for _shift in ("__ilshift__", "__irshift__"):
    declare(_shift, written_to_self(_bit_arithmetic(_shift, "bfhc")), in_place=False)
declare("eq ne logical_and logical_or logical_xor", comparison)
declare("lt le gt ge", ordering)


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(self: Operand, other: Operand, alpha: Number = 1) -> Spec:
    """other - alpha * self."""
    return sub(other, self, alpha)


@rule(aten.max.other, aten.min.other)
def binary_extremum(self: Spec, other: Spec) -> Spec:
    """maximum and minimum under their old names."""
    return _arithmetic("maximum", "c")(self, other)


def heaviside(self: Spec, values: Spec) -> Spec:
    """Takes operands of one dtype."""
    if self.dtype != values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    refuse("heaviside", self.dtype, self.device, "c")
    return elementwise((self, values), self.dtype)


declare("heaviside", heaviside)


@rule(aten.complex.default, aten.polar.default)
def complex_(real: Spec, imag: Spec) -> Spec:
    """Two floating operands of one dtype make a complex result."""
    if real.dtype != imag.dtype or not real.dtype.is_floating_point:
        raise RuntimeError(
            f"Expected both inputs to be Half, Float or Double tensors but got "
            f"{dtype_name(real.dtype)} and {dtype_name(imag.dtype)}"
        )
    return elementwise((real, imag), complex_dtype(real.dtype))


# 4. Three operands and bounds


@rule(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(condition: Spec, self: Operand, other: Operand) -> Spec:
    """Both branches are cast beforehand, on every device."""
    if condition.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(
            f"where expected condition to be a boolean tensor, but got a tensor with dtype "
            f"{dtype_name(condition.dtype)}"
        )
    dtype = result_type((self, other))
    branches = [
        cast_copy(operand, dtype) if isinstance(operand, Spec) else operand
        for operand in (self, other)
    ]
    return elementwise([condition, *branches], dtype)


def cast_copy(spec: Spec, dtype: torch.dtype) -> Spec:
    """`tensor.to(dtype)`: itself, or a packed copy."""
    if spec.dtype == dtype:
        return spec
    return spec.fresh(stride=preserved_stride(spec), dtype=dtype)


def clamp(self: Spec, min: Operand | None = None, max: Operand | None = None) -> Spec:
    """Number bounds: a unary operator on self, cast before; tensor bounds: a promoting loop."""
    bounds = [bound for bound in (min, max) if bound is not None]
    if not bounds:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    dtype = result_type([self, *bounds])
    if dtype.is_complex:
        raise NotImplementedError("clamp is not supported for complex types")
    if any(isinstance(bound, Spec) for bound in bounds):
        return elementwise([self, *bounds], dtype, dtype)
    return elementwise([cast_copy(self, dtype)], dtype)


def clamp_one_bound(self: Spec, bound: Operand) -> Spec:
    """clamp_min and clamp_max."""
    if self.dtype == torch.bool and isinstance(bound, bool):
        raise not_implemented("clamp_min", self.dtype)
    return clamp(self, bound)


def clamp_in_place(self: Spec, *args: Any, **kwargs: Any) -> Spec:
    """Refuses whatever would change self's dtype."""
    bounds = [bound for bound in (*args, *kwargs.values()) if bound is not None]
    dtype = result_type([self, *bounds])
    if dtype != self.dtype and not self.dtype.is_complex:
        raise RuntimeError(
            f"result type {dtype_name(dtype)} can't be cast to the desired output "
            f"type {dtype_name(self.dtype)}"
        )
    return written_to_self(clamp)(self, *args, **kwargs)


declare("clamp", clamp, in_place=False)
declare("clamp_min clamp_max", clamp_one_bound, in_place=False)
rule(*overloads("clamp_"))(clamp_in_place)


@rule(*overloads("clamp_min_"), *overloads("clamp_max_"))
def clamp_one_bound_in_place(self: Spec, bound: Operand) -> Spec:
    """self."""
    clamp_one_bound(self, bound)
    return clamp_in_place(self, bound)


def addcmul(self: Spec, tensor1: Spec, tensor2: Spec, *, value: Number = 1) -> Spec:
    """self + value * tensor1 * tensor2."""
    operands = (self, tensor1, tensor2)
    dtype = result_type(operands)
    return elementwise(operands, dtype, dtype)


def addcdiv(self: Spec, tensor1: Spec, tensor2: Spec, *, value: Number = 1) -> Spec:
    """self + value * tensor1 / tensor2; integers by integers are refused."""
    if is_integral(tensor1.dtype) and is_integral(tensor2.dtype):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported; cast the operands of "
            "the division to a floating dtype."
        )
    return addcmul(self, tensor1, tensor2)


def lerp(self: Spec, end: Spec, weight: Operand) -> Spec:
    """Takes operands of one dtype, but for a 0-dim weight."""
    tensors = [operand for operand in (self, end, weight) if isinstance(operand, Spec)]
    for other in tensors[1:]:
        if other.dtype != self.dtype and (other is end or other.shape):
            raise RuntimeError(
                f"expected dtype {dtype_name(self.dtype)} for `end` but got dtype "
                f"{dtype_name(other.dtype)}"
            )
    dtype = result_type(tensors)
    return elementwise(tensors, dtype, dtype)


declare("addcmul", addcmul)
declare("addcdiv", addcdiv)
declare("lerp", lerp)


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(self: Spec, mask: Spec, value: Operand) -> Spec:
    """A row-major copy of self, expanded to the mask."""
    _check_mask(mask)
    if isinstance(value, Spec) and value.shape:
        raise RuntimeError(
            f"masked_fill only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s)."
        )
    _check_fill_value(self, value)
    return self.fresh(broadcast_shapes(mask.shape, self.shape))


@rule(aten.masked_fill_.Scalar, aten.masked_fill_.Tensor)
def masked_fill_(self: Spec, mask: Spec, value: Operand) -> Spec:
    """self."""
    _check_mask(mask)
    _check_fill_value(self, value)
    if not same_shape(broadcast_shapes(self.shape, mask.shape), self.shape):
        raise RuntimeError(
            f"The expanded size of the mask {list(mask.shape)} must match the tensor "
            f"{list(self.shape)}"
        )
    return self


def _check_mask(mask: Spec) -> None:
    if mask.dtype != torch.bool:
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )


def _check_fill_value(self: Spec, value: Operand) -> None:
    if isinstance(value, complex) and not self.dtype.is_complex:
        raise RuntimeError("value cannot be converted without overflow")


@rule(aten.fill.Scalar, aten.fill.Tensor)
def fill(self: Spec, value: Operand) -> Spec:
    """As empty_like; self's dtype must hold a number."""
    refuse_overflow(self, value)
    return self.replace(stride=preserved_stride(self), offset=0)


@rule(aten.fill_.Scalar, aten.fill_.Tensor)
def fill_(self: Spec, value: Operand) -> Spec:
    """self, filled with one value."""
    if isinstance(value, Spec) and value.shape:
        raise RuntimeError(
            f"fill_ only supports 0-dimension value tensor but got tensor with "
            f"{value.ndim} dimensions."
        )
    refuse_overflow(self, value)
    return self


# 5. Backwards of activations


def _promoted(*operands: Spec) -> Spec:
    dtype = result_type(operands)
    return elementwise(operands, dtype, dtype)


def gradient_first(grad_output: Spec, self: Spec, *_options: Any, **_named: Any) -> Spec:
    """A loop over the gradient and the saved tensor, in this order."""
    return _promoted(grad_output, self)


def saved_first(grad_output: Spec, self: Spec) -> Spec:
    """A loop over the saved tensor and the gradient, in this order."""
    return _promoted(self, grad_output)


declare(
    "sigmoid_backward tanh_backward gelu_backward silu_backward hardswish_backward "
    "hardsigmoid_backward hardtanh_backward hardshrink_backward softshrink_backward "
    "softplus_backward mish_backward logit_backward",
    gradient_first,
    in_place=False,
)
declare("threshold_backward leaky_relu_backward", saved_first, in_place=False)


@rule(aten.elu_backward.default)
def elu_backward(grad_output: Spec, self_or_result: Spec) -> Spec:
    """Gradient first."""
    return _promoted(grad_output, self_or_result)


@rule(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad_output: Spec, self: Spec, buffer: Spec) -> Spec:
    """Laid out as the gradient is ordered."""
    on_cpu = self.device.type == "cpu"
    return _promoted(self, buffer, grad_output) if on_cpu else _promoted(grad_output, self)


@rule(aten._prelu_kernel.default)
def prelu_kernel(self: Spec, weight: Spec) -> Spec:
    """A loop over self and the broadcast weight."""
    if self.dtype != weight.dtype:
        raise RuntimeError("prelu: Type promoting not supported.")
    return elementwise((self, weight), self.dtype)


@rule(aten._prelu_kernel_backward.default)
def prelu_kernel_backward(grad_output: Spec, self: Spec, weight: Spec) -> tuple[Spec, Spec]:
    """Gradients of self and, not yet reduced, of the weight."""
    result = elementwise((self, weight, grad_output), self.dtype)
    return result, result


def _glu_halves(self: Spec, dim: int) -> int:
    from_end = dim if dim < 0 else dim - self.ndim
    if not self.shape:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    if not -self.ndim <= from_end < 0:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-self.ndim}, "
            f"{self.ndim - 1}], but got {dim})"
        )
    if not same_shape((self.shape[from_end] % 2,), (0,)):
        raise RuntimeError(
            f"Halving dimension must be even, but dimension {from_end + self.ndim} is size "
            f"{self.shape[from_end]}"
        )
    return from_end


@rule(aten.glu.default)
def glu(self: Spec, dim: int = -1) -> Spec:
    """A loop over the two halves."""
    axis = _glu_halves(self, dim) + self.ndim
    half = self.shape[:axis] + (self.shape[axis] // 2,) + self.shape[axis + 1 :]
    return elementwise([self.fresh(half, self.stride)], self.dtype)


@rule(aten.glu_backward.default)
def glu_backward(self: Spec, dim: int) -> Spec:
    """Fresh and row-major, with self's shape."""
    _glu_halves(self, dim)
    return self.fresh()


# 6. Random and Bernoulli masks applied to values


@rule(aten.native_dropout.default)
def native_dropout(input: Spec, train: bool | None) -> tuple[Spec, Spec]:
    """The result, and the mask of what was kept."""
    result = input.fresh(stride=preserved_stride(input))
    if is_empty(input.shape):
        return input, result
    if train is not False and is_integral(input.dtype):
        raise RuntimeError(
            f"result type Float can't be cast to the desired output type {dtype_name(input.dtype)}"
        )
    return result, result.replace(dtype=torch.bool, stride=result.stride)


@rule(aten.native_dropout_backward.default)
def native_dropout_backward(grad_output: Spec, mask: Spec) -> Spec:
    """grad * mask * scale; of a float dtype, as scale is."""
    result = _promoted(grad_output, mask)
    return result.replace(dtype=torch.get_default_dtype()) if is_integral(result.dtype) else result
