"""`id`, default hashes and default texts of objects that a frame makes, on both sides of a graph
break.
"""

from __future__ import annotations

import pytest
import torch
from capture_harness import run_graph

import flambeau_capture


class Plain:
    pass


def id_of_an_object(x):
    made = Plain()
    before = id(made)
    torch._dynamo.graph_break()
    return x + 1, before == id(made)


def id_of_a_list(x):
    made = [1]
    before = id(made)
    torch._dynamo.graph_break()
    return x + 1, before == id(made)


def id_as_a_key(x):
    made = Plain()
    table = {id(made): made}
    torch._dynamo.graph_break()
    return x + 1, table[id(made)] is made


def hash_of_an_object(x):
    made = Plain()
    before = hash(made)
    torch._dynamo.graph_break()
    return x + 1, before == hash(made)


def text_of_an_object(x):
    made = Plain()
    before = repr(made), f"{made}", str([made])
    torch._dynamo.graph_break()
    return x + 1, before == (repr(made), f"{made}", str([made]))


def text_of_a_function(x):
    def made():
        pass

    before = repr(made)
    torch._dynamo.graph_break()
    return x + 1, before == repr(made)


def id_kept_in_the_object(x):
    made = Plain()
    made.id = id(made)
    return made


PROGRAMS = [
    id_of_an_object,
    id_of_a_list,
    id_as_a_key,
    hash_of_an_object,
    text_of_an_object,
    text_of_a_function,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
def test_same_as_eager(program):
    x = torch.ones(3)
    compiled = flambeau_capture.compile(program, backend=run_graph)
    for _ in range(2):
        assert repr(compiled(x)) == repr(program(x))


def test_an_object_that_knows_its_id_is_handed_out():
    made = flambeau_capture.compile(id_kept_in_the_object, backend=run_graph)(torch.ones(3))
    assert made.id == id(made)


def test_ids_within_the_frame_are_one_graph():
    def counts(x):
        made = Plain()
        return x + len({id(item) for item in (made, made, Plain)})

    options = flambeau_capture.CaptureOptions(fullgraph=True)
    compiled = flambeau_capture.compile(counts, backend=run_graph, options=options)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 3.0))


class Numbered:
    def __repr__(self):
        return f"number {id(self)}"


@pytest.mark.parametrize("read", [id, hash, repr, lambda item: f"{object.__repr__(item)}"])
def test_addresses_of_given_objects_are_guarded(read):
    compiled = flambeau_capture.compile(lambda x, item: (x + 1, read(item)), backend=run_graph)
    for item in [Numbered(), Numbered(), Numbered()]:
        assert compiled(torch.ones(3), item)[1] == read(item)


def test_orders_by_address_are_guarded():
    compiled = flambeau_capture.compile(
        lambda x, items: (x + 1, sorted(items, key=id)), backend=run_graph
    )
    items = [Numbered(), Numbered(), [0], [1], torch.ones(1)]
    for _ in items:
        items.append(items.pop(0))
        found = compiled(torch.ones(3), items)[1]
        assert list(map(id, found)) == sorted(map(id, items))
