"""mark_dynamic, maybe_mark_dynamic and mark_static: ours, and torch._dynamo's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

THEIRS = torch._dynamo
BOTH = pytest.mark.parametrize("marks", [flambeau, THEIRS], ids=["flambeau", "torch"])


def program(x: torch.Tensor) -> torch.Tensor:
    return x.sin().sum(0) * x.shape[0]


def graphs(
    function: Callable[..., Any],
    sizes: list[int],
    mark: Callable[[torch.Tensor], Any] = lambda x: None,
    **options: Any,
) -> int:
    """The number of graphs for inputs of these sizes, marked so; each result equals eager's."""
    made: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        made.append(1)
        return gm.forward

    compiled = flambeau.compile(function, backend=backend, **options)
    for size in sizes:
        x = torch.randn(size, 3)
        mark(x)
        torch.testing.assert_close(compiled(x), function(x))
    return len(made)


@BOTH
@pytest.mark.parametrize("dynamic", [None, False, True])
def test_a_marked_size_is_dynamic_from_the_first_call(marks: Any, dynamic: bool | None) -> None:
    count = graphs(program, [5, 7, 9], lambda x: marks.mark_dynamic(x, 0), dynamic=dynamic)
    assert count == 1
    assert graphs(program, [5, 7, 9]) == 2, "without a mark the first capture is static"


def test_one_marked_call_is_enough() -> None:
    def mark(x: torch.Tensor) -> None:
        if x.shape[0] == 5:
            flambeau.mark_dynamic(x, 0)

    assert graphs(program, [5, 7, 9], mark, dynamic=False) == 1


@BOTH
def test_sizes_of_zero_and_one_are_captured_for_themselves(marks: Any) -> None:
    assert graphs(program, [6, 1, 0, 8], lambda x: marks.mark_dynamic(x, 0)) == 3


@BOTH
def test_maybe_mark_dynamic(marks: Any) -> None:
    assert graphs(program, [5, 7], lambda x: marks.maybe_mark_dynamic(x, 0)) == 1
    needs_five = lambda x: x.reshape(5, 3) + 1  # noqa: E731
    assert graphs(needs_five, [5, 5], lambda x: marks.maybe_mark_dynamic(x, 0)) == 1


@BOTH
def test_mark_static(marks: Any) -> None:
    assert graphs(program, [5, 7, 9], lambda x: marks.mark_static(x), dynamic=True) == 3
    assert graphs(program, [5, 7, 9], lambda x: marks.mark_static(x, 1), dynamic=True) == 1


def test_dynamic_takes_precedence_over_static() -> None:
    def mark(x: torch.Tensor) -> None:
        flambeau.mark_dynamic(x, 0)
        flambeau.mark_static(x)

    assert graphs(program, [5, 7], mark) == 1


def test_mark_static_inside_a_compiled_function_specialises() -> None:
    def marks_inside(x: torch.Tensor) -> torch.Tensor:
        flambeau.mark_static(x, 0)
        return program(x)

    assert graphs(marks_inside, [5, 7], dynamic=True, fullgraph=True) == 2
    assert graphs(program, [5, 7], dynamic=True, fullgraph=True) == 1


