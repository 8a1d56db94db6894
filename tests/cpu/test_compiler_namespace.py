"""flambeau.compiler: how a program instructs the compiler, by our functions or torch's."""

from __future__ import annotations

import functools
import operator
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo
from torch import nn

import flambeau
from flambeau import compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BOTH = pytest.mark.parametrize("names", [compiler, torch.compiler], ids=["flambeau", "torch"])


def breaks(function: Callable[..., Any], *args: Any) -> list[str]:
    """The ids of the breaks of one call, whose result is compared with eager's."""
    report = flambeau.explain(function, backend="eager")(*args)
    torch.testing.assert_close(report.result, function(*args))
    return [reason.id for reason in report.breaks]


def whole(function: Callable[..., Any], *args: Any) -> Any:
    """The result of one call, captured whole."""
    return flambeau.compile(function, fullgraph=True)(*args)


def copy_of(function: types.FunctionType) -> types.FunctionType:
    """Another function of the same code: tables of functions are for the whole process."""
    return types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )


# The namespace
# ----------------------------------------------------------------------------


def test_every_name_of_torchs_is_here_or_accounted_for() -> None:
    absent = {
        "config": "options are arguments of flambeau.compile",
        "set_enable_guard_collectives": "guards ask no other process",
        "load_compiled_function": "flambeau_capture.load",
        "nonstrict_trace": "allow_in_graph",
        "cudagraph_mark_warmup_incomplete": "nothing is warmed up",
        "precompile": "flambeau_capture.export",
        "PrecompileError": "flambeau_capture.export raises CaptureError",
        "mark_dynamic": "flambeau.mark_dynamic",
    }
    ours = set(compiler.__all__)
    assert set(torch.compiler.__all__) - ours <= set(absent)
    for name in ours:
        assert getattr(compiler, name).__doc__, name


# Questions
# ----------------------------------------------------------------------------


