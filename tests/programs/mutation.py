"""Programs that write: to inputs, through views, to results, under views, with duplicated and
overlapping arguments.
"""

from __future__ import annotations

import torch

from tests.programs.draw import bools, grad, ints, rand, strided, transposed
from tests.programs.program import Program, program

PROGRAMS: dict[str, Program] = {}
add = program(PROGRAMS)


def statements(*lines: str, returns: str = "x", takes: str = "x, y") -> object:
    """A function of these statements; mutations do not fit into a lambda."""
    scope: dict[str, object] = {"torch": torch}
    body = "\n    ".join([*lines, f"return {returns}"])
    exec(compile(f"def program({takes}):\n    {body}\n", f"<{lines[0]}>", "exec"), scope)
    return scope["program"]


def two() -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices without gradients."""
    return rand(4, 6), rand(4, 6)


def whole_and_part() -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor and a view of its first rows."""
    x = rand(4, 6)
    return x, x[:2]


def twice() -> tuple[torch.Tensor, torch.Tensor]:
    """One tensor, given twice."""
    x = rand(4, 6)
    return x, x


def two_parts() -> tuple[torch.Tensor, torch.Tensor]:
    """Two overlapping views of one memory."""
    x = rand(8, 6)
    return x[:5], x[3:]


def apart() -> tuple[torch.Tensor, torch.Tensor]:
    """Two views of one memory that do not overlap."""
    x = rand(8, 6)
    return x[:4], x[4:]


