"""Rows of float16 and bfloat16, widened to floats and narrowed by vectors of 16 and 8.

Rows of floats are scratch memory, as long as whole vectors of 8: behind a widened row stand zeros,
and behind one that is narrowed, any floats. What is left of 8 elements or more is read and written
with the 8 that end where the row does, and moved between two vectors: memory is not read while what
was written to a part of it is on its way.
"""

from __future__ import annotations

ROWS_OF_HALVES = """\
#if defined(__AVX2__) && defined(__F16C__)
typedef short halves_8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef float floats_8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t bits_8 __attribute__((vector_size(32), aligned(4), may_alias));
INLINE void widen_8_float16(const uint16_t *from, float *to) {
  *(floats_8 *)to = (floats_8)__builtin_ia32_vcvtph2ps256(*(const halves_8 *)from);
}
INLINE void narrow_8_float16(const float *from, uint16_t *to) {
  *(halves_8 *)to = (halves_8)__builtin_ia32_vcvtps2ph256(*(const floats_8 *)from, 0);
}
INLINE void widen_8_bfloat16(const uint16_t *from, float *to) {
  *(bits_8 *)to = (bits_8)__builtin_ia32_pmovzxwd256(*(const halves_8 *)from) << 16;
}
INLINE void narrow_8_bfloat16(const float *from, uint16_t *to) {
  typedef short words __attribute__((vector_size(32)));
  typedef int64_t pairs __attribute__((vector_size(32)));
  const floats_8 x = *(const floats_8 *)from;
  const bits_8 bits = (bits_8)x, nan = (bits_8)(x != x);
  const bits_8 rounded = (bits + 0x7fff + (bits >> 16 & 1) | nan) >> 16;
  // The words of each 16 bytes, twice.
  const words twice = (words)__builtin_ia32_packusdw256(
      (int __attribute__((vector_size(32))))rounded, (int __attribute__((vector_size(32))))rounded);
  const pairs once = __builtin_shuffle((pairs)twice, pairs{0, 2, 0, 2});
  typedef int64_t both __attribute__((vector_size(16), aligned(2), may_alias));
  *(both *)to = both{once[0], once[1]};
}
#define HALVES_8
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(HALVES_8)
typedef short halves_16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef float floats_16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t bits_16 __attribute__((vector_size(64), aligned(4), may_alias));
INLINE void widen_16_float16(const uint16_t *from, float *to) {
  const halves_16 x = *(const halves_16 *)from;
  *(floats_16 *)to = (floats_16)__builtin_ia32_vcvtph2ps512_mask(x, floats_16{}, -1, 4);
}
INLINE void narrow_16_float16(const float *from, uint16_t *to) {
  const floats_16 x = *(const floats_16 *)from;
  *(halves_16 *)to = (halves_16)__builtin_ia32_vcvtps2ph512_mask(x, 0, halves_16{}, -1);
}
INLINE void widen_16_bfloat16(const uint16_t *from, float *to) {
  typedef int words __attribute__((vector_size(64)));
  const halves_16 x = *(const halves_16 *)from;
  *(bits_16 *)to = (bits_16)__builtin_ia32_pmovzxwd512_mask(x, words{}, -1) << 16;
}
INLINE void narrow_16_bfloat16(const float *from, uint16_t *to) {
  typedef int words __attribute__((vector_size(64)));
  const floats_16 x = *(const floats_16 *)from;
  const bits_16 bits = (bits_16)x, nan = (bits_16)(x != x);
  const words rounded = (words)((bits + 0x7fff + (bits >> 16 & 1) | nan) >> 16);
  *(halves_16 *)to = (halves_16)__builtin_ia32_pmovdw512_mask(rounded, halves_16{}, -1);
}
#define HALVES_16
#endif
#ifdef HALVES_8
typedef short eight_halves __attribute__((vector_size(16)));
INLINE eight_halves shifted(eight_halves first, eight_halves second, int64_t by) {
  return __builtin_shuffle(first, second, eight_halves{0, 1, 2, 3, 4, 5, 6, 7} + (short)by);
}
#define CONVERSIONS_8(name) \
  INLINE int64_t widen_by_8_##name(const uint16_t *from, float *to, int64_t i, int64_t n) { \
    for (; i + 8 <= n; i += 8) widen_8_##name(from + i, to + i); \
    if (i == n || n < 8) return i; \
    eight_halves last = *(const halves_8 *)(from + n - 8); \
    last = shifted(last, eight_halves{}, 8 - (n - i)); \
    widen_8_##name((const uint16_t *)&last, to + i); \
    return n; \
  } \
  INLINE int64_t narrow_by_8_##name(const float *from, uint16_t *to, int64_t i, int64_t n) { \
    for (; i + 8 <= n; i += 8) narrow_8_##name(from + i, to + i); \
    if (i == n || n < 8) return i; \
    eight_halves before, last; \
    narrow_8_##name(from + i - 8, (uint16_t *)&before); \
    narrow_8_##name(from + i, (uint16_t *)&last); \
    *(halves_8 *)(to + n - 8) = shifted(before, last, n - i); \
    return n; \
  }
CONVERSIONS_8(float16)
CONVERSIONS_8(bfloat16)
#endif
#define CONVERSIONS(name) \
  INLINE void widen_##name(const uint16_t *from, float *to, int64_t n) { \
    int64_t i = 0; \
    BY_16(widen_16_##name) \
    BY_8(widen_by_8_##name) \
    for (; i < n; ++i) to[i] = from_##name(from[i]); \
    for (; i % 8; ++i) to[i] = 0; \
  } \
  INLINE void narrow_##name(const float *from, uint16_t *to, int64_t n) { \
    int64_t i = 0; \
    BY_16(narrow_16_##name) \
    BY_8(narrow_by_8_##name) \
    for (; i < n; ++i) to[i] = to_##name(from[i]); \
  }
#ifdef HALVES_16
#define BY_16(way) for (; i + 16 <= n; i += 16) way(from + i, to + i);
#else
#define BY_16(way)
#endif
#ifdef HALVES_8
#define BY_8(way) i = way(from, to, i, n);
#else
#define BY_8(way)
#endif
CONVERSIONS(float16)
CONVERSIONS(bfloat16)
"""

ONE_FLOAT16 = """\
// For loops that are not vectorised.
INLINE float one_float16(uint16_t bits) {
#ifdef __F16C__
  typedef short eight __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps(eight{(short)bits})[0];
#else
  return from_float16(bits);
#endif
}
"""
