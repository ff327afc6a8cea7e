"""The cases of an exhaustive run are listed, shared among processes and counted, seen within one process."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Figure, Status, incoherent
from adjointlab.engine import exhaust as exhaustive
from adjointlab.engine import shares_of_proofs
from adjointlab.engine.case import Case
from adjointlab.engine.counts import CaseCounts
from adjointlab.engine.exhaust import exhaust
from adjointlab.engine.listed_cases import bound_of, every_case, memory_of_proofs
from adjointlab.engine.run_case import Judgement
from adjointlab.engine.shares_of_proofs import ProofProcess, Share, in_processes
from adjointlab.engine.subject import Subject, SubjectError
from tests.engine import enumerated_subjects
from tests.samples import RingShift

pytestmark = pytest.mark.mpi_skip

SUBJECTS = str(Path(enumerated_subjects.__file__))


def no_cases(draw: Any, ranks: int) -> dict[str, Any]:
    return {}


def listing(every: Any) -> Subject:
    subject: Any = al.subject.operator(RingShift, name="Listed", every=every)(no_cases)
    return subject  # type: ignore[no-any-return]


def numbers(ranks: int = 3, side: int = 2) -> Iterator[Any]:
    for number in range(ranks * side):
        yield 1 + number % ranks, {"number": number}


# Lists


def test_a_case_has_its_number_for_a_seed_and_for_a_schedule_of_sixteen_bits() -> None:
    subject = listing(numbers)
    assert list(every_case(subject, {"ranks": 1, "side": 2}, "torch")) == [
        Case("Listed", "proof", 1, {"number": number}, InputSetting(number, "torch"), number)
        for number in range(2)
    ]
    (default,) = every_case(subject, {"ranks": 1, "side": 1})
    assert default.setting.library == "numpy"
    many = every_case(listing(lambda: ((1, {}) for _ in range(2**16 + 2))), {})
    last = list(islice(many, 2**16 - 1, None))
    assert [(each.setting.seed, each.schedule) for each in last] == [(65535, 65535), (65536, 0), (65537, 1)]


@pytest.mark.parametrize(
    "entry", [3, (1,), (1, {}, 2), ("1", {}), (1.0, {}), (1, [2]), (1, None), iter((1, {})), None]
)
def test_a_case_is_a_pair_of_a_number_and_a_dictionary(entry: Any) -> None:
    with pytest.raises(
        SubjectError, match=r"^Listed: every= yields .*, not a pair of a number of ranks and a"
    ):
        bound_of(listing(lambda: [entry]))
    assert bound_of(listing(lambda: [[1, {}]])) == {}


def test_a_bound_has_the_defaults_and_what_was_given_of_what_it_knows() -> None:
    subject = listing(numbers)
    assert bound_of(subject) == bound_of(subject, {}) == {"ranks": 3, "side": 2}
    assert bound_of(subject, {"side": 5, "other": 7}) == {"ranks": 3, "side": 5}


def raising(error: BaseException | None) -> Any:
    def every(ranks: int = 3) -> Iterator[Any]:
        if error is not None:
            raise error
        yield

    return every


@pytest.mark.parametrize(
    ("every", "told"),
    [
        (
            None,
            "Listed: lists no cases; give its decorator every=function, where function(ranks=3, side=2) with "
            "any bounds as keyword arguments yields pairs of a number of ranks and a dictionary of arguments",
        ),
        (
            lambda ranks=3, side="2": [],
            "Listed: the bound side of every= has no whole number as its default; give one, as side=3",
        ),
        (
            lambda ranks=3, side=0: [],
            "Listed: there is no case within the bound ranks 3, side 0; give a larger one",
        ),
        (lambda: [], "Listed: every= lists no case"),
        (lambda ranks=3: [(1025, {})], "Listed: every= yields a case on 1025 ranks; legal are 1 to 1024"),
        (lambda ranks=3: [(0, {})], "Listed: every= yields a case on 0 ranks; legal are 1 to 1024"),
        (raising(ValueError("no")), "Listed: every= fails, ValueError: no"),
        (raising(SystemExit(3)), "Listed: every= fails, SystemExit: 3"),
        (raising(SubjectError("its own words")), "its own words"),
    ],
)
def test_a_list_that_is_none_is_refused_with_a_sentence(every: Any, told: str) -> None:
    with pytest.raises(SubjectError) as error:
        bound_of(listing(every))
    assert str(error.value) == told
    with pytest.raises(KeyboardInterrupt):
        bound_of(listing(raising(KeyboardInterrupt())))


@pytest.mark.parametrize(("device", "memory"), [(None, "numpy"), ("cpu", "numpy"), ("cuda", "first on cuda")])
def test_proofs_are_in_the_memory_of_numpy_but_on_a_device(device: str | None, memory: str) -> None:
    subject: Any = SimpleNamespace(libraries=lambda device: (f"first on {device}", "second"))
    assert memory_of_proofs(subject, device) == memory


# All processes


def case(number: int) -> Case:
    return next(islice(every_case(listing(numbers), {"ranks": 3, "side": 2}), number, None))


def counts(judged: int) -> CaseCounts:
    return CaseCounts(0, judged, judged - 1, 1, judged, 0)


def proved(
    monkeypatch: pytest.MonkeyPatch, *shares: Share, jobs: int | None = 2, side: int = 2, device: Any = None
) -> tuple[Any, tuple[Any, ...], list[tuple[int, int]]]:
    """The result, what the processes were given, and the ticks."""
    given: list[Any] = []
    ticks: list[tuple[int, int]] = []

    def in_processes(*arguments: Any) -> list[Share]:
        given.append(arguments[:-1])
        arguments[-1](4)
        return list(shares)

    monkeypatch.setattr(exhaustive, "in_processes", in_processes)
    monkeypatch.setattr(exhaustive, "cores", lambda: 3)
    monkeypatch.setattr(Subject, "libraries", lambda self, device: (f"memory of {device}",))
    bound = {"ranks": 3, "side": side}
    result = exhaust(listing(numbers), "reference", bound, jobs, lambda *both: ticks.append(both), device)
    return result, given[0], ticks


def test_the_result_has_all_that_the_processes_have_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaustive, "time", SimpleNamespace(monotonic=iter((10.0, 17.0)).__next__))
    result, given, ticks = proved(monkeypatch, Share(counts(4), 40), Share(counts(2), 2))
    assert given == ("reference", {"ranks": 3, "side": 2}, "numpy", 2, 6)
    assert ticks == [(4, 6)]
    assert (result.subject, result.check, result.world) == ("Listed", "proof", "simulated")
    assert (result.status, result.tried, result.seconds) == (Status.COHERENT, 6, 7.0)
    assert (result.case, result.spaces, result.drawn_ranks) == (None, None, 0)
    assert result.figures == {Figure.ENTRIES: 42}
    assert result.counts == CaseCounts(6, 6, 4, 2, 4, 0)


@pytest.mark.parametrize(
    ("jobs", "side", "processes"), [(None, 2, 3), (0, 2, 3), (1, 2, 1), (5, 2, 5), (7, 2, 6), (2, 0, 1)]
)
def test_there_is_a_process_for_each_core_or_as_many_as_asked_for_and_none_without_a_case(
    monkeypatch: pytest.MonkeyPatch, jobs: int | None, side: int, processes: int
) -> None:
    done = [Share(counts(3 * side))] if side else []
    _, given, _ = proved(monkeypatch, *done, jobs=jobs, side=side, device="cuda")
    assert given[2:] == ("memory of cuda", processes, 3 * side)


def test_the_first_failure_is_told_and_an_error_of_a_process_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spaces: Any = object()
    failures = [
        Share(counts(1), 7, (number, case(number), Judgement(incoherent(f"case {number}"), spaces)))
        for number in (5, 1, 4)
    ]
    result, _, _ = proved(monkeypatch, *failures)
    assert (result.verdict, result.case, result.spaces) == (incoherent("case 1"), case(1), spaces)
    assert (result.tried, result.drawn_ranks, result.figures) == (2, 2, {Figure.ENTRIES: 21})
    result, _, _ = proved(monkeypatch, *failures, Share(counts(2)), Share(counts(1), error="it broke"))
    assert (result.status, result.verdict.headline, result.verdict.kind) == (
        Status.UNJUDGED,
        "the exhaustive run failed",
        "process",
    )
    assert result.verdict.lines == (("because", "it broke"),)
    assert (result.case, result.tried) == (None, 6)
    for judged in (5, 7):
        with pytest.raises(RuntimeError, match=rf"^{judged} of 6 cases were proved, and nothing says why$"):
            proved(monkeypatch, Share(counts(judged)))


def test_a_list_that_breaks_off_is_an_error_and_an_interrupt_is_none() -> None:
    def breaks(ranks: int = 3) -> Iterator[Any]:
        yield 1, {}
        raise ZeroDivisionError("late")

    result = exhaust(listing(breaks), "reference", {"ranks": 3})
    assert (result.status, result.tried, result.figures) == (Status.UNJUDGED, 0, {Figure.ENTRIES: 0})
    ((_, text),) = result.verdict.lines
    assert text.startswith("Traceback")
    assert text.endswith("ZeroDivisionError: late")
    with pytest.raises(KeyboardInterrupt):
        exhaust(listing(raising(KeyboardInterrupt())), "reference", {"ranks": 3})


# One process


class Shared:
    """A number that processes share."""

    def __init__(self, value: int) -> None:
        self.value = value

    def get_lock(self) -> Any:
        return nullcontext()


def process(name: str = "right", **given: Any) -> ProofProcess:
    bound = {"ranks": 1, "side": 9} if name == "right" else {"ranks": 1, "side": 6}
    values: dict[str, Any] = dict(
        reference=f"{SUBJECTS}:{name}",
        bound=bound,
        memory="numpy",
        index=0,
        count=1,
        batch_size=3,
        done=Shared(0),
        first_failure=Shared(math.inf),  # type: ignore[arg-type]
        path=sys.path[:],
    )
    return ProofProcess(**{**values, **given})


@pytest.mark.parametrize(
    ("index", "count", "size", "failure", "batches"),
    [
        (0, 1, 3, 99, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
        (1, 2, 3, 99, [[3, 4, 5], [9]]),
        (2, 3, 2, 99, [[4, 5]]),
        (0, 3, 2, 99, [[0, 1], [6, 7]]),
        (0, 1, 3, 6, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        (0, 1, 3, 5, [[0, 1, 2], [3, 4, 5]]),
        (0, 1, 10, 99, [[*range(10)]]),
    ],
)
def test_a_process_takes_every_so_many_batches_until_a_smaller_case_has_failed(
    index: int, count: int, size: int, failure: int, batches: list[list[int]]
) -> None:
    one = process(index=index, count=count, batch_size=size, first_failure=Shared(failure))
    taken = list(one.own_batches(enumerated_subjects.right))
    assert [[number for number, _ in batch] for batch in taken] == batches
    listed = list(every_case(enumerated_subjects.right, one.bound))
    assert all(listed[number] == case for batch in taken for number, case in batch)


def test_a_share_counts_what_its_process_has_proved() -> None:
    one = process()
    share = one.share()
    assert share == Share(CaseCounts(0, judged=10), sum(width**2 for width in range(10)))
    assert one.done.value == 10
    assert one.first_failure.value == math.inf
    second = process(index=1, count=2)
    assert second.share().entries == 9 + 16 + 25 + 81
    assert second.done.value == 4


@pytest.mark.parametrize(("known", "first"), [(math.inf, 3), (4, 3), (3, 3)])
def test_a_share_ends_at_its_first_failure_and_tells_the_others(known: float, first: int) -> None:
    one = process("loses", first_failure=Shared(known), batch_size=2)  # type: ignore[arg-type]
    share = one.share()
    assert share.failure is not None
    number, case, judgement = share.failure
    assert (number, case.parameters["layout"].shape) == (3, (3,))
    assert judgement.verdict.headline == "adjoint is not what its specification says"
    assert (share.counts.judged, share.entries, one.first_failure.value) == (3, 0 + 1 + 4, first)
    assert one.done.value == 2  # of the batches that are done


def test_nothing_is_run_beyond_a_failure_of_another_process() -> None:
    one = process(first_failure=Shared(4))
    share = one.share()
    assert share == Share(CaseCounts(0, judged=5), 0 + 1 + 4 + 9 + 16)
    assert one.first_failure.value == 4


def test_a_process_sends_its_share_or_the_error_that_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Share] = []
    pipe: Any = SimpleNamespace(send=sent.append)
    done = Share(CaseCounts(0, judged=1))
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(ProofProcess, "share", lambda self: done)
    process(path=["there"])(pipe)
    assert (sent, sys.path) == ([done], ["there"])

    def raises(error: BaseException) -> Any:
        def share(self: Any) -> Any:
            raise error

        return share

    monkeypatch.setattr(ProofProcess, "share", raises(KeyboardInterrupt()))
    process()(pipe)
    assert len(sent) == 1
    for error in (ValueError("no"), SystemExit(3)):
        monkeypatch.setattr(ProofProcess, "share", raises(error))
        process()(pipe)
        assert sent[-1].counts == CaseCounts(0)
        assert sent[-1].error.startswith("Traceback")
        assert sent[-1].error.endswith(f"{type(error).__name__}: {error}")


# Their start and their end


class Context:
    """Processes that run when their pipe is asked for what they have sent."""

    def __init__(self, *ends: str) -> None:
        self.ends = iter(ends)
        self.log: list[str] = []
        self.targets: list[ProofProcess] = []
        self.polls: list[float] = []

    def Value(self, kind: str, value: int) -> Shared:
        assert kind == "q"
        return Shared(value)

    def Pipe(self, *, duplex: bool) -> tuple[Any, Any]:
        assert not duplex
        pipe = SimpleNamespace(end=next(self.ends), polls=2)

        def poll(seconds: float) -> bool:
            self.polls.append(seconds)
            pipe.polls -= 1
            self.targets[0].done.value += 1
            return bool(pipe.polls == 0)

        def recv() -> Any:
            if pipe.end == "dead":
                raise EOFError
            if pipe.end == "broken":
                raise ZeroDivisionError
            return Share(CaseCounts(0, judged=3))

        receiver = SimpleNamespace(poll=poll, recv=recv)
        return receiver, SimpleNamespace(close=lambda: self.log.append("closed"))

    def Process(self, *, target: ProofProcess, args: tuple[Any], daemon: bool) -> Any:
        assert daemon
        self.targets.append(target)
        return SimpleNamespace(
            start=lambda: self.log.append("started"),
            join=lambda: self.log.append("joined"),
            terminate=lambda: self.log.append("terminated"),
            exitcode=-9,
        )


def run_in(
    monkeypatch: pytest.MonkeyPatch, context: Context, count: int, total: int
) -> tuple[list[Share], list[int]]:
    ticks: list[int] = []

    def get_context(method: str) -> Context:
        assert method == "spawn"
        return context

    monkeypatch.setattr(shares_of_proofs, "multiprocessing", SimpleNamespace(get_context=get_context))
    return in_processes("reference", {"ranks": 3}, "torch", count, total, ticks.append), ticks


def test_processes_are_started_asked_for_their_shares_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context("done", "dead")
    shares, ticks = run_in(monkeypatch, context, 2, 100)
    assert shares == [
        Share(CaseCounts(0, judged=3)),
        Share(CaseCounts(0), error="it ended with exit code -9"),
    ]
    assert ticks == [1, 3, 4]
    assert context.polls == [0.2] * 4
    assert context.log == ["started", "closed"] * 2 + ["joined"] + ["terminated", "joined"] * 2
    for index, target in enumerate(context.targets):
        assert (target.reference, target.bound, target.memory, target.path) == (
            "reference",
            {"ranks": 3},
            "torch",
            sys.path,
        )
        assert (target.index, target.count, target.batch_size) == (index, 2, 6)
        assert target.first_failure is context.targets[0].first_failure
        assert target.first_failure.value > 2**50
    assert context.targets[0].done is not context.targets[1].done


@pytest.mark.parametrize(
    ("count", "total", "size"),
    [(1, 7, 1), (1, 16, 2), (2, 100, 6), (1, 255, 31), (1, 256, 32), (1, 9999, 32)],
)
def test_there_are_eight_batches_for_a_process_of_thirty_two_cases_at_most(
    monkeypatch: pytest.MonkeyPatch, count: int, total: int, size: int
) -> None:
    context = Context(*["done"] * count)
    run_in(monkeypatch, context, count, total)
    assert {target.batch_size for target in context.targets} == {size}


def test_processes_are_ended_where_anything_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context("broken", "done")
    with pytest.raises(ZeroDivisionError):
        run_in(monkeypatch, context, 2, 9)
    assert context.log[-4:] == ["terminated", "joined"] * 2