def nonleaf() -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor with history, and one without."""
    return grad(4, 6) * 1, rand(4, 6)


CASES: dict[str, tuple[object, object]] = {
    "add_": (statements("x.add_(y)", returns="x"), two),
    "add_no_return": (statements("x.add_(y)", returns="None"), two),
    "mul_then_use": (statements("x.mul_(2)", "z = x + y", "x.add_(1)", returns="z, x"), two),
    "operator": (statements("x += y", "x *= 2", "x -= 1", "x /= 3", returns="x"), two),
    "through_view": (
        statements("v = x[1]", "v.add_(1)", "w = x.T", "w.mul_(2)", returns="x + 1, v"),
        two,
    ),
    "through_views_of_views": (
        statements("x.view(-1)[3:9].view(2, 3)[:, 1].zero_()", returns="x.sum(0)"),
        two,
    ),
    "view_before_write": (statements("v = x.view(-1)", "x.add_(1)", returns="v * 2, v"), two),
    "slice_assignment": (
        statements(
            "x[1:3] = y[:2]",
            "x[:, 0] = 5",
            "x[0, 0] = y[1, 1]",
            "x[..., -1] = -1.5",
            returns="x * 1",
        ),
        two,
    ),
    "step_assignment": (
        statements("x[::2, 1::3] = y[::2, :2]", "x[1] += 1", "x[:, 2] *= y[:, 3]", returns="x"),
        two,
    ),
    "broadcast_assignment": (
        statements("x[:] = y[0]", "x[1:2] = torch.arange(6)", returns="x"),
        two,
    ),
    "index_assignment": (
        statements(
            "x[[0, 2]] = y[[1, 3]]",
            "x[torch.tensor([3])] = 0",
            "x[[0, 1], [2, 3]] += 10",
            returns="x",
        ),
        two,
    ),
    "mask_assignment": (statements("x[y > 0] = 0", "x[y < -1] = 7.5", returns="x"), two),
    "mask_rows": (statements("x[y.sum(1) > 0] = 3", returns="x"), two),
    "copy_": (statements("x.copy_(y)", "y.copy_(x * 2)", returns="(x, y)"), two),
    "copy_other_dtype": (
        statements("x.copy_(y)", returns="x + 1"),
        lambda: (rand(4, 6), ints(4, 6)),
    ),
    "copy_broadcast": (statements("x.copy_(y)", returns="x"), lambda: (rand(4, 6), rand(6))),
    "swap": (statements("t = x.clone()", "x.copy_(y)", "y.copy_(t)", returns="None"), two),
    "fill_zero": (statements("x.zero_()", "y.fill_(3)", returns="x + y"), two),
    "out_variants": (
        statements(
            "torch.add(x, y, out=x)", "z = torch.empty(4, 6)", "torch.mul(x, 2, out=z)", returns="z"
        ),
        two,
    ),
    "clamp_": (
        statements("x.clamp_(-0.5, 0.5).add_(1)", "y.relu_()", "torch.sigmoid_(x)", returns="x"),
        two,
    ),
    "masked_fill_": (statements("x.masked_fill_(y > 0, 9)", "x.tril_()", returns="x"), two),
    "scatter_": (
        statements(
            "x.scatter_(1, torch.zeros(4, 2, dtype=torch.long) + torch.arange(2), y)",
            "x.index_add_(0, torch.tensor([1, 1]), y[:2])",
            returns="x",
        ),
        two,
    ),
    "index_put_": (
        statements(
            "x.index_put_((torch.tensor([0, 0, 1]),), y[:3], accumulate=True)",
            "x.index_fill_(1, torch.tensor([2]), 1.0)",
            "x.index_copy_(0, torch.tensor([3]), y[:1])",
            returns="x",
        ),
        two,
    ),
    "unsqueeze_": (
        statements("z = x + 1", "z.unsqueeze_(0)", "z.transpose_(0, 2)", returns="z"),
        two,
    ),
    "aliased_whole_and_part": (statements("y.add_(1)", returns="x * 2"), whole_and_part),
    "aliased_part_read": (statements("x.add_(1)", returns="y * 2"), whole_and_part),
    "aliased_twice": (statements("x.add_(y)", "y.mul_(2)", returns="x - y, x is y"), twice),
    "aliased_overlap": (statements("x.add_(1)", "y.mul_(3)", returns="x + y"), two_parts),
    "aliased_apart": (statements("x.add_(1)", "y.mul_(3)", returns="x + y"), apart),
    "aliased_not_written": (statements("z = x * 2", returns="z, x + 1"), whole_and_part),
    "nonleaf": (statements("x.add_(y)", "x.sin_()", returns="x"), nonleaf),
    "nonleaf_through_view": (
        statements("x[1].mul_(2)", "x[:, 2] = y[:, 2]", returns="x * 3"),
        nonleaf,
    ),
    "nonleaf_becomes_differentiable": (statements("y.add_(x)", returns="y * 2"), nonleaf),
    "detached_write": (statements("x.detach().add_(1)", returns="x + y"), two),
    "write_under_no_grad": (
        statements("with torch.no_grad():", "    x.add_(1)", returns="x * y"),
        lambda: (grad(4, 6), grad(4, 6)),
    ),
    "write_result": (
        statements("z = x * y", "z.add_(1)", "z[0] = 0", "z.mul_(z)", returns="z"),
        lambda: (grad(4, 6), grad(4, 6)),
    ),
    "write_result_view_out": (
        statements("z = x * y", "v = z[1:]", "v.mul_(2)", returns="z, v"),
        lambda: (grad(4, 6), grad(4, 6)),
    ),
    "write_clone": (
        statements("z = x.clone()", "z[:, 1:3] += y[:, :2]", "z.view(-1)[::5] = 0", returns="z"),
        lambda: (grad(4, 6), grad(4, 6)),
    ),
    "write_then_backward_value": (
        statements("z = x.exp()", "w = z * y", "w.add_(z)", returns="w"),
        lambda: (grad(4, 6), grad(4, 6)),
    ),
    "saved_then_written_error": (
        statements("z = x.exp()", "w = z * 2", "z.add_(1)", returns="w + z"),
        lambda: (grad(4, 6), grad(4, 6)),
    ),
    "leaf_error": (statements("x.add_(1)", returns="x"), lambda: (grad(4), grad(4))),
    "leaf_view_error": (statements("x[0].add_(1)", returns="x"), lambda: (grad(4), grad(4))),
    "expanded_write_error": (
        statements("x.expand(4, 6).add_(1)", returns="x"),
        lambda: (rand(1, 6), rand(1)),
    ),
    "transposed_input": (
        statements("x.add_(y)", "x[1:].mul_(2)", returns="x.sum(1)"),
        lambda: (transposed(4, 6).detach(), rand(4, 6)),
    ),
    "strided_input": (
        statements("x.add_(y)", "x[:, 0] = 0", returns="x"),
        lambda: (strided(4, 6).detach(), rand(4, 6)),
    ),
    "integers": (
        statements("x.add_(y)", "x[0] //= 2", "x.bitwise_and_(7)", "x <<= 1", returns="x"),
        lambda: (ints(4, 6), ints(4, 6)),
    ),
    "bools": (
        statements("x &= y", "x[0] = True", "x |= ~y", "x.logical_xor_(y)", returns="x"),
        lambda: (bools(4, 6), bools(4, 6)),
    ),
    "bfloat16": (
        statements("x.add_(y).mul_(0.1)", "x[0] = 1", returns="x"),
        lambda: (rand(4, 6, dtype=torch.bfloat16), rand(4, 6)),
    ),
    "int_add_float_error": (statements("x.add_(y)", returns="x"), lambda: (ints(4), rand(4))),
    "zero_dim": (statements("x.add_(1)", "x.mul_(y)", returns="x"), lambda: (rand(), rand())),
    "empty": (
        statements("x.add_(1)", "x[:, 1:] = y", returns="x"),
        lambda: (rand(0, 4), rand(0, 3)),
    ),
    "counter": (statements("y += 1", returns="x * y"), lambda: (rand(3), torch.tensor(0))),
    "write_to_data": (statements("x.data.add_(1)", returns="x + y"), two),
    "data_assignment": (
        statements("z = torch.zeros(4, 6)", "z.data = x", "z.add_(1)", returns="z"),
        two,
    ),
    "loop_accumulate": (
        statements("z = torch.zeros(6)", "for row in x:", "    z += row * 2", returns="z"),
        lambda: (grad(4, 6), rand(1)),
    ),
    "loop_rows": (statements("for k in range(3):", "    x[k] = x[k + 1] + y[k]", returns="x"), two),
    "chunk_writes": (
        statements("a, b = x.chunk(2, 1)", "a.add_(b)", "b.zero_()", returns="x"),
        two,
    ),
    "split_result_writes": (
        statements("z = x + 0", "a, b = z.unbind(1)[:2]", "a.add_(1)", returns="z"),
        two,
    ),
    "foreach": (
        statements(
            "torch._foreach_add_([x, y], 1.5)", "torch._foreach_mul_([x], [y])", returns="(x, y)"
        ),
        two,
    ),
    "lerp_addcmul": (
        statements(
            "x.lerp_(y, 0.3)",
            "x.addcmul_(y, y, value=0.1)",
            "x.addcdiv_(y, y.abs() + 1)",
            "x.abs_()",
            returns="x",
        ),
        two,
    ),
    "self_copy": (statements("x.copy_(x)", "x[1:] = x[:-1].clone()", returns="x"), two),
    "overlapping_self_write": (statements("x[:, 1:].copy_(x[:, :-1] * 1)", returns="x"), two),
    "transpose_self_write": (
        statements("x.copy_(x.T * 2)", returns="x"),
        lambda: (rand(5, 5), rand(1)),
    ),
    "sum_of_written": (statements("x.add_(y)", "s = x.sum()", "x.zero_()", returns="s"), two),
    "input_returned_before_write": (statements("z = x", "x.add_(1)", returns="z, x.view(-1)"), two),
    "view_out_of_written_base": (
        statements("z = x.exp()", "v = z.unsqueeze(1)", "z.zero_()", returns="v"),
        lambda: (grad(4, 6), rand(1)),
    ),
    "written_view_out": (
        statements("z = -x", "v = z[..., 1:-1]", "v[0] = 0.5", returns="v"),
        lambda: (grad(4, 6), rand(1)),
    ),
    "expanded_mask_write": (
        statements("v = x.expand(2, *x.shape)", "v[v > 0] = -1.25", returns="v"),
        two,
    ),
    "set_requires_grad": (
        statements("z = x.detach() * 1", "z.requires_grad_()", "w = z * 2", returns="w.detach()"),
        two,
    ),
}

for _name, (_function, _make) in CASES.items():
    # Eager does not count writes through `.data`.
    add(_name, _function, _make, fullgraph=False)
