"""The fuzz of kernels: its mechanisms are drawn, planted defects are found, fixed seeds pass."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from tools.checks.command import ROOT
from tools.fuzz.kernels import check as kernels
from tools.fuzz.kernels.closeness import close
from tools.fuzz.kernels.numbers import FLOATS, INTEGERS, draw_numbers
from tools.fuzz.kernels.operators import CLASSES, IN_PLACE
from tools.fuzz.kernels.placing import LAYOUTS, MARGIN, Input, place, placed, poison
from tools.fuzz.kernels.programs import MODES, Chain, Program, generate, on_cpu, simpler
from tools.fuzz.kernels.sizes import draw_shape
from tools.fuzz.kernels.unwritten import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.complex64, torch.int8, torch.uint8, torch.int64, torch.bool,
)  # fmt: skip


@pytest.mark.parametrize("batch", range(4))
def test_chains_equal_eager(batch: int) -> None:
    texts = [kernels.check_seed(seed) for seed in range(6 * batch, 6 * batch + 6)]
    found = [text for text in texts if text is not None]
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_placed_tensor_has_its_values_amid_poison(name: str, dtype: torch.dtype) -> None:
    values = draw_numbers((2, 3, 4), dtype, "normal")
    tensor = place(values, LAYOUTS[name])
    expected = values
    if name.startswith("expanded"):
        expected = values.narrow(LAYOUTS[name].expanded or 0, 0, 1).expand(2, 3, 4)
    assert torch.equal(tensor.to(torch.complex64), expected.to(torch.complex64))
    assert tensor.is_leaf
    storage = tensor.as_strided((tensor.untyped_storage().nbytes() // dtype.itemsize,), (1,), 0)
    owned = torch.zeros(storage.shape, dtype=torch.bool)
    owned.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
    assert owned[:MARGIN].logical_not().all() and owned[-MARGIN:].logical_not().all()
    outside = storage.to(torch.complex64)[~owned]
    value = poison(dtype)
    assert outside.isnan().all() if value != value else (outside == value).all()


def test_layouts_are_what_their_names_say() -> None:
    strides = {name: placed((2, 3, 4), torch.float32, layout=name).stride() for name in LAYOUTS}
    assert strides == {
        "contiguous": (12, 4, 1),
        "shifted": (12, 4, 1),
        "strided": (24, 8, 2),
        "gaps": (21, 7, 1),
        "transposed": (12, 1, 3),
        "reversed": (1, 2, 6),
        "channels_last": (12, 1, 3),
        "expanded_first": (0, 4, 1),
        "expanded_last": (3, 1, 0),
    }
    addresses = {name: placed((5,), torch.int16, layout=name).data_ptr() % 64 for name in LAYOUTS}
    assert addresses.pop("shifted") == 2
    assert set(addresses.values()) == {0}


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.itemsize > 1], ids=str)
def test_numbers_of_each_name_have_the_dtype(dtype: torch.dtype) -> None:
    names = FLOATS if dtype.is_floating_point or dtype.is_complex else INTEGERS
    for name in names:
        for shape in ((), (0, 3), (40, 5)):
            drawn = draw_numbers(shape, dtype, name)
            assert (drawn.shape, drawn.dtype) == (shape, dtype)


def test_numbers_are_what_their_names_say() -> None:
    torch.manual_seed(1)
    special = draw_numbers((3000,), torch.float32, "special")
    assert special.isnan().any() and special.isposinf().any() and special.isneginf().any()
    assert (special == 1e15).any() and ((special == 0) & special.signbit()).any()
    assert (special.abs() == torch.tensor(1e-40)).any()
    rows = draw_numbers((4, 50), torch.float32, "equal_rows")
    assert (rows == rows[:, :1]).all() and len(rows[:, 0].unique()) == 4
    whole = draw_numbers((500,), torch.int16, "whole_range")
    assert (whole.min(), whole.max()) == (-(2**15), 2**15 - 1)
    within = draw_numbers((500,), torch.int64, "within 3")
    assert within.unique().tolist() == [-3, -2, -1, 0, 1, 2]
    assert draw_numbers((500,), torch.int32, "below 3").unique().tolist() == [0, 1, 2]


def test_shapes_are_odd_and_bounded() -> None:
    random = Random(0)
    shapes = [draw_shape(random, ndim, 30_000) for ndim in (0, 1, 2, 3, 5) for _ in range(200)]
    assert max(map(math.prod, shapes)) <= 30_000
    sizes = Counter(size for shape in shapes for size in shape)
    assert sizes[0] > 10 and sizes[1] > 50
    assert sum(count for size, count in sizes.items() if size > 1000) > 50


def test_an_input_is_read_as_it_was_printed() -> None:
    for given in (
        Input((3, 0), torch.bfloat16, "special", "gaps", requires_grad=True),
        Input((), torch.int64, "below 3", "contiguous", "cuda"),
    ):
        assert Input.read(str(given)) == given
        assert all(plain != given for plain in given.simpler())


def test_every_template_is_drawn() -> None:
    """Each operator and each write runs in some chain, of the inputs of its class."""
    unused = []
    for operators in CLASSES.values():
        for template in operators.exact + operators.rounded:
            alone = type(operators)(exact=(template,), ndims=operators.ndims)

            def runs(seed: int, alone: Any = alone) -> bool:
                chain = Chain(seed)
                chain._begin(alone)
                return chain._assigned(alone, "v0") is not None

            if not any(map(runs, range(300))):
                unused.append(template)

    def writes(seed: int, template: str) -> bool:
        chain = Chain(seed)
        chain.in_place = (template,)
        chain._begin(CLASSES["pointwise"])
        chain._begin(CLASSES["pointwise"])
        return bool(chain.fresh) and chain._write() is not None

    unused += [t for t in IN_PLACE if not any(writes(seed, t) for seed in range(900))]
    assert not unused


def test_programs_have_all_classes_modes_layouts_and_numbers() -> None:
    programs = [generate(seed) for seed in range(250)]
    inputs = [Input.read(text) for program in programs for text in program.inputs]
    assert {program.kind for program in programs} == set(CLASSES)
    assert {program.mode for program in programs} == set(MODES)
    assert {each.layout for each in inputs} == set(LAYOUTS)
    assert {each.values.split()[0] for each in inputs} == {*FLOATS, *INTEGERS, "below", "within"}
    assert any(each.requires_grad for each in inputs)
    writes = [line for program in programs for line in program.statements if line[0] == "x"]
    assert writes


def test_the_double_precision_program_names_no_other_float() -> None:
    program = Program(
        ("placed((3,), torch.float32)",), ("v0 = x0.to(torch.bfloat16)",), ("v0",), ("v0",)
    )
    loaded = program.load()
    (argument,) = loaded["make"]()
    assert loaded["program"](argument)[0].dtype is torch.bfloat16
    assert loaded["reference"](argument)[0].dtype is torch.float64


def test_close_allows_rounding_and_no_more() -> None:
    exact = torch.tensor([1.0, 1e6, math.nan, math.inf, 1e39], dtype=torch.float64)
    eager = exact.float()
    assert close(eager, eager, exact) is None
    assert close(eager * (1 + 3e-7), eager, exact) is None
    wrongs = (0, math.nan), (1, 1.1e6), (1, math.inf), (2, 0.0), (3, 1e30), (4, -math.inf)
    for index, wrong in wrongs:
        ours = eager.clone()
        ours[index] = wrong
        text = close(ours, eager, exact)
        assert text is not None and f"at ({index},)" in text


DOUBLE = "v0 = x0 * 2"


def read_behind(x: torch.Tensor) -> torch.Tensor:
    """The last element of each row is computed from the one behind it."""
    wide = x.as_strided(x.shape, x.stride(), x.storage_offset() + 1)
    return torch.cat([(x * 2)[..., :-1], (wide * 2)[..., -1:]], -1)


def ignore_strides(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided(x.shape, torch.empty(x.shape).stride()) * 2


def lose_nan(x: torch.Tensor) -> torch.Tensor:
    return x.nan_to_num(0.0, math.inf, -math.inf) * 2


def lose_last_rows(x: torch.Tensor) -> torch.Tensor:
    """Rows behind a multiple of 8 are left out, as by a partial tile."""
    result = x * 2
    result[len(x) // 8 * 8 :] = 0
    return result


@pytest.mark.parametrize(
    ("defect", "text"),
    [
        (read_behind, 'placed((5, 7), torch.float32, "normal", "contiguous")'),
        (ignore_strides, 'placed((5, 7), torch.float32, "normal", "gaps")'),
        (lose_nan, 'placed((40, 7), torch.float32, "special", "contiguous")'),
        (lose_last_rows, 'placed((8193, 2), torch.float32, "normal", "contiguous")'),
    ],
)
def test_planted_defects_are_found(
    defect: Callable[[torch.Tensor], torch.Tensor], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program((text,), (DOUBLE,), ("v0",), ("v0",), "pointwise")
    assert kernels.difference(program) is None
    monkeypatch.setattr(flambeau, "compile", lambda function, **_: lambda x: (defect(x),))
    found = kernels.check(program)
    assert found is not None
    assert DOUBLE in found


def test_new_memory_is_filled() -> None:
    script = (
        "import torch\n"
        "from tools.fuzz.kernels.unwritten import fill_new_memory\n"
        "assert fill_new_memory()\n"
        "for size in (1, 7, 300, 777, 20_000, 3_000_000) * 20:\n"
        "    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):\n"
        "        assert torch.empty(size, dtype=dtype).isnan().all(), (size, dtype)\n"
    )
    done = run_python(script)
    assert done.returncode == 0, done.stderr


def test_unwritten_results_are_found() -> None:
    """In a process whose new memory is filled, since memory of zeros may hide them."""
    script = (
        "import flambeau, torch\n"
        "from tools.fuzz.kernels import check\n"
        "from tools.fuzz.kernels.programs import Program\n"
        "from tools.fuzz.kernels.unwritten import fill_new_memory\n"
        "fill_new_memory()\n"
        "make = ('placed((9, 5), torch.float32)',)\n"
        "program = Program(make, ('v0 = x0 * 0',), ('v0',), ('v0',))\n"
        "assert check.difference(program) is None\n"
        "flambeau.compile = lambda *_: lambda x: (torch.empty_like(x),)\n"
        "print(check.difference(program))\n"
    )
    done = run_python(script)
    assert "45 of 45 torch.float32 differ" in done.stdout, done.stderr


def run_python(script: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-c", script], os.environ | ENVIRONMENT
    return subprocess.run(
        command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False
    )


def test_processes_report_what_differs(capfd: pytest.CaptureFixture[str]) -> None:
    assert kernels.report(2, 0, device="cpu", jobs=1, seconds=600) == 0
    assert kernels.report(3, 0, device="cpu", jobs=2, seconds=-1) == 0
    assert capfd.readouterr().out == "2 programs, 0 differ\n0 programs, 0 differ\n"


def test_unused_inputs_are_dropped() -> None:
    inputs = ("placed((3,), torch.int8)", "placed((4,), torch.float32)", "placed((), torch.bool)")
    program = Program(inputs, ("v0 = x1 * 2",), ("v0", "x1"), ("x1",))
    short = [each for each in simpler(program) if len(each.inputs) < 3]
    assert [each.inputs for each in short] == [inputs[1:], inputs[:2]]
    assert short[0].statements == ("v0 = x0 * 2",)
    assert (short[0].outputs, short[0].losses) == (("v0", "x0"), ("x0",))
    assert short[1].statements == program.statements


def test_a_program_for_a_gpu_names_its_device_in_each_input() -> None:
    program = Program(
        (str(Input((3,), torch.float32, device="cuda")),), ("v0 = x0 + 1",), ("v0",), ("v0",)
    )
    assert 'placed((3,), torch.float32, "normal", "contiguous", "cuda")' in program.text()
    assert "cuda" not in on_cpu(program).text()
    assert kernels.difference(on_cpu(program)) is None
