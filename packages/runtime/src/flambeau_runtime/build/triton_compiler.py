"""The calls of Triton's compiler, and the process that makes them: one server, a child for each
kernel.

    control socket: a byte and a connection    -> a child is forked for the connection
    connection:     a job as JSON, its end     -> a line of JSON, the cubin

`triton_server.py` starts this file by its path, so the server imports Triton and nothing of torch.
Python's lock and Triton's own caches are then shared by no two kernels. The server ends with the
control socket, that is with the process that it works for.

It is imported as a module, too, where kernels are compiled in this process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import linecache
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from typing import Any

IDLE = 120.0
"""Seconds after which the server ends if nothing was asked of it."""


CALLED: set[str] = set()
"""Assemblers that this process has chosen for Triton, in a variable that users set, too."""


def compile_kernel(job: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Facts of a kernel (`entry`, `shared`, `warps`, `scratch`, `frames`, `assembler`: the version
    that was called) and its cubin.
    """
    assembler = _call_the_newest(**job["assemblers"])
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = job["signature"] | dict.fromkeys(job["constants"], "constexpr")
    names = list(signature)
    source = ASTSource(
        fn=_load(job["text"], job["name"]),
        signature=signature,
        constexprs={(names.index(key),): value for key, value in job["constants"].items()},
        attrs={(names.index(key),): [["tt.divisibility", 16]] for key in job["divisible"]},
    )
    target = GPUTarget("cuda", job["capability"], 32)
    compiled = triton.compile(source, target=target, options=job["options"])
    facts = compiled.metadata
    return {
        "entry": facts.name,
        "shared": facts.shared,
        "warps": facts.num_warps,
        "scratch": getattr(facts, "global_scratch_size", 0) or 0,
        "frames": _frames(compiled.asm.get("ptx", "")),
        "assembler": assembler,
    }, compiled.asm["cubin"]


_LOCAL_ARRAY = re.compile(r"^\s*\.local\s.*__local_depot\d+\[(\d+)\];", re.MULTILINE)


def _frames(ptx: str) -> int:
    """The bytes of a thread's stack that the text of a kernel asks for: local arrays, as the math
    library has them where it reduces large angles, and what functions that are called may save.
    """
    arrays = sum(-(-int(size) // 8) * 8 for size in _LOCAL_ARRAY.findall(ptx))
    return arrays + 16 * len(re.findall(r"^\s*\.func\b", ptx, re.MULTILINE))


def _call_the_newest(paths: list[str], major: int, **_: Any) -> tuple[int, ...]:
    """Have Triton call the newest of these assemblers whose machine code a driver of this version
    of CUDA loads; its version, () if none is named.
    """
    if not paths:
        return ()
    usable = [path for path in paths[1:] if () < _version(path) < (major + 1,)]
    newest = max([paths[0], *usable], key=_version)
    if len(paths) > 1:
        CALLED.add(newest)
    os.environ["TRITON_PTXAS_PATH"] = newest
    return _version(newest)


@functools.cache
def _version(assembler: str) -> tuple[int, ...]:
    """What an assembler says of itself: (12, 8, 93); () if it does not run."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(
            [assembler, "--version"], capture_output=True, text=True, check=True, timeout=10
        ).stdout
        if found := re.search(r"V(\d+(?:\.\d+)*)", said):
            return tuple(int(part) for part in found[1].split("."))
    return ()


def _load(text: str, name: str) -> Any:
    """The JITFunction `name`, from text alone: Triton reads a function's source through linecache.
    """
    # The file's name tells texts apart: other threads may be loading kernels of the same name.
    module = types.ModuleType(f"flambeau_generated_{name}_{hash(text):x}")
    filename = f"<{module.__name__}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), module.__dict__)
    return module.__dict__[name]


# ---------------------------------------------------------------- the server


def serve(control: socket.socket, capability: int, assemblers: dict[str, Any]) -> None:
    """Fork a child for each connection that comes; return when none comes any more."""
    _call_the_newest(**assemblers)
    _prepare(capability)
    if not select.select([control], [], [], 0)[0]:
        _practise(capability, assemblers)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the system
    while select.select([control], [], [], IDLE)[0]:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            if os.fork() == 0:
                control.close()
                _answer(connection)
                os._exit(0)


def _prepare(capability: int) -> None:
    """Import what every kernel needs, before children are forked."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compiler
    from triton.runtime import cache

    compiler.make_backend(GPUTarget("cuda", capability, 32)).hash()  # asks ptxas for its version
    # The key of Triton's own cache, which holds nothing here, is a hash over all of its files.
    for module in (cache, compiler):
        if hasattr(module, "triton_key"):
            module.triton_key = str


_SMALLEST = """
import triton
import triton.language as tl


@triton.jit
def smallest(source, target, XBLOCK: tl.constexpr):
    places = tl.arange(0, XBLOCK)
    tl.store(target + places, tl.load(source + places) + 1)
"""


def _practise(capability: int, assemblers: dict[str, Any]) -> None:
    """Compile a kernel that nobody wants: what Triton and LLVM set up at their first one, children
    then share. It takes them half of the time of a small kernel.
    """
    job = {
        "text": _SMALLEST,
        "name": "smallest",
        "capability": capability,
        "signature": {"source": "*fp32", "target": "*fp32"},
        "constants": {"XBLOCK": 128},
        "divisible": ["source", "target"],
        "options": {"num_warps": 1, "num_stages": 1},
        "assemblers": assemblers,
    }
    with contextlib.suppress(Exception):  # whatever is wrong, the first kernel's answer says it
        _compile_apart(job)


def _compile_apart(job: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """`compile_kernel`, with a cache of Triton's that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="flambeau-triton-") as folder:
        # The PTX is read, which Triton keeps unless the user's environment says otherwise.
        os.environ |= {"TRITON_CACHE_DIR": folder, "TRITON_STORE_BINARY_ONLY": "0"}
        return compile_kernel(job)


def _answer(connection: socket.socket) -> None:
    """Compile the job that a connection brings."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ptxas is waited for
    with connection.makefile("rwb") as stream:
        image = b""
        try:
            reply, image = _compile_apart(json.loads(stream.read()))
        except OSError as error:
            reply = {"unusable": str(error)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(BrokenPipeError):
            stream.write(json.dumps(reply).encode() + b"\n" + image)
            stream.flush()


def main() -> None:
    """Serve the control socket that is the standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the process it works for
    with socket.socket(fileno=os.dup(0)) as control, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # for ptxas
        serve(control, int(sys.argv[1]), json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
