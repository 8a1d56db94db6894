"""Running Programs: the C executor and the Python one, compared with torch."""

from __future__ import annotations

import dataclasses
import gc
import math
import sys
import threading
import time
import weakref

import pytest
import torch
from example_programs import RELU, mixed, scaled, sin_cos
from torch.multiprocessing.reductions import StorageWeakRef

from flambeau_runtime import RuntimeOptions, load, native
from flambeau_runtime.externs import grad_mode_of
from flambeau_runtime.output_code import output_code
from flambeau_runtime.program import (
    Allocate,
    Device,
    Dtype,
    Extern,
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


def mixed_inputs(batch=5, **kwargs):
    return (
        torch.randn(batch, 8),
        torch.randn(8, 16, **kwargs),
        torch.randn(16, **kwargs),
        7,
        torch.zeros(3),
    )


def mixed_reference(x, w, b, n, acc):
    tail = torch.relu(torch.addmm(b, x, w))
    scaled = tail * (n * 2 - 7 // 2 - -n % 2)
    return scaled, x.shape[0] * 2 + min(n, 3), None, tail, scaled.view(torch.int32), acc + 1


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 5), (7, 0, 2), (2, 3, 4, 5)])
def test_sin_cos(options, shape):
    x = torch.randn(shape)
    (y,) = load(sin_cos(shape), options)(x)
    torch.testing.assert_close(y, x.sin() + x.cos())
    assert type(y) is torch.Tensor and y.stride() == x.stride()


@pytest.mark.parametrize("batch", [0, 1, 5, 3000])
def test_every_kind_of_step(options, batch):
    run = load(mixed(), options)
    inputs = mixed_inputs(batch)
    want = mixed_reference(*inputs)
    got = run(*inputs)
    for mine, theirs in zip(got, want, strict=True):
        if isinstance(theirs, torch.Tensor) and theirs.dtype.is_floating_point:
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
        elif not isinstance(theirs, torch.Tensor):
            assert mine == theirs and type(mine) is type(theirs)
    assert got[5] is inputs[4]
    assert got[3].storage_offset() == batch * 16
    assert torch.equal(got[4], got[0].view(torch.int32)) and got[4].data_ptr() == got[0].data_ptr()


