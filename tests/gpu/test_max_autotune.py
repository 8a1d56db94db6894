"""`mode="max-autotune"` on a GPU: results beside eager, what is measured, what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import flambeau

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

BF16 = {"device": "cuda", "dtype": torch.bfloat16}


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-2) -> None:
    assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
    error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
    assert error <= tolerance, error


PROGRAMS = {
    "gelu": lambda x, w, b: F.gelu(F.linear(x, w, b)),
    "residual and two outputs": lambda x, w, b: (
        (y := F.linear(x, w, b)) + y.sigmoid(),
        y.to(torch.promote_types(y.dtype, torch.float32)),
    ),
    "no epilogue": lambda x, w, b: x @ w.t(),
    "softmax after": lambda x, w, b: F.linear(x, w, b).softmax(-1),
    "added twice": lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5, alpha=2.0).relu(),
}


@pytest.mark.parametrize("backends", ["ATEN,TRITON", "TRITON"])
@pytest.mark.parametrize("shape", [(256, 384, 512), (77, 333, 130), (1, 520, 1000), (16, 64, 4096)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name: str, shape: tuple[int, int, int], backends: str) -> None:
    m, n, k = shape
    x, w, b = torch.randn(m, k, **BF16), torch.randn(n, k, **BF16) / k**0.5, torch.randn(n, **BF16)
    options = {
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": backends,
        "max_autotune_candidates": 4,
    }
    compiled = flambeau.compile(PROGRAMS[name], options=options, fullgraph=True)
    exact = PROGRAMS[name](x.double(), w.double(), b.double())
    ours, theirs = compiled(x, w, b), PROGRAMS[name](x, w, b)
    if not isinstance(ours, tuple):
        ours, theirs, exact = (ours,), (theirs,), (exact,)
    for mine, other, reference in zip(ours, theirs, exact, strict=True):
        assert mine.dtype is other.dtype and mine.stride() == other.stride()
        errors = [float((each.double() - reference).norm()) for each in (mine, other)]
        assert errors[0] <= 1.5 * errors[1] + 1e-6 * float(reference.norm())


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_measure_once(mode: str, capfd: pytest.CaptureFixture[str]) -> None:
    x, w = torch.randn(128, 256, **BF16), torch.randn(256, 192, **BF16) / 16

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w)

    for tables in (1, 0):
        flambeau.reset()
        compiled = flambeau.compile(function, mode=mode)
        for _ in range(4):
            close(compiled(x, w), function(x, w))
        assert capfd.readouterr().err.count("AUTOTUNE mm(128x256, 256x192)") == tables


def test_misaligned_operands() -> None:
    """What was tuned for aligned matrices serves others, too."""
    compiled = flambeau.compile(
        lambda x, w: torch.relu(x @ w),
        options={"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"},
        dynamic=False,
    )
    memory, w = torch.randn(256 * 256 + 1, **BF16), torch.randn(256, 256, **BF16) / 16
    for x in (memory[:-1].view(256, 256), memory[1:].view(256, 256)):
        close(compiled(x, w), torch.relu(x @ w))


def test_batches_and_training() -> None:
    x = torch.randn(6, 100, 64, **BF16, requires_grad=True)
    w = torch.randn(6, 64, 80, **BF16, requires_grad=True)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(torch.bmm(x, w))

    compiled = flambeau.compile(function, options={"max_autotune_gemm": True})
    ours, theirs = compiled(x, w), function(x, w)
    close(ours, theirs)
    g = torch.randn_like(theirs)
    for mine, other in zip(
        torch.autograd.grad(ours, (x, w), g), torch.autograd.grad(theirs, (x, w), g), strict=True
    ):
        close(mine, other)


def test_tf32_as_torch_says() -> None:
    x, w = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    exact = x.double() @ w.double()
    before = torch.get_float32_matmul_precision()
    try:
        for precision, bound in (("highest", 5e-6), ("high", 2e-3)):
            torch.set_float32_matmul_precision(precision)
            compiled = flambeau.compile(
                lambda x, w: torch.relu(x @ w),
                options={"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"},
            )
            close(compiled(x, w).double(), exact.relu(), bound)
    finally:
        torch.set_float32_matmul_precision(before)


ONLY_OURS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}


ROWS = {
    "argmin": lambda p: p.argmin(-1),
    "argmax, transposed": lambda p: p.argmax(-2),
    "amax": lambda p: p.abs().amax(-1, keepdim=True),
    "logsumexp": lambda p: torch.logsumexp(p * 0.5, -1),
    "norms of what is written": lambda p: (p, p.norm(dim=-1), p.amin(-1)),
    "any": lambda p: p.isnan().any(-1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(256, 512, 64), (333, 1001, 96), (3, 100, 300, 40)])
@pytest.mark.parametrize("name", ROWS)
def test_rows_reduced_in_tiles(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """By each kernel that takes part: the one that is chosen, and all beside the library's."""
    *batch, m, n, k = shape
    x = torch.randn(*batch, m, k, device="cuda", dtype=dtype)
    w = torch.randn(*batch, n, k, device="cuda", dtype=dtype)
    x[..., 5, 3], w[..., 7, 3] = torch.inf, 0.0  # one NaN
    x[..., 6, :] = 0  # equal elements

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return ROWS[name](x @ w.mT)

    ours, theirs = flambeau.compile(function, options=ONLY_OURS)(x, w), function(x, w)
    exact = function(x.double(), w.double())
    if isinstance(ours, torch.Tensor):
        ours, theirs, exact = (ours,), (theirs,), (exact,)
    for mine, other, reference in zip(ours, theirs, exact, strict=True):
        assert mine.dtype is other.dtype and mine.shape == other.shape
        if not mine.dtype.is_floating_point:
            assert (mine != other).double().mean() < 0.01
            continue
        torch.testing.assert_close(mine.isnan(), other.isnan())
        kept = reference.isfinite() & other.isfinite()
        errors = [(each.double() - reference)[kept].norm() for each in (mine, other)]
        assert errors[0] <= 1.5 * errors[1] + 1e-6 * reference[kept].norm()


