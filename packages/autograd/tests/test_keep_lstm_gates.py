"""keep_lstm_gates: which layers of LSTMs give way, together with their backwards, to recurrences
and products, and to what.
"""

from __future__ import annotations

import pytest
import torch
from recording import GraphLog, clones, compile_program

from flambeau_prims.lstm import lstm_gate_gradients, lstm_training_recurrence

aten = torch.ops.aten
LAYER, BACKWARD = aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default
OURS = {lstm_training_recurrence, lstm_gate_gradients}


def layer(x, wi, w, b, b2, h, c):
    return torch.lstm(x, (h, c), (wi, w, b, b2), True, 1, 0.0, True, False, False)


def returning_workspace(x, wi, w, b, b2, h, c):
    out, hy, cy, workspace = LAYER(
        x, wi, w, b, b2, h[0], c[0], False, [], 2, 5, 1, True, False, False, True
    )
    return out, hy, cy, workspace


PROGRAMS = [layer, returning_workspace]


def inputs(dtype=torch.float32):
    shapes = [(4, 3, 6), (20, 6), (20, 5), (20,), (20,), (1, 3, 5), (1, 3, 5)]
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def run(program, tensors):
    results = program(*tensors)
    sum(each.sum() for each in results if each.requires_grad).backward()
    return [*(each for each in results if each.requires_grad), *(each.grad for each in tensors)]


def calls(log):
    """Of these operators, the ones that the graphs call."""
    nodes = [node for graph in log.graphs.values() for node in graph.nodes]
    return {node.op for node in nodes} & {LAYER, BACKWARD, *OURS}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("options", [{}, {"numerics": "strict"}, {"decompose": False}], ids=str)
def test_forward_and_backward_give_way_together(program, options):
    tensors, log = inputs(), GraphLog()
    compiled = compile_program(program, tensors, log, **options)
    found, want = run(compiled, clones(tensors)), run(program, clones(tensors))
    for ours, theirs in zip(found, want, strict=True):
        torch.testing.assert_close(ours, theirs)
    gives_way = not options and program is layer
    assert calls(log) == (OURS if gives_way else {LAYER, BACKWARD})


def test_a_layer_that_the_backward_repeats_in_part():
    tensors = inputs()
    compiled = compile_program(layer, tensors, activation_memory_budget=0.1)
    for ours, theirs in zip(
        run(compiled, clones(tensors)), run(layer, clones(tensors)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_other_dtypes_keep_the_library():
    tensors, log = inputs(torch.bfloat16), GraphLog()
    found = run(compile_program(layer, tensors, log), clones(tensors))
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert calls(log) == set(), "the library has no bfloat16 on this processor"
        return
    assert calls(log) == {LAYER, BACKWARD}
    for ours, theirs in zip(found, run(layer, clones(tensors)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_forward_without_a_backward_keeps_no_gates():
    tensors, log = inputs(), GraphLog()
    with torch.no_grad():
        compile_program(layer, tensors, log)(*tensors)
    assert calls(log) == {LAYER}


def test_gradients_that_nobody_reads_are_not_computed():
    tensors, log = inputs(), GraphLog()
    for frozen in (1, 2):
        tensors[frozen].requires_grad_(False)
    run(compile_program(layer, tensors, log), clones(tensors))
    products = [node for node in log.graphs["backward"].nodes if node.op is aten.mm.default]
    assert len(products) == 2  # for the gradients of x and h
