"""Which memory each step of a Program touches, and which Programs can be recorded."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flambeau_runtime.graph_launch import why_plain
from flambeau_runtime.graph_launch.eligibility import (
    attention_seeds,
    draws_random_numbers,
    idle_tensors,
    may_call_blas,
    refusal,
    written_or_drawn_for,
)
from flambeau_runtime.graph_launch.memory import memory_of_tensors
from flambeau_runtime.graph_launch.record import Recorder
from flambeau_runtime.options import RuntimeOptions
from flambeau_runtime.program import (
    Allocate,
    Extern,
    Launch,
    Program,
    Ref,
    Step,
    Symbol,
    Tensor,
    View,
)


def tensor(name: str, dtype: str = "float32", device: str = "cuda:0") -> Tensor:
    return Tensor(name, (4,), (1,), dtype, device)


def program(*steps: Step, tensors: str = "x y", inputs: str = "x", **fields: Any) -> Program:
    """A Program of these steps on tensors of these names; "name:dtype" for another dtype."""
    names = [name.partition(":") for name in tensors.split()]
    return Program(
        inputs=tuple(inputs.split()),
        tensors=tuple(tensor(name, dtype or "float32") for name, _, dtype in names),
        symbols=fields.pop("symbols", ()),
        sources=(),
        kernels=(),
        steps=steps,
        outputs=fields.pop("outputs", ("y",)),
        **fields,
    )


def test_launches_by_number_and_position() -> None:
    memory = memory_of_tensors(
        program(Allocate("y"), Launch("f", ("x", "y")), Launch("g", ("y", "x", "y")))
    )
    assert memory["x"].input == 0
    assert memory["y"].input is None
    assert memory["x"].launches == [(0, 0), (1, 1)]
    assert memory["y"].launches == [(0, 1), (1, 0), (1, 2)]
    assert not memory["x"].in_library


def test_views_share_the_memory_of_their_base() -> None:
    memory = memory_of_tensors(
        program(
            View("v", "x"), View("w", "v"), Allocate("y"), Launch("f", ("w", "y")),
            tensors="x v w y",
        )
    )  # fmt: skip
    assert memory["w"] is memory["v"] is memory["x"]
    assert memory["x"].launches == [(0, 0)]


def test_a_view_as_another_dtype_is_made_by_a_library_call() -> None:
    memory = memory_of_tensors(program(View("v", "x"), tensors="x v:int32"))
    assert memory["x"].in_library


@pytest.mark.parametrize(("dtype", "same"), [("float32", True), ("int32", False)])
def test_an_allocation_takes_over_memory_of_the_same_dtype(dtype: str, same: bool) -> None:
    memory = memory_of_tensors(
        program(
            Allocate("t"), Launch("f", ("x", "t")), Allocate("y", reuse="t"), Launch("g", ("y",)),
            tensors=f"x t y:{dtype}",
        )
    )  # fmt: skip
    assert (memory["y"] is memory["t"]) is same
    assert memory["y"].launches == ([(0, 1), (1, 0)] if same else [(1, 0)])


def test_a_library_call_touches_arguments_keywords_and_what_it_writes() -> None:
    memory = memory_of_tensors(
        program(
            Allocate("o"),
            Extern("aten.f.out", ([Ref("a"), Ref("b")],), {"c": Ref("c")}, (), (("out", "o"),)),
            tensors="a b c d o", inputs="a b c d", outputs=("o",),
        )
    )  # fmt: skip
    assert {name for name, each in memory.items() if each.in_library} == {"a", "b", "c", "o"}
    assert not memory["d"].used


def test_results_of_a_library_call_are_new_memory() -> None:
    call = Extern("aten.topk.default", (Ref("x"), 2), {}, ("y", None, "z"))
    memory = memory_of_tensors(program(call, tensors="x y z", outputs=("y", "z")))
    assert memory["y"] is not memory["z"]
    assert memory["y"].in_library
    assert memory["y"].input is None


def test_a_number_is_no_memory() -> None:
    memory = memory_of_tensors(
        program(Allocate("y"), inputs="n x", symbols=(Symbol("n", 0, None),))
    )
    assert memory["x"].input == 1
    assert "n" not in memory


def test_writes_through_a_view_are_seen_at_its_base() -> None:
    memory = memory_of_tensors(
        program(
            View("v", "x"), Extern("aten.mm.out", (), {}, (), (("out", "v"),)), tensors="x v"
        )
    )  # fmt: skip
    assert memory["x"].in_library


LAUNCH = (Allocate("y"), Launch("f", ("x", "y")))


def extern(op: str) -> tuple[Step, ...]:
    return (Extern(op, (Ref("x"),), {}, ("y",)),)


RECORDABLE = {
    "a launch": program(*LAUNCH),
    "a matrix product": program(*extern("aten.mm.default")),
    "a convolution": program(*extern("aten.convolution.default")),
    "symbolic sizes": program(*LAUNCH, symbols=(Symbol("s0", 0, 0),)),
    "dropout": program(*extern("aten.native_dropout.default")),
}


@pytest.mark.parametrize("name", RECORDABLE)
@pytest.mark.parametrize("always", [False, True])
def test_recordable(name: str, always: bool) -> None:
    assert refusal(RECORDABLE[name], any_operator=always) is None


REFUSED = {
    "no tensor": (program(tensors="", inputs=""), "no tensor"),
    "the CPU": (
        Program(("x",), (tensor("x", device="cpu"),), (), (), (), LAUNCH, ("x",)),
        "tensors of the CPU",
    ),
    "a scalar of the CPU": (
        Program(("x",), (tensor("x"), tensor("y", device="cpu")), (), (), (), LAUNCH, ("y",)),
        "tensors of the CPU",
    ),
    "two devices": (
        Program(("x",), (tensor("x"), tensor("y", device="cuda:1")), (), (), (), LAUNCH, ("y",)),
        "several devices (cuda:0, cuda:1)",
    ),
    "a float": (program(*LAUNCH, symbols=(Symbol("f", 0, None, is_float=True),)), "a float"),
    "many sizes": (
        program(*LAUNCH, symbols=tuple(Symbol(f"s{at}", 0, 0) for at in range(65))),
        "more than 64",
    ),
    "nothing": (program(View("y", "x")), "launches nothing"),
    "nonzero": (program(*extern("aten.nonzero.default")), "waits for the device"),
    "item": (program(*extern("aten._local_scalar_dense.default")), "waits for the device"),
    "in place": (program(*extern("aten.geqrf_.default")), "waits for the device"),
    "a solver": (program(*extern("aten.linalg_solve_ex.default")), "waits for the device"),
    "a collective": (
        program(*extern("_c10d_functional.all_reduce.default")),
        "no process group ends",
    ),
    "a wait": (program(*extern("_c10d_functional.wait_tensor.default")), "no process group ends"),
    "fft": (program(*extern("aten._fft_c2c.default")), "keeps state on the host"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("always", [False, True])
def test_refused(name: str, always: bool) -> None:
    refused, reason = REFUSED[name]
    assert reason in (refusal(refused, any_operator=always) or "")


def test_operators_of_others_are_recorded_on_demand() -> None:
    other = program(*extern("mine.op.default"))
    assert "mine.op.default may do anything" in (refusal(other, any_operator=False) or "")
    assert refusal(other, any_operator=True) is None


KERNELS = torch.library.Library("flambeau_kernel", "FRAGMENT")
KERNELS.define("graph_memory_plain(Tensor x) -> ()")
KERNELS.define("graph_memory_hooked(Tensor x) -> ()", tags=(torch.Tag.cudagraph_unsafe,))


def test_kernels_of_the_program_are_recorded_unless_they_have_hooks() -> None:
    plain = program(*extern("flambeau_kernel.graph_memory_plain.default"))
    hooked = program(*extern("flambeau_kernel.graph_memory_hooked.default"))
    assert refusal(plain, any_operator=False) is None
    assert "may do anything" in (refusal(hooked, any_operator=False) or "")


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("aten.mm.out", True),
        ("aten._scaled_mm.default", True),
        ("aten.convolution.default", False),
        ("aten.sort.default", False),
        ("mine.anything.default", True),
    ],
)
def test_what_may_need_a_workspace_of_blas(op: str, expected: bool) -> None:
    assert may_call_blas(program(Extern(op, (Ref("x"),), outputs=("y",)))) is expected


@pytest.mark.parametrize("allocator", ["native", "cudaMallocAsync", "pluggable"])
def test_allocators_without_pools_are_refused(
    allocator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: allocator)
    reason = why_plain(program(Allocate("y"), Launch("f", ("x", "y"))), RuntimeOptions())
    assert reason is None if allocator == "native" else allocator in str(reason)


def test_no_copy_stands_in_for_what_is_written_or_drawn_for() -> None:
    dropout = Extern("aten.native_dropout.default", (Ref("v"), 0.5, True), outputs=("y", None))
    made = program(
        View("v", "x"), dropout, tensors="x w v y", inputs="x w", mutated=("w",), outputs=("y",)
    )
    assert written_or_drawn_for(made) == {"v", "w"}
    executor = SimpleNamespace()
    recorder = Recorder(made, executor, SimpleNamespace(), 0)
    assert recorder.library_inputs == [0]
    assert not recorder.stageable
    other = dataclasses.replace(made, steps=extern("aten.sin.default"))
    assert Recorder(other, executor, SimpleNamespace(), 0).stageable == {0}


def test_random_operators_are_known_by_their_tag() -> None:
    assert draws_random_numbers(program(*extern("aten.native_dropout.default")))
    assert draws_random_numbers(program(*extern("aten.rand_like.default")))
    assert not draws_random_numbers(program(*extern("aten.mm.default")))


def attention(dropout: float) -> Program:
    q, o, log_sums = (
        Tensor(name, (2, 2, 4, 8), (64, 32, 8, 1), "float32", "cuda:0") for name in "qol"
    )
    seed, offset = (Tensor(name, (), (), "int64", "cpu") for name in ("seed", "offset"))
    call = Extern(
        "aten._scaled_dot_product_efficient_attention.default",
        (Ref("q"), Ref("q"), Ref("q"), None, True, dropout, False),
        outputs=("o", "l", "seed", "offset"),
    )
    return Program(
        inputs=("q",),
        tensors=(q, o, log_sums, seed, offset),
        symbols=(),
        sources=(),
        kernels=(),
        steps=(call,),
        outputs=("o",),
    )


def test_attention_without_dropout_makes_a_seed_that_nobody_reads() -> None:
    program = attention(0.0)
    assert idle_tensors(program) == {"seed", "offset"}
    assert refusal(program, any_operator=False) is None
    assert not draws_random_numbers(program)


def test_attention_with_dropout_makes_a_seed_for_its_backward_only() -> None:
    program = attention(0.5)
    assert idle_tensors(program) == {"seed", "offset"}
    assert refusal(program, any_operator=False) is None
    assert draws_random_numbers(program)
    training = dataclasses.replace(program, outputs=("o", "seed", "offset"))
    assert not idle_tensors(training)
    assert attention_seeds(training) == {"seed", "offset"}
    assert refusal(training, any_operator=False) is None
    read = Extern("aten.add.Tensor", (Ref("seed"), 1), outputs=("l",))
    with_reader = dataclasses.replace(training, steps=(*training.steps, read))
    assert attention_seeds(with_reader) == {"offset"}
    assert refusal(with_reader, any_operator=False) == "it uses tensors of the CPU"


def test_the_backward_of_attention_with_dropout_reads_a_seed() -> None:
    call = Extern(
        "aten._scaled_dot_product_efficient_attention_backward.default",
        (*map(Ref, "gqqq"), None, *map(Ref, ("o", "l", "seed", "offset")), 0.5, (True,) * 4),
        outputs=("dq", "dk", "dv", None),
    )
    tensors = [
        Tensor(name, (2, 2, 4, 8), (64, 32, 8, 1), "float32", "cuda:0")
        for name in ("g", "q", "o", "l", "dq", "dk", "dv")
    ]
    tensors += [Tensor(name, (), (), "int64", "cpu") for name in ("seed", "offset")]
    backward = Program(
        inputs=("g", "q", "o", "l", "seed", "offset"),
        tensors=tuple(tensors),
        symbols=(),
        sources=(),
        kernels=(),
        steps=(call,),
        outputs=("dq", "dk", "dv"),
    )
    assert not draws_random_numbers(backward), "its calls are recorded while other threads run"
    assert attention_seeds(backward) == {"seed", "offset"}
    assert refusal(backward, any_operator=False) is None
    plain = dataclasses.replace(call, args=(*call.args[:9], 0.0, call.args[10]))
    assert not attention_seeds(dataclasses.replace(backward, steps=(plain,)))
