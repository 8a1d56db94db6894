"""Random graphs of primitives: every fusion and layout decision, against the primitives'
references.
"""

from __future__ import annotations

import operator
import random
import threading

import pytest
import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_prims.builder import Builder
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.sizes import Expr, SizeEnv
from flambeau_prims.spec import Spec, contiguous_stride, spec_of

UNARY = ["neg", "abs", "sin", "tanh", "exp"]
BINARY = ["add", "sub", "mul", "maximum"]
SIZES = [1, 2, 3, 4, 6]


class RandomGraph:
    """Grows a graph step by step from a pool of values."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.tensors = [self.tensor() for _ in range(self.rng.randint(1, 3))]
        self.graph = Graph([Value(f"x{n}", spec_of(t)) for n, t in enumerate(self.tensors)])
        self.b = Builder(self.graph.nodes, [value.name for value in self.graph.inputs])
        self.pool = list(self.graph.inputs)
        for _ in range(self.rng.randint(3, 14)):
            made = getattr(self, self.rng.choice(STEPS))(self.rng.choice(self.pool[-5:]))
            if made.spec.numel <= 3000:
                self.pool.append(made)
        self.graph.outputs = self.rng.sample(self.pool, min(len(self.pool), self.rng.randint(1, 4)))
        self.graph.outputs.append(self.pool[-1])
        self.writes()

    def tensor(self) -> torch.Tensor:
        shape = [self.rng.choice(SIZES) for _ in range(self.rng.randint(0, 4))]
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        wide = self.rng.random() < 0.3 and bool(shape)
        laid = [shape[d] for d in order]
        memory = torch.randn([*laid[:-1], laid[-1] * 2] if wide else laid, dtype=torch.float64)
        memory = memory[..., ::2] if wide else memory
        return memory.permute([order.index(d) for d in range(len(shape))])

    def writes(self) -> None:
        """Now and then a new value for an input of the same shape, in dense memory."""
        for target in self.graph.inputs:
            fitting = [
                value
                for value in self.pool
                if value.spec.shape == target.spec.shape and value is not target
            ]
            if fitting and self.rng.random() < 0.4:
                self.graph.writes.append((target, self.rng.choice(fitting)))

    # Steps: a value in, a value out

    def unary(self, x):
        y = getattr(self.b, self.rng.choice(UNARY))(x)
        return self.b.mul(y, 0.25) if self.rng.random() < 0.3 else y

    def binary(self, x):
        fitting = [value for value in self.pool if value.spec.shape == x.spec.shape]
        return getattr(self.b, self.rng.choice(BINARY))(x, self.rng.choice(fitting))

    def broadcast(self, x):
        """x with a reduced version of itself: the heart of softmax and layer norm."""
        if not x.spec.ndim:
            return self.unary(x)
        dims = tuple(sorted(self.rng.sample(range(x.spec.ndim), self.rng.randint(1, x.spec.ndim))))
        row = self.b.tanh(getattr(self.b, self.rng.choice(["sum", "amax", "amin"]))(x, dims))
        for d in dims:
            row = self.b.unsqueeze(row, d)
        return self.b.sub(x, self.b.expand(row, x.spec.shape))

    def reduce(self, x):
        if not x.spec.ndim:
            return self.unary(x)
        dims = tuple(sorted(self.rng.sample(range(x.spec.ndim), self.rng.randint(1, x.spec.ndim))))
        return getattr(self.b, self.rng.choice(["sum", "amax", "prod"]))(self.b.tanh(x), dims)

    def positions(self, x):
        """Where the extremes of some dims are, as numbers that other steps can use; and the
        extremes, which want any order.
        """
        if not x.spec.ndim:
            return self.unary(x)
        find = getattr(self.b, self.rng.choice(["argmax", "argmin"]))
        if self.rng.random() < 0.5:
            d = self.rng.randrange(x.spec.ndim)
            found, dims = find(x, d), (d,)
        else:
            found, dims = find(self.b.reshape(x, (x.spec.numel,)), 0), tuple(range(x.spec.ndim))
        self.pool.append(self.b.amax(x, dims))
        return self.b.mul(self.b.cast(found, torch.float64), 0.01)

    def permute(self, x):
        dims = list(range(x.spec.ndim))
        self.rng.shuffle(dims)
        return self.b.permute(x, tuple(dims))

    def reshape(self, x):
        total, shape = x.spec.numel, []
        while total > 1:
            size = self.rng.choice([d for d in range(2, total + 1) if total % d == 0])
            shape.append(size)
            total //= size
        return self.b.reshape(x, tuple(shape)) if len(shape) < 6 else self.unary(x)

    def window(self, x):
        if not x.spec.ndim:
            return self.unary(x)
        d = self.rng.randrange(x.spec.ndim)
        size = x.spec.shape[d]
        if self.rng.random() < 0.3:
            return self.b.select(x, d, self.rng.randrange(size))
        start = self.rng.randrange(size)
        return self.b.slice(x, d, start, self.rng.randint(start + 1, size), self.rng.randint(1, 2))

    def pad(self, x):
        lows = [self.rng.choice([0, 0, 1, 2]) for _ in x.spec.shape]
        highs = [self.rng.choice([0, 0, 1]) for _ in x.spec.shape]
        return self.b.pad(x, tuple(lows), tuple(highs), 0.5)

    def cat(self, x):
        if not x.spec.ndim:
            return self.unary(x)
        d = self.rng.randrange(x.spec.ndim)
        parts = [
            x if self.rng.random() < 0.5 else self.unary(x)
            for _ in range(self.rng.choice([2, 3, 6]))
        ]
        return self.b.cat(parts, d)

    def flip(self, x):
        return self.b.flip(x, (self.rng.randrange(x.spec.ndim),)) if x.spec.ndim else self.unary(x)

    def gather(self, x):
        if not x.spec.ndim:
            return self.unary(x)
        d = self.rng.randrange(x.spec.ndim)
        steps = self.b.iota(
            x.spec.shape[d], x.spec.shape[d] - 1, -1, torch.int64, torch.device("cpu")
        )
        return self.b.index(x, [None] * d + [steps])

    def copy(self, x):
        """A clone in row-major or in some other dense order."""
        y = self.b.clone(x)
        order = list(range(x.spec.ndim))
        self.rng.shuffle(order)
        stride = [0] * x.spec.ndim
        for d, step in zip(order, contiguous_stride([x.spec.shape[d] for d in order]), strict=True):
            stride[d] = step
        if y is not x and y.producer is not None and y.producer.op.name == "clone":
            y.spec = y.spec.replace(shape=x.spec.shape, stride=tuple(stride))
        return y

    def extern(self, x):
        node = Node(
            torch.ops.aten.cos.default,
            (x,),
            {},
            (
                Value(
                    self.b.fresh_name(),
                    spec_of(
                        torch.empty_strided(x.spec.shape, x.spec.stride, dtype=x.spec.dtype).cos()
                    ),
                ),
            ),
        )
        node.outputs[0].producer = node
        self.graph.nodes.append(node)
        return node.outputs[0]


STEPS = ["unary", "binary", "broadcast"] * 3 + [
    "reduce",
    "positions",
    "permute",
    "reshape",
    "window",
    "pad",
    "cat",
    "flip",
    "gather",
    "copy",
    "extern",
]
OPTIONS = [
    InductorOptions(debug_checks=True),
    InductorOptions(debug_checks=True, inline_cost=1000, store_cost=100),
    InductorOptions(debug_checks=True, inline_cost=0, store_cost=-100, reduction_parts=3),
    InductorOptions(debug_checks=True, inline_cost=0, store_cost=-100, smallest_overwrite=0),
]


def own_copies(tensors):
    """The same values in the same strides, in memory of their own."""
    copies = []
    for tensor in tensors:
        extent = 1 + sum(
            (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        )
        copies.append(
            torch.zeros(extent, dtype=tensor.dtype)
            .as_strided(tensor.shape, tensor.stride())
            .copy_(tensor)
        )
    return copies


def reference(graph: Graph, tensors):
    """Outputs and the inputs' last values, everything computed before anything is written."""
    asked = [*graph.outputs, *(value for _, value in graph.writes)]
    results = run_graph(Graph(graph.inputs, graph.nodes, asked), tensors)
    strides = [result.stride() for result in results]
    results = own_copies(results)
    for (target, _), new in zip(graph.writes, results[len(graph.outputs) :], strict=True):
        tensors[graph.inputs.index(target)].copy_(new)
    return list(zip(results, strides, strict=True))[: len(graph.outputs)]


