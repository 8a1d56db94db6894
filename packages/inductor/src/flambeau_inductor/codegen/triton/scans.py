"""Scans and sorts of a tile's rows.

    v1 = tl.associative_scan(v0, 1, scan_sum)                   the whole row in the lanes

    v1_carry = tl.full([XBLOCK, 1], 0, tl.float32)              a loop over the row
    for start in range(0, ...):
        v1_all = scan_sum(v1_carry, tl.associative_scan(v0, 1, scan_sum))
        v1_carry = the last lane of v1_all

A sort packs an integer that orders as the value does with the lane's number, so that no two keys
are equal, and gathers the values by the lanes that come out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from flambeau_inductor.ir import Scan, Sort

HELPERS = {
    "scan_sum": """
@triton.jit
def scan_sum(a, b):
    return a + b
""",
    "scan_prod": """
@triton.jit
def scan_prod(a, b):
    return a * b
""",
    "scan_max": """
@triton.jit
def scan_max(a, b):
    return tl.where((b >= a) | (b != b), b, a)
""",
    "scan_min": """
@triton.jit
def scan_min(a, b):
    return tl.where((b <= a) | (b != b), b, a)
""",
    "scan_logaddexp": """
@triton.jit
def scan_logaddexp(a, b):
    high = tl.where((a > b) | (a != a), a, b)
    low = tl.where((a > b) | (a != a), b, a)
    both = high + libdevice.log1p(tl.exp(low - high))
    return tl.where((a == b) & (tl.abs(a) == float("inf")), a, both)
""",
    "float_key": """
@triton.jit
def float_key(x):
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x != x, 0x7fffffff, tl.where(bits < 0, bits ^ 0x7fffffff, bits))
""",
    "first_lanes": """
@triton.jit
def first_lanes(keys, COUNT: tl.constexpr, LANES: tl.constexpr):
    lanes = tl.broadcast_to(tl.arange(0, keys.shape[1])[None, :], keys.shape)
    places = tl.arange(0, LANES)[None, :]
    order = tl.zeros([keys.shape[0], LANES], tl.int32)
    for number in tl.static_range(COUNT):
        least = tl.min(keys, 1)[:, None]
        lane = tl.min(tl.where(keys == least, lanes, 0x7fffffff), 1)[:, None]
        order = tl.where(places == number, lane, order)
        taken = lanes == lane
        keys = tl.where(taken, 0x7fffffff, keys)
        lanes = tl.where(taken, 0x7fffffff, lanes)
    return order
""",
}
"""How two neighbours combine; the order of floats as integers: NaN last, zeros equal; the lanes of
the first keys of each row, of equal ones the first lane.
"""

SHORT_DTYPES = frozenset({
    torch.bfloat16, torch.int16, torch.int8, torch.uint8, torch.bool,
})  # fmt: skip
"""What fits beside a position into 32 bits; other sorted values fit into 64 bits."""


class Tiles(Protocol):
    """The kernel that is written."""

    lanes_fit: bool
    carried: bool
    sorted_lanes: tuple[int, int] | None

    def line(self, text: str) -> None: ...
    def helper(self, name: str) -> str: ...
    def start_of(self, scan: Scan) -> str: ...


def scan_tile(tiles: Tiles, scan: Scan, value: str, dtype: torch.dtype) -> str:
    """A Scan's tile [XBLOCK, RBLOCK]; in a loop over the row, behind the carry."""
    rule = tiles.helper(f"scan_{scan.kind}")
    full = f"tl.broadcast_to({value}, [XBLOCK, RBLOCK])"
    narrow = not dtype.is_floating_point and dtype.itemsize < 4
    if narrow:
        full = f"{full}.to(tl.int32)"
    if scan.reverse and not tiles.lanes_fit:
        full = f"tl.where(rmask, {full}, {tiles.start_of(scan)})"
    text = f"tl.associative_scan({full}, 1, {rule}{', reverse=True' if scan.reverse else ''})"
    if tiles.carried:
        name = scan.name
        tiles.line(f"{name}_all = {rule}(tl.broadcast_to({name}_carry, [XBLOCK, RBLOCK]), {text})")
        last = "0" if scan.reverse else "RBLOCK - 1"
        at_last = f"tl.arange(0, RBLOCK)[None, :] == {last}"
        tiles.line(f"{name}_carry = tl.sum(tl.where({at_last}, {name}_all, 0), 1)[:, None]")
        text = f"{name}_all"
    if dtype is torch.bool:
        return f"({text} != 0)"
    return f"{text}.to(tl.{str(dtype).removeprefix('torch.')})" if narrow else text


def sort_order(tiles: Tiles, sort: Sort, value: str, dtype: torch.dtype) -> str:
    """The lanes in the order of their values, as an int32 tile."""
    full = f"tl.broadcast_to({value}, [XBLOCK, RBLOCK])"
    key = f"{full}.to(tl.int32)"
    if dtype.is_floating_point:
        key = f"{tiles.helper('float_key')}({full}.to(tl.float32))"
    bits = 16 if dtype in SHORT_DTYPES else 32
    if dtype is torch.bfloat16:
        key = f"({key} >> 16)"  # the lower half of its bits is 0 as a float32
    if sort.descending:
        key = f"~{key}"
    name = f"{sort.name}_order"
    if tiles.sorted_lanes is not None:
        key = key if tiles.lanes_fit else f"tl.where(rmask, {key}, {2**31 - 1})"
        tiles.line(f"{name}_keys = {key}")
        count, lanes = tiles.sorted_lanes
        tiles.line(f"{name} = {tiles.helper('first_lanes')}({name}_keys, {count}, {lanes})")
        return name
    if not tiles.lanes_fit:
        key = f"tl.where(rmask, {key}, {2 ** (bits - 1) - 1})"
    lane = "tl.broadcast_to(tl.arange(0, RBLOCK)[None, :], [XBLOCK, RBLOCK])"
    kind = f"tl.int{2 * bits}"
    tiles.line(f"{name}_keys = (({key}).to({kind}) << {bits}) | {lane}.to({kind})")
    tiles.line(f"{name} = (tl.sort({name}_keys, 1) & {2 ** (bits - 1) - 1}).to(tl.int32)")
    return name


def sorted_tile(sort: Sort, value: str, order: str, dtype: torch.dtype) -> str:
    """A Sort's tile, given the order of its lanes."""
    if sort.kind == "positions":
        return f"{order}.to(tl.int64)"
    full = f"tl.broadcast_to({value}, [XBLOCK, RBLOCK])"
    if dtype is torch.bool:
        return f"(tl.gather({full}.to(tl.int32), {order}, 1) != 0)"
    return f"tl.gather({full}, {order}, 1)"
