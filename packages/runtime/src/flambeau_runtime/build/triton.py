"""Triton source -> cubin, through Triton's own compiler with an explicit target; no GPU is needed.

    @triton.jit def cuda_add_0(b0, b1, XBLOCK: tl.constexpr): ...
    -> Cubin(image=b"\x7fELF...", entry="cuda_add_0", shared=0, warps=4, registers=18, stack=0)

Relies on Triton >= 3.4 being installed beside a CUDA build of torch. The environment of Triton's
own cache is not used: what is built here is kept in Flambeau's cache.
"""

from __future__ import annotations

import json
import linecache
import types
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from flambeau_runtime.build.cubin_usage import usage
from flambeau_runtime.cache import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCAL_ARRAYS = 64
"""Bytes of a thread's stack that are no sign of values that spilled."""


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
        }
        return json.dumps(head).encode() + b"\n" + self.image

    @property
    def spills(self) -> bool:
        """Whether values were moved from registers to the stack: it holds more than what functions
        of the math library keep in arrays there (the reduction of large angles: 40 bytes).
        """
        return self.stack > LOCAL_ARRAYS

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


def build_cubin(text: str, name: str, meta: Mapping[str, Any], capability: int, *, aligned: bool = True) -> Cubin:
    """Compile the function `name` of a Triton source for a compute capability (90 for an H100 or
    H200).

    `meta` is `program.Kernel.meta`. `aligned=False` leaves out that pointers are multiples of 16
    bytes, for launches on views.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = _load(text, name)
    signature = dict(meta["signature"]) | dict.fromkeys(meta["constants"], "constexpr")
    names = list(signature)
    divisible = [
        argument
        for argument in meta.get("divisible_by_16", ())
        if aligned or not str(signature[argument]).startswith("*")
    ]
    source = ASTSource(
        fn=function,
        signature=signature,
        constexprs={(names.index(key),): value for key, value in meta["constants"].items()},
        attrs={(names.index(key),): [["tt.divisibility", 16]] for key in divisible},
    )
    options = {
        "num_warps": meta["num_warps"],
        "num_stages": meta["num_stages"],
        "debug": bool(meta.get("debug")),
        "enable_fp_fusion": meta.get("fp_fusion", True),
    }
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    facts = compiled.metadata
    return Cubin(
        image=compiled.asm["cubin"],
        entry=facts.name,
        shared=facts.shared,
        warps=facts.num_warps,
        **asdict(usage(compiled.asm["cubin"])),
        scratch=getattr(facts, "global_scratch_size", 0) or 0,
    )


def _load(text: str, name: str) -> Any:
    """The JITFunction `name`, from text alone: Triton reads a function's source through linecache.
    """
    # The file's name tells texts apart: other threads may be loading kernels of the same name.
    module = types.ModuleType(f"flambeau_generated_{name}_{key_of(text)[:16]}")
    filename = f"<{module.__name__}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), module.__dict__)
    return module.__dict__[name]