FLOATS = (0.1, -0.0, 3.0, 1e-310, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("debug", [False, True])
def test_given_floats(options, debug):
    run = load(scaled(), dataclasses.replace(options, debug=debug))
    x = torch.randn(4)
    for number in FLOATS:
        y, z = run(x, number)
        torch.testing.assert_close(y, (x.double() * number).float(), equal_nan=True)
        torch.testing.assert_close(z, x + number, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(y.signbit(), (x.double() * number).float().signbit()) or number != number


def test_a_float_is_no_int(options):
    run = load(mixed(), dataclasses.replace(options, debug=False))
    x, w, b, _, acc = mixed_inputs()
    with pytest.raises(TypeError):
        run(x, w, b, 7.0, acc)
    with pytest.raises(TypeError, match="must be a float, not int"):
        load(scaled(), options)(torch.randn(4), 3)


def test_executors_agree_bit_for_bit(cache_dir):
    if native.core() is None:
        pytest.skip(f"no C executor: {native.unavailable()}")
    x, w, b, n, _ = mixed_inputs()
    c, python = (
        load(mixed(), RuntimeOptions(cache_dir=cache_dir, executor=e))(x, w, b, n, torch.zeros(3))
        for e in ("c", "python")
    )
    for mine, theirs in zip(c, python, strict=True):
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()
            assert mine.storage_offset() == theirs.storage_offset() and mine.dtype == theirs.dtype
        else:
            assert mine == theirs


def test_mutation_bumps_the_version(options):
    inputs = mixed_inputs()
    versions = [t._version for t in inputs if isinstance(t, torch.Tensor)]
    load(mixed(), options)(*inputs)
    after = [t._version for t in inputs if isinstance(t, torch.Tensor)]
    assert after[:3] == versions[:3] and after[3] == versions[3] + 1
    assert inputs[4].tolist() == [1, 1, 1]


def test_inference_tensors(options):
    run = load(mixed(), options)
    with torch.inference_mode():
        inputs = mixed_inputs()
        want = mixed_reference(*inputs[:4], inputs[4].clone())
        torch.testing.assert_close(run(*inputs)[0], want[0])
        assert inputs[4].tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="outside of inference mode"):
        run(*inputs)
    assert inputs[4].tolist() == [1, 1, 1]


def test_runs_below_autograd_and_autocast(options):
    inputs = mixed_inputs(requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = load(mixed(), options)(*inputs)
    assert all(
        not t.requires_grad and t.grad_fn is None for t in got if isinstance(t, torch.Tensor)
    )
    torch.testing.assert_close(got[0], mixed_reference(*inputs)[0].detach())
    assert got[0].dtype == torch.float32
    probe = inputs[1] * 2
    assert probe.requires_grad, "the thread's dispatch state was not restored"


def test_state_is_restored_after_an_error(options):
    x, w, b, n, acc = mixed_inputs(requires_grad=True)
    run = load(mixed(), dataclasses.replace(options, debug=False))
    # Before 2.12 torch prints the cause itself.
    with pytest.raises(RuntimeError, match=r"must match|on standard error") as caught:
        run(x, w, b[:3], n, acc)
    assert "aten.addmm.out" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert (w * 2).requires_grad


def test_wrong_arguments(options):
    fast = load(mixed(), dataclasses.replace(options, debug=False))
    checked = load(mixed(), options)
    x, w, b, n, acc = mixed_inputs()
    for run in (fast, checked):
        with pytest.raises(TypeError, match="takes 5 positional arguments, got 4"):
            run(x, w, b, n)
        with pytest.raises(TypeError, match="must be a tensor, not int"):
            run(x, w, 3, n, acc)
    with pytest.raises(ValueError, match="must have shape"):
        checked(x, w[:, :3], b, n, acc)
    with pytest.raises(ValueError, match="must have stride"):
        checked(x.t().contiguous().t(), w, b, n, acc)
    with pytest.raises(ValueError, match="must be float32"):
        checked(x.double(), w, b, n, acc)


def extern_program(op, args, outputs, kwargs=None, inputs=("x",), shape=(4, 6)) -> Program:
    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    names = [name for name in (*inputs, *outputs) if name is not None]
    return Program(
        inputs=inputs,
        tensors=tuple(Tensor(name, shape, stride, "float32") for name in names),
        symbols=(),
        sources=(),
        kernels=(),
        steps=(Extern(op, args, kwargs or {}, outputs),),
        outputs=outputs,
    )


def test_extern_arguments(options):
    options = dataclasses.replace(options, debug=False)
    x = torch.randn(4, 6)
    cases = [
        (("aten.split.Tensor", (Ref("x"), 2), ("a", "b")), x.split(2)),
        (("aten.max.dim", (Ref("x"), 1), ("a", None)), (x.max(1)[0], None)),
        (
            (
                "aten._to_copy.default",
                (Ref("x"),),
                ("a",),
                {"dtype": Dtype("float64"), "device": Device("cpu")},
            ),
            (x.double(),),
        ),
        (
            ("aten.stack.default", ([Ref("x"), Ref("x")],), ("a",), {"dim": 1}),
            (torch.stack([x, x], 1),),
        ),
        (
            ("aten.index.Tensor", (Ref("x"), [None, Ref("i")]), ("a",), None, ("x", "i")),
            (x[:, [2, 0]],),
        ),
        (("aten.mean.dim", (Ref("x"), [0, 1], True), ("a",)), (x.mean((0, 1), True),)),
    ]
    for described, want in cases:
        program = extern_program(*described)
        inputs = (x, torch.tensor([2, 0])) if len(program.inputs) == 2 else (x,)
        got = load(program, options)(*inputs)
        for mine, theirs in zip(got, want, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert torch.equal(mine, theirs) and mine.dtype == theirs.dtype


@pytest.mark.parametrize(
    "op", ["aten.mm.out", "aten.bmm.out", "aten.addmm.out", "aten.baddbmm.out"]
)
def test_matrix_products(options, op):
    batch = (3,) if "bmm" in op else ()
    a, b, bias = torch.randn(*batch, 4, 5), torch.randn(*batch, 5, 6), torch.randn(6)
    scales = {"beta": 0.5, "alpha": 2} if "add" in op else {}
    args = (Ref("bias"), Ref("a"), Ref("b")) if scales else (Ref("a"), Ref("b"))
    tensors = [
        Tensor(n, tuple(t.shape), t.stride(), "float32")
        for n, t in (("bias", bias), ("a", a), ("b", b))
    ]
    out = torch.empty(*batch, 4, 6)
    program = Program(
        inputs=("bias", "a", "b"),
        tensors=(*tensors, Tensor("out", tuple(out.shape), out.stride(), "float32")),
        symbols=(),
        sources=(),
        kernels=(),
        steps=(Allocate("out"), Extern(op, args, scales, out=(("out", "out"),))),
        outputs=("out",),
    )
    want = (a.double() @ b.double()) * scales.get("alpha", 1) + scales.get(
        "beta", 0
    ) * bias.double()
    torch.testing.assert_close(load(program, options)(bias, a, b)[0], want.float())


def test_checked_kernel(options):
    program = Program(
        inputs=("x", "at"),
        tensors=(
            Tensor("x", (5,), (1,), "float32"),
            Tensor("at", (), (), "int64"),
            Tensor("y", (), (), "float32"),
        ),
        symbols=(),
        sources=(Source("cpp", RELU),),
        kernels=(Kernel("take", 0, {"checked": True}),),
        steps=(Allocate("y"), Launch("take", ("x", "at", "y"), (5,))),
        outputs=("y",),
    )
    run = load(program, options)
    x = torch.randn(5)
    assert run(x, torch.tensor(3))[0] == x[3]
    with pytest.raises(IndexError, match="out of bounds in take"):
        run(x, torch.tensor(5))


def test_the_same_tensor_twice_and_inputs_as_outputs(options):
    program = dataclasses.replace(sin_cos((3,)), outputs=("y", "x", "y"))
    x = torch.randn(3)
    first, second, third = load(program, options)(x)
    assert second is x and third is first


def test_memory_is_returned(options):
    run = load(mixed(), options)
    inputs = mixed_inputs()
    got = run(*inputs)
    refs = [weakref.ref(got[i]) for i in (0, 3)]
    del got
    gc.collect()
    assert all(ref() is None for ref in refs)
    before = sys.getrefcount(inputs[0])
    for _ in range(20):
        run(*inputs)
    after = sys.getrefcount(inputs[0])
    assert after == before


def test_kernel_only_buffers_are_plain_memory_and_reused(options):
    big = ("2*s0", 2048)
    layout = (big, (2048, 1), "float32")
    program = Program(
        inputs=("x",),
        tensors=tuple(Tensor(name, *layout) for name in ("x", "t1", "t2", "t3", "y")),
        symbols=(Symbol("s0", 0, 0),),
        sources=(Source("cpp", RELU),),
        kernels=(Kernel("relu", 0),),
        steps=(
            Allocate("t1"),
            Launch("relu", ("x", "t1"), ("s0*2048",)),
            Allocate("t2"),
            Launch("relu", ("t1", "t2"), ("s0*2048",)),
            Allocate("t3", reuse="t1"),
            Launch("relu", ("t2", "t3"), ("s0*2048",)),
            Free("t2"),
            Allocate("y"),
            Launch("relu", ("t3", "y"), ("s0*2048",)),
        ),
        outputs=("y",),
    )
    x = torch.randn(9, 2048)
    (y,) = load(program, dataclasses.replace(options, debug=False))(x)
    assert torch.equal(y[:9], x.relu())


def test_threads(options):
    run = load(mixed(), options)
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(30):
            batch = int(torch.randint(1, 400, (), generator=generator))
            inputs = mixed_inputs(batch)
            want = mixed_reference(
                *[t.clone() if isinstance(t, torch.Tensor) else t for t in inputs]
            )
            got = run(*inputs)
            if not torch.allclose(got[0], want[0], rtol=1e-4, atol=1e-4) or got[1] != want[1]:
                wrong.append(batch)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_view_of_an_input_with_an_offset(options):
    program = Program(
        inputs=("x",),
        tensors=(
            Tensor("x", (4, 6), (12, 1), "float32", offset=3),
            Tensor("v", (2, 6), (12, 1), "float32", offset=27),
        ),
        symbols=(),
        sources=(),
        kernels=(),
        steps=(View("v", "x"),),
        outputs=("v",),
    )
    base = torch.randn(5, 12)
    x = base[:4, 3:9]
    (v,) = load(program, options)(x)
    assert torch.equal(v, x[2:]) and v.data_ptr() == x[2:].data_ptr()
    elsewhere = base[1:, :6]  # the offset is the caller's affair
    (v,) = load(program, options)(elsewhere)
    assert torch.equal(v, elsewhere[2:]) and v.data_ptr() == elsewhere[2:].data_ptr()


def test_output_code_with_floats_runs(tmp_path):
    namespace = {"__name__": "output_code"}
    exec(compile(output_code(scaled()), "output_code.py", "exec"), namespace)
    x = torch.randn(4)
    for number in FLOATS[:-1]:
        for mine, theirs in zip(
            namespace["call"](x, number), (x * number, x + number), strict=True
        ):
            torch.testing.assert_close(mine, theirs, equal_nan=True)
    namespace["call"](*namespace["example_inputs"]())


def test_output_code_runs(options, tmp_path):
    text = output_code(mixed())
    namespace = {"__name__": "written_program"}
    exec(compile(text, "output_code.py", "exec"), namespace)
    inputs = mixed_inputs()
    want = load(mixed(), options)(
        *[t.clone() if isinstance(t, torch.Tensor) else t for t in inputs]
    )
    got = namespace["call"](*inputs)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
    assert len(namespace["call"](*namespace["example_inputs"]())) == len(want)


def test_symbols_in_extern_and_outputs(options):
    program = Program(
        inputs=("x",),
        tensors=(
            Tensor("x", ("s0", "s1"), ("s1", 1), "float32"),
            Tensor("y", ("s1", "s0"), ("s0", 1), "float32"),
        ),
        symbols=(Symbol("s0", 0, 0), Symbol("s1", 0, 1)),
        sources=(),
        kernels=(),
        steps=(
            Extern(
                "aten.reshape.default", (Ref("x"), [SizeExpr("s1"), SizeExpr("s0")]), outputs=("y",)
            ),
        ),
        outputs=("y", SizeExpr("s0*s1"), SizeExpr("(s0 + s1)//2 % 3")),
    )
    run = load(program, options)
    for shape in ((2, 3), (5, 4), (0, 7)):
        x = torch.randn(shape)
        y, numel, odd = run(x)
        assert (
            torch.equal(y, x.reshape(shape[1], shape[0]))
            and numel == x.numel()
            and odd == sum(shape) // 2 % 3
        )


def test_calls_are_fast(cache_dir):
    """Far above the usual time, so that a noisy machine does not fail it: what it would see is
    Python between steps.
    """
    if native.core() is None:
        pytest.skip(f"no C executor: {native.unavailable()}")
    run = load(sin_cos(), RuntimeOptions(cache_dir=cache_dir, executor="c"))
    x = torch.tensor(0.5)
    best = math.inf
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(1000):
            run(x)
        best = min(best, time.perf_counter() - began)
    assert best / 1000 < 1.5e-6


SEEN: list[bool] = []


@pytest.fixture(scope="module")
def note_memory():
    """An operator that notes whether the memory of the first input is still there."""

    @torch.library.custom_op("flambeau_tests::note_memory", mutates_args=())
    def note(x: torch.Tensor) -> torch.Tensor:
        SEEN.append(note.storage.expired())
        return x.clone()

    return note


def test_a_spent_input_goes_after_its_last_use(options, note_memory):
    program = Program(
        inputs=("x", "y", "n"),
        tensors=tuple(Tensor(name, (4,), (1,), "float32") for name in ("x", "y", "a", "b", "c")),
        symbols=(Symbol("s0", 2, None),),
        sources=(),
        kernels=(),
        steps=(
            Extern("flambeau_tests.note_memory.default", (Ref("y"),), {}, ("c",)),
            Extern("aten.mul.Tensor", (Ref("x"), 2.0), {}, ("a",)),
            Free("x"),
            Extern("flambeau_tests.note_memory.default", (Ref("a"),), {}, ("b",)),
        ),
        outputs=("b", "y"),
    )
    run = load(program, options)
    for spends in (True, False):
        SEEN.clear()
        x, y = torch.arange(4.0), torch.ones(4)
        note_memory.storage = StorageWeakRef(x.untyped_storage())
        if spends:
            given = [x, y, 3]
            del x
            result, same = run.spend(given)
            assert given == []
        else:
            result, same = run(x, y, 3)
            torch.testing.assert_close(x, torch.arange(4.0))
        assert [False, spends] == SEEN
        torch.testing.assert_close(result, 2 * torch.arange(4.0))
        assert same is y


def test_spending_refuses_other_arguments(options):
    run = load(sin_cos((3,)), options)
    with pytest.raises(TypeError):
        run.spend([])
    with pytest.raises(TypeError):
        run.spend([3.0])


def test_memory_that_cannot_be_had_raises_as_in_eager(options: RuntimeOptions) -> None:
    size = 1 << 58
    program = Program(
        inputs=("x",),
        tensors=(Tensor("x", (1,), (1,), "float32"), Tensor("y", (size,), (1,), "float32")),
        symbols=(),
        sources=(),
        kernels=(),
        steps=(Allocate("y"),),
        outputs=("y",),
    )
    with pytest.raises(Exception) as eager:
        torch.empty_strided((size,), (1,))
    with pytest.raises(type(eager.value)) as compiled:
        load(program, options)(torch.zeros(1))
    assert str(compiled.value) == str(eager.value)


def recurrent_layer(training: bool) -> Program:
    """One LSTM layer of oneDNN; in training its workspace is a result, too."""
    gates = (("w0", (12, 4)), ("w1", (12, 3)), ("b0", (12,)), ("b1", (12,)))
    inputs = (("x", (5, 2, 4)), *gates, ("h", (2, 3)), ("c", (2, 3)))
    results = (("y", (5, 2, 3)), ("hn", (2, 3)), ("cn", (2, 3)))
    tensors = [
        Tensor(name, shape, torch.empty(shape).stride(), "float32")
        for name, shape in inputs + results
    ]
    outputs: tuple[str | None, ...] = ("y", "hn", "cn", None)
    if training:
        tensors.append(Tensor("workspace", (1,), (1,), "uint8"))
        outputs = (*outputs[:3], "workspace")
    settings = (False, [], 2, 3, 1, True, False, False, training)
    names = tuple(name for name, _ in inputs)
    return Program(
        inputs=names,
        tensors=tuple(tensors),
        symbols=(),
        sources=(),
        kernels=(),
        steps=(
            Extern(
                "aten.mkldnn_rnn_layer.default",
                (*(Ref(name) for name in names), *settings),
                outputs=outputs,
            ),
        ),
        outputs=tuple(name for name in outputs if name is not None),
    )


@pytest.mark.parametrize("training", [False, True])
def test_grad_mode_of_recurrent_layers(options, training):
    """oneDNN makes a workspace where it is read, in any grad mode, and nowhere else."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    program = recurrent_layer(training)
    inputs = [torch.randn(t.shape) for t in program.tensors if t.name in program.inputs]
    network = torch.nn.LSTM(4, 3)
    for parameter, value in zip(network.parameters(), inputs[1:5], strict=True):
        parameter.data.copy_(value)
    want, _ = network(inputs[0], (inputs[5][None], inputs[6][None]))
    run = load(program, options)
    namespace = {"__name__": "written_program"}
    exec(compile(output_code(program), "output_code.py", "exec"), namespace)
    for mode in (True, False):
        for call in (run, namespace["call"]):
            with torch.set_grad_enabled(mode):
                y, *_, last = call(*inputs)
                assert torch.is_grad_enabled() is mode
            torch.testing.assert_close(y, want.detach())
            assert last.dtype is (torch.uint8 if training else torch.float32)
            assert not training or last.numel() > 1


def test_a_layer_without_its_workspace_runs_without_grad_mode():
    (step,) = recurrent_layer(False).steps
    assert grad_mode_of(step) is False
    (step,) = recurrent_layer(True).steps
    assert grad_mode_of(step) is True
    assert grad_mode_of(Extern("aten.mm.default", (Ref("x"), Ref("y")), outputs=("z",))) is None