@pytest.mark.parametrize("count", [1, 77, 400])
def test_rows_of_symbolic_number(count: int) -> None:
    compiled = flambeau.compile(
        lambda x, w: (x @ w.t()).argmin(-1), options=ONLY_OURS, dynamic=True
    )
    x, w = torch.randn(count, 64, **BF16), torch.randn(1000, 64, **BF16)
    assert (compiled(x, w) != (x @ w.t()).argmin(-1)).double().mean() < 0.02


def test_nearest_entries_without_measuring() -> None:
    """The model takes the reduction into the product's kernel."""

    def function(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        squares = x.square().sum(1, keepdim=True), codes.square().sum(1)
        return (squares[0] - 2 * x @ codes.t() + squares[1]).argmin(1)

    x, codes = torch.randn(16384, 64, **BF16), torch.randn(8192, 64, **BF16)
    torch.cuda.reset_peak_memory_stats()
    compiled = flambeau.compile(function)
    exact = function(x.double(), codes.double())
    wrong = [(each(x, codes) != exact).double().mean() for each in (compiled, function)]
    assert wrong[0] <= wrong[1], "distances are rounded to bfloat16 less often than by eager"
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    compiled(x, codes)
    assert torch.cuda.max_memory_allocated() - before < 64 << 20  # the product takes 256 MiB


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_convolution_of_one_point(form: torch.memory_format) -> None:
    x = torch.randn(4, 64, 14, 14, **BF16).to(memory_format=form)
    w = (torch.randn(96, 64, 1, 1, **BF16) / 8).to(memory_format=form)
    b = torch.randn(96, **BF16)

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, b))

    close(flambeau.compile(function, options=ONLY_OURS)(x, w, b), function(x, w, b))


def test_factors_computed_in_the_kernel(capfd: pytest.CaptureFixture[str]) -> None:
    x, s = torch.randn(32, 512, **BF16), torch.rand(768, 1, device="cuda")
    q = torch.randint(-100, 100, (768, 512), device="cuda", dtype=torch.int8)

    def function(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ (q.float() * s).to(torch.bfloat16).t())

    close(flambeau.compile(function, options=ONLY_OURS)(x, q, s), function(x, q, s))
    assert "AUTOTUNE mm(32x512, 512x768)" in capfd.readouterr().err


