"""C++ for matrix products: register tiles over vectors of 32-bit words.

A word is one float, a pair of bfloat16 or int16 numbers, or four int8 numbers that lie one behind
the other along the inner axis: one step multiplies them and adds up the products. Of four int8
numbers those on the left are uint8: 128 is added to them. One loop serves all dtypes:

    for each word k: b = right[k] (vectors); for each row m: sums[m] = step(sums[m], left[m][k], b)
"""

from __future__ import annotations

WORDS = """\
template <int bytes> struct words {
  typedef float floats __attribute__((vector_size(bytes)));
  typedef int32_t ints __attribute__((vector_size(bytes)));
  typedef uint32_t unsigneds __attribute__((vector_size(bytes)));
  typedef int16_t shorts __attribute__((vector_size(bytes)));
  typedef uint16_t half_shorts __attribute__((vector_size(bytes / 2)));
  typedef short half_floats __attribute__((vector_size(bytes / 2)));
  typedef int8_t half_chars __attribute__((vector_size(bytes / 2)));
};
// A value of type V from memory of any type and alignment.
template <class V> INLINE V load_as(const void *from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}
// sum + a * b in each lane, rounded once where the machine can.
template <class V> INLINE V multiply_add(V sum, V a, V b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) return (V)__builtin_ia32_vfmaddps512_mask(a, b, sum, -1, 4);
#endif
#if defined(__FMA__)
  if constexpr (sizeof(V) == 32) return (V)__builtin_ia32_vfmaddps256(a, b, sum);
  if constexpr (sizeof(V) == 16) return (V)__builtin_ia32_vfmaddps(a, b, sum);
#endif
  return sum + a * b;
}
// The steps: `words` are the operands' bits.
struct float_words {
  typedef float element;
  template <int bytes> struct lanes { typedef typename words<bytes>::floats type; };
  template <class S, class W> static inline __attribute__((always_inline)) S step(S sum, W a, W b) {
    return multiply_add<S>(sum, (S)a, (S)b);
  }
};
struct bfloat16_pairs {
  typedef float element;
  typedef uint16_t bits;
  static const int64_t longest = 1024;  // sums that the tile unit adds up one after another
  template <int bytes> struct lanes { typedef typename words<bytes>::floats type; };
  template <class S, class W> static inline __attribute__((always_inline)) S step(S sum, W a, W b) {
#if defined(__AVX512BF16__)
    if constexpr (sizeof(S) == 64) {
      asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a));
      return sum;
    }
#endif
    const int32_t high = -65536;
    sum = multiply_add<S>(sum, (S)(a << 16), (S)(b << 16));
    return multiply_add<S>(sum, (S)(a & high), (S)(b & high));
  }
};
struct int16_pairs {
  typedef int32_t element;
  template <int bytes> struct lanes { typedef typename words<bytes>::ints type; };
  template <class S, class W> static inline __attribute__((always_inline)) S step(S sum, W a, W b) {
    typedef typename words<sizeof(S)>::shorts shorts;
#if defined(__AVX512VNNI__)
    if constexpr (sizeof(S) == 64) {
      asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
      return sum;
    }
#endif
#if defined(__AVX512BW__)
    if constexpr (sizeof(S) == 64)
      return sum + (S)__builtin_ia32_pmaddwd512_mask((shorts)a, (shorts)b, W{}, -1);
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(S) == 32) return sum + (S)__builtin_ia32_pmaddwd256((shorts)a, (shorts)b);
#endif
    return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
  }
};
struct int8_quads {
  typedef int32_t element;
  template <int bytes> struct lanes { typedef typename words<bytes>::ints type; };
  template <class S, class W> static inline __attribute__((always_inline)) S step(S sum, W a, W b) {
#if defined(__AVX512VNNI__)
    if constexpr (sizeof(S) == 64) {
      asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
      return sum;
    }
#endif
#if defined(__AVXVNNI__)
    if constexpr (sizeof(S) == 32) {
      asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
      return sum;
    }
#endif
    for (int byte = 0; byte < 4; ++byte)
      sum += (a >> 8 * byte & 255) * (b << (24 - 8 * byte) >> 24);
    return sum;
  }
};
// The same numbers as int8, for the tile unit. Vectors take them as uint8, 128 above, and subtract
// 128 times the right ones.
struct signed_int8_quads {
  typedef int32_t element;
  typedef int8_t bits;
  static const int64_t longest = INT64_MAX / 2;
  template <int bytes> struct lanes { typedef typename words<bytes>::ints type; };
  template <class S, class W> static inline __attribute__((always_inline)) S step(S sum, W a, W b) {
    const W middle = W{} + (int32_t)0x80808080;
    return int8_quads::step(sum, a ^ middle, b) - int8_quads::step(S{}, middle, b);
  }
};
// A vector of the right operand's words, from memory where an element may take half as much.
struct stored_words {
  static const int narrower = 1;
  template <int bytes> static inline __attribute__((always_inline)) typename words<bytes>::ints
  load(const void *from) { return load_as<typename words<bytes>::ints>(from); }
};
struct stored_bfloat16 {
  static const int narrower = 2;
  template <int bytes> static inline __attribute__((always_inline)) typename words<bytes>::ints
  load(const void *from) {
    typedef typename words<bytes>::half_shorts narrow;
    typedef typename words<bytes>::unsigneds wide;
    const wide bits = __builtin_convertvector(load_as<narrow>(from), wide) << 16;
    return (typename words<bytes>::ints)bits;
  }
};
struct stored_int8 {
  static const int narrower = 2;
  template <int bytes> static inline __attribute__((always_inline)) typename words<bytes>::ints
  load(const void *from) {
    typedef typename words<bytes>::half_chars narrow;
    typedef typename words<bytes>::shorts wide;
    return (typename words<bytes>::ints)__builtin_convertvector(load_as<narrow>(from), wide);
  }
};
"""