@BOTH
def test_is_compiling(names: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if names.is_compiling() and names.is_dynamo_compiling() and not names.is_exporting():
            return x + 1
        return x - 1

    x = torch.randn(3)
    assert torch.equal(program(x), x - 1)
    assert torch.equal(whole(program, x), x + 1)
    assert not names.is_compiling()


@BOTH
def test_is_exporting(names: Any) -> None:
    import flambeau_capture

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if names.is_exporting() and names.is_compiling() else x - 1

    x = torch.randn(3)
    assert torch.equal(whole(program, x), x - 1)
    assert torch.equal(flambeau_capture.export(program, (x,))(x), x + 1)


def test_is_compiling_inside_torch_compile() -> None:
    program = torch.compile(
        lambda x: x + 1 if compiler.is_compiling() else x - 1, backend="eager", fullgraph=True
    )
    x = torch.randn(3)
    assert torch.equal(program(x), x + 1)


def test_other_threads_are_not_compiling() -> None:
    import threading

    seen: list[bool] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        assert compiler.is_compiling()
        thread = threading.Thread(target=lambda: seen.append(compiler.is_compiling()))
        thread.start()
        thread.join()
        return gm.forward

    flambeau.compile(lambda x: x + 1, backend=backend)(torch.randn(2))
    assert seen == [False]


# disable
# ----------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("recursive", [True, False])
def test_a_disabled_function_breaks_the_graph(names: Any, recursive: bool) -> None:
    called: list[bool] = []

    @names.disable(recursive=recursive, reason="it talks to a server")
    def disabled(x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
        """Doc."""
        called.append(names.is_compiling())
        return x * scale

    def program(x: torch.Tensor) -> torch.Tensor:
        return disabled(x.sin(), scale=3.0) + 1

    x = torch.randn(4)
    report = flambeau.explain(program, backend="eager")(x)
    torch.testing.assert_close(report.result, x.sin() * 3 + 1)
    assert called == [False]
    (reason,) = report.breaks
    assert reason.id == ("compiler-disable" if recursive else "compiler-skip")
    assert "it talks to a server" in reason.cause
    line = program.__code__.co_firstlineno + 1
    assert reason.where.endswith(f"test_compiler_namespace.py:{line}")
    assert len(report.graphs) == 2
    assert (disabled.__name__, disabled.__doc__) == ("disabled", "Doc.")
    assert disabled._torchdynamo_disable and disabled._torchdynamo_disable_recursive is recursive
    with pytest.raises(flambeau.CaptureError, match="it talks to a server"):
        whole(program, x)


def helper(x: torch.Tensor) -> tuple[bool, torch.Tensor]:
    return compiler.is_compiling(), x.cos() * 2


@compiler.disable
def all_eager(x: torch.Tensor) -> tuple[bool, torch.Tensor]:
    return helper(x)


@compiler.disable(recursive=False)
def itself_eager(x: torch.Tensor) -> tuple[bool, bool, torch.Tensor]:
    return compiler.is_compiling(), *helper(x)


def test_what_a_disabled_function_calls() -> None:
    x = torch.randn(3)
    compiled, found = flambeau.compile(lambda x: all_eager(x + 1), backend="eager")(x)
    assert not compiled
    torch.testing.assert_close(found, (x + 1).cos() * 2)
    itself, below, found = flambeau.compile(lambda x: itself_eager(x + 1), backend="eager")(x)
    assert not itself
    from flambeau_capture.frame_hook import hook_works

    assert below is hook_works()
    torch.testing.assert_close(found, (x + 1).cos() * 2)


@BOTH
@pytest.mark.parametrize("recursive", [True, False])
def test_disabled_functions_that_c_functions_call(names: Any, recursive: bool) -> None:
    said: list[tuple[bool, bool]] = []

    def below(x: torch.Tensor) -> torch.Tensor:
        inner = compiler.is_compiling()
        return x.sum() + 0 if inner else x.sum()

    @names.disable(recursive=recursive)
    def score(x: torch.Tensor) -> float:
        found = helper(x)
        said.append((compiler.is_compiling(), found[0]))
        return below(x).item()

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cat(sorted([x.sin() + 2, x * 0, x.cos() - 3], key=score))

    x = torch.randn(3)
    expected = program(x)
    assert said == [(False, False)] * 3
    said.clear()
    torch.testing.assert_close(flambeau.compile(program, backend="eager")(x), expected)
    from flambeau_capture.frame_hook import hook_works

    assert said == [(False, not recursive and hook_works())] * 3


def test_compiled_callables_stay_compiled_inside() -> None:
    compiled = flambeau.compile(helper, backend="eager")
    disabled = compiler.disable(lambda x: compiled(x))
    said, _ = flambeau.compile(lambda x: disabled(x + 1), backend="eager")(torch.randn(3))
    assert said


def test_the_outer_of_disable_and_compile_decides() -> None:
    x = torch.randn(3)
    assert flambeau.compile(compiler.disable(helper), backend="eager")(x)[0]
    assert flambeau.compile(torch.compiler.disable(helper), backend="eager")(x)[0]
    assert not compiler.disable(flambeau.compile(helper, backend="eager").__wrapped__)(x)[0]
    assert not compiler.disable(torch.compile(helper, backend="eager"))(x)[0]


def test_a_wrapper_of_a_disabled_function_is_captured() -> None:
    disabled = compiler.disable(lambda x: x * 2)

    @functools.wraps(disabled)
    def wrapper(x: torch.Tensor) -> torch.Tensor:
        return x - 1

    assert breaks(lambda x: wrapper(x) + 1, torch.randn(3)) == []


class Disabled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    @compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    @torch.compiler.disable
    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1


def test_disabled_methods() -> None:
    model, x = Disabled(), torch.randn(2, 3)
    assert breaks(lambda x: model(x.sin()) * 2, x) == ["compiler-disable"]
    assert breaks(lambda x: model.other(x.sin()) * 2, x) == ["compiler-disable"]
    bound = compiler.disable(model.inner.forward)
    assert breaks(lambda x: bound(x.sin()) * 2, x) == ["compiler-disable"]


@BOTH
def test_disabled_modules(names: Any) -> None:
    inner = nn.Linear(3, 3)
    module = names.disable(inner)
    assert isinstance(module, nn.Module) and module._orig_mod is inner
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), inner(x))
    assert set(breaks(lambda x: module(x.sin()) * 2, x)) == {"compiler-disable"}