@BOTH
def test_mark_dynamic_inside_a_compiled_function_is_a_break(marks: Any) -> None:
    def marks_inside(x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        marks.mark_dynamic(x, 0)
        return y + 1

    x = torch.randn(4)
    report = flambeau.explain(marks_inside, backend="eager")(x)
    torch.testing.assert_close(report.result, x.cos() + 1)
    assert [reason.id for reason in report.breaks] == ["compiler-function"]


@BOTH
@pytest.mark.parametrize("options", [{}, {"fullgraph": True}, {"dynamic": False}])
def test_a_size_that_is_needed_is_an_error_that_names_the_line(
    marks: Any, options: dict[str, Any]
) -> None:
    def needs_five(x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        return y.reshape(5, 3) + 1

    line = needs_five.__code__.co_firstlineno + 2
    x = torch.randn(5, 3)
    marks.mark_dynamic(x, 0)
    with pytest.raises(
        flambeau.CaptureError,
        match=rf"test_marks\.py:{line}: dimension 0 of L\['x'\] is marked as dynamic, .*needs it "
        rf"to be 5",
    ) as caught:
        flambeau.compile(needs_five, backend="eager", **options)(x)
    assert "maybe_mark_dynamic" in str(caught.value)


def test_a_branch_on_the_size_is_found() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 5:
            return x + 1
        return x - 1

    line = branches.__code__.co_firstlineno + 1
    x = torch.randn(5)
    flambeau.mark_dynamic(x, 0)
    with pytest.raises(flambeau.CaptureError, match=rf"test_marks\.py:{line}"):
        flambeau.compile(branches, backend="eager")(x)


def test_a_backend_that_needs_a_size_is_found() -> None:
    from flambeau_prims import sizes

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        placeholder = next(iter(gm.graph.nodes))
        assert sizes.eq(placeholder.meta["spec"].shape[0], inputs[0].shape[0])
        return gm.forward

    x = torch.randn(5)
    flambeau.mark_dynamic(x, 0)
    with pytest.raises(flambeau.CaptureError, match="found out by the backend"):
        flambeau.compile(lambda x: x.sin(), backend=backend)(x)


@BOTH
def test_a_range_is_guarded(marks: Any) -> None:
    def mark(x: torch.Tensor) -> None:
        if x.shape[0] <= 8:
            marks.mark_dynamic(x, 0, min=3, max=8)

    assert graphs(program, [4, 8, 3], mark, dynamic=False) == 1
    assert graphs(program, [4, 8, 9], mark, dynamic=False) == 2
    assert graphs(program, [4, 2], lambda x: x.shape[0] > 2 and mark(x), dynamic=False) == 2
    x = torch.randn(4, 3)
    mark(x)
    compiled = flambeau.compile(program, backend="eager")
    compiled(x)
    guards = [guard.text for guard in flambeau.explain(compiled).graphs[0].guards]
    assert any("<= 8" in text for text in guards)


@BOTH
def test_a_marked_tensor_outside_its_range_is_an_error(marks: Any) -> None:
    x = torch.randn(5, 3)
    marks.mark_dynamic(x, 0, min=6, max=9)
    with pytest.raises(flambeau.CaptureError, match="marked as dynamic from 6 to 9, but is 5"):
        flambeau.compile(program, backend="eager")(x)


def test_a_range_lets_the_program_decide() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] <= 16 else x - 1

    assert graphs(branches, [4, 16], lambda x: flambeau.mark_dynamic(x, 0, max=16)) == 1


def test_several_dimensions_and_negative_ones() -> None:
    x = torch.randn(5, 4)
    flambeau.mark_dynamic(x, (0, -1))
    compiled = flambeau.compile(program, backend="eager", dynamic=False)
    compiled(x)
    text = str(flambeau.explain(compiled))
    assert "f32[s0, s1]" in text


def test_parameters_may_be_marked() -> None:
    layer = torch.nn.Linear(4, 6)
    flambeau.mark_dynamic(layer.weight, 0)
    compiled = flambeau.compile(lambda x, w: x @ w.t(), fullgraph=True)
    for width in (6, 9):
        weight = torch.nn.Parameter(torch.randn(width, 4)) if width != 6 else layer.weight
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x, weight), x @ weight.t())
    assert not flambeau.explain(compiled).recompiles


# Said beforehand
# ----------------------------------------------------------------------------


def test_dynamic_shapes_are_marks_by_place() -> None:
    shapes = {"x": {0: True}}
    assert graphs(program, [5, 7, 9], dynamic_shapes=shapes) == 1
    assert graphs(program, [5, 7, 9], dynamic_shapes=shapes, dynamic=False) == 1
    assert graphs(program, [5, 7, 9], dynamic_shapes={"x": {0: False}}, dynamic=True) == 3
    assert graphs(program, [5, 7, 8], dynamic_shapes={"x": {-2: (3, 8)}}, dynamic=False) == 1
    assert graphs(program, [5, 7], dynamic_shapes={"L['x']": {0: "maybe"}}) == 1
    assert graphs(lambda x: x.reshape(5, 3), [5], dynamic_shapes={"x": {0: "maybe"}}) == 1
    with pytest.raises(flambeau.CaptureError, match="needs it to be 5"):
        graphs(lambda x: x.reshape(5, 3), [5], dynamic_shapes=shapes)


