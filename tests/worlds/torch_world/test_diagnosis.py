"""The errors of a backend and the logs of all ranks, put together."""

from __future__ import annotations

import pytest

pytest.importorskip("torch.distributed")

from adjointlab.worlds.call_labels import CallLabel
from adjointlab.worlds.run import Blocked, FindingKind, Outcome, PeerFailed, Raised, Returned
from adjointlab.worlds.torch.calls import GroupSummary, LoggedCall
from adjointlab.worlds.torch.diagnosis import RankStatistics, communicating, conclude, failure_of

TIMEOUT = "[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete"
CLOSED = "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


def call(name: str, **given: object) -> LoggedCall:
    return LoggedCall(CallLabel(name, tuple(given.items())), f"train.py:{len(name)}")


def group(*calls: LoggedCall, members: tuple[int, ...] = (0, 1), is_complete: bool = True) -> GroupSummary:
    return GroupSummary(members, "train.py:1", len(calls), calls, is_complete)


def rank(
    error: BaseException | None, *calls: LoggedCall, is_complete: bool = True, waited: bool = False
) -> tuple[Outcome, RankStatistics]:
    failure = None if error is None else failure_of(error, calls[-1] if calls else None, waited=waited)
    outcome = Returned(None) if error is None else Raised.of(error)
    return outcome, RankStatistics(failure, {"0": group(*calls, is_complete=is_complete)})


def concluded(*ranks: tuple[Outcome, RankStatistics]) -> tuple[tuple[Outcome, ...], dict[str, str]]:
    outcomes, findings = conclude([each[0] for each in ranks], [each[1] for each in ranks])
    return outcomes, {str(finding.kind): finding.text for finding in findings}


SUM, COPY = call("all_reduce", op="SUM"), call("broadcast", src=0)


def test_a_rank_that_raised_by_itself_is_why_the_connections_of_others_were_closed() -> None:
    outcomes, findings = concluded(rank(RuntimeError(CLOSED), SUM), rank(ValueError("mine")))
    assert isinstance(outcomes[0], PeerFailed)
    assert outcomes[0].peers == (1,)
    assert isinstance(outcomes[1], Raised)
    assert not findings


def test_an_error_of_the_backend_counts_where_user_code_has_wrapped_it() -> None:
    try:
        try:
            raise RuntimeError(TIMEOUT)
        except RuntimeError as cause:
            raise KeyError("all is lost") from cause
    except KeyError as error:
        wrapped = error
    outcomes, findings = concluded(rank(wrapped, SUM), rank(RuntimeError(TIMEOUT), SUM))
    assert all(isinstance(each, Blocked) for each in outcomes)
    assert list(findings) == [FindingKind.DEADLOCK]


@pytest.mark.parametrize("error", [RuntimeError("the connection closed by peer"), ValueError(CLOSED)])
def test_an_error_that_only_sounds_like_a_backends_is_user_codes_own(error: Exception) -> None:
    outcomes, _ = concluded(rank(error, SUM), rank(RuntimeError(CLOSED), SUM))
    assert isinstance(outcomes[0], Raised)
    assert isinstance(outcomes[1], PeerFailed)


def test_a_rank_that_came_late_to_those_who_had_given_up_makes_it_no_certain_deadlock() -> None:
    _, findings = concluded(rank(RuntimeError(TIMEOUT), SUM), rank(RuntimeError(CLOSED), SUM))
    assert list(findings) == [FindingKind.BLOCKED]
    _, findings = concluded(rank(RuntimeError(TIMEOUT), SUM), rank(RuntimeError(CLOSED), SUM, waited=True))
    assert list(findings) == [FindingKind.DEADLOCK]


def test_connections_that_are_closed_in_a_long_wait_are_those_of_a_hang() -> None:
    """The other rank may have come back, or be blocked in a wait of the lab's, which was over first."""
    for other in (
        rank(None),
        (Blocked("allgather()", "train.py:9", ()), RankStatistics(None, {"0": group()})),
    ):
        outcomes, findings = concluded(other, rank(RuntimeError(CLOSED), COPY, waited=True))
        assert isinstance(outcomes[1], Blocked)
        assert findings
    outcomes, _ = concluded(rank(None), rank(RuntimeError(CLOSED), COPY))
    assert isinstance(outcomes[1], Raised)


def test_calls_that_differ_are_named_whether_the_backend_crashed_hung_or_let_them_pass() -> None:
    for errors in ((None, None), (RuntimeError(TIMEOUT),) * 2, (None, RuntimeError(CLOSED))):
        _, findings = concluded(rank(errors[0], SUM, SUM), rank(errors[1], SUM, COPY))
        text = findings[FindingKind.MISMATCHED_COLLECTIVE]
        assert text.startswith("in collective 2, they call different collectives")
        assert f"rank 0 calls {SUM}" in text
        assert f"rank 1 calls {COPY}" in text


def test_a_call_that_another_rank_has_not_made_is_a_mismatch_only_once_that_one_has_come_back() -> None:
    _, findings = concluded(rank(None), rank(RuntimeError(TIMEOUT), SUM))
    assert "only some ranks take part" in findings[FindingKind.MISMATCHED_COLLECTIVE]
    _, findings = concluded(rank(RuntimeError(TIMEOUT)), rank(RuntimeError(TIMEOUT), SUM))
    assert FindingKind.MISMATCHED_COLLECTIVE not in findings


def test_a_log_that_calls_have_passed_by_accuses_nobody() -> None:
    _, findings = concluded(rank(None, SUM, is_complete=False), rank(None, COPY))
    assert not findings


def test_groups_of_other_members_that_meet_by_their_number_are_named() -> None:
    pairs = (Returned(None), Returned(None), Returned(None))
    groups = [group(members=(0, 1)), group(members=(0, 2)), group(members=(0, 1))]
    outcomes, findings = conclude(pairs, [RankStatistics(None, {"1": each}) for each in groups])
    assert outcomes == pairs
    assert "rank 1 makes new_group([0, 2])" in findings[0].text


def test_ranks_communicate_whose_groups_have_others_and_count_operations() -> None:
    alone, idle, busy = group(SUM, members=(0,)), group(), group(SUM)
    statistics = [RankStatistics(None, {"0": each}) for each in (alone, idle, busy)]
    assert communicating(statistics) == {2}


def test_a_mismatch_names_the_first_collective_that_was_called_from_different_places() -> None:
    backward = SUM._replace(where="train.py:99", in_backward=True)
    _, findings = concluded(rank(None, COPY, backward, SUM, COPY), rank(None, COPY, SUM, SUM))
    text = findings["mismatched collective"]
    assert "in collective 4, only some ranks take part" in text
    assert (
        "  collective 2 was called from different places: rank 0 at train.py:99 in backward; rank 1 at train.py:10"
        in text.splitlines()
    )


def test_a_deadlock_names_the_first_collective_that_was_called_from_different_places() -> None:
    elsewhere = SUM._replace(where="train.py:99")
    _, findings = concluded(
        rank(RuntimeError(TIMEOUT), COPY, elsewhere), rank(RuntimeError(TIMEOUT), COPY, SUM)
    )
    assert "collective 2 was called from different places: rank 0 at train.py:99; rank 1" in str(findings)