@pytest.mark.parametrize("rows", [1, 20, 100])
def test_two_weights_a_byte(rows: int) -> None:
    x = torch.randn(rows, 512, **BF16)
    p = torch.randint(0, 256, (200, 256), device="cuda", dtype=torch.uint8)
    s, z = torch.rand(200, 4, device="cuda"), torch.rand(200, 4, device="cuda") * 8

    def function(
        x: torch.Tensor, p: torch.Tensor, s: torch.Tensor, z: torch.Tensor
    ) -> torch.Tensor:
        q = torch.stack([p & 15, p >> 4], -1).view(200, 4, -1)
        return F.linear(x, ((q - z[:, :, None]) * s[:, :, None]).view(200, -1).to(x.dtype))

    close(flambeau.compile(function, options=ONLY_OURS)(x, p, s, z), function(x, p, s, z))


def test_words_of_eight_weights() -> None:
    """As GPTQ stores weights and zero points."""
    x = torch.randn(20, 512, **BF16)
    q = torch.randint(-(2**31), 2**31 - 1, (64, 96), device="cuda", dtype=torch.int32)
    z = torch.randint(-(2**31), 2**31 - 1, (4, 12), device="cuda", dtype=torch.int32)
    s = torch.rand(4, 96, **BF16)

    def function(
        x: torch.Tensor, q: torch.Tensor, z: torch.Tensor, s: torch.Tensor
    ) -> torch.Tensor:
        shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=x.device)
        w = ((q[:, None, :] >> shifts[None, :, None]) & 15).view(4, 128, 96)
        zeros = ((z[:, :, None] >> shifts) & 15).view(4, 1, 96) + 1
        return x @ ((w - zeros) * s[:, None]).view(512, 96)

    close(flambeau.compile(function, options=ONLY_OURS)(x, q, z, s), function(x, q, z, s))


