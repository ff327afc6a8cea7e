"""Of parameters that each rank counts from 0, the values tell which ones of the sequential module they are."""

from __future__ import annotations

import numpy as np
import pytest

from adjointlab.torch_distributed.numbering import Numbering

RANDOM = np.random.default_rng(0)
WHOLE = {
    f"layers.{layer}.experts.{expert}.{name}": RANDOM.integers(-4, 5, shape).astype(float)
    for layer in range(4)
    for expert in range(3)
    for name, shape in {"w1": (4, 6), "w3": (4, 6), "scale": (1,)}.items()
}


def test_every_number_in_a_name_may_be_another_one() -> None:
    parts = {
        f"layers.{layer}.experts.{expert}.{name}": WHOLE[f"layers.{layer + 2}.experts.{2 - expert}.{name}"]
        for layer in range(2)
        for expert in range(2)
        for name in ("w1", "w3", "scale")
    }
    number = Numbering(parts, WHOLE)
    assert number("layers.1.experts.0.w3") == "layers.3.experts.2.w3"
    # One element, which several have, and buffers, whose values nothing is known of.
    assert number("layers.0.experts.1.scale") == "layers.2.experts.1.scale"
    assert number("layers.1.experts.1.norm.mean") == "layers.3.experts.1.norm.mean"
    assert number("layers.1.mean") == "layers.3.mean"


@pytest.mark.parametrize("part", [np.s_[2:], np.s_[:, :3], np.s_[1:2], np.s_[:, 5:]])
def test_a_part_along_one_dimension_tells_the_number_too(part: tuple[slice, ...]) -> None:
    name = "layers.2.experts.1.w1"
    assert Numbering({"layers.0.experts.0.w1": WHOLE[name][part]}, WHOLE)("layers.0.experts.0.w1") == name


@pytest.mark.parametrize(
    "part", [np.full((4, 6), 9.0), np.zeros((0, 6)), np.zeros((5, 6)), WHOLE["layers.2.experts.0.w1"][:2, :2]]
)
def test_names_stay_as_they_are_where_values_tell_nothing(part: np.ndarray) -> None:
    assert (
        Numbering({"layers.0.experts.0.w1": part}, WHOLE)("layers.0.experts.0.w1") == "layers.0.experts.0.w1"
    )


def test_a_name_stays_as_it_is_where_its_own_values_fit_as_well_as_others() -> None:
    wholes = {"blocks.0.bias": np.ones(1), "blocks.1.bias": np.ones(1), "norm": np.ones(1)}
    number = Numbering({"blocks.0.bias": np.ones(1), "norm": np.ones(1)}, wholes)
    assert [number("blocks.0.bias"), number("norm")] == ["blocks.0.bias", "norm"]


def test_names_stay_where_values_fit_several_others() -> None:
    wholes = {"blocks.0.bias": np.zeros(1), "blocks.1.bias": np.ones(1), "blocks.2.bias": np.ones(1)}
    assert Numbering({"blocks.0.bias": np.ones(1)}, wholes)("blocks.0.bias") == "blocks.0.bias"
