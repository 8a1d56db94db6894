"""Operators that the C executor calls through torch's dispatcher, beside eager."""

from __future__ import annotations

import dataclasses
import gc
import math
import threading
import warnings

import pytest
import torch

from flambeau_runtime import RuntimeOptions, c_executor, load, native
from flambeau_runtime.externs import find_operator, operator_of
from flambeau_runtime.program import (
    Allocate,
    Device,
    Dtype,
    Extern,
    Float,
    Program,
    Ref,
    SizeExpr,
    Symbol,
    Tensor,
)

X, Y, INDEX = Ref("x"), Ref("y"), Ref("i")
TENSORS = (
    Tensor("x", ("s0", 4), (4, 1), "float32"),
    Tensor("y", (4, 4), (4, 1), "float32"),
    Tensor("i", (3,), (1,), "int64"),
)
SYMBOLS = (Symbol("s0", 0, 0), Symbol("f0", 3, None, is_float=True))


def program(*results, **call):
    """A call with results named r0, r1, ...; their declared layout plays no part."""
    names = tuple(name for name in results if name is not None)
    return Program(
        inputs=("x", "y", "i", "f0"),
        tensors=TENSORS + tuple(Tensor(name, (4,), (1,), "float32") for name in names),
        symbols=SYMBOLS,
        sources=(),
        kernels=(),
        steps=(Extern(outputs=results, **call),),
        outputs=names,
    )


def inputs(rows=5, number=0.25):
    torch.manual_seed(rows)
    return torch.randn(rows, 4), torch.randn(4, 4), torch.tensor([3, 0, 1]), number


@pytest.fixture
def c_options(cache_dir):
    core = native.core()
    if core is None:
        pytest.skip(f"no C executor: {native.unavailable()}")
    if core.dispatcher() != (True, True):
        pytest.skip("this torch prints failed calls, so those on the CPU go through Python")
    return RuntimeOptions(cache_dir=cache_dir, executor="c", debug=True)


@pytest.fixture
def python_calls(monkeypatch):
    """The operators that were called through Python."""
    called = []

    def find(step):
        operator = operator_of(step)

        def call(*args, **kwargs):
            called.append(step.op)
            return operator(*args, **kwargs)

        return call

    monkeypatch.setattr(c_executor, "operator_of", find)
    return called


CONVERTED = {"device": Device("cpu"), "dtype": Dtype("int32")}
QUANTIZE, LAYER_NORM = "fake_quantize_per_tensor_affine", "aten.native_layer_norm.default"