STORED_FLOAT16 = """\
struct stored_float16 {
  static const int narrower = 2;
  template <int bytes> static inline __attribute__((always_inline)) typename words<bytes>::ints
  load(const void *from) {
    typedef typename words<bytes>::half_floats narrow;
    typedef typename words<bytes>::ints ints;
#if defined(__AVX512F__)
    typedef float floats __attribute__((vector_size(64)));
    if constexpr (bytes == 64)
      return (ints)__builtin_ia32_vcvtph2ps512_mask(load_as<narrow>(from), floats{}, -1, 4);
#endif
#if defined(__F16C__)
    if constexpr (bytes == 32) return (ints)__builtin_ia32_vcvtph2ps256(load_as<narrow>(from));
#endif
    typename words<bytes>::floats result;
    for (int c = 0; c < bytes / 4; ++c) result[c] = from_float16(((const uint16_t *)from)[c]);
    return (ints)result;
  }
};
"""

MULTIPLY_ROWS = """\
// A register tile: sums[m][n] (+)= left[m][k] * right[k][n] for `steps` words k. Strides count
// bytes. `first`: the sums are written, not added to: long sums are sums of sums of `steps`, which
// rounds less.
template <class STEP, class STORED, int bytes, int rows, int vectors>
static void multiply_tile(
    const char *left, int64_t left_stride, const char *right, int64_t right_stride, char *sums,
    int64_t sums_stride, int64_t steps, bool first) {
  typedef typename STEP::template lanes<bytes>::type S;
  typedef typename words<bytes>::ints W;
  const int64_t vector = bytes / STORED::narrower;
  S tile[rows][vectors];
  #pragma GCC unroll 32
  for (int m = 0; m < rows; ++m) {
    #pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) tile[m][n] = S{};
  }
  for (int64_t k = 0; k < steps; ++k, right += right_stride) {
    W b[vectors];
    #pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) b[n] = STORED::template load<bytes>(right + n * vector);
    #pragma GCC unroll 32
    for (int m = 0; m < rows; ++m) {
      const W a = W{} + load_as<int32_t>(left + m * left_stride + 4 * k);
      #pragma GCC unroll 8
      for (int n = 0; n < vectors; ++n) tile[m][n] = STEP::step(tile[m][n], a, b[n]);
    }
  }
  #pragma GCC unroll 32
  for (int m = 0; m < rows; ++m) {
    #pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) {
      char *const to = sums + m * sums_stride + n * bytes;
      const S sum = first ? tile[m][n] : load_as<S>(to) + tile[m][n];
      __builtin_memcpy(to, &sum, bytes);
    }
  }
}
// `count` rows: tiles of `rows`, then of half as many.
template <class STEP, class STORED, int bytes, int rows, int vectors>
static void multiply_rows(
    int64_t count, const char *left, int64_t left_stride, const char *right, int64_t right_stride,
    char *sums, int64_t sums_stride, int64_t steps, bool first) {
  for (; count >= rows; count -= rows, left += rows * left_stride, sums += rows * sums_stride)
    multiply_tile<STEP, STORED, bytes, rows, vectors>(
        left, left_stride, right, right_stride, sums, sums_stride, steps, first);
  if constexpr (rows > 1)
    if (count)
      multiply_rows<STEP, STORED, bytes, rows / 2, vectors>(
          count, left, left_stride, right, right_stride, sums, sums_stride, steps, first);
}
"""

