"""Launches of Triton kernels in captured frames, with a stand-in for Triton."""

from __future__ import annotations

import copy

import pytest
import torch
import triton_double as triton
from triton_double import language as tl

import flambeau_capture
from flambeau_capture import CaptureError, CaptureOptions, state_of
from flambeau_prims.kernel_writes import written_parameters


def add_kernel(x, y, out, n, BLOCK: tl.constexpr = 2):
    first = tl.program_id(0) * BLOCK
    for at in range(first, min(first + BLOCK, n)):
        tl.store(out, at, tl.load(x, at) + tl.load(y, at))


add = triton.JITFunction(add_kernel)


def increment_kernel(x, n, by, STEP: tl.constexpr):
    for at in range(0, n, STEP):
        tl.store(x, at, tl.load(x, at) + by)


increment = triton.JITFunction(increment_kernel)
heuristic = triton.Heuristics(increment, {"STEP": lambda args: 2 if args["n"] > 4 else 1})
tuned = triton.Autotuner(add, [triton.Config({"BLOCK": 3}), triton.Config({"BLOCK": 4})])
tuned_once = triton.Autotuner(add, [triton.Config({"BLOCK": 3})])


def clear(arguments):
    arguments["out"].zero_()


hooked_tuner = triton.Autotuner(
    triton.JITFunction(add_kernel), [triton.Config({"BLOCK": 3}, pre_hook=clear)]
)
hooked = triton.JITFunction(increment_kernel)
hooked.pre_run_hooks.append(lambda *args, **kwargs: None)


def check(function, *inputs, graphs=1):
    """Compiled beside eager on copies; the compiled callable, whose frames have so many graphs."""
    made = []

    def backend(module, example_inputs):
        made.append(module)
        return module.forward

    fullgraph = graphs == 1
    compiled = flambeau_capture.compile(
        function, backend=backend, options=CaptureOptions(fullgraph=fullgraph)
    )
    theirs = copy.deepcopy(inputs)
    expected, actual = function(*theirs), compiled(*inputs)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(inputs, theirs)
    assert len(made) == graphs
    return compiled, made


def whole(function):
    """The function, captured whole or refused."""
    return flambeau_capture.compile(
        function,
        backend=lambda module, inputs: module.forward,
        options=CaptureOptions(fullgraph=True),
    )


def launches(made):
    return [
        str(node.target)
        for module in made
        for node in module.graph.nodes
        if str(node.target).startswith("flambeau_kernel.")
    ]


