"""The node protocol: torch functions run with our SymInts, in C++ and in Python, and give what ints
give.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from flambeau_prims.evaluate import run_graph
from flambeau_prims.fake import fake_like
from flambeau_prims.function_table import FunctionTable
from flambeau_prims.graph import Graph
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.sizes_node import from_symbolic, from_symint, to_symint
from flambeau_prims.tracer import Tracer

# Each takes x: (B, S, 8) with B and S symbolic.
PROGRAMS = {
    "add": lambda x: x + x[:1],
    "arange": lambda x: x + torch.arange(x.shape[1]).unsqueeze(-1),
    "batch_flatten": lambda x: x.flatten(0, 1) * 2,
    "bmm": lambda x: x @ x.transpose(1, 2),
    "broadcast": lambda x: x * torch.ones(x.shape[1], 1),
    "cat": lambda x: torch.cat([x, x[:, :1]], 1).sum(1),
    "chunk": lambda x: torch.stack(x.chunk(2, -1)),
    "cumsum": lambda x: x.cumsum(1),
    "einsum": lambda x: torch.einsum("bsd,btd->bst", x, x),
    "expand": lambda x: x[:, :1].expand(x.shape[0], x.shape[1], 8) + 1,
    "expand_as": lambda x: x[:1].expand_as(x).sqrt().nan_to_num(),
    "eye": lambda x: torch.eye(x.shape[1]) @ x,
    "float_scale": lambda x: x * x.shape[1] ** -0.5,
    "full": lambda x: torch.full((x.shape[0],), 2.0) + x.shape[1],
    "gather": lambda x: x.gather(1, torch.zeros(x.shape[0], 1, 8, dtype=torch.long)),
    "glu": lambda x: F.glu(x),
    "group_norm": lambda x: F.group_norm(x.transpose(1, 2), 2),
    "index": lambda x: x[:, torch.arange(x.shape[1] - 1)],
    "index_negative": lambda x: x[:, -1] + x[:, 0],
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "linear": lambda x: F.linear(x, torch.ones(3, 8)),
    "masked_fill": lambda x: x.masked_fill(x > 0, -1.0),
    "matmul_vector": lambda x: x @ torch.ones(8),
    "mean": lambda x: x.mean((0, 1)),
    "narrow": lambda x: x.narrow(1, 1, x.shape[1] - 1),
    "numel": lambda x: x.sum() / x.numel(),
    "ones_like": lambda x: torch.ones_like(x) + x.new_zeros(x.shape[0], 1, 1),
    "pad": lambda x: F.pad(x, (1, 1, 0, 2)),
    "permute_reshape": lambda x: x.permute(1, 0, 2).reshape(x.shape[1], -1),
    "pool": lambda x: F.avg_pool1d(x.transpose(1, 2), 2),
    "reshape_heads": lambda x: x.view(x.shape[0], -1, 2, 4).transpose(1, 2),
    "roll": lambda x: x.roll(1, 1),
    "sdpa": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
    "select": lambda x: x.select(1, 1),
    "slice_half": lambda x: x[:, : x.shape[1] // 2] * 3,
    "softmax": lambda x: x.softmax(1),
    "sort": lambda x: x.sort(1).values,
    "split": lambda x: sum(x.split(4, -1)),
    "squeeze": lambda x: x[:, :1].squeeze(1).unsqueeze(0),
    "stack": lambda x: torch.stack([x, x], 1),
    "std": lambda x: x.std(1),
    "sum_float": lambda x: x.sum(1) / x.shape[1],
    "topk": lambda x: x.topk(2, 1).values,
    "tril": lambda x: torch.tril(torch.ones(x.shape[1], x.shape[1])) @ x,
    "unbind": lambda x: sum(x.unbind(-1)),
    "unflatten": lambda x: x.unflatten(-1, (2, 4)),
    "view_merge": lambda x: x.view(x.size(0) * x.size(1), x.size(2)),
    "where": lambda x: torch.where(x > 0, x, x.shape[0] * 1.0),
    "math_sqrt": lambda x: x / torch.sym_sqrt(x.shape[1]),
    "max_int": lambda x: x[:, : torch.sym_max(x.shape[1] - 1, 1)],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_traced_once_runs_at_other_sizes(name):
    fn = PROGRAMS[name]
    env = SizeEnv()
    tracer = Tracer(env)
    x = tracer.adopt(fake_like(torch.randn(3, 6, 8), env, [0, 1], source="x"), "x")
    with FunctionTable(), tracer:
        y = fn(x)
    constants = tracer.constants
    graph = Graph([*tracer.inputs, *constants], tracer.nodes, [y.value], env=env)
    for shape in ((3, 6, 8), (5, 4, 8), (2, 9, 8)):
        real = torch.randn(*shape)
        values = {"s0": shape[0], "s1": shape[1]}
        (got,) = run_graph(graph, [real, *constants.values()])
        want = fn(real)
        torch.testing.assert_close(got, want)
        assert tuple(env.evaluate(size, values) for size in y.spec.shape) == tuple(want.shape)
        strides = [env.evaluate(size, values) for size in y.spec.stride]
        assert all(
            size == 1 or a == b
            for size, a, b in zip(want.shape, strides, want.stride(), strict=True)
        )
    # One size decides nothing else: only lower bounds may have been tightened.
    assert all(guard.op in (">=", "!=") for guard in env.guards), [
        str(guard) for guard in env.guards
    ]


def make():
    env = SizeEnv()
    return env, env.symbol(8, "b"), env.symbol(128, "s")


def test_round_trip_is_identity():
    _, b, _ = make()
    symint = to_symint(b)
    assert isinstance(symint, torch.SymInt) and to_symint(b) is symint
    assert from_symint(symint) is b and from_symint(5) == 5 and to_symint(5) == 5


def test_arithmetic_in_python():
    env, b, s = make()
    x, y = to_symint(b), to_symint(s)
    assert from_symint(x * y + 3 - x) is b * s + 3 - b
    assert from_symint(3 * x // 2) is 3 * b // 2
    assert from_symint(100 - x) is 100 - b and from_symint(-x) is -b
    assert from_symint(y % x) is s % b and from_symint(1000 // x) is 1000 // b
    assert from_symint(torch.sym_max(x, 3)).hint == 8 and from_symint(torch.sym_min(x, y)).hint == 8
    assert from_symint(x**2) is b * b
    assert from_symint(torch.sym_int(y / 2)) is s // 2
    assert from_symint(math.floor(y / 3)) is s // 3
    assert from_symint(math.ceil(y / 3)) is -(-s // 3)
    assert from_symbolic(y / x).hint == 16.0
    assert from_symbolic(x**-0.5).hint == 8**-0.5
    assert len(env.guards) == 2


def test_relations_guard_when_asked():
    env, b, s = make()
    x, y = to_symint(b), to_symint(s)
    question = x < y
    assert len(env.guards) == 2
    assert question
    assert [str(guard) for guard in env.guards[2:]] == ["s0 < s1"]
    assert (x != 1) is True and (x * 2 != 5) is True
    assert torch.sym_not(y > 200)
    assert bool((x > 3) & (y > 3))
    assert int(x) == 8
    assert any(str(guard) == "s0 == 8" for guard in env.guards)


def test_iteration_and_indexing_specialise():
    env, b, _ = make()
    assert len(range(to_symint(b))) == 8
    assert [0] * to_symint(b).__index__() == [0] * 8
    assert any(str(guard) == "s0 == 8" for guard in env.guards)
