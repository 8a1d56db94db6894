"""Programs as text, as JSON, and what the checker refuses."""

from __future__ import annotations

import dataclasses
import math

import pytest
from example_programs import mixed, scaled, sin_cos

from flambeau_runtime import ProgramError, check_program, dims, format_program, program_json
from flambeau_runtime.program import (
    Allocate,
    Dtype,
    Extern,
    Free,
    Launch,
    MemoryFormat,
    Program,
    Ref,
    Symbol,
    Tensor,
)

TEXT = """\
mixed(x: float32[s0, 8], w: float32[8, 16], b: float32[16], n: int, acc: float32[3]) {
  symbols: s0 = x.shape[0], s1 = n
  h = allocate float32[s0, 16]
  extern aten.addmm.out(b, x, w, out=h)
  r = allocate float32[s0, 16]
  launch relu(h, r; s0*16)
  r2 = reuse h as float32[s0, 16]
  launch relu(r, r2; max(s0*16, 0))
  free r
  _ = extern aten.cat.default([x, x], 1)
  joined = extern aten.cat.default([r2, r2], 0)
  free r2
  tail = view joined as float32[s0, 16] offset s0*16
  scaled = extern aten.mul.Scalar(tail, s1*2 - 7//2 - -s1 % 2)
  bits = view scaled as int32[s0, 16]
  launch add_one(acc; 3)
  mutated acc
  return (scaled, s0*2 + min(s1, 3), None, tail, bits, acc)
}"""


def test_text():
    assert format_program(mixed()) == TEXT


@pytest.mark.parametrize("program", [sin_cos((3, 5)), scaled(), mixed()], ids=lambda p: p.name)
def test_json_round_trip(program):
    assert program_json.loads(program_json.dumps(program)) == program


def test_json_keeps_special_arguments():
    step = Extern(
        "aten.x.default",
        (math.inf, -0.0, 1.5, [1, True, None], (Dtype("float32"), 2**62)),
        {"m": MemoryFormat("channels_last")},
    )
    program = dataclasses.replace(sin_cos(), steps=(step,))
    back = program_json.loads(program_json.dumps(program)).steps[0]
    assert back == step and back.kwargs == step.kwargs
    assert math.copysign(1, back.args[1]) == -1
    assert type(back.args[3]) is list and type(back.args[4]) is tuple and back.args[3][1] is True
    nan = dataclasses.replace(sin_cos(), steps=(Extern("aten.x.default", (math.nan,)),))
    assert math.isnan(program_json.loads(program_json.dumps(nan)).steps[0].args[0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format":99,"program":{}}',
        '{"format":2,"program":{"is":"Nothing"}}',
        '{"format":2,"program":{"is":"Ref","name":"x"}}',
        "\x00",
    ],
)
def test_json_refuses_other_text(text):
    with pytest.raises(program_json.FormatError):
        program_json.loads(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s0*12 + 1", 61),
        ("-s0 // 2", -3),
        ("(s0 - 7) % 4", 2),
        ("max(s0, 2, 9) - min(s0, 3)", 6),
        ("2*(s0 + s1)*s0", 80),
    ],
)
def test_dims(text, value):
    assert dims.evaluate(text, {"s0": 5, "s1": 3}) == value
    assert dims.symbols_of(text) <= {"s0", "s1"}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "s0.bit_length()",
        "s0 ** 2",
        "s0 / 2",
        "1 if s0 else 2",
        "f(s0)",
        "s0 +",
        "1.5",
        "'a'",
    ],
)
def test_dims_refuse_other_python(text):
    with pytest.raises(ValueError, match="size expression"):
        dims.postfix(text)


def broken():
    """(what is wrong, program)."""
    base = mixed()

    def steps(*steps) -> Program:
        return dataclasses.replace(base, steps=steps, outputs=())

    yield "read before", steps(Launch("relu", ("h", "r"), (1,)))
    yield "no kernel", steps(Launch("gelu", ("x", "x"), (1,)))
    yield "made twice", steps(Allocate("h"), Allocate("h"))
    yield "not declared", steps(Allocate("nothing"))
    yield "after it is freed", steps(Allocate("h"), Free("h"), Launch("relu", ("h", "h"), (1,)))
    yield "after it is freed", steps(Allocate("h"), Allocate("r", reuse="h"), Free("h"))
    yield "unknown symbol", steps(Launch("relu", ("x", "x"), ("s7*2",)))
    yield "read before", steps(Extern("aten.neg.default", (Ref("h"),), outputs=("r",)))
    yield (
        "either results or out",
        steps(
            Allocate("h"), Extern("aten.neg.out", (Ref("x"),), outputs=("r",), out=(("out", "h"),))
        ),
    )
    yield "not there at the end", dataclasses.replace(sin_cos(), steps=())
    yield "not an input", dataclasses.replace(sin_cos(), mutated=("y",))
    yield "declared twice", dataclasses.replace(sin_cos(), tensors=sin_cos().tensors * 2)
    yield "no dim", dataclasses.replace(sin_cos(), symbols=(Symbol("s0", 0, 3),))
    yield (
        "unknown dtype",
        dataclasses.replace(
            sin_cos(), tensors=(*sin_cos().tensors, Tensor("z", (), (), "float33"))
        ),
    )


@pytest.mark.parametrize(
    ("message", "program"), list(broken()), ids=lambda x: x if isinstance(x, str) else ""
)
def test_checker_refuses(message, program):
    with pytest.raises(ProgramError, match=message):
        check_program(program)


def test_checker_accepts():
    check_program(mixed())
    check_program(sin_cos((2, 3)))