MULTIPLY_DOTS = """\
// sums[m][n] (+)= the dot product of left[m] and right[n], each `size` bytes long.
template <class STEP, class STORED, int bytes, int rows, int columns>
static void dot_tile(
    const char *left, int64_t left_stride, const char *right, int64_t right_stride, char *sums,
    int64_t sums_stride, int64_t size, bool first) {
  typedef typename STEP::template lanes<bytes>::type S;
  typedef typename STEP::element E;
  typedef typename words<bytes>::ints W;
  const int64_t vector = bytes / STORED::narrower;
  S tile[rows][columns];
  #pragma GCC unroll 8
  for (int m = 0; m < rows; ++m) {
    #pragma GCC unroll 8
    for (int n = 0; n < columns; ++n) tile[m][n] = S{};
  }
  int64_t at = 0;
  for (; at + vector <= size; at += vector) {
    W b[columns];
    #pragma GCC unroll 8
    for (int n = 0; n < columns; ++n)
      b[n] = STORED::template load<bytes>(right + n * right_stride + at);
    #pragma GCC unroll 8
    for (int m = 0; m < rows; ++m) {
      const W a = STORED::template load<bytes>(left + m * left_stride + at);
      #pragma GCC unroll 8
      for (int n = 0; n < columns; ++n) tile[m][n] = STEP::step(tile[m][n], a, b[n]);
    }
  }
  if (at < size) {
    char rest[rows + columns][vector] = {};
    for (int n = 0; n < columns; ++n)
      __builtin_memcpy(rest[n], right + n * right_stride + at, size - at);
    for (int m = 0; m < rows; ++m)
      __builtin_memcpy(rest[columns + m], left + m * left_stride + at, size - at);
    #pragma GCC unroll 8
    for (int m = 0; m < rows; ++m) {
      const W a = STORED::template load<bytes>(rest[columns + m]);
      #pragma GCC unroll 8
      for (int n = 0; n < columns; ++n)
        tile[m][n] = STEP::step(tile[m][n], a, STORED::template load<bytes>(rest[n]));
    }
  }
  #pragma GCC unroll 8
  for (int m = 0; m < rows; ++m) {
    #pragma GCC unroll 8
    for (int n = 0; n < columns; ++n) {
      char *const to = sums + m * sums_stride + n * sizeof(E);
      E sum = sum_of_lanes<E, bytes>(tile[m][n]);
      if (!first) sum += load_as<E>(to);
      __builtin_memcpy(to, &sum, sizeof(E));
    }
  }
}
template <class STEP, class STORED, int bytes, int rows, int columns>
static void dot_rows(
    int64_t count, const char *left, int64_t left_stride, const char *right, int64_t right_stride,
    char *sums, int64_t sums_stride, int64_t size, bool first) {
  for (; count >= rows; count -= rows, left += rows * left_stride, sums += rows * sums_stride)
    dot_tile<STEP, STORED, bytes, rows, columns>(
        left, left_stride, right, right_stride, sums, sums_stride, size, first);
  if constexpr (rows > 1)
    if (count)
      dot_rows<STEP, STORED, bytes, rows / 2, columns>(
          count, left, left_stride, right, right_stride, sums, sums_stride, size, first);
}
// A panel of `wanted` lanes, all rows of it before the next.
template <class STEP, class STORED, int bytes, int rows, int columns>
static void multiply_dots(
    int64_t wanted, int64_t count, const char *left, int64_t left_stride, const char *right,
    int64_t right_stride, char *sums, int64_t sums_stride, int64_t size, bool first) {
  typedef typename STEP::element E;
  for (; wanted >= columns; wanted -= columns) {
    dot_rows<STEP, STORED, bytes, rows, columns>(
        count, left, left_stride, right, right_stride, sums, sums_stride, size, first);
    right += columns * right_stride;
    sums += columns * sizeof(E);
  }
  if constexpr (columns > 1)
    if (wanted)
      multiply_dots<STEP, STORED, bytes, rows, columns / 2>(
          wanted, count, left, left_stride, right, right_stride, sums, sums_stride, size, first);
}
"""

