"""Custom operators have the shapes that their authors' fake kernels give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flambeau_prims import SizeEnv, Spec, Tracer
from flambeau_prims.rules.registry import infer, rule_for
from flambeau_prims.sizes import known_eq
from flambeau_prims.unsupported import DataDependent

LIBRARY = torch.library.Library("flambeau_prims_tests", "DEF")
LIBRARY.define("rows(Tensor x, SymInt n, *, bool wide=False) -> (Tensor, SymInt)")
LIBRARY.define("positive(Tensor x) -> Tensor")
LIBRARY.define("positive_by_a_helper(Tensor x) -> Tensor")
LIBRARY.define("careless(Tensor x) -> Tensor")
LIBRARY.define("unknown(Tensor x) -> Tensor")
OPS = torch.ops.flambeau_prims_tests


@torch.library.register_fake("flambeau_prims_tests::rows", lib=LIBRARY)
def _(x: torch.Tensor, n: Any, *, wide: bool = False) -> Any:
    torch._check(x.dim() == 2, lambda: "rows takes a matrix")
    dtype = torch.float64 if wide else x.dtype
    return x.new_empty(n * 2, x.shape[1], dtype=dtype), x.shape[0] + 1


def size_of_data() -> Any:
    return torch.library.get_ctx().new_dynamic_size()


@torch.library.register_fake("flambeau_prims_tests::positive", lib=LIBRARY)
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.register_fake("flambeau_prims_tests::positive_by_a_helper", lib=LIBRARY)
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(size_of_data())


@torch.library.register_fake("flambeau_prims_tests::careless", lib=LIBRARY)
def _(x: torch.Tensor) -> torch.Tensor:
    return x.grad.clone()  # type: ignore[union-attr]


def test_sizes_dtypes_and_devices_are_the_kernels() -> None:
    matrix, rows = Spec.of((4, 3), device=torch.device("cuda", 0)), OPS.rows.default
    out, count = infer(rows, (matrix, 5))
    assert (out.shape, out.dtype, out.device) == ((10, 3), torch.float32, matrix.device)
    assert count == 5
    assert infer(rows, (matrix, 5), {"wide": True})[0].dtype is torch.float64
    with pytest.raises(RuntimeError, match="rows takes a matrix"):
        infer(rows, (Spec.of((4,)), 5))


def test_symbolic_sizes() -> None:
    env = SizeEnv()
    n, m = env.symbol(6, "n"), env.symbol(7, "m")
    out, count = infer(OPS.rows.default, (Spec.of((n, 3)), m))
    assert known_eq(out.shape[0], m * 2) and known_eq(count, n + 1)
    assert [guard.op for guard in env.guards] == [">=", ">="], "the kernel asked nothing"


@pytest.mark.parametrize("op", [OPS.positive.default, OPS.positive_by_a_helper.default], ids=str)
def test_sizes_that_are_in_the_data(op: Any) -> None:
    with pytest.raises(DataDependent, match=f"sizes of the results of {op} depend on contents"):
        infer(op, (Spec.of((4,)),))


def test_other_errors_of_a_kernel_are_its_own() -> None:
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'clone'"):
        infer(OPS.careless.default, (Spec.of((4,)),))


def test_without_a_fake_kernel_there_is_no_rule() -> None:
    assert rule_for(OPS.unknown.default) is None


def test_a_kernel_registered_later_is_found() -> None:
    LIBRARY.define("later(Tensor x) -> Tensor")
    later = OPS.later.default
    assert rule_for(later) is None
    torch.library.register_fake(
        "flambeau_prims_tests::later", lambda x: x.new_empty(2), lib=LIBRARY
    )
    with Tracer() as tracer:
        assert later(tracer.fake(Spec.of((4,)))).spec.shape == (2,)
