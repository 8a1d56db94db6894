"""Which operators may raise for what their tensors hold; and that those which are decomposed still
do.
"""

from __future__ import annotations

import pytest
import torch

from flambeau_prims.decompose import decompose
from flambeau_prims.evaluate import run_graph
from flambeau_prims.fake import StorageRecord, make_fake
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.raising import can_raise
from flambeau_prims.spec import spec_of
from flambeau_prims.tracer import Tracer

aten = torch.ops.aten
X = torch.rand(3)
INDEX = torch.tensor([1, 2, 0])

NEVER = [
    (aten.mm.default, (torch.rand(2, 2), torch.rand(2, 2))),
    (aten.add_.Tensor, (X, X)),
    (aten.copy_.default, (X, X)),
    (aten.view.default, (X, [3, 1])),
    (aten.div.Tensor, (INDEX, INDEX)),
    (aten.div.Tensor_mode, (X, INDEX)),
    (aten.remainder.Scalar, (INDEX, 2)),
    (aten.remainder.Tensor, (INDEX, X)),
    (aten.remainder.Scalar, (INDEX, 0.0)),
    (aten.remainder.Scalar_Tensor, (0.7, INDEX)),
    (aten.remainder.Scalar_Tensor, (5, X)),
    (aten._softmax.default, (X, 0, False)),
    (aten.zero_.default, (X,)),
    (aten.gelu_.default, (X,)),
    (aten.uniform_.default, (X,)),
    (aten.cat.default, ([X, X],)),
    (aten.gather.default, (X.to("meta"), 0, INDEX.to("meta"))),
]
NEVER += [
    (aten._foreach_add_.List, ([X], [X])),
    (aten._foreach_sqrt.default, ([X],)),
    (aten._foreach_div_.Scalar, ([X], 2)),
    (aten.__or__.Tensor, (X > 0, X > 0)),
    (aten.sym_size.int, (X, 0)),
    (aten._local_scalar_dense.default, (X[0],)),
]
SOMETIMES = [
    (aten.gather.default, (X, 0, INDEX)),
    (aten.index.Tensor, (X, [INDEX])),
    (aten.index_put_.default, (X, [INDEX], X)),
    (aten.embedding.default, (X, INDEX)),
    (aten.div.Tensor_mode, (INDEX, INDEX)),
    (aten.floor_divide.default, (INDEX, INDEX)),
    (aten.remainder.Scalar, (INDEX, 0)),
    (aten.remainder.Scalar_Tensor, (5, INDEX)),
    (aten.fmod.Tensor, (INDEX, INDEX)),
    (aten._assert_async.default, (X,)),
    (aten.multinomial.default, (X, 2)),
    (aten.bernoulli.default, (X,)),
    (aten.masked_scatter.default, (X, X > 0, X)),
    (aten.binary_cross_entropy.default, (X, X)),
]


@pytest.mark.parametrize(
    ("op", "args"), NEVER, ids=lambda item: str(item) if callable(item) else ""
)
def test_operators_that_never_raise(op, args):
    assert not can_raise(op, args)


@pytest.mark.parametrize(
    ("op", "args"), SOMETIMES, ids=lambda item: str(item) if callable(item) else ""
)
def test_operators_that_may_raise(op, args):
    assert can_raise(op, args)
    values = tuple(
        Value("x", spec_of(arg), None) if isinstance(arg, torch.Tensor) else arg for arg in args
    )
    assert can_raise(op, values)


def test_nothing_is_known_of_the_operators_of_others():
    @torch.library.custom_op("flambeau_tests::anything", mutates_args=())
    def anything(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    assert can_raise(torch.ops.flambeau_tests.anything.default, (X.to("meta"),))


DIVISIONS = [
    (aten.floor_divide.default, {}),
    (aten.remainder.Tensor, {}),
    (aten.fmod.Tensor, {}),
    (aten.div.Tensor_mode, {"rounding_mode": "trunc"}),
    (aten.div.Tensor_mode, {"rounding_mode": "floor"}),
]


@pytest.mark.parametrize(("op", "kwargs"), DIVISIONS)
def test_integers_divided_by_zero(op, kwargs):
    left, right = torch.tensor([4, 5, 6]), torch.tensor([1, 2, 3])
    inputs = [Value(name, spec_of(x), None) for name, x in (("x", left), ("y", right))]
    node = Node(op, tuple(inputs), kwargs, ())
    result = Value("z", spec_of(op(left, right, **kwargs)), node)
    node.outputs = (result,)
    graph = decompose(Graph(list(inputs), [node], [result]))
    torch.testing.assert_close(run_graph(graph, [left, right])[0], op(left, right, **kwargs))
    with pytest.raises(RuntimeError):
        run_graph(graph, [left, right * torch.tensor([1, 0, 1])])


def _rows(x):
    return x[1:], x[:-1]


def _same(x):
    return x[1:], x[1:]


def _turned(x):
    return x, x.t()


def _apart(x):
    return x[:2], x[2:]


def _with_gaps(x):
    return x[:, ::2], x[:, 1:4:2]


@pytest.mark.parametrize("views", [_rows, _same, _turned, _apart, _with_gaps])
@pytest.mark.parametrize("write", [torch.Tensor.copy_, torch.Tensor.add_, torch.Tensor.mul_])
def test_writes_to_partly_shared_memory_raise_as_in_eager(views, write):
    def program(x):
        target, source = views(x)
        write(target, source)

    real = torch.rand(4, 4)
    try:
        program(real.clone())
        want = None
    except RuntimeError as error:
        want = str(error).split(".")[0]
    with Tracer():
        fake = make_fake(spec_of(real), StorageRecord())
        if want is None:
            program(fake)
        else:
            with pytest.raises(RuntimeError) as got:
                program(fake)
            assert str(got.value).split(".")[0] == want
