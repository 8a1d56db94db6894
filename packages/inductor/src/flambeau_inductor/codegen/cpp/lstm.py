"""C++ for the recurrence of an LSTM's layer, in one direction.

    weights     u[p][k][g][j] = w[g * H + p * V + j][k]        panels of V hidden units
    recurrence  s = x[t] + b + h[t - 1] u                      four vectors for each row and panel
                c = sigmoid(s[1]) c + sigmoid(s[0]) tanh(s[2]);  h[t] = sigmoid(s[3]) tanh(c)

For a backward (`codegen/cpp/lstm_gradient.py`) it stores the gates behind their activations and the
cell states of all steps, too; the gates may overwrite `x`. A vector's lanes are hidden units, so
that the four gates of a unit come to lie in one lane, and nothing is exchanged between lanes. One
source serves all layers: sizes and strides are arguments.

Threads take rows of the batch each, where there are enough: they never wait for each other. Where
there are not, the threads of a group of rows take panels each, and wait for each other after each
step. A thread that has computed its share computes what others have not begun, so that none waits
for one that sleeps or has not come yet. Each sum is the same whichever thread computes it.
"""

from __future__ import annotations

from flambeau_inductor.codegen.cpp.lstm_gradient import (
    GRADIENT,
    GRADIENT_WEIGHTS_TEXT,
    RUN_GRADIENT,
)
from flambeau_inductor.codegen.cpp.prelude import prelude
from flambeau_inductor.lowering.lstm import (
    GATE_GRADIENTS,
    GRADIENT_WEIGHTS,
    RECURRENCE,
    TRAINING_RECURRENCE,
    WEIGHTS,
)
from flambeau_runtime.program import Kernel, Source

NAMES = {
    WEIGHTS: "cpu_lstm_weights",
    RECURRENCE: "cpu_lstm_recurrence",
    TRAINING_RECURRENCE: "cpu_lstm_training_recurrence",
    GRADIENT_WEIGHTS: "cpu_lstm_gradient_weights",
    GATE_GRADIENTS: "cpu_lstm_gate_gradients",
}
"""What is called -> the kernel."""

_SETTINGS = """\
#if defined(__AVX512F__)
enum { BYTES = 64, VECTORS = 4 };
#elif defined(__AVX__)
enum { BYTES = 32, VECTORS = 2 };
#else
enum { BYTES = 16, VECTORS = 2 };
#endif
// A register tile has ROWS rows; DEPTH weights of a panel stay in the first-level cache.
enum { VECTOR = BYTES / 4, WIDTH = 4 * VECTOR, ROWS = 6, DEPTH = 128, MOST_ROWS = 48 };
// Threads share a layer from so many products each; those that meet after a step, from so many in
// the step. They take rows, so many at least, where a second-level cache holds the weights: each
// thread reads all of them in each step.
enum { LAYER_WORK = 1 << 19, STEP_WORK = 1 << 16, CACHED = 3 << 19, LEAST_ROWS = 4 };
// A thread looks so often for what it waits for before it sleeps.
enum { SPINS = 256 };
"""

_WEIGHTS = """\
static void weights_part(
    const float *w, float *u, const int64_t *ints, int64_t begin, int64_t end) {
  const int64_t hidden = ints[0], row = ints[1], column = ints[2], side = transposed<4>::side;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first = task / 4 * VECTOR, gate = task % 4;
    const int64_t lanes = hidden - first < VECTOR ? hidden - first : VECTOR;
    const float *const from = w + (gate * hidden + first) * row;
    float *const to = u + first * 4 * hidden + gate * VECTOR;
    int64_t k = 0;
    if (lanes == VECTOR && column == 1)
      for (; k + side <= hidden; k += side)
        for (int64_t lane = 0; lane < VECTOR; lane += side)
          transposed<4>::run(from + lane * row + k, row, to + k * WIDTH + lane, WIDTH);
    for (; k < hidden; ++k)
      for (int64_t lane = 0; lane < VECTOR; ++lane)
        to[k * WIDTH + lane] = lane < lanes ? from[lane * row + k * column] : 0;
  }
}
// ints: the number of hidden units, and the steps between rows and between columns of w.
EXPORT void cpu_lstm_weights(void *const *buffers, const int64_t *ints) {
  const float *const w = (const float *)buffers[0];
  float *const u = (float *)buffers[1];
  const int64_t n = (ints[0] + VECTOR - 1) / VECTOR * 4;
  if (ints[0] * ints[0] < LAYER_WORK / 4) {
    weights_part(w, u, ints, 0, n);
    return;
  }
  #pragma omp parallel THREADS
  {
    const int64_t t = omp_get_thread_num(), count = omp_get_num_threads();
    weights_part(w, u, ints, share(n, t, count, 4), share(n, t + 1, count, 4));
  }
}
"""

