"""Releases: sdists, and wheels built from them without an index; the wheels are installed into a
fresh environment and used from outside the checkout.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path

from tools.checks import share_torch
from tools.checks.command import PACKAGES, ROOT, run

SMOKE = """
import sys, torch, flambeau
assert "site-packages" in flambeau.__file__, flambeau.__file__
from flambeau_capture.core import core
from flambeau_runtime import native
assert core is not None and native.core() is not None, "the wheels hold no compiled C parts"
f = flambeau.compile(lambda x, y: torch.softmax(torch.sin(x) @ y, -1), fullgraph=True)
x, y = torch.randn(5, 7), torch.randn(7, 3)
torch.testing.assert_close(f(x, y), torch.softmax(torch.sin(x) @ y, -1))
g = torch.compile(f.__wrapped__, backend="flambeau")
torch.testing.assert_close(g(x, y), f(x, y))
print("smoke test passed on", sys.version.split()[0], "torch", torch.__version__)
"""


def check() -> None:
    """Build, install and try the wheels."""
    with tempfile.TemporaryDirectory() as folder:
        wheels, venv, elsewhere = (
            Path(folder, "wheels"),
            Path(folder, "venv"),
            Path(folder, "elsewhere"),
        )
        elsewhere.mkdir()
        os.environ["PIP_NO_INDEX"] = "1"  # what is installed suffices
        for package in PACKAGES:
            source = ROOT / "packages" / package
            # The sdist, and the wheel from it.
            run(sys.executable, "-m", "build", "--no-isolation", "--outdir", wheels, source)
        del os.environ["PIP_NO_INDEX"]
        run(sys.executable, "-m", "twine", "check", "--strict", *sorted(wheels.iterdir()))
        run(sys.executable, "-m", "venv", venv)
        python = venv / "bin" / "python"
        os.environ["FLAMBEAU_CACHE_DIR"] = str(Path(folder, "cache"))
        share_torch.share(Path(sysconfig.get_path("purelib", "venv", vars={"base": str(venv)})))
        built = sorted(wheels.glob("*.whl"))
        run(python, "-m", "pip", "install", "--quiet", *built, cwd=elsewhere, clean=True)
        run(python, "-c", SMOKE, cwd=elsewhere, clean=True)