CALLS = {
    "tensors": (
        program("r0", op="aten.mm.default", args=(X, Y)),
        lambda x, y, i, f: x.mm(y),
    ),
    "optional tensor, absent list items": (
        program("r0", op="aten.index.Tensor", args=(Y, [None, INDEX])),
        lambda x, y, i, f: y[:, i],
    ),
    "list of tensors, symbolic int": (
        program("r0", op="aten.cat.default", args=([X, Y, X],)),
        lambda x, y, i, f: torch.cat([x, y, x]),
    ),
    "dtype and optional list": (
        program("r0", op="aten.sum.dim_IntList", args=(X, [0]), kwargs={"dtype": Dtype("float64")}),
        lambda x, y, i, f: x.sum(0, dtype=torch.float64),
    ),
    "absent optionals": (
        program("r0", op="aten.sum.dim_IntList", args=(X, None), kwargs={"dtype": None}),
        lambda x, y, i, f: x.sum(None),
    ),
    "device": (
        program("r0", op="aten._to_copy.default", args=(X,), kwargs=CONVERTED),
        lambda x, y, i, f: x.int(),
    ),
    "given float": (
        program("r0", op=f"aten.{QUANTIZE}.default", args=(X, Float("f0"), 0, -8, 7)),
        lambda x, y, i, f: torch.fake_quantize_per_tensor_affine(x, f, 0, -8, 7),
    ),
    "several results": (
        program("r0", None, "r1", op=LAYER_NORM, args=(X, [4], None, None, 1e-5)),
        lambda x, y, i, f: torch.native_layer_norm(x, [4], None, None, 1e-5)[::2],
    ),
    "string": (
        program("r0", op="aten.searchsorted.Tensor", args=(X, X), kwargs={"side": "right"}),
        lambda x, y, i, f: torch.searchsorted(x, x, side="right"),
    ),
    "a view": (
        program("r0", op="aten.slice.Tensor", args=(X, 0, 1, SizeExpr("s0 - 1"))),
        lambda x, y, i, f: x[1:-1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_makes_no_python_object(c_options, python_calls, name):
    call, eager = CALLS[name]
    run = load(call, dataclasses.replace(c_options, debug=False))
    for rows in (3, 5, 8):
        given = inputs(rows, 0.5 / rows)
        got, want = run(*given), eager(*given)
        for mine, theirs in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
            assert torch.equal(mine, theirs) and mine.dtype == theirs.dtype
            assert mine.stride() == theirs.stride() and mine._version == theirs._version
            assert mine.data_ptr() == theirs.data_ptr() or theirs._base is None
    assert python_calls == []


NOT_REPEATABLE = {
    "written input": ("aten.add_.Tensor", (X, X)),
    "random numbers": ("aten.bernoulli.p", (X, 0.5)),
    "attention with dropout": (
        "aten._scaled_dot_product_attention_math.default",
        (Ref("q"), Ref("q"), Ref("q"), None, 0.5),
    ),
    "a number for a tensor": ("aten.pow.Tensor_Scalar", (X, 3)),
    "a list of results": ("aten.unbind.int", (Y,)),
    "a result on the host": ("aten.equal.default", (Y, Y)),
}


@pytest.mark.parametrize("name", NOT_REPEATABLE)
def test_other_calls_go_through_python(c_options, python_calls, name):
    op, args = NOT_REPEATABLE[name]
    call = Program(
        inputs=("x", "y", "q"),
        tensors=(*TENSORS[:2], Tensor("q", (1, 1, 4, 4), (16, 16, 4, 1), "float32")),
        symbols=SYMBOLS[:1],
        sources=(),
        kernels=(),
        steps=(Extern(op, args),),
        outputs=(),
        mutated=("x",) if name == "written input" else (),
    )
    x, y, _, _ = inputs()
    load(call, dataclasses.replace(c_options, debug=False))(x, y, torch.randn(1, 1, 4, 4))
    assert python_calls == [op]


def test_out_variants_write_what_was_allocated(c_options, python_calls):
    call = Program(
        inputs=("x", "y"),
        tensors=(*TENSORS[:2], Tensor("r", ("s0 + 4", 4), (4, 1), "float32")),
        symbols=SYMBOLS[:1],
        sources=(),
        kernels=(),
        steps=(Allocate("r"), Extern("aten.cat.out", ([X, Y],), out=(("out", "r"),))),
        outputs=("r",),
    )
    x, y, _, _ = inputs()
    (got,) = load(call, c_options)(x, y)
    assert torch.equal(got, torch.cat([x, y])) and python_calls == []


RAISING = {
    "IndexError": (program("r0", op="aten.embedding.default", args=(Y, INDEX)), 2),
    "RuntimeError": (program("r0", op="aten.mm.default", args=(Y, X)), 2),
    "NotImplementedError": (program("r0", op="aten.mm.default", args=(X, Y)), 0),
}


@pytest.mark.parametrize("name", RAISING)
def test_errors_are_those_of_eager(c_options, capfd, name):
    call, _ = RAISING[name]
    x, y, index, number = inputs()
    if name == "NotImplementedError":
        x, y = x.to(torch.uint16), y.to(torch.uint16)
    (step,) = call.steps
    with pytest.raises(Exception) as want:
        find_operator(step.op)(*[{"x": x, "y": y, "i": index + 2}[ref.name] for ref in step.args])
    assert want.typename == name
    run = load(call, dataclasses.replace(c_options, debug=False))
    for _ in range(2):
        with pytest.raises(want.type) as got:
            run(x, y, index + 2, number)
        assert str(got.value) == str(want.value) and got.typename == name
        assert got.value.__notes__ == [f"while program called {step.op}"]
    assert capfd.readouterr().err == ""


def matrix_product(dtype):
    return Program(
        inputs=("x", "y"),
        tensors=tuple(Tensor(name, (4, 4), (4, 1), dtype) for name in ("x", "y", "r")),
        symbols=(),
        sources=(),
        kernels=(),
        steps=(Allocate("r"), Extern("aten.mm.out", (X, Y), out=(("out", "r"),))),
        outputs=("r",),
    )


def test_errors_of_matrix_products_are_those_of_eager(c_options):
    """They are called by another function of the C interface."""
    x = torch.zeros(4, 4, dtype=torch.uint16)
    with pytest.raises(NotImplementedError) as want:
        x.mm(x)
    with pytest.raises(NotImplementedError) as got:
        load(matrix_product("uint16"), c_options)(x, x)
    assert str(got.value) == str(want.value)


WARNING = program("r0", op="aten.var.correction", args=(X, [0]), kwargs={"keepdim": False})


def test_warnings_are_those_of_eager(c_options, capfd):
    run = load(WARNING, c_options)
    given = inputs(1)
    with warnings.catch_warnings(record=True) as want:
        warnings.simplefilter("always")
        torch.var(given[0], 0)
    assert len(want) == 1
    with pytest.warns(UserWarning) as got:
        (out,) = run(*given)
    assert out.isnan().all()
    assert [str(each.message) for each in got] == [str(each.message) for each in want]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="degrees of freedom"):
            run(*given)
        (out,) = run(*inputs(3))
    assert capfd.readouterr().err == ""
    assert math.isfinite(out.sum())


def test_nothing_is_leaked(c_options):
    core = native.core()
    run = load(
        dataclasses.replace(
            program("r0", op="aten.cat.default", args=([X, Y],)),
            steps=(
                Extern("aten.cat.default", ([X, Y],), outputs=("r0",)),
                Extern("aten.sum.dim_IntList", (X, [0]), {"dtype": Dtype("float64")}, (None,)),
                Extern("aten.index.Tensor", (Y, [None, INDEX]), outputs=(None,)),
            ),
        ),
        c_options,
    )
    given = inputs()
    before = [core.use_count(tensor) for tensor in given[:3]]
    for _ in range(20):
        run(*given)
    with pytest.raises(IndexError):
        run(*given[:2], given[2] + 4, 0.0)
    gc.collect()
    assert [core.use_count(tensor) for tensor in given[:3]] == before


def test_threads_share_a_program(c_options):
    run = load(CALLS["optional tensor, absent list items"][0], c_options)
    wrong = []

    def work(seed):
        x, y, index, number = inputs(seed)
        for _ in range(300):
            if not torch.equal(run(x, y, index, number)[0], y[:, index]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_that_the_dispatcher_refuses_is_not_tried_again(c_options):
    """Kernels that take ints where the schema has SymInts: each failure costs milliseconds."""
    call = program("r0", op="aten.replication_pad1d.default", args=(X, [1, 2]))
    run = load(call, dataclasses.replace(c_options, debug=False))
    given = inputs()
    (first,) = run(*given)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        (second,) = run(*given)
    want = torch.nn.functional.pad(given[0], (1, 2), mode="replicate")
    assert torch.equal(first, want) and torch.equal(second, want)
    assert [e.name for e in profile.events()].count("aten::replication_pad1d") == 1


def test_a_call_that_raises_is_tried_again(c_options, python_calls):
    call = program("r0", op="aten.embedding.default", args=(Y, INDEX))
    run = load(call, dataclasses.replace(c_options, debug=False))
    x, y, index, number = inputs()
    with pytest.raises(IndexError):
        run(x, y, index + 9, number)
    (got,) = run(x, y, index, number)
    assert torch.equal(got, y[index]) and python_calls == ["aten.embedding.default"]
