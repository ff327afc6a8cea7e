"""Drawn integers reach every row of an embedding, every class of a loss and every index of a window in the cases of the built-in layers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from adjointlab.checks.layers.drawn_values import LARGEST
from adjointlab.layers.subjects import pooling
from adjointlab.layers.subjects.class_losses import _with_legal_targets
from adjointlab.layers.subjects.embedding import with_legal_indices

pytestmark = pytest.mark.mpi_skip

DRAWN = torch.arange(-LARGEST, LARGEST + 1)


class Second(nn.Module):
    def forward(self, x: Any, given: torch.Tensor) -> torch.Tensor:
        return given


@pytest.mark.parametrize("number", range(1, 7))
def test_every_row_and_every_class_is_reached(number: int) -> None:
    assert set(with_legal_indices(nn.Identity(), number)(DRAWN).tolist()) == set(range(number))
    targets = _with_legal_targets(Second(), number, -100, [(0, len(DRAWN))])(None, DRAWN.flip(0))
    assert set(targets.tolist()) == {*range(number), -100}


@pytest.mark.parametrize("kernel", range(1, 4))
def test_every_index_of_a_window_is_reached(kernel: int) -> None:
    module = pooling.with_legal_indices(
        Second(), [kernel], [(0, 1)], mirrored=False, kernel_size=[kernel], stride=None, padding=[0]
    )
    assert {int(module(None, drawn[None])) for drawn in DRAWN} == set(range(kernel))
