"""Shared by the runtime's tests: a private cache, and the guard against a stale C extension."""

from __future__ import annotations

import functools

import pytest
import torch

from flambeau_runtime import RuntimeOptions, loose_kernels, native

if native.source_is_newer():
    pytest.exit(
        f"csrc/ was edited since the C extension was built: {native.BUILD_HINT}", returncode=3
    )


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    """One cache for the whole run, so that equal kernels are built once."""
    return tmp_path_factory.mktemp("runtime") / "cache"


@pytest.fixture(autouse=True)
def _written_programs_share_it(cache_dir, monkeypatch):
    """What `output_code` writes builds its kernels with the default options."""
    monkeypatch.setattr(
        loose_kernels, "RuntimeOptions", functools.partial(RuntimeOptions, cache_dir=cache_dir)
    )


@pytest.fixture(params=["c", "python"])
def options(request, cache_dir):
    """Both executors: a test that takes this runs on each."""
    if request.param == "c" and native.core() is None:
        pytest.skip(f"no C executor: {native.unavailable()}")
    torch.manual_seed(0)
    return RuntimeOptions(cache_dir=cache_dir, executor=request.param, debug=True)
