"""The engine finds, shrinks, keeps to its budget, and says what it could not judge."""

from __future__ import annotations

import gc
import importlib
import sys
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine import search
from adjointlab.engine.discovery import found_as
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import SubjectError
from adjointlab.session import run_check
from adjointlab.worlds.run import Raised
from adjointlab.worlds.simulated.world import SimulatedWorld


class Identity(al.LinearOperator):
    """Every worker keeps its local tensor."""

    def __init__(self, comm: Any, layout: al.Layout, dtype: str = "float64") -> None:
        self.comm = comm
        self.domain = self.codomain = al.Space(layout, dtype=dtype)

    def forward(self, x: Any) -> Any:
        return np.array(x)

    def adjoint(self, y: Any) -> Any:
        return np.array(y)


class DeclaresItsGain(Identity):
    """Nothing is added up."""

    gain = 1


class DropsTheLastShard(Identity):
    """Its adjoint forgets the last worker where the cut is uneven."""

    def adjoint(self, y: Any) -> Any:
        layout = self.domain.tensors[0].layout
        sizes = {layout.local_size(rank) for rank in layout.partition.ranks}
        last = self.comm.Get_rank() == self.comm.Get_size() - 1
        return np.zeros_like(y) if last and len(sizes) > 1 else np.array(y)


class CountsItsCalls(Identity):
    """Nondeterministic: module state decides."""

    calls: ClassVar[list[int]] = [0]

    def adjoint(self, y: Any) -> Any:
        self.calls[0] += 1
        return np.array(y) * (2 if self.calls[0] < 3 else 1)


class RaisesOnRankOne(Identity):
    """One worker raises, the others wait for it."""

    def forward(self, x: Any) -> Any:
        if self.comm.Get_rank() == 1:
            raise RuntimeError("the second worker is unwell")
        self.comm.Barrier()
        return np.array(x)


class WaitsForItself(Identity):
    """A deadlock by receive order: everybody receives before anybody sends."""

    def forward(self, x: Any) -> Any:
        size, rank = self.comm.Get_size(), self.comm.Get_rank()
        if size > 1:
            token = np.zeros(1)
            self.comm.Recv(token, source=(rank - 1) % size)
            self.comm.Send(token, dest=(rank + 1) % size)
        return np.array(x)


class OfAnotherShape(Identity):
    """Returns what its codomain does not hold."""

    def forward(self, x: Any) -> Any:
        return np.zeros((*x.shape, 1))


def lines(draw: Any, ranks: int) -> dict[str, Any]:
    return {"layout": draw(al.strategies.layouts(ranks, ndim=1))}


@pytest.fixture(scope="module")
def world() -> SimulatedWorld:
    return SimulatedWorld(4)


def test_a_fault_of_uneven_cuts_shrinks_to_the_smallest_uneven_cut(world: SimulatedWorld) -> None:
    report = investigate(world, al.subject(DropsTheLastShard)(lines), "adjoint", Budget(200, seed=4))
    assert report.status is Status.INCOHERENT
    assert report.case is not None
    layout = report.case.parameters["layout"]
    assert report.case.ranks == 2
    assert layout == al.Layout((3,), al.Partition((2,)))  # balanced, and uneven all the same
    assert dict(report.verdict.lines) == {
        "forward": "moves x[2] (rank 1) to x[2] (rank 1) with weight 1",
        "adjoint": "gives that entry weight 0",
    }


def test_equal_seeds_find_equal_cases_after_equally_many(world: SimulatedWorld) -> None:
    subject = al.subject(DropsTheLastShard)(lines)
    first, second = (investigate(world, subject, "adjoint", Budget(100, seed=11)) for _ in range(2))
    assert (first.case, first.tried) == (second.case, second.tried)


def test_without_a_seed_every_run_draws_fresh_cases_and_tells_the_seed(world: SimulatedWorld) -> None:
    subject = al.subject(Identity)(lines)
    seeds = {investigate(world, subject, "adjoint", Budget(2)).seed for _ in range(3)}
    assert len(seeds) == 3


