"""When calls are launched plainly, timed, recorded and replayed: the policy with a fake GPU."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from policy_rig import PLAIN, REPLAYED, SECOND, FakeRecorder, Rig, X, warmed

from flambeau_runtime.graph_launch import device as device_module
from flambeau_runtime.graph_launch import policy as policy_module
from flambeau_runtime.graph_launch.device import LARGE, Gpu
from flambeau_runtime.graph_launch.handover import Handover
from flambeau_runtime.graph_launch.policy import (
    COPIED_BYTES,
    COPY_RATE,
    COPY_SHARE,
    FREE_RECORDINGS,
    GAIN,
    GAP,
    GIVEN_BACK,
    HITS_PER_RECORDING,
    KEPT_SITUATIONS,
    MAX_RECORDINGS,
    MEMORY_SHARE,
    MISSES,
    MOVED,
    MOVES,
    TIMED_CALL,
)
from flambeau_runtime.graph_launch.record import CannotRecord, NoRoom


def test_a_program_limited_by_the_host_is_recorded_once() -> None:
    rig = Rig()
    assert rig.calls(TIMED_CALL + 5, X) == [PLAIN] * TIMED_CALL + [REPLAYED] * 5
    assert rig.gpu.timed_calls == len(rig.recorder.asked) == 1
    assert rig.policy.describe() == "launched as one CUDA graph (1 recorded)"


def test_always_records_the_second_call() -> None:
    rig = Rig(always=True)
    rig.gpu.device = 100 * SECOND
    assert rig.calls(3, X) == [PLAIN, REPLAYED, REPLAYED]


def test_a_program_limited_by_the_device_stays_plain() -> None:
    rig = Rig()
    rig.gpu.device = 3 * SECOND
    assert set(rig.calls(10, X)) == {PLAIN}
    assert rig.launcher.gave_up
    assert not rig.recorder.asked
    assert "the device is the limit (3000.00 ms, the host 1000.00 ms)" in rig.policy.describe()


def test_gaps_between_many_short_kernels_count() -> None:
    launches = 1000
    rig = Rig(launches=launches)
    rig.gpu.host = 0.1 * SECOND * GAP * launches
    rig.gpu.device = 0.9 * GAP * launches / GAIN  # far longer than the host needed
    assert rig.calls(TIMED_CALL + 1, X) == [PLAIN] * TIMED_CALL + [REPLAYED]
    longer = Rig(launches=launches)
    longer.gpu.host = rig.gpu.host
    longer.gpu.device = 1.1 * GAP * launches / GAIN
    assert set(longer.calls(10, X)) == {PLAIN}


def test_a_recording_leaves_memory_to_the_caller() -> None:
    rig = warmed(FakeRecorder(held=100))
    rig.gpu.available = int(100 / MEMORY_SHARE) - 1
    assert set(rig.calls(5, X)) == {PLAIN}
    assert rig.policy.describe().endswith("would hold 100 of the 199 bytes available")
    large = warmed(FakeRecorder(held=100))
    large.gpu.available = int(100 / MEMORY_SHARE)
    assert large(X) == REPLAYED
    asked_for = warmed(FakeRecorder(held=100), always=True)
    assert asked_for(X) == REPLAYED


def test_unused_memory_is_given_back_before_a_recording() -> None:
    rig = warmed(FakeRecorder(held=100), always=True)
    assert rig.gpu.needed == []
    assert rig(X) == REPLAYED and rig.gpu.needed == [100]
    rig.calls(3, X)
    assert rig.gpu.needed == [100]


def test_workspaces_are_given_back_after_the_first_calls() -> None:
    rig = Rig(FakeRecorder(calls_blas=True))
    rig.gpu.device = None
    rig.calls(TIMED_CALL + 20, X)
    assert rig.gpu.given_back == GIVEN_BACK
    other = Rig(FakeRecorder())
    other.calls(3, X)
    assert other.gpu.given_back == 0


@pytest.mark.parametrize(("kept", "needed", "given_back"), [
    (3 * LARGE, 2 * LARGE, True), (LARGE, 2 * LARGE, False), (LARGE, LARGE // 2, False),
])  # fmt: skip
def test_how_much_is_given_back(
    monkeypatch: pytest.MonkeyPatch, kept: int, needed: int, given_back: bool
) -> None:
    calls = []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: kept + 5)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 5)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(1))
    monkeypatch.setattr(device_module, "others_on_the_gpu", list)
    gpu = Gpu(SimpleNamespace(), 0)  # type: ignore[arg-type]
    gpu.free_unused(needed)
    assert bool(calls) == given_back
    monkeypatch.setattr(device_module, "others_on_the_gpu", lambda: [None])
    gpu.free_unused(needed)
    assert len(calls) == given_back


def test_the_time_is_waited_for() -> None:
    rig = Rig()
    rig.gpu.device = None
    assert set(rig.calls(TIMED_CALL + 3, X)) == {PLAIN}
    timing: Any = next(iter(rig.policy.situations.values())).timing
    timing.seconds = 0.0
    assert rig(X) == REPLAYED


def test_other_settings_of_libraries_are_another_situation() -> None:
    rig = Rig()
    rig.calls(TIMED_CALL, X)
    assert rig(X) == REPLAYED
    rig.gpu.settings = ("high",)
    assert set(rig.calls(TIMED_CALL, X)) == {PLAIN}
    assert (rig(X), len(rig.recorder.asked)) == (REPLAYED, 2)


def test_settings_that_torch_does_not_tell_are_launched_plainly() -> None:
    rig = Rig(always=True)
    rig.gpu.settings = None
    assert set(rig.calls(TIMED_CALL + 3, X)) == {PLAIN}
    assert not rig.recorder.asked


@pytest.mark.skipif(
    not hasattr(torch._C, "_get_fp32_precision_getter"), reason="this torch has no such setting"
)
@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_the_new_names_of_precisions_are_settings(kind: str) -> None:
    gpu = Gpu(SimpleNamespace(), 0, calls_libraries=True)
    module = {"matmul": torch.backends.cuda.matmul, "conv": torch.backends.cudnn.conv}[kind]
    before = module.fp32_precision
    seen = set()
    try:
        for precision in ("ieee", "tf32"):
            module.fp32_precision = precision
            seen.add(gpu.read_settings())
    finally:
        module.fp32_precision = before
    assert len(seen) == 2
    assert None not in seen


def test_a_setting_that_raises_makes_all_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("mix of the legacy and new APIs")

    gpu = Gpu(SimpleNamespace(), 0, calls_libraries=True)
    assert gpu.read_settings() is not None
    monkeypatch.setattr(gpu, "settings", (lambda: True, refuse))
    assert gpu.read_settings() is None


def test_sizes_that_come_once_are_never_recorded() -> None:
    rig = Rig(symbols=1)
    assert {rig(torch.zeros(n)) for n in range(1, 4 * KEPT_SITUATIONS)} == {PLAIN}
    assert not rig.recorder.asked
    assert len(rig.policy.situations) == KEPT_SITUATIONS


def test_sizes_that_recur_are_recorded() -> None:
    rig = Rig(symbols=1)
    for _ in range(TIMED_CALL):
        assert {rig(torch.zeros(n)) for n in (3, 4, 5)} == {PLAIN}
    assert {rig(torch.zeros(n)) for n in (3, 4, 5) * 2} == {REPLAYED}
    assert len(rig.recorder.asked) == 3


def test_the_sizes_used_longest_ago_are_forgotten() -> None:
    rig = Rig(symbols=1)
    rig.calls(TIMED_CALL + 1, torch.zeros(1))
    for n in range(2, KEPT_SITUATIONS + 2):
        rig(torch.zeros(n))
    kept = {int.from_bytes(sizes, "little") for _, sizes, _ in rig.policy.situations}
    assert kept == {1, *range(3, KEPT_SITUATIONS + 2)}, "what has no recording goes first"
    assert rig(torch.zeros(1)) == REPLAYED


def test_one_slow_size_does_not_end_recording_of_others() -> None:
    rig = Rig(symbols=1)
    rig.gpu.device = 3 * SECOND
    rig.calls(TIMED_CALL, torch.zeros(9))
    rig.gpu.device = 0.0
    rig.calls(TIMED_CALL, torch.zeros(3))
    assert (rig(torch.zeros(9)), rig(torch.zeros(3))) == (PLAIN, REPLAYED)
    assert not rig.launcher.gave_up


def test_outputs_of_sizes_that_do_not_come_back_are_not_kept_alive() -> None:
    rig = Rig(symbols=1, always=True)
    large = torch.empty(COPIED_BYTES + 4, dtype=torch.uint8)
    rig.outputs = (large,)
    rig(X)
    memory = torch.multiprocessing.reductions.StorageWeakRef(large.untyped_storage())
    del large
    assert memory.expired()


@pytest.mark.parametrize("hold", ["nothing", "the output", "a view of it"])
def test_a_large_output_stays_in_place_if_it_was_dropped(hold: str) -> None:
    rig = Rig(always=True)
    large = torch.empty(COPIED_BYTES + 4, dtype=torch.uint8)
    rig.outputs = (large,)
    rig(X)
    kept = {"nothing": None, "the output": large, "a view of it": large[1:]}[hold]
    del large
    rig(X)
    assert rig.recorder.asked == [(frozenset(), frozenset({0} if kept is None else {}))]


def test_a_small_output_is_copied() -> None:
    rig = Rig(always=True)
    rig.outputs = (torch.empty(4),)
    rig.calls(2, X)
    assert rig.recorder.asked == [(frozenset(), frozenset())]


def test_outputs_stay_in_place_on_the_default_stream_only() -> None:
    """What other streams read is marked by torch's engine where nothing of ours can see it."""
    rig = Rig(always=True)
    rig.gpu.stream = 7
    rig.outputs = (torch.empty(COPIED_BYTES + 4, dtype=torch.uint8),)
    rig(X)
    rig.outputs = ()
    rig(X)
    assert rig.recorder.asked == [(frozenset(), frozenset())]


