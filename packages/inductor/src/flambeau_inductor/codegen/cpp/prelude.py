"""The text before the kernels of a source: types, and only those helper functions that
the kernels use.

No header is included, so the compiler reads kilobytes, not megabytes. Functions of libm are
declared with their vector variants (glibc's libmvec), which GCC calls from `omp simd` loops.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from flambeau_inductor.codegen.cpp.half_rows_prelude import ONE_FLOAT16, ROWS_OF_HALVES
from flambeau_inductor.codegen.cpp.lgamma_prelude import LGAMMA
from flambeau_inductor.codegen.cpp.matmul_prelude import MATMUL_FUNCTIONS
from flambeau_inductor.codegen.cpp.remainder_prelude import REMAINDERS
from flambeau_inductor.codegen.cpp.short_erf_prelude import one_plus_erf
from flambeau_inductor.codegen.cpp.transpose_prelude import stage_tile
from flambeau_inductor.codegen.float8 import FLOAT8, cpp_conversions

if TYPE_CHECKING:
    from collections.abc import Iterable

TYPES = """\
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#define INT64_C(x) x##L
#define INT32_MAX 2147483647
#define INT32_MIN (-INT32_MAX - 1)
#define INT64_MAX INT64_C(9223372036854775807)
#define INT64_MIN (-INT64_MAX - 1)
#define EXPORT extern "C" __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
"""

THREADS = """\
extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);
extern "C" int omp_get_max_threads(void);
// Where thread t of `count` begins its share of n, in steps of `step`.
INLINE int64_t share(int64_t n, int64_t t, int64_t count, int64_t step) {
  const int64_t at = n / count * t + n % count * t / count;
  return t == count ? n : at / step * step;
}
"""

# libm functions with vector variants: since glibc 2.22, and since 2.35.
MVEC_22 = ("sin", "cos", "exp", "log")
MVEC_35 = (
    "tan", "exp2", "expm1", "log2", "log10", "log1p", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
)  # fmt: skip
SCALAR_ONLY = ("lgamma",)

_SIMD = """\
#if defined(__x86_64__) && GLIBC_MINOR >= 22
#define SIMD_22 __attribute__((simd("notinbranch")))
#else
#define SIMD_22
#endif
#if defined(__x86_64__) && GLIBC_MINOR >= 35
#define SIMD_35 __attribute__((simd("notinbranch")))
#else
#define SIMD_35
#endif
"""


def _unary_functions() -> dict[str, str]:
    result = {"SIMD": _SIMD}
    for names, attribute in ((MVEC_22, "SIMD_22"), (MVEC_35, "SIMD_35"), (SCALAR_ONLY, "")):
        for name in names:
            space = attribute + " " if attribute else ""
            result[f"{name}f"] = f'extern "C" {space}__attribute__((const)) float {name}f(float);\n'
            result[name] = f'extern "C" {space}__attribute__((const)) double {name}(double);\n'
    return result


FUNCTIONS: dict[str, str] = {
    **_unary_functions(),
    "powf": 'extern "C" SIMD_22 __attribute__((const)) float powf(float, float);\n',
    "pow": 'extern "C" SIMD_22 __attribute__((const)) double pow(double, double);\n',
    "atan2f": 'extern "C" SIMD_35 __attribute__((const)) float atan2f(float, float);\n',
    "atan2": 'extern "C" SIMD_35 __attribute__((const)) double atan2(double, double);\n',
    **REMAINDERS,
    "wrap": """\
// Integers wrap: arithmetic is done on the unsigned type.
template <class T> struct unsigned_of { typedef T type; };
template <> struct unsigned_of<int8_t> { typedef uint32_t type; };
template <> struct unsigned_of<uint8_t> { typedef uint32_t type; };
template <> struct unsigned_of<int16_t> { typedef uint32_t type; };
template <> struct unsigned_of<int32_t> { typedef uint32_t type; };
template <> struct unsigned_of<int64_t> { typedef uint64_t type; };
template <class T> using wrap = typename unsigned_of<T>::type;
""",
    "fma_of": """\