_CELL = """\
typedef words<BYTES>::floats floats;
typedef words<BYTES>::unsigneds unsigneds;
INLINE floats load(const float *from, int64_t lanes) {
  if (lanes == VECTOR) return load_as<floats>(from);
  floats value = {};
  for (int64_t j = 0; j < lanes; ++j) value[j] = from[j];
  return value;
}
INLINE void store(float *to, floats value, int64_t lanes) {
  if (lanes == VECTOR)
    __builtin_memcpy(to, &value, BYTES);
  else
    for (int64_t j = 0; j < lanes; ++j) to[j] = value[j];
}
// exp(x) as exp_of computes it, and exp(x) - 1: 2**n * expm1(r) + 2**n, and + (2**n - 1). Beyond 80
// on either side it makes no difference to the gates.
struct exponentials {
  floats whole, less_one;
};
INLINE exponentials exponentials_of(floats x) {
  const floats zero = {}, least = zero - 80.0f, most = zero + 80.0f, magic = zero + 12582912.0f;
  x = x < least ? least : x;
  x = x > most ? most : x;
  const floats shifted = multiply_add(magic, x, zero + 1.44269504f), n = shifted - magic;
  floats r = multiply_add(x, n, zero - 0.693145752f);
  r = multiply_add(r, n, zero - 1.42860677e-6f);
  floats q = multiply_add(zero + 0x1.123dp-7f, r, zero + 0x1.6db676p-10f);
  q = multiply_add(zero + 0x1.55545cp-5f, q, r);
  q = multiply_add(zero + 0x1.55548cp-3f, q, r);
  q = multiply_add(zero + 0.5f, q, r);
  const floats scale = (floats)(((unsigneds)shifted << 23) + 0x3f800000);
  const floats rest = multiply_add(r, r * r, q);
  return {multiply_add(scale, scale, rest), multiply_add(scale - 1.0f, scale, rest)};
}
INLINE floats expm1_of(floats x) { return exponentials_of(x).less_one; }
INLINE floats magnitude_of(floats x) { return (floats)((unsigneds)x & 0x7fffffffu); }
INLINE floats with_sign(floats x, floats from) {
  return (floats)((unsigneds)x | ((unsigneds)from & 0x80000000u));
}
// sigmoid(gate) * tanh(x), with one division.
INLINE floats gated(floats gate, floats x) {
  const floats e = expm1_of(-2.0f * magnitude_of(x));
  return with_sign(-e / ((2.0f + expm1_of(-gate)) * (2.0f + e)), x);
}
// What derivatives are computed from: near 1 what is left to 1 counts, so that is what is rounded.
INLINE floats sigmoid_of(floats x) {
  const floats e = exponentials_of(-magnitude_of(x)).whole, small = e / (1.0f + e);
  return x < 0.0f ? small : 1.0f - small;
}
INLINE floats tanh_of(floats x) {
  const floats size = magnitude_of(x);
  const exponentials e = exponentials_of(-2.0f * size);
  const auto is_small = size < 0.5f;
  const floats quotient = (is_small ? -e.less_one : 2.0f * e.whole) / (1.0f + e.whole);
  return with_sign(is_small ? quotient : 1.0f - quotient, x);
}
// One row's units of a panel: `sums` are those of h, `x` those of the inputs, gate by gate; the
// gates behind their activations go to `kept`.
template <bool keeps>
INLINE void cell(
    const float *sums, const float *x, int64_t hidden, const float *bias, const float *from_c,
    float *c, float *h, float *kept, int64_t lanes) {
  floats gates[4];
  #pragma GCC unroll 4
  for (int gate = 0; gate < 4; ++gate)
    gates[gate] = load_as<floats>(sums + gate * VECTOR) + load(x + gate * hidden, lanes) +
                  load_as<floats>(bias + gate * VECTOR);
  if constexpr (keeps) {
    #pragma GCC unroll 4
    for (int gate = 0; gate < 4; ++gate)
      gates[gate] = gate == 2 ? tanh_of(gates[gate]) : sigmoid_of(gates[gate]);
    const floats next = gates[1] * load(from_c, lanes) + gates[0] * gates[2];
    store(c, next, lanes);
    store(h, gates[3] * tanh_of(next), lanes);
    #pragma GCC unroll 4
    for (int gate = 0; gate < 4; ++gate) store(kept + gate * hidden, gates[gate], lanes);
  } else {
    const floats forgotten = load(from_c, lanes) / (2.0f + expm1_of(-gates[1]));
    const floats next = forgotten + gated(gates[0], gates[2]);
    store(c, next, lanes);
    store(h, gated(gates[3], next), lanes);
  }
}
"""

