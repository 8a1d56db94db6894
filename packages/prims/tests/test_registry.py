"""The rule registry: one rule an overload, a cache that tells arguments apart, alias facts from
schemas, the meta fallback.
"""

from __future__ import annotations

import inspect
import pkgutil

import pytest
import torch

from flambeau_prims import decompositions, rules
from flambeau_prims.rules import registry
from flambeau_prims.rules.registry import (
    aliasing,
    infer,
    infer_keyed,
    is_mutating,
    is_view,
    registered,
    rule,
    rule_for,
)
from flambeau_prims.size_floats import float_of
from flambeau_prims.sizes import SizeEnv, as_int
from flambeau_prims.spec import Spec, spec_of
from flambeau_prims.unsupported import DataDependentSize, NoRule

aten = torch.ops.aten


def test_every_file_of_a_registry_is_listed():
    """`load_all` imports what `MODULES` names, `load_library` what `LIBRARIES` names; the others
    register nothing.
    """
    files = {module.name for module in pkgutil.iter_modules(rules.__path__)}
    assert files == {*rules.MODULES, "overloads", "registry"}
    files = {module.name for module in pkgutil.iter_modules(decompositions.__path__)}
    libraries = decompositions.LIBRARIES.values()
    others = {"registry", "extern", "windows", "adaptive", "special_tables"}
    assert files == {*decompositions.MODULES, *libraries, *others}
    assert len(registered()) > 200


def test_a_second_rule_is_refused():
    assert rule_for(aten.add.Tensor) is not None
    with pytest.raises(ValueError, match="has a rule already"):
        rule(aten.add.Tensor)(lambda *args: None)


def test_a_rule_gets_the_arguments_that_it_names(monkeypatch):
    """By name and with the schema's defaults, unless it names one otherwise or has its own."""
    monkeypatch.setattr(registry, "_RULES", {})
    monkeypatch.setattr(registry, "_CALLS", {})
    rule(aten.std.correction)(lambda keepdim, self, correction=7: (self, keepdim, correction))
    rule(aten.roll.default)(lambda self, dims: (self, dims))
    rule(aten.flip.default)(lambda tensor, axes: (tensor, axes))
    rule(aten.eye.m)(lambda n, **options: (n, options))
    assert rule_for(aten.std.correction)("x", [0]) == ("x", False, 7)
    assert rule_for(aten.std.correction)("x", None, keepdim=True, correction=1) == ("x", True, 1)
    assert rule_for(aten.roll.default)("x", [1]) == ("x", ())
    assert rule_for(aten.flip.default)("x", (1,)) == ("x", (1,))
    assert rule_for(aten.eye.m)(2, 3, dtype=torch.int8) == (2, {"m": 3, "dtype": torch.int8})


def test_rules_have_no_parameter_of_no_operator():
    """A misspelt parameter with a default would never get an argument."""
    named: dict[object, set[str]] = {}
    for op in registered():
        function = registry._RULES[op]
        if op.namespace == "aten":
            named.setdefault(function, set()).update(arg.name for arg in op._schema.arguments)
    for function, names in named.items():
        parameters = inspect.signature(function).parameters.values()
        if all(each.name in names for each in parameters if each.default is each.empty):
            fixed = getattr(function, "keywords", {})
            assert {each.name for each in parameters} <= names | set(fixed), function


def test_cache_tells_numbers_apart():
    spec = Spec.of((3,), dtype=torch.int64)
    assert infer(aten.mul.Tensor, (spec, 1)).dtype == torch.int64
    assert infer(aten.mul.Tensor, (spec, 1.0)).dtype == torch.float32
    flags = Spec.of((3,), dtype=torch.bool)
    assert infer(aten.mul.Tensor, (flags, True)).dtype == torch.bool
    assert infer(aten.mul.Tensor, (flags, 1)).dtype == torch.int64
    assert infer(aten.cat.default, ([spec, spec],)).shape == (6,)


def test_symbolic_results_live_in_their_env():
    env = SizeEnv()
    spec = Spec.of((env.symbol(5, "x"), 4))
    result = infer(aten.mul.Tensor, (spec, spec))
    assert result is infer(aten.mul.Tensor, (spec, spec)) and len(env.rule_cache) == 1
    scale = float_of("**", float_of("float", spec.shape[0]), -0.5)
    integers = Spec.of((3,), dtype=torch.int64)
    assert infer(aten.mul.Tensor, (integers, scale)).dtype == torch.float32
    assert infer(aten.mul.Tensor, (integers, spec.shape[0])).dtype == torch.int64
    assert len(env.rule_cache) == 3
    assert (
        infer_keyed((aten.mul.Tensor, spec, spec, "another key"), aten.mul.Tensor, (spec, spec), {})
        is result
    )


def test_aliasing():
    assert (
        is_view(aten.view.default)
        and is_view(aten.split.Tensor)
        and is_view(aten._unsafe_view.default)
    )
    assert not is_view(aten.add.Tensor) and not is_view(aten.add_.Tensor)
    assert (
        is_mutating(aten.add_.Tensor)
        and is_mutating(aten.add.out)
        and not is_mutating(aten.add.Tensor)
    )
    assert aliasing(aten.add_.Tensor).returns == ("self",) and aliasing(aten.add.out).mutated == (
        "out",
    )
    assert aliasing(aten._foreach_add_.Scalar).mutated == ("self",)


def test_rare_operators_run_on_meta():
    real = torch.randn(6, 4).t()[1:]
    op = aten.view_copy.dtype
    assert rule_for(op) is None
    args = (spec_of(real), torch.int32)
    assert infer(op, args) == spec_of(op(real, torch.int32))
    on_gpu = Spec.of((2, 3), device="cuda:0")
    assert infer(op, (on_gpu, torch.int32)) == on_gpu.replace(dtype=torch.int32)


def test_rare_operators_specialise():
    """Symbolic sizes become their value on the traced call, with guards and a note for reports."""
    env = SizeEnv()
    rows, columns = env.symbol(4, "x"), env.symbol(6, "y")
    spec = Spec.of((rows + 1, columns))
    result = infer(aten.view_copy.dtype, (spec, torch.int32))
    assert result == Spec.of((5, 6), dtype=torch.int32)
    assert {str(guard) for guard in env.guards} >= {"s0 == 4", "s1 == 6"}
    assert [str(size) for size in env.specialised] == ["s0 + 1", "s1"]
    assert as_int(rows) == 4 and not env.assumed


def test_rare_operators_refuse_sizes_in_the_data():
    """No guard can hold them to a value."""
    spec = Spec.of((SizeEnv().unbacked(lower=0),))
    with pytest.raises(DataDependentSize):
        infer(aten.view_copy.dtype, (spec, torch.int32))


def test_operators_without_a_meta_kernel_have_no_rule():
    with pytest.raises(NoRule, match="no-shape-rule"):
        infer(aten.to_mkldnn.default, (Spec.of((4,)),))
