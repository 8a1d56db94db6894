"""C++ for gradients of weights of convolutions by 3x3 windows: the transpose of what
`codegen/cpp/winograd.py` computes.

    v = B^T x B of each 4x4 tile, z = A g A^T of 2x2 pixels of the result's gradient
    du = sum of v z over the tiles        16 matrix products: channels of the image x result's
    dw = G^T du G                         3x3 numbers of each pair of channels

A task sums a share of the tiles for 64 by 64 pairs of channels; there are as many tasks as the
sizes say, whatever the number of threads. A second kernel adds up the shares, in the order of the
weights. Where a sum is not finite, the task sums the products themselves.
"""

from __future__ import annotations

GRADIENT = """\
enum { SIDE = 64, TILES = 48, LEFT_ROW = SIDE + PAD, GRADIENT_ROWS = 8 };
// sums[m][n] += left[k][m] * right[k][n] for `steps` k: a register tile.
template <int rows> INLINE void add_products(
    const float *left, const float *right, float *sums, int64_t steps) {
  floats tile[rows][2];
  #pragma GCC unroll 8
  for (int m = 0; m < rows; ++m) tile[m][0] = tile[m][1] = floats{};
  for (int64_t k = 0; k < steps; ++k, left += LEFT_ROW, right += SIDE) {
    const floats b[2] = {load(right), load(right + VECTOR)};
    #pragma GCC unroll 8
    for (int m = 0; m < rows; ++m) {
      const floats a = floats{} + left[m];
      tile[m][0] = multiply_add<floats>(tile[m][0], a, b[0]);
      tile[m][1] = multiply_add<floats>(tile[m][1], a, b[1]);
    }
  }
  #pragma GCC unroll 8
  for (int m = 0; m < rows; ++m)
    for (int n = 0; n < 2; ++n) {
      float *const to = sums + m * SIDE + n * VECTOR;
      store(to, load(to) + tile[m][n]);
    }
}
// z of a tile of the result's gradient: 16 numbers of each lane, `stride` apart.
INLINE void transform_gradient(const convolution &c, tile at, float *z, int64_t stride) {
  const int64_t row = 2 * at.row, column = 2 * at.column;
  const bool below = row + 1 < c.y.rows, beside = column + 1 < c.y.columns;
  const float *const from = pixel(c.y, at.n, row, column);
  for (int64_t k = 0; k < c.lanes; k += VECTOR) {
    const float *const next = from + c.y.row_step + k;
    const floats d00 = load(from + k), zero = {};
    const floats d01 = beside ? load(from + c.y.column_step + k) : zero;
    const floats d10 = below ? load(next) : zero;
    const floats d11 = below && beside ? load(next + c.y.column_step) : zero;
    const floats t[4][2] = {{d00, d01}, {d00 + d10, d01 + d11}, {d00 - d10, d01 - d11},
                            {-d10, -d11}};
    for (int i = 0; i < 4; ++i) {
      const floats r[4] = {t[i][0], t[i][0] + t[i][1], t[i][0] - t[i][1], -t[i][1]};
      for (int j = 0; j < 4; ++j) store(z + (i * 4 + j) * stride + k, r[j]);
    }
  }
}
// The 9 sums of products of a channel for all lanes, over some tiles.
__attribute__((noinline, cold)) static void sum_channel(
    const convolution &c, int64_t channel, int64_t begin, int64_t end, float *to, int64_t stride) {
  for (int64_t tap = 0; tap < 9; ++tap)
    for (int64_t k = 0; k < c.lanes; ++k) to[tap * stride + k] = 0;
  for (int64_t number = begin; number < end; ++number) {
    const tile at = tile_of(c, number);
    for (int64_t pair = 0; pair < 4; ++pair) {
      const int64_t row = 2 * at.row + pair / 2, column = 2 * at.column + pair % 2;
      if (row >= c.y.rows || column >= c.y.columns) continue;
      const float *const gradient = pixel(c.y, at.n, row, column);
      for (int64_t tap = 0; tap < 9; ++tap) {
        const int64_t y = row - c.top + tap / 3, x = column - c.left + tap % 3;
        if (y < 0 || y >= c.x.rows || x < 0 || x >= c.x.columns) continue;
        const float factor = pixel(c.x, at.n, y, x)[channel];
        for (int64_t k = 0; k < c.lanes; k += VECTOR) {
          float *const sum = to + tap * stride + k;
          store(sum, multiply_add<floats>(load(sum), floats{} + factor, load(gradient + k)));
        }
      }
    }
  }
}
// dw of a channel from du; what is not 0 in the result is NaN.
INLINE floats write_gradient(const float *du, float *to, int64_t stride, int64_t k) {
  floats t[3][4], bad = {};
  for (int j = 0; j < 4; ++j) {
    const int64_t next = SIDE * SIDE;
    const float *const from = du + j * next + k;
    const floats a = load(from), b = load(from + 4 * next), d = load(from + 8 * next);
    const floats half = 0.5f * (b + d);
    t[0][j] = a + half, t[1][j] = 0.5f * (b - d), t[2][j] = half + load(from + 12 * next);
  }
  for (int i = 0; i < 3; ++i) {
    const floats half = 0.5f * (t[i][1] + t[i][2]);
    const floats r[3] = {t[i][0] + half, 0.5f * (t[i][1] - t[i][2]), half + t[i][3]};
    for (int j = 0; j < 3; ++j) {
      store(to + (i * 3 + j) * stride + k, r[j]);
      bad += r[j] - r[j];
    }
  }
  return bad;
}
static void gradient_part(
    const convolution &all, float *shares, int64_t parts, int64_t begin, int64_t end) {
  const int64_t tiles = all.y.count * all.tile_rows * all.tile_columns;
  const int64_t rows = (all.channels + SIDE - 1) / SIDE, columns = (all.lanes + SIDE - 1) / SIDE;
  float v[16 * TILES * LEFT_ROW] __attribute__((aligned(64)));
  float z[16 * TILES * SIDE] __attribute__((aligned(64)));
  float du[16 * SIDE * SIDE] __attribute__((aligned(64)));
  for (int64_t task = begin; task < end; ++task) {
    const int64_t part = task / columns / rows;
    const int64_t channel = task / columns % rows * SIDE, lane = task % columns * SIDE;
    convolution c = all;
    c.x.pixels += channel, c.y.pixels += lane;
    c.channels = all.channels - channel < SIDE ? all.channels - channel : SIDE;
    c.lanes = all.lanes - lane < SIDE ? all.lanes - lane : SIDE;
    for (int64_t k = 0; k < 16 * SIDE * SIDE; ++k) du[k] = 0;
    const int64_t last = share(tiles, part + 1, parts, 1);
    for (int64_t first = share(tiles, part, parts, 1); first < last; first += TILES) {
      const int64_t count = last - first < TILES ? last - first : TILES;
      for (int64_t t = 0; t < count; ++t) {
        const tile at = tile_of(c, first + t);
        transform_tile(c, at, v + t * LEFT_ROW, TILES * LEFT_ROW);
        transform_gradient(c, at, z + t * SIDE, TILES * SIDE);
      }
      for (int64_t p = 0; p < 16; ++p)
        for (int64_t k = 0; k < c.lanes; k += WIDTH)
          for (int64_t m = 0; m < c.channels; m += GRADIENT_ROWS)
            add_products<GRADIENT_ROWS>(
                v + p * TILES * LEFT_ROW + m, z + p * TILES * SIDE + k,
                du + (p * SIDE + m) * SIDE + k, count);
    }
    for (int64_t m = 0; m < c.channels; ++m) {
      float *const to = shares + ((part * all.channels + channel + m) * 9) * all.lanes + lane;
      floats bad = {};
      for (int64_t k = 0; k < c.lanes; k += VECTOR)
        bad += write_gradient(du + m * SIDE, to, all.lanes, k);
      bool is_bad = false;
      for (int j = 0; j < VECTOR; ++j) is_bad |= bad[j] != 0;
      const int64_t first = share(tiles, part, parts, 1);
      if (is_bad) sum_channel(c, m, first, last, to, all.lanes);
    }
  }
}
// buffers: the image, the result's gradient, the shares. ints: as those of a convolution; the
// last one is the number of shares.
EXPORT void cpu_winograd_gradient(void *const *buffers, const int64_t *ints) {
  const convolution c = convolution_of(ints, (float *)buffers[0], (float *)buffers[1]);
  const int64_t rows = (c.channels + SIDE - 1) / SIDE, columns = (c.lanes + SIDE - 1) / SIDE;
  float *const shares = (float *)buffers[2];
  const int64_t parts = ints[20], n = rows * columns * parts;
  PARALLEL(n, gradient_part(c, shares, parts, begin, end))
}
static void shares_part(
    const float *shares, float *w, const int64_t *ints, int64_t begin, int64_t end) {
  const int64_t channels = ints[0], lanes = ints[2], parts = ints[20], blocks = channels / 16;
  float block[16 * 9][WIDTH] __attribute__((aligned(64)));
  for (int64_t task = begin; task < end; ++task) {
    const int64_t lane = task / blocks * WIDTH, first = task % blocks * 16;
    const float *const from = shares + first * 9 * lanes + lane;
    for (int64_t row = 0; row < 16 * 9; ++row)
      for (int64_t k = 0; k < WIDTH; k += VECTOR) {
        floats sum = load(from + row * lanes + k);
        for (int64_t part = 1; part < parts; ++part)
          sum += load(from + (part * channels * 9 + row) * lanes + k);
        store(block[row] + k, sum);
      }
    float *const to = w + lane * ints[3] + first * ints[1];
    for (int64_t k = 0; k < WIDTH; ++k)
      for (int64_t c = 0; c < 16; ++c)
        for (int i = 0; i < 3; ++i)
          for (int j = 0; j < 3; ++j)
            to[k * ints[3] + c * ints[1] + i * ints[5] + j * ints[6]] = block[c * 9 + i * 3 + j][k];
  }
}
// buffers: the shares, the gradient of the weights.
EXPORT void cpu_winograd_gradient_sum(void *const *buffers, const int64_t *ints) {
  const float *const shares = (const float *)buffers[0];
  float *const w = (float *)buffers[1];
  const int64_t n = ints[0] / 16 * (ints[2] / WIDTH);
  PARALLEL(n, shares_part(shares, w, ints, begin, end))
}
"""