def test_dynamic_shapes_of_what_is_inside() -> None:
    shapes = {"L['batch']['x']": {0: True}}
    compiled = flambeau.compile(
        lambda batch: batch["x"].sin(), backend="eager", dynamic=False, dynamic_shapes=shapes
    )
    for size in (4, 6):
        x = torch.randn(size)
        torch.testing.assert_close(compiled({"x": x}), x.sin())
    assert len(flambeau.explain(compiled).graphs) == 1


def test_dynamic_shapes_have_ranges() -> None:
    compiled = flambeau.compile(program, backend="eager", dynamic_shapes={"x": {0: (3, 8)}})
    for size in (5, 8):
        compiled(torch.randn(size, 3))
    assert len(flambeau.explain(compiled).graphs) == 1
    with pytest.raises(flambeau.CaptureError, match="from 3 to 8, but is 9"):
        compiled(torch.randn(9, 3))
    with pytest.raises(
        flambeau.CaptureError, match=r"dimension 4 of L.'x'. is marked, which has 2"
    ):
        flambeau.compile(program, dynamic_shapes={"x": {4: True}})(torch.randn(2, 2))


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"x": 0}, "maps names to mappings"),
        ({"x": {"0": True}}, "a dimension is an int"),
        ({"x": {0: "yes"}}, "is True, False, 'maybe', 'unbacked' or"),
        ({"x": {0: (1, 2, 3)}}, "is True, False, 'maybe', 'unbacked' or"),
    ],
)
def test_bad_dynamic_shapes(shapes: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        flambeau.compile(program, dynamic_shapes=shapes)
    with pytest.raises(ValueError, match="9 is greater than 3"):
        flambeau.compile(program, dynamic_shapes={"x": {0: (9, 3)}})


def test_marked_sizes_through_the_whole_stack() -> None:
    compiled = flambeau.compile(program, fullgraph=True)
    for size in (5, 8, 13):
        x = torch.randn(size, 3, requires_grad=True)
        flambeau.mark_dynamic(x, 0)
        twin = x.detach().clone().requires_grad_()
        compiled(x).sum().backward()
        program(twin).sum().backward()
        torch.testing.assert_close(x.grad, twin.grad)
    assert len(flambeau.explain(compiled).graphs) == 1


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: flambeau.mark_dynamic(x, 2), IndexError, "dimension 2 of a tensor with 2"),
        (lambda x: flambeau.mark_dynamic(3, 0), TypeError, "not for a int"),
        (lambda x: flambeau.mark_dynamic(x, 0, min=4, max=2), ValueError, "greater than max"),
        (lambda x: flambeau.mark_static("x"), TypeError, "takes a tensor"),
        (lambda x: flambeau.mark_unbacked(x, -3), IndexError, "dimension -3 of a tensor with 2"),
    ],
)
def test_bad_arguments(call: Callable[[Any], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(torch.randn(2, 2))


def sliced_as_stated(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] >= 5)
    return x[:5] * 2


INDEPENDENT: list[Callable[[torch.Tensor], Any]] = [
    program,
    lambda x: x.view(-1) * 2 + x.shape[0],
    lambda x: (x[1:] - x[:-1], x.shape),
    lambda x: torch.cat([x, x]).mean(0),
    lambda x: torch.nn.functional.pad(x, (1, 1)).softmax(0) @ torch.ones(5, 4),
    lambda x: x + torch.arange(x.shape[0])[:, None],
    lambda x: x.t().contiguous().flatten(),
    sliced_as_stated,
]


def branches(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 6:
        return x + 1
    return x - 1


def loops(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * i for i in range(x.shape[0])]


DEPENDENT: list[tuple[Callable[[torch.Tensor], Any], str]] = [
    (branches, "whether s0 > 6"),
    (loops, "the value of s0"),
    (lambda x: x * float(len([0] * x.shape[0])), "the value of s0"),
    (lambda x: x[:5], "whether s0 >= 5"),
    (lambda x: x.reshape(5, 3), "whether s0 == 5"),
    (lambda x: x + torch.ones(5, 1), "whether s0 == 5"),
    (lambda x: {x.shape[0]: x}, "the value of s0"),
]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("at", range(len(INDEPENDENT)))
def test_nothing_depends_on_an_unbacked_size(at: int, backend: str) -> None:
    function = INDEPENDENT[at]
    compiled = flambeau.compile(function, backend=backend, dynamic=False)
    for size in (5, 7, 9, 6, 20):
        x = torch.randn(size, 3)
        flambeau.mark_unbacked(x, 0)
        torch.testing.assert_close(compiled(x), function(x))
    assert len(flambeau.explain(compiled).graphs) == 1
    if function is not sliced_as_stated:
        for size in (1, 0):
            x = torch.randn(size, 3)
            flambeau.mark_unbacked(x, 0)
            torch.testing.assert_close(compiled(x), function(x), equal_nan=True)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("at", range(len(DEPENDENT)))
def test_questions_about_an_unbacked_size_are_errors(at: int, fullgraph: bool) -> None:
    function, question = DEPENDENT[at]
    compiled = flambeau.compile(function, backend="eager", fullgraph=fullgraph)
    x = torch.randn(5, 3)
    line = function.__code__.co_firstlineno
    flambeau.mark_unbacked(x, 0)
    with pytest.raises(flambeau.CaptureError, match=r"test_marks\.py:\d+") as error:
        compiled(x)
    text = str(error.value)
    assert f"dimension 0 of L['x'] is marked as unbacked, but the program asks {question}" in text
    assert 0 <= int(text.split("test_marks.py:")[1].split(":")[0]) - line <= 1
    torch.testing.assert_close(compiled(torch.ones(5, 3)), function(torch.ones(5, 3)))


def test_what_is_stated_of_an_unbacked_size_is_a_guard() -> None:
    compiled = flambeau.compile(sliced_as_stated, backend="eager")
    for size in (9, 5):
        x = torch.randn(size, 3)
        flambeau.mark_unbacked(x, 0)
        compiled(x)
    small = torch.randn(3, 3)
    flambeau.mark_unbacked(small, 0)
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        compiled(small)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_unbacked_sizes_in_graphs_that_are_compiled_in_pieces(backend: str) -> None:
    def numbered(x: torch.Tensor) -> Any:
        torch._check(x.shape[0] >= 5)
        n = x.sum().item()
        y = x[:5].sin() * 2
        return y * n + x.shape[0], x[x > 0] * 2, (x.cos() + 1).sum(0) * n

    compiled = flambeau.compile(numbered, backend=backend, fullgraph=True)
    for size in (5, 8, 11):
        x = torch.randn(size, 3)
        flambeau.mark_unbacked(x, 0)
        torch.testing.assert_close(compiled(x), numbered(x))
    assert len(flambeau.explain(compiled).graphs) == 1


def test_unbacked_sizes_that_must_agree() -> None:
    """They may: the graph serves calls where they do."""

    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    compiled = flambeau.compile(added, backend="eager")
    for size in (5, 7, 9):
        x, y = torch.randn(size, 3), torch.randn(size, 3)
        flambeau.mark_unbacked(x, 0)
        flambeau.mark_unbacked(y, [0])
        torch.testing.assert_close(compiled(x, y), x + y)
    assert len(flambeau.explain(compiled).graphs) == 1
    with pytest.raises(RuntimeError, match=r"size of tensor a \(5\) must match"):
        compiled(torch.randn(5, 3), torch.randn(4, 3))


def test_unbacked_by_torchs_function_and_by_place() -> None:
    x = torch.randn(5, 3)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    with pytest.raises(flambeau.CaptureError, match="marked as unbacked"):
        flambeau.compile(branches, backend="eager")(x)
    by_place = flambeau.compile(branches, backend="eager", dynamic_shapes={"x": {0: "unbacked"}})
    with pytest.raises(flambeau.CaptureError, match="marked as unbacked"):
        by_place(torch.randn(5, 3))
