"""Remainders of floats in vectors: variants of `fmodf` and `fmod`, which libmvec does not have,
under the names that GCC calls in vector loops (the vector function ABI of x86-64).

    r = |x|, b = |y|                      7.5 mod 2
    s = r / b, q = s without low bits     s = 3.75, q = 3
    r -= q b, r += u b where r < 0        r = 1.5            u: the last place of q
    again while some r >= b               the sign is x's

q is the whole part of s below 2**12 (2**26 of doubles), and else its leading 12 (26) bits. As the
division rounds, q is up to its last place too large, and less than that too small. What is left is
a multiple of the product of the last places of q and b, and below b times the last place of q: a
float, so each step is exact where a product and a sum are rounded once. Where a quotient overflows,
libm computes the vector's remainders.
"""

from __future__ import annotations

_STEPS = """\
#if defined(__x86_64__) && defined(__FMA__)
#define SIMD_FMA __attribute__((simd("notinbranch")))
extern "C" float libm_remainder(float, float) __asm__("fmodf");
extern "C" double libm_remainder_of_doubles(double, double) __asm__("fmod");
INLINE double libm_remainder(double x, double y) { return libm_remainder_of_doubles(x, y); }
template <class T, int bytes> struct lanes_of {
  typedef T values __attribute__((vector_size(bytes)));
};
template <class T, int bytes> using lanes = typename lanes_of<T, bytes>::values;
INLINE bool any_lane(lanes<float, 16> x) { return __builtin_ia32_movmskps(x); }
INLINE bool any_lane(lanes<float, 32> x) { return __builtin_ia32_movmskps256(x); }
INLINE lanes<float, 16> fused(lanes<float, 16> a, lanes<float, 16> b, lanes<float, 16> c) {
  return __builtin_ia32_vfmaddps(a, b, c);
}
INLINE lanes<float, 32> fused(lanes<float, 32> a, lanes<float, 32> b, lanes<float, 32> c) {
  return __builtin_ia32_vfmaddps256(a, b, c);
}
INLINE lanes<double, 16> fused(lanes<double, 16> a, lanes<double, 16> b, lanes<double, 16> c) {
  return __builtin_ia32_vfmaddpd(a, b, c);
}
INLINE lanes<double, 32> fused(lanes<double, 32> a, lanes<double, 32> b, lanes<double, 32> c) {
  return __builtin_ia32_vfmaddpd256(a, b, c);
}
#if defined(__AVX512F__)
INLINE bool any_lane(lanes<float, 64> x) {
  lanes<uint32_t, 32> part[2];
  __builtin_memcpy(part, &x, sizeof x);
  return any_lane((lanes<float, 32>)(part[0] | part[1]));
}
INLINE lanes<float, 64> fused(lanes<float, 64> a, lanes<float, 64> b, lanes<float, 64> c) {
  return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
}
INLINE lanes<double, 64> fused(lanes<double, 64> a, lanes<double, 64> b, lanes<double, 64> c) {
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4);
}
#endif
// `kept`: the bits of a quotient that are used, of those that a fraction of `fraction` bits has.
template <class T, class U, int bytes, int fraction, int kept>
INLINE lanes<T, bytes> remainder_of(lanes<T, bytes> x, lanes<T, bytes> y) {
  typedef lanes<T, bytes> V;
  typedef lanes<U, bytes> B;
  typedef lanes<float, bytes> M;
  const U places = ((U)1 << fraction) - 1, left_out = ((U)1 << (fraction + 1 - kept)) - 1;
  const B sign = B{} + ((U)1 << (8 * sizeof(T) - 1)), low = B{} + left_out;
  const V zero = {}, one = zero + 1, infinite = zero + (T)__builtin_inf();
  const V whole = zero + (T)((U)1 << fraction), small = zero + (T)((U)1 << kept);
  const V a = (V)((B)x & ~sign);
  V b = (V)((B)y & ~sign);
  const B wrong = ~((B)(a < infinite) & (B)(b > zero));
  V r = (V)((B)a & ~wrong);
  b = (V)(((B)b & ~wrong) | ((B)one & wrong));
  for (;;) {
    const B more = (B)(r >= b);
    if (!any_lane((M)more)) break;
    const V s = r / b;
    if (any_lane((M)(s == infinite))) {
      for (unsigned i = 0; i < bytes / sizeof(T); ++i) r[i] = libm_remainder(r[i], b[i]);
      break;
    }
    V near = (s + whole) - whole;
    near -= (V)((B)(near > s) & (B)one);
    const B far = (B)(s >= small), exponent = (B)s & ~(sign | places);
    const B last = exponent - ((U)(kept - 1) << fraction);
    const V q = (V)((far & (B)s & ~low) | (~far & (B)near));
    const V u = (V)((far & last) | (~far & (B)one)), step = (V)((B)b & more);
    r = fused(-q, step, r);
    r = fused((V)((B)u & (B)(r < zero)), step, r);
  }
  return (V)((B)r | ((B)x & sign) | wrong);
}
#else
#define SIMD_FMA
#endif
"""


def _variants(name: str, scalar: str, bits: str, fraction: int, kept: int) -> str:
    """The declaration of a function, and its variants for vectors of 16, 32 and 64 bytes."""
    text = f'extern "C" SIMD_FMA __attribute__((const)) {scalar} {name}({scalar}, {scalar});\n'
    text += "#if defined(__x86_64__) && defined(__FMA__)\n"
    for letter, size in (("b", 16), ("d", 32), ("e", 64)):
        count = size // (8 if scalar == "double" else 4)
        vector = f"lanes<{scalar}, {size}>"
        lines = (
            f'extern "C" {vector} _ZGV{letter}N{count}vv_{name}({vector} x, {vector} y) {{\n'
            f"  return remainder_of<{scalar}, {bits}, {size}, {fraction}, {kept}>(x, y);\n}}\n"
        )
        text += f"#if defined(__AVX512F__)\n{lines}#endif\n" if letter == "e" else lines
    return text + "#endif\n"


REMAINDERS = {
    "remainder_of": _STEPS,
    "fmodf": _variants("fmodf", "float", "uint32_t", 23, 12),
    "fmod": _variants("fmod", "double", "uint64_t", 52, 26),
}
"""Entries of the prelude (`prelude.FUNCTIONS`)."""
