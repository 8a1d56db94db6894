"""C++ for convolutions by 3x3 windows through Winograd's F(2x2, 3x3).

    weights      u = G w G^T                         16 matrices: channels of the image x result's
    convolution  v = B^T x B of each 4x4 tile        16 matrices: tiles x channels of the image
                 m = v u                             16 matrix products
                 y = A^T m A                         2x2 pixels of each tile

One source serves all convolutions: sizes and strides are arguments. A task is a row of tiles whose
`v` stays in the second-level cache; it is multiplied by panels of two vectors of the result's
channels, and `m` of a panel is transformed at once. What a task computes does not depend on how
many there are, nor on the threads.

Where the image or the weights hold infinities or NaNs, differences of the transforms spread them to
pixels that do not depend on them. Results that are not finite are therefore computed again as the
sums that they are.
"""

from __future__ import annotations

from flambeau_inductor.codegen.cpp.prelude import prelude
from flambeau_inductor.codegen.cpp.winograd_gradient import GRADIENT
from flambeau_inductor.lowering.winograd import (
    CONVOLUTION,
    GRADIENT_SHARES,
    GRADIENT_SUM,
    WEIGHTS,
)
from flambeau_runtime.program import Kernel, Source

NAMES = {
    WEIGHTS: "cpu_winograd_weights",
    CONVOLUTION: "cpu_winograd_convolution",
    GRADIENT_SHARES: "cpu_winograd_gradient",
    GRADIENT_SUM: "cpu_winograd_gradient_sum",
}
"""What is called -> the kernel."""

UNITS = (WEIGHTS, CONVOLUTION), (GRADIENT_SHARES, GRADIENT_SUM)
"""What is in one translation unit."""

_SETTINGS = """\
#if defined(__AVX512F__)
enum { BYTES = 64, ROWS = 14 };
#elif defined(__AVX__)
enum { BYTES = 32, ROWS = 6 };
#else
enum { BYTES = 16, ROWS = 6 };
#endif
enum { VECTOR = BYTES / 4, WIDTH = 2 * VECTOR, DEPTH = 256, PAD = 16 };
typedef words<BYTES>::floats floats;
INLINE void store(float *to, floats value) { __builtin_memcpy(to, &value, BYTES); }
INLINE floats load(const float *from) { return load_as<floats>(from); }
"""

_WEIGHTS = """\
// The weight of an image's channel for one of the result's lies at channel * ints[1] + lane *
// ints[3], its 3 x 3 numbers from ints[4] on at steps of ints[5] and ints[6].
static void weights_part(
    const float *w, float *u, const int64_t *ints, int64_t begin, int64_t end) {
  const int64_t channels = ints[0], step = ints[1], lane_step = ints[3];
  const int64_t row = ints[5], column = ints[6], blocks = channels / 16;
  float block[16 * 9][WIDTH] __attribute__((aligned(64)));
  for (int64_t task = begin; task < end; ++task) {
    const int64_t panel = task / blocks, first = task % blocks * 16;
    const float *const from = w + ints[4] + panel * WIDTH * lane_step + first * step;
    for (int64_t lane = 0; lane < WIDTH; ++lane)
      for (int64_t c = 0; c < 16; ++c)
        for (int i = 0; i < 3; ++i)
          for (int j = 0; j < 3; ++j)
            block[c * 9 + i * 3 + j][lane] =
                from[lane * lane_step + c * step + i * row + j * column];
    for (int64_t c = 0; c < 16; ++c)
      for (int64_t lane = 0; lane < WIDTH; lane += VECTOR) {
        floats t[4][3];
        for (int j = 0; j < 3; ++j) {
          const float(*const g)[WIDTH] = block + c * 9 + j;
          const floats a = load(g[0] + lane), b = load(g[3] + lane), d = load(g[6] + lane);
          const floats sum = 0.5f * (a + d), half = 0.5f * b;
          t[0][j] = a, t[1][j] = sum + half, t[2][j] = sum - half, t[3][j] = d;
        }
        float *const to = u + (panel * 16 * channels + first + c) * WIDTH + lane;
        for (int i = 0; i < 4; ++i) {
          const floats sum = 0.5f * (t[i][0] + t[i][2]), half = 0.5f * t[i][1];
          const floats r[4] = {t[i][0], sum + half, sum - half, t[i][2]};
          for (int j = 0; j < 4; ++j) store(to + (i * 4 + j) * channels * WIDTH, r[j]);
        }
      }
  }
}
EXPORT void cpu_winograd_weights(void *const *buffers, const int64_t *ints) {
  const float *const w = (const float *)buffers[0];
  float *const u = (float *)buffers[1];
  const int64_t n = ints[0] / 16 * (ints[2] / WIDTH);
  PARALLEL(n, weights_part(w, u, ints, begin, end))
}
"""

