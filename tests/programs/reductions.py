"""Programs of reductions, norms, softmaxes, losses, pools, sorts and scans."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.programs.draw import (
    bools,
    channels_last,
    grad,
    ints,
    rand,
    special,
    strided,
    transposed,
    uniform,
)
from tests.programs.program import Program, program

# fmt: off
# A line a program.
PROGRAMS: dict[str, Program] = {}
add = program(PROGRAMS)

add(
    "sums",
    lambda x: (
        x.sum(), x.sum(0), x.sum(-1), x.sum((0, 2)), x.sum(1, keepdim=True),
        x.sum(dtype=torch.float64), x.mean(), x.mean((1, 2)), x.nansum(), torch.nanmean(x),
    ),
    lambda: (grad(5, 7, 9),),
)
add(
    "variances",
    lambda x: (
        x.var(), x.var(0), x.std(1), x.var((0, 2), unbiased=False), x.std(-1, keepdim=True),
        *torch.var_mean(x, 1), *torch.std_mean(x, 0, correction=0),
    ),
    lambda: (grad(5, 7, 9),),
)
add(
    "extremes",
    lambda x: (
        x.max(), x.min(), x.amax(1), x.amin((0, 2)), x.argmax(), x.argmin(1), *x.max(1),
        *x.min(-1, keepdim=True), x.aminmax(dim=0),
    ),
    lambda: (grad(5, 7, 9),),
)
add(
    "extremes_with_nan",
    lambda x: (
        x.max(), x.min(), x.amax(0), x.argmax(), x.argmin(), *x.max(0), *x.min(0), x.sum(),
        x.any(), x.all(),
    ),
    lambda: (torch.stack([special(), special().flip(0)]),),
    backward=False,
)
add(
    "ties",
    lambda x: (x.argmax(), x.argmax(1), x.argmin(0), *x.max(0), *x.min(1), x.amax(1)),
    lambda: (ints(5, 40, low=0, high=3),),
)
add(
    "tie_gradients",
    lambda x: (x.amax(0), x.max(), x.min(1).values, x.max(0).values),
    lambda: (ints(6, 5, low=0, high=3).float().requires_grad_(),),
)
add(
    "integer_reductions",
    lambda x: (
        x.sum(), x.prod(1), x.max(), x.sum(0, dtype=torch.int32), x.any(1), x.all(),
        x.float().mean(), x.amin(0), x.argmax(-1), torch.count_nonzero(x), x.cumsum(0),
    ),
    lambda: (ints(6, 5),),
)
add(
    "small_integer_reductions",
    lambda x, b: (
        x.sum(), x.prod(0), x.amax(1), b.sum(1), b.any(0), b.all(1), b.float().mean(),
        x.sum(dtype=torch.float32), b.cumsum(0),
    ),
    lambda: (ints(6, 5, low=0, high=250, dtype=torch.uint8), bools(6, 5)),
)
add("products", lambda x: (x.prod(), x.prod(0), x.prod(1, keepdim=True)), lambda: (grad(3, 6),))
add(
    "norms",
    lambda x: (
        x.norm(), x.norm(dim=1), x.norm(p=1, dim=0), x.norm(p=3),
        torch.linalg.vector_norm(x, ord=float("inf"), dim=1), torch.linalg.norm(x),
        F.normalize(x, dim=1), x.norm(p=0),
    ),
    lambda: (grad(6, 5),),
)
add(
    "logsumexp",
    lambda x: (
        x.logsumexp(0), torch.logsumexp(x, (0, 1)), x.logsumexp(-1, keepdim=True),
        x.log_softmax(0), x.softmax(1), F.softmin(x, 1), torch.logcumsumexp(x, 0),
    ),
    lambda: (grad(6, 5),),
)
add(
    "softmax_specials",
    lambda x: (x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1)),
    lambda: (
        torch.tensor(
            [
                [0.0, float("-inf"), 1.0], [float("-inf")] * 3, [float("inf"), 0.0, 1.0],
                [1e4, -1e4, 0.0],
            ],
        ),
    ),
    backward=False,
)
add(
    "softmax_dtypes",
    lambda x: (
        x.softmax(-1), x.softmax(-1, dtype=torch.float32), x.log_softmax(0),
        F.softmax(x.float(), 1).to(x.dtype),
    ),
    lambda: (grad(7, 33, dtype=torch.bfloat16),),
)
add(
    "softmax_of_one",
    lambda x: (x.softmax(0), x.softmax(1), x.softmax(2), x.log_softmax(-1)),
    lambda: (grad(1, 5, 1),),
)
add(
    "softmax_zero_dim",
    lambda x: (
        x.softmax(0), x.log_softmax(0), x.sum(0), x.max(0).values, x.mean(-1), x.logsumexp(0),
    ),
    lambda: (grad(),),
)
add(
    "long_rows",
    lambda x: (x.sum(1), x.softmax(1), x.amax(1), x.var(1), x.argmax(1)),
    lambda: (grad(3, 5003),),
    factor=16.0,
)
add(
    "long_columns",
    lambda x: (x.sum(0), x.softmax(0), x.amax(0), x.mean(0), x.var(0)),
    lambda: (grad(5003, 3),),
)
add(
    "full_sum",
    lambda x: (x.sum(), x.mean(), x.max(), x.norm(), (x > 0).sum()),
    lambda: (grad(100003),),
)
add(
    "transposed_reductions",
    lambda x: (x.sum(0), x.sum(1), x.softmax(0), x.softmax(1), x.amax(0), x.argmax(1), x.var(1)),
    lambda: (transposed(13, 17),),
)
add(
    "strided_reductions",
    lambda x: (x.sum(0), x.sum(1), x.softmax(1), x.argmax(), x.std(0)),
    lambda: (strided(9, 11),),
)
add(
    "empty_reductions",
    lambda x: (
        x.sum(), x.sum(0), x.sum(1), x.prod(1), x.any(0), x.all(1), x.mean(1), x.var(1),
        x.softmax(0), x.logsumexp(1), x.cumsum(0), x.amax(0),
    ),
    lambda: (rand(5, 0),),
    backward=False,
)
add("empty_max_error", lambda x: x.max(), lambda: (rand(0),), fullgraph=False)
add(
    "reduce_of_reduce",
    lambda x: (
        (x - x.mean(1, keepdim=True)).square().mean(1).sqrt().sum(), x.sum(1).softmax(0).max(),
    ),
    lambda: (grad(9, 7),),
)
add(
    "cumulative",
    lambda x: (
        x.cumsum(0), x.cumsum(1), x.cumprod(1), *x.cummax(0), *x.cummin(1), x.flip(0).cumsum(0),
    ),
    lambda: (grad(6, 5),),
)
add(
    "sorting",
    lambda x: (
        *x.sort(), *x.sort(0, descending=True), *x.topk(3), *x.topk(2, dim=0, largest=False),
        x.argsort(1), *x.kthvalue(2), x.median(), *x.median(1), x.msort(),
    ),
    lambda: (grad(6, 5),),
)
add(
    "searching",
    lambda x, v: (
        torch.searchsorted(x, v), torch.bucketize(v, x), torch.bucketize(v, x, right=True),
        torch.histc(v, 4, -1, 1),
    ),
    lambda: (rand(9).sort().values, rand(3, 4)),
    backward=False,
)
add(
    "quantiles",
    lambda x: (x.quantile(0.3), x.quantile(0.5, dim=1), x.nanquantile(0.25, dim=0)),
    lambda: (grad(6, 5),),
    fullgraph=False,
)
add(
    "layer_norm",
    lambda x, w, b: (
        F.layer_norm(x, (9,), w, b), F.layer_norm(x, (7, 9)), F.layer_norm(x, (9,), w),
        F.rms_norm(x, (9,), w),
    ),
    lambda: (grad(4, 7, 9), grad(9), grad(9)),
)
add(
    "layer_norm_halves",
    lambda x, w, b: (F.layer_norm(x, (9,), w, b), F.rms_norm(x, (9,), w), F.gelu(x)),
    lambda: (
        grad(4, 9, dtype=torch.bfloat16), grad(9, dtype=torch.bfloat16),
        grad(9, dtype=torch.bfloat16),
    ),
)
add(
    "group_norm",
    lambda x, w, b: (F.group_norm(x, 3, w, b), F.group_norm(x, 1), F.group_norm(x, 6, w)),
    lambda: (grad(2, 6, 5, 3), grad(6), grad(6)),
)
add(
    "group_norm_channels_last",
    lambda x, w, b: (F.group_norm(x, 3, w, b), F.instance_norm(x)),
    lambda: (channels_last(2, 6, 5, 3), grad(6), grad(6)),
)
add(
    "batch_norm_train",
    lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training=True, momentum=0.3),
    lambda: (grad(4, 3, 5), rand(3), rand(3).abs(), grad(3), grad(3)),
)
add(
    "batch_norm_eval",
    lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training=False),
    lambda: (grad(4, 3, 5, 2), rand(3), rand(3).abs(), grad(3), grad(3)),
)
add(
    "batch_norm_channels_last",
    lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training=True),
    lambda: (channels_last(4, 3, 5, 2), rand(3), rand(3).abs(), grad(3), grad(3)),
)
add("batch_norm_2d", lambda x: F.batch_norm(x, None, None, training=True), lambda: (grad(9, 5),))
add(
    "instance_norm",
    lambda x, w, b: (F.instance_norm(x, weight=w, bias=b), F.local_response_norm(x, 2)),
    lambda: (grad(2, 3, 7, 4), grad(3), grad(3)),
)
add(
    "cross_entropy",
    lambda x, y: (
        F.cross_entropy(x, y), F.cross_entropy(x, y, reduction="sum"),
        F.cross_entropy(x, y, reduction="none"), F.cross_entropy(x, y, label_smoothing=0.1),
        F.cross_entropy(x, y, ignore_index=2), F.nll_loss(x, y),
    ),
    lambda: (grad(8, 5), ints(8, low=0, high=5)),
)
add(
    "cross_entropy_weight",
    lambda x, y, w: (
        F.cross_entropy(x, y, weight=w),
        F.nll_loss(x.log_softmax(1), y, weight=w, reduction="sum"),
    ),
    lambda: (grad(8, 5), ints(8, low=0, high=5), uniform(5).detach()),
)
add(
    "squares_of_differences_from_a_loss",
    lambda x, y: (x - F.cross_entropy(x, y)).square().mean(),
    lambda: (grad(8, 5), ints(8, low=0, high=5)),
)
add(
    "cross_entropy_spatial",
    lambda x, y: (F.cross_entropy(x, y, ignore_index=0), F.nll_loss(x.log_softmax(1), y)),
    lambda: (grad(2, 5, 3, 4), ints(2, 3, 4, low=0, high=5)),
)
add(
    "cross_entropy_probabilities",
    lambda x, y: F.cross_entropy(x, y.softmax(1), label_smoothing=0.2),
    lambda: (grad(8, 5), grad(8, 5)),
)
add(
    "cross_entropy_all_ignored",
    lambda x: F.cross_entropy(x, torch.full((4,), -100)),
    lambda: (grad(4, 5),),
)
add(
    "losses",
    lambda x, y: (
        F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y, beta=0.5),
        F.huber_loss(x, y, delta=0.7), F.mse_loss(x, y, reduction="none"),
        F.soft_margin_loss(x, y.detach().sign()), F.poisson_nll_loss(x, y.abs()),
        F.soft_margin_loss(x, (x > 0) * 1.0),
    ),
    lambda: (grad(6, 5), grad(6, 5)),
)
add(
    "gaussian_loss",
    lambda x, y: F.gaussian_nll_loss(x, y, y.abs() + 0.1),
    lambda: (grad(6, 5), grad(6, 5)),
    fullgraph=False,
)
add(
    "losses_of_two_dtypes",
    lambda x, y: (F.mse_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y), F.l1_loss(x, y)),
    lambda: (grad(6, 5), rand(6, 5, dtype=torch.float64)),
    backward=False,
)
add(
    "reductions_of_constants",
    lambda x: (
        torch.full_like(x, 0.1).logsumexp(1), F.layer_norm(x, x.shape[-1:]),
        torch.ones_like(x).softmax(0).sum(0), torch.full((40, 3), 2.0).std(0),
    ),
    lambda: (rand(1).expand(2, 3, 4, 4),),
    backward=False,
)
add(
    "binary_losses",
    lambda x, y: (
        F.binary_cross_entropy(x.sigmoid(), y), F.binary_cross_entropy_with_logits(x, y),
        F.binary_cross_entropy_with_logits(x, y, pos_weight=y + 1, reduction="sum"),
        F.kl_div(x, y), F.kl_div(x, x.detach(), log_target=True, reduction="batchmean"),
    ),
    lambda: (grad(6, 5), torch.rand(6, 5)),
)
add(
    "pair_losses",
    lambda x, y, z: (
        F.cosine_similarity(x, y), F.cosine_embedding_loss(x, y, torch.ones(6)),
        F.triplet_margin_loss(x, y, z), F.margin_ranking_loss(x, y, z.sign()),
        F.pairwise_distance(x, y), F.hinge_embedding_loss(x, y.sign()),
    ),
    lambda: (grad(6, 5), grad(6, 5), grad(6, 5)),
)
add(
    "multi_losses",
    lambda x, y: (
        F.multi_margin_loss(x, y), F.multilabel_soft_margin_loss(x, F.one_hot(y, 5).float()),
    ),
    lambda: (grad(6, 5), ints(6, low=0, high=5)),
)
add(
    "max_pool",
    lambda x: (
        F.max_pool2d(x, 2), F.max_pool2d(x, 3, stride=2, padding=1),
        F.max_pool2d(x, 2, dilation=2, ceil_mode=True), *F.max_pool2d(x, 2, return_indices=True),
        F.max_pool1d(x[0], 3),
    ),
    lambda: (grad(2, 3, 9, 7),),
)
add(
    "max_pool1d_of_transposed",
    lambda x: (
        F.max_pool1d(x.transpose(1, 2), 2), *F.max_pool1d(x.mT, 2, return_indices=True),
        torch.max_pool1d(x.permute(2, 0, 1), 3, 2, 1), F.max_pool1d(x[0].t(), 2),
    ),
    lambda: (rand(4, 9, 5),),
    versions=False,  # eager counts a write where it takes a batch dim away
)
add(
    "max_pool1d_of_transposed_with_gradient",
    lambda x: (F.max_pool1d(x.transpose(1, 2), 2), F.max_pool1d(x[:1].mT, 2)),
    lambda: (grad(4, 9, 5),),
)
add("max_pool1d_of_integers", lambda x: F.max_pool1d(x, 2), lambda: (ints(2, 3, 8),))
add(
    "softmax_of_no_integers",
    lambda x: (x.softmax(0), x.log_softmax(-1), (x > 0).softmax(1)),
    lambda: (torch.zeros(3, 0, 2, dtype=torch.int64),),
)
add(
    "avg_pool",
    lambda x: (
        F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, stride=2, padding=1),
        F.avg_pool2d(x, 3, padding=1, count_include_pad=False, ceil_mode=True),
        F.avg_pool1d(x[0], 2), F.lp_pool2d(x, 2, 2),
    ),
    lambda: (grad(2, 3, 9, 7),),
)
add(
    "adaptive_pool",
    lambda x: (
        F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (4, 3)),
        F.adaptive_max_pool2d(x, (2, 3)), F.adaptive_avg_pool1d(x[0], 3),
    ),
    lambda: (grad(2, 3, 9, 7),),
)
add(
    "pool_channels_last",
    lambda x: (
        F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1),
        F.adaptive_avg_pool2d(x, (3, 2)),
    ),
    lambda: (channels_last(2, 3, 9, 7),),
)
add("pool_3d", lambda x: (F.max_pool3d(x, 2), F.avg_pool3d(x, 2)), lambda: (grad(1, 2, 5, 6, 4),))
add(
    "pool_integers_of_bfloat16",
    lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2)),
    lambda: (grad(1, 2, 6, 6, dtype=torch.bfloat16),),
)
add(
    "halves_reductions",
    lambda x: (
        x.sum(), x.sum(0), x.mean(1), x.max(1).values, x.var(0), x.norm(), x.prod(1),
        x.logsumexp(0), x.amax(0),
    ),
    lambda: (grad(5, 9, dtype=torch.bfloat16),),
)
add(
    "float16_reductions",
    lambda x: (
        x.sum(), x.sum(0), x.mean(1), x.argmax(1), x.std(), x.norm(dim=1),
        x.sum(dtype=torch.float32),
    ),
    lambda: (grad(5, 9, dtype=torch.float16),),
)
add(
    "covariance",
    lambda x: (
        torch.cov(x), torch.corrcoef(x), x.trace(), torch.cdist(x, x + 1),
        torch.linalg.matrix_norm(x),
    ),
    lambda: (grad(4, 6),),
    fullgraph=False,
)
add(
    "all_any",
    lambda x: (x.all(0), x.any(1), x.any(), x.all(), (x > 0).all(1), x.bool()),
    lambda: (ints(4, 5, low=0, high=2),),
)
