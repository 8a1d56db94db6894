"""Let the environment of this interpreter use the torch of the environment `torch`, which holds
torch and what torch needs, and nothing else: six environments hold one copy, compiled once.

python tools/checks/share_torch.py     makes the environment `torch` if there is none
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def site_packages() -> Path:
    """The folder that torch is in; CalledProcessError if hatch cannot make the environment."""
    # Hatch tells a command by variables which environment it runs in: this one is another.
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("HATCH_ENV", "VIRTUAL_"))}

    def hatch(*words: str) -> str:
        command = ["hatch", "env", *words]
        done = subprocess.run(command, cwd=ROOT, env=variables, check=True, stdout=subprocess.PIPE)
        return done.stdout.decode().strip()

    with open(ROOT / "pyproject.toml") as lock:  # environments of several packages are made at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        hatch("create", "torch")
    scheme = {"base": hatch("find", "torch"), "platbase": ""}
    return Path(sysconfig.get_path("purelib", "venv", vars=scheme))


def share(folder: Path) -> None:
    """Put torch on the path of the environment whose packages are in `folder`."""
    (folder / "shared_torch.pth").write_text(f"{site_packages()}\n")


if __name__ == "__main__":
    share(Path(sysconfig.get_path("purelib")))