def grid_of_meta(x, y):
    out = torch.empty_like(x)
    add[lambda meta: (-(-x.numel() // meta["BLOCK"]),)](x, y, out, n=x.numel(), BLOCK=3)
    return out * 2


def default_of_a_constexpr(x, y):
    out = torch.empty_like(x)
    add[lambda meta: (-(-x.numel() // meta["BLOCK"]),)](x, y, out, x.numel(), num_warps=8)
    return out


def in_place(x, y):
    increment[(1,)](x, x.numel(), 2, STEP=1)
    return x + y


def with_heuristics(x, y):
    z = x + y
    heuristic[(1,)](z, z.numel(), 0.5)
    return z


def with_a_tuner(x, y):
    out = torch.zeros_like(x)
    tuned[lambda meta: (-(-x.numel() // meta["BLOCK"]),)](x, y, out, x.numel())
    return out


def with_a_tuner_without_a_choice(x, y):
    out = torch.zeros_like(x)
    tuned_once[lambda meta: (-(-x.numel() // meta["BLOCK"]),)](x, y, out, x.numel())
    return out


def with_a_hook_of_a_configuration(x, y):
    out = torch.ones_like(x)
    hooked_tuner[(1,)](x, y, out, x.numel())
    return out


def into_expanded_memory(x, y):
    z = x + y
    increment[(1,)](z[:1].expand(4), 4, 1, STEP=1)
    return z


def rows_of_one_tensor(x, y):
    z = torch.stack([x, y])
    add[(3,)](z[0], z[1], z[0], x.numel())
    return z


@pytest.mark.parametrize(
    "function",
    [
        grid_of_meta, default_of_a_constexpr, in_place, with_heuristics, with_a_tuner,
        with_a_tuner_without_a_choice, with_a_hook_of_a_configuration, into_expanded_memory,
        rows_of_one_tensor,
    ],
)  # fmt: skip
@pytest.mark.parametrize("n", [3, 6])
def test_captured_whole(function, n) -> None:
    _, made = check(function, torch.randn(n), torch.randn(n))
    assert len(launches(made)) == 1


def test_equal_launches_are_one_operator() -> None:
    def function(x):
        for by in (1, 2):
            increment[(1,)](x, x.numel(), by, STEP=1)
        increment[(1,)](x, x.numel(), 1, STEP=2)
        return x

    _, made = check(function, torch.randn(4))
    first, second, third = launches(made)
    assert first == second != third


def test_another_kernel_is_another_capture() -> None:
    global add
    compiled, _ = check(grid_of_meta, torch.randn(3), torch.randn(3))
    before = add
    add = triton.JITFunction(subtract_kernel)
    try:
        x, y = torch.randn(3), torch.randn(3)
        torch.testing.assert_close(compiled(x, y), (x - y) * 2)
    finally:
        add = before


def subtract_kernel(x, y, out, n, BLOCK: tl.constexpr = 2):
    for at in range(tl.program_id(0) * BLOCK, min(tl.program_id(0) * BLOCK + BLOCK, n)):
        tl.store(out, at, tl.load(x, at) - tl.load(y, at))


def with_a_hook(x):
    hooked[(1,)](x, x.numel(), 1, STEP=1)
    return x + 1


def with_a_kernel_made_inside(x):
    triton.JITFunction(increment_kernel)[(1,)](x, x.numel(), 1, STEP=1)
    return x + 1


def with_a_number_as_grid(x):
    increment[lambda meta: [1.0]](x, x.numel(), 1, STEP=1)
    return x + 1


def with_an_object(x):
    increment[(1,)](x, x.numel(), complex(1), STEP=1)
    return x + 1


def without_tensors(x):
    increment[(1,)](None, 0, 1, STEP=1)
    return x + 1


@pytest.mark.parametrize(
    "function",
    [
        with_a_hook, with_a_kernel_made_inside, with_a_number_as_grid, with_an_object,
        without_tensors,
    ],
)  # fmt: skip
def test_refused_with_a_reason(function) -> None:
    compiled = whole(function)
    with pytest.raises(CaptureError, match="triton-kernel"):
        compiled(torch.randn(4))


def test_elements_that_share_memory() -> None:
    def function(x):
        increment[(1,)](x, 1, 1, STEP=1)
        return x + 1

    compiled = whole(function)
    with pytest.raises(CaptureError, match="elements share memory"):
        compiled(torch.zeros(1).expand(4))


def test_an_exported_launch_cannot_be_saved(tmp_path) -> None:
    x, y = torch.randn(3), torch.randn(3)
    exported = flambeau_capture.export(grid_of_meta, (x, y))
    torch.testing.assert_close(exported(x, y), grid_of_meta(x, y))
    with pytest.raises(TypeError, match="a launch of a Triton kernel of this process"):
        exported.save(tmp_path / "kernel.flambeau")


def test_missing_arguments_are_errors() -> None:
    def function(x):
        add[(1,)](x, x)
        return x

    compiled = flambeau_capture.compile(function, backend=lambda module, inputs: module.forward)
    for run in (function, compiled):
        with pytest.raises(TypeError, match="missing a required argument"):
            run(torch.randn(4))


@pytest.mark.parametrize("function", [with_a_hook, without_tensors])
def test_runs_eagerly_behind_a_break(function) -> None:
    compiled = flambeau_capture.compile(function, backend=lambda module, inputs: module.forward)
    x = torch.randn(4)
    expected, actual = function(x.clone()), compiled(x.clone())
    torch.testing.assert_close(actual, expected)
    reasons = [event.reason.id for event in state_of(compiled).events if event.kind == "break"]
    assert reasons == ["triton-kernel"]


# What a kernel writes to


def through_names(x, y, out, n):
    pointer = out + n
    pointer += 1
    value = tl.load(x, n)
    tl.store(pointer, 0, value + tl.load(y, 0))


def of_a_helper(x, y, out):
    write_second(x, out)
    tl.store(choose(y, x), 0, 1)


write_second = triton.JITFunction(lambda a, b: None)


def _write_second(a, b):
    tl.store(b, 0, tl.load(a, 0))


write_second.fn = _write_second


def _choose(a, b):
    return a


choose = triton.JITFunction(_choose)


def by_an_unknown_function(x, y, out):
    unknown(x, tl.load(y, 0))


unknown = object()


def in_a_loop(x, y, n):
    for _ in range(n):
        z = x
        x = y
    tl.store(z, 0, 1)


def read_only(x, y):
    return tl.load(x, 0) + tl.load(y, 0)


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (through_names, {"out"}),
        (of_a_helper, {"out", "y"}),
        (by_an_unknown_function, {"x"}),
        (in_a_loop, {"x", "y"}),
        (read_only, set()),
    ],
)
def test_written_parameters(kernel, written) -> None:
    assert written_parameters(kernel) - {"n"} == written
