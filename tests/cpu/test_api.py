"""torch.compile's surface: decorator forms, modules, backends, modes, options, errors."""

from __future__ import annotations

import copy
import functools
import inspect
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


# Decorator forms
# ---------------------------------------------------------------------------------------------


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


# Modules
# ----------------------------------------------------------------------------


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


def test_names_copies_and_state_are_those_of_torchs_wrapper(tmp_path: Any) -> None:
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    ours, theirs = flambeau.compile(model, backend="eager"), torch.compile(model, backend="eager")
    for names in ("named_parameters", "named_modules", "named_children", "named_buffers"):
        assert [n for n, _ in getattr(ours, names)()] == [n for n, _ in getattr(theirs, names)()]
    assert list(ours.state_dict()) == list(theirs.state_dict())
    torch.save(ours.state_dict(), tmp_path / "state")
    with torch.no_grad():
        model.weight.add_(1)
    changed = ours(x)
    ours.load_state_dict(torch.load(tmp_path / "state"))
    assert not torch.equal(changed, ours(x))
    assert copy.copy(ours)._orig_mod is model
    assert ours.forward(x).shape == (2, 3)
    ours.note = 3
    assert model.note == 3
    del ours.note
    assert not hasattr(model, "note")
    assert "note" not in dir(ours) and "in_features" in dir(ours)
    assert repr(ours).startswith("CompiledModule(\n  (_orig_mod): Linear")
    assert bool(ours)
    assert ours.to(torch.float64) is ours and model.weight.dtype == torch.float64


def test_containers_stay_containers() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = flambeau.compile(model, backend="eager")
    assert len(compiled) == 2 and compiled[0] is model[0]
    assert list(compiled) == list(model) and model[1] in list(compiled)
    assert "a" in flambeau.compile(nn.ModuleDict({"a": nn.ReLU()}))
    for wrong in (len, iter):
        with pytest.raises(TypeError, match=r"Linear"):
            wrong(flambeau.compile(nn.Linear(2, 2)))


def test_hooks_on_the_wrapper_run_around_it() -> None:
    model, seen = nn.Linear(3, 3), []
    compiled = flambeau.compile(model, backend="eager")
    x = torch.randn(2, 3, requires_grad=True)
    handles = [
        compiled.register_forward_pre_hook(lambda module, args: seen.append("before")),
        compiled.register_forward_hook(lambda module, args, out: seen.append("after")),
        compiled.register_full_backward_hook(lambda module, *grads: seen.append("backward")),
    ]
    compiled(x).sum().backward()
    assert seen == ["before", "after", "backward"]
    assert not model._forward_hooks
    for handle in handles:
        handle.remove()
    compiled(x)
    assert len(seen) == 3


def test_forward_may_be_replaced() -> None:
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    compiled = flambeau.compile(model, backend="eager")
    expected = compiled(x)
    compiled.forward = lambda x: x * 0
    assert torch.equal(compiled(x), x * 0)
    del compiled.forward
    torch.testing.assert_close(compiled(x), expected)


def test_lazy_modules_are_initialised_by_the_first_call() -> None:
    compiled = flambeau.compile(nn.LazyLinear(4))
    x = torch.randn(2, 3)
    found = compiled(x)
    assert compiled.weight.shape == (4, 3)
    torch.testing.assert_close(found, nn.functional.linear(x, compiled.weight, compiled.bias))
    torch.testing.assert_close(compiled(x), found)


def test_compile_in_place() -> None:
    model, x = TwoLayers().eval(), torch.randn(2, 5)
    expected = model(x)
    assert flambeau.compile_in_place(model, fullgraph=True) is model
    torch.testing.assert_close(model(x), expected)
    assert len(flambeau.explain(model._compiled_call_impl).graphs) == 1
    model.first.weight.data.zero_()
    torch.testing.assert_close(model(x), model.second(model.first.bias.relu()).expand(2, 3))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(x), model(x))
    outer = flambeau.compile(lambda x: model(x) + 1, fullgraph=True)
    torch.testing.assert_close(outer(x), model(x) + 1)
    with pytest.raises(TypeError, match="takes a module, not function"):
        flambeau.compile_in_place(double)


# Other callables
# ----------------------------------------------------------------------------


class Holder:
    factor = 3

    @flambeau.compile
    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @flambeau.compile(fullgraph=True)
    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor

    @flambeau.compile
    @property
    def doubled(self) -> torch.Tensor:
        """Doc."""
        return torch.full((2,), 2.0) * self.factor

    @doubled.setter
    def doubled(self, value: int) -> None:
        self.factor = value


