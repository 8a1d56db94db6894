"""The process that runs Triton's compiler, from the side of the process that it serves.

    with connection():  job -> facts and cubin

Python threads that compile take turns, since Triton's front end is Python code; processes do not.
One server imports Triton, which takes as long as a kernel does, and forks a child for each kernel.
`start` has it import Triton while a graph is still traced.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from flambeau_runtime.build.assemblers import assemblers

SCRIPT = Path(__file__).with_name("triton_compiler.py")
UNWANTED = ("TRITON_INTERPRET",)
"""Variables for other uses of Triton in the process: with this one kernels are not compiled."""


class ServerGone(Exception):
    """The server cannot be started, or ended before it answered."""


class BuildFailed(RuntimeError):
    """Triton refused a kernel; the text is its error."""


class Server:
    """The process of one compute capability, started when it is first asked for."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, if it does not run; ServerGone if that cannot be."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self._close()
            if not sys.executable:
                raise ServerGone("Python's executable is not known")
            usable = json.dumps(assemblers())
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", str(SCRIPT), str(self.capability), usable],
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        env=_surroundings(),
                        process_group=0,
                    )
                except OSError as error:
                    ours.close()
                    raise ServerGone(f"no process can be started: {error}") from error
            self._control = ours

    def compile(self, job: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """What `triton_compiler.compile_kernel` returns, computed in a process. Raises ServerGone,
        OSError where Triton cannot be used, BuildFailed.
        """
        self.start()
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._lock:
                if self._control is None:
                    raise ServerGone("the process was ended")
                try:
                    socket.send_fds(self._control, [b"k"], [theirs.fileno()])
                except OSError as error:
                    raise ServerGone(f"the process ended: {error}") from error
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                ours.sendall(json.dumps(job).encode())
                ours.shutdown(socket.SHUT_WR)
            reply = _read(ours)
        head, newline, image = reply.partition(b"\n")
        if not newline:
            raise ServerGone("the process ended while it compiled a kernel")
        facts: dict[str, Any] = json.loads(head)
        if "unusable" in facts:
            raise OSError(facts["unusable"])
        if "error" in facts:
            raise BuildFailed(facts["error"])
        return facts, image

    def forget(self) -> None:
        """In a forked child: the process is the parent's."""
        self._lock = threading.Lock()
        if self._process is not None:
            self._process.returncode = 0  # its destructor has nothing to wait for
        self._close()

    def _close(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = self._process = None


def _read(connection: socket.socket) -> bytes:
    """All that comes until the other side ends; nothing if it is broken off."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        return b""
    return b"".join(parts)


def _surroundings() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


_SERVERS: dict[int, Server] = {}


def server(capability: int) -> Server:
    """The server for a compute capability."""
    return _SERVERS.get(capability) or _SERVERS.setdefault(capability, Server(capability))


def _in_child() -> None:
    for each in _SERVERS.values():
        each.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