_TILES = """\
struct image {
  float *pixels;
  int64_t count, rows, columns, step, row_step, column_step;
};
struct convolution {
  image x, y;
  const float *w, *u, *bias;
  const int64_t *weights;
  int64_t channels, lanes, top, left, tile_rows, tile_columns, block;
};
struct tile {
  int64_t n, row, column;
};
// ints: those of the weights (7); n, rows and columns of the image, and its steps (6); rows and
// columns of the result, and its steps (5); the zeros above and beside the image (2); one more.
static convolution convolution_of(const int64_t *ints, float *x, float *y) {
  return {{x, ints[7], ints[8], ints[9], ints[10], ints[11], ints[12]},
          {y, ints[7], ints[13], ints[14], ints[15], ints[16], ints[17]},
          nullptr, nullptr, nullptr, ints, ints[0], ints[2], ints[18], ints[19],
          (ints[13] + 1) / 2, (ints[14] + 1) / 2, 0};
}
INLINE tile tile_of(const convolution &c, int64_t number) {
  const int64_t image = number / c.tile_columns / c.tile_rows;
  return {image, number / c.tile_columns % c.tile_rows, number % c.tile_columns};
}
INLINE float *pixel(const image &of, int64_t n, int64_t row, int64_t column) {
  return of.pixels + n * of.step + row * of.row_step + column * of.column_step;
}
// v of a tile: 16 numbers of each channel, `stride` apart.
INLINE void transform_tile(const convolution &c, tile at, float *v, int64_t stride) {
  const int64_t top = 2 * at.row - c.top, left = 2 * at.column - c.left;
  const float *from[4][4];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const int64_t row = top + i, column = left + j;
      const bool inside = row >= 0 && row < c.x.rows && column >= 0 && column < c.x.columns;
      from[i][j] = inside ? pixel(c.x, at.n, row, column) : nullptr;
    }
  const bool whole = top >= 0 && left >= 0 && top + 4 <= c.x.rows && left + 4 <= c.x.columns;
  for (int64_t k = 0; k < c.channels; k += VECTOR) {
    floats d[4][4], t[4][4];
    if (whole) {
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) d[i][j] = load(from[i][j] + k);
    } else {
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) d[i][j] = from[i][j] ? load(from[i][j] + k) : floats{};
    }
    for (int j = 0; j < 4; ++j) {
      t[0][j] = d[0][j] - d[2][j], t[1][j] = d[1][j] + d[2][j];
      t[2][j] = d[2][j] - d[1][j], t[3][j] = d[1][j] - d[3][j];
    }
    for (int i = 0; i < 4; ++i) {
      const floats a = t[i][0], b = t[i][1], e = t[i][2], f = t[i][3];
      const floats r[4] = {a - e, b + e, e - b, b - f};
      for (int j = 0; j < 4; ++j) store(v + (i * 4 + j) * stride + k, r[j]);
    }
  }
}
// The pixels of a tile from m, for the lanes of a panel; what is not 0 in the result is NaN.
INLINE floats write_tile(
    const convolution &c, tile at, const float *m, int64_t stride, int64_t lane) {
  const int64_t row = 2 * at.row, column = 2 * at.column;
  const bool below = row + 1 < c.y.rows, beside = column + 1 < c.y.columns;
  float *const to = pixel(c.y, at.n, row, column) + lane;
  floats bad = {};
  for (int64_t k = 0; k < WIDTH; k += VECTOR) {
    floats s[2][4];
    for (int j = 0; j < 4; ++j) {
      const floats a = load(m + j * stride + k), b = load(m + (4 + j) * stride + k);
      const floats d = load(m + (8 + j) * stride + k), e = load(m + (12 + j) * stride + k);
      s[0][j] = a + b + d, s[1][j] = b - d - e;
    }
    const floats bias = c.bias ? load(c.bias + lane + k) : floats{};
    for (int i = 0; i < 2; ++i) {
      const floats l = s[i][0] + s[i][1] + s[i][2], r = s[i][1] - s[i][2] - s[i][3];
      bad += (l - l) + (r - r);
      if (i == 0 || below) {
        store(to + i * c.y.row_step + k, l + bias);
        if (beside) store(to + i * c.y.row_step + c.y.column_step + k, r + bias);
      }
    }
  }
  return bad;
}
"""

