"""The 8-bit floats, as kernels convert them: a description of each format, and its conversions from
and to float32 in C++ and in Triton.

Values of these dtypes are their bits. A conversion gives the bits that eager's does (the rules of
`c10/util/Float8_*.h`): ties to even. What is too large is NaN; infinity in e5m2; and in e4m3fn, as
`saturates` finds out, the greatest number in newer versions of torch.
Source of the formats: "FP8 Formats for Deep Learning" (arXiv 2209.05433), and for fnuz (finite,
NaN, unsigned zero) "8-bit Numerical Formats for Deep Neural Networks" (arXiv 2206.02915).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Float8:
    """A format: the bits of its fraction, its exponent's bias, the bits of the least float32 that
    is too large, and the name that Triton knows it by on GPUs that convert it.
    """

    name: str
    fraction: int
    bias: int
    limit: int
    infinite: bool = False
    unsigned_zero: bool = False
    triton: str = ""

    @property
    def shift(self) -> int:
        """How far the fraction's last bit lies above float32's."""
        return 23 - self.fraction

    @property
    def rebias(self) -> int:
        """What a float32's bits have more in the exponent."""
        return (127 - self.bias) << 23

    @property
    def least_normal(self) -> int:
        """The bits of the least normal number, as a float32."""
        return self.rebias + (1 << 23)

    @property
    def subnormal_unit(self) -> int:
        """The bits of the float32 whose last place is the least subnormal number."""
        return self.rebias + ((self.shift + 1) << 23)


FLOAT8 = {
    torch.float8_e4m3fn: Float8("float8_e4m3fn", 3, 7, 0x43E80001, triton="tl.float8e4nv"),
    torch.float8_e5m2: Float8(
        "float8_e5m2", 2, 15, 0x47800000, infinite=True, triton="tl.float8e5"
    ),
    torch.float8_e4m3fnuz: Float8("float8_e4m3fnuz", 3, 8, 0x43800000, unsigned_zero=True),
    torch.float8_e5m2fnuz: Float8("float8_e5m2fnuz", 2, 16, 0x47800000, unsigned_zero=True),
}


def float8_bits(value: float, dtype: torch.dtype) -> int:
    """The bits of a number in a format."""
    return int(torch.tensor(value, device="cpu").to(dtype).view(torch.uint8).item())


@lru_cache
def saturates() -> bool:
    """Whether this torch's conversion to e4m3fn gives the greatest number for what is too large."""
    large = torch.tensor(1000.0, device="cpu")
    return not large.to(torch.float8_e4m3fn).float().isnan().item()


@lru_cache
def converts_float8() -> bool:
    """Whether the GPUs have instructions that convert 8-bit floats: as an H100 where there is no
    GPU to ask.
    """
    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return all(torch.cuda.get_device_capability(device) >= (8, 9) for device in devices)


def cpp_conversions(one: Float8) -> str:
    """`from_NAME` and `to_NAME` in C++."""
    value = f"(rest < {1 << one.fraction} ? subnormal : normal)"
    if one.infinite:
        value = f"(rest >= 0x7c ? 0x7f800000u | (rest & 3) << 21 : {value})"
    elif not one.unsigned_zero:
        value = f"(rest == 0x7f ? 0x7fc00000u : {value})"
    value = f"(uint32_t)(bits & 0x80) << 24 | {value}"
    if one.unsigned_zero:
        value = f"bits == 0x80 ? 0x7fc00000u : {value}"
    large = "0x7f" if not saturates() else "rest > 0x7f800000 ? 0x7f : 0x7e"
    if one.infinite:
        large = "rest > 0x7f800000 ? 0x7f : 0x7c"
    elif one.unsigned_zero:
        large = "0x80"
    result = "sign | code" if not one.unsigned_zero else "code == 0 ? 0 : sign | code"
    return f"""\
// Subnormal numbers differ from a normal one by as much as their fraction says.
INLINE float from_{one.name}(uint8_t bits) {{
  const uint32_t rest = bits & 0x7f, moved = rest << {one.shift};
  const uint32_t normal = moved + 0x{one.rebias:08x}u;
  const float above = __builtin_bit_cast(float, moved | 0x{one.least_normal:08x}u);
  const float small = above - __builtin_bit_cast(float, 0x{one.least_normal:08x}u);
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, small);
  const uint32_t value = {value};
  return __builtin_bit_cast(float, value);
}}
// Normal numbers round by integer arithmetic, ties to even; subnormal ones by a float addition with
// their ulp.
INLINE uint8_t to_{one.name}(float x) {{
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
  const uint32_t even = rest >> {one.shift} & 1;
  const uint32_t below_half = 0x{(1 << one.shift - 1) - 1:x};
  const uint32_t normal = (rest - 0x{one.rebias:08x}u + below_half + even) >> {one.shift};
  const float unit = __builtin_bit_cast(float, 0x{one.subnormal_unit:08x}u);
  const float tiny = __builtin_bit_cast(float, rest) + unit;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, tiny) - 0x{one.subnormal_unit:08x}u;
  const uint32_t finite = rest < 0x{one.least_normal:08x}u ? subnormal : normal;
  const uint32_t large = {large};
  const uint32_t code = rest >= 0x{one.limit:08x}u ? large : finite;
  return (uint8_t)({result});
}}
"""