def test_what_is_drawn_does_not_depend_on_the_modules_that_are_imported(
    world: SimulatedWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hypothesis draws constants from the source of modules that are not installed, and keeps them in a folder."""
    constants = tmp_path / "constants_of_its_own.py"
    constants.write_text(f"VALUES = {[12345 + number for number in range(1000)]}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def drawn() -> list[int]:
        values: list[int] = []

        def integers(draw: Any, ranks: int) -> dict[str, Any]:
            values.append(draw(st.integers(0, 2**20)))
            return {"layout": al.Layout((2,), al.Partition((ranks,)))}

        investigate(world, al.subject(Identity)(integers), "adjoint", Budget(200, seed=1))
        return values

    before = drawn()
    importlib.import_module(constants.stem)
    assert drawn() == before
    assert not (tmp_path / ".hypothesis").exists()


def test_the_budget_of_cases_is_kept(world: SimulatedWorld) -> None:
    ticks: list[int] = []
    report = investigate(world, al.subject(Identity)(lines), "adjoint", Budget(25, seed=1), ticks.append)
    assert report.status is Status.COHERENT
    assert report.tried == report.counts.judged == 25
    # Cases without an element are drawn, and do not count.
    assert ticks == list(range(1, 26 + sum(report.counts.rejected.values())))


class WrongOnOneNumberOfRanks(Identity):
    """Its adjoint is wrong among so many workers alone."""

    wrong_on = 0

    def adjoint(self, y: Any) -> Any:
        return np.array(y) * (2 if self.comm.Get_size() == self.wrong_on else 1)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("ranks", [2, 5, 7])
def test_what_is_wrong_on_one_number_of_ranks_alone_is_found(
    ranks: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WrongOnOneNumberOfRanks, "wrong_on", ranks)
    subject = al.subject(WrongOnOneNumberOfRanks)(lines)
    report = investigate(SimulatedWorld(8), subject, "adjoint", Budget(100, seed=seed))
    assert report.case is not None
    assert report.case.ranks == ranks


def test_memory_does_not_grow_with_the_number_of_cases(
    world: SimulatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypothesis keeps the cases of one batch, and those of the first, which are set aside from garbage collections, to the end."""
    monkeypatch.setattr(search, "_BATCH", 40)
    alive: list[int] = []

    def results() -> list[object]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each).__name__ == "ConjectureResult"]

    # Kept, for those of other tests may go in the meantime, and not counted: they are set aside too, where nothing lists them.
    earlier = results()
    known = set(map(id, earlier))

    def count(tried: int) -> None:
        if tried % 39 == 0:
            alive.append(sum(id(each) not in known for each in results()))

    report = investigate(world, al.subject(Identity)(lines), "adjoint", Budget(200, seed=1), count)
    assert report.tried == 200
    assert alive[0] > 30
    assert max(alive) < 100


