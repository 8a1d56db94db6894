"""Shape rules of special functions that stay ATen calls: Bessel, polynomials, frexp, ldexp."""

from __future__ import annotations

import torch

from flambeau_prims.promotion import Operand, float_result, is_integral, result_type
from flambeau_prims.rules.overloads import overloads
from flambeau_prims.rules.pointwise import elementwise, not_implemented, refuse
from flambeau_prims.rules.registry import rule
from flambeau_prims.spec import Spec
from flambeau_prims.strides import preserved_stride

aten = torch.ops.aten

_OF_ONE_NUMBER = (
    "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 "
    "modified_bessel_k0 modified_bessel_k1"
    " scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0"
)
_POLYNOMIALS = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w"
)


@rule(*(op for name in _OF_ONE_NUMBER.split() for op in overloads(f"special_{name}")))
def special_function(x: Spec) -> Spec:
    """Computed in floating point, of at least single precision."""
    refuse("special function", x.dtype, x.device, "ch")
    dtype = float_result(x.dtype)
    return elementwise([x], dtype, dtype)


@rule(*(op for name in _POLYNOMIALS.split() for op in overloads(f"special_{name}")))
def polynomial(x: Operand, n: Operand) -> Spec:
    """At x, of degree n; computed in floating point, of at least single precision."""
    dtype = float_result(result_type((x, n)))
    result = elementwise((x, n), dtype, dtype)
    refuse("special polynomial", dtype, result.device, "ch")
    return result


@rule(aten.frexp.Tensor)
def frexp(self: Spec) -> tuple[Spec, Spec]:
    """The mantissa, and the exponent as int32."""
    if not self.dtype.is_floating_point:
        raise not_implemented("frexp", self.dtype)
    mantissa = self.fresh(stride=preserved_stride(self))
    return mantissa, mantissa.replace(dtype=torch.int32, stride=mantissa.stride)


@rule(aten.ldexp.Tensor)
def ldexp(self: Spec, other: Spec) -> Spec:
    """self * 2.0**other: a loop for floats and integers, these two operators else."""
    if self.dtype.is_floating_point and is_integral(other.dtype):
        refuse("ldexp_cpu_exp", other.dtype, other.device, "b")
        return elementwise((self, other), self.dtype)
    if self.dtype.is_complex and other.dtype is torch.float16:
        raise not_implemented("pow", torch.complex32)
    power_dtype = result_type((2.0, other))
    power = elementwise([other], power_dtype, power_dtype)
    dtype = result_type((self, power))
    return elementwise((self, power), dtype, dtype)
