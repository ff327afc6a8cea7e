"""The transport of device buffers follows from the evidence of all ranks, in whatever order they are asked."""

from __future__ import annotations

import pytest

from adjointlab.devices.transport import OVERRIDE, RankEvidence, Transport, choose, wanted_in

AWARE = [RankEvidence(f"host gpu{rank}", True, "2.27.3") for rank in range(4)]
APART = [RankEvidence(f"host gpu{rank}", False, "2.27.3") for rank in range(4)]
SHARED = [RankEvidence("host gpu0", False, "2.27.3")] * 4
WITHOUT_NCCL = [RankEvidence(f"host gpu{rank}") for rank in range(4)]
NOWHERE = [RankEvidence()] * 4


@pytest.mark.parametrize(
    ("ranks", "transport", "because"),
    [
        (AWARE, Transport.CUDA_AWARE_MPI, "takes device buffers"),
        ([RankEvidence("host gpu0", True)] * 4, Transport.CUDA_AWARE_MPI, "takes device buffers"),
        (APART, Transport.NCCL, "each rank has a device of its own"),
        ([*AWARE[:3], APART[3]], Transport.NCCL, "does not take device buffers on rank 3"),
        (SHARED, Transport.STAGING, "ranks 0, 1, 2, 3 share a device"),
        ([APART[0], APART[1], APART[1]], Transport.STAGING, "ranks 1, 2 share a device"),
        (WITHOUT_NCCL, Transport.STAGING, "CuPy has no NCCL on ranks 0, 1, 2, 3"),
        ([*APART[:3], RankEvidence()], Transport.STAGING, "rank 3 has no device"),
        (NOWHERE, Transport.NONE, "no rank has a device"),
    ],
)
def test_the_choice_follows_from_the_evidence(
    ranks: list[RankEvidence], transport: Transport, because: str
) -> None:
    choice = choose(ranks)
    assert choice.transport is transport
    assert because in choice.reason
    assert choose(ranks[::-1]).transport is transport


@pytest.mark.parametrize("wanted", [Transport.CUDA_AWARE_MPI, Transport.STAGING])
@pytest.mark.parametrize("ranks", [AWARE, APART, SHARED])
def test_a_transport_that_is_asked_for_is_taken(ranks: list[RankEvidence], wanted: Transport) -> None:
    assert choose(ranks, wanted).transport is wanted


@pytest.mark.parametrize("ranks", [SHARED, WITHOUT_NCCL, NOWHERE])
def test_nccl_is_refused_where_it_cannot_connect_the_ranks(ranks: list[RankEvidence]) -> None:
    assert choose(APART, Transport.NCCL).transport is Transport.NCCL
    with pytest.raises(
        ValueError, match=r"transport: nccl needs a device of its own for each rank, but .* use staging"
    ):
        choose(ranks, Transport.NCCL)


def test_the_environment_may_ask_for_a_transport() -> None:
    assert wanted_in({}) is wanted_in({OVERRIDE: " "}) is None
    assert wanted_in({OVERRIDE: "staging"}) is Transport.STAGING
    with pytest.raises(ValueError, match=f"{OVERRIDE}: 'none' is not one of cuda-aware-mpi, nccl, staging"):
        wanted_in({OVERRIDE: "none"})