def test_an_output_that_is_held_after_all_goes_to_fresh_memory() -> None:
    rig = Rig(always=True)
    rig.outputs = (torch.empty(COPIED_BYTES + 4, dtype=torch.uint8),)
    rig(X)
    assert rig.calls(2, X) == [REPLAYED, REPLAYED]
    rig.held = True
    results = rig.calls(MISSES, X)
    assert results == [PLAIN] * (MISSES - 1) + [REPLAYED]
    assert [in_place for _, in_place in rig.recorder.asked] == [{0}, frozenset()]
    assert len(rig.launcher.recordings) == 1, "the recording in place is dropped"


def library(**options: Any) -> FakeRecorder:
    return FakeRecorder(library_inputs=[0], stageable=frozenset({0}), **options)


def test_an_input_that_moves_is_copied_after_some_moves() -> None:
    rig = Rig(library(), always=True)
    inputs = [torch.zeros(4) for _ in range(MOVES + 4)]
    results = [rig(x) for x in inputs]
    assert results.index(REPLAYED) <= MOVES
    assert rig.recorder.asked[-1] == (frozenset({0}), frozenset())
    assert {rig(torch.zeros(4)) for _ in range(5)} == {REPLAYED}
    assert rig.policy.describe().endswith("which copies 8 bytes of inputs")