@pytest.mark.parametrize("dynamic", [False, True])
def test_gathered_rows(dynamic: bool) -> None:
    x, w = torch.randn(300, 256, **BF16), torch.randn(192, 256, **BF16) / 16
    compiled = flambeau.compile(
        lambda x, i, w: F.silu(F.linear(x[i], w)), options=ONLY_OURS, dynamic=dynamic
    )
    for count in (40, 77):
        index = torch.randint(-300, 300, (count,), device="cuda")
        close(compiled(x, index, w), F.silu(F.linear(x[index], w)))


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("shape", [(64, 96, 128), (17, 256, 512), (256, 512, 4096)])
def test_scaled_float8(shape: tuple[int, int, int], by_rows: bool, fast: bool) -> None:
    m, n, k = shape
    x, w = (torch.randn(size, device="cuda").to(torch.float8_e4m3fn) for size in ((m, k), (n, k)))
    a, b = (torch.rand(size if by_rows else (), device="cuda") for size in ((m, 1), (1, n)))
    c = torch.randn(n, **BF16)

    def function(
        x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> torch.Tensor:
        y = torch._scaled_mm(x, w.t(), a, b, bias=c, out_dtype=torch.bfloat16, use_fast_accum=fast)
        return F.gelu(y)

    exact = F.gelu((x.double() @ w.double().t()) * a * b + c)
    ours, theirs = (
        each(x, w, a, b, c) for each in (flambeau.compile(function, options=ONLY_OURS), function)
    )
    errors = [float((each.double() - exact).norm() / exact.norm()) for each in (ours, theirs)]
    assert errors[0] <= 1.2 * errors[1] + 1e-4, errors


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no F.grouped_mm")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("ends", [[64, 64, 200, 512], [0, 0, 512, 512], [3, 130, 131, 512]])
def test_grouped_rows(ends: list[int], turned: bool) -> None:
    x, r = torch.randn(512, 256, **BF16), torch.randn(512, 384, **BF16)
    w = torch.randn(4, 384, 256, **BF16).transpose(1, 2) / 16
    w = w if turned else w.contiguous()
    bounds = torch.tensor(ends, device="cuda", dtype=torch.int32)

    def function(
        x: torch.Tensor, w: torch.Tensor, bounds: torch.Tensor, r: torch.Tensor
    ) -> torch.Tensor:
        return F.silu(F.grouped_mm(x, w, offs=bounds)) * r

    compiled = flambeau.compile(function, options=ONLY_OURS, fullgraph=True)
    close(compiled(x, w, bounds, r), function(x, w, bounds, r))


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no F.grouped_mm")
def test_rows_behind_the_last_group() -> None:
    """The product's kernel stores for them what does not depend on the product."""
    x, w = torch.randn(300, 128, **BF16), torch.randn(4, 128, 256, **BF16) / 16
    bounds = torch.tensor([10, 10, 100, 160], device="cuda", dtype=torch.int32)

    def function(
        x: torch.Tensor, w: torch.Tensor, bounds: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.silu(F.grouped_mm(x, w, offs=bounds))
        is_row = torch.arange(300, device="cuda")[:, None] < bounds[-1]
        return torch.where(is_row, y, 7.0), torch.zeros_like(y)

    compiled = flambeau.compile(function, options=ONLY_OURS, fullgraph=True)
    for ours, theirs in zip(compiled(x, w, bounds), function(x, w, bounds), strict=True):
        assert (ours - theirs).abs().max() <= 0.05


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no F.grouped_mm")
def test_grouped_rows_in_float8() -> None:
    x, w = (
        torch.randn(shape, device="cuda").to(torch.float8_e4m3fn)
        for shape in ((256, 128), (4, 192, 128))
    )
    a, b = torch.rand(256, device="cuda"), torch.rand(4, 192, device="cuda")
    ends = [16, 16, 100, 256]
    bounds = torch.tensor(ends, device="cuda", dtype=torch.int32)

    def function(
        x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bounds: torch.Tensor
    ) -> torch.Tensor:
        y = torch._scaled_grouped_mm(
            x, w.transpose(1, 2), a, b, bounds, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return y * 2

    ours = flambeau.compile(function, options=ONLY_OURS, fullgraph=True)(x, w, a, b, bounds)
    exact = torch.cat([
        x[first:end].double() @ w[group].double().t() * a[first:end, None] * b[group] * 2
        for group, (first, end) in enumerate(zip([0, *ends], ends, strict=False))
    ])  # fmt: skip
    assert (ours.double() - exact).norm() <= 1e-2 * exact.norm()


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no F.grouped_mm")
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_mixture_of_experts(dynamic: bool) -> None:
    up, down = (torch.randn(shape, **BF16) / 16 for shape in ((8, 256, 512), (8, 512, 256)))

    def function(
        x: torch.Tensor, chance: torch.Tensor, expert: torch.Tensor, up: torch.Tensor,
        down: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        order = expert.argsort(stable=True)
        bounds = F.one_hot(expert, 8).sum(0).cumsum(0).to(torch.int32)
        hidden = F.silu(F.grouped_mm(x[order], up, offs=bounds))
        y = F.grouped_mm(hidden, down, offs=bounds).float() * chance[order, None]
        return torch.zeros_like(x).index_copy(0, order, y.to(x.dtype))

    compiled = flambeau.compile(function, options=ONLY_OURS, fullgraph=True, dynamic=dynamic)
    for tokens in (300, 77):
        x, chance = torch.randn(tokens, 256, **BF16), torch.rand(tokens, device="cuda")
        expert = torch.randint(0, 8, (tokens,), device="cuda")
        given = x, chance, expert, up, down
        close(compiled(*given), function(*given), 2e-2)


def test_symbolic_sizes() -> None:
    w, b = torch.randn(192, 256, **BF16) / 16, torch.randn(192, **BF16)

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b))

    compiled = flambeau.compile(function, options=ONLY_OURS, dynamic=True)
    for rows in (64, 77, 300, 2):
        x = torch.randn(rows, 256, **BF16)
        close(compiled(x, w, b), function(x, w, b))


def test_integers() -> None:
    x, w = (torch.randint(-128, 128, size, device="cuda", dtype=torch.int8) for size in
            ((64, 256), (256, 128)))  # fmt: skip
    ours = flambeau.compile(lambda x, w: torch._int_mm(x, w) + 1, options=ONLY_OURS)(x, w)
    assert torch.equal(ours.cpu(), x.cpu().int() @ w.cpu().int() + 1)


@pytest.mark.parametrize("k", [2049, 511])
def test_narrow_products_of_odd_sizes(k: int) -> None:
    """Rows of a view with gaps, cast in front of the product."""
    x = torch.randn(8, k, device="cuda", dtype=torch.float16)
    w = torch.randint(-128, 128, (255, 2 * k), device="cuda").to(torch.int8)[:, ::2]
    scale = torch.rand(255, device="cuda", dtype=torch.float16)

    def program(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.relu(F.linear(x, w.to(x.dtype)) * scale)

    compiled = flambeau.compile(program, mode="max-autotune-no-cudagraphs", fullgraph=True)
    close(compiled(x, w, scale), program(x, w, scale))
