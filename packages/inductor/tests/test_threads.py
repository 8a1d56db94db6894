"""Compiles share nothing: many threads at once get what one thread gets."""

from __future__ import annotations

import threading

import torch
from test_random_graphs import RandomDynamicGraph, RandomGraph

from flambeau_inductor import compile_graph
from flambeau_inductor.codegen.reference import ReferenceBackend

SEEDS = range(8)


def programs(kind):
    return [compile_graph(kind(seed).graph, backends={"cpu": ReferenceBackend()}) for seed in SEEDS]


def test_compiles_in_threads_equal_those_of_one_thread():
    torch.manual_seed(0)
    kinds = (RandomGraph, RandomDynamicGraph)
    want = {kind: programs(kind) for kind in kinds}
    wrong: list[str] = []

    def work(kind):
        try:
            if programs(kind) != want[kind]:
                wrong.append(f"{kind.__name__} differs")
        except Exception as error:  # to be seen in the main thread
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(kind,)) for kind in kinds for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