def test_large_inputs_that_move_make_the_calls_plain() -> None:
    rig = Rig(library(), always=False)
    rig.gpu.host = 16 / (COPY_SHARE * COPY_RATE)
    inputs = [torch.zeros(16) for _ in range(TIMED_CALL + 6)]
    assert {rig(x) for x in inputs} == {PLAIN}
    assert rig.launcher.gave_up
    assert "64 bytes of inputs that move would be copied" in rig.policy.describe()


def test_an_input_that_stays_is_not_copied() -> None:
    rig = warmed(library())
    assert set(rig.calls(5, X)) == {REPLAYED}
    assert rig.recorder.asked == [(frozenset(), frozenset())]


def test_an_input_that_is_another_recordings_output_is_not_copied() -> None:
    first, second = torch.zeros(4), torch.zeros(4)
    producer = warmed(FakeRecorder(pinned=frozenset({first.data_ptr(), second.data_ptr()})))
    assert producer(X) == REPLAYED
    assert first.data_ptr() in policy_module.PINNED
    rig = Rig(library(), always=True)
    for x in (first, second) * (MOVES + 1):
        rig(x)
    assert {staged for staged, _ in rig.recorder.asked} == {frozenset()}
    assert (rig(first), rig(second)) == (REPLAYED, REPLAYED)
    del producer
    gc.collect()
    assert first.data_ptr() not in policy_module.PINNED