def test_the_batches_of_a_search_draw_different_cases(
    world: SimulatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_BATCH", 10)
    drawn: list[int] = []

    def seeds(draw: Any, ranks: int) -> dict[str, Any]:
        drawn.append(draw(st.integers(0, 2**60)))
        return {"layout": al.Layout((2,), al.Partition((ranks,)))}

    investigate(world, al.subject(Identity)(seeds), "adjoint", Budget(30, seed=1))
    batches = [tuple(drawn[start : start + 10]) for start in (0, 10, 20)]
    assert len(set(batches)) == 3


def test_an_exact_coherent_report_states_a_miss_probability_below_one_in_a_billion(
    world: SimulatedWorld,
) -> None:
    def halves(draw: Any, ranks: int) -> dict[str, Any]:
        return {**lines(draw, ranks), "dtype": draw(st.sampled_from(["float16", "complex64", "float32"]))}

    report = investigate(world, al.subject(DeclaresItsGain)(halves), "adjoint", Budget(20, seed=1))
    assert report.status is Status.COHERENT
    assert report.exact == report.tried
    assert 0 < float(report.figures["miss probability"]) < 1e-9


def test_a_case_that_a_tolerance_judges_does_not_count_as_exact(world: SimulatedWorld) -> None:
    """The gain is read off the matrix, which shows no intermediates: so differences within rounding pass."""

    def five(draw: Any, ranks: int) -> dict[str, Any]:
        return {"layout": al.Layout((5,), al.Partition((ranks,)))}

    report = investigate(world, al.subject(Identity)(five), "adjoint", Budget(20, seed=1))
    assert report.status is Status.COHERENT
    assert report.figures["gain from"] == "probe"
    assert report.exact == 0
    assert "miss probability" not in report.figures


@pytest.mark.parametrize(("kind", "how"), [(DeclaresItsGain, "exact; missed"), (Identity, "every entry")])
def test_the_dot_test_of_one_instance_calls_itself_exact_only_without_a_tolerance(
    world: SimulatedWorld, kind: type[Identity], how: str
) -> None:
    layout = al.Layout((5,), al.Partition((2,)))
    run = world.run(lambda context, _: str(al.check_adjoint(kind(context.comm, layout))), None, 2)
    assert all(text.startswith(f"coherent ({how}") for text in run.values)


def test_the_dot_test_asks_for_the_gain_of_integer_tensors_that_is_not_known(world: SimulatedWorld) -> None:
    layout = al.Layout((65,), al.Partition((1,)))  # too large for a probe
    with pytest.raises(TypeError, match="operator: a list has no comm; derive it from"):
        al.check_adjoint([])  # type: ignore[arg-type]
    run = world.run(lambda context, _: al.check_adjoint(Identity(context.comm, layout, "int64")), None, 1)
    (outcome,) = run.outcomes
    assert isinstance(outcome, Raised)
    assert (
        outcome.message
        == "operator: the gain is unknown (declare `gain`), and integer tensors have no floating form"
    )


def test_an_exception_on_one_rank_is_told_with_what_became_of_the_others(world: SimulatedWorld) -> None:
    report = investigate(world, al.subject(RaisesOnRankOne)(lines), "adjoint", Budget(50, seed=1))
    assert report.status is Status.UNJUDGED
    assert report.verdict.headline == "rank 1 raised RuntimeError: the second worker is unwell"
    assert report.case is not None
    assert report.case.ranks == 2
    lines_told = dict(report.verdict.lines)
    assert "Barrier" in lines_told["rank 0"]
    assert "rank 1" not in lines_told  # it stands in the headline


def test_an_exception_on_every_rank_is_told_once(world: SimulatedWorld) -> None:
    class RaisesEverywhere(Identity):
        def forward(self, *x: Any) -> Any:
            raise RuntimeError("unwell")

    subject = al.subject(RaisesEverywhere, ranks=[2])(lines)
    verdict = investigate(world, subject, "adjoint", Budget(5, seed=1)).verdict
    assert verdict.headline == "rank 0 raised RuntimeError: unwell"
    assert dict(verdict.lines)["rank 1"] == "raised the same exception"
    assert str(verdict).count("unwell") == 3  # and twice in the traceback


def test_a_deadlock_is_told_as_one_and_shrunk(world: SimulatedWorld) -> None:
    report = investigate(world, al.subject(WaitsForItself)(lines), "adjoint", Budget(50, seed=1))
    assert report.status is Status.UNJUDGED
    assert report.verdict.headline == "deadlock"
    assert report.case is not None
    assert report.case.ranks == 2


def test_an_output_outside_its_space_is_incoherent(world: SimulatedWorld) -> None:
    report = investigate(world, al.subject(OfAnotherShape)(lines), "adjoint", Budget(10, seed=1))
    assert report.status is Status.INCOHERENT
    assert report.verdict.headline == "an output is not in its declared space"


def test_a_result_that_changes_from_run_to_run_is_reported_as_such(world: SimulatedWorld) -> None:
    CountsItsCalls.calls[0] = 0
    report = investigate(world, al.subject(CountsItsCalls)(lines), "declared", Budget(30, seed=1))
    assert report.status is Status.COHERENT  # scaling alone is no matter of declarations
    CountsItsCalls.calls[0] = 0
    report = investigate(world, al.subject(CountsItsCalls)(lines), "adjoint", Budget(30, seed=1))
    assert report.status is Status.UNJUDGED
    assert "changes from run to run" in report.verdict.headline


def test_an_exception_in_a_strategy_reaches_the_caller(world: SimulatedWorld) -> None:
    def broken(draw: Any, ranks: int) -> dict[str, Any]:
        raise ZeroDivisionError("in the strategy")

    with pytest.raises(ZeroDivisionError):
        investigate(world, al.subject(Identity)(broken), "adjoint", Budget(10))


def test_a_keyboard_interrupt_reaches_the_caller(world: SimulatedWorld) -> None:
    def interrupt(tried: int) -> None:
        if tried == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        investigate(world, al.subject(Identity)(lines), "adjoint", Budget(10), interrupt)
    assert investigate(world, al.subject(Identity)(lines), "adjoint", Budget(5)).status is Status.COHERENT


@pytest.mark.parametrize("wrong", [{"cases": 0}, {"ranks": 0}])
def test_an_impossible_budget_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Budget(**wrong)


class TestAHalfWrittenSubject:
    """The error says what is missing."""

    def test_without_an_operator(self) -> None:
        with pytest.raises(SubjectError, match=r"@subject\.operator\(MyOperator\)"):
            al.subject()(lines)

    def test_decorating_without_parentheses(self) -> None:
        with pytest.raises(SubjectError, match="what to check"):
            al.subject(lines)

    def test_with_an_option_that_there_is_not(self) -> None:
        with pytest.raises(SubjectError, match=r"no option `process_groups`; did you mean process_group\?"):
            al.subject.operator(Identity, process_groups=True)  # type: ignore[call-arg]

    def test_with_a_process_group_of_a_name(self) -> None:
        with pytest.raises(SubjectError, match="process_group: 'gloo' is not True or False"):
            al.subject.operator(Identity, process_group="gloo")  # type: ignore[arg-type]

    def test_with_one_function_of_a_pair(self) -> None:
        with pytest.raises(SubjectError, match="lacks `adjoint`"):
            al.subject(forward=np.array)

    def test_with_a_class_without_adjoint(self) -> None:
        class Half(al.LinearOperator):
            def forward(self, *x: Any) -> Any:
                return x

        with pytest.raises(SubjectError, match="does not define adjoint"):
            al.subject(Half)

    def test_with_a_strategy_of_another_signature(self) -> None:
        with pytest.raises(SubjectError, match=r"takes \(draw, ranks\)"):
            al.subject(Identity)(lambda draw: {})

    def test_with_a_strategy_that_returns_no_dictionary(self, world: SimulatedWorld) -> None:
        with pytest.raises(SubjectError, match="not a dictionary"):
            investigate(world, al.subject(Identity)(lambda draw, ranks: ranks), "adjoint", Budget(5))

    def test_is_one_verdict_of_a_run_and_not_the_end_of_it(
        self, world: SimulatedWorld, tmp_path: Path
    ) -> None:
        """An incomplete subject does not keep another from being judged."""
        subject = found_as(al.subject(Identity)(lambda draw, ranks: ranks))
        result = run_check(world, subject, "adjoint", Budget(5), tmp_path).result
        assert (result.status, result.verdict.kind) == (Status.UNJUDGED, "SubjectError")
        assert "not a dictionary" in result.verdict.headline

    def test_with_an_operator_without_spaces(self, world: SimulatedWorld) -> None:
        class Spaceless(Identity):
            def __init__(self, comm: Any, layout: al.Layout) -> None:
                self.comm = comm

        report = investigate(world, al.subject(Spaceless)(lines), "adjoint", Budget(5))
        assert "no `domain`" in report.verdict.headline

    def test_with_functions_but_without_spaces(self, world: SimulatedWorld) -> None:
        pair = al.subject(forward=lambda comm, x: x, adjoint=lambda comm, y: y)(lambda draw, ranks: {})
        report = investigate(world, pair, "adjoint", Budget(5))
        assert "`domain` and `codomain`" in report.verdict.headline


def _side(draw: Any) -> int:
    """Seldom one of those refused, but where a failure is made smaller; the first case that Hypothesis tries has 0."""
    return sum(draw(st.integers(0, 9)) for _ in range(4))


_REFUSED = range(1, 8)


def _cut(side: int, ranks: int) -> al.Layout:
    return al.Layout((side,), al.Partition((ranks,)))


def _divides(draw: Any, ranks: int) -> dict[str, Any]:
    side = _side(draw)
    return {"layout": _cut(side, ranks), "turn": 1 // (side not in _REFUSED)}


def _leaves(draw: Any, ranks: int) -> dict[str, Any]:
    side = _side(draw)
    if side in _REFUSED:
        sys.exit(0)
    return {"layout": _cut(side, ranks)}


def _skips(draw: Any, ranks: int) -> dict[str, Any]:
    side = _side(draw)
    if side in _REFUSED:
        pytest.skip("small")
    return {"layout": _cut(side, ranks)}


def _one_and_another(draw: Any, ranks: int) -> dict[str, Any]:
    return {"layout": _cut(draw(st.integers(2, 9)), ranks), "turn": next(_TURNS)}


_TURNS = count()


@pytest.mark.parametrize(
    ("strategy", "then"),
    [
        (_divides, "looking at smaller cases raised ZeroDivisionError"),
        (_skips, "looking at smaller cases raised Skipped"),
        (_leaves, "looking at smaller cases raised SystemExit"),
        (
            _one_and_another,
            "when smaller cases were looked at, the subject's strategy draws other cases from the same choices",
        ),
    ],
)
def test_a_failure_that_was_found_outlives_a_strategy_that_fails_on_smaller_cases(
    world: SimulatedWorld, strategy: Any, then: str
) -> None:
    class Wrong(Identity):
        def __init__(self, comm: Any, layout: al.Layout, turn: int = 1) -> None:
            super().__init__(comm, layout)
            self.turn = turn

        def adjoint(self, y: Any) -> Any:
            return (1 + self.turn % 2) * y

    report = investigate(world, al.subject(Wrong)(strategy), "adjoint", Budget(50, seed=1))
    assert (report.status, report.verdict.headline) == (
        Status.INCOHERENT,
        "adjoint is not the transpose of forward",
    )
    assert report.case is not None
    assert dict(report.verdict.lines)["then"].startswith(then)
