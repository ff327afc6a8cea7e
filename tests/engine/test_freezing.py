"""The parameters that a case freezes: those that it names, or some that a pattern chooses, and never all."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from adjointlab.engine.parallel import freeze  # noqa: E402 - only where there is torch


def network(depth: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False) for _ in range(depth)))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_patterns_freeze_any_of_the_parameters_but_not_all(depth: int) -> None:
    numbers = {len(freeze(network(depth), pattern)) for pattern in range(1, 200)}

    assert numbers == set(range(depth))


def test_a_pattern_freezes_the_same_each_time_and_none_freezes_nothing() -> None:
    chosen = [freeze(network(9), pattern) for pattern in range(20)]

    assert chosen == [freeze(network(9), pattern) for pattern in range(20)]
    assert chosen[0] == frozenset()
    assert 0.3 < sum(map(len, chosen)) / (19 * 9) < 0.5


@pytest.mark.parametrize("pattern", [("0.weight",), 3])
def test_what_is_frozen_requires_no_gradient_and_is_told_with_what_was_frozen_before(
    pattern: int | tuple[str, ...],
) -> None:
    module = network(4)
    module[2].weight.requires_grad_(False)
    frozen = freeze(module, pattern)

    assert frozen == {name for name, held in module.named_parameters() if not held.requires_grad}
    assert "2.weight" in frozen
    if not isinstance(pattern, int):
        assert frozen == {"0.weight", "2.weight"}