def test_a_written_input_that_moves_makes_the_calls_plain() -> None:
    rig = Rig(FakeRecorder(library_inputs=[0]), always=True)
    held = [torch.zeros(4) for _ in range(MOVES + 6)]
    for x in held:
        rig(x)
    assert rig.launcher.gave_up
    assert "writes to an input that moves" in rig.policy.describe()


def test_each_stream_has_its_recording() -> None:
    rig = Rig()
    for stream in (0, 7):
        rig.gpu.stream = stream
        assert rig.calls(TIMED_CALL + 1, X) == [PLAIN] * TIMED_CALL + [REPLAYED]
    assert {recording.stream for recording in rig.launcher.recordings} == {0, 7}


def test_a_capture_by_the_caller_is_launched_plainly_and_does_not_count() -> None:
    rig = warmed()
    rig.gpu.capturing = True
    assert set(rig.calls(5, X)) == {PLAIN}
    rig.gpu.capturing = False
    assert rig(X) == REPLAYED
    rig.gpu.capturing = True
    assert rig(X) == PLAIN


def test_a_recording_that_fails_is_the_last() -> None:
    rig = warmed(FakeRecorder(error=CannotRecord("it does not work")), always=True)
    assert set(rig.calls(5, X)) == {PLAIN}
    assert len(rig.recorder.asked) == 1
    assert rig.launcher.gave_up
    assert rig.policy.describe() == "launched kernel by kernel: it does not work"
    assert rig.told == ["it does not work"]


def test_sizes_without_room_for_a_recording_stay_plain() -> None:
    rig = Rig(FakeRecorder(error=NoRoom("there was no memory for a recording")), symbols=1)
    rig.policy.always = True
    assert set(rig.calls(4, torch.zeros(9))) == {PLAIN}
    assert len(rig.recorder.asked) == 1
    rig.recorder.error = None
    assert rig.calls(2, torch.zeros(3)) == [PLAIN, REPLAYED]


def test_errors_of_a_call_are_the_callers_and_leave_the_policy_usable() -> None:
    rig = Rig()

    def fails() -> None:
        raise ValueError("of the call")

    rig.during_call = fails
    for _ in range(TIMED_CALL + 2):
        with pytest.raises(ValueError, match="of the call"):
            rig(X)
    rig.during_call = None
    assert [rig(X) for _ in range(3)][-1] == REPLAYED


def test_recordings_must_pay_for_more() -> None:
    rig = Rig(symbols=1, always=True)
    for n in range(1, 3 * FREE_RECORDINGS):
        rig.calls(2, torch.zeros(n))
    assert len(rig.recorder.asked) == FREE_RECORDINGS
    newest = int.from_bytes(rig.launcher.recordings[0].sizes, "little")
    rig.calls(2 * HITS_PER_RECORDING, torch.zeros(newest))
    rig.calls(2, torch.zeros(99))
    assert len(rig.recorder.asked) == FREE_RECORDINGS + 1


def test_few_recordings_serve_at_a_time() -> None:
    rig = Rig(symbols=1, always=True)
    for n in range(1, 3 * MAX_RECORDINGS):
        rig.calls(2 + 2 * HITS_PER_RECORDING, torch.zeros(n))
        assert len(rig.launcher.recordings) <= MAX_RECORDINGS
    kept = [each for one in rig.policy.situations.values() for each in one.records]
    assert {each.recording for each in kept} == set(rig.launcher.recordings)


def test_misses_must_repeat() -> None:
    rig = warmed(library())
    assert rig(X) == REPLAYED
    other = X.clone()
    assert rig.calls(MISSES, other) == [PLAIN] * (MISSES - 1) + [REPLAYED]


