"""Shape rules of random operators: in-place fills, factories, and their functional forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.promotion import Number
from flambeau_prims.rules.factory import empty_like, fresh
from flambeau_prims.rules.overloads import overloads
from flambeau_prims.rules.pointwise import elementwise, refuse
from flambeau_prims.rules.registry import rule
from flambeau_prims.size_floats import as_float
from flambeau_prims.sizes import lt
from flambeau_prims.spec import Spec
from flambeau_prims.strides import preserved_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.spec import Size

aten = torch.ops.aten


# 1. Filling a tensor


def _check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")


@rule(aten.bernoulli_.float)
def bernoulli_(self: Spec, p: float = 0.5, *, generator: Any = None) -> Spec:
    """self."""
    _check_probability(p)
    refuse("bernoulli_scalar_", self.dtype, self.device, "c")
    return self


@rule(aten.bernoulli_.Tensor)
def bernoulli_tensor_(self: Spec, p: Spec, *, generator: Any = None) -> Spec:
    """self; one probability an element."""
    return self


@rule(
    aten.normal_.default,
    aten.uniform_.default,
    aten.exponential_.default,
    aten.cauchy_.default,
    aten.log_normal_.default,
)
def fill_floating_(
    self: Spec, *_parameters: Number, generator: Any = None, **_named: Number
) -> Spec:
    """self, which must be floating (eager has an error of its own for each operator:
    `eager_checks.check_fill`).
    """
    return self


@rule(*overloads("random_"), aten.geometric_.default)
def random_(self: Spec, *_bounds: Number, generator: Any = None, **_named: Number) -> Spec:
    """self."""
    return self


# 2. Functional forms


@rule(aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor)
def bernoulli(self: Spec, p: Any = None, *, generator: Any = None) -> Spec:
    """Row-major; self's elements are the probabilities unless p is given."""
    return Spec.of(self.shape, dtype=self.dtype, device=self.device)


def _like(self: Spec) -> Spec:
    return Spec.of(self.shape, stride=preserved_stride(self), dtype=self.dtype, device=self.device)


@rule(
    aten.normal_functional.default,
    aten.uniform.default,
    aten.exponential.default,
    aten.cauchy.default,
    aten.log_normal.default,
    aten.geometric.default,
    *overloads("random"),
)
def filled_copy(self: Spec, *_parameters: Number, generator: Any = None, **_named: Number) -> Spec:
    """A fresh tensor like self."""
    return _like(self)


@rule(aten.normal.Tensor_float)
def normal_mean(mean: Spec, std: float = 1, *, generator: Any = None) -> Spec:
    """One mean an element."""
    return _like(mean)


@rule(aten.normal.float_Tensor)
def normal_std(mean: float, std: Spec, *, generator: Any = None) -> Spec:
    """One deviation an element."""
    return _like(std)


@rule(aten.normal.Tensor_Tensor)
def normal_mean_std(mean: Spec, std: Spec, *, generator: Any = None) -> Spec:
    """Both broadcast."""
    return elementwise((mean, std), mean.dtype)


@rule(aten.multinomial.default)
def multinomial(
    self: Spec, num_samples: Size, replacement: bool = False, *, generator: Any = None
) -> Spec:
    """Indices drawn from each row of weights."""
    if self.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if lt(num_samples, 1):
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    return Spec.of((*self.shape[:-1], num_samples), dtype=torch.int64, device=self.device)


@rule(aten.poisson.default, aten._standard_gamma.default)
def poisson(self: Spec, generator: Any = None) -> Spec:
    """Row-major, one draw for each rate."""
    return Spec.of(self.shape, dtype=self.dtype, device=self.device)


# 3. Factories


@rule(*overloads("rand_like"), *overloads("randn_like"))
def rand_like(
    self: Spec,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    memory_format: torch.memory_format | None = None,
    **_options: Any,
) -> Spec:
    """As empty_like."""
    return empty_like(self, dtype=dtype, device=device, memory_format=memory_format)


@rule(*overloads("randint_like"))
def randint_like(self: Spec, *_bounds: Any, **options: Any) -> Spec:
    """As empty_like."""
    return rand_like(self, **options)


@rule(
    aten.rand.default,
    aten.rand.generator,
    aten.randn.default,
    aten.randn.generator,
)
def rand(
    size: Sequence[Size],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **_options: Any,
) -> Spec:
    """Floating numbers."""
    return fresh(size, dtype, device)


@rule(aten.randint.default, aten.randint.generator)
def randint(high: Size, size: Sequence[Size], **options: Any) -> Spec:
    """Integers below high."""
    return randint_from(0, high, size, **options)


@rule(aten.randint.low, aten.randint.low_generator)
def randint_from(
    low: Size,
    high: Size,
    size: Sequence[Size],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **_options: Any,
) -> Spec:
    """Integers from low to below high."""
    return fresh(size, torch.int64 if dtype is None else dtype, device)


@rule(aten.randperm.default, aten.randperm.generator)
def randperm(
    n: Size,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **_options: Any,
) -> Spec:
    """A permutation of n."""
    return fresh((n,), torch.int64 if dtype is None else dtype, device)


@rule(aten.normal.float_float)
def normal_of_numbers(mean: float, std: float, size: Sequence[Size], **options: Any) -> Spec:
    """Two numbers and a size."""
    return rand(size, **options)


@rule(aten.rrelu_with_noise.default)
def rrelu_with_noise(self: Spec, noise: Spec, *_bounds: Any, **_named: Any) -> Spec:
    """Row-major; the noise is written."""
    refuse("rrelu_with_noise_out_cpu", self.dtype, self.device, "bic")
    return Spec.of(self.shape, dtype=self.dtype, device=self.device)


@rule(aten.rrelu_with_noise_backward.default)
def rrelu_with_noise_backward(
    grad_output: Spec,
    self: Spec,
    noise: Spec,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> Spec:
    """The gradient times the noise; where nothing was drawn, as a leaky ReLU's."""
    drawn = training and as_float(upper) - as_float(lower) > 1e-6
    return elementwise((grad_output, noise) if drawn else (self, grad_output), self.dtype)
