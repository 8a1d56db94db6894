"""Sampling at the points of a grid, its gradients, and affine grids. On a CPU the former are
ATen's; here it stands for a GPU.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from one_op import Make, check, decomposed, flat, is_decomposed

from flambeau_prims.decompositions import grid_sample

aten = torch.ops.aten


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_images(padding: int, corners: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points inside and outside, in all modes."""
    monkeypatch.setattr(grid_sample, "pays", lambda device: True)
    for dtype, mode in itertools.product((torch.float32, torch.float64), range(3)):
        make = Make(mode, dtype)
        for shape in ((2, 3, 5, 7), (1, 2, 1, 4)):
            x = make(*shape)
            grid = make(shape[0], 6, 4, 2, low=-1.7, high=1.7)
            args = (x, grid, mode, padding, corners)
            check(aten.grid_sampler_2d.default, *args, near=4.0)
            if mode != 2:
                grad = make(*shape[:2], 6, 4)
                call = (grad, *args, [True, mode == 1])
                check(aten.grid_sampler_2d_backward.default, *call, near=20.0)


def test_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_sample, "pays", lambda device: True)
    make = Make(5, torch.float32)
    for mode, padding in itertools.product((0, 1), range(3)):
        x = make(2, 3, 4, 5, 6)
        grid = make(2, 3, 4, 2, 3, low=-1.7, high=1.7)
        args = (x, grid, mode, padding, False)
        check(aten.grid_sampler_3d.default, *args, near=4.0)
        grad = make(2, 3, 3, 4, 2)
        check(aten.grid_sampler_3d_backward.default, grad, *args, [True, mode == 1], near=20.0)


def test_what_stays_with_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    """All on a CPU; where both gradients are wanted."""
    make = Make(6, torch.float32)
    args = (make(1, 2, 5, 5), make(1, 3, 3, 2), 0, 0, False)
    forward, backward = aten.grid_sampler_2d.default, aten.grid_sampler_2d_backward.default
    graph, _ = decomposed(forward, args, {}, flat(forward(*args)))
    assert not is_decomposed(graph)
    monkeypatch.setattr(grid_sample, "pays", lambda device: True)
    call = (make(1, 2, 3, 3), *args, [True, True])
    graph, _ = decomposed(backward, call, {}, flat(backward(*call)))
    assert not is_decomposed(graph)


def test_affine_grids() -> None:
    for dtype, corners in itertools.product((torch.float32, torch.float64), (False, True)):
        make = Make(7, dtype)
        for size in ([2, 3, 5, 8], [1, 1, 1, 3]):
            check(aten.affine_grid_generator.default, make(size[0], 2, 3), size, corners, near=4.0)
        check(aten.affine_grid_generator.default, make(2, 3, 4), [2, 1, 3, 4, 6], corners, near=4.0)
