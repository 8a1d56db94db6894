"""Programs of views, indexing, gathers and scatters, joins, paddings and factories."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.programs.draw import bools, channels_last, grad, ints, rand, strided, transposed
from tests.programs.program import Program, program

# fmt: off
# A line a program.
PROGRAMS: dict[str, Program] = {}
add = program(PROGRAMS)

# Outputs that are views of inputs or of one another
# ------------------------------------------------------------------
add(
    "views_of_input",
    lambda x: (x, x.view(-1), x[0], x.T, x[:, 1:3], x.unsqueeze(0), x.expand(2, 4, 6), x.detach()),
    lambda: (grad(4, 6),),
)
add(
    "views_of_result",
    lambda x: (y := x * 2, y.view(-1), y[1], y.T, y[::2, ::3]),
    lambda: (grad(4, 6),),
)
add("same_twice", lambda x: (y := x + 1, y, x, x), lambda: (grad(4),))
add("only_an_input", lambda x, y: y, lambda: (grad(4), grad(3)))
add("only_a_view", lambda x: x[1:, 2], lambda: (grad(4, 6),))
add("view_of_no_grad", lambda x: (x.T, x.chunk(2)), lambda: (rand(4, 6),))
add(
    "chunks_as_outputs",
    lambda x: (x.split(2), x.chunk(3, 1), x.unbind(0), torch.tensor_split(x, 3, 1)),
    lambda: (rand(4, 6),),
)
add(
    "chunks_of_result",
    lambda x: [part * 2 for part in (x + 1).split([1, 3, 2], 1)],
    lambda: (grad(4, 6),),
)
add(
    "detached_result",
    lambda x: (y := x.sin(), y.detach(), y.detach() * x, x.detach() + 1),
    lambda: (grad(4),),
)
add("no_grad_part", lambda x: torch.no_grad()(lambda t: t * 2)(x) + x, lambda: (grad(4),))
add("integer_outputs", lambda x: (x.long(), x > 0, x.argmax(), x * 2), lambda: (grad(4),))
add(
    "nested_containers",
    lambda x: {"a": [x + 1, (x, None, 3)], "b": {"c": x.T, "d": "text"}, 5: 2.5},
    lambda: (grad(3, 2),),
)

# Shapes
# ----------------------------------------------------------------------------
add(
    "reshapes",
    lambda x: (
        x.reshape(6, -1) + 1, x.flatten(1) * 2, x.unflatten(1, (3, 2)).sum(1),
        x.view(2, 2, 6).permute(2, 0, 1) + 1, x.T.reshape(-1) * 1, x.swapaxes(0, 1) * 2,
        x.movedim(0, 1).sin(),
    ),
    lambda: (grad(4, 6),),
)
add(
    "reshape_of_transposed",
    lambda x: (x.reshape(-1), x.reshape(3, -1), x.flatten().view(9, 2), x.contiguous().view(-1)),
    lambda: (transposed(3, 6),),
)
add("view_error", lambda x: x.view(-1), lambda: (transposed(3, 6),), fullgraph=False)
add("shape_error", lambda x, y: x + y, lambda: (grad(3), grad(4)), fullgraph=False)
add("index_error", lambda x: x[7], lambda: (grad(3),), fullgraph=False)
add(
    "squeezes",
    lambda x: (
        x.squeeze() + 1, x.squeeze(0) * 1, x.squeeze((0, 2)) + 2, x.unsqueeze(-1).sum(-1),
        x[None, ..., None].sum((0, -1)),
    ),
    lambda: (grad(1, 4, 1, 3),),
)
add(
    "expands",
    lambda x: (
        x.expand(4, 3, 2) + 1, x.broadcast_to(3, 3, 2).sum(0), x.repeat(2, 1, 3), x.tile(2, 2),
        x.repeat_interleave(2, 0), x.expand_as(torch.zeros(5, 3, 2)).clone(),
    ),
    lambda: (grad(1, 3, 2),),
)
add("expand_gradient", lambda x: x.expand(5, 4) * torch.arange(20.0).view(5, 4), lambda: (grad(4),))
add(
    "slices",
    lambda x: (
        x[1:3] + 1, x[:, ::2] * 2, x[-1] + 0, x[..., -2:] * 1, x[1, 2:5] + 1, x[3:1] + 1,
        x[:, None, 2] * 3, x.narrow(1, 2, 3) + 1, x.select(0, 2) * 2,
    ),
    lambda: (grad(4, 6),),
)
add(
    "flips",
    lambda x: (
        x.flip(0), x.flip((0, 1)), x.fliplr(), x.rot90(), x.roll(1), x.roll((1, 2), (0, 1)),
        x.flip(1)[:, ::2],
    ),
    lambda: (grad(4, 6),),
)
add(
    "diagonals",
    lambda x, v: (
        x.diagonal() + 1, x.diag() * 2, v.diag() + 1, torch.diag_embed(v), x.diagonal(1) * 2,
        x.tril() + x.triu(1), x.tril(-1), torch.block_diag(x, x),
    ),
    lambda: (grad(4, 6), grad(4)),
)
add(
    "unfolds",
    lambda x: (x.unfold(0, 3, 2) * 1, x.unfold(1, 2, 1).sum(-1), x.as_strided((2, 3), (6, 2)) + 1),
    lambda: (grad(7, 6),),
)
add(
    "fold",
    lambda x: (
        F.unfold(x, 3, padding=1), F.fold(F.unfold(x, 2), (5, 6), 2),
        F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2), F.channel_shuffle(x.repeat(1, 2, 1, 1), 2),
    ),
    lambda: (grad(2, 3, 5, 6),),
)
add(
    "joins",
    lambda x, y: (
        torch.cat([x, y]), torch.cat([x, y, x], 0)[1:4], torch.stack([x, x + 1]),
        torch.stack([x, x], -1), torch.hstack([x, x]), torch.vstack([x, y]),
        torch.cat([x.T, y.T], 1), torch.dstack([x, x]),
    ),
    lambda: (grad(3, 4), grad(2, 4)),
)
add(
    "joins_of_kinds",
    lambda x, y, e: (
        torch.cat([x, y]), torch.cat([x, x.long()]), torch.cat([e, x]), torch.cat([x]),
    ),
    lambda: (rand(3), rand(2, dtype=torch.float64), rand(0)),
)
add(
    "joins_channels_last",
    lambda x, y: (torch.cat([x, y], 1), torch.cat([x, y]), torch.stack([x, y])),
    lambda: (channels_last(2, 3, 4, 5), channels_last(2, 3, 4, 5)),
)
add(
    "meshgrid",
    lambda x, y: (
        *torch.meshgrid(x, y, indexing="ij"), torch.cartesian_prod(x, y), torch.outer(x, y),
        torch.broadcast_tensors(x[:, None], y),
    ),
    lambda: (grad(3), grad(4)),
)
add(
    "padding",
    lambda x: (
        F.pad(x, (1, 2)), F.pad(x, (1, 0, 2, 1), value=3.5), F.pad(x, (-1, 1)),
        F.pad(x, (2, 1, 1, 2), mode="reflect"), F.pad(x, (2, 1, 1, 0), mode="replicate"),
        F.pad(x, (1, 1, 1, 1), mode="circular"),
    ),
    lambda: (grad(2, 3, 4, 5),),
)
add(
    "complexity_of_permutes",
    lambda x: x.permute(2, 0, 1).reshape(6, -1).T.view(3, 4, 6).sum(1).T.contiguous(),
    lambda: (grad(3, 4, 6),),
)

# Indexing by tensors
# ----------------------------------------------------------------------------
add(
    "gathers",
    lambda x, i: (x.gather(1, i), x.gather(0, i % 4), torch.take_along_dim(x, i, 1), x.take(i)),
    lambda: (grad(4, 6), ints(4, 3, low=0, high=6)),
)
add(
    "advanced_indexing",
    lambda x, i, j: (
        x[i], x[i, j], x[:, j], x[i[:, None], j], x[i, 2:4], x[..., j], x[i, :, None], x[-i],
    ),
    lambda: (grad(4, 6, 5), ints(3, low=0, high=4), ints(3, low=0, high=5)),
)
add(
    "negative_indices",
    lambda x, i: (x[i], x[:, i], x.index_select(0, i % 4)),
    lambda: (grad(4, 5), ints(6, low=-4, high=4)),
)
add(
    "list_indexing",
    lambda x: (x[[0, 2]], x[:, [1, 1, 0]], x[[0, 1], [2, 3]], x[torch.tensor([1, 2])]),
    lambda: (grad(4, 6),),
)
add(
    "range_indexing",
    lambda x: (x[range(3)], x[:, range(1, 3)], x[1, range(0)]),
    lambda: (grad(4, 6),),
)
add(
    "index_select",
    lambda x, i: (x.index_select(0, i), x.index_select(1, i), torch.index_select(x, 1, i[:0])),
    lambda: (grad(4, 6), ints(5, low=0, high=4)),
)
add(
    "index_put",
    lambda x, i, v: (
        x.index_put((i,), v), x.index_put((i,), v, accumulate=True), x.index_add(0, i, v),
        x.index_add(0, i, v, alpha=2), x.index_copy(0, i[:1], v[:1]), x.index_fill(0, i, 2.5),
    ),
    lambda: (grad(4, 6), torch.randperm(4)[:3], grad(3, 6)),
)
add(
    "scatters",
    lambda x, i, v: (
        x.scatter(1, i, v), x.scatter(1, i, 2.0), x.scatter_add(1, i, v),
        x.scatter_reduce(1, i, v, "sum", include_self=False),
    ),
    lambda: (grad(4, 6), torch.stack([torch.randperm(6)[:3] for _ in range(4)]), grad(4, 3)),
)
add(
    "scatter_reduce",
    lambda x, i, v: (
        x.scatter_reduce(1, i, v, "amax"), x.scatter_reduce(1, i, v, "amin"),
        x.scatter_reduce(1, i, v, "mean"), x.scatter_reduce(1, i, v, "prod"),
    ),
    lambda: (rand(4, 6), ints(4, 9, low=0, high=6), rand(4, 9)),
    backward=False,
)
add(
    "scatter_views",
    lambda x, v: (
        x.select_scatter(v, 0, 1), x.slice_scatter(v[None], 0, 2, 3), x.diagonal_scatter(v[:4]),
        torch.slice_scatter(x, x[:, :3] * 2, 1, 0, 6, 2),
    ),
    lambda: (grad(4, 6), grad(6)),
)
add(
    "masked",
    lambda x, m: (
        x.masked_fill(m, 3.0), torch.where(m, x, -x),
        x.masked_fill(m[:, :1], float("-inf")).softmax(1), x.masked_scatter(m, x * 2), x * m,
    ),
    lambda: (grad(4, 6), bools(4, 6)),
)
add("masked_select", lambda x, m: x[m] * 2, lambda: (grad(4, 6), bools(4, 6)), fullgraph=False)
add("nonzero", lambda x: (x > 0).nonzero() + 1, lambda: (rand(9),), fullgraph=False)
add("where_one_argument", lambda x: torch.where(x > 0), lambda: (rand(9),), fullgraph=False)
add("unique", lambda x: torch.unique(x) * 2, lambda: (ints(9),), fullgraph=False)
add(
    "mask_assignment",
    lambda x, m: (y := x.clone(), y.__setitem__(m, 0.5), y * 2)[::2],
    lambda: (grad(4, 6), bools(4, 6)),
)
add(
    "embedding",
    lambda i, w: (F.embedding(i, w), F.embedding(i, w, padding_idx=2), w[i], F.one_hot(i, 9)),
    lambda: (ints(3, 4, low=0, high=7), grad(7, 5)),
    versions=False,  # eager's one_hot writes twice to its result, for tensor subclasses not at all
)
add(
    "one_hot_of_transposed",
    lambda i: (F.one_hot(i, 5), F.one_hot(i.unsqueeze(0), 6), F.one_hot(i.expand(3, 4, 7), 5)),
    lambda: (ints(7, 4, low=0, high=5).t(),),
    versions=False,
)
add(
    "embedding_halves",
    lambda i, w: F.embedding(i, w).sum(1),
    lambda: (ints(3, 4, low=0, high=7, dtype=torch.int32), grad(7, 5, dtype=torch.bfloat16)),
)
add(
    "embedding_bag",
    lambda i, w: (F.embedding_bag(i, w, mode="sum"), F.embedding_bag(i, w, mode="mean")),
    lambda: (ints(3, 4, low=0, high=7), grad(7, 5)),
)
add(
    "index_out_of_range",
    lambda x, i: x[i] + 1,
    lambda: (rand(4), torch.tensor([1, 9])),
    messages=False,
)
add(
    "bucket_counts",
    lambda i: (torch.bincount(i, minlength=8), i.sum()),
    lambda: (ints(20, low=0, high=7),),
    fullgraph=False,
)
add(
    "tensor_index_scalar",
    lambda x, i: (x[i], x[i, 1], x[:, i]),
    lambda: (grad(4, 6), torch.tensor(2)),
    fullgraph=False,
)

# Factories
# ----------------------------------------------------------------------------
add(
    "factories",
    lambda x: (
        torch.arange(7), torch.arange(2, 9, 2.5), torch.arange(9, 0, -3), torch.zeros(2, 3),
        torch.ones(3, dtype=torch.int32), torch.full((2,), 7), torch.full((2,), 1.5), torch.eye(3),
        torch.eye(2, 4), torch.linspace(0, 1, 7), torch.tril(torch.ones(4, 4)), x + 1,
    ),
    lambda: (grad(2),),
)
add(
    "factories_like",
    lambda x: (
        torch.zeros_like(x), torch.ones_like(x, dtype=torch.long), torch.full_like(x, 3),
        x.new_zeros(2), x.new_full((3,), 2), x.new_tensor([1, 2]), torch.empty_like(x).fill_(2),
        x.new_ones(1, 2), torch.logspace(0, 2, 5),
    ),
    lambda: (transposed(4, 3),),
)
add(
    "literals",
    lambda x: (
        torch.tensor([1.0, 2.0]) * x, torch.tensor(3), torch.tensor([[1, 2], [3, 4]]),
        torch.tensor(2.5) + x, torch.as_tensor([1.0, 2.0]), torch.tensor([True, False]),
        torch.tensor(1.0, dtype=torch.float64) * x, torch.scalar_tensor(4.0),
    ),
    lambda: (grad(2),),
)
add(
    "arange_masks",
    lambda x: (
        torch.arange(6) < 4, torch.where(torch.arange(6) % 2 == 0, x, 0),
        x * torch.arange(4)[:, None], torch.arange(6.0) / 3,
        x.cumsum(0) * (torch.arange(24).view(4, 6) > 7),
    ),
    lambda: (grad(4, 6),),
)
add(
    "tril_masks",
    lambda x: (
        x.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf")).softmax(-1),
        torch.tril_indices(3, 3), torch.ones(3, 3).tril(-1),
    ),
    lambda: (grad(2, 5, 5),),
)
add("constants_only", lambda: (torch.ones(3) + 1, torch.arange(4).float().mean()), lambda: ())
add(
    "randoms",
    lambda x: (
        torch.rand(3, 4), torch.randn(2), torch.randint(0, 9, (5,)), torch.rand_like(x),
        torch.randn_like(x) + x, torch.randperm(6), torch.bernoulli(torch.full((9,), 0.5)),
        torch.normal(0.0, 1.0, (3,)),
    ),
    lambda: (grad(3, 3),),
)
add(
    "random_in_place",
    lambda x: (
        torch.empty(5).uniform_(2, 3), torch.empty(5).normal_(1, 2), torch.empty(4).exponential_(),
        torch.empty(4).bernoulli_(0.3), x * torch.zeros(3).random_(0, 5),
    ),
    lambda: (grad(3),),
)
add("multinomial", lambda x: torch.multinomial(x.softmax(-1), 3), lambda: (rand(4, 6),))
add(
    "strided_views",
    lambda x: (x + 1, x.T.sum(0), x.reshape(-1) * 2, x[::2, 1:] * 3, x.view(x.shape).neg()),
    lambda: (strided(4, 6),),
)