def test_disabled_classes() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    assert compiler.disable(Scale) is Scale
    scale, x = Scale(3.0), torch.randn(3)
    torch.testing.assert_close(scale(x), x * 3)
    assert breaks(lambda x: scale(x.sin()) * 2, x) == ["compiler-disable"]
    with pytest.raises(TypeError, match="takes a callable, a module or a class, not a int"):
        compiler.disable(3)


def test_disabled_static_and_class_methods() -> None:
    class Holder:
        @compiler.disable
        @staticmethod
        def static(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @compiler.disable
        @classmethod
        def of_class(cls, x: torch.Tensor) -> torch.Tensor:
            return x * 3

    x = torch.randn(3)
    assert breaks(lambda x: Holder.static(x) + Holder.of_class(x), x) == ["compiler-disable"] * 2


# What stands in the graph
# ------------------------------------------------------------------------------------------------


def opaque(x: torch.Tensor, by: float) -> torch.Tensor:
    if type(x) is torch.Tensor:
        return x * by
    return torch.mul(x, by)


allowed_late = copy_of(opaque)


@BOTH
def test_allow_in_graph_makes_one_node(names: Any) -> None:
    function = copy_of(opaque)
    assert names.allow_in_graph(function) is function
    targets: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        targets.extend(node.target for node in gm.graph.nodes if node.op == "call_function")
        return gm.forward

    x = torch.randn(5)
    program = lambda x: function(x.sin(), 2.5) + 1  # noqa: E731
    found = flambeau.compile(program, backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(found, program(x))
    assert function in targets
    leaf, twin = x.clone().requires_grad_(), x.clone().requires_grad_()
    flambeau.compile(program, fullgraph=True)(leaf).sum().backward()
    program(twin).sum().backward()
    torch.testing.assert_close(leaf.grad, twin.grad)


def test_allow_in_graph_takes_several() -> None:
    functions = [copy_of(opaque), copy_of(opaque)]
    assert compiler.allow_in_graph(functions) == functions
    with pytest.raises(TypeError, match="takes a callable, not a str"):
        compiler.allow_in_graph("sin")
    with pytest.raises(TypeError, match="takes a callable, not a str"):
        compiler.disallow_in_graph("sin")


@pytest.mark.parametrize("names", [compiler, torch._dynamo], ids=["flambeau", "torch"])
def test_disallow_in_graph_breaks(names: Any) -> None:
    program = lambda x: torch.sub(x.sin(), 1) * 2  # noqa: E731
    x = torch.randn(4)
    names.disallow_in_graph(torch.sub)
    try:
        assert breaks(program, x) == ["compiler-disable"]
    finally:
        names.allow_in_graph(torch.sub)
    assert breaks(program, x) == []


@pytest.mark.parametrize("names", [compiler, torch.compiler], ids=["flambeau", "torch"])
def test_substitute_in_graph(names: Any) -> None:
    original = operator.length_hint if names is compiler else operator.indexOf

    @names.substitute_in_graph(original, skip_signature_check=True)
    def stand_in(*args: Any) -> int:
        return 41

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + original([7, 8], 8)

    x = torch.randn(3)
    torch.testing.assert_close(whole(program, x), x + 41)
    assert torch.equal(program(x), x + original([7, 8], 8)), "eagerly it is what it was"
    assert original([7, 8], 8) != 41


def test_substitutes_are_checked() -> None:
    with pytest.raises(TypeError, match="signatures differ"):
        compiler.substitute_in_graph(operator.countOf)(lambda a: 0)
    with pytest.raises(TypeError, match="takes a function, not a int"):
        compiler.substitute_in_graph(3)
    with pytest.raises(TypeError, match="takes a Python function"):
        compiler.substitute_in_graph(operator.countOf)(operator.add)

    @compiler.substitute_in_graph(operator.countOf)
    def count(a: Any, b: Any, /) -> int:
        return sum(item == b for item in a)

    torch.testing.assert_close(
        whole(lambda x: x + operator.countOf([1, 2, 1], 1), torch.zeros(2)), torch.full((2,), 2.0)
    )
    with pytest.raises(ValueError, match="has a substitute already"):
        compiler.substitute_in_graph(operator.countOf)(count)


@BOTH
def test_assume_constant_result(names: Any) -> None:
    calls: list[int] = []

    @names.assume_constant_result
    def looked_up(key: int) -> int:
        calls.append(key)
        return key * 10

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((3,), 2.0))

        @names.assume_constant_result
        def total(self) -> float:
            return self.weight.sum().item()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.total()

    x = torch.randn(3)
    compiled = flambeau.compile(lambda x: x + looked_up(4), fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x + 40)
    assert calls == [4]
    torch.testing.assert_close(whole(Model(), x), x * 6)


def test_assume_constant_result_of_something_else_is_a_break() -> None:
    @compiler.assume_constant_result
    def table() -> Any:
        return types.SimpleNamespace(a=1)

    assert breaks(lambda x: x + table().a, torch.randn(3)) == ["unknown-c-function"]


@BOTH
def test_nested_compile_region(names: Any) -> None:
    region = names.nested_compile_region(lambda x: x.sin() * 2)
    x = torch.randn(3)
    torch.testing.assert_close(whole(lambda x: region(region(x)), x), region(region(x)))

    @compiler.nested_compile_region(max_reuse_entries=3)
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    torch.testing.assert_close(whole(decorated, x), x + 1)


@BOTH
def test_wrap_numpy(names: Any) -> None:
    numpy = pytest.importorskip("numpy")

    @names.wrap_numpy
    def normalised(x: Any) -> Any:
        return (x - x.mean()) / numpy.sqrt((x * x).sum() + 1)

    x = torch.randn(5, dtype=torch.float64)
    expected = (x - x.mean()) / ((x * x).sum() + 1).sqrt()
    torch.testing.assert_close(whole(normalised, x), expected)


@BOTH
def test_cudagraph_mark_step_begin(names: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        names.cudagraph_mark_step_begin()
        return x + 1

    x = torch.randn(3)
    torch.testing.assert_close(whole(program, x), x + 1)


@pytest.mark.parametrize("names", [compiler, torch._dynamo], ids=["flambeau", "torch"])
def test_graph_break(names: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        names.graph_break("because I say so")
        return y * 2

    x = torch.randn(3)
    report = flambeau.explain(program, backend="eager")(x)
    torch.testing.assert_close(report.result, x.sin() * 2)
    (reason,) = report.breaks
    assert reason.id == "explicit-break" and "because I say so" in reason.cause


def test_settings_of_torchs_compiler_are_not_ours() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch._dynamo.config.patch(recompile_limit=1):
            return x * 2

    x = torch.randn(3)
    torch.testing.assert_close(whole(program, x), x * 2)
    assert torch._dynamo.config.recompile_limit == 8


def test_exported_modules_check_their_arguments_in_the_graph() -> None:
    model = torch.nn.Linear(4, 5)
    exported = torch.export.export(model, (torch.randn(2, 4),)).module()
    x = torch.randn(2, 4)
    run = flambeau.compile(exported, fullgraph=True)
    torch.testing.assert_close(run(x), model(x))
    with pytest.raises(AssertionError) as theirs:
        exported(torch.randn(3, 4))
    with pytest.raises(AssertionError) as ours:
        run(torch.randn(3, 4))
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "said",
    [
        lambda x: compiler.disable(lambda y: y * 2)(x),
        lambda x: torch.compiler.disable(lambda y: y * 2)(x),
        lambda x: torch._dynamo.disable(lambda y: y * 2)(x),
        lambda x: (compiler.set_stance("default"), x + 1)[1],
        lambda x: (torch.compiler.set_stance("default"), x + 1)[1],
        lambda x: (torch._dynamo.reset(), x + 1)[1],
        lambda x: compiler.allow_in_graph(allowed_late)(x, 2.0),
    ],
)
def test_what_is_said_inside_captured_code_is_a_break(said: Callable[..., Any]) -> None:
    found = breaks(lambda x: said(x.sin()), torch.randn(3))
    assert set(found) <= {"compiler-function", "compiler-disable"} and found


def test_modules_compiled_by_torch_are_captured() -> None:
    theirs = torch.compile(nn.Linear(3, 3), backend="eager")
    function = torch.compile(lambda x: x * 2, backend="eager")
    program = lambda x: function(theirs(x)) + theirs.weight.sum()  # noqa: E731
    x = torch.randn(2, 3)
    torch.testing.assert_close(whole(program, x), program(x))


# Defaults, caches, guards
# ----------------------------------------------------------------------------


@pytest.fixture
def _inductor_afterwards() -> Iterator[None]:
    yield
    compiler.set_default_backend(None)


@pytest.mark.usefixtures("_inductor_afterwards")
def test_the_default_backend() -> None:
    seen: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        seen.append(1)
        return gm.forward

    assert compiler.get_default_backend() == "inductor"
    compiler.set_default_backend(backend)
    assert compiler.get_default_backend() is backend
    flambeau.compile(lambda x: x + 1)(torch.randn(2))
    assert seen == [1]
    compiler.set_default_backend(None)
    flambeau.compile(lambda x: x + 1)(torch.randn(2))
    assert seen == [1]
    assert compiler.list_backends() == flambeau.list_backends()


def test_cache_artifacts_travel(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(7)
    program = lambda x: (x.sin() * 1.618).exp() + x  # noqa: E731
    compiled = flambeau.compile(program)
    compiled(x)
    saved = compiler.save_cache_artifacts()
    assert saved is not None
    content, info = saved
    assert len(info) >= 1
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path / "other"))
    (before,) = flambeau.explain(program)(torch.randn(9)).graphs
    assert before.cache_misses
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path / "third"))
    assert compiler.load_cache_artifacts(content).artifacts == info.artifacts
    (after,) = flambeau.explain(program)(x).graphs
    assert (after.cache_hits, after.cache_misses) == (1, 0)
    for bad in (b"", b"PK", content[:-30]):
        with pytest.raises(ValueError, match="no cache artifacts"):
            compiler.load_cache_artifacts(bad)


