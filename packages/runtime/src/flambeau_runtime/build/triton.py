"""Triton source -> cubin, through Triton's own compiler with an explicit target; no GPU is needed.

    @triton.jit def cuda_add_0(b0, b1, XBLOCK: tl.constexpr): ...
    -> Cubin(image=b"\x7fELF...", entry="cuda_add_0", shared=0, warps=4, registers=18, stack=0)

Relies on Triton >= 3.4 being installed beside a CUDA build of torch. It runs in processes beside
this one (`triton_server.py`), which keep nothing: what is built here is in Flambeau's cache. Where no
process can be started it runs in this one, with a warning, and keeps files in Triton's cache.
"""

from __future__ import annotations

import functools
import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from flambeau_runtime.build.assemblers import CHOSEN_BY_USERS, assemblers
from flambeau_runtime.build.cubin_usage import usage
from flambeau_runtime.build.triton_compiler import compile_kernel
from flambeau_runtime.build.triton_server import ServerGone, server

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOG = logging.getLogger(__name__)

RIGHT_SINCE = (12, 9)
"""The version of `ptxas` from which on none of what `assemblers` tells of was seen."""

MOST_REGISTERS, ALL_REGISTERS = 255, 65536
"""Of a thread; of a multiprocessor, which the threads of a program share."""


@dataclass(frozen=True)
class Cubin:
    """A compiled GPU kernel: ELF image, function name, bytes of shared memory, warps; registers and
    bytes of stack of a thread.
    """

    image: bytes
    entry: str
    shared: int
    warps: int
    registers: int
    stack: int
    scratch: int = 0
    """Bytes of scratch memory per program, whose address is the first hidden argument."""
    frames: int = 0
    """Bytes of the stack that are no sign of values that spilled: local arrays, calls."""

    def to_bytes(self, binding: str = "") -> bytes:
        """The whole as data: a line of JSON, which holds `binding`, then the image."""
        head = {
            "binding": binding,
            "entry": self.entry,
            "shared": self.shared,
            "warps": self.warps,
            "registers": self.registers,
            "stack": self.stack,
            "scratch": self.scratch,
            "frames": self.frames,
        }
        return json.dumps(head).encode() + b"\n" + self.image

    @property
    def spills(self) -> bool:
        """Whether values were moved from registers to the stack."""
        return self.stack > self.frames

    @property
    def most_registers(self) -> int:
        """What a thread can have in a program of so many warps."""
        return min(MOST_REGISTERS, ALL_REGISTERS // (32 * self.warps))

    @classmethod
    def from_bytes(cls, data: bytes) -> Cubin:
        """The inverse of `to_bytes`; raises ValueError for anything else."""
        head, newline, image = data.partition(b"\n")
        if not newline or not image.startswith(b"\x7fELF"):
            raise ValueError("not a stored cubin")
        try:
            facts = json.loads(head)
            del facts["binding"]
            return cls(image=image, **facts)
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"not a stored cubin: {error}") from error


def build_job(
    text: str, name: str, meta: Mapping[str, Any], capability: int, *, aligned: bool = True
) -> dict[str, Any]:
    """All that the cubin of the function `name` of a Triton source depends on, besides Triton:
    arguments as for `build_cubin`.
    """
    signature = meta["signature"]
    return {
        "text": text,
        "name": name,
        "capability": capability,
        "signature": signature,
        "constants": meta["constants"],
        "divisible": [
            argument
            for argument in meta.get("divisible_by_16", ())
            if aligned or not str(signature[argument]).startswith("*")
        ],
        "options": {
            "num_warps": meta["num_warps"],
            "num_stages": meta["num_stages"],
            "debug": bool(meta.get("debug")),
            # Else Triton asserts, where it may assert indices, that no sum of integers wraps.
            "sanitize_overflow": bool(meta.get("sanitize_overflow")),
            "enable_fp_fusion": meta.get("fp_fusion", True),
            "maxnreg": meta.get("registers"),
        },
        "assemblers": assemblers(),
    }


def build_cubin(
    text: str, name: str, meta: Mapping[str, Any], capability: int, *, aligned: bool = True
) -> Cubin:
    """Compile the function `name` of a Triton source for a compute capability (90 for an H100 or
    H200).

    `meta` is `program.Kernel.meta`, and "registers" in it bounds those of a thread. `aligned=False` leaves out that pointers are multiples of 16
    bytes, for launches on views. Raises OSError where Triton cannot be used here, and what Triton
    raises of a text that it refuses, or BuildFailed with its words.
    """
    job = build_job(text, name, meta, capability, aligned=aligned)
    try:
        facts, image = server(capability).compile(job)
    except ServerGone as reason:
        _LOG.warning("Triton compiles %s in this process: %s", name, reason)
        facts, image = compile_kernel(job)
    _warn_of_old(tuple(facts.pop("assembler")))
    return Cubin(image=image, **facts, **asdict(usage(image)))


@functools.cache
def _warn_of_old(assembler: tuple[int, ...]) -> None:
    """Once for each version: that an assembler is known to be wrong."""
    if () < assembler < RIGHT_SINCE:
        _LOG.warning(
            "GPU kernels are assembled by ptxas %s, which makes some of them wrong: install a newer "
            "one (pip install 'nvidia-cuda-nvcc-cu%s>=%s') or name it with %s",
            ".".join(map(str, assembler)), assembler[0], ".".join(map(str, RIGHT_SINCE)),
            CHOSEN_BY_USERS,
        )  # fmt: skip


def start_compiler(capability: int) -> None:
    """Have the process that compiles kernels import Triton now, as one will be built soon."""
    try:
        server(capability).start()
    except ServerGone as reason:
        _LOG.warning("Triton will compile in this process: %s", reason)
