"""Lowering of every primitive, against its eager reference: odd sizes, strides, empty, 0-dim."""

from __future__ import annotations

import math

import pytest
import torch

from flambeau_inductor import InductorOptions
from flambeau_inductor.lowering.reduction import REDUCTIONS
from flambeau_inductor.lowering.registry import load_all
from flambeau_inductor.lowering.scan import SCANS, SORTS
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.primitives import PRIMS, Kind
from flambeau_prims.spec import spec_of

F32, F64, I64, I32, BOOL = torch.float32, torch.float64, torch.int64, torch.int32, torch.bool
POINTWISE = [
    prim
    for prim in PRIMS.values()
    if prim.kind is Kind.POINTWISE and prim.name not in ("where", "cast")
]
LAYOUTS = ["contiguous", "transposed", "sliced", "expanded", "scalar", "empty"]


def make(layout: str, dtype: torch.dtype, low: float = -3.0, high: float = 3.0) -> torch.Tensor:
    """A random tensor in one of several layouts; logically [5, 7] unless scalar or empty."""

    def values(*shape):
        if dtype is BOOL:
            return torch.randint(0, 2, shape).bool()
        if not dtype.is_floating_point:
            return torch.randint(int(low), int(high) + 1, shape, dtype=dtype)
        return torch.rand(shape, dtype=dtype) * (high - low) + low

    return {
        "contiguous": lambda: values(5, 7),
        "transposed": lambda: values(7, 5).t(),
        "sliced": lambda: values(5, 21)[:, 1::3],
        "expanded": lambda: values(1, 7).expand(5, 7),
        "scalar": lambda: values(),
        "empty": lambda: values(0, 7),
    }[layout]()


def domain(prim, dtypes=(F32, I64, BOOL)):
    """The first of the dtypes that the primitive takes."""
    arity = len(prim.params)
    for dtype in dtypes:
        try:
            prim.infer(*[spec_of(torch.zeros(2, dtype=dtype))] * arity)
        except TypeError:
            continue
        return dtype
    raise AssertionError(f"{prim} takes none of {dtypes}")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("prim", POINTWISE, ids=str)
def test_pointwise(tester, prim, layout):
    dtype = domain(prim)
    tensors = [make(layout if n == 0 else "contiguous", dtype) for n in range(len(prim.params))]
    if layout in ("scalar", "empty"):
        tensors = [make(layout, dtype) for _ in tensors]
    if (
        prim.name in ("floor_divide", "trunc_divide", "fmod", "remainder")
        and not dtype.is_floating_point
    ):
        tensors[1] = tensors[1].abs() + 1
    tester.check(lambda b, *xs: b.emit(prim, *xs), *tensors)


@pytest.mark.parametrize("prim", POINTWISE, ids=str)
def test_pointwise_on_integers(tester, prim):
    try:
        dtype = domain(prim, (I32,))
    except AssertionError:
        pytest.skip("takes no integers")
    low = 1 if prim.name in ("floor_divide", "trunc_divide", "fmod", "remainder", "pow") else -3
    tensors = [make("contiguous", dtype, low if n else -3) for n in range(len(prim.params))]
    tester.check(lambda b, *xs: b.emit(prim, *xs), *tensors)


@pytest.mark.parametrize("number", [2, 0.5, -0.0, math.inf, math.nan, True])
def test_numbers_as_operands(tester, number):
    x = make("contiguous", F32)
    tester.check(lambda b, x: (b.add(x, number), b.sub(number, x), b.copysign(x, number)), x)


def test_where(tester):
    condition, x, y = make("transposed", BOOL), make("contiguous", F32), make("sliced", F32)
    tester.check(
        lambda b, c, x, y: (b.where(c, x, y), b.where(c, x, 1.5), b.where(c, 0, y)), condition, x, y
    )