SCALE = 2


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


@pytest.mark.parametrize(
    "keep", [compiler.skip_guard_on_globals_unsafe, torch.compiler.skip_guard_on_globals_unsafe]
)
def test_guards_may_be_left_out(keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3)
    careful = flambeau.compile(scaled, backend="eager")
    careless = flambeau.compile(scaled, backend="eager", options={"guard_filter_fn": keep})
    assert torch.equal(careful(x), x * 2) and torch.equal(careless(x), x * 2)
    monkeypatch.setitem(globals(), "SCALE", 3)
    assert torch.equal(careful(x), x * 3)
    assert torch.equal(careless(x), x * 2), "unsafe, as its name says"
    other = torch.randn(3, 4)
    assert torch.equal(careless(other), other * 3), "tensors are guarded all the same"


@pytest.mark.parametrize(
    "name",
    [
        "skip_guard_on_inbuilt_nn_modules_unsafe",
        "skip_guard_on_all_nn_modules_unsafe",
        "keep_tensor_guards_unsafe",
        "keep_portable_guards_unsafe",
        "skip_all_guards_unsafe",
    ],
)
@BOTH
def test_ready_made_filters(names: Any, name: str) -> None:
    keep = getattr(names, name, None)
    if keep is None:
        pytest.skip(f"this torch has no torch.compiler.{name}")
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5)).eval()
    compiled = flambeau.compile(model, backend="eager", options={"guard_filter_fn": keep})
    every = flambeau.compile(model, backend="eager")
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), model(x))
    every(x)
    (kept,), (all_of_them,) = (flambeau.explain(one).graphs for one in (compiled, every))
    assert len(kept.guards) < len(all_of_them.guards)
    assert any(guard.kind == "TENSOR" for guard in kept.guards)
    torch.testing.assert_close(compiled(torch.ones(5, 3)), model(torch.ones(5, 3)))


def test_a_filter_must_answer_for_every_guard() -> None:
    compiled = flambeau.compile(
        scaled, backend="eager", options={"guard_filter_fn": lambda guards: []}
    )
    with pytest.raises(ValueError, match="0 answers for"):
        compiled(torch.randn(3))
    with pytest.raises(TypeError, match="takes a function"):
        flambeau.compile(scaled, options={"guard_filter_fn": 3})
