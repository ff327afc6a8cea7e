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


def tuned(layers: int) -> torch.nn.Sequential:
    """Layers of twelve parameters each, and a head of two."""
    of_layers = (torch.nn.TransformerEncoderLayer(2, 1, 2) for _ in range(layers))
    return torch.nn.Sequential(torch.nn.Sequential(*of_layers), torch.nn.Linear(2, 1))


def test_patterns_freeze_all_but_the_head_of_a_model_or_one_layer_of_it_as_whoever_tunes_it() -> None:
    names = [name for name, _ in tuned(2).named_parameters()]
    chosen = [freeze(tuned(2), pattern, leaves_one=True) for pattern in range(1, 201)]

    for frozen in (("0.",), ("0.0.",), ("0.1.",), ("1.",)):
        assert chosen.count(frozenset(name for name in names if name.startswith(frozen))) >= 2
    assert sum(any("self_attn" in name for name in each) for each in chosen) > 100
    single = [each for each in chosen if 0 < sum(name.startswith("0.0.") for name in each) < 12]
    assert len(single) > 80


def test_modules_around_all_parameters_and_around_one_of_them_are_no_units() -> None:
    subsets = {
        freeze(torch.nn.Sequential(torch.nn.Sequential(network(3))), pattern, leaves_one=True)
        for pattern in range(2, 99, 2)
    }

    assert len(subsets) == 2**3 - 2


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
