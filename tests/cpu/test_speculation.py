"""Branches on data: taken as the call being captured takes them, checked as the graph runs, and
recompiled or served by another entry where the data say otherwise.
"""

from __future__ import annotations

import gc
import operator
import random
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from flambeau_capture import CaptureError, state_of
from flambeau_capture.interpreter.branches import observation
from tests import worlds
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS = ("eager", "aot_eager", "inductor")


def kinds(compiled: Any) -> list[str]:
    return worlds.kinds(getattr(compiled, "_compiled", compiled))


def texts(compiled: Any, kind: str) -> list[str]:
    events = state_of(getattr(compiled, "_compiled", compiled)).events
    return [event.text for event in events if event.kind == kind]


# ------------------------------------ programs that go two ways, by the sign of what they are given


def two_ways(x: torch.Tensor, log: list[Any]) -> Any:
    y = x * 2
    log.append("one")
    if y.sum() > 0:
        y = y + 1
        log.append("up")
    else:
        y = y.sin()
        log.append("down")
    return y * 3


def after_writes(x: torch.Tensor, log: list[Any]) -> Any:
    x.add_(1)
    log.append(x.shape[0])
    x[0] = x[0] * 2
    if (x > 1).any():
        x.mul_(2)
    return x + 1


def after_draws(x: torch.Tensor, log: list[Any]) -> Any:
    noise = torch.rand_like(x)
    if (x + noise / 100).mean() > 0:
        noise = noise + torch.randn((), device=x.device)
    log.append("drawn")
    return x * noise + torch.rand(x.shape, device=x.device)


def no_jump(x: torch.Tensor, log: list[Any]) -> Any:
    positive = bool(x.sum() > 0)
    log.append(positive)
    return x + 1 if not positive else x - 1, positive and x.max() > -9


def as_item(x: torch.Tensor, log: list[Any]) -> Any:
    if (x > 0).any().item():
        log.append(1)
        return x.exp()
    return x.cos()


def several(x: torch.Tensor, log: list[Any]) -> Any:
    for at in range(3):
        if x[at] > 0:
            x = x * 1.5
            log.append(at)
        else:
            x = x - 0.5
    return x


class Halves:
    def __init__(self) -> None:
        self.taken: list[str] = []

    def step(self, x: torch.Tensor) -> torch.Tensor:
        if torch.isnan(x).any() or x.sum() < 0:
            self.taken.append("reset")
            return torch.zeros_like(x)
        self.taken.append("kept")
        return x.sqrt()


def in_a_method(x: torch.Tensor, log: list[Any]) -> Any:
    halves = Halves()
    y = halves.step(x.abs() if len(log) > 100 else x)
    log.extend(halves.taken)
    return y + 1


def handled(x: torch.Tensor, log: list[Any]) -> Any:
    try:
        if x.sum() < 0:
            raise ValueError("negative")
        y = x.log1p()
    except ValueError as error:
        log.append(str(error))
        y = -x
    return y * 2


TWO_WAYS = (
    two_ways,
    after_writes,
    after_draws,
    no_jump,
    as_item,
    several,
    in_a_method,
    handled,
)


def run_both(
    compiled: Callable[..., Any], program: Callable[..., Any], x: torch.Tensor, seed: int
) -> None:
    results = []
    for function in (compiled, program):
        own, log = x.clone(), []
        torch.manual_seed(seed)
        results.append([function(own, log), own, log, torch.get_rng_state().tolist()[-20:]])
    same(*results)


def calls(sizes: tuple[int, ...] = (5, 5, 5, 5, 5, 5)) -> list[torch.Tensor]:
    """Positive twice, then negative, then either."""
    signs = (1, 1, -1, 1, -1, -1)
    return [sign * (torch.rand(size) + 0.1) for sign, size in zip(signs, sizes, strict=True)]


