"""Programs of pointwise operators: every dtype, broadcasting, promotion, special values,
conversions.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tests.programs.draw import (
    bools,
    channels_last,
    grad,
    ints,
    rand,
    special,
    strided,
    transposed,
    uniform,
)
from tests.programs.program import Program, program

# fmt: off
# A line a program.
PROGRAMS: dict[str, Program] = {}
add = program(PROGRAMS)

# Grouped, since a compile costs more than the kernel: outputs tell which operator is wrong.
add(
    "smooth",
    lambda x: (
        x.sin(), x.cos(), x.tanh(), x.sigmoid(), x.exp(), x.erf(), x.atan(), x.asinh(), x.square(),
        x.neg(),
    ),
    lambda: (grad(7, 13),),
)
add(
    "smooth_double",
    lambda x: (x.double().sin(), x.double().exp(), x.double().erf(), x.double().tanh()),
    lambda: (grad(7, 13),),
)
add(
    "positive",
    lambda x: (
        x.log(), x.log2(), x.log10(), x.log1p(), x.sqrt(), x.rsqrt(), x.reciprocal(), x.lgamma(),
        x.digamma(), x.pow(1.7),
    ),
    lambda: (uniform(5, 17),),
)
add(
    "unit",
    lambda x: (x.asin(), x.acos(), x.atanh(), x.erfinv(), x.logit(), x.expm1()),
    lambda: (uniform(31, low=0.05, high=0.9),),
)
add(
    "hyperbolic",
    lambda x: (
        x.sinh(), x.cosh(), x.tan(), x.exp2(), torch.special.expit(x), torch.special.log_ndtr(x),
        torch.special.entr(x.abs()), x.sinc(),
    ),
    lambda: (grad(19),),
)
add(
    "rounding",
    lambda x: (
        x.floor(), x.ceil(), x.round(), x.trunc(), x.frac(), x.sign(), x.round(decimals=2),
        x.sgn(), torch.signbit(x),
    ),
    lambda: (grad(6, 11),),
)
add(
    "special_values",
    lambda x: (
        x.floor(), x.round(), x.sign(), x.abs(), x.relu(), x.exp(), x.tanh(), x.sigmoid(),
        x.isnan(), x.isinf(), x.isfinite(), x.nan_to_num(), x + 1, x * 0,
    ),
    lambda: (special(),),
    backward=False,
)
add(
    "special_activations",
    lambda x: (
        F.silu(x), F.softplus(x), F.elu(x), F.leaky_relu(x), F.hardtanh(x), F.hardswish(x),
        F.mish(x), F.logsigmoid(x), F.relu6(x), F.selu(x), F.softsign(x),
    ),
    lambda: (special(),),
    backward=False,
)
add(
    "gradients_of_logit_at_nan",
    lambda x: (x.logit(), x.logit(0.1)),
    lambda: (torch.tensor([float("nan"), 0.5, -1.0, 2.0, 0.05, float("nan")], requires_grad=True),),
)
add(
    "special_pairs",
    lambda x, y: (
        torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y), x == y,
        x < y, x >= y, x != y, x.atan2(y), torch.hypot(x, y), torch.copysign(x, y),
        torch.xlogy(x, y),
    ),
    lambda: (special()[:, None], special()),
    backward=False,
)
add(
    "special_division",
    lambda x, y: (
        x / y, torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc"),
        x.pow(y),
    ),
    lambda: (special()[:, None], special()),
    backward=False,
)
# Eager's vectorised fmod is NaN where the quotient overflows; ours is not.
add(
    "special_remainder",
    lambda x, y: (torch.remainder(x, y), torch.fmod(x, y)),
    lambda: (special()[:, None], special()[[0, 1, 2, 3, 4, 9, 10, 11, 12, 13, 14]] * 1e30),
    backward=False,
)
add(
    "special_clamp",
    lambda x: (
        x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0), x.clamp(float("nan")), x.clamp(2, -2),
    ),
    lambda: (special(),),
    backward=False,
)
add(
    "activations",
    lambda x: (
        F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.softplus(x, beta=2, threshold=1),
        F.elu(x, alpha=0.7), F.leaky_relu(x, 0.2), F.mish(x), F.logsigmoid(x), F.selu(x),
        F.celu(x, 0.5),
    ),
    lambda: (grad(9, 15),),
)
add(
    "kinked_activations",
    lambda x: (
        F.relu(x), F.hardtanh(x, -0.5, 0.3), F.hardswish(x), F.hardsigmoid(x), F.relu6(x * 5),
        F.softshrink(x), F.hardshrink(x), F.threshold(x, 0.1, 7.0), F.tanhshrink(x), F.softsign(x),
    ),
    lambda: (grad(9, 15),),
)
add(
    "prelu_glu",
    lambda x, w: (F.prelu(x, w), F.glu(x, 1), F.rrelu(x, training=False)),
    lambda: (grad(4, 6, 5), grad(6)),
)
add(
    "arithmetic",
    lambda x, y: (
        x + y, x - y, x * y, x / y, 2 - x, 3 / x, x**2, x**3, x**-1, 2**x,
        torch.add(x, y, alpha=0.3), torch.rsub(x, y, alpha=2),
    ),
    lambda: (grad(3, 1, 7), grad(5, 1)),
)
add(
    "binary_math",
    lambda x, y: (
        torch.atan2(x, y), torch.hypot(x, y), torch.logaddexp(x, y), torch.logaddexp2(x, y),
        torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.dist(x, y),
        torch.lerp(x, y, 0.3), torch.lerp(x, y, x),
    ),
    lambda: (grad(4, 9), grad(4, 9)),
)
add(
    "addcmul",
    lambda x, y, z: (
        torch.addcmul(x, y, z, value=0.5), torch.addcdiv(x, y, z, value=2),
        torch.where(x > 0, y, z), x.clamp(min=0.2),
    ),
    lambda: (grad(4, 1, 3), grad(2, 3), uniform(3)),
)
add(
    "clamp_tensor",
    lambda x, y, z: (torch.clamp(x, y, z), torch.clamp(x, min=y), torch.clamp(x, max=z)),
    lambda: (grad(2, 3), grad(2, 3), uniform(2, 3)),
)
add(
    "integer_arithmetic",
    lambda x, y: (
        x + y, x - y, x * y, x / y, x // y, x % y, torch.div(x, y, rounding_mode="trunc"),
        torch.fmod(x, y), x.abs(), x.sign(), -x, x**2, x.clamp(-3, 3), torch.maximum(x, y),
    ),
    lambda: (ints(5, 7), ints(7, low=1)),
)
for _dtype in (torch.int32, torch.int16, torch.int8, torch.uint8):
    add(
        f"integer_{str(_dtype)[6:]}",
        lambda x, y: (
            x + y, x - y, x * y, x / y, x // y, x % y, x.abs(), -x, x + 1, x * 2.5, x.clamp(2, 3),
            x & y, x | y, x ^ y, ~x, x << 1, x >> 1, x.square(), x == y,
        ),
        lambda dtype=_dtype: (
            ints(33, low=0, high=120, dtype=dtype), ints(33, low=1, high=100, dtype=dtype),
        ),
    )
add(
    "negative_division",
    lambda x, y: (
        x // y, x % y, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y), torch.gcd(x, y),
        torch.bitwise_and(x, y), x >> 1, torch.floor_divide(x, 3), x % -3, x // -2,
    ),
    lambda: (ints(50), torch.where(bools(50), ints(50, low=1), ints(50, high=0))),
)
add(
    "float_division",
    lambda x, y: (
        x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc"), x // 0.3,
        x % -0.7, 5 // y, 5 % y,
    ),
    lambda: (grad(40), grad(40)),
)
add(
    "boolean",
    lambda x, y: (
        x & y, x | y, x ^ y, ~x, x + y, x * y, x == y, x.logical_not(), torch.logical_xor(x, y),
        x.any(), x.all(), x.sum(), x.float(), x.int() - 3, x / 2, x < y, torch.maximum(x, y),
    ),
    lambda: (bools(5, 6), bools(6)),
)
add(
    "comparisons",
    lambda x, y: (
        x < y, x <= y, x == y, x != 0, x > 1, x <= 2, torch.eq(x, y), torch.isclose(x, x + 1e-9),
        torch.logical_and(x, y), x.bool(),
    ),
    lambda: (grad(3, 9), grad(9)),
)
add(
    "promotion",
    lambda f, d, i, b, h: (
        f + d, f + i, i + b, b + b, h + f, h + i, i * 2.0, b * 1.5, i / i, h * 2, f + d.sum(),
        i + 3, b + 1, h + torch.tensor(2.0), i + torch.tensor(2.5), f.sum() + d,
    ),
    lambda: (
        rand(4), rand(4, dtype=torch.float64), ints(4, low=1), bools(4),
        rand(4, dtype=torch.bfloat16),
    ),
)
for _dtype in (torch.bfloat16, torch.float16, torch.float64):
    add(
        f"chain_{str(_dtype)[6:]}",
        lambda x, y: (
            (x * y + 1).tanh(), x.exp() / (1 + y.exp()), F.gelu(x), x.sum(), x.mean(0),
            x.softmax(-1), x.float() + y, (x > y).to(x.dtype),
        ),
        lambda dtype=_dtype: (grad(6, 9, dtype=dtype), grad(6, 9, dtype=dtype)),
    )
    add(
        f"specials_{str(_dtype)[6:]}",
        lambda x: (
            x + 1, x * 2, x.float(), x.relu(), x.abs(), x.isnan(), x.round(), x.clamp(-1, 1),
            x.max(), x.nan_to_num(), x.sign(),
        ),
        lambda dtype=_dtype: (special(dtype),),
        backward=False,
    )
add(
    "conversions",
    lambda x: (
        x.int(), x.long(), x.to(torch.int16), x.to(torch.uint8), x.double(), x.half(),
        x.bfloat16(), x.bool(), x.to(torch.int8), x.type(torch.float64), x.half().float(),
        x.bfloat16().float(),
    ),
    lambda: (uniform(23, high=99.0),),
    options={"elide_cast_pairs": False},
)
add(
    "integer_conversions",
    lambda x: (
        x.float(), x.to(torch.uint8), x.to(torch.int8), x.to(torch.int32), x.bool(), x.half(),
        x.double() / 3, x.to(torch.int16) * 300,
    ),
    lambda: (ints(23, low=-1000, high=1000),),
)
add(
    "to_other",
    lambda x, y: (
        x.to(y), x.to(y.dtype), x.type_as(y), x.to("cpu", torch.float64), x.to(torch.float32),
        x.to(torch.float64, copy=True),
    ),
    lambda: (grad(4), rand(4, dtype=torch.float64)),
)
add(
    "scalars",
    lambda x, a, b: (
        x * a + b, x**a, a - x, x > b, x.clamp(min=b), x + True, torch.full_like(x, a),
        x * math.pi,
    ),
    lambda: (grad(4), 3, 0.25),
)
add(
    "zero_dim",
    lambda x, y: (x + y, x * 2, x.exp(), x[None] + y, x.sum(), x.view(1), x.expand(3), x.clone()),
    lambda: (grad(), rand()),
)
add(
    "empty",
    lambda x, y: (
        x + y, x.sum(), x.exp(), x.sum(0), x.sum(1), x.mean(1), x.reshape(-1), torch.cat([x, y]),
        x.any(), x.prod(),
    ),
    lambda: (grad(0, 5), rand(0, 5)),
)
add(
    "size_one",
    lambda x, y: (
        x + y, x * y, x.sum(1), x.expand(4, 3, 2) + y, x.squeeze(), x.mean((0, 1)),
        (x + y).sum((0, 1)),
    ),
    lambda: (grad(1, 3, 1), grad(1, 1, 2)),
)
add(
    "transposed",
    lambda x, y: (
        x + y, x.sin(), x * 2 + y.T.contiguous().T, x.sum(0), x.softmax(-1), x.contiguous(),
    ),
    lambda: (transposed(6, 9), transposed(6, 9)),
)
add(
    "mixed_layouts",
    lambda x, y: (x + y, y + x, x * y.contiguous(), torch.where(x > 0, x, y)),
    lambda: (transposed(6, 9), grad(6, 9)),
)
add(
    "strided",
    lambda x, y: (x + y, x.exp(), x.sum(-1), x.mean(0), x.clone(), x.contiguous()),
    lambda: (strided(5, 7), grad(5, 7)),
)
add(
    "expanded",
    lambda x: (x + 1, x.sum(0), x.clone(), x.contiguous(), x * x),
    lambda: (rand(1, 6).expand(4, 6),),
)
add(
    "channels_last",
    lambda x, y: (
        x + y, x.relu(), x * 2, x.sum(1), x.mean((2, 3)), x.clone(), x + y.sum(1, keepdim=True),
        x.contiguous(),
    ),
    lambda: (channels_last(2, 3, 5, 4), channels_last(2, 3, 5, 4)),
)
add(
    "to_channels_last",
    lambda x: (
        x.to(memory_format=torch.channels_last),
        x.contiguous(memory_format=torch.channels_last) + 1, torch.empty_like(x).shape,
    ),
    lambda: (grad(2, 3, 5, 4),),
)
add(
    "five_dims",
    lambda x, y: (x.permute(4, 2, 0, 1, 3) + y, (x * 2).permute(0, 2, 1, 4, 3).sum(2)),
    lambda: (grad(2, 3, 4, 2, 3), grad(3, 4, 2, 3, 2)),
)
add("long_chain", lambda x: sum((x * k).sin() * k for k in range(1, 12)), lambda: (grad(37),))
add(
    "complex_free_angle",
    lambda x: (
        x.angle(), torch.real(x), x.conj(), torch.positive(x), torch.heaviside(x, x),
        torch.nextafter(x, x + 1),
    ),
    lambda: (rand(9),),
    backward=False,
)
add(
    "bit_casts",
    lambda x: (x.view(torch.int32), x.view(torch.int32) & 0x7F800000, x.view(torch.uint8).shape),
    lambda: (rand(4, 6),),
)
add(
    "where_scalars",
    lambda x: (
        torch.where(x > 0, 1.0, 0.0), torch.where(x > 0, x, 0.0), torch.where(x > 0, 1, x),
        torch.where(x > 0, 1, 2), x.masked_fill(x < 0, -math.inf),
        torch.where(x > 0, float("nan"), x),
    ),
    lambda: (grad(3, 8),),
)
add(
    "isin_and_friends",
    lambda x, y: (
        torch.isin(x, y), torch.bucketize(x.float(), torch.tensor([-3.0, 0.0, 4.0])),
        torch.clamp(x, 0), torch.diff(x), torch.sign(x),
    ),
    lambda: (ints(13), ints(3)),
)
add(
    "integers_and_back",
    lambda x: [
        value
        for y in (x, x * 2, x.bfloat16(), x.half(), x.double())
        for integer in (torch.int8, torch.int32, torch.int64)
        for dtype in (torch.float32, torch.bfloat16, torch.float64)
        for value in (y.to(integer).to(dtype), 1 / y.to(integer).to(dtype), y.to(integer) * 1.5)
    ],
    lambda: (torch.tensor([-0.25, -0.5, 0.25, -7.5, 3e9, -3e9, 3e25, float("nan")]).repeat(9),),
)