_TILES = """\
template <int rows, int vectors>
INLINE void multiply(
    int64_t count, const float *left, int64_t row, const float *u, float *sums, int64_t steps,
    bool first) {
  if constexpr (rows > 1)
    if (count < rows) {
      multiply<rows - 1, vectors>(count, left, row, u, sums, steps, first);
      return;
    }
  multiply_tile<float_words, stored_words, BYTES, rows, vectors>(
      (const char *)left, row * 4, (const char *)u, WIDTH * 4, (char *)sums, WIDTH * 4, steps,
      first);
}
// sums[r][n] = left[r][k] u[k][n] for `depth` k, and `vectors` of the four of a panel.
INLINE void multiply_panel(
    int64_t count, const float *left, int64_t row, const float *u, float *sums, int64_t depth,
    int64_t vectors) {
  for (int64_t k = 0; k < depth; k += DEPTH)
    for (int64_t at = 0, rows; at < count; at += rows) {
      const int64_t left_over = count - at, steps = depth - k < DEPTH ? depth - k : DEPTH;
      const int64_t tiles = (left_over + ROWS - 1) / ROWS;
      rows = (left_over + tiles - 1) / tiles;
      const float *const from = left + at * row + k, *const panel = u + k * WIDTH;
      float *const to = sums + at * WIDTH;
      for (int64_t n = 0, width; n < vectors; n += width) {
        width = (vectors - n) * 2 > VECTORS ? VECTORS : 1;
        if (width == VECTORS)
          multiply<ROWS, VECTORS>(
              rows, from, row, panel + n * VECTOR, to + n * VECTOR, steps, k == 0);
        else
          multiply<ROWS, 1>(rows, from, row, panel + n * VECTOR, to + n * VECTOR, steps, k == 0);
      }
    }
}
"""