def test_a_busy_arena_is_no_failure() -> None:
    rig = warmed(FakeRecorder(busy=True))
    assert set(rig.calls(3, X)) == {PLAIN}
    rig.recorder.busy = False
    assert rig(X) == REPLAYED


def test_a_call_inside_a_call_is_launched_plainly() -> None:
    """A finalizer, or an operator written in Python, may call the same Program."""
    rig = Rig()
    inner: list[str] = []

    def reenter() -> None:
        rig.during_call = None
        inner.append(rig(X))
        rig.during_call = reenter

    rig.during_call = reenter
    assert set(rig.calls(TIMED_CALL, X)) == set(inner) == {PLAIN}
    (situation,) = rig.policy.situations.values()
    assert situation.calls == TIMED_CALL
    assert rig(X) == REPLAYED


def test_nobody_finds_a_recording_before_its_first_replay() -> None:
    rig = warmed()
    seen: list[tuple[Any, ...]] = []
    rig.recorder.during_replay = lambda: seen.append(rig.launcher.recordings)
    assert rig(X) == REPLAYED
    assert seen == [()]


@pytest.mark.parametrize("always", [False, True])
def test_threads_that_may_draw_random_numbers_delay_recordings(always: bool) -> None:
    rig = warmed(FakeRecorder(random=True), always=always)
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        assert set(rig.calls(3, X)) == {PLAIN}
    finally:
        stop.set()
        other.join()
    assert rig(X) == REPLAYED


def test_two_threads_never_break_the_policy() -> None:
    rig = Rig(symbols=1)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for turn in range(300):
                assert rig(torch.zeros(turn % 9 + 1)) in (PLAIN, REPLAYED)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(rig.recorder.asked) <= FREE_RECORDINGS + 1200 // HITS_PER_RECORDING


def test_what_a_recording_waits_for_is_said() -> None:
    rig = Rig()
    assert rig.policy.describe() == "launched kernel by kernel: not yet recorded: it was not called"
    x = torch.empty(4)
    rig(x)
    assert rig.policy.describe().endswith(
        f"not yet recorded: call {TIMED_CALL + 1} with equal sizes on one stream may be"
    )
    rig.gpu.device = None
    for _ in range(TIMED_CALL):
        rig(x)
    assert rig.policy.describe().endswith("the device was still busy with the timed call")
    rig.gpu.capturing = True
    rig(x)
    assert rig.policy.describe().endswith("not yet recorded: the caller captures its stream")
    rig.gpu.capturing = False
    rig.gpu.settings = None
    rig(x)
    assert rig.policy.describe().endswith("torch refuses to read the settings of libraries")


@pytest.mark.parametrize("always", [False, True])
def test_a_thread_launches_plainly_before_it_records(always: bool) -> None:
    """Libraries make handles for each thread, which a capture forbids."""
    rig = warmed(always=always)
    seen: list[str] = []

    def work() -> None:
        seen.extend(rig.calls(1, X))
        seen.append(rig.policy.describe())
        seen.extend(rig.calls(1, X))

    other = threading.Thread(target=work)
    other.start()
    other.join()
    first, described, second = seen
    assert (first, second) == (PLAIN, REPLAYED)
    assert described.endswith("not yet recorded: the calling thread launches it for the first time")


def test_threads_that_may_draw_are_named() -> None:
    rig = warmed(FakeRecorder(random=True))
    done = threading.Event()
    other = threading.Thread(target=done.wait, name="loader")
    other.start()
    try:
        assert rig(torch.empty(4)) == "plain"
        assert rig.policy.describe().endswith(
            "not yet recorded: another thread may draw random numbers (loader)"
        )
    finally:
        done.set()
        other.join()
    assert rig(torch.empty(4)) == "replayed"


def test_a_busy_recorder_is_said() -> None:
    rig = warmed(FakeRecorder(busy=True))
    rig(torch.empty(4))
    assert "another thread records for the stream" in rig.policy.describe()


