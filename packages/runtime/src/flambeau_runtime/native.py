"""The C extension and torch's C interface: found once, tested on known data, or the reason why not.

`core()` gives the extension module, ready to run; `unavailable()` gives None or the reason in
words.
"""

from __future__ import annotations

import hashlib
import os
import threading
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import torch

try:
    from flambeau_runtime import _core  # type: ignore[attr-defined]
except ImportError as error:
    _core = None  # type: ignore[assignment]
    _IMPORT_ERROR = str(error)

_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):  # another thread may have held it
    os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # type: ignore[attr-defined]
BUILD_HINT = (
    "build it with `python packages/runtime/hatch_build.py --inplace`, "
    "or reinstall flambeau-runtime"
)


@lru_cache(maxsize=1)
def _load() -> tuple[ModuleType | None, str]:
    """(module, "") or (None, the reason)."""
    if _core is None:
        return None, f"the C extension is not built ({_IMPORT_ERROR}); {BUILD_HINT}"
    if source_is_newer():
        return None, f"the C extension is older than its sources; {BUILD_HINT}"
    folder = Path(torch.__file__).parent / "lib"
    sample = torch.zeros(2, 3, device="cpu")
    try:
        _core.init(
            str(folder / "libtorch_cpu.so"),
            str(folder / "libc10.so"),
            str(folder / "libtorch_python.so"),
            sample,
            sample._cdata,
            sample.untyped_storage()._cdata,
            below_autograd_keyset().raw_repr(),
            torch.Tensor,
            torch.Tensor.is_inference,
            torch.is_inference_mode_enabled,
        )
    except ImportError as error:
        return None, str(error)
    return _core, ""


def core() -> ModuleType | None:
    """The extension, or None where it cannot be used (`unavailable` says why)."""
    with _LOCK:
        return _load()[0]


def unavailable() -> str | None:
    """Why the C executor cannot be used, or None if it can."""
    with _LOCK:
        return _load()[1] or None


def below_autograd_keyset() -> torch._C.DispatchKeySet:
    """The dispatch keys a running Program excludes: autograd, view tracking and autocast."""
    guard = torch._C._AutoDispatchBelowAutograd()
    keys = torch._C._dispatch_tls_local_exclude_set()
    del guard
    for name in dir(torch._C.DispatchKey):
        if name == "ADInplaceOrView" or name.startswith("Autocast"):
            keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return keys


def source_is_newer() -> bool:
    """Whether the C sources of a checkout are newer than the extension; False in a wheel."""
    folder = Path(__file__).parents[2] / "csrc"
    if _core is None or not folder.is_dir():
        return False
    digest = (
        hashlib.sha256()
    )  # as source_hash in hatch_build.py, whose import would bring hatchling in
    for path in sorted([*folder.glob("*.c"), *folder.glob("*.cpp"), *folder.glob("*.h")]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16] != _core.SOURCE_HASH