_RECURRENCE = """\
template <bool keeps> struct layer {
  const float *x, *u, *hx, *cx, *biases[2];
  float *out, *h, *c, *gates, *cells;
  int64_t hidden, hx_row, cx_row, steps, batch;
  bool reverse;
  int64_t panels() const { return (hidden + VECTOR - 1) / VECTOR; }
};
// A step for the units of a panel, in the rows from `first` on.
template <bool keeps>
static void panel_step(
    const layer<keeps> &l, int64_t step, int64_t panel, int64_t first, int64_t end) {
  const int64_t hidden = l.hidden, unit = panel * VECTOR, size = l.batch * hidden;
  const int64_t lanes = hidden - unit < VECTOR ? hidden - unit : VECTOR;
  const int64_t t = l.reverse ? l.steps - 1 - step : step, before = l.reverse ? t + 1 : t - 1;
  const float *const h = step ? l.out + before * size : l.hx;
  const float *const from_c = !step ? l.cx : keeps ? l.cells + before * size : l.c;
  float *const to_c = keeps ? l.cells + t * size : l.c;
  const int64_t h_row = step ? hidden : l.hx_row, c_row = step ? hidden : l.cx_row;
  float sums[MOST_ROWS * WIDTH] __attribute__((aligned(64)));
  float bias[WIDTH] __attribute__((aligned(64))) = {};
  for (int n = 0; n < 2 && l.biases[n]; ++n)
    for (int64_t gate = 0; gate < 4; ++gate)
      for (int64_t j = 0; j < lanes; ++j)
        bias[gate * VECTOR + j] += l.biases[n][gate * hidden + unit + j];
  for (int64_t row = first; row < end; row += MOST_ROWS) {
    const int64_t count = end - row < MOST_ROWS ? end - row : MOST_ROWS;
    multiply_panel(count, h + row * h_row, h_row, l.u + unit * hidden * 4, sums, hidden, 4);
    for (int64_t r = row; r < row + count; ++r) {
      const int64_t at = r * hidden + unit, gates = (t * l.batch + r) * 4 * hidden + unit;
      const float *const x = l.x + gates, *const old = from_c + r * c_row + unit;
      const float *const sum = sums + (r - row) * WIDTH;
      float *const c = to_c + at, *const to = l.out + t * size + at;
      float *const kept = keeps ? l.gates + gates : nullptr;
      if (lanes == VECTOR)
        cell<keeps>(sum, x, hidden, bias, old, c, to, kept, VECTOR);
      else
        cell<keeps>(sum, x, hidden, bias, old, c, to, kept, lanes);
      if (step == l.steps - 1) {
        __builtin_memcpy(l.h + at, to, lanes * 4);
        if constexpr (keeps) __builtin_memcpy(l.c + at, c, lanes * 4);
      }
    }
  }
}
"""

_THREADS = """\
// What the threads of a group know of each other: `done` panels of all steps, in a line of memory;
// then a line for each thread, the panels of its share that are taken.
struct alignas(64) progress {
  int64_t count;
};
// A panel of a share of `size` that nobody has taken in this step; -1: there is none.
INLINE int64_t take(progress &taken, int64_t step, int64_t size) {
  int64_t at = __atomic_load_n(&taken.count, __ATOMIC_RELAXED);
  while (at < (step + 1) * size)
    if (__atomic_compare_exchange_n(
            &taken.count, &at, at + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return at - step * size;
  return -1;
}
extern "C" int usleep(unsigned int) noexcept;
INLINE void wait_for(progress &done, int64_t all) {
  for (int spins = 0; __atomic_load_n(&done.count, __ATOMIC_ACQUIRE) < all; ++spins) {
    if (spins >= SPINS) usleep(20);
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}
struct sharing {
  int64_t groups, members;
};
// How many groups of rows there are, and how many threads in each, of at most `most`.
template <class L> static sharing share_layer(const L &l, int64_t most) {
  const int64_t weights = 4 * l.hidden * l.hidden, panels = l.panels();
  const int64_t paid = weights * l.batch * l.steps / LAYER_WORK;
  if (paid < most) most = paid;
  if (most < 2) return {1, 1};
  const int64_t full = weights * 4 > CACHED ? 1 : l.batch / LEAST_ROWS;
  const int64_t groups = full < 1 ? 1 : full < most ? full : most;
  int64_t members = most / groups;
  const int64_t step = weights * (l.batch / groups) / STEP_WORK;
  if (step < members) members = step;
  if (panels < members) members = panels;
  return {groups, members < 1 ? 1 : members};
}
template <class L>
static void layer_part(const L &l, sharing s, int64_t t, progress *groups) {
  const int64_t group = t / s.members, member = t % s.members, panels = l.panels();
  const int64_t first = share(l.batch, group, s.groups, 1);
  const int64_t end = share(l.batch, group + 1, s.groups, 1);
  progress *const done = groups + group * (s.members + 1), *const taken = done + 1;
  for (int64_t step = 0; step < l.steps; ++step) {
    if (s.members == 1) {
      for (int64_t panel = 0; panel < panels; ++panel) panel_step(l, step, panel, first, end);
      continue;
    }
    for (int64_t i = 0; i < s.members; ++i) {  // its own share, then what others have not taken
      const int64_t of = (member + i) % s.members, begin = share(panels, of, s.members, 1);
      const int64_t size = share(panels, of + 1, s.members, 1) - begin;
      for (int64_t at; (at = take(taken[of], step, size)) >= 0;) {
        panel_step(l, step, begin + at, first, end);
        __atomic_add_fetch(&done->count, 1, __ATOMIC_RELEASE);
      }
    }
    wait_for(*done, (step + 1) * panels);
  }
}
template <class L> static void run_layer(const L &l) {
  const sharing s = share_layer(l, MAX_THREADS);
  if (s.groups * s.members == 1) {
    layer_part(l, s, 0, nullptr);
    return;
  }
  const int64_t lines = s.groups * (s.members + 1);
  progress *const groups = (progress *)__builtin_alloca_with_align(lines * 64, 512);
  for (int64_t line = 0; line < lines; ++line) groups[line].count = 0;
  #pragma omp parallel num_threads(s.groups * s.members)
  {
    const int64_t t = omp_get_thread_num(), count = omp_get_num_threads();
    // The runtime may give fewer threads than it has been asked for.
    const sharing real = count < s.groups * s.members ? share_layer(l, count) : s;
    if (t < real.groups * real.members) layer_part(l, real, t, groups);
  }
}
"""

