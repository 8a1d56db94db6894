"""1 + erf(x) of floats (`short_erf`)."""

from __future__ import annotations

from flambeau_inductor.codegen.short_erf import COEFFICIENTS


def one_plus_erf() -> str:
    """The function, by the coefficients that GPUs have."""
    *rest, last = COEFFICIENTS
    first, *others = (f"  p = fma_of(p, t, {float(each)!r}f);\n" for each in reversed(rest))
    start = f"  float p = {float(last)!r}f;\n{first}{''.join(others)}"
    return _TEXT.replace("POLYNOMIAL", start)


_TEXT = """\
// erfc(|x|) = 2**(-t p(t)), and 2**r, |r| <= 1/2, by an own minimax fit (2e-9). Beyond 5.5 it is 0.
INLINE float one_plus_erf(float x) {
  const float t = __builtin_fabsf(x);
POLYNOMIAL  const float z = -(p * t), shifted = z + 12582912.0f, r = z - (shifted - 12582912.0f);
  float e = fma_of(0.000153533736f, r, 0.00133988785f);
  e = fma_of(e, r, 0.00961843692f);
  e = fma_of(e, r, 0.0555033237f);
  e = fma_of(e, r, 0.240226477f);
  e = fma_of(e, r, 0.693147182f);
  e = fma_of(e, r, 1.0f);
  const uint32_t power = (__builtin_bit_cast(uint32_t, shifted) << 23) + 0x3f800000;
  const float tail = t > 5.5f ? 0.0f : e * __builtin_bit_cast(float, power);
  return x < 0.0f ? tail : 2.0f - tail;
}
"""
