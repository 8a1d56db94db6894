"""The remainder of a division, `fmod`, in vector loops.

    x fmod y = |x| - q * |y|, with the sign of x, for q = trunc(|x| / |y|)

glibc has no vector variants of it. These take their names by the vector function ABI, under which
GCC calls them from `omp simd` loops. The remainder is exact: in double precision, the product of a
float and a quotient below 2**26 is; of doubles, a fused multiply-add rounds what needs no rounding.
A quotient next to an integer may be rounded to it, which leaves a remainder below zero: |y| is then
added. Vectors with larger quotients, infinities or NaNs are computed element by element.
"""

from __future__ import annotations

VARIANTS = {"b": 16, "c": 32, "d": 32, "e": 64}
"""Letter of an instruction set in the names of the vector function ABI -> the bytes of a vector."""

_HEAD = """\
#ifdef __AVX2__
#define SIMD_MOD __attribute__((simd("notinbranch")))
#else
#define SIMD_MOD
#endif
"""

_LANES = """\
extern "C" SIMD_MOD __attribute__((const)) {type} {name}({type}, {type});
#ifdef __AVX2__
// Without vector variants: else GCC would call these from themselves.
extern "C" {type} scalar_{name}({type}, {type}) __asm__("{name}");
template <class V> INLINE V {name}_lanes(V x, V y) {{
  constexpr int N = sizeof(V) / sizeof({type});
  {type} a[N] __attribute__((aligned(64))), b[N] __attribute__((aligned(64)));
  __builtin_memcpy(a, &x, sizeof(V));
  __builtin_memcpy(b, &y, sizeof(V));
  {type} result[N] __attribute__((aligned(64)));
  int rare = 0;
  for (int c = 0; c < N; ++c) {{
    const double p = __builtin_fabs((double)a[c]), d = __builtin_fabs((double)b[c]);
    const double q = __builtin_trunc(p / d);
    const double left = {left}, inside = left < 0 ? left + d : left;
    result[c] = __builtin_copysign{suffix}(({type})(p < d ? p : inside), a[c]);
    rare |= !(q < {most});
  }}
  if (__builtin_expect(rare, 0))
    for (int c = 0; c < N; ++c) result[c] = scalar_{name}(a[c], b[c]);
  __builtin_memcpy(&x, result, sizeof(V));
  return x;
}}
{variants}#endif
"""

_VARIANT = """\
typedef {type} {name}_{letter} __attribute__((vector_size({size})));
extern "C" __attribute__((weak, visibility("hidden")))
{name}_{letter} _ZGV{letter}N{lanes}vv_{name}({name}_{letter} x, {name}_{letter} y) {{
  return {name}_lanes(x, y);
}}
"""


def _lanes(name: str, ctype: str, itemsize: int, left: str, most: str) -> str:
    """The declaration of a function, and its vector variants."""
    variants = "".join(
        ("#ifdef __AVX512F__\n" if letter == "e" else "")
        + _VARIANT.format(type=ctype, name=name, letter=letter, size=size, lanes=size // itemsize)
        + ("#endif\n" if letter == "e" else "")
        for letter, size in VARIANTS.items()
    )
    suffix = "f" if ctype == "float" else ""
    return _LANES.format(
        type=ctype, name=name, suffix=suffix, left=left, most=most, variants=variants
    )


MODULUS_FUNCTIONS = {
    "SIMD_MOD": _HEAD,
    "fmodf": _lanes("fmodf", "float", 4, "p - q * d", "0x1p26"),
    "fmod": _lanes("fmod", "double", 8, "__builtin_fma(-q, d, p)", "0x1p52"),
}
"""Helpers of the prelude by name."""
