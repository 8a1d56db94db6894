"""A graph that cannot be compiled runs eagerly, with the reason in the report; bugs of ours warn
and do not crash.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import flambeau
from flambeau import backends, program_compiler
from flambeau.report import report_of
from flambeau_prims.unsupported import Unsupported
from flambeau_runtime import EnvironmentProblem


class Refused(Unsupported):
    reason = "refused-by-test"
    hint = "none"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`failing(error)`: the stage behind capture raises it."""
    monkeypatch.delenv("FLAMBEAU_CHECK", raising=False)

    def arrange(error: Exception) -> None:
        def aot(*args: Any, **kwargs: Any) -> Any:
            raise error

        monkeypatch.setattr(backends, "aot", aot)

    return arrange


@pytest.fixture
def refused_backwards(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`refused_backwards(error)`: the compiler raises it for each backward."""
    monkeypatch.delenv("FLAMBEAU_CHECK", raising=False)
    compile_graph = program_compiler.compile_graph

    def arrange(error: Exception) -> None:
        def refusing(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs["spends_inputs"]:
                raise error
            return compile_graph(graph, *args, **kwargs)

        monkeypatch.setattr(program_compiler, "compile_graph", refusing)

    return arrange


def run() -> tuple[Any, torch.Tensor, torch.Tensor]:
    x = torch.randn(5, requires_grad=True)
    compiled = flambeau.compile(lambda x: torch.sin(x) * 2)
    return compiled, compiled(x), x.sin() * 2


def test_unsupported_runs_eagerly_with_its_reason(failing: Any) -> None:
    failing(Refused("cannot do this"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled, found, expected = run()
    assert torch.equal(found, expected)
    assert found.requires_grad
    fallback = report_of(compiled).graphs[0].fallback
    assert fallback is not None
    assert (fallback.reason, fallback.text, fallback.hint) == (
        "refused-by-test",
        "cannot do this",
        "none",
    )


def test_a_bug_warns_and_runs_eagerly(failing: Any) -> None:
    failing(KeyError("oops"))
    with pytest.warns(RuntimeWarning, match="bug in Flambeau"):
        compiled, found, expected = run()
    assert torch.equal(found, expected)
    fallback = report_of(compiled).graphs[0].fallback
    assert fallback is not None
    assert fallback.reason == "internal-error"


@pytest.mark.parametrize("error", [Refused("cannot do this"), KeyError("oops")])
def test_a_backward_refused_after_its_forward_runs_operator_by_operator(
    error: Exception, refused_backwards: Any
) -> None:
    refused_backwards(error)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.sin()
        return y * x, y.exp()

    compiled = flambeau.compile(program, options={"graph_cache": False})
    x = torch.randn(3, 5, requires_grad=True)
    for used in (slice(1), slice(1, 2), slice(2)):
        results = compiled(x)
        assert report_of(compiled).graphs[0].programs
        with warnings.catch_warnings():
            warnings.simplefilter("error" if isinstance(error, Refused) else "ignore")
            (found,) = torch.autograd.grad([y.sum() for y in results[used]], x)
        (expected,) = torch.autograd.grad([y.sum() for y in program(x)[used]], x)
        torch.testing.assert_close(found, expected)
    fallback = report_of(compiled).graphs[0].fallback
    assert fallback is not None
    assert fallback.reason == getattr(error, "reason", "internal-error")


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_operators_of_a_backward_below_autocast(backend: str, refused_backwards: Any) -> None:
    """They compute in the dtypes of the graph, which convolutions do not take mixed."""
    refused_backwards(Refused("cannot do this"))

    def program(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.nn.functional.conv2d(x, w).flatten(1) @ v
        return y.sum(), y

    inputs = [torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(36, 7)]
    compiled = flambeau.compile(program, backend=backend, options={"graph_cache": False})
    grads = []
    for run, autocast in ((program, False), (compiled, True)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        total, y = run(*leaves)
        loss = total + y.pow(2).sum()
        with torch.autocast("cpu", enabled=autocast):
            grads.append(torch.autograd.grad(loss, leaves))
    torch.testing.assert_close(*grads)


def test_a_bug_raises_under_check(failing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(KeyError("oops"))
    monkeypatch.setenv("FLAMBEAU_CHECK", "1")
    with pytest.raises(KeyError, match="oops"):
        run()


def test_a_backend_of_the_users_raises_its_own_errors() -> None:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        raise ZeroDivisionError("theirs")

    with pytest.raises(ZeroDivisionError, match="theirs"):
        flambeau.compile(lambda x: x + 1, backend=backend)(torch.randn(3))


def test_a_backend_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="registered already"):
        flambeau.register_backend(lambda gm, inputs: gm.forward, "eager")


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("FLAMBEAU_CXX", "no-such-compiler", "no-compiler"),
        ("FLAMBEAU_CXX", "false", "unusable-compiler"),
        ("FLAMBEAU_CACHE_DIR", "/dev/null/cache", "unusable-cache"),
        ("FLAMBEAU_CACHE_DIR", "{shared}", "unusable-cache"),
    ],
)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_the_environments_faults_are_named_and_the_program_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    reason: str,
    fullgraph: bool,
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.delenv("FLAMBEAU_CHECK", raising=False)
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(variable, value.format(shared=shared))
    compiled = flambeau.compile(lambda x: torch.sin(x) * 2, fullgraph=fullgraph)
    x = torch.randn(5, requires_grad=True)
    with pytest.warns(RuntimeWarning, match=variable) as caught:
        y = compiled(x)
    assert not any("bug in Flambeau" in str(warning.message) for warning in caught)
    y.sum().backward()
    assert torch.equal(y, x.sin() * 2)
    torch.testing.assert_close(x.grad, 2 * x.cos())
    fallback = report_of(compiled).graphs[0].fallback
    assert fallback is not None
    assert fallback.reason == reason
    assert variable in fallback.hint
    monkeypatch.setenv("FLAMBEAU_CHECK", "1")
    with pytest.raises(EnvironmentProblem):
        flambeau.compile(lambda x: torch.sin(x) * 2)(x)


def test_a_debug_folder_that_cannot_be_made_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_DEBUG_DIR", "/dev/null/debug")
    with pytest.warns(RuntimeWarning, match="FLAMBEAU_DEBUG_DIR.*Not a directory"):
        compiled, found, expected = run()
    assert torch.allclose(found, expected)
    assert report_of(compiled).graphs[0].fallback is None