@pytest.mark.parametrize(
    "to", [F32, F64, torch.float16, torch.bfloat16, I64, I32, torch.uint8, torch.int8, BOOL]
)
@pytest.mark.parametrize(
    "source", [F32, F64, torch.bfloat16, torch.float16, I64, I32, torch.uint8, BOOL]
)
def test_cast(tester, source, to):
    low = 0.0 if to is torch.uint8 else -3.0
    tester.check(
        lambda b, x: b.cast(x, to),
        make("sliced", source, max(low, 0.0) if source is torch.uint8 else low),
    )


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin"])
def test_reduction(tester, name, dims):
    for x in (
        torch.randn(3, 5, 7),
        torch.randn(7, 3, 5).permute(1, 2, 0),
        torch.randn(3, 10, 7)[:, ::2],
    ):
        tester.check(lambda b, x: getattr(b, name)(x, dims), x)


@pytest.mark.parametrize("parts", [2, 3, 100])
@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin"])
def test_split_reduction(tester, name, parts):
    """Even and uneven chunks, contiguous and not, floats and integers."""
    options = InductorOptions(debug_checks=True, reduction_parts=parts)
    for x in (
        torch.randn(9, 5, 6),
        torch.randn(6, 9, 5).permute(1, 2, 0),
        torch.randint(-3, 4, (9, 5, 6)),
    ):
        for dims in ((0,), (1, 2), (0, 2), (0, 1, 2)):
            tester.check(
                lambda b, x, dims=dims: getattr(b, name)(b.neg(x), dims), x, options=options
            )
    bits = torch.rand(7, 6) > 0.7
    tester.check(lambda b, x: (b.any(x, (0,)), b.all(x, (0, 1))), bits, options=options)


@pytest.mark.parametrize("parts", [1, 2, 3, 100])
@pytest.mark.parametrize("name", ["sum_exp", "squared_deviations", "mean"])
def test_reduction_with_several_accumulators(tester, name, parts):
    """Whole, and from partial results: far from 0, of one element, with chunks of -inf alone."""
    options = InductorOptions(debug_checks=True, reduction_parts=parts)
    far = torch.randn(9, 5, 6) + 30
    low = torch.randn(9, 5, 6)
    low[2:6], low[:, 1] = -math.inf, -math.inf
    low[7, 2, 3], low[3, 4, 4] = math.inf, math.nan
    for x in (far, torch.randn(6, 9, 5).permute(1, 2, 0), low, torch.randn(9, 1, 5)[:, :, :1]):
        for dims in ((0,), (1, 2), (0, 2), (1,), (0, 1, 2)):
            tester.check(
                lambda b, x, dims=dims: (getattr(b, name)(x, dims), b.sum(x, dims)),
                x,
                options=options,
                rtol=1e-4,
                atol=1e-5,
            )


@pytest.mark.parametrize("name", ["any", "all"])
def test_bool_reduction(tester, name):
    x = torch.rand(4, 6) > 0.7
    tester.check(lambda b, x: (getattr(b, name)(x, (1,)), getattr(b, name)(x, (0, 1))), x)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_arg_reduction(tester, name, dim):
    x = torch.randint(0, 4, (3, 5, 7)).float()
    x[1, 2, 3] = math.nan
    tester.check(lambda b, x: getattr(b, name)(x, dim), x)


@pytest.mark.parametrize("find", ["argmax", "argmin"])
@pytest.mark.parametrize("first", [True, False])
def test_a_position_beside_a_reduction_that_wants_another_order(tester, find, first):
    """The maximum of a transposed tensor is reduced in the order of its memory, positions in the
    order of its dims.
    """

    def program(b, x):
        steps = [lambda: b.amax(x, (0, 1, 2)), lambda: getattr(b, find)(b.reshape(x, (105,)), 0)]
        made = [step() for step in (steps if first else steps[::-1])]
        return (*made, b.sum(x, (0, 1, 2)))

    tester.check(program, torch.randn(7, 5, 3).permute(2, 1, 0))
    tester.check(program, torch.randint(0, 4, (7, 5, 3)).float().permute(1, 2, 0))


def test_reduction_propagates_nan(tester):
    x = torch.randn(3, 5)
    x[1, 1] = math.nan
    tester.check(lambda b, x: (b.amax(x, (1,)), b.amin(x, (1,)), b.sum(x, (0,))), x)