// One rounding where the machine has fused multiply-add, two elsewhere: only polynomials use it.
#ifdef __FMA__
INLINE float fma_of(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE double fma_of(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
template <class T> INLINE T fma_of(T a, T b, T c) { return a * b + c; }
#endif
""",
    "exp_of": """\
// exp(x) = 2**n * exp(r), |r| <= ln(2)/2, by a polynomial (own minimax fit, 3e-9); below 1 ulp,
// subnormal results included.
// Adding 1.5 * 2**23 rounds to an integer in the low bits; 2**n is two factors: neither overflows.
INLINE float exp_of(float x) {
  const float shifted = fma_of(x, 1.44269504f, 12582912.0f), n = shifted - 12582912.0f;
  const float r = fma_of(n, -1.42860677e-6f, fma_of(n, -0.693145752f, x));
  float q = fma_of(0x1.6db676p-10f, r, 0x1.123dp-7f);
  q = fma_of(q, r, 0x1.55545cp-5f);
  q = fma_of(q, r, 0x1.55548cp-3f);
  q = fma_of(q, r, 0.5f);
  const float y = fma_of(r * r, q, r) + 1.0f;
  const uint32_t whole = __builtin_bit_cast(uint32_t, shifted), half = whole >> 1, one = 0x3f800000;
  const float a = __builtin_bit_cast(float, (half << 23) + one);
  const float b = __builtin_bit_cast(float, (whole - half << 23) + one);
  const float finite = y * a * b, floored = x < -104.0f ? 0.0f : finite;
  return x > 89.0f ? __builtin_inff() : floored;
}
INLINE double exp_of(double x) { return exp(x); }
""",
    "log_of": """\
// log(x) = e * ln(2) + log(1 + f), 1 + f in [2/3, 4/3), by a polynomial (own minimax fit, 5e-9).
INLINE float log_of(float x) {
  const float scale = x < 0x1p-126f ? 0x1p23f : 1.0f; // subnormal numbers are made normal
  const int32_t bits = __builtin_bit_cast(int32_t, x * scale) - 0x3f2aaaab;
  const float f = __builtin_bit_cast(float, (bits & 0x7fffff) + 0x3f2aaaab) - 1.0f;
  const float e = (float)((bits >> 23) - (__builtin_bit_cast(int32_t, scale) >> 23) + 127);
  float q = fma_of(-0.128916f, f, 0.13984467f);
  q = fma_of(q, f, -0.12184278f);
  q = fma_of(q, f, 0.14005862f);
  q = fma_of(q, f, -0.16680487f);
  q = fma_of(q, f, 0.20010406f);
  q = fma_of(q, f, -0.24999797f);
  q = fma_of(q, f, 0.33333215f);
  const float square = f * f;
  const float tail = fma_of(e, 1.42860677e-6f, fma_of(square * f, q, -0.5f * square));
  const float y = fma_of(e, 0.693145752f, f + tail);
  // 0 gives -inf, less gives NaN, and inf and NaN themselves.
  const float above = x < __builtin_inff() ? y : x;
  const float below = x < 0 ? __builtin_nanf("") : -__builtin_inff();
  return x <= 0 ? below : above;
}
INLINE double log_of(double x) { return log(x); }
""",
    "erf_of": """\
// erf(x): x * p(x*x) up to 1, then 1 - exp(-q(|x|)), which is 1 from 4 on (own minimax fits, 1e-9).
INLINE float erf_of(float x) {
  const float a = __builtin_fabsf(x), t = x * x, u = a < 4.0f ? a : 4.0f;
  float p = fma_of(7.889119e-05f, t, -0.0008020841f);
  p = fma_of(p, t, 0.005189535f);
  p = fma_of(p, t, -0.026854444f);
  p = fma_of(p, t, 0.112836f);
  p = fma_of(p, t, -0.37612626f);
  p = fma_of(p, t, 0.12837917f);
  float q = fma_of(0.0001855749f, u, -0.0029396156f);
  q = fma_of(q, u, 0.021805352f);
  q = fma_of(q, u, -0.10303743f);
  q = fma_of(q, u, -0.6382256f);
  q = fma_of(q, u, -1.12704f);
  q = fma_of(q, u, -0.00035370892f);
  // exp(q) as in exp_of, for -16 <= q <= -1: one factor suffices, added to the exponent.
  const float shifted = fma_of(q, 1.44269504f, 12582912.0f), n = shifted - 12582912.0f;
  const float r = fma_of(n, -0.693147182f, q);
  float e = fma_of(0x1.6db676p-10f, r, 0x1.123dp-7f);
  e = fma_of(e, r, 0x1.55545cp-5f);
  e = fma_of(e, r, 0x1.55548cp-3f);
  e = fma_of(e, r, 0.5f);
  e = fma_of(r * r, e, r) + 1.0f;
  const uint32_t steps = __builtin_bit_cast(uint32_t, shifted) << 23;
  const uint32_t scaled = __builtin_bit_cast(uint32_t, e) + steps;
  const float large = __builtin_copysignf(1.0f - __builtin_bit_cast(float, scaled), x);
  return a >= 1.0f ? large : fma_of(x, p, x);
}
INLINE double erf_of(double x) { return erf(x); }
""",
    "lgamma_of": LGAMMA,
    "signbit_of": """\
INLINE bool signbit_of(float x) { return __builtin_bit_cast(int32_t, x) < 0; }
INLINE bool signbit_of(double x) { return __builtin_bit_cast(int64_t, x) < 0; }
""",
    "sign_of": "template <class T> INLINE T sign_of(T x) { return (T)((x > 0) - (x < 0)); }\n",
    "maximum": """\
// Two selections: GCC does not vectorise all uses of one selection by two comparisons.
template <class T> INLINE T maximum(T a, T b) {
  const T further = a > b ? a : b;
  return a != a ? a : further;
}
""",
    "minimum": """\
// Two selections: GCC does not vectorise all uses of one selection by two comparisons.
template <class T> INLINE T minimum(T a, T b) {
  const T further = a < b ? a : b;
  return a != a ? a : further;
}
""",
    "int_divide": """\
// Division by zero gives 0; the least integer divided by -1 wraps.
template <class T> INLINE T int_divide(T a, T b) {
  if (b == 0) return 0;
  return b == (T)-1 && (T)-1 < 0 ? (T)(0 - (wrap<T>)a) : (T)(a / b);
}
template <class T> INLINE T int_fmod(T a, T b) {
  return b == 0 || (b == (T)-1 && (T)-1 < 0) ? (T)0 : (T)(a % b);
}
template <class T> INLINE T int_remainder(T a, T b) {
  const T m = int_fmod(a, b);
  return m != 0 && (m < 0) != (b < 0) ? (T)(m + b) : m;
}
template <class T> INLINE T int_floor_divide(T a, T b) {
  const T m = int_fmod(a, b);
  return (T)(int_divide(a, b) - (m != 0 && (m < 0) != (b < 0)));
}
""",
    "float_remainder": """\
INLINE float float_mod(float a, float b) { return fmodf(a, b); }
INLINE double float_mod(double a, double b) { return fmod(a, b); }
template <class T> INLINE T float_remainder(T a, T b) {
  const T m = float_mod(a, b);
  return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}
""",
    "float_floor_divide": """\
INLINE float floor_of(float x) { return __builtin_floorf(x); }
INLINE double floor_of(double x) { return __builtin_floor(x); }
INLINE float zero_like(float x) { return __builtin_copysignf(0.0f, x); }
INLINE double zero_like(double x) { return __builtin_copysign(0.0, x); }
// As Python's //: the quotient of a - (a mod b) by b is rounded to the integer that it is nearly.
template <class T> INLINE T float_floor_divide(T a, T b) {
  const T m = float_mod(a, b), whole = (a - m) / b;
  const T q = m != 0 && (b < 0) != (m < 0) ? whole - 1 : whole;
  const T f = floor_of(q), nearest = q - f > (T)0.5 ? f + 1 : f;
  const T zero = zero_like(a / b), quotient = q == 0 ? zero : nearest;
  return b == 0 ? a / b : quotient;
}
""",
    "int_pow": """\
template <class T> INLINE T int_pow(T base, T exponent) {
  if (exponent < 0) return base == 1 ? (T)1 : base == (T)-1 ? (T)(exponent % 2 ? -1 : 1) : (T)0;
  wrap<T> result = 1, square = (wrap<T>)base;
  for (wrap<T> e = (wrap<T>)exponent; e; e >>= 1, square *= square)
    if (e & 1) result *= square;
  return (T)result;
}
""",
    "philox_of": """\
// A word of the generator Philox4x32-10 (Salmon, Moraes, Dror, Shaw, 2011).
INLINE int64_t philox_of(int64_t seed, int64_t offset, int64_t call, int64_t thread, int64_t lane) {
  const uint64_t counter = ((uint64_t)offset >> 2) + (uint64_t)call;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)((uint64_t)seed >> 32);
  uint32_t x = (uint32_t)counter, y = (uint32_t)(counter >> 32);
  uint32_t z = (uint32_t)thread, w = (uint32_t)((uint64_t)thread >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t a = (uint64_t)x * 0xD2511F53u, b = (uint64_t)z * 0xCD9E8D57u;
    x = (uint32_t)(b >> 32) ^ y ^ k0;
    y = (uint32_t)b;
    z = (uint32_t)(a >> 32) ^ w ^ k1;
    w = (uint32_t)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return lane < 2 ? (lane == 0 ? x : y) : (lane == 2 ? z : w);
}
""",
    "shift_left": """\
template <class T> INLINE T shift_left(T a, T b) {
  return b < 0 || b >= (T)(8 * sizeof(T)) ? (T)0 : (T)((wrap<T>)a << b);
}
template <class T> INLINE T shift_right(T a, T b) {
  const int most = 8 * sizeof(T) - ((T)-1 < 0), by = b < 0 || b > most ? most : (int)b;
  // AVX2 has variable shifts of 32-bit lanes, but of no narrower ones: this keeps GCC from
  // narrowing the shift.
  if (sizeof(T) < 4) return (T)(((int32_t)a << 16) >> by >> 16);
  return (T)(a >> by);
}
""",
    "int64_of": """\
// AVX-512 converts 64-bit integers by an instruction; AVX2 converts 32-bit halves, exactly.
// Beyond int64 the result is the instruction's.
// Adding 1.5 * 2**52 to an integer below 2**51 leaves it in the low bits, in two's complement.
#if defined(__AVX2__) && !defined(__AVX512DQ__)
INLINE int64_t int64_of(double x) {
  const double whole = __builtin_trunc(x), high = __builtin_floor(whole * 0x1p-32);
  const double low = whole - high * 0x1p32;
  const int64_t magic = 0x4338000000000000;
  const int64_t upper = __builtin_bit_cast(int64_t, high + 0x1.8p52) - magic;
  const int64_t result = (upper << 32) + (__builtin_bit_cast(int64_t, low + 0x1.8p52) - magic);
  return (x >= -0x1p63) & (x < 0x1p63) ? result : INT64_MIN;
}
#else
INLINE int64_t int64_of(double x) { return (int64_t)x; }
#endif
INLINE int64_t int64_of(float x) { return int64_of((double)x); }
""",
    "whole_of": """\
// The float of the integer (int32_t or int64_t, up to `bound`) that the processor converts x to.
template <class T> INLINE T whole_of(T x, T bound) {
  const T whole = (sizeof(T) == 4 ? (T)__builtin_truncf((float)x) : (T)__builtin_trunc(x)) + (T)0;
#if defined(__x86_64__)
  return (whole >= -bound) & (whole < bound) ? whole : -bound;
#else
  return x != x ? (T)0 : whole < -bound ? -bound : whole > bound ? bound : whole;
#endif
}
""",
    "double_of": """\
// The halves of an int64 are the low bits of 2**52 + low and 2**84 + 2**63 + high * 2**32; only the
// last addition rounds.
#if defined(__AVX2__) && !defined(__AVX512DQ__)
INLINE double double_of(int64_t x) {
  const double high = __builtin_bit_cast(double, (uint64_t)x >> 32 ^ 0x4530000080000000);
  const double low = __builtin_bit_cast(double, ((uint64_t)x & 0xffffffff) | 0x4330000000000000);
  return high - (0x1p84 + 0x1p63 + 0x1p52) + low;
}
// Rounds once: from 2**53 on, the bits that a double cannot hold set one below a float's last.
INLINE float float_of(int64_t x) {
  const int64_t sticky = (x & ~INT64_C(0xfff)) | ((x & 0xfff) + 0xfff & 0x1000);
  return (float)double_of(x + (INT64_C(1) << 53) >> 54 ? sticky : x);
}
#else
INLINE double double_of(int64_t x) { return (double)x; }
INLINE float float_of(int64_t x) { return (float)x; }
#endif
""",
    "in_pairs": """\
// Lanes are added in pairs, so that each goes through few roundings.
template <int n, class T> INLINE T sum_in_pairs(T *lanes) {
  if constexpr (n == 1) return lanes[0];
  #pragma omp simd
  for (int c = 0; c < n / 2; ++c) lanes[c] += lanes[c + n / 2];
  return sum_in_pairs<(n > 1 ? n / 2 : 1)>(lanes);
}
template <int n, class T> INLINE T prod_in_pairs(T *lanes) {
  if constexpr (n == 1) return lanes[0];
  #pragma omp simd
  for (int c = 0; c < n / 2; ++c) lanes[c] *= lanes[c + n / 2];
  return prod_in_pairs<(n > 1 ? n / 2 : 1)>(lanes);
}
""",
    "extremes_in_pairs": """\
// The first greatest (or least) element of lanes and its position, both left in lane 0.
#define EXTREME_IN_PAIRS(name, sign) \
  template <int n, class T, class I> INLINE void name(T *lanes, I *at) { \
    if constexpr (n > 1) { \
      _Pragma("omp simd") \
      for (int c = 0; c < n / 2; ++c) { \
        const T a = lanes[c], b = lanes[c + n / 2]; \
        const I i = at[c], j = at[c + n / 2]; \
        const bool equal = (a == b) | ((a != a) & (b != b)); \
        const bool second = (b sign a) | ((b != b) & (a == a)) | (equal & (j < i)); \
        lanes[c] = second ? b : a; \
        at[c] = second ? j : i; \
      } \
      name<(n > 1 ? n / 2 : 1)>(lanes, at); \
    } \
  }
EXTREME_IN_PAIRS(largest_in_pairs, >)
EXTREME_IN_PAIRS(smallest_in_pairs, <)
""",
    "add_exponential": """\
// Adds `weight` times exp(x - top) to a sum around `top`, which becomes the greater of both.
template <class T> INLINE void add_exponential(double &sum, T &top, T x, double weight) {
  if (x > top) {
    sum = sum * exp_of((double)top - (double)x) + weight;
    top = x;
  } else {
    sum += x == top ? weight : weight * exp_of((double)x - (double)top);
  }
}
template <int n, class T> INLINE void join_exponentials(double &sum, T &top, T *sums, T *tops) {
  T greatest = tops[0], total = 0;
  for (int c = 1; c < n; ++c) greatest = tops[c] > greatest ? tops[c] : greatest;
  #pragma omp simd reduction(+:total)
  for (int c = 0; c < n; ++c)
    total += tops[c] == greatest ? sums[c] : sums[c] * exp_of(tops[c] - greatest);
  add_exponential(sum, top, greatest, (double)total);
}
""",
    "add_moments": """\
// Adds `n` elements with their mean and squared deviations from it to those counted so far.
INLINE void add_moments(
    double &squares, double &mean, double &count, double others, double mean_of_others, double n) {
  if (n == 0) return;
  const double far = mean_of_others - mean, total = count + n;
  squares += others + far * far * (count * n / total);
  mean += far * (n / total);
  count = total;
}
// Lanes hold sums of distances to their first element, and of the squares of these.
template <int n, class T>
INLINE void join_moments(
    double &squares, double &mean, double &count, T *of_lanes, T *sums, T *firsts, int64_t blocks) {
  double means[n], average = 0, others = 0;
  #pragma omp simd reduction(+:average)
  for (int c = 0; c < n; ++c) {
    means[c] = (double)firsts[c] + (double)sums[c] / (double)blocks;
    average += means[c] - ((double)firsts[0] + (double)sums[0] / (double)blocks);
  }
  average = means[0] + average / n; // of equal means that mean
  #pragma omp simd reduction(+:others)
  for (int c = 0; c < n; ++c) {
    const double far = means[c] - average, sum = (double)sums[c];
    const double inside = (double)of_lanes[c] - sum * sum / (double)blocks;
    others += (inside < 0 ? 0 : inside) + (double)blocks * far * far;
  }
  add_moments(squares, mean, count, others, average, (double)(n * blocks));
}
""",
    "add_compensated": """\
// What the sum's rounding loses goes to `low` (Knuth, TAOCP 2, 4.2.2, theorem B).
INLINE void add_compensated(double &sum, double &low, double x) {
  const double total = sum + x, back = total - sum;
  low += (sum - (total - back)) + (x - back);
  sum = total;
}
""",
    "scan_sum": """\
typedef double quad __attribute__((vector_size(32)));
typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef double four_doubles __attribute__((vector_size(32), aligned(8), may_alias));
INLINE void get_quad(const double *from, quad &x) { x = *(const four_doubles *)from; }
INLINE void get_quad(const float *from, quad &x) {
#ifdef __AVX__ // GCC 12 makes of the conversion below two of half as many
  typedef float floats __attribute__((vector_size(16)));
  x = (quad)__builtin_ia32_cvtps2pd256((floats)*(const four_floats *)from);
#else
  x = __builtin_convertvector(*(const four_floats *)from, quad);
#endif
}
INLINE void set_quad(double *to, const quad &x) { *(four_doubles *)to = x; }
INLINE void set_quad(float *to, const quad &x) {
  *(four_floats *)to = __builtin_convertvector(x, four_floats);
}
// Running sums of a row, or of one from its end: of neighbours, within four elements (the order in
// which the fewest move between the halves of a vector), then of all before.
template <bool reverse, class T, class U>
INLINE void scan_sum(const T *from, U *to, int64_t count, double &carry) {
  typedef int64_t lanes __attribute__((vector_size(32)));
  const quad zero = {};
  const lanes one = reverse ? lanes{5, 1, 7, 3} : lanes{0, 4, 2, 6};
  const lanes two = reverse ? lanes{6, 6, 2, 3} : lanes{0, 1, 5, 5};
  const int64_t last = reverse ? 0 : 3;
  quad before = {carry, carry, carry, carry};
  int64_t done = 0;
  for (; done + 4 <= count; done += 4) {
    const int64_t i = reverse ? count - 4 - done : done;
    quad x;
    get_quad(from + i, x);
    x += __builtin_shuffle(zero, x, one);
    x += __builtin_shuffle(zero, x, two);
    set_quad(to + i, x + before);
    before += __builtin_shuffle(x, lanes{last, last, last, last});
  }
  carry = before[0];
  for (; done < count; ++done) {
    const int64_t i = reverse ? count - 1 - done : done;
    carry += from[i];
    to[i] = (U)carry;
  }
}
""",
    "log_add_exp": """\
// ln(e**a + e**b); equal infinities give themselves.
INLINE double log_add_exp(double a, double b) {
  if (a == b && __builtin_isinf(a)) return a;
  const double high = a > b || a != a ? a : b, low = a > b || a != a ? b : a;
  return high + log1p(exp(low - high));
}
""",
    "sort_row": """\
// Keys that order as the values do, NaN last, zeros of both signs as one: 32 bits beside the
// position, so that no two are equal; of 8-byte values the position stands apart, and merging keeps
// equals in order.
template <class T, int bytes = sizeof(T)> struct sort_key {
  uint64_t bits;
  bool operator<(sort_key other) const { return bits < other.bits; }
  void set(T value, bool down, int64_t at) {
    uint32_t key;
    if constexpr (T(0.5) != T(0)) {
      const uint32_t raw = __builtin_bit_cast(uint32_t, (float)value + 0.0f);
      key = value != value ? ~0u : raw >> 31 ? ~raw : raw | 0x80000000u;
    } else {
      key = (uint32_t)(int32_t)value ^ 0x80000000u;
    }
    bits = (uint64_t)(down ? ~key : key) << 32 | (uint64_t)at;
  }
  int32_t position() const { return (int32_t)bits; }
};
template <class T> struct sort_key<T, 8> {
  uint64_t bits;
  int32_t at;
  bool operator<(const sort_key &other) const { return bits < other.bits; }
  void set(T value, bool down, int64_t position) {
    const uint64_t sign = 1ul << 63;
    if constexpr (T(0.5) != T(0)) {
      const uint64_t raw = __builtin_bit_cast(uint64_t, (double)value + 0.0);
      bits = value != value ? ~0ul : raw >> 63 ? ~raw : raw | sign;
    } else {
      bits = (uint64_t)value ^ sign;
    }
    if (down) bits = ~bits;
    at = (int32_t)position;
  }
  int32_t position() const { return at; }
};
// The positions that sort a row: runs sorted by insertion, then merged. `keys` holds 2 * count.
template <bool down, class T>
static void sort_row(const T *row, int64_t count, sort_key<T> *keys, int32_t *order) {
  const int64_t run = 8;
  for (int64_t i = 0; i < count; ++i) keys[i].set(row[i], down, i);
  for (int64_t begin = 0; begin < count; begin += run) {
    const int64_t end = begin + run < count ? begin + run : count;
    for (int64_t i = begin + 1; i < end; ++i) {
      const sort_key<T> key = keys[i];
      int64_t j = i;
      for (; j > begin && key < keys[j - 1]; --j) keys[j] = keys[j - 1];
      keys[j] = key;
    }
  }
  sort_key<T> *from = keys, *to = keys + count;
  for (int64_t width = run; width < count; width *= 2) {
    for (int64_t begin = 0; begin < count; begin += 2 * width) {
      const int64_t middle = begin + width < count ? begin + width : count;
      const int64_t end = middle + width < count ? middle + width : count;
      int64_t i = begin, j = middle, k = begin;
      while (i < middle && j < end) {
        const bool second = from[j] < from[i];
        to[k++] = second ? from[j] : from[i];
        j += second;
        i += !second;
      }
      while (i < middle) to[k++] = from[i++];
      while (j < end) to[k++] = from[j++];
    }
    sort_key<T> *const done = to;
    to = from;
    from = done;
  }
  for (int64_t i = 0; i < count; ++i) order[i] = from[i].position();
}
""",
    "bfloat16": """\
// NaN becomes the one with all bits, as in eager's vectors: a mask, since GCC joins selections with
// those before them, and narrows each.
INLINE float from_bfloat16(uint16_t bits) {
  return __builtin_bit_cast(float, (uint32_t)bits << 16);
}
INLINE uint32_t rounded_bits(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), nan = -(uint32_t)(x != x);
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  return rounded | nan;
}
INLINE uint16_t to_bfloat16(float x) { return (uint16_t)(rounded_bits(x) >> 16); }
INLINE float rounded_bfloat16(float x) {
  return __builtin_bit_cast(float, rounded_bits(x) & 0xffff0000u);
}
""",
    "words_of_bfloat16": """\
// Two neighbours in a word, the first in its low half: at any place where one may be.
typedef uint32_t neighbours __attribute__((aligned(2), may_alias));
INLINE uint32_t load_word(const uint16_t *from) { return *(const neighbours *)from; }
INLINE float low_half(uint32_t word) { return __builtin_bit_cast(float, word << 16); }
INLINE float high_half(uint32_t word) { return __builtin_bit_cast(float, word & 0xffff0000u); }
INLINE void store_word(uint16_t *to, uint32_t low, uint32_t high) {
  *(neighbours *)to = low >> 16 | (high & 0xffff0000u);
}
INLINE float selected(uint32_t mask, float a, float b) {
  const uint32_t x = __builtin_bit_cast(uint32_t, a), y = __builtin_bit_cast(uint32_t, b);
  return __builtin_bit_cast(float, (x & mask) | (y & ~mask));
}
""",
    "float16": """\
// A half's exponent and fraction, moved to a float's place, are 2**112 too small; a product
// corrects that, for subnormals too.
INLINE float from_float16(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = (uint32_t)(bits & 0x7fff) << 13;
  const float scaled = __builtin_bit_cast(float, rest) * 0x1p112f;
  const uint32_t usual = __builtin_bit_cast(uint32_t, scaled);
  const uint32_t special = rest >= 0x0f800000 ? rest | 0x7f800000 : usual;
  return __builtin_bit_cast(float, sign | special);
}
// Normal halves round by integer arithmetic, ties to even; subnormal ones by a float addition with
// their ulp.
INLINE uint16_t to_float16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  const uint32_t normal = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
  const float tiny = __builtin_bit_cast(float, rest) + 0.5f;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, tiny) - 0x3f000000;
  const uint32_t finite = rest < 0x38800000 ? subnormal : normal;
  const uint32_t large = rest > 0x7f800000 ? 0x7e00 : 0x7c00;
  return (uint16_t)(sign | (rest >= 0x477ff000 ? large : finite));
}
""",
}


FUNCTIONS["stage_tile"] = stage_tile()
FUNCTIONS["one_plus_erf"] = one_plus_erf()
FUNCTIONS.update({one.name: cpp_conversions(one) for one in FLOAT8.values()})

FUNCTIONS["rows_of_halves"] = ROWS_OF_HALVES
FUNCTIONS["one_float16"] = ONE_FLOAT16

FUNCTIONS["stream_line"] = """\
// A share of the last-level cache: results that are larger do not stay there for their readers.
#ifndef CACHE_BYTES
#define CACHE_BYTES (32 << 20)
#endif
#define CACHE_SHARE 3
#if defined(__AVX512F__)
typedef float streamed __attribute__((vector_size(64), aligned(4), may_alias));
#define STREAM(to, x) __builtin_ia32_movntps512((float *)(to), x)
#elif defined(__AVX__)
typedef float streamed __attribute__((vector_size(32), aligned(4), may_alias));
#define STREAM(to, x) __builtin_ia32_movntps256((float *)(to), x)
#elif defined(__SSE__)
typedef float streamed __attribute__((vector_size(16), aligned(4), may_alias));
#define STREAM(to, x) __builtin_ia32_movntps((float *)(to), x)
#endif
// Copies n elements; `around`: whole lines of memory go around the caches, where that is possible.
template <class T> INLINE void stream_line(const T *from, T *to, int64_t n, bool around) {
  int64_t i = 0;
#ifdef STREAM
  if (around) {
    const int64_t step = sizeof(streamed) / sizeof(T);
    for (; i < n && (uint64_t)(to + i) % 64; ++i) to[i] = from[i];
    for (; i + 64 / (int64_t)sizeof(T) <= n;)
      for (int64_t stop = i + 64 / sizeof(T); i < stop; i += step)
        STREAM(to + i, *(const streamed *)(from + i));
  }
#endif
  #pragma omp simd
  for (int64_t k = i; k < n; ++k) to[k] = from[k];
}
// The same of a tile's row, of whole lines of memory.
template <class T> INLINE void stream_row(const T *from, T *to, int64_t n, bool around) {
#ifdef STREAM
  const int64_t step = sizeof(streamed) / sizeof(T);
  if (around && (uint64_t)to % 64 == 0) {
    for (int64_t i = 0; i < n; i += step) STREAM(to + i, *(const streamed *)(from + i));
    return;
  }
#endif
  #pragma omp simd
  for (int64_t k = 0; k < n; ++k) to[k] = from[k];
}
// How many elements stand between the boundary of a line of memory and a place in it.
template <class T> INLINE int64_t past_boundary(const T *to) {
  return (uint64_t)to % 64 / sizeof(T);
}
// Such stores are seen by other threads in no order, unless they are waited for.
INLINE void end_streams() {
#ifdef STREAM
  __builtin_ia32_sfence();
#endif
}
"""

FUNCTIONS |= MATMUL_FUNCTIONS

_WORD = re.compile(r"[A-Za-z_]\w*")
# What to look for, where a helper's name is not the name of its entry.
_PROVIDES = {
    "SIMD_22": "SIMD", "SIMD_35": "SIMD", "SIMD_FMA": "remainder_of",
    "from_bfloat16": "bfloat16", "to_bfloat16": "bfloat16",
    "from_float16": "float16", "to_float16": "float16", "int_fmod": "int_divide",
    "int_remainder": "int_divide", "int_floor_divide": "int_divide", "float_mod": "float_remainder",
    **dict.fromkeys(
        ("widen_float16", "narrow_float16", "widen_bfloat16", "narrow_bfloat16"), "rows_of_halves"
    ),
    "shift_right": "shift_left", "float_of": "double_of", "sum_in_pairs": "in_pairs",
    "prod_in_pairs": "in_pairs", "largest_in_pairs": "extremes_in_pairs",
    "smallest_in_pairs": "extremes_in_pairs", "join_exponentials": "add_exponential",
    "join_moments": "add_moments", "end_streams": "stream_line", "past_boundary": "stream_line",
    "stream_row": "stream_line",
    "float_words": "stored_words", "bfloat16_pairs": "stored_words", "int16_pairs": "stored_words",
    "stored_bfloat16": "stored_words", "stored_int8": "stored_words", "words": "stored_words",
    "multiply_tile": "multiply_rows", "transposed": "stage_tile",
    **dict.fromkeys(("rounded_bits", "rounded_bfloat16"), "bfloat16"),
    **dict.fromkeys(
        ("load_word", "low_half", "high_half", "store_word", "selected"), "words_of_bfloat16"
    ),
    **{f"{way}_{one.name}": one.name for one in FLOAT8.values() for way in ("from", "to")},
}  # fmt: skip


@lru_cache(maxsize=1024)
def _entries_in(text: str) -> frozenset[str]:
    words = set(_WORD.findall(text))
    return frozenset({_PROVIDES.get(word, word) for word in words} & FUNCTIONS.keys())


def prelude(kernels: Iterable[str], parallel: bool) -> str:
    """The prelude for these kernel texts: the declarations that they and helpers mention."""
    pending = [entry for text in kernels for entry in _entries_in(text)]
    needed: set[str] = set()
    while pending:
        entry = pending.pop()
        if entry not in needed:
            needed.add(entry)
            pending += _entries_in(FUNCTIONS[entry])
    order = [
        *sorted(needed & _LEAVES),
        *(name for name in FUNCTIONS if name in needed and name not in _LEAVES),
    ]
    return TYPES + (THREADS if parallel else "") + "".join(FUNCTIONS[name] for name in order)


_LEAVES = frozenset({"SIMD"})
