"""Functions of NumPy arrays: captured as torch calls, equal to NumPy's results, with guards on the
arrays that they read.
"""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from capture_harness import compiled

import flambeau_capture
from flambeau_capture import CaptureError

np = pytest.importorskip("numpy", reason="functions of arrays need NumPy")

from numpy_programs import IN_PLACE, LAYOUTS, WHOLE, differs, draw, normalise  # noqa: E402

UNARY = (
    "negative",
    "absolute",
    "exp",
    "sqrt",
    "log1p",
    "sin",
    "arctan",
    "floor",
    "rint",
    "sign",
    "square",
    "isnan",
    "logical_not",
    "reciprocal",
    "cbrt",
    "conjugate",
    "exp2",
    "tanh",
    "deg2rad",
    "signbit",
)
BINARY = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "remainder",
    "fmod",
    "maximum",
    "fmin",
    "arctan2",
    "hypot",
    "equal",
    "less",
    "logical_and",
    "bitwise_xor",
    "left_shift",
    "copysign",
    "logaddexp",
    "divmod",
    "power",
)
DTYPES = ("?", "u1", "i1", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
NUMBERS = (2, -1, 0.5, True, 1e3)
WITHOUT_TORCH_CALLS = {
    "power": "biu",
    "reciprocal": "biu",
    "rint": "c",
    "maximum": "c",
    "fmin": "c",
    "less": "c",
    "max": "c",
    "argmin": "c",
}
"""Function -> kinds of dtypes of which torch has no such function: these break the graph."""


@pytest.fixture
def generator() -> Any:
    return np.random.default_rng()


def check(function: Any, *args: Any, may_break: bool = False) -> None:
    """Compiled and eager on copies of the arguments: result, exception, and what became of the
    arguments.
    """
    eager_args, own_args = ([copy_of(arg) for arg in args] for _ in range(2))
    with np.errstate(all="ignore"):
        try:
            want, error = function(*eager_args), None
        except (TypeError, ValueError, OverflowError) as raised:
            want, error = None, raised
        run = compiled(function)
        if error is not None:
            with pytest.raises((type(error), CaptureError)):
                run(*own_args)
            return
        try:
            got = run(*own_args)
        except CaptureError as broken:
            if may_break and broken.reason.id.startswith("numpy-"):
                return
            raise
    assert not differs(got, want)
    assert not differs(own_args, eager_args, "arguments")


def check_function(name: str, function: Any, *args: Any) -> None:
    """`check`, where the function of NumPy called `name` may break the graph for want of torch
    calls.
    """
    kind = np.result_type(*args).kind
    check(function, *args, may_break=kind in WITHOUT_TORCH_CALLS.get(name, ""))


def copy_of(array: Any) -> Any:
    """A copy with the same strides."""
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        return array
    found = np.empty_like(array)
    if found.strides != array.strides:
        low = sum(
            min(0, (size - 1) * step) for size, step in zip(array.shape, array.strides, strict=True)
        )
        high = sum(
            max(0, (size - 1) * step) for size, step in zip(array.shape, array.strides, strict=True)
        )
        memory = np.zeros(high - low + array.itemsize, np.uint8)
        found = np.ndarray(array.shape, array.dtype, memory, -low, array.strides)
    found[...] = array
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WHOLE)
def test_a_program_is_one_graph(name: str, layout: str, generator: Any) -> None:
    check(WHOLE[name], LAYOUTS[layout](draw(generator, (4, 6), np.float64)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_arguments_are_changed_in_place(name: str, layout: str, generator: Any) -> None:
    check(IN_PLACE[name], LAYOUTS[layout](draw(generator, (4, 6), np.float64)))


def test_the_function_of_the_tutorial(generator: Any) -> None:
    run = compiled(normalise)
    for _ in range(3):
        x, y = draw(generator, (7, 5), np.float64), draw(generator, (9,), np.float64)
        kept = x.copy()
        assert not differs(run(x, y), normalise(kept.copy(), y))
        assert np.array_equal(x, kept)


@pytest.mark.parametrize("name", UNARY)
def test_unary_ufuncs_of_every_dtype(name: str, generator: Any) -> None:
    for dtype in DTYPES:
        check_function(name, getattr(np, name), draw(generator, (3, 5), dtype))


@pytest.mark.parametrize("name", BINARY)
def test_binary_ufuncs_promote_as_numpy_does(name: str, generator: Any) -> None:
    ufunc = getattr(np, name)
    for left, right in (
        ("f8", "f8"),
        ("f4", "i4"),
        ("i1", "i8"),
        ("?", "?"),
        ("u1", "i1"),
        ("f2", "f4"),
        ("c8", "f8"),
        ("i4", "i4"),
    ):
        x, y = draw(generator, (3, 1, 5), left), draw(generator, (4, 1), right)
        check_function(name, lambda x, y: ufunc(x, y), x, y)
    for number in (*NUMBERS, np.float32(1.5), np.int64(3)):
        for dtype in generator.choice(["f8", "f4", "i4", "u1", "?"], 2, replace=False):
            x = draw(generator, (3, 4), dtype)
            check_function(name, lambda x, number: ufunc(x, number), x, number)
            check_function(name, lambda x, number: ufunc(number, x), x, number)


@pytest.mark.parametrize("name", ["add", "maximum", "where", "concatenate"])
def test_results_lie_in_memory_as_numpys(name: str, generator: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        if name == "where":
            return np.where(x > 0, x, y)
        return np.concatenate([x, y]) if name == "concatenate" else getattr(np, name)(x, y)

    for first in LAYOUTS.values():
        for second in LAYOUTS.values():
            for shape in ((3, 5), (2, 3), (1, 6), (0, 3)):
                x, y = (draw(generator, shape, np.float64) for _ in range(2))
                check(function, first(x), second(y))
    check(
        function,
        draw(generator, (5, 7), np.float64)[::-1],
        draw(generator, (5, 7), np.float64)[:, ::-1],
    )


@pytest.mark.parametrize("name", ["sum", "prod", "max", "mean", "std", "any", "argmin", "cumsum"])
def test_reductions(name: str, generator: Any) -> None:
    function = getattr(np, name)
    for dtype in ("f8", "f4", "i4", "?", "c16"):
        for axis in (None, 0, 1, -1):
            for order in "CF":
                x = draw(generator, (3, 4, 5), dtype).copy(order)
                check_function(name, lambda x, axis=axis: function(x, axis=axis), x)
    check(lambda x: function(x, axis=1), draw(generator, (0, 4), np.float64))
    check(lambda x: function(x, axis=0), draw(generator, (0, 4), np.float64))


def test_negative_strides_and_read_only_arrays_are_read(generator: Any) -> None:
    def function(x: Any) -> Any:
        return x[1:] + 1, x.T, x, x.sum(0), np.sort(x, axis=0)

    x = draw(generator, (5, 7), np.float64)
    check(function, x[::-1, ::-2])
    check(function, np.broadcast_to(x[0, :4], (3, 4)).copy()[::-1])
    check(lambda x: (x + 1, x.sum(0)), np.broadcast_to(x[0], (5, 7)))
    check(lambda x: x.__setitem__(0, 1), np.broadcast_to(x[0], (5, 7)))


def test_results_share_memory_as_numpys(generator: Any) -> None:
    run = compiled(lambda x: (x, x[1:], x.T, x.reshape(-1), x[::-1], torch.from_numpy(x), x + 0))
    x = draw(generator, (3, 4), np.float64)
    same, *views, fresh = run(x)
    assert same is x
    assert all(np.shares_memory(np.asarray(view), x) for view in views)
    assert not np.shares_memory(fresh, x)
    views[0][:] = 7
    assert (x[1:] == 7).all()


def test_arrays_of_closures_globals_and_attributes(generator: Any) -> None:
    held = draw(generator, (4,), np.float64)

    class Holder:
        def __init__(self) -> None:
            self.array = draw(generator, (4,), np.float64)
            self.table = {"x": draw(generator, (4,), np.float64)}

    holder = Holder()

    def function(x: Any, *, also: Any) -> Any:
        holder.array += x
        return x * held + holder.table["x"] - also[0]

    kept, x = holder.array.copy(), draw(generator, (4,), np.float64)
    got = compiled(function)(x, also=(x, 2))
    assert not differs(got, x * held + holder.table["x"] - x)
    assert np.array_equal(holder.array, kept + x)


@pytest.mark.parametrize("name", ["add", "truediv", "pow", "lt", "eq"])
def test_numpy_scalars_are_numbers_to_tensors(name: str, generator: Any) -> None:
    function = getattr(operator, name)
    for dtype in (torch.float32, torch.int32, torch.bool, torch.complex64):
        for kind in ("f8", "f4", "i4"):
            for shape in ((3,), ()):
                tensor = (torch.rand(shape) * 4 + 1).to(dtype)
                x = np.abs(draw(generator, (3,), kind)) + 1
                for program in (
                    lambda t, x: function(t, x.max()),
                    lambda t, x: function(x.max(), t),
                ):
                    try:
                        want = program(tensor, x)
                    except (RuntimeError, TypeError) as error:
                        with pytest.raises(type(error)):
                            compiled(program, fullgraph=False)(tensor, x)
                    else:
                        got = compiled(program)(tensor, x)
                        torch.testing.assert_close(got, want)


def test_tensors_take_arrays_as_indices(generator: Any) -> None:
    def function(t: Any, x: Any) -> Any:
        t[np.array([0, 2])] = x.sum()
        return t[x > 0], t[np.argsort(x)], t[[np.int64(1), 0]]

    x = draw(generator, (4,), np.float64)
    own, eager = torch.arange(4.0), torch.arange(4.0)
    assert not differs(compiled(function)(own, x), function(eager, x))
    assert torch.equal(own, eager)


def test_subclasses_of_ndarray_are_left_alone(generator: Any) -> None:
    class Tagged(np.ndarray):
        pass

    for make in (lambda x: x.view(Tagged), lambda x: np.ma.masked_greater(x, 0), np.asmatrix):
        first, second = (make(draw(generator, (3, 4), np.float64)) for _ in range(2))
        with pytest.raises(CaptureError, match="unsupported-input"):
            compiled(lambda x: x + 1)(first)
        run = compiled(lambda x: (x + 1) * 2, fullgraph=False)
        for x in (first, second):
            got, want = run(x), (x + 1) * 2
            assert type(got) is type(want)
            assert np.array_equal(got, want)


def test_where_numpy_is_to_raise_functions_run_eagerly(generator: Any) -> None:
    run = compiled(lambda x: 1 / x, fullgraph=False)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        run(np.zeros(3))


def test_guards_tell_arrays_apart(generator: Any) -> None:
    run = compiled(lambda x: x + 1)

    def entries() -> int:
        return len(flambeau_capture.state_of(run).entries)

    x = draw(generator, (4, 6), np.float64)
    run(x)
    run(draw(generator, (4, 6), np.float64))
    assert entries() == 1
    read_only = x.copy()
    read_only.flags.writeable = False
    for at, other in enumerate(
        (
            x.astype(np.float32),
            x.T.copy(),
            np.asfortranarray(x),
            read_only,
            x[::-1],
            torch.ones(4, 6),
            2.5,
        )
    ):
        want = other + 1
        assert not differs(run(other), want)
        assert entries() == at + 2
    assert any(
        "ndarray" in text for text in flambeau_capture.state_of(run).entries[-1].info.guard_texts()
    )


def test_arrays_that_come_to_overlap_are_not_written_as_if_apart(generator: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        x += y
        return x * 2

    run = compiled(function, fullgraph=False)
    memory = draw(generator, (9,), np.float64)
    assert not differs(
        run(memory[:4].copy(), memory[4:8].copy()), function(memory[:4].copy(), memory[4:8].copy())
    )
    own, eager = memory.copy(), memory.copy()
    assert not differs(run(own[1:], own[:-1]), function(eager[1:], eager[:-1]))
    assert np.array_equal(own, eager)


def test_other_sizes_make_one_dynamic_entry(generator: Any) -> None:
    run = compiled(
        lambda x: (x - x.mean(0)) / x.shape[0] + np.arange(x.shape[1]) + np.zeros(x.shape),
        dynamic=None,
    )
    for rows in (3, 5, 8, 13, 21):
        x = draw(generator, (rows, 6), np.float64)
        assert not differs(run(x), (x - x.mean(0)) / rows + np.arange(6))
    assert len(flambeau_capture.state_of(run).entries) == 2


def test_numpy_scalars_as_arguments(generator: Any) -> None:
    run = compiled(lambda x, scale: x * scale, dynamic=None)
    x = draw(generator, (5,), np.float32)
    for scale in (
        np.float32(2.5),
        np.float64(2.5),
        np.int32(3),
        np.float32(np.nan),
        np.bool_(True),
    ):
        assert not differs(run(x, scale), x * scale)
    for scale in np.linspace(0, 1, 7):
        assert not differs(run(x, scale), x * scale)
    assert len(flambeau_capture.state_of(run).entries) <= 8


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x + len(np.random.bytes(3)), "host-random"),
        (lambda x: np.lib.stride_tricks.as_strided(x, (2,), (8,)), "numpy-unsupported"),
        (lambda x: str(x), "data-dependent"),
        (lambda x: x.astype("U8"), "numpy-dtype"),
        (lambda x: np.argsort(x.astype(int)), "numpy-unsupported"),
    ],
)
def test_what_breaks_says_why_and_runs_eagerly(function: Any, reason: str | None) -> None:
    x = np.arange(4.0)
    with pytest.raises(CaptureError) as caught:
        compiled(function)(x)
    assert reason is None or caught.value.reason.id == reason
    np.random.seed(0)
    want = function(x)
    np.random.seed(0)
    got = compiled(function, fullgraph=False)(x)
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda x: x.reshape(5, 5), ValueError),
        (lambda x: x + np.ones((3, 3)), ValueError),
        (lambda x: x[7], IndexError),
        (lambda x: x.sum(axis=5), np.exceptions.AxisError),
        (lambda x: np.concatenate([x, x[0]]), ValueError),
        (lambda x: x.__setitem__(0, [1, 2, 3, 4, 5]), ValueError),
        (lambda x: x.missing, AttributeError),
        (lambda x: np.linalg.inv(x), np.linalg.LinAlgError),
        (lambda x: hash(x), TypeError),
        (lambda x: x.dot(x), ValueError),
    ],
)
def test_errors_that_the_program_handles_are_numpys(
    function: Any, error: type[Exception], generator: Any
) -> None:
    def handled(x: Any) -> Any:
        try:
            function(x)
        except error:
            return x + 1
        return x

    x = draw(generator, (4, 6), np.float64)
    assert not differs(compiled(handled)(x), handled(x))


def test_linear_algebra_raises_when_it_runs(generator: Any) -> None:
    run = compiled(lambda x: np.linalg.inv(x) @ x)
    x = draw(generator, (3, 3), np.float64)
    assert np.allclose(run(x), np.eye(3))
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        run(np.zeros((3, 3)))


def test_wrap_numpy(generator: Any) -> None:
    def distance(x: Any, y: Any) -> Any:
        return {"norm": np.linalg.norm(x - y, axis=1), "parts": (x.sum(), 3)}

    wrapped = flambeau_capture.wrap_numpy(distance)
    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(4, 5)
    with pytest.raises(RuntimeError, match="requires grad"):
        wrapped(x, y)
    got = compiled(wrapped)(x, y)
    assert not differs(got, wrapped(x.detach(), y))
    got["norm"].sum().backward()
    other = x.detach().clone().requires_grad_()
    torch.linalg.vector_norm(other - y, dim=1).sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