_RUN = """\
template <bool keeps> static void run(void *const *buffers, const int64_t *ints) {
  const int64_t outs = ints[6] ? 6 : 4;
  const float *const *const from = (const float *const *)buffers;
  float *const *const to = (float *const *)buffers + outs;
  run_layer(layer<keeps>{
      from[0], from[1], from[2], from[3],
      {ints[6] ? from[4] : nullptr, ints[6] ? from[5] : nullptr}, to[0], to[1], to[2],
      keeps ? to[3] : nullptr, keeps ? to[4] : nullptr, ints[0], ints[1], ints[2], ints[3],
      ints[4], ints[5] != 0});
}
// buffers: the inputs' products, the panels, the states, two biases if there are any, the results.
// ints: hidden units, rows' steps of the states, steps, rows, whether in reverse, with biases.
"""

_ENTRY = """\
EXPORT void {name}(void *const *buffers, const int64_t *ints) {{ run<{keeps}>(buffers, ints); }}
"""


def lstm_source(call: str, threads: int) -> tuple[Source, tuple[Kernel, ...]]:
    """The translation unit for what is called, and the unit's kernels, whose `source` is 0;
    `threads`: 0 for as many as OpenMP has.
    """
    limits = f"""\
#define MAX_THREADS {threads or "omp_get_max_threads()"}
#define THREADS {f"num_threads({threads})" if threads else ""}
"""
    names: tuple[str, ...] = (call,)
    if call == WEIGHTS:
        parts = [_WEIGHTS]
    elif call in (RECURRENCE, TRAINING_RECURRENCE):
        keeps = "true" if call == TRAINING_RECURRENCE else "false"
        entry = _ENTRY.format(name=NAMES[call], keeps=keeps)
        parts = [_CELL, _TILES, _RECURRENCE, _THREADS, _RUN, entry]
    else:
        names = (GRADIENT_WEIGHTS, GATE_GRADIENTS)
        parts = [GRADIENT_WEIGHTS_TEXT, _CELL, _TILES, GRADIENT, _THREADS, RUN_GRADIENT]
    text = "".join([limits, _SETTINGS, *parts])
    kernels = tuple(Kernel(NAMES[name], 0) for name in names)
    return Source("cpp", prelude([text], parallel=True) + text), kernels


def layer_sources(trains: bool, threads: int) -> list[Source]:
    """The translation units of a layer: of its forward, or of forward and backward."""
    calls = [WEIGHTS, TRAINING_RECURRENCE, GATE_GRADIENTS] if trains else [WEIGHTS, RECURRENCE]
    return [lstm_source(call, threads)[0] for call in calls]
