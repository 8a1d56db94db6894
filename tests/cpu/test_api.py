"""torch.compile's surface: decorator forms, modules, backends, modes, options, errors."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import flambeau


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(7, 3)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """(n, 5) -> (n, 3)."""
        return self.second(self.drop(torch.relu(self.first(x)))) * scale


# Decorator forms ---------------------------------------------------------------------------------------------


def test_plain_decorator() -> None:
    compiled = flambeau.compile(double)
    x = torch.randn(3)
    assert torch.equal(compiled(x), x * 2)


def test_decorator_with_arguments() -> None:
    @flambeau.compile(fullgraph=True, dynamic=False)
    def triple(x: torch.Tensor) -> torch.Tensor:
        """Three times."""
        return x * 3

    x = torch.randn(3)
    assert torch.equal(triple(x), x * 3)
    assert triple.__name__ == "triple"
    assert triple.__doc__ == "Three times."


def test_decorated_method() -> None:
    class Scaler:
        factor = 4

        @flambeau.compile
        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    scaler, x = Scaler(), torch.randn(3)
    assert torch.equal(scaler.scale(x), x * 4)
    scaler.factor = 5
    assert torch.equal(scaler.scale(x), x * 5)


def test_disable_returns_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flambeau.compile(double, disable=True) is double
    monkeypatch.setenv("FLAMBEAU_DISABLE", "1")
    assert flambeau.compile(double) is double


def test_nothing_is_compiled_before_the_first_call() -> None:
    def fail(gm: Any, inputs: Any) -> Any:
        raise AssertionError("compiled too early")

    flambeau.compile(double, backend=fail)


# Modules -------------------------------------------------------------------------------------------------------


def test_module_in_module_out() -> None:
    model = TwoLayers().eval()
    compiled = flambeau.compile(model)
    x = torch.randn(4, 5)
    assert isinstance(compiled, nn.Module)
    assert compiled._orig_mod is model
    torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(compiled(x, scale=2.0), model(x, scale=2.0))
    assert set(compiled.state_dict()) == {f"_orig_mod.{name}" for name in model.state_dict()}
    assert compiled.first is model.first
    assert list(compiled.parameters()) == list(model.parameters())


def test_training_flag_is_the_modules_own() -> None:
    model = TwoLayers()
    compiled = flambeau.compile(model)
    x = torch.randn(50, 5)
    compiled.eval()
    assert not model.training and not compiled.training and not model.drop.training
    torch.testing.assert_close(compiled(x), model(x))
    compiled.train()
    assert model.drop.training
    torch.manual_seed(1)
    found = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(found, model(x))


def test_attributes_are_written_through() -> None:
    model = TwoLayers().eval()
    compiled = flambeau.compile(model)
    x = torch.randn(2, 5)
    compiled(x)
    compiled.second = nn.Linear(7, 2)
    assert model.second.out_features == 2
    torch.testing.assert_close(compiled(x), model(x))


def test_a_replaced_parameter_is_seen() -> None:
    model = TwoLayers().eval()
    compiled = flambeau.compile(model)
    x = torch.randn(2, 5)
    compiled(x)
    model.first.weight = nn.Parameter(torch.randn(7, 5))
    torch.testing.assert_close(compiled(x), model(x))
    with torch.no_grad():
        model.first.weight.zero_()
    torch.testing.assert_close(compiled(x), model(x))


def test_hooks_added_later_run() -> None:
    model = TwoLayers().eval()
    compiled = flambeau.compile(model)
    x = torch.randn(2, 5)
    before = compiled(x)
    model.first.register_forward_hook(lambda module, args, output: output * 0)
    after = compiled(x)
    torch.testing.assert_close(after, model(x))
    assert not torch.equal(before, after)


def test_deepcopy_and_pickle_compile_anew() -> None:
    compiled = flambeau.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    x = torch.randn(2, 3)
    expected = compiled(x)
    for twin in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        torch.testing.assert_close(twin(x), expected)
        with torch.no_grad():
            next(twin.parameters()).zero_()
        assert not torch.equal(next(compiled.parameters()), next(twin.parameters()))


def test_a_dropped_model_is_freed() -> None:
    import gc
    import weakref

    model = TwoLayers().eval()
    compiled = flambeau.compile(model)
    compiled(torch.randn(2, 5))
    alive = weakref.ref(model)
    del model, compiled
    gc.collect()
    assert alive() is None


# Backends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_backends_by_name(backend: str) -> None:
    model = TwoLayers().eval()
    x = torch.randn(4, 5, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    compiled = flambeau.compile(model, backend=backend)
    compiled(x).sum().backward()
    model(twin).sum().backward()
    torch.testing.assert_close(x.grad, twin.grad)


def test_a_callable_backend_gets_the_graph() -> None:
    seen: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        seen.append(gm)
        assert all(isinstance(value, torch.Tensor) for value in example_inputs)
        return gm.forward

    x = torch.randn(3)
    compiled = flambeau.compile(lambda x: torch.sin(x) + 1, backend=backend)
    torch.testing.assert_close(compiled(x), x.sin() + 1)
    assert len(seen) == 1
    assert "sin" in seen[0].print_readable(print_output=False)


def test_registered_backend() -> None:
    name = "test_registered_backend"
    flambeau.register_backend(lambda gm, inputs: gm.forward, name)
    assert name in flambeau.list_backends()
    x = torch.randn(3)
    assert torch.equal(flambeau.compile(double, backend=name)(x), x * 2)
    with pytest.raises(ValueError, match="already"):
        flambeau.register_backend(lambda gm, inputs: gm.forward, name)


# Modes, options, errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
)
def test_modes(mode: str) -> None:
    x = torch.randn(3)
    assert torch.equal(flambeau.compile(double, mode=mode)(x), x * 2)


def test_options_are_fields_of_the_packages_dataclasses() -> None:
    x = torch.randn(3)
    assert torch.equal(flambeau.compile(double, options={"fuse_horizontal": False})(x), x * 2)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"backend": "inductr"}, ValueError, "unknown backend 'inductr'.*inductor"),
        ({"mode": "fast"}, ValueError, "unknown mode 'fast'.*reduce-overhead"),
        ({"options": {"elide_cast_pair": True}}, ValueError, "did you mean 'elide_cast_pairs'"),
        ({"options": {"elide_cast_pairs": "yes"}}, TypeError, "takes bool, not str"),
        ({"mode": "default", "options": {}}, ValueError, "not both"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        flambeau.compile(double, **arguments)


def test_not_callable() -> None:
    with pytest.raises(TypeError, match="takes a callable or a module, not int"):
        flambeau.compile(3)


# Errors and breaks -----------------------------------------------------------------------------------------------------


def test_the_users_errors_are_eagers() -> None:
    def wrong(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    x, y = torch.randn(2, 3), torch.randn(4, 5)
    with pytest.raises(RuntimeError) as eager:
        wrong(x, y)
    with pytest.raises(RuntimeError) as compiled:
        flambeau.compile(wrong)(x, y)
    assert str(compiled.value).splitlines()[0] == str(eager.value).splitlines()[0]


def test_wrong_arguments_raise_as_python_does() -> None:
    compiled = flambeau.compile(double)
    with pytest.raises(TypeError, match=r"double\(\) missing 1 required positional argument: 'x'"):
        compiled()


def branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def test_a_break_runs_eagerly() -> None:
    compiled = flambeau.compile(branch)
    for sign in (1, -1):
        x = torch.full((3,), float(sign))
        assert torch.equal(compiled(x), branch(x))


def test_fullgraph_names_the_users_line_and_cause() -> None:
    line = branch.__code__.co_firstlineno + 1
    with pytest.raises(Exception, match=rf"test_api\.py:{line}.*data-dependent") as caught:
        flambeau.compile(branch, fullgraph=True)(torch.randn(3))
    assert "CaptureError" in type(caught.value).__name__


def test_recompiles_when_a_guard_fails() -> None:
    compiled = flambeau.compile(lambda x, flag: x + 1 if flag else x - 1, fullgraph=True)
    x = torch.randn(3)
    for flag in (True, False, True):
        assert torch.equal(compiled(x, flag), x + 1 if flag else x - 1)
    assert torch.equal(compiled(x.double(), True), x.double() + 1)
    assert torch.equal(compiled(x.reshape(3, 1), True), x.reshape(3, 1) + 1)


def test_grad_mode_is_guarded() -> None:
    compiled = flambeau.compile(double)
    x = torch.randn(3, requires_grad=True)
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(x).is_inference()
    assert compiled(x).requires_grad


def test_reset_forgets_compiled_code() -> None:
    count = 0

    def backend(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        nonlocal count
        count += 1
        return gm.forward

    compiled = flambeau.compile(double, backend=backend)
    compiled(torch.randn(3))
    compiled(torch.randn(3))
    flambeau.reset()
    compiled(torch.randn(3))
    assert count == 2


def test_explain_names_graphs_breaks_and_guards() -> None:
    report = flambeau.explain(double)(torch.randn(3))
    assert len(report.graphs) == 1
    assert not report.breaks
    assert "L['x']" in str(report)
    assert report.to_json()
    broken = flambeau.explain(branch)(torch.randn(3))
    assert broken.breaks[0].id == "data-dependent"
    assert "test_api.py" in str(broken)


# Interop ---------------------------------------------------------------------------------------------------------------


def test_as_a_backend_of_torch_compile() -> None:
    model = TwoLayers().eval()
    x = torch.randn(4, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(model, backend="flambeau")
        torch.testing.assert_close(compiled(x), model(x))
        compiled(x).sum().backward()
    assert model.first.weight.grad is not None


def test_torchs_inductor_as_backend_callable() -> None:
    from torch._inductor.compile_fx import compile_fx

    model = TwoLayers().eval()
    x = torch.randn(4, 5)
    torch.testing.assert_close(flambeau.compile(model, backend=compile_fx)(x), model(x))


def test_modules_made_in_a_frame_after_torch_compile_was_used() -> None:
    """torch.compile wraps nn.Module's constructor for the rest of the process; slicing a ModuleList calls it."""
    torch.compile(double, backend="eager")(torch.randn(2))
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
    compiled = flambeau.compile(lambda x: layers[:2][1](layers[:2][0](x)), fullgraph=True)
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), layers[1](layers[0](x)))
