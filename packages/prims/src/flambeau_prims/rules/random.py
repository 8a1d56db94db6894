"""Shape rules of random operators: in-place fills, factories, and their functional forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_prims.rules.factory import fresh
from flambeau_prims.rules.overloads import overloads
from flambeau_prims.rules.pointwise import elementwise, refuse
from flambeau_prims.rules.registry import rule
from flambeau_prims.size_floats import as_float
from flambeau_prims.sizes import lt
from flambeau_prims.spec import Spec
from flambeau_prims.strides import preserved_stride

if TYPE_CHECKING:
    from flambeau_prims.rules.factory import Device, Dtype
    from flambeau_prims.spec import Size, Sizes

aten = torch.ops.aten


# 1. Filling a tensor


@rule(aten.bernoulli_.float)
def bernoulli_(self: Spec, p: float) -> Spec:
    """self."""
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    refuse("bernoulli_scalar_", self.dtype, self.device, "c")
    return self


@rule(
    aten.bernoulli_.Tensor, aten.normal_.default, aten.uniform_.default, aten.exponential_.default,
    aten.cauchy_.default, aten.log_normal_.default, aten.geometric_.default, *overloads("random_"),
)  # fmt: skip
def fill_(self: Spec) -> Spec:
    """self; `eager_checks.check_fill` raises for dtypes that a distribution refuses."""
    return self


# 2. Functional forms


@rule(
    aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor, aten.poisson.default,
    aten._standard_gamma.default,
)  # fmt: skip
def draw_each(self: Spec) -> Spec:
    """Row-major, one draw for each element of self."""
    return self.fresh()


@rule(
    aten.normal_functional.default, aten.uniform.default, aten.exponential.default,
    aten.cauchy.default, aten.log_normal.default, aten.geometric.default, *overloads("random"),
)  # fmt: skip
def filled_copy(self: Spec) -> Spec:
    """A fresh tensor like self."""
    return self.fresh(stride=preserved_stride(self))


@rule(aten.normal.Tensor_float)
def normal_mean(mean: Spec) -> Spec:
    """One mean for each element."""
    return filled_copy(mean)


@rule(aten.normal.float_Tensor)
def normal_std(std: Spec) -> Spec:
    """One deviation for each element."""
    return filled_copy(std)


@rule(aten.normal.Tensor_Tensor)
def normal_mean_std(mean: Spec, std: Spec) -> Spec:
    """Both broadcast."""
    return elementwise((mean, std), mean.dtype)


@rule(aten.multinomial.default)
def multinomial(self: Spec, num_samples: Size) -> Spec:
    """Indices drawn from each row of weights."""
    if self.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if lt(num_samples, 1):
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    return self.fresh((*self.shape[:-1], num_samples), dtype=torch.int64)


# 3. Factories


@rule(
    aten.rand.default, aten.rand.generator, aten.randn.default, aten.randn.generator,
    aten.normal.float_float,
)  # fmt: skip
def rand(size: Sizes, dtype: Dtype, device: Device) -> Spec:
    """Floating numbers."""
    return fresh(size, dtype, device)


@rule(aten.randint.default, aten.randint.generator, aten.randint.low, aten.randint.low_generator)
def randint(size: Sizes, device: Device, dtype: Dtype = None) -> Spec:
    """Integers in a range."""
    return fresh(size, dtype or torch.int64, device)


@rule(aten.randperm.default, aten.randperm.generator)
def randperm(n: Size, device: Device, dtype: Dtype = None) -> Spec:
    """A permutation of n."""
    return fresh((n,), dtype or torch.int64, device)


@rule(aten.rrelu_with_noise.default)
def rrelu_with_noise(self: Spec) -> Spec:
    """Row-major; the noise is written."""
    refuse("rrelu_with_noise_out_cpu", self.dtype, self.device, "bic")
    return self.fresh()


@rule(aten.rrelu_with_noise_backward.default)
def rrelu_with_noise_backward(
    grad_output: Spec, self: Spec, noise: Spec, lower: float, upper: float, training: bool
) -> Spec:
    """The gradient times the noise; where nothing was drawn, as a leaky ReLU's."""
    drawn = training and as_float(upper) - as_float(lower) > 1e-6
    return elementwise((noise, grad_output) if drawn else (self, grad_output), self.dtype)