_REPAIR = """\
// A number of the result, as a sum of products. In double precision none overflows on the way.
static float sum_of_products(
    const convolution &c, int64_t n, int64_t row, int64_t column, int64_t lane) {
  const int64_t *const w = c.weights;
  double sum = 0;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) {
      const int64_t y = row - c.top + i, x = column - c.left + j;
      if (y < 0 || y >= c.x.rows || x < 0 || x >= c.x.columns) continue;
      const float *const image = pixel(c.x, n, y, x);
      const float *const factor = c.w + w[4] + lane * w[3] + i * w[5] + j * w[6];
      double part = 0;
      #pragma omp simd reduction(+ : part)
      for (int64_t k = 0; k < c.channels; ++k) part += (double)image[k] * factor[k * w[1]];
      sum += part;
    }
  return (float)sum + (c.bias ? c.bias[lane] : 0);
}
// Computes the numbers of a tile again that are not finite.
__attribute__((noinline, cold)) static void repair_tile(
    const convolution &c, tile at, int64_t first) {
  for (int64_t row = 2 * at.row; row < 2 * at.row + 2; ++row)
    for (int64_t column = 2 * at.column; column < 2 * at.column + 2; ++column) {
      if (row >= c.y.rows || column >= c.y.columns) continue;
      float *const to = pixel(c.y, at.n, row, column);
      for (int64_t lane = first; lane < first + WIDTH; ++lane)
        if (to[lane] - to[lane] != 0) to[lane] = sum_of_products(c, at.n, row, column, lane);
    }
}
"""

_CONVOLUTION = """\
static void convolution_part(const convolution &c, int64_t begin, int64_t end) {
  const int64_t block = c.block, row = c.channels + PAD, stride = block * row;
  const int64_t tiles = c.y.count * c.tile_rows * c.tile_columns;
  float *const v = (float *)__builtin_alloca_with_align(16 * stride * 4, 512);
  float *const m = (float *)__builtin_alloca_with_align(16 * block * WIDTH * 4, 512);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first = task * block, count = tiles - first < block ? tiles - first : block;
    for (int64_t t = 0; t < count; ++t)
      transform_tile(c, tile_of(c, first + t), v + t * row, stride);
    for (int64_t lane = 0; lane < c.lanes; lane += WIDTH) {
      const float *const u = c.u + lane * 16 * c.channels;
      for (int64_t p = 0; p < 16; ++p)
        for (int64_t k = 0; k < c.channels; k += DEPTH)
          multiply_rows<float_words, stored_words, BYTES, ROWS, 2>(
              count, (const char *)(v + p * stride + k), row * 4,
              (const char *)(u + (p * c.channels + k) * WIDTH), WIDTH * 4,
              (char *)(m + p * block * WIDTH), WIDTH * 4,
              c.channels - k < DEPTH ? c.channels - k : DEPTH, k == 0);
      floats bad = {};
      for (int64_t t = 0; t < count; ++t)
        bad += write_tile(c, tile_of(c, first + t), m + t * WIDTH, block * WIDTH, lane);
      bool is_bad = false;
      for (int j = 0; j < VECTOR; ++j) is_bad |= bad[j] != 0;
      for (int64_t t = 0; is_bad && t < count; ++t) repair_tile(c, tile_of(c, first + t), lane);
    }
  }
}
// buffers: the image, the transformed weights, the weights, a bias if there is one, the result.
EXPORT void cpu_winograd_convolution(void *const *buffers, const int64_t *ints) {
  const bool has_bias = ints[20];
  convolution c = convolution_of(ints, (float *)buffers[0], (float *)buffers[3 + has_bias]);
  c.u = (const float *)buffers[1], c.w = (const float *)buffers[2];
  c.bias = has_bias ? (const float *)buffers[3] : nullptr;
  const int64_t tiles = c.y.count * c.tile_rows * c.tile_columns, least = ROWS == 14 ? 14 : 12;
  c.block = c.channels <= 256 ? 4 * least : c.channels <= 512 ? 2 * least : least;
  while (c.block > least && tiles < 4 * c.block * MAX_THREADS) c.block /= 2;
  const int64_t n = (tiles + c.block - 1) / c.block;
  PARALLEL(n, convolution_part(c, begin, end))
}
"""


def winograd_source(call: str, threads: int) -> tuple[Source, tuple[Kernel, ...]]:
    """The translation unit for what is called, and the unit's kernels, whose `source` is 0;
    `threads`: 0 for as many as OpenMP has.
    """
    parallel = f"""\
#define MAX_THREADS {threads or "omp_get_max_threads()"}
#define PARALLEL(n, call) \\
  _Pragma("omp parallel{f" num_threads({threads})" if threads else ""}") {{ \\
    const int64_t t = omp_get_thread_num(), count = omp_get_num_threads(); \\
    const int64_t begin = share(n, t, count, 1), end = share(n, t + 1, count, 1); \\
    call; \\
  }}
"""
    names = next(names for names in UNITS if call in names)
    parts = [_TILES, GRADIENT] if GRADIENT_SHARES in names else [
        _WEIGHTS, _TILES, _REPAIR, _CONVOLUTION
    ]  # fmt: skip
    text = "".join([parallel, _SETTINGS, *parts])
    kernels = tuple(Kernel(NAMES[name], 0) for name in names)
    return Source("cpp", prelude([text], parallel=True) + text), kernels
