"""Start collectives early and wait for them late, so that they run beside kernels and calls.

    buf1 = extern mm(...)                      buf2 = extern all_reduce(buf0)
    buf2 = extern all_reduce(buf0)             buf1 = extern mm(...)
    buf3 = extern wait_tensor(buf2)       ->   launch exp(buf1, buf4)
    launch exp(buf1, buf4)                     buf3 = extern wait_tensor(buf2)
    launch add(buf3, buf4, buf5)               launch add(buf3, buf4, buf5)

A wait moves down to the first group that needs it, a start up to the last that it needs.
Collectives start in the order of the program, in each process: sizes, which may differ between
processes, decide only how far a start moves. A start passes no wait: one result is on its way while
another is used.

What a collective reads and makes is alive until the wait. If all moves raise the peak of memory too
far, half of them are tried, and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.scheduler.groups import awaited
from flambeau_inductor.scheduler.memory import bytes_of
from flambeau_inductor.scheduler.order import PeakMemory, groups_behind

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_inductor.nodes import Lowered
    from flambeau_inductor.scheduler.groups import Group

LEAST_RISE, RISE = 1 << 26, 1 / 10
"""By how many bytes, or by what share, that may raise the peak of memory, inputs included."""


def overlap_collectives(
    lowered: Lowered, groups: list[Group], needs: list[set[int]], spends_inputs: bool = False
) -> list[Group]:
    """The groups in an order that respects `needs`: for each node, those that come before it."""
    waits = [number for number, group in enumerate(groups) if awaited(group)]
    if not waits:
        return groups
    started = {awaited(groups[number]) for number in waits}
    starts = [
        number
        for number, group in enumerate(groups)
        if number not in waits and group.is_extern and group.nodes[0].writes & started
    ]
    memory = PeakMemory(lowered, groups, spends_inputs)
    limit = _most_bytes(lowered, memory.peak(range(len(groups))))

    def fits(order: list[int]) -> bool:
        return memory.peak(order) <= limit

    behind = groups_behind(lowered, groups, needs)
    stops = {*waits, *starts}

    def down(order: list[int], wait: int) -> list[int]:
        place = order.index(wait)
        users = (at for at in range(place + 1, len(order)) if order[at] in behind[wait])
        end = next(users, len(order))
        return [*order[:place], *order[place + 1 : end], wait, *order[end:]]

    def up(order: list[int], start: int) -> list[int]:
        place = order.index(start)
        before = (
            at for at in range(place)[::-1] if order[at] in stops or start in behind[order[at]]
        )
        begin = next(before, -1) + 1
        return [*order[:begin], start, *order[begin:place], *order[place + 1 :]]

    # Waits from the last on: one may wait for what another gives.
    order = _moved(list(range(len(groups))), waits[::-1], down, fits)
    return [groups[number] for number in _moved(order, starts, up, fits)]


def _most_bytes(lowered: Lowered, peak: int) -> int:
    """How high the peak of memory may be; `peak` leaves inputs out."""
    inputs = [name for name, buffer in lowered.buffers.items() if buffer.role == "input"]
    whole = peak + sum(bytes_of(lowered, name) for name in inputs)
    return peak + max(LEAST_RISE, int(RISE * whole))


def _moved(
    order: list[int],
    moved: list[int],
    move: Callable[[list[int], int], list[int]],
    fits: Callable[[list[int]], bool],
) -> list[int]:
    """The order after the moves of as many of the groups `moved` as fit."""
    result = order
    for number in moved:
        result = move(result, number)
    if result == order or fits(result):
        return result
    if len(moved) == 1:
        return order
    half = len(moved) // 2
    return _moved(_moved(order, moved[:half], move, fits), moved[half:], move, fits)
