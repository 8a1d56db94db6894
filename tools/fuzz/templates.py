"""What a statement of a random program can be.

Placeholders are variables drawn by kind: `{f}` floating, `{i}` integer, `{b}` bool, `{z}` complex,
`{n}` real numbers, `{a}` any, `{e}` exact; a second of a kind is `{f2}`. `{d}` is a dim of the
first variable, `{c}` a small float, `{k}` a small int. A value is exact while it can only be bit
for bit what eager computes; only such values may be compared, rounded or sorted, since one unit in
the last place may decide there.
"""

from __future__ import annotations

EXACT = """
{a}.reshape(-1)
{a}.unsqueeze({d})
{a}.squeeze()
{a}.transpose(0, -1)
{a}.T if {a}.ndim == 2 else {a}.flatten()
{a}.flip({d})
{a}.roll({k}, {d})
{a}[0]
{a}[..., -1]
{a}[..., ::2]
{a}[1:]
{a}[:, None]
{a}[..., 1:-1]
{a}.narrow({d}, 0, 1)
{a}.select({d}, -1)
{a}.expand(2, *{a}.shape)
{a}.repeat(2, *[1] * {a}.ndim)
{a}.contiguous()
{a}.clone()
{a}.diagonal() if {a}.ndim >= 2 else {a}
{a}.unfold({d}, 2, 1)
{a}.movedim(0, -1)
{a}.detach()
{a}.view({a}.shape)
{a}.chunk(2, {d})[0]
{a}.unbind({d})[-1]
{a}.split(2, {d})[0]
{a}.repeat_interleave(2, {d})
{a}.tril() if {a}.ndim >= 2 else {a}
torch.cat([{a}, {a}], {d})
torch.stack([{a}, {a}], {d})
torch.cat([{f}, {f2}], {d})
torch.zeros_like({a})
torch.full_like({f}, {c})
torch.arange({f}.shape[0] if {f}.ndim else 3)
torch.ones({k} + 1, 3)
{n}.abs()
-{n}
{f}.relu()
{n}.clamp(-1, 2)
torch.maximum({n}, {n2})
torch.minimum({f}, {f2})
torch.where({b}, {f}, {f2})
torch.where({b}, {n}, {k})
{f}.masked_fill({b}, {c})
{i} + {k}
{i} * {i2}
{i} + {i2}
{i} // ({k} + 1)
{i} % ({k} + 2)
{i} & 5
{i} << 1
{i}.sum({d})
{i}.cumsum({d})
{i}.max()
{i}.to(torch.int32)
{i}.to(torch.uint8)
{i}.float()
{b}.int()
{b}.float()
{b} & {b2}
{b} | {b2}
~{b}
{b}.any({d})
{b}.all()
{b}.sum()
{e}.amax({d})
{e}.amin({d}, keepdim=True)
{e}.max()
{e} > {c}
{e} == 0
{e} <= {e2}
{e}.isnan()
{e}.sign()
{e}.floor()
{e}.round()
{e}.trunc()
{e}.argmax({d})
{e}.argmin()
{e}.max({d})[0]
{e}.min({d})[1]
{e}.sort({d})[0]
{e}.topk(1, {d})[0]
{e}.to(torch.int64)
{e}.to(torch.int32).float().signbit()
{e}.to(torch.int64).to({e}.dtype).signbit()
{e}.nansum({d}, dtype=torch.int64)
{n}.sum({d}, dtype=torch.bool)
{n}.prod({d}, dtype=torch.bool)
{e}.bool()
{f}.gather({d}, {i} % 2 if {i}.shape == {f}.shape else torch.zeros({f}.shape, dtype=torch.long))
{a}[torch.arange(min(2, {a}.shape[0]))]
{a}.index_select({d}, torch.tensor([0, 0]))
F.pad({f}, (1, 1))
F.pad({f}, (0, 1, 1, 0), value={c})
F.max_pool2d({f}, 2) if {f}.ndim in (3, 4) else {f}
F.embedding(torch.zeros(2, dtype=torch.long), {f})
{f}.new_ones(2)
{z}.conj()
{z}.real
{z}.imag
{z}.conj().imag
{z}.resolve_conj()
torch.view_as_real({z}.resolve_conj())
torch.complex({f}.float(), {f}.float())
-{z}
""".strip().splitlines()

