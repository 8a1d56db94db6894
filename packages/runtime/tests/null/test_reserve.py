"""The step `Reserve`, and symbols that are elements of a tensor."""

from __future__ import annotations

import dataclasses

import pytest

from flambeau_runtime import format_program
from flambeau_runtime.check import ProgramError, check_program
from flambeau_runtime.graph_launch.eligibility import idle_tensors, refusal
from flambeau_runtime.program import (
    Extern,
    Kernel,
    Launch,
    Program,
    Ref,
    Reserve,
    Source,
    Symbol,
    Tensor,
)

RESERVE = Reserve("own", "cuda:0", 8, ("own_at0", "own_at1"))
PROGRAM = Program(
    inputs=("x", "given"),
    tensors=(
        Tensor("x", (6,), (1,), "float32", "cuda:0"),
        Tensor("given", (2,), (1,), "int64"),
        Tensor("own", (2,), (1,), "int64"),
    ),
    symbols=(
        Symbol("given_at0", 1, 0, is_element=True),
        Symbol("given_at1", 1, 1, is_element=True),
    ),
    sources=(Source("triton", ""),),
    kernels=(Kernel("k", 0),),
    steps=(
        RESERVE,
        Launch("k", ("x",), ("given_at0", "given_at1", "own_at0", "own_at1"), (1,)),
    ),
    outputs=("own",),
    mutated=("x",),
)


def changed(**fields: object) -> Program:
    """The program with other fields."""
    return dataclasses.replace(PROGRAM, **fields)  # type: ignore[arg-type]


def test_text() -> None:
    check_program(PROGRAM)
    text = format_program(PROGRAM)
    assert "symbols: given_at0 = given[0], given_at1 = given[1]" in text
    assert "own = reserve 8 of cuda:0, as own_at0, own_at1" in text


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (changed(steps=PROGRAM.steps[::-1]), "unknown symbol own_at0"),
        (changed(steps=(RESERVE, *PROGRAM.steps)), "declared twice"),
        (
            changed(steps=(dataclasses.replace(RESERVE, increment="s0"), PROGRAM.steps[1])),
            "unknown symbol s0",
        ),
        (
            changed(tensors=(*PROGRAM.tensors[:2], Tensor("own", (3,), (1,), "int64"))),
            r"must be int64\[2\] on the CPU",
        ),
        (
            changed(symbols=(Symbol("given_at0", 1, 2, is_element=True),)),
            "no element 2",
        ),
        (
            changed(symbols=(Symbol("given_at0", 0, 0, is_element=True),)),
            "contiguous int64 tensor",
        ),
    ],
)
def test_refused(program: Program, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        check_program(program)


def test_states_of_generators_do_not_keep_a_program_from_being_recorded() -> None:
    assert idle_tensors(PROGRAM) == {"given", "own"}
    assert refusal(PROGRAM, any_operator=False) is None
    read = Extern("aten.sum.default", (Ref("given"),), outputs=(None,))
    assert "tensors of the CPU" in str(
        refusal(changed(steps=(*PROGRAM.steps, read)), any_operator=False)
    )


def test_many_states() -> None:
    inputs = tuple(f"given{number}" for number in range(500))
    states = tuple(Tensor(name, (2,), (1,), "int64") for name in inputs)
    symbols = tuple(
        Symbol(f"{name}_at{at}", number + 1, at, is_element=True)
        for number, name in enumerate(inputs)
        for at in range(2)
    )
    tensors = (PROGRAM.tensors[0], *states)
    launch = (Launch("k", ("x",), (), (1,)),)
    for count, message in ((480, None), (500, "more than 480")):
        program = changed(
            inputs=("x", *inputs[:count]),
            tensors=tensors[: count + 1],
            symbols=symbols[: 2 * count],
            steps=launch,
            outputs=(),
        )
        check_program(program)
        reason = refusal(program, any_operator=False)
        assert reason is None if message is None else message in str(reason)