@pytest.mark.parametrize("always", [False, True])
def test_refusals_are_told_where_graphs_were_asked_for(always: bool) -> None:
    rig = warmed(FakeRecorder(error=CannotRecord("it does not work")), always=always)
    for _ in range(3):
        rig(torch.empty(4))
    assert rig.told == ["it does not work"] * always


# A forward and its backward


def trained() -> tuple[Rig, Rig, Handover]:
    """The rigs of a forward and of its backward, both recorded, and what one left to the other."""
    pool: Any = object()
    handover = Handover("arena", pool, [])
    handover.recording = SimpleNamespace(watch=lambda pinned: None)
    forward = Rig(FakeRecorder(leaves=handover, pinned=frozenset({X.data_ptr()})), always=True)
    backward = Rig(FakeRecorder(freed=(0,), library_inputs=[0]), always=True)
    assert forward.calls(2, X) == [PLAIN, REPLAYED]
    assert [backward.policy.spend([X]) for _ in range(2)] == [(PLAIN,), (REPLAYED,)]
    return forward, backward, handover


def test_arguments_that_are_spent_go_after_their_last_use() -> None:
    """In the calls before a recording too."""
    rig = Rig()
    args = [X]
    for _ in range(TIMED_CALL):
        args = [X]
        rig.policy.spend(args)
        assert args == []
    assert rig.executor.spent == TIMED_CALL


def test_a_backward_takes_over_what_its_forward_saved() -> None:
    _, backward, handover = trained()
    assert backward.recorder.offered == [handover]


def test_a_backward_whose_arguments_are_read_again_takes_nothing_over() -> None:
    _, backward, handover = trained()
    other = Rig(FakeRecorder(freed=(0,), library_inputs=[0]), always=True)
    assert other.calls(2, X) == [PLAIN, REPLAYED]
    assert other.recorder.offered == [None]
    handover.taken = True
    third = Rig(FakeRecorder(freed=(0,), library_inputs=[0]), always=True)
    third.policy.spend([X])
    third.policy.spend([X])
    assert third.recorder.offered == [None], "one backward takes it over"
    assert backward.recorder.offered == [handover]


def test_gradients_that_are_held_when_the_forward_runs_again() -> None:
    """Both are recorded again, apart."""
    forward, backward, handover = trained()
    handover.outputs = ((torch.empty(4), 0),)  # the core counts one use
    forward.held = True
    assert forward(X) == PLAIN
    assert handover.overstayed
    assert not forward.launcher.recordings
    forward.held = False
    backward.launcher.last_match = MOVED
    assert backward.policy.spend([X]) == (PLAIN,)
    assert not backward.launcher.recordings, "it is of no use without its forward"
    pool: Any = object()
    forward.recorder.leaves = Handover("arena", pool, [])
    assert forward(X) == REPLAYED
    assert backward.policy.spend([X]) == (REPLAYED,)
    assert backward.recorder.offered == [handover, None]


def test_saved_tensors_that_are_held_drop_no_recording() -> None:
    """Two forwards, then two backwards: the first forward's tensors are still to be read."""
    forward, _, handover = trained()
    forward.held = True
    assert forward(X) == PLAIN
    assert not handover.ended
    assert len(forward.launcher.recordings) == 1


def test_a_backward_is_recorded_if_its_forward_is() -> None:
    """Though the device is its limit: it could not free what the forward's recording holds."""
    pool: Any = object()
    leaves = Handover("arena", pool, [])
    forward = Rig(FakeRecorder(leaves=leaves, pinned=frozenset({X.data_ptr()})))
    backward = Rig(FakeRecorder(freed=(0,), library_inputs=[0]))
    apart = Rig(FakeRecorder(freed=(0,), library_inputs=[0]))
    backward.gpu.device = apart.gpu.device = 100 * SECOND
    for _ in range(TIMED_CALL):
        forward(X)
        backward.policy.spend([X])
        apart.policy.spend([X])
    other = torch.zeros(4)
    assert forward(X) == REPLAYED
    assert apart.policy.spend([other]) == (PLAIN,)
    assert backward.policy.spend([X]) == (REPLAYED,)
    assert backward.recorder.offered == [leaves]