# ---------------------------------------------------------------- one graph while the data agree


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", TWO_WAYS)
def test_one_graph_while_the_data_agree(program: Any, backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, dynamic=False)
    for seed in range(3):
        run_both(compiled, program, torch.rand(5) + 0.1, seed)
    assert kinds(compiled) == ["capture"]
    assert state_of(compiled).entries[0].info.assumptions


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", TWO_WAYS)
def test_a_break_once_they_have_not(program: Any, backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, dynamic=False)
    for seed, x in enumerate((*calls(), *calls())):  # so that each line goes both ways twice
        run_both(compiled, program, x, seed)
    found = kinds(compiled)
    assert found[0] == "capture" and "violated" in found and "break" in found
    assert "test_speculation.py" in texts(compiled, "violated")[0]
    before = len(found)
    for seed, x in enumerate(calls()):
        run_both(compiled, program, x, seed)
    # `several` asks at one line, the others at one or two: what has been seen to go both ways is
    # asked no more.
    assert "violated" not in kinds(compiled)[before:]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", TWO_WAYS)
def test_whole_frames_get_a_graph_for_each_way(program: Any, backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=True, dynamic=False)
    for seed, x in enumerate((*calls(), *calls())):
        run_both(compiled, program, x, seed)
    assert "break" not in kinds(compiled)
    assert 2 <= len(state_of(compiled).entries) <= 4


@pytest.mark.parametrize("fullgraph", [False, True])
def test_sizes_change_too(fullgraph: bool) -> None:
    compiled = flambeau.compile(two_ways, backend="inductor", fullgraph=fullgraph)
    for seed, x in enumerate((*calls((5, 7, 9, 4, 3, 1)), *calls((2, 6, 8, 5, 1, 0)))):
        run_both(compiled, two_ways, x, seed)


def test_too_many_ways_are_an_error_only_where_frames_must_be_whole() -> None:
    def ways(x: torch.Tensor) -> torch.Tensor:
        for at in range(4):
            x = x + at if x[at] > 0 else x * 2
        return x

    inputs = [
        torch.tensor([1.0 if way >> at & 1 else -1.0 for at in range(4)]) for way in range(16)
    ]
    compiled = flambeau.compile(ways, backend="eager", dynamic=False)
    for x in inputs:
        same(compiled(x), ways(x))
    whole = flambeau.compile(ways, backend="eager", fullgraph=True, dynamic=False)
    with pytest.raises(CaptureError, match=r"recompile_limit(.|\n)*test_speculation\.py:\d+"):
        for x in inputs:
            same(whole(x), ways(x))


# ---------------------------------------------------------------- each call is observed once

MADE: list[str] = []


