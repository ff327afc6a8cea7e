"""The parameters that a case freezes: those that it names, or any that a pattern chooses."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from adjointlab.engine.sequential_module import freeze  # noqa: E402 - only where there is torch


def network(depth: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False) for _ in range(depth)))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_patterns_freeze_every_subset_of_the_parameters(depth: int) -> None:
    subsets = {freeze(network(depth), pattern, leaves_one=False) for pattern in range(1, 200)}

    assert len(subsets) == 2**depth - 1
    assert frozenset() not in subsets


@pytest.mark.parametrize("depth", [2, 3])
def test_patterns_that_leave_one_freeze_every_other_subset(depth: int) -> None:
    subsets = {freeze(network(depth), pattern, leaves_one=True) for pattern in range(1, 200)}

    assert len(subsets) == 2**depth - 2
    assert max(map(len, subsets)) == depth - 1
    assert freeze(network(1), 1, leaves_one=True) == frozenset()


def test_every_number_of_frozen_parameters_is_as_likely() -> None:
    sizes = [len(freeze(network(4), pattern, leaves_one=False)) for pattern in range(1, 401)]

    assert all(70 < sizes.count(size) < 130 for size in (1, 2, 3, 4))


def test_a_pattern_freezes_the_same_each_time_and_none_freezes_nothing() -> None:
    chosen = [freeze(network(9), pattern, leaves_one=True) for pattern in range(20)]

    assert chosen == [freeze(network(9), pattern, leaves_one=True) for pattern in range(20)]
    assert chosen[0] == frozenset()


@pytest.mark.parametrize("pattern", [("0.weight",), 3])
def test_what_is_frozen_requires_no_gradient_and_is_told_with_what_was_frozen_before(
    pattern: int | tuple[str, ...],
) -> None:
    module = network(4)
    module[2].weight.requires_grad_(False)
    frozen = freeze(module, pattern, leaves_one=True)

    assert frozen == {name for name, held in module.named_parameters() if not held.requires_grad}
    assert "2.weight" in frozen
    if not isinstance(pattern, int):
        assert frozen == {"0.weight", "2.weight"}