def _named(where: str):
    return lambda text: f"{where}: {text}"


def check_seed(tester, seed: int) -> None:
    made = RandomGraph(seed)
    for number, options in enumerate(OPTIONS):
        mine, theirs = own_copies(made.tensors), own_copies(made.tensors)
        _, run = tester.compile(made.graph, options)
        got = run(*mine)
        for value, a, (b, stride) in zip(
            made.graph.outputs, got, reference(made.graph, theirs), strict=True
        ):
            assert a.stride() == stride, (seed, value)
            torch.testing.assert_close(
                a, b, equal_nan=True, msg=_named(f"seed {seed}.{number}, {value}")
            )
        torch.testing.assert_close(
            mine, theirs, equal_nan=True, msg=_named(f"seed {seed}.{number}, writes")
        )


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_graphs(tester, first):
    for seed in range(first, first + 20):
        check_seed(tester, seed)


class RandomDynamicGraph(RandomGraph):
    """The same with two symbolic sizes, in shapes such as [2*s0, s1] and [s0*s1]."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.env = SizeEnv()
        self.symbols = [self.env.symbol(5, "a"), self.env.symbol(7, "b")]
        a, b = self.symbols
        choices = [1, 2, 3, a, b, 2 * a, a * b]
        shapes = [
            [self.rng.choice(choices) for _ in range(self.rng.randint(1, 3))]
            for _ in range(self.rng.randint(1, 2))
        ]
        specs = [Spec.of(shape, dtype=torch.float64) for shape in ([a], [b], *shapes)]
        self.graph = Graph([Value(f"x{n}", spec) for n, spec in enumerate(specs)], env=self.env)
        self.b = Builder(self.graph.nodes, [value.name for value in self.graph.inputs])
        self.pool = list(self.graph.inputs)
        for _ in range(self.rng.randint(3, 12)):
            self.pool.append(
                getattr(self, self.rng.choice(DYNAMIC_STEPS))(self.rng.choice(self.pool[-5:]))
            )
        self.graph.outputs = [self.rng.choice(self.pool[len(specs) :]), self.pool[-1]]

    def reshape(self, x):
        shape, (a, b) = list(x.spec.shape), self.symbols
        if len(shape) >= 2 and self.rng.random() < 0.6:
            d = self.rng.randrange(len(shape) - 1)
            return self.b.reshape(x, (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]))
        for d, size in enumerate(shape):
            parts = [a, b] if size is a * b else [a, 2] if size is 2 * a else None
            if parts:
                return self.b.reshape(x, (*shape[:d], *parts, *shape[d + 1 :]))
        return self.unary(x)

    def window(self, x):
        symbolic = [d for d, size in enumerate(x.spec.shape) if isinstance(size, Expr)]
        if not symbolic:
            return self.unary(x)
        d = self.rng.choice(symbolic)
        size = x.spec.shape[d]
        if self.rng.random() < 0.3:
            return self.b.select(x, d, self.rng.choice([0, size - 1]))
        return self.b.slice(x, d, self.rng.choice([0, 1]), size, self.rng.choice([1, 1, 2]))

    def copy(self, x):
        y = self.b.clone(x)
        if y.producer is not None and y.producer.op.name == "clone":
            y.spec = y.spec.replace(shape=x.spec.shape)
        return y


DYNAMIC_STEPS = [
    "unary",
    "binary",
    "broadcast",
    "broadcast",
    "reduce",
    "positions",
    "permute",
    "reshape",
    "window",
    "pad",
    "cat",
    "flip",
    "copy",
]


def admits(env: SizeEnv, values: dict[str, int]) -> bool:
    """Whether the guards that building the graph took hold for these sizes."""
    relations = {
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }
    return all(
        relations[g.op](env.evaluate(g.lhs, values), env.evaluate(g.rhs, values))
        for g in env.guards
    )


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_random_dynamic_graphs(tester, first):
    checked = 0
    for seed in range(first, first + 20):
        made = RandomDynamicGraph(seed)
        for options in OPTIONS:
            _, run = tester.compile(made.graph, options)
            for a, b in ((5, 7), (2, 3), (6, 4), (4, 9)):
                values = {"s0": a, "s1": b}
                if not admits(made.env, values):
                    continue
                shapes = [
                    [made.env.evaluate(size, values) for size in x.spec.shape]
                    for x in made.graph.inputs
                ]
                tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
                for mine, theirs in zip(run(*tensors), run_graph(made.graph, tensors), strict=True):
                    torch.testing.assert_close(
                        mine, theirs, equal_nan=True, msg=_named(f"seed {seed}, {values}")
                    )
                checked += 1
    assert checked > 100


# ---------------------------------------------------------------- threads: compiles share nothing

THREAD_SEEDS = range(8)


def programs(kind):
    return [
        compile_graph(kind(seed).graph, backends={"cpu": ReferenceBackend()})
        for seed in THREAD_SEEDS
    ]


def test_compiles_in_threads_equal_those_of_one_thread():
    torch.manual_seed(0)
    kinds = (RandomGraph, RandomDynamicGraph)
    want = {kind: programs(kind) for kind in kinds}
    wrong: list[str] = []

    def work(kind):
        try:
            if programs(kind) != want[kind]:
                wrong.append(f"{kind.__name__} differs")
        except Exception as error:  # to be seen in the main thread
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(kind,)) for kind in kinds for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