@torch.library.custom_op("test_speculation::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """`2 * x`, which notes that it was computed."""
    MADE.append("doubled")
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def many_questions(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    results = []
    for at in range(count):
        y = doubled(x) + torch.rand_like(x)
        results.append(y if y.sum() > at else y - 1)
    return results


def questions_after_writes(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    row, results = x[0], []  # a view from before the first write
    for at in range(count):
        if doubled(row).sum() > 0:
            x.add_(torch.rand_like(x))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=at % 2 == 1):
            results.append((row * 1, x @ x))
            if doubled(results[0][0]).mean() > 0:
                row = x[at % 2]
    return results


@pytest.mark.parametrize("program", [many_questions, questions_after_writes])
def test_each_call_is_observed_once(program: Any) -> None:
    compiled = flambeau.compile(program, backend="eager", dynamic=False)
    x = torch.rand(2, 2) + 5
    MADE.clear()
    torch.manual_seed(1)
    yours = [program(own := x.clone(), 12), own, torch.rand(3)]
    eager = len(MADE)
    torch.manual_seed(1)
    mine = [compiled(own := x.clone(), 12), own, torch.rand(3)]
    same(mine, yours)
    assert kinds(compiled) == ["capture"]
    assert len(MADE) - eager == 2 * eager  # to answer the questions, and as the graph runs


@pytest.mark.parametrize("program", [many_questions, questions_after_writes])
def test_results_beyond_the_limit_are_computed_again(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation, "MOST_KEPT", 8)
    compiled = flambeau.compile(program, backend="eager", dynamic=False)
    x = torch.rand(2, 2) + 5
    results = []
    for function in (compiled, program):
        torch.manual_seed(1)
        results.append([function(own := x.clone(), 12), own, torch.rand(3)])
    same(*results)
    assert kinds(compiled) == ["capture"]


# ---------------------------------------------------------------- training


def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.dropout(x @ w, 0.3)
    if not torch.isfinite(y).all():
        y = y.clamp(-1, 1)
    if y.abs().max() > 1e6:
        y = y / 1e6
    return (y * y).sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: str, device: str = "cpu") -> None:
    compiled = flambeau.compile(gated, backend=backend, dynamic=False)
    scales = (1.0, 1.0, 1e7, 1.0, float("inf"), 1.0)
    for seed, scale in enumerate(scales):
        results = []
        x, w = torch.randn(4, 3, device=device) * scale, torch.randn(3, 2, device=device)
        for function in (compiled, gated):
            torch.manual_seed(seed)
            mine = [x.clone().requires_grad_(), w.clone().requires_grad_()]
            loss = function(*mine)
            loss.backward()
            results.append([loss.detach(), *(t.grad for t in mine)])
        same(*results)
    assert kinds(compiled).count("violated") == 4  # two lines, twice each


class Normed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        self.seen += 1
        if x.mean() > 0:
            y = y * 2
        return y.relu()


@pytest.mark.parametrize("backend", BACKENDS)
def test_buffers_are_written_once(backend: str, device: str = "cpu") -> None:
    torch.manual_seed(0)
    mine, yours = Normed().to(device), Normed().to(device)
    yours.load_state_dict(mine.state_dict())
    compiled = flambeau.compile(mine, backend=backend, dynamic=False)
    for sign in (1, 1, -1, 1, -1):
        x = sign * (torch.rand(6, 3, device=device) + 0.1)
        same(compiled(x), yours(x))
        for name, buffer in yours.state_dict().items():
            same(mine.state_dict()[name], buffer)


# --------------------------------------------- data-dependent numbers, in frames that must be whole


def counted(x: torch.Tensor) -> Any:
    count = int((x > 0).sum())
    if count > 2:
        return x[:count] * 2, count
    return x.sum(), -count


def picked(x: torch.Tensor) -> Any:
    rows = (x.view(-1, 1) > 0.5).nonzero()
    return [x[row[0]] * at for at, row in enumerate(rows)]


def scaled(x: torch.Tensor) -> Any:
    mean = x.mean().item()
    return (x / mean if mean > 0.25 else x), int(mean > 0.25)


def padded(x: torch.Tensor) -> Any:
    extra = (x > 0).sum()
    return torch.nn.functional.pad(x, (1, extra))


def resized(x: torch.Tensor) -> Any:
    size = (x > 0).sum() + 2
    image = x.view(1, 1, 1, -1).expand(1, 1, 4, -1)
    return torch.nn.functional.interpolate(image, size=(4, size), mode="bilinear", antialias=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [counted, picked, scaled, padded, resized])
def test_numbers_in_the_data(program: Any, backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=True, dynamic=False)
    for x in ([0.9, 0.7, 0.1, 0.8], [0.9, 0.7, 0.1, 0.8], [-0.1, 0.6, -1.0, -1.0], [1.0] * 4):
        t = torch.tensor(x)
        same(compiled(t), program(t))
    assert "break" not in kinds(compiled)


def data_dependent_predicates(x: torch.Tensor, y: torch.Tensor) -> Any:
    found = [torch.equal(x, y), x.allclose(y, atol=0.1), torch.equal(x, x), torch.equal(x, y[:1])]
    found += [torch.is_nonzero(x.sum()), x.equal(y * 1), torch.allclose(x, y, equal_nan=True)]
    return x + 1 if found[0] or found[1] else x - 1, found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_questions_that_torch_answers(fullgraph: bool, backend: str) -> None:
    compiled = flambeau.compile(
        data_dependent_predicates, backend=backend, fullgraph=fullgraph, dynamic=False
    )
    nan = torch.full((3,), float("nan"))
    one = torch.ones(3)
    for x, y in ((one, one.clone()), (one, one.clone()), (one, one + 0.01), (one, nan), (nan, nan)):
        same(compiled(x, y), data_dependent_predicates(x, y))
    if not fullgraph:  # which says that torch has to judge these
        with pytest.raises(RuntimeError):
            compiled(one, torch.ones(3, dtype=torch.float64))


# ---------------------------------------------------------------- what nothing is assumed of


def halved(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    steps = 0
    while x.abs().sum() > 1:
        x = x / 2
        steps += 1
    return x, steps


def test_loops_over_nothing_break() -> None:
    compiled = flambeau.compile(halved, backend="eager", dynamic=False)
    for scale in (1.0, 8.0, 3.0):
        x = torch.ones(3) * scale
        same(compiled(x), halved(x))
    assert "break" in kinds(compiled) and "violated" not in kinds(compiled)


def test_loops_over_nothing_are_unrolled_in_whole_frames() -> None:
    compiled = flambeau.compile(halved, backend="eager", fullgraph=True, dynamic=False)
    for scale in (8.0, 8.0, 3.0):
        x = torch.ones(3) * scale
        same(compiled(x), halved(x))
    assert kinds(compiled) == ["capture", "violated", "recompile"]


def test_can_be_turned_off() -> None:
    options = {"speculate": False}
    compiled = flambeau.compile(two_ways, backend="eager", options=options, dynamic=False)
    run_both(compiled, two_ways, torch.rand(5), 0)
    assert "break" in kinds(compiled)
    whole = flambeau.compile(two_ways, backend="eager", fullgraph=True, options=options)
    with pytest.raises(CaptureError, match="data-dependent"):
        whole(torch.rand(5), [])


def test_operators_with_effects_of_their_own_run_once() -> None:
    ran = []

    @torch.library.custom_op("speculation_tests::note", mutates_args=("x",))
    def note(x: torch.Tensor) -> None:
        ran.append(x.sum().item())
        x.add_(1)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        note(y)
        return y + 1 if y.sum() > 0 else y - 1

    compiled = flambeau.compile(program, backend="eager", dynamic=False)
    for x in (torch.ones(3), -5 * torch.ones(3), torch.ones(3)):
        before = len(ran)
        got = compiled(x)
        assert len(ran) == before + 1
        same(got, program(x))
    assert "violated" not in kinds(compiled)


def test_an_error_behind_a_wrong_assumption_is_eagers() -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        if index.max() < 3:
            return x[index]
        return x[index - 3]

    compiled = flambeau.compile(program, backend="inductor", dynamic=False)
    x = torch.rand(3)
    for values in ([0, 1], [2, 2], [3, 5], [0, 2]):
        same(compiled(x, torch.tensor(values)), program(x, torch.tensor(values)))
    for bad in ([7, 0], [-9, 0]):
        with pytest.raises(IndexError) as want:
            program(x, torch.tensor(bad))
        with pytest.raises(IndexError) as got:
            compiled(x, torch.tensor(bad))
        assert str(got.value) == str(want.value)


def test_export_assumes_nothing() -> None:
    import flambeau_capture

    with pytest.raises(CaptureError, match="data-dependent"):
        flambeau_capture.export(two_ways, (torch.rand(3), []))


# ---------------------------------------------------------------- threads, nesting


def test_threads_find_both_ways_at_once() -> None:
    compiled = flambeau.compile(two_ways, backend="eager", dynamic=False)
    wrong: list[Any] = []

    def work(sign: int) -> None:
        for _ in range(20):
            x = sign * (torch.rand(5) + 0.1)
            log: list[Any] = []
            got = compiled(x, log)
            own: list[Any] = []
            want = two_ways(x, own)
            if log != own or not torch.allclose(got, want):
                wrong.append((sign, got, want, log))

    threads = [threading.Thread(target=work, args=(sign,)) for sign in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_below_a_graph_break() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x.cos()

    def outer(x: torch.Tensor) -> torch.Tensor:
        y = inner(x)
        flambeau.compiler.graph_break()
        return inner(y - 1) * 2

    compiled = flambeau.compile(outer, backend="eager", dynamic=False)
    for sign in (1, 1, -1, 1):
        x = sign * torch.rand(4) + sign * 0.5
        same(compiled(x), outer(x))


def test_under_autocast_and_no_grad() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            with torch.no_grad():
                if y.float().sum() > 0:
                    y = y * 2
            z = y @ w
        return z, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    compiled = flambeau.compile(program, backend="eager", dynamic=False)
    for sign in (1, 1, -1, 1):
        x, w = sign * (torch.rand(3, 3) + 0.1), (torch.rand(3, 3) + 0.1).requires_grad_()
        got, want = compiled(x, w), program(x, w)
        same(got, want)
        assert got[0].requires_grad is want[0].requires_grad
    assert not torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()


# ---------------------------------------------------------------- what is restored


def negates(x: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
    x.neg_()
    return 1 / x if sign > 0 else 2 / x


def transposes(x: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
    x.t_()
    x.unsqueeze_(1)
    return x + 1 if sign > 0 else x - 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [negates, transposes])
def test_signs_of_zeros_and_geometry_are_put_back(program: Any, backend: str) -> None:
    for fullgraph in (False, True):
        compiled = flambeau.compile(program, backend=backend, fullgraph=fullgraph, dynamic=False)
        for sign in (1.0, -1.0, 1.0, -1.0):
            mine, yours = torch.zeros(2, 3), torch.zeros(2, 3)
            got, want = (
                compiled(mine, torch.tensor(sign)),
                program(yours, torch.tensor(sign)),
            )
            same(got, want)
            assert (mine.shape, mine.stride()) == (yours.shape, yours.stride())
            assert torch.equal(mine.signbit(), yours.signbit())


# ---------------------------------------------------------------- around the call


def test_hooks_on_saved_tensors_see_what_the_program_saves() -> None:
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        if y.sum() > 0:
            y = y * x
        return y * y

    compiled = flambeau.compile(program, backend="eager", dynamic=False)
    for function in (program, compiled, compiled):
        x = torch.rand(3).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            function(x)
        assert [type(tensor) for tensor in packed] == [torch.Tensor] * 6
        packed.clear()
    traced = flambeau.compile(program, backend="aot_eager", dynamic=False)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        traced(torch.rand(3).requires_grad_())
    assert {type(tensor) for tensor in packed} == {torch.Tensor}


@pytest.mark.parametrize("fullgraph", [False, True])
def test_stances_that_compile_nothing_keep_the_graph(fullgraph: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x.sin()

    compiled = flambeau.compile(program, backend="eager", fullgraph=fullgraph, dynamic=False)
    one = torch.ones(3)
    compiled(one)
    with flambeau.compiler.set_stance("fail_on_recompile"):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="fail_on_recompile"):
                compiled(-one)
            same(compiled(one), one + 1)
    with flambeau.compiler.set_stance("eager_on_recompile"):
        for _ in range(2):
            same(compiled(-one), program(-one))
            same(compiled(one), one + 1)
    assert kinds(compiled) == ["capture", "violated", "eager"]
    same(compiled(-one), program(-one))
    assert kinds(compiled)[3] == "recompile"


def test_data_at_the_edge_of_what_a_backend_computes() -> None:
    def otherwise(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        for node in gm.graph.nodes:
            if node.target is torch.ops.aten.gt.Scalar or node.target in ("gt", operator.gt):
                node.target = operator.lt
        gm.recompile()
        return gm.forward

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x.sin()

    compiled = flambeau.compile(program, backend=otherwise, fullgraph=True, dynamic=False)
    one = torch.ones(3)
    for _ in range(20):
        same(compiled(one), one + 1)
    assert kinds(compiled) == ["capture", "violated", "recompile", "eager"]
    assert "runs eagerly for some data" in texts(compiled, "eager")[0]


def test_graph_modules_as_backends_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x.sin()

    compiled = flambeau.compile(program, backend=lambda gm, examples: gm, dynamic=False)
    for sign in (1, -1, 1):
        same(compiled(sign * torch.ones(3)), program(sign * torch.ones(3)))
    assert "violated" in kinds(compiled)
    assert capsys.readouterr() == ("", "")


def test_a_call_that_another_entry_serves_keeps_nothing_alive() -> None:
    def made(shift: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x + shift if x.sum() > 0 else x - shift

    shift = torch.ones(3)
    compiled = flambeau.compile(made(shift), backend="eager", fullgraph=True, dynamic=False)
    for sign in (1, -1, 1, -1, 1):
        compiled(sign * torch.ones(3))
    found = kinds(compiled)
    for sign in (1, -1, 1, -1, 1):
        compiled(sign * torch.ones(3))
    assert kinds(compiled) == found  # an event for each assumption, not one a call
    held = weakref.ref(shift)
    del shift, compiled
    for _ in range(3):
        gc.collect()
    assert held() is None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_calls_that_fail_before_they_ask(fullgraph: bool, backend: str) -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = x[index]
        return y + 1 if y.sum() > 0 else y - 1

    compiled = flambeau.compile(program, backend=backend, fullgraph=fullgraph, dynamic=False)
    for index in (7, 0, 9, 1, -4):
        for sign in (1, -1):
            x, at = sign * torch.ones(3), torch.tensor([index])
            if -3 <= index < 3:
                same(compiled(x, at), program(x, at))
                continue
            with pytest.raises(IndexError, match="out of bounds") as want:
                program(x, at)
            with pytest.raises(IndexError) as got:
                compiled(x, at)
            assert str(got.value) == str(want.value)


def test_tensors_that_keep_their_gradients() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y = x * w
        return y if y.sum() > 0 else y * x

    compiled = flambeau.compile(program, backend="eager", dynamic=False)
    for sign in (1, -1, 1, -1):
        found = []
        for function in (compiled, program):
            x = sign * torch.ones(3, requires_grad=True)
            x.retain_grad()
            torch.manual_seed(0)
            function(x, torch.rand(3)).sum().backward()
            found.append(x.grad)
        same(*found)


# ---------------------------------------------------------------- what Python asks of numbers


@pytest.mark.parametrize(
    "expression",
    [
        "~n",
        "round(n, -1)",
        "round(n, ndigits=-1)",
        "n.bit_length()",
        "n.__round__(-1)",
        "n.__floordiv__(2)",
        "f.is_integer()",
        "f.hex()",
        "f.as_integer_ratio()",
        "torch.arange(0, f, 0.5)",
        "torch.arange(n, 50, f)",
        "random.randint(0, n)",
        "random.randrange(n, 2 * n)",
    ],
)
def test_python_of_numbers_in_the_data_and_given(expression: str) -> None:
    namespace = {"random": random, "torch": torch}
    exec(
        "def in_data(x):\n    n, f = int(x[0]), x[1].item()\n"
        f"    try:\n        return {expression}, x + n\n    except Exception as error:\n   "
        f"     return str(error)\n"
        f"def given(n, f, x):\n    try:\n        return {expression}, x + n\n    except "
        f"Exception as error:\n        return str(error)\n",
        namespace,
    )
    for n, f in ((37, 2.5), (6, 3.0)):
        x = torch.tensor([n, f])
        for fullgraph, name, args in ((True, "in_data", (x,)), (False, "given", (n, f, x))):
            function: Any = namespace[name]
            compiled = flambeau.compile(
                function, backend="eager", fullgraph=fullgraph, dynamic=not fullgraph
            )
            random.seed(3)
            want = function(*args)
            random.seed(3)
            same(compiled(*args), want)