def test_descriptors_are_compiled_inside() -> None:
    x = torch.randn(3)
    holder = Holder()
    assert torch.equal(Holder.static(x), x + 1) and torch.equal(holder.static(x), x + 1)
    assert torch.equal(Holder.of_class(x), x * 3) and torch.equal(holder.of_class(x), x * 3)
    assert torch.equal(holder.doubled, torch.full((2,), 6.0))
    holder.doubled = 5
    assert torch.equal(holder.doubled, torch.full((2,), 10.0))
    assert Holder.doubled.__doc__ == "Doc."


def test_classes_are_compiled_in_place() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    class Layer(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = by

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    x = torch.randn(3)
    for cls in (Scale, Layer):
        assert flambeau.compile(cls, backend="eager") is cls
        for by in (2.0, 3.0):
            assert torch.equal(cls(by)(x), x * by)
        assert flambeau.explain(cls.__call__).graphs
    with pytest.raises(TypeError, match="has no __call__ to compile"):
        flambeau.compile(TwoFields)


class TwoFields:
    pass


def test_builtins_partials_and_objects() -> None:
    x = torch.randn(4)
    torch.testing.assert_close(flambeau.compile(torch.sin)(x), x.sin())
    assert torch.equal(flambeau.compile(functools.partial(torch.add, x, alpha=2))(x), x + 2 * x)
    assert flambeau.compile(len)([1, 2]) == 2
    assert torch.equal(flambeau.compile(x.add)(x), x + x)
    torch.testing.assert_close(flambeau.compile(torch.ops.aten.cos.default)(x), x.cos())


def test_what_is_compiled_already_is_compiled_anew() -> None:
    x = torch.randn(3)
    graphs: list[str] = []

    def backend(name: str) -> Any:
        def compile_graph(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            graphs.append(name)
            return gm.forward

        return compile_graph

    inner = flambeau.compile(double, backend=backend("inner"))
    for compiled in (inner, torch.compile(double, backend=backend("torch"))):
        outer = flambeau.compile(compiled, backend=backend("outer"))
        assert torch.equal(outer(x), x * 2)
    assert graphs == ["outer", "outer"]
    model = nn.Linear(3, 3)
    for module in (flambeau.compile(model), torch.compile(model), flambeau.compiler.disable(model)):
        assert flambeau.compile(module)._orig_mod is model


def test_compiled_functions_look_like_what_they_were_made_from() -> None:
    compiled = flambeau.compile(double)
    assert inspect.signature(compiled) == inspect.signature(double)
    assert inspect.unwrap(compiled) is double
    assert (compiled.__name__, compiled.__module__) == (double.__name__, double.__module__)
    assert copy.deepcopy(compiled) is compiled
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert repr(compiled) == f"<compiled {double!r}>"
    compiled.note = 1
    assert double.note == 1
    del double.note


@flambeau.compile
def module_level(x: torch.Tensor) -> torch.Tensor:
    return x - 1


def test_recompile_limit_is_an_argument() -> None:
    compiled = flambeau.compile(
        lambda x, text: x + len(text), recompile_limit=1, isolate_recompiles=True, backend="eager"
    )
    x = torch.randn(3)
    assert torch.equal(compiled(x, "a"), x + 1)
    with pytest.warns(RuntimeWarning, match=r"compiled 1 times.*L\['text'\]"):
        assert torch.equal(compiled(x, "ab"), x + 2)
    strict = flambeau.compile(
        lambda x, text: x + len(text), recompile_limit=1, fullgraph=True, backend="eager"
    )
    strict(x, "a")
    with pytest.raises(flambeau.CaptureError, match="recompile-limit"):
        strict(x, "ab")
    with pytest.raises(TypeError, match="'recompile_limit' takes int, not str"):
        flambeau.compile(double, recompile_limit="1")


# Backends
# ----------------------------------------------------------------------------


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


# Modes, options, errors
# ----------------------------------------------------------------------------------------------


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


# Errors and breaks
# ----------------------------------------------------------------------------


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
    if x.sum().item() > 0:
        return x + 1
    return x - 1


def test_a_break_runs_eagerly() -> None:
    compiled = flambeau.compile(branch)
    for sign in (1, -1):
        x = torch.full((3,), float(sign))
        assert torch.equal(compiled(x), branch(x))


def test_fullgraph_names_the_users_line_and_cause() -> None:
    line = branch.__code__.co_firstlineno + 1
    options = {"speculate": False}
    with pytest.raises(Exception, match=rf"test_api\.py:{line}(.|\n)*data-dependent") as caught:
        flambeau.compile(branch, fullgraph=True, options=options)(torch.randn(3))
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


# Interop
# ----------------------------------------------------------------------------


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
    """torch.compile wraps nn.Module's constructor for the rest of the process; slicing a ModuleList
    calls it.
    """
    torch.compile(double, backend="eager")(torch.randn(2))
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
    compiled = flambeau.compile(lambda x: layers[:2][1](layers[:2][0](x)), fullgraph=True)
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), layers[1](layers[0](x)))
