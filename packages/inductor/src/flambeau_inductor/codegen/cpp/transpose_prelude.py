"""Transposes in registers, for tiles of a transposing kernel.

A block of `side` rows of 16 bytes is transposed by interleaving row i with row i + side / 2, as
often as side has bits: a perfect shuffle each, which every machine with vectors has as an
instruction. AVX2 shuffles two blocks at once, of the rows below each other, whose results lie side
by side. AVX-512 transposes 16 x 16 words.
"""

from __future__ import annotations


def _transpose_words() -> str:
    """A 16 x 16 transpose: rows i and i + d exchange the lanes where bit d differs."""
    stages = []
    for d in (1, 2, 4, 8):
        low = ", ".join(str(lane if not lane & d else 16 + lane - d) for lane in range(16))
        high = ", ".join(str(lane + d if not lane & d else 16 + lane) for lane in range(16))
        stages.append(
            f"  {{\n    const lanes low = {{{low}}}, high = {{{high}}};\n"
            "    #pragma GCC unroll 16\n"
            f"    for (int i = 0; i < 16; ++i) if (!(i & {d})) {{\n"
            f"      const words a = row[i], b = row[i + {d}];\n"
            f"      row[i] = __builtin_shuffle(a, b, low), row[i + {d}] = "
            f"__builtin_shuffle(a, b, high);\n    }}\n  }}\n"
        )
    return f"""\
#ifdef __AVX512F__
template <> struct transposed<4> {{
  enum {{ side = 16, has_two = 0 }};
  INLINE void run(const void *from, int64_t stride, void *to, int64_t to_stride) {{
    typedef int32_t words __attribute__((vector_size(64), aligned(4), may_alias));
    typedef int32_t lanes __attribute__((vector_size(64)));
    words row[16];
    #pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) row[i] = *(const words *)((const int32_t *)from + i * stride);
{"".join(stages)}    #pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) *(words *)((int32_t *)to + i * to_stride) = row[i];
  }}
}};
#else
{_transpose_block(4, "int32_t")}#endif
"""


def _transpose_block(size: int, element: str) -> str:
    """The transpose of rows of 16 bytes, of elements of `size` bytes, and of two such blocks."""
    return f"""\
template <> struct transposed<{size}> {{
{_run("run", size, element, 1)}#ifdef __AVX2__
  enum {{ side = {16 // size}, has_two = 1 }};
{_run("run_two", size, element, 2)}#else
  enum {{ side = {16 // size}, has_two = 0 }};
#endif
}};
"""


def _run(name: str, size: int, element: str, blocks: int) -> str:
    """The function that transposes one block, or two below each other."""
    side = 16 // size
    count = blocks * side

    def shuffle(lanes: range) -> str:
        pairs = ((side * block + lane, count + side * block + lane)
                 for block in range(blocks) for lane in lanes)  # fmt: skip
        return ", ".join(f"{a}, {b}" for a, b in pairs)

    below = f"*(const block *)(place + {side} * stride)"
    all_lanes = ", ".join(map(str, range(count)))
    rows = "*(const block *)place"
    if blocks == 2:
        rows = f"__builtin_shufflevector({rows}, {below}, {all_lanes})"
    return f"""\
  INLINE void {name}(const void *from, int64_t stride, void *to, int64_t to_stride) {{
    typedef {element} block __attribute__((vector_size(16), aligned({size}), may_alias));
    typedef {element} words __attribute__((vector_size({16 * blocks}), aligned({size}), may_alias));
    const words low = {{{shuffle(range(side // 2))}}};
    const words high = {{{shuffle(range(side // 2, side))}}};
    words row[{side}], next[{side}];
    #pragma GCC unroll {side}
    for (int i = 0; i < {side}; ++i) {{
      const {element} *const place = (const {element} *)from + i * stride;
      row[i] = {rows};
    }}
    #pragma GCC unroll 4
    for (int done = 1; done < {side}; done *= 2) {{
      #pragma GCC unroll {side}
      for (int i = 0; i < {side // 2}; ++i) {{
        next[2 * i] = __builtin_shuffle(row[i], row[i + {side // 2}], low);
        next[2 * i + 1] = __builtin_shuffle(row[i], row[i + {side // 2}], high);
      }}
      #pragma GCC unroll {side}
      for (int i = 0; i < {side}; ++i) row[i] = next[i];
    }}
    #pragma GCC unroll {side}
    for (int i = 0; i < {side}; ++i) *(words *)(({element} *)to + i * to_stride) = row[i];
  }}
"""


def stage_tile() -> str:
    """The function that reads a tile along lines of memory."""
    blocks = (
        _transpose_block(1, "int8_t"),
        _transpose_block(2, "int16_t"),
        _transpose_words(),
        _transpose_block(8, "int64_t"),
    )
    return f"""\
template <int size> struct transposed;
{"".join(blocks)}\
// Asks for the lines of the next tile, `next` elements behind this one in each of `count` rows: the
// machine does not foresee them where there are many.
template <class T>
INLINE void fetch_lines(const T *from, int64_t stride, int64_t count, int64_t next) {{
  const int64_t line = 64 / sizeof(T);
  for (int64_t c = 0; c < count; ++c)
    for (int64_t r = line - 1; r < next; r += line)
      __builtin_prefetch(from + c * stride + next + r, 0, 2);
}}
// tile[r][c] = from[c * stride + r]: a tile of a transposing kernel, read along lines of memory.
// Two blocks at once need more lines than a set of the first-level cache has where all are in one.
// Blocks are long enough without unrolling: a fifth slower with it, as measured.
template <class T, int width>
INLINE void stage_tile(const T *from, int64_t stride, int64_t rows, int64_t columns, int64_t next,
                       T (*tile)[width]) {{
  const int64_t side = transposed<sizeof(T)>::side;
  const int64_t whole_rows = rows / side * side, whole_columns = columns / side * side;
  int64_t begin = 0;
  if constexpr (transposed<sizeof(T)>::has_two)
    for (; stride * sizeof(T) % 2048 && begin + 2 * side <= columns; begin += 2 * side) {{
      fetch_lines(from + begin * stride, stride, 2 * side, next);
      #pragma GCC unroll 1
      for (int64_t r = 0; r < whole_rows; r += side)
        transposed<sizeof(T)>::run_two(from + begin * stride + r, stride, &tile[r][begin], width);
    }}
  for (int64_t c = begin; c < whole_columns; c += side) {{
    fetch_lines(from + c * stride, stride, side, next);
    #pragma GCC unroll 1
    for (int64_t r = 0; r < whole_rows; r += side)
      transposed<sizeof(T)>::run(from + c * stride + r, stride, &tile[r][c], width);
  }}
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r)
      tile[r][c] = from[c * stride + r];
}}
"""
