"""C++ for the backward of an LSTM's layer in one direction, from its last step to its first: the
gradients of the gates in front of their activations.

    weights    u[p][k][j] = w[k][p * WIDTH + j]          panels of four vectors of hidden units
    gradients  dh = dout[t] + dgates[t + 1] u
               dc = dc + dh o (1 - tanh(c)^2)
               dgates[t] = (dc g i (1 - i), dc c[t - 1] f (1 - f), dc i (1 - g^2),
                            dh tanh(c) o (1 - o));  dc = dc f

The products over all steps, which give the gradients of inputs and weights, are no part of it. It
writes for them, one behind the other, the hidden states in front of each step. Threads share a
layer as they do in its recurrence (`codegen/cpp/lstm.py`).
"""

from __future__ import annotations

GRADIENT_WEIGHTS_TEXT = """\
static void gradient_weights_part(
    const float *w, float *u, const int64_t *ints, int64_t begin, int64_t end) {
  const int64_t hidden = ints[0], row = ints[1], column = ints[2];
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first = task / 4 * WIDTH, gate = task % 4;
    const int64_t lanes = hidden - first < WIDTH ? hidden - first : WIDTH;
    const float *from = w + gate * hidden * row + first * column;
    float *to = u + (first * 4 + gate * WIDTH) * hidden;
    for (int64_t k = 0; k < hidden; ++k, from += row, to += WIDTH) {
      if (column == 1 && lanes == WIDTH) {
        __builtin_memcpy(to, from, WIDTH * 4);
        continue;
      }
      for (int64_t lane = 0; lane < WIDTH; ++lane)
        to[lane] = lane < lanes ? from[lane * column] : 0;
    }
  }
}
// ints: the number of hidden units, and the steps between rows and between columns of w.
EXPORT void cpu_lstm_gradient_weights(void *const *buffers, const int64_t *ints) {
  const float *const w = (const float *)buffers[0];
  float *const u = (float *)buffers[1];
  const int64_t n = (ints[0] + WIDTH - 1) / WIDTH * 4;
  if (ints[0] * ints[0] < LAYER_WORK / 4) {
    gradient_weights_part(w, u, ints, 0, n);
    return;
  }
  #pragma omp parallel THREADS
  {
    const int64_t t = omp_get_thread_num(), count = omp_get_num_threads();
    gradient_weights_part(w, u, ints, share(n, t, count, 1), share(n, t + 1, count, 1));
  }
}
"""

GRADIENT = """\
struct backward {
  const float *gates, *cells, *out, *hx, *cx, *u;
  // Gradients of the output and of the last states; null: zeros.
  const float *dout, *dh, *dc;
  float *dgates, *dcx, *before;
  int64_t hidden, hx_row, cx_row, steps, batch;
  bool reverse;
  int64_t dout_step, dout_row, dh_row, dc_row;
  int64_t panels() const { return (hidden + WIDTH - 1) / WIDTH; }
};
// A vector of units in one row: from `h` and `c`, the gradients of the states behind the step.
INLINE floats cell_gradient(
    floats h, floats c, const float *gates, int64_t hidden, floats cell, floats before, float *to,
    int64_t lanes) {
  const floats i = load(gates, lanes), f = load(gates + hidden, lanes);
  const floats g = load(gates + 2 * hidden, lanes), o = load(gates + 3 * hidden, lanes);
  const floats t = tanh_of(cell), d = c + h * o * (1.0f - t * t);
  store(to, d * g * i * (1.0f - i), lanes);
  store(to + hidden, d * before * f * (1.0f - f), lanes);
  store(to + 2 * hidden, d * i * (1.0f - g * g), lanes);
  store(to + 3 * hidden, h * t * o * (1.0f - o), lanes);
  return d * f;
}
// A step for the units of a panel, in the rows from `first` on.
static void panel_step(
    const backward &l, int64_t step, int64_t panel, int64_t first, int64_t end) {
  const int64_t hidden = l.hidden, unit = panel * WIDTH, size = l.batch * hidden;
  const int64_t units = hidden - unit < WIDTH ? hidden - unit : WIDTH;
  const int64_t t = l.reverse ? step : l.steps - 1 - step;
  const int64_t earlier = l.reverse ? t + 1 : t - 1, later = l.reverse ? t - 1 : t + 1;
  const bool ends = step == l.steps - 1;
  const float *const h = ends ? l.hx : l.out + earlier * size;
  const float *const c = ends ? l.cx : l.cells + earlier * size;
  const int64_t h_row = ends ? l.hx_row : hidden, c_row = ends ? l.cx_row : hidden;
  const float *const dc = step ? l.dcx : l.dc;
  const int64_t dc_row = step ? hidden : l.dc_row;
  float sums[MOST_ROWS * WIDTH] __attribute__((aligned(64)));
  for (int64_t row = first; row < end; row += MOST_ROWS) {
    const int64_t count = end - row < MOST_ROWS ? end - row : MOST_ROWS;
    if (step)
      multiply_panel(
          count, l.dgates + (later * l.batch + row) * 4 * hidden, 4 * hidden,
          l.u + unit * 4 * hidden, sums, 4 * hidden, (units + VECTOR - 1) / VECTOR);
    for (int64_t r = row; r < row + count; ++r) {
      const float *const sum = step ? sums + (r - row) * WIDTH
                               : l.dh ? l.dh + r * l.dh_row + unit : nullptr;
      const float *const dout = l.dout ? l.dout + t * l.dout_step + r * l.dout_row + unit : nullptr;
      const int64_t at = r * hidden + unit, gates = (t * l.batch + r) * 4 * hidden + unit;
      __builtin_memcpy(l.before + t * size + at, h + r * h_row + unit, units * 4);
      const auto vector = [&](int64_t n, int64_t lanes) __attribute__((always_inline)) {
        const floats zero = {};
        floats dh = sum ? load(sum + n, lanes) : zero;
        if (dout) dh += load(dout + n, lanes);
        const floats next = cell_gradient(
            dh, dc ? load(dc + r * dc_row + unit + n, lanes) : zero, l.gates + gates + n, hidden,
            load(l.cells + t * size + at + n, lanes), load(c + r * c_row + unit + n, lanes),
            l.dgates + gates + n, lanes);
        store(l.dcx + at + n, next, lanes);
      };
      int64_t n = 0;
      for (; n + VECTOR <= units; n += VECTOR) vector(n, VECTOR);
      if (n < units) vector(n, units - n);
    }
  }
}
"""

RUN_GRADIENT = """\
// buffers: what the layer kept (gates, cell states, output), its initial states, the panels, the
// gradients that are given, the results. ints: hidden units, rows' steps of the states, steps,
// rows, whether in reverse; whether gradients of output, h and c are given, and their strides.
EXPORT void cpu_lstm_gate_gradients(void *const *buffers, const int64_t *ints) {
  const float *const *const from = (const float *const *)buffers;
  const float *given[3];
  int64_t at = 6;
  for (int n = 0; n < 3; ++n) given[n] = ints[6 + n] ? from[at++] : nullptr;
  float *const *const to = (float *const *)buffers + at;
  run_layer(backward{
      from[0], from[1], from[2], from[3], from[4], from[5], given[0], given[1], given[2], to[0],
      to[1], to[2], ints[0], ints[1], ints[2], ints[3], ints[4], ints[5] != 0, ints[9], ints[10],
      ints[11], ints[12]});
}
"""