def triton_conversion(one: Float8, narrows: bool, converts: bool) -> str:
    """`to_NAME`, if `narrows`, or `from_NAME` in Triton, on tiles of float32 and uint8. `converts`:
    whether the GPU itself converts the format; it saturates.
    """
    head = f"@triton.jit\ndef {'to' if narrows else 'from'}_{one.name}(x):"
    if converts and one.triton:
        lines = _converted_down(one) if narrows else _converted_up(one)
    else:
        lines = _rounded(one) if narrows else _widened(one)
    return "\n".join([head, *(f"    {line}" for line in lines)])


def _converted_up(one: Float8) -> list[str]:
    return [f"return x.to({one.triton}, bitcast=True).to(tl.float32)"]


def _converted_down(one: Float8) -> list[str]:
    """By an instruction for two numbers, of which one is not used: of a pair, ptxas 12.8 gets the
    second wrong where its byte is moved by itself (a register is read before it is written).
    """
    kind = "e5m2x2" if one.infinite else "e4m3x2"
    asm = (
        "{ .reg .b16 pair; .reg .b32 zero; mov.b32 zero, 0; "
        f"cvt.rn.satfinite.{kind}.f32 pair, zero, $1; cvt.u32.u16 $0, pair; }}"
    )

    def code(x: str) -> str:
        return (
            f"code = tl.inline_asm_elementwise({asm!r}, '=r,r', [{x}], dtype=tl.int32, "
            "is_pure=True, pack=1)"
        )

    sign = "sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80"
    if one.infinite:
        # From halfway above the greatest number on, unless that is even.
        return [
            sign,
            code("x"),
            "special = sign | tl.where(x != x, 0x7f, 0x7c)",
            "return tl.where(tl.abs(x) < 61440.0, code, special).to(tl.uint8)",
        ]
    # The instruction leaves out the sign of NaN.
    known = "x" if saturates() else 'tl.where(tl.abs(x) <= 464.0, x, float("nan"))'
    return [sign, code(known), "return (code | sign).to(tl.uint8)"]


def _rounded(one: Float8) -> list[str]:
    """As in C++."""
    large = "0x7f" if not saturates() else "tl.where(rest > 0x7f800000, 0x7f, 0x7e)"
    if one.infinite:
        large = "tl.where(rest > 0x7f800000, 0x7f, 0x7c)"
    elif one.unsigned_zero:
        large = "0x80"
    result = "sign | code" if not one.unsigned_zero else "tl.where(code == 0, 0, sign | code)"
    unit = one.subnormal_unit
    return [
        "bits = x.to(tl.int32, bitcast=True)",
        "sign = (bits >> 24) & 0x80",
        "rest = bits & 0x7fffffff",
        f"even = (rest >> {one.shift}) & 1",
        f"normal = (rest - {one.rebias} + {(1 << one.shift - 1) - 1} + even) >> {one.shift}",
        f"unit = tl.full(rest.shape, {unit}, tl.int32).to(tl.float32, bitcast=True)",
        "tiny = rest.to(tl.float32, bitcast=True) + unit",
        f"subnormal = tiny.to(tl.int32, bitcast=True) - {unit}",
        f"finite = tl.where(rest < {one.least_normal}, subnormal, normal)",
        f"code = tl.where(rest >= {one.limit}, {large}, finite)",
        f"return ({result}).to(tl.uint8)",
    ]


def _widened(one: Float8) -> list[str]:
    """As in C++."""
    value = f"tl.where(rest < {1 << one.fraction}, subnormal, normal)"
    if one.infinite:
        value = f"tl.where(rest >= 0x7c, 0x7f800000 | ((rest & 3) << 21), {value})"
    elif not one.unsigned_zero:
        value = f"tl.where(rest == 0x7f, 0x7fc00000, {value})"
    value = f"((bits & 0x80) << 24) | {value}"
    if one.unsigned_zero:
        value = f"tl.where(bits == 0x80, 0x7fc00000, {value})"
    return [
        "bits = x.to(tl.int32)",
        "rest = bits & 0x7f",
        f"moved = rest << {one.shift}",
        f"normal = moved + {one.rebias}",
        f"least = tl.full(rest.shape, {one.least_normal}, tl.int32)",
        "above = (moved | least).to(tl.float32, bitcast=True)",
        "small = above - least.to(tl.float32, bitcast=True)",
        "subnormal = small.to(tl.int32, bitcast=True)",
        f"value = {value}",
        "return value.to(tl.float32, bitcast=True)",
    ]
