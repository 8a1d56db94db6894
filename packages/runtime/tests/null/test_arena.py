"""Where small intermediates lie: which are placed, and that none lies in the way of another."""

from __future__ import annotations

import random

import pytest

from flambeau_runtime.arena import ALIGNMENT, BLOCK_BYTES, Place, _Block, find_places, pack
from flambeau_runtime.program import (
    Allocate,
    Extern,
    Free,
    Kernel,
    Launch,
    Program,
    Ref,
    Source,
    Symbol,
    Tensor,
    View,
)

KERNEL = "k"


def tensor(name, *shape, dtype="float32", device="cuda:0", offset=0):
    stride, step = [], 1
    for size in reversed(shape):
        stride.insert(0, step)
        step = f"{step}*{size}" if isinstance(size, str) or isinstance(step, str) else step * size
    return Tensor(name, shape, tuple(stride), dtype, device, offset)


def program(steps, tensors, outputs=("out",), symbols=()):
    return Program(
        inputs=("x",),
        tensors=(tensor("x", 16), *tensors),
        symbols=symbols,
        sources=(Source("triton", ""),),
        kernels=(Kernel(KERNEL, 0),),
        steps=tuple(steps),
        outputs=outputs,
    )


def launch(*names):
    return Launch(KERNEL, names, (), (1, 1, 1))


def mm(a, b, out):
    return Extern("aten.mm.out", (Ref(a), Ref(b)), out=(("out", out),))


CHAIN = (
    Allocate("a"), launch("x", "a"),
    Allocate("b"), mm("a", "x", "b"), Free("a"),
    Allocate("c"), launch("b", "c"), Free("b"),
    Allocate("out"), launch("c", "out"), Free("c"),
)  # fmt: skip


def test_a_chain_shares_two_places():
    tensors = [tensor(name, 16, 16) for name in ("a", "b", "c", "out")]
    places = find_places(program(CHAIN, tensors))
    assert places.arenas == [("cuda:0", "float32", 2048)]
    assert places.placed == {"a": Place(0, 0), "b": Place(0, 1024), "c": Place(0, 0)}
    assert places.pointers == {"c"}, "only kernels see c"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_reuse_keeps_the_place_as_recordings_expect(dtype):
    steps = (
        Allocate("a"), launch("x", "a"),
        Allocate("b", reuse="a"), launch("x", "b"),
        Allocate("c"), launch("b", "c"), Allocate("out"), launch("c", "out"),
    )  # fmt: skip
    tensors = [
        tensor("a", 16), tensor("b", 16 if dtype == "float32" else 32, dtype=dtype),
        tensor("c", 16), tensor("out", 16),
    ]  # fmt: skip
    placed = find_places(program(steps, tensors)).placed
    if dtype == "float32":
        assert placed["a"] == placed["b"] != placed["c"]
    else:
        assert placed == {"a": Place(0, 0), "c": Place(0, 0)}, "the only float16 gains nothing"


def test_views_lie_in_their_bases():
    steps = (
        Allocate("a"), launch("x", "a"), View("v", "a"), launch("v"), View("w", "v"),
        Allocate("b"), mm("w", "x", "b"), Free("a"), Free("v"), Free("w"),
        Allocate("out"), launch("b", "out"),
    )  # fmt: skip
    tensors = [
        tensor("a", 16, 16), tensor("v", 8, 16, offset=128), tensor("w", 4, 16, offset=192),
        tensor("b", 16, 16), tensor("out", 16, 16),
    ]  # fmt: skip
    places = find_places(program(steps, tensors))
    assert places.placed["v"] == Place(0, 512) and places.placed["w"] == Place(0, 768)
    assert places.placed["b"].offset >= 1024, "the view holds all of a"
    assert places.pointers == {"a", "v"}


def outputs_escape():
    steps = (Allocate("a"), launch("x", "a"), View("out", "a"), Allocate("b"), launch("x", "b"))
    return program(steps, [tensor("a", 16), tensor("out", 8), tensor("b", 16)])