SUM_OF_LANES = """\
// By values: where the address of a vector is taken, GCC keeps all of a register tile in memory.
template <class E, int bytes, class V> INLINE E sum_of_lanes(V v) {
  if constexpr (bytes == 4) {
    return v[0];
  } else {
    typedef E half __attribute__((vector_size(bytes / 2)));
    struct pair { half low, high; };
    const pair parts = __builtin_bit_cast(pair, v);
    return sum_of_lanes<E, bytes / 2>(parts.low + parts.high);
  }
}
"""

MULTIPLY_TILES = """\
// The tile unit (AMX): 2 x 2 tiles of 16 x 16 sums, 16 words deep; operands hold whole blocks of 16
// words. After each block `rest` does something else while the unit works: it takes 64 cycles for
// its four products, and leaves the vector units free.
// Linux gives a process its tile registers when it asks (arch_prctl, ARCH_REQ_XCOMP_PERM), here
// as the library is loaded.
#if defined(__AMX_BF16__) || defined(__AMX_INT8__)
extern "C" long syscall(long, ...) noexcept;
static const bool may_use_tiles = syscall(158, 0x1023, 18) == 0;
#define TILE_LOAD(tile, from, stride) \\
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(stride) : "memory")
#define TILE_STORE(tile, to, stride) \\
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(stride) : "memory")
#define TILE_MULTIPLY(sum, left, right) \\
  if constexpr (sizeof(typename STEP::bits) == 1) \\
    asm volatile("tdpbssd %%tmm" #right ", %%tmm" #left ", %%tmm" #sum : :); \\
  else \\
    asm volatile("tdpbf16ps %%tmm" #right ", %%tmm" #left ", %%tmm" #sum : :)
#define TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile : :)
struct tile_settings {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
#endif
// `rows`: how many rows of the left operand, up to 32, the registers are set for.
struct tile_unit {
  int64_t rows = 0;
  void set(int64_t wanted) {
#if defined(__AMX_BF16__) || defined(__AMX_INT8__)
    if (wanted == rows) return;
    rows = wanted;
    tile_settings settings __attribute__((aligned(64))) = {};
    settings.palette = 1;
    const uint8_t high = rows < 16 ? rows : 16, low = rows > 16 ? rows - 16 : 16;
    const uint8_t heights[8] = {high, high, low, low, high, low, 16, 16};
    for (int tile = 0; tile < 8; ++tile)
      settings.row_bytes[tile] = 64, settings.rows[tile] = heights[tile];
    asm volatile("ldtilecfg %0" : : "m"(settings));
#endif
  }
  ~tile_unit() {
#if defined(__AMX_BF16__) || defined(__AMX_INT8__)
    if (rows) asm volatile("tilerelease" : :);
#endif
  }
};
// A block of results: their place, and their sums.
template <class E> struct tile_block {
  int64_t task, group, first_row, rows, first_lane, lanes;
  const E *sums;
};
template <class STEP, class STORED, int bytes, int vectors, class REST>
INLINE void multiply_tiles(
    tile_unit &unit, int64_t count, const char *left, int64_t left_stride, const char *right,
    int64_t right_stride, char *sums, int64_t sums_stride, int64_t steps, const REST &rest) {
#if defined(__AMX_BF16__) || defined(__AMX_INT8__)
  typedef typename STEP::element E;
  if (may_use_tiles) {
    for (; count > 0; count -= 32, left += 32 * left_stride, sums += 32 * sums_stride) {
      const bool tall = count > 16;
      unit.set(count < 32 ? count : 32);
      for (int64_t begin = 0; begin < steps; begin += STEP::longest) {
        const int64_t end = begin + STEP::longest < steps ? begin + STEP::longest : steps;
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (int64_t k = begin; k < end; k += 16) {
          TILE_LOAD(4, left + 4 * k, left_stride);
          TILE_LOAD(6, right + k * right_stride, right_stride);
          TILE_LOAD(7, right + k * right_stride + 64, right_stride);
          if (tall) TILE_LOAD(5, left + 16 * left_stride + 4 * k, left_stride);
          TILE_MULTIPLY(0, 4, 6);
          TILE_MULTIPLY(1, 4, 7);
          if (tall) {
            TILE_MULTIPLY(2, 5, 6);
            TILE_MULTIPLY(3, 5, 7);
          }
          rest();
        }
        E block[32 * 32] __attribute__((aligned(64)));
        char *const to = begin ? (char *)block : sums;
        const int64_t stride = begin ? 128 : sums_stride;
        TILE_STORE(0, to, stride);
        TILE_STORE(1, to + 64, stride);
        if (tall) {
          TILE_STORE(2, to + 16 * stride, stride);
          TILE_STORE(3, to + 16 * stride + 64, stride);
        }
        if (begin)
          for (int64_t m = 0; m < unit.rows; ++m) {
            E *const sum = (E *)(sums + m * sums_stride);
            for (int64_t n = 0; n < 32; ++n) sum[n] += block[32 * m + n];
          }
      }
    }
    return;
  }
#endif
  multiply_rows<STEP, STORED, bytes, 12, vectors>(
      count, left, left_stride, right, right_stride, sums, sums_stride, steps, true);
}
"""