def test_reduction_of_nothing(tester):
    x = torch.empty(3, 0)
    tester.check(lambda b, x: (b.sum(x, (1,)), b.prod(x, (1,)), b.sum(x, (0,))), x)
    tester.check(lambda b, x: (b.any(x, (1,)), b.all(x, (1,))), x.bool())


def test_reduction_of_a_scalar(tester):
    tester.check(lambda b, x: (b.sum(x, ()), b.amax(x, ())), torch.randn(()))


VIEWS = {
    "expand": lambda b, x: b.expand(b.unsqueeze(x, 0), (3, *x.spec.shape)),
    "expand dim": lambda b, x: b.expand(b.unsqueeze(x, 1), (6, 4, 10)),
    "permute": lambda b, x: b.permute(x, (1, 0)),
    "split dims": lambda b, x: b.reshape(x, (2, 3, 5, 2)),
    "merge dims": lambda b, x: b.reshape(x, (60,)),
    "regroup": lambda b, x: b.reshape(x, (4, 15)),
    "regroup after permute": lambda b, x: b.reshape(b.permute(x, (1, 0)), (4, 15)),
    "heads": lambda b, x: b.reshape(b.permute(b.reshape(x, (6, 2, 5)), (1, 0, 2)), (2, 30)),
    "unsqueeze": lambda b, x: b.unsqueeze(x, 1),
    "squeeze": lambda b, x: b.squeeze(b.unsqueeze(x, 2), (2,)),
    "slice": lambda b, x: b.slice(x, 1, 2, 9, 3),
    "select": lambda b, x: b.select(x, 0, 4),
    "diagonal": lambda b, x: b.diagonal(x, 2, 0, 1),
    "diagonal below": lambda b, x: b.diagonal(x, -3, 0, 1),
    "as_strided": lambda b, x: b.as_strided(x, (3, 2), (7, 2), 5),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view(tester, name):
    """Of an input, of a computed value; returned as it is, read by a pointwise primitive, written
    out as a copy.
    """
    x = torch.randn(6, 10)
    view = VIEWS[name]
    tester.check(lambda b, x: view(b, x), x)
    tester.check(lambda b, x: view(b, b.exp(x)), x)
    tester.check(lambda b, x: b.neg(view(b, b.exp(x))), x)
    tester.check(lambda b, x: b.clone(view(b, x)), x)
    tester.check(lambda b, x: b.sum(view(b, b.exp(x)), (0,)), x)
    if name != "as_strided":
        tester.check(lambda b, x: b.neg(view(b, b.exp(x))), torch.randn(10, 6).t())
        tester.check(lambda b, x: b.neg(view(b, x)), torch.randn(6, 20)[:, ::2])


def test_as_strided_of_a_computed_value(tester):
    tester.check(lambda b, x: b.neg(b.as_strided(b.exp(x), (3, 2), (7, 2), 5)), torch.randn(6, 10))


INDEXING = {
    "flip": lambda b, x, i: b.flip(x, (0, 1)),
    "gather": lambda b, x, i: b.gather(x, 0, b.expand(b.unsqueeze(i, 1), (4, 10))),
    "index": lambda b, x, i: b.index(x, [i]),
    "index second": lambda b, x, i: b.index(x, [None, i]),
    "index both": lambda b, x, i: b.index(x, [i, b.neg(b.add(i, 1))]),
    "pad": lambda b, x, i: b.pad(x, (1, 0), (0, 3), 2.5),
    "pad of pad": lambda b, x, i: b.pad(b.exp(b.pad(x, (1, 0), (0, 3), 2.5)), (0, 2), (1, 1), -1.0),
    "cat": lambda b, x, i: b.cat([x, b.exp(x), x], 1),
    "cat rows": lambda b, x, i: b.cat([x, b.slice(x, 0, 1, 3, 1)], 0),
    "long cat": lambda b, x, i: b.cat([x, b.exp(x), x, b.neg(x), x, x], 0),
    "cat of cat": lambda b, x, i: b.cat([b.cat([x, b.exp(x)], 0), b.cat([b.neg(x), x], 0)], 1),
    "pad of cat": lambda b, x, i: b.pad(b.cat([x, x], 0), (1, 1), (1, 1), 0.0),
}


@pytest.mark.parametrize("name", INDEXING)
def test_index(tester, name):
    x, i = torch.randn(6, 10), torch.tensor([3, 0, 5, 3])
    case = INDEXING[name]
    tester.check(lambda b, x, i: case(b, x, i), x, i)
    tester.check(lambda b, x, i: b.neg(case(b, b.exp(x), i)), x, i)
    tester.check(lambda b, x, i: b.sum((y := case(b, x, i)), (y.spec.ndim - 1,)), x, i)
    tester.check(lambda b, x, i: case(b, x, i), torch.randn(10, 6).t(), i)


def test_index_wraps_negative(tester):
    tester.check(lambda b, x, i: b.index(x, [i]), torch.randn(6, 10), torch.tensor([-1, -6, 5]))


def test_index_out_of_bounds_is_an_error(tester):
    graph = tester.graph(lambda b, x, i: b.index(x, [i]), [torch.randn(6), torch.tensor([6])])
    _, run = tester.compile(graph)
    with pytest.raises(IndexError, match="out of bounds"):
        run(torch.randn(6), torch.tensor([6]))


def test_factories(tester):
    cpu = torch.device("cpu")
    tester.check(
        lambda b, x: (
            b.full((2, 3), 1.5, F32, cpu),
            b.iota(5, 2, 3, I64, cpu),
            b.full((), True, BOOL, cpu),
            b.iota(4, 3, -1, I32, cpu),
            b.add(x, b.cast(b.iota(7, 0, 1, I64, cpu), F32)),
        ),
        torch.randn(7),
    )


def test_empty_has_its_spec(tester):
    graph = tester.graph(lambda b, x: b.empty((2, 3), F32, torch.device("cpu")), [torch.randn(1)])
    _, run = tester.compile(graph)
    (got,) = run(torch.randn(1))
    assert got.shape == (2, 3) and got.stride() == (3, 1)


def test_clone_in_other_strides(tester):
    def build(b, x):
        y = b.clone(x)
        y.spec = y.spec.replace(shape=y.spec.shape, stride=(1, 6))
        return y

    tester.check(build, torch.randn(6, 10))


def test_to_device(tester):
    tester.check(lambda b, x: b.neg(b.to_device(b.exp(x), torch.device("cpu"))), torch.randn(6, 10))


def test_every_primitive_has_a_lowering():
    # Always windows on memory; an extern copy; nests of its own.
    elsewhere = {"as_strided", "to_device", "index_put", "index_reduce"}
    lowered = set(load_all()) | set(REDUCTIONS) | set(SCANS) | set(SORTS) | elsewhere
    assert set(PRIMS) - lowered == set()
    assert lowered - set(PRIMS) == set()


# The exit of a graph
# ----------------------------------------------------------------------------


def test_outputs_that_are_inputs_or_equal(tester):
    program = tester.check(
        lambda b, x: ((y := b.exp(x)), x, y, b.permute(x, (1, 0))), torch.randn(3, 4)
    )
    assert program.outputs[0] == program.outputs[2] and program.outputs[1] == "arg0"


def run_writes(tester, build, *tensors):
    """build(builder, *values) -> (outputs, writes)."""
    graph = Graph([Value(f"x{i}", spec_of(t)) for i, t in enumerate(tensors)])
    outputs, graph.writes = build(
        Builder(graph.nodes, [v.name for v in graph.inputs]), *graph.inputs
    )
    graph.outputs = list(outputs)
    program, run = tester.compile(graph)
    return program, run(*tensors)


def test_write_goes_into_the_kernel(tester):
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    want = x * 0.9 + y
    program, () = run_writes(tester, lambda b, x, y: ((), [(x, b.add(b.mul(x, 0.9), y))]), x, y)
    torch.testing.assert_close(x, want)
    assert program.mutated == ("arg0",)
    assert [type(step).__name__ for step in program.steps] == ["Launch"]


def test_write_of_a_permuted_self(tester):
    x = torch.randn(4, 4)
    want = x.t() + 1
    run_writes(tester, lambda b, x: ((), [(x, b.add(b.permute(x, (1, 0)), 1.0))]), x)
    torch.testing.assert_close(x, want)


def test_writes_that_swap(tester):
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    want = y.clone(), x.clone()
    run_writes(tester, lambda b, x, y: ((), [(x, y), (y, x)]), x, y)
    torch.testing.assert_close((x, y), want)


def test_old_value_is_returned_beside_a_write(tester):
    x = torch.randn(3, 4)
    old, want = x.clone(), x + 1
    _, (a, b_) = run_writes(
        tester, lambda b, x: ((x, b.permute(x, (1, 0))), [(x, b.add(x, 1.0))]), x
    )
    torch.testing.assert_close(x, want)
    torch.testing.assert_close((a, b_), (old, old.t()))


def test_write_into_strided_memory_with_a_row_reduction(tester):
    base = torch.randn(4, 3)
    x = base.t()
    want = x - x.sum(1, keepdim=True)

    def build(b, x):
        s = b.expand(b.unsqueeze(b.sum(x, (1,)), 1), (3, 4))
        return (), [(x, b.sub(x, s))]

    run_writes(tester, build, x)
    torch.testing.assert_close(x, want)
    torch.testing.assert_close(base, want.t())


def test_write_read_by_an_extern_call_before(tester):
    x = torch.randn(4, 4)
    want_out, want_x = x @ x, x + 1

    def build(b, x):
        node = _aten(b, torch.ops.aten.mm.default, (x, x), x.spec)
        return (node,), [(x, b.add(x, 1.0))]

    _, (out,) = run_writes(tester, build, x)
    torch.testing.assert_close((out, x), (want_out, want_x))


def _aten(b, op, args, *specs):
    values = tuple(Value(b.fresh_name(), spec) for spec in specs)
    node = Node(op, args, {}, values)
    for value in values:
        value.producer = node
    b.nodes.append(node)
    return values[0] if len(values) == 1 else values


def test_write_behind_a_read_through_an_extern_view(tester):
    """A view that ATen makes shares memory with the input that is written."""
    x = torch.randn(4, 4)
    want_out, want_x = x.t().exp(), x + 1

    def build(b, x):
        turned = _aten(b, torch.ops.aten.t.default, (x,), spec_of(torch.empty(4, 4).t()))
        return (b.exp(turned),), [(x, b.add(x, 1.0))]

    _, (out,) = run_writes(tester, build, x)
    torch.testing.assert_close((out, x), (want_out, want_x))


def test_extern_calls_take_views_and_write_planned_memory(tester):
    x, w = torch.randn(5, 7), torch.randn(3, 7)

    def build(b, x, w):
        operands = (b.exp(x), b.permute(w, (1, 0)))
        return b.exp(_aten(b, torch.ops.aten.mm.default, operands, spec_of(torch.empty(5, 3))))

    program = tester.check(build, x, w)
    assert "aten.mm.out" in [getattr(step, "op", "") for step in program.steps]


def test_random_calls_keep_their_order(tester):
    x = torch.randn(50)
    op = torch.ops.aten.bernoulli.p

    def build(b, x):
        first = _aten(b, op, (x, 0.5), x.spec)
        second = _aten(b, op, (x, 0.5), x.spec)
        return b.exp(second), b.neg(first)

    graph = tester.graph(build, [x])
    _, run = tester.compile(graph)
    torch.manual_seed(5)
    got = run(x)
    torch.manual_seed(5)
    first, second = torch.bernoulli(x, 0.5), torch.bernoulli(x, 0.5)
    torch.testing.assert_close(got, (second.exp(), -first))


def test_inputs_may_start_anywhere_in_their_storage(tester):
    """The offset of an input is not part of what a program is compiled for."""
    memory = torch.randn(200)
    x, moved = memory[7:67].view(6, 10), memory[90:150].view(6, 10)
    graph = tester.graph(
        lambda b, x: (b.permute(x, (1, 0)), b.exp(b.slice(x, 0, 1, 4, 1)), b.select(x, 1, 3)), [x]
    )
    _, run = tester.compile(graph)
    for given in (x, moved):
        for mine, theirs in zip(
            run(given), (given.t(), given[1:4].exp(), given[:, 3]), strict=True
        ):
            torch.testing.assert_close(mine, theirs)