def results_that_alias_escape():
    steps = (
        Allocate("a"), launch("x", "a"), Extern("aten.slice.Tensor", (Ref("a"),), outputs=("out",)),
        Allocate("b"), launch("x", "b"),
    )  # fmt: skip
    return program(steps, [tensor("a", 16), tensor("out", 16), tensor("b", 16)])


SCATTER = "aten.as_strided_scatter.default"


def offsets_that_count_from_the_storage():
    steps = (
        Allocate("a"), launch("x", "a"), Allocate("b"), launch("x", "b"),
        Extern(SCATTER, (Ref("a"), Ref("b"), [4], [1], 1), outputs=("out",)),
    )  # fmt: skip
    return program(steps, [tensor("a", 16), tensor("out", 16), tensor("b", 4)])


def other_operators_may_keep_arguments():
    steps = (
        Allocate("a"), launch("x", "a"), Extern("mine.op.default", (Ref("a"),), outputs=("out",)),
        Allocate("b"), launch("x", "b"),
    )  # fmt: skip
    return program(steps, [tensor("a", 16), tensor("out", 16), tensor("b", 16)])


def large_blocks():
    steps = (Allocate("a"), launch("x", "a"), Allocate("b"), launch("x", "b"), Free("a"))
    return program(steps, [tensor("a", BLOCK_BYTES), tensor("b", 16)], ())


def symbolic_sizes():
    steps = (Allocate("a"), launch("x", "a"), Allocate("b"), launch("x", "b"), Free("a"))
    symbols = (Symbol("s0", 0, 0),)
    return program(steps, [tensor("a", "s0"), tensor("b", 16)], (), symbols)


def tensors_of_the_cpu():
    steps = (Allocate("a"), launch("x", "a"), Allocate("b"), launch("x", "b"), Free("a"))
    return program(steps, [tensor("a", 16, device="cpu"), tensor("b", 16)], ())


@pytest.mark.parametrize(
    "make",
    [
        outputs_escape, results_that_alias_escape, offsets_that_count_from_the_storage,
        other_operators_may_keep_arguments,
        large_blocks, symbolic_sizes, tensors_of_the_cpu,
    ],
)  # fmt: skip
def test_what_is_not_placed(make):
    places = find_places(make())
    assert not places.placed and not places.arenas


VIEW_OF_INPUT = (View("v", "x"), Allocate("out"), launch("v", "out"))


def test_a_view_of_an_input_is_an_address():
    tensors = [tensor("v", 8, offset=4), tensor("out", 8)]
    assert find_places(program(VIEW_OF_INPUT, tensors)).pointers == {"v"}
    freed = (VIEW_OF_INPUT[0], Free("x"), *VIEW_OF_INPUT[1:])
    assert find_places(program(freed, tensors)).pointers == set(), "it holds the freed input"
    needed = (*VIEW_OF_INPUT, View("w", "v"), mm("w", "w", "out"))
    tensors.append(tensor("w", 2, 2))
    assert find_places(program(needed, tensors)).pointers == set(), "its view is a tensor"


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_live_at_the_same_time_lie_apart(seed):
    rng = random.Random(seed)
    blocks = []
    for _ in range(rng.randrange(1, 60)):
        start = rng.randrange(100)
        size = rng.choice([4, 100, 256, 1000, 4096])
        blocks.append(
            _Block(fixed=True, start=start, last_use=start + rng.randrange(30), size=size)
        )
    whole = pack(blocks)
    for at, block in enumerate(blocks):
        assert block.offset % ALIGNMENT == 0 and block.offset + block.size <= whole
        for other in blocks[:at]:
            apart_in_time = block.last_use < other.start or other.last_use < block.start
            assert (
                apart_in_time
                or block.offset + block.size <= other.offset
                or other.offset + other.size <= block.offset
            )
    alive = [
        sum(block.size for block in blocks if block.start <= step <= block.last_use)
        for step in range(130)
    ]
    assert whole <= 2 * max(alive) + ALIGNMENT * len(blocks)
