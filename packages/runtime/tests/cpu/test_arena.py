"""Programs whose intermediates lie in arenas, on the CPU too, beside the Python executor."""

from __future__ import annotations

import random

import pytest
import torch
from example_programs import HEAD

from flambeau_runtime import RuntimeOptions, arena, load, native
from flambeau_runtime.program import (
    Allocate,
    Extern,
    Free,
    Kernel,
    Launch,
    Program,
    Ref,
    Source,
    Tensor,
    View,
)

HALF = (
    HEAD
    + """
EXPORT void half_of(void *const *buffers, const int64_t *ints) {
  const float *x = (const float *)buffers[0];
  float *y = (float *)buffers[1];
  for (int64_t i = 0; i < ints[0]; ++i) y[i] = x[i] / 2 + 1;
}
"""
)


@pytest.fixture
def c_options(cache_dir, monkeypatch):
    if native.core() is None:
        pytest.skip(f"no C executor: {native.unavailable()}")
    monkeypatch.setattr(arena, "DEVICES", frozenset({"cpu", "cuda"}))
    return RuntimeOptions(cache_dir=cache_dir, executor="c", debug=True)


class RandomProgram:
    """Kernels, matrix products, views and reuse on matrices of 8 columns."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.tensors = [Tensor("x", (8, 8), (8, 1), "float32")]
        self.steps = []
        self.alive = {"x": 8}  # rows
        self.views = {}
        self.dead = []
        for _ in range(self.rng.randrange(4, 25)):
            self.step()
        self.outputs = tuple(self.rng.sample(sorted(self.alive), min(3, len(self.alive))))

    def program(self):
        return Program(
            inputs=("x",),
            tensors=tuple(self.tensors),
            symbols=(),
            sources=(Source("cpp", HALF),),
            kernels=(Kernel("half_of", 0),),
            steps=tuple(self.steps),
            outputs=self.outputs,
        )

    def step(self):
        rng = self.rng
        kind = rng.choice(["kernel", "kernel", "product", "product", "view", "free"])
        name = rng.choice(sorted(self.alive))
        if kind == "kernel":
            rows = self.alive[name]
            made = self.allocate(rows)
            self.steps.append(Launch("half_of", (name, made), (rows * 8,)))
        elif kind == "product":
            square = rng.choice([each for each, rows in self.alive.items() if rows == 8])
            made = self.allocate(self.alive[name])
            args = (Ref(name), Ref(square))
            self.steps.append(Extern("aten.mm.out", args, out=(("out", made),)))
        elif kind == "view" and self.alive[name] > 2:
            rows = self.alive[name] // 2
            base = next(tensor for tensor in self.tensors if tensor.name == name)
            offset = base.offset + 8 * rng.randrange(rows)
            made = self.declare(rows, offset)
            self.steps.append(View(made, name))
            self.views[made] = name
        elif kind == "free" and name not in ("x", *self.views, *self.views.values()):
            del self.alive[name]
            if rng.random() < 0.5:
                self.dead.append(name)  # its memory is taken over
            else:
                self.steps.append(Free(name))

    def allocate(self, rows):
        reuse = None
        for name in self.dead:
            if self.rows_of(name) == rows:
                reuse = name
                self.dead.remove(name)
                break
        made = self.declare(rows)
        self.steps.append(Allocate(made, reuse))
        return made

    def rows_of(self, name):
        return next(tensor.shape[0] for tensor in self.tensors if tensor.name == name)

    def declare(self, rows, offset=0):
        name = f"b{len(self.tensors)}"
        self.tensors.append(Tensor(name, (rows, 8), (8, 1), "float32", offset=offset))
        self.alive[name] = rows
        return name


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(c_options, cache_dir, seed):
    program = RandomProgram(seed).program()
    run = load(program, c_options)
    reference = load(program, RuntimeOptions(cache_dir=cache_dir, executor="python"))
    kept = []
    for _ in range(2):
        x = torch.randn(8, 8) / 3
        got, want = run(x), reference(x)
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs)
            assert mine.stride() == theirs.stride()
        kept.append((got, [tensor.clone() for tensor in got]))
    for got, then in kept:
        assert all(torch.equal(*pair) for pair in zip(got, then, strict=True)), "overwritten"


def test_most_of_them_have_arenas(monkeypatch):
    monkeypatch.setattr(arena, "DEVICES", frozenset({"cpu"}))
    placed = [len(arena.find_places(RandomProgram(seed).program()).placed) for seed in range(40)]
    assert sum(count > 1 for count in placed) > 20


def test_inputs_that_are_spent_outlive_their_views(c_options):
    """A view of an input is an address where the input outlives it."""
    steps = (
        View("v", "x"), Free("x"),
        Allocate("a"), Launch("half_of", ("v", "a"), (32,)), Free("v"),
        View("w", "a"), Allocate("out"), Launch("half_of", ("w", "out"), (32,)),
    )  # fmt: skip
    tensors = (
        Tensor("x", (8, 8), (8, 1), "float32"),
        *(Tensor(name, (4, 8), (8, 1), "float32") for name in ("v", "a", "w", "out")),
    )
    program = Program(
        inputs=("x",), tensors=tensors, symbols=(), sources=(Source("cpp", HALF),),
        kernels=(Kernel("half_of", 0),), steps=steps, outputs=("out",),
    )  # fmt: skip
    x = torch.randn(8, 8)
    want = (x[:4] / 2 + 1) / 2 + 1
    given = [x]
    del x
    (out,) = load(program, c_options).spend(given)
    torch.testing.assert_close(out, want)
