"""What all end-to-end tests share: a cache of their own, a fresh seed, and the comparison with
eager.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import types
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.differential import seed_generators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # the inductor's tests have it too
        parser.addoption(
            "--isa", choices=["avx512", "avx2", "baseline"], help="build C++ kernels for this level"
        )
    parser.addoption(
        "--entries",
        metavar="DIR",
        help="store entries and graphs in this directory and read them, in place of checked stages",
    )
    parser.addoption(
        "--kernels",
        metavar="DIR",
        help="build kernels in this directory, which other runs share, in place of an empty one",
    )


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a module draws when it is imported depends on no module that was imported before."""
    if isinstance(collector, pytest.Module):
        seed_generators(zlib.crc32(collector.nodeid.encode()))


def pytest_collection_finish() -> None:
    """Modules and tests live as long as the run: no later collection of garbage visits them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Kernels built by the tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        if level := request.config.getoption("--isa"):
            patch.setenv("FLAMBEAU_ISA", level)
        if entries := request.config.getoption("--entries"):
            patch.setenv("FLAMBEAU_CHECK", "0")
            patch.setenv("FLAMBEAU_GRAPH_CACHE", "1")
        else:
            patch.setenv("FLAMBEAU_CHECK", "1")
        kernels = request.config.getoption("--kernels") or tmp_path_factory.mktemp("cache")
        patch.setenv("FLAMBEAU_CACHE_DIR", str(entries or kernels))
        yield


@pytest.fixture(scope="session", autouse=True)
def _seeds_without_stacks() -> Iterator[None]:
    """`torch.manual_seed` formats the stack of its call for each kind of device that is not there
    yet, for the message of an error that no test asks for.
    """
    devices = (torch.cuda, torch.xpu, torch.mtia)
    with pytest.MonkeyPatch.context() as patch:
        for device in devices:
            patch.setattr(device, "traceback", types.SimpleNamespace(format_stack=list))
        yield


@pytest.fixture(scope="session", autouse=True)
def _code_is_checked() -> Iterator[None]:
    """CPython's compiler could have made each code object that a test assembles."""
    from flambeau_capture.bytecode.checker import assembled_code_checked

    with assembled_code_checked():
        yield


@pytest.fixture(autouse=True)
def _stages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that look at the stages of a compile, not at results, read nothing that is stored."""
    if request.node.get_closest_marker("stages"):
        monkeypatch.setenv("FLAMBEAU_CHECK", "1")
        monkeypatch.setenv("FLAMBEAU_GRAPH_CACHE", "0")


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    """Each test draws its own inputs, the same ones in every run."""
    seed_generators(zlib.crc32(request.node.nodeid.encode()))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a nested result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def to_double(value: Any) -> Any:
    """A deep copy with every floating tensor in float64 (modules too)."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, torch.Tensor):
        return value.detach().double() if value.is_floating_point() else value.clone()
    if isinstance(value, (tuple, list)):
        return type(value)(to_double(item) for item in value)
    if isinstance(value, dict):
        return {key: to_double(item) for key, item in value.items()}
    return value


def assert_as_good_as_eager(
    found: list[torch.Tensor],
    eager: list[torch.Tensor],
    reference: list[torch.Tensor],
    *,
    factor: float = 4.0,
) -> None:
    """Same dtypes, shapes and strides as eager, and no farther from the float64 reference than
    `factor` times eager's error.

    A floor of a few units in the last place of the largest value keeps exact eager results from
    demanding exactness.
    """
    assert len(found) == len(eager) == len(reference)
    for ours, theirs, exact in zip(found, eager, reference, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        significant = [dim for dim, size in enumerate(ours.shape) if size > 1]
        if ours.numel():
            assert [ours.stride(d) for d in significant] == [theirs.stride(d) for d in significant]
        if not ours.is_floating_point():
            assert torch.equal(ours, theirs)
            continue
        exact = exact.to(torch.float64)
        finite = torch.isfinite(theirs)
        torch.testing.assert_close(ours[~finite], theirs[~finite], equal_nan=True)
        ours_error = (ours.double() - exact)[finite].abs()
        eager_error = (theirs.double() - exact)[finite].abs()
        if not ours_error.numel():
            continue
        floor = 4 * torch.finfo(ours.dtype).eps * exact[finite].abs().max().item()
        assert ours_error.max().item() <= factor * eager_error.max().item() + floor


@pytest.fixture
def check() -> Callable[..., Any]:
    """`check(fn, *args)`: compile fn whole, compare with eager and float64; returns the compiled
    callable.
    """
    import flambeau

    def run(fn: Callable[..., Any], *args: Any, factor: float = 4.0, **options: Any) -> Any:
        compiled = flambeau.compile(fn, fullgraph=True, **options)
        ours = copy.deepcopy(args), copy.deepcopy(args), to_double(args)
        exact_fn = to_double(fn) if isinstance(fn, torch.nn.Module) else fn
        with torch.no_grad():
            state = torch.get_rng_state()
            found = compiled(*ours[0])
            torch.set_rng_state(state)
            eager = fn(*ours[1])
            torch.set_rng_state(state)
            exact = exact_fn(*ours[2])
        assert_as_good_as_eager(
            tensors_in([found, ours[0]]),
            tensors_in([eager, ours[1]]),
            tensors_in([exact, ours[2]]),
            factor=factor,
        )
        return compiled

    return run