ROUNDED = """
{f} + {f2}
{f} - {f2}
{f} * {f2}
{f} * {c}
{f} + {c}
{c} - {f}
{f} / ({f2}.abs() + 1)
{f} + {i}
{f} * {b}
{n} + {n2}
{n} / 3
{f}.sin()
{f}.cos()
{f}.tanh()
{f}.sigmoid()
{f}.clamp(-5, 5).exp()
({f}.abs() + 0.5).log()
({f}.abs() + 0.5).sqrt()
({f}.abs() + 0.5).rsqrt()
{f}.square()
{f}.erf()
{f} ** 2
torch.addcmul({f}, {f2}, {f2}, value={c})
torch.lerp({f}, {f2}, 0.3)
torch.hypot({f}, {f2})
{f}.sum()
{f}.sum({d})
{f}.sum({d}, keepdim=True)
{f}.mean({d})
{f}.mean()
{f}.var({d}, unbiased=False)
{f}.std(unbiased=False)
{f}.norm()
{f}.cumsum({d})
{f}.prod({d})
{f}.softmax({d})
{f}.log_softmax({d})
{f}.logsumexp({d})
{f} - {f}.mean({d}, keepdim=True)
{f} / ({f}.abs().sum({d}, keepdim=True) + 1)
{f} @ {f}.transpose(-1, -2) if {f}.ndim >= 2 else {f}
{f} @ {f2}
torch.outer({f}.flatten()[:7], {f2}.flatten()[:5])
torch.einsum("...i,...i->...", {f}, {f})
F.gelu({f})
F.silu({f})
F.softplus({f})
F.elu({f})
F.mish({f})
F.layer_norm({f}, {f}.shape[-1:])
F.normalize({f}, dim={d})
F.mse_loss({f}, {f2})
F.smooth_l1_loss({f}, {f2})
F.avg_pool2d({f}, 2) if {f}.ndim in (3, 4) else {f}
F.interpolate({f}[None, None], scale_factor=2) if {f}.ndim == 1 else {f}
F.cross_entropy({f}, torch.zeros({f}.shape[0], dtype=torch.long)) if {f}.ndim == 2 else {f}
{f}.index_add(0, torch.zeros({f}.shape[0], dtype=torch.long), {f})
{f}.scatter_add(0, torch.zeros({f}.shape, dtype=torch.long), {f})
F.dropout({f}, 0.4)
{f} + torch.rand({f}.shape)
{f}.to(torch.float32)
torch.cdist({f}, {f} + 1) if {f}.ndim == 2 else {f}
torch.trapezoid({f})
{f}.diff(dim={d})
{z} + {z2}
{z} * {z2}
{z} * {c}
{z}.abs()
{z}.sum({d})
{z}.exp().mean()
{z} * {z}.conj()
""".strip().splitlines()

IDENTITIES = """
{a} * 1
{f} / 1
{f} ** 1
{n} + 0
{n} - 0
{a}.clone()
{a}.contiguous()
{a}.view({a}.shape)
{a}.reshape({a}.shape)
{a}.view(-1).view({a}.shape) if {a}.is_contiguous() else {a}
{a}.expand({a}.shape)
{a}.permute(*range({a}.ndim))
{a}.to({a}.dtype)
{a}[...]
{a}.flatten()[:1].squeeze().sum()
{f}.reshape(-1)[-1].mean()
{f}.reshape(-1)[-1].prod()
{e}.reshape(-1)[-1].amax()
{e}.reshape(-1)[-1].amin(0)
{f}[0] * 1
{f}[..., -1:] * 1
({f} * 1).view({f}.shape)
torch.chunk({f}, 2, {d})[-1] / 1
{f}.unbind({d})[-1] ** 1
""".strip().splitlines()
"""Operations that change nothing, or fold to a view or a copy: their results have strides, offsets
and memory all the same.
"""

OVERFLOWS = """
({f} * 0).sqrt()
({f} * 0).abs().log()
({f} - {f}).abs().rsqrt()
({e} * 1e30).exp()
({e} * 1.0) / 0
""".strip().splitlines()
"""Results with infinite derivatives: a backward of other outputs must not meet them."""

IN_PLACE = """
{v}.add_({c})
{v}.mul_({f})
{v}.mul_(2)
{v}[0] = {c}
{v}[..., 0] = {f}[..., 0]
{v}[1:] += 1
{v}[..., ::2] *= 2
{v}.copy_({f})
{v}.zero_()
{v}.view(-1)[0].add_(1)
{v}.transpose(0, -1).mul_({c})
{v}[{v} > 0] = {c}
{v}.clamp_(-1, 1)
{v}.masked_fill_({b}, {c})
{v}.relu_()
{v} += {f}
""".strip().splitlines()

INPUTS = """
torch.randn({s})
torch.randn({s})
torch.randn({s}).requires_grad_()
torch.randn({s}).requires_grad_()
torch.randn({s}).requires_grad_()
torch.randn({s}).transpose(0, -1).requires_grad_()
torch.randn({s}).transpose(0, -1)
torch.randn(2, {s})[1]
torch.randn({s}, 2)[..., 0].requires_grad_()
torch.randn({s}).to(torch.bfloat16).requires_grad_()
torch.randn({s}, dtype=torch.float64)
torch.randn({s}).half()
torch.randint(-5, 6, ({s},))
torch.randint(0, 9, ({s},), dtype=torch.int32)
torch.randint(0, 200, ({s},), dtype=torch.uint8)
torch.rand({s}) > 0.5
torch.randn(1).expand({s})
torch.randn(4, {s})[2].requires_grad_()
torch.randn(3, {s})[1:][0]
torch.randn({s}, 3)[..., 1]
torch.randn(2, {s}, 2)[1, ..., 1].requires_grad_()
torch.randint(-5, 6, (3, {s}))[1]
torch.randn({s}, dtype=torch.complex64)
torch.randn({s}, dtype=torch.complex64).requires_grad_()
torch.randn(2, {s}, dtype=torch.complex64)[1]
torch.randn({s}, dtype=torch.complex64).conj()
""".strip().splitlines()

SHAPES = [
    "3, 5",
    "3, 5",
    "5",
    "5",
    "4, 3, 5",
    "1, 5",
    "3, 1",
    "2, 3, 4, 4",
    "7, 13",
    "17",
    "1",
    "0, 5",
    "33, 9",
    "",
]
