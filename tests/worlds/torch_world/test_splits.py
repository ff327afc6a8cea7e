"""Split sizes of ``all_to_all_single``, compared through a store that stands for torchrun's."""

from __future__ import annotations

from itertools import permutations

import pytest

pytest.importorskip("torch.distributed")

import numpy as np
import torch

from adjointlab.worlds.torch.splits import SplitBoard, SplitMismatch, Splits, splits_of, unequal_splits

RIGHT = [Splits((1, 2, 0), (1, 4, 0)), Splits((4, 0, 3), (2, 0, 6)), Splits((0, 6, 1), (0, 3, 1))]


class Values(dict[str, bytes]):
    """A store of which only the methods are there that never wait."""

    def append(self, key: str, value: bytes) -> None:
        self[key] = self.get(key, b"") + value

    def get(self, key: str, default: bytes | None = None) -> bytes:  # type: ignore[override]
        return self[key] if default is None else super().get(key, default)

    def unused(self, *_: object) -> None:
        raise AssertionError("not needed")

    set = add = check = delete_key = unused  # type: ignore[assignment]


def boards() -> list[SplitBoard]:
    store = Values()
    return [SplitBoard(store) for _ in range(3)]  # type: ignore[arg-type]


def test_sizes_that_fit_pass_whoever_comes_first_and_however_far_ahead() -> None:
    for order in permutations(range(3)):
        of_rank = boards()
        for rank in order:
            for call, splits in enumerate((RIGHT[rank], Splits((rank,) * 3, (0, 1, 2)))):
                of_rank[rank].publish(f"0/{call}", (0, 1, 2), rank, splits)


def test_of_two_ranks_whose_sizes_differ_the_later_one_raises_and_so_do_those_after_it() -> None:
    for order in permutations(range(3)):
        of_rank, raised = boards(), []
        for rank in order:
            own = RIGHT[rank]._replace(expected=(1, 3, 0)) if rank == 0 else RIGHT[rank]
            try:
                of_rank[rank].publish("0/1", (0, 1, 2), rank, own)
            except SplitMismatch as error:
                raised.append((rank, str(error)))
        late = [rank for rank in order if order.index(rank) >= max(order.index(0), order.index(1))]
        assert raised == [(rank, "rank 1 sends 4 elements to rank 0, which expects 3") for rank in late]


def test_a_rank_that_does_not_fit_itself_raises_at_once() -> None:
    with pytest.raises(SplitMismatch, match="rank 2 sends 2 elements to itself, and expects 1"):
        boards()[2].publish("0/1", (0, 1, 2), 2, RIGHT[2]._replace(sent=(0, 6, 2)))


def test_calls_on_other_groups_and_on_groups_of_other_members_are_not_compared() -> None:
    first, second, _ = boards()
    first.publish("0/1", (0, 1), 0, Splits((0, 1), (0, 0)))
    second.publish("1/1", (0, 1), 1, Splits((0, 0), (0, 0)))
    second.publish("0/1", (1, 2), 1, Splits((0, 0), (0, 0)))
    with pytest.raises(SplitMismatch, match="rank 0 sends 1 element to rank 1, which expects 0"):
        second.publish("0/1", (0, 1), 1, Splits((0, 0), (0, 0)))


def test_splits_count_elements_and_are_even_where_they_are_not_given() -> None:
    assert splits_of(2, torch.empty(4, 3), torch.empty(5, 3), [1, 3], [5, 0]) == Splits((15, 0), (3, 9))
    assert splits_of(2, torch.empty(4, 3), torch.empty(2), [], []) == Splits((1, 1), (6, 6))
    assert splits_of(2, torch.empty(0, 3), torch.empty(0)) == Splits((0, 0), (0, 0))


def test_splits_are_any_sequence_of_integers_that_torch_takes() -> None:
    given = (np.array([1, 3]), [torch.tensor(4), torch.tensor(0)])
    assert splits_of(2, torch.empty(4), torch.empty(4), *given) == Splits((4, 0), (1, 3))


@pytest.mark.parametrize("sizes", [([1, 2], [2, 2]), ([4], [2, 2]), ([2, 2], []), ([2.0, 2.0], [2, 2])])
def test_sizes_that_torch_refuses_are_left_to_it(sizes: tuple[list[float], list[int]]) -> None:
    assert splits_of(2, torch.empty(4), torch.empty(4 if sizes[1] else 3), *sizes) is None


def test_the_first_pair_is_named_whatever_the_order_of_the_ranks() -> None:
    wrong = {2: Splits((9, 9), (9, 9)), 0: Splits((0, 1), (0, 0))}
    assert str(unequal_splits((0, 2), wrong)) == "rank 0 sends 1 element to rank 2, which expects 9"
