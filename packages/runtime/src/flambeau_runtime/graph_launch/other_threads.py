"""Which other threads of the program may use the GPU at this moment.

A capture cannot share two things with them: the default generator, from which they would draw into
the captured graph, and the workspaces of cuBLAS, which they may be about to write to.

The main thread waits for the threads of a backward. Threads that only keep house are known by where
their code is from. What C++ has started is not in Python's list, or there as a stand-in
(`_DummyThread`), like the threads of the autograd engine, which run nothing between backwards.
"""

from __future__ import annotations

import threading

import torch

HOUSEKEEPING = (
    "torch.utils.data", "multiprocessing", "logging", "tqdm", "IPython", "ipykernel", "zmq",
    "tornado", "debugpy", "_pydevd_bundle", "tensorboard", "wandb",
)  # fmt: skip
"""Packages whose own threads pin or send memory, write logs, or watch: none draws or multiplies."""


def others_on_the_gpu() -> list[threading.Thread]:
    """The threads beside this one that may use the GPU."""
    idle = {threading.current_thread()}
    if torch._C._current_graph_task_id() != -1:
        idle.add(threading.main_thread())
    return [each for each in threading.enumerate() if each not in idle and not _keeps_house(each)]


def _keeps_house(thread: threading.Thread) -> bool:
    if isinstance(thread, threading._DummyThread):
        return True
    if not thread.daemon:
        return False
    code = getattr(thread, "_target", None) or type(thread)
    module = getattr(code, "__module__", None) or ""
    return any(module == name or module.startswith(f"{name}.") for name in HOUSEKEEPING)
