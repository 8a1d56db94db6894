"""Programs written by hand, shared by the tests."""

from __future__ import annotations

import math

from flambeau_runtime.program import (
    Allocate,
    Extern,
    Float,
    Free,
    Kernel,
    Launch,
    Program,
    Ref,
    SizeExpr,
    Source,
    Symbol,
    Tensor,
    View,
)

HEAD = """\
typedef long int64_t;
#define EXPORT extern "C" __attribute__((visibility("default")))
"""

SIN_COS = (
    HEAD
    + """
extern "C" float sinf(float);
extern "C" float cosf(float);
EXPORT void sin_plus_cos(void *const *buffers, const int64_t *ints) {
  const float *x = (const float *)buffers[0];
  float *y = (float *)buffers[1];
  for (int64_t i = 0; i < ints[0]; ++i) y[i] = sinf(x[i]) + cosf(x[i]);
}
"""
)

RELU = (
    HEAD
    + """
EXPORT void relu(void *const *buffers, const int64_t *ints) {
  const float *x = (const float *)buffers[0];
  float *y = (float *)buffers[1];
  #pragma omp parallel for
  for (int64_t i = 0; i < ints[0]; ++i) y[i] = x[i] > 0 ? x[i] : 0;
}
EXPORT void add_one(void *const *buffers, const int64_t *ints) {
  float *x = (float *)buffers[0];
  for (int64_t i = 0; i < ints[0]; ++i) x[i] += 1;
}
EXPORT int64_t take(void *const *buffers, const int64_t *ints) {
  const float *x = (const float *)buffers[0];
  const int64_t at = *(const int64_t *)buffers[1];
  if (at < 0 || at >= ints[0]) return 1;
  *(float *)buffers[2] = x[at];
  return 0;
}
"""
)


def sin_cos(shape=()) -> Program:
    """sin(x) + cos(x) on one contiguous tensor of static shape."""
    stride, count = [], 1
    for size in reversed(shape):
        stride.append(count)
        count *= max(size, 1)
    layout = (tuple(shape), tuple(reversed(stride)), "float32")
    return Program(
        inputs=("x",),
        tensors=(Tensor("x", *layout), Tensor("y", *layout)),
        symbols=(),
        sources=(Source("cpp", SIN_COS),),
        kernels=(Kernel("sin_plus_cos", 0),),
        steps=(Allocate("y"), Launch("sin_plus_cos", ("x", "y"), (math.prod(shape),))),
        outputs=("y",),
        name="sin_cos",
    )


SCALE = (
    HEAD
    + """
EXPORT void scale(void *const *buffers, const int64_t *ints) {
  const float *x = (const float *)buffers[0];
  float *y = (float *)buffers[1];
  const double factor = __builtin_bit_cast(double, ints[1]);
  for (int64_t i = 0; i < ints[0]; ++i) y[i] = (float)(x[i] * factor);
}
"""
)


def scaled() -> Program:
    """x * f and x + f for a float f that is given, by a kernel and by an operator."""
    layout = ((4,), (1,), "float32")
    return Program(
        inputs=("x", "f"),
        tensors=(Tensor("x", *layout), Tensor("y", *layout), Tensor("z", *layout)),
        symbols=(Symbol("f0", 1, None, is_float=True),),
        sources=(Source("cpp", SCALE),),
        kernels=(Kernel("scale", 0),),
        steps=(
            Allocate("y"),
            Launch("scale", ("x", "y"), (4, "f0")),
            Extern("aten.add.Scalar", (Ref("x"), Float("f0")), outputs=("z",)),
        ),
        outputs=("y", "z"),
        name="scaled",
    )


def mixed() -> Program:
    """relu(x @ w + b) for any batch, by way of every kind of step; also mutates an input and
    returns ints and None.
    """
    batch = ("s0", 16)
    layout = (batch, (16, 1), "float32")
    return Program(
        inputs=("x", "w", "b", "n", "acc"),
        tensors=(
            Tensor("x", ("s0", 8), (8, 1), "float32"),
            Tensor("w", (8, 16), (16, 1), "float32"),
            Tensor("b", (16,), (1,), "float32"),
            Tensor("acc", (3,), (1,), "float32"),
            Tensor("h", *layout),
            Tensor("r", *layout),
            Tensor("r2", *layout),
            Tensor("joined", ("2*s0", 16), (16, 1), "float32"),
            Tensor("tail", *layout, offset="s0*16"),
            Tensor("scaled", *layout),
            Tensor("bits", batch, (16, 1), "int32"),
        ),
        symbols=(Symbol("s0", 0, 0), Symbol("s1", 3, None)),
        sources=(Source("cpp", RELU),),
        kernels=(Kernel("relu", 0), Kernel("add_one", 0)),
        steps=(
            Allocate("h"),
            Extern("aten.addmm.out", (Ref("b"), Ref("x"), Ref("w")), out=(("out", "h"),)),
            Allocate("r"),
            Launch("relu", ("h", "r"), ("s0*16",)),
            Allocate("r2", reuse="h"),
            Launch("relu", ("r", "r2"), ("max(s0*16, 0)",)),
            Free("r"),
            Extern("aten.cat.default", ([Ref("x"), Ref("x")], 1), outputs=(None,)),
            Extern("aten.cat.default", ([Ref("r2"), Ref("r2")], 0), outputs=("joined",)),
            Free("r2"),
            View("tail", "joined"),
            Extern(
                "aten.mul.Scalar",
                (Ref("tail"), SizeExpr("s1*2 - 7//2 - -s1 % 2")),
                outputs=("scaled",),
            ),
            View("bits", "scaled"),
            Launch("add_one", ("acc",), (3,)),
        ),
        outputs=("scaled", SizeExpr("s0*2 + min(s1, 3)"), None, "tail", "bits", "acc"),
        mutated=("acc",),
        name="mixed",
    )