ROW_GROUPS = """\
// Rows in groups: where one ends, all rows at the last one's end; and the blocks that cover them.
INLINE int64_t end_of_group(const int32_t *ends, int64_t group, int64_t count, int64_t rows) {
  const int64_t end = group < 0 ? 0 : group == count - 1 ? rows : ends[group];
  return end < 0 ? 0 : end > rows ? rows : end;
}
INLINE int64_t blocks_of_group(
    const int32_t *ends, int64_t group, int64_t count, int64_t rows, int64_t block) {
  const int64_t size =
      end_of_group(ends, group, count, rows) - end_of_group(ends, group - 1, count, rows);
  return size > 0 ? (size + block - 1) / block : 0;
}
INLINE int64_t blocks_of_groups(const int32_t *ends, int64_t count, int64_t rows, int64_t block) {
  int64_t blocks = 0;
  for (int64_t group = 0; group < count; ++group)
    blocks += blocks_of_group(ends, group, count, rows, block);
  return blocks;
}
"""

MATMUL_FUNCTIONS = {
    "stored_words": WORDS,
    "stored_float16": STORED_FLOAT16,
    "multiply_rows": MULTIPLY_ROWS,
    "multiply_tiles": MULTIPLY_TILES,
    "blocks_of_groups": ROW_GROUPS,
    "multiply_dots": SUM_OF_LANES + MULTIPLY_DOTS,
}
"""Entries of `prelude.FUNCTIONS`."""
