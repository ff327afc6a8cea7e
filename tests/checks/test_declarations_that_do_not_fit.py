"""Declared gains, roundings, programs, windows and parameters are taken as they are meant, and told where they cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.core.operator import LinearOperator
from adjointlab.core.program import Program
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.run_case import run_case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.primitives.broadcast import Broadcast

pytestmark = pytest.mark.mpi_skip


def verdict(subject: Subject, check: str, cases: int = 40) -> Verdict:
    return investigate(al.SimulatedWorld(2), subject, check, Budget(cases, seed=1, shrinking=0)).verdict


class LastThird(LinearOperator):
    """Divides the last element by 3, of a gain that is declared."""

    gain = 1

    def __init__(self, comm: Any, size: int) -> None:
        self.comm, self.domain, self.codomain = comm, *2 * (al.Space(al.Layout((size,), (1,))),)

    def forward(self, x: Any) -> Any:
        y = x.copy()
        y[-1:] /= 3
        return y

    adjoint = forward


@pytest.mark.parametrize("size", [2, 9])
def test_one_coefficient_that_is_a_fraction_is_seen_beside_whole_ones(size: int) -> None:
    @al.subject.operator(LastThird, ranks=(1,))
    def thirds(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(size=size)

    assert verdict(thirds, "adjoint", 100).is_coherent


class Compressed(Broadcast):
    """Rounds what it has computed to some bits, as compressed messages do."""

    rounding = 2.0**-10

    def forward(self, x: Any) -> Any:
        return super().forward(x) * (1 + 2.0**-14)

    def adjoint(self, y: Any) -> Any:
        return super().adjoint(y) * (1 + 2.0**-14)


def broadcasts(draw: Any, ranks: int) -> dict[str, Any]:
    return dict(layout=al.Layout((4,), (1,)), partition=al.Partition((ranks,)), dtype="float64")


def test_a_declared_rounding_holds_beside_a_specification_too() -> None:
    subject: Subject = al.subject.operator(Compressed, ranks=(2,))(broadcasts)
    assert verdict(subject, "specification").is_coherent

    class OffByMore(Compressed):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 1.01

    subject = al.subject.operator(OffByMore, ranks=(2,))(broadcasts)
    assert verdict(subject, "specification").headline == "forward is not what its specification says"


class SeldomSpecified(Broadcast):
    def specification(self) -> Program | tuple[Program, Program] | None:
        return super().specification() if self.comm.Get_size() == 2 else None


def test_cases_without_a_specification_are_not_judged_by_it() -> None:
    subject: Subject = al.subject.operator(SeldomSpecified, ranks=(1, 2))(broadcasts)
    result = investigate(al.SimulatedWorld(2), subject, "specification", Budget(10, seed=1))
    assert result.verdict.is_coherent
    assert result.counts is not None
    assert result.counts.rejected.keys() == {"the operator has no specification in this case"}


class MisSpecified(Broadcast):
    """Returns `given` as its specification, and declares no gain."""

    given: Any = None

    def __init__(self, comm: Any, **arguments: Any) -> None:
        super().__init__(comm, **arguments)
        self.gain = None

    def specification(self) -> Any:
        return self.given


@pytest.mark.parametrize(
    ("given", "check", "message"),
    [
        (
            [],
            "specification",
            "specification: returned a list, and has to return a Program, or a tuple of two",
        ),
        ((Program((), ()),), "specification", "specification: returned a tuple, and has to return a Program"),
        ("x -> y", "adjoint", "specification: returned a str, and has to return a Program"),
        (
            Program((), ()),
            "specification",
            "the specification maps [] to [], but the spaces need ['x@0'] and ['y@0'",
        ),
        (Program((), ()), "proof", "the specification maps [] to [], but the spaces need ['x@0'] and ['y@0'"),
    ],
)
def test_a_specification_that_is_no_program_between_the_spaces_is_told_with_its_case(
    given: Any, check: str, message: str
) -> None:
    kind = type("WithProgram", (MisSpecified,), {"given": given})
    subject: Subject = al.subject.operator(kind, ranks=(2,))(broadcasts)
    result = investigate(al.SimulatedWorld(2), subject, check, Budget(5, seed=1))
    assert message in result.verdict.headline
    assert result.case is not None
    assert result.case.ranks == 2


def without_halo(comm: Any, x: Any) -> Any:
    return x[:2] if comm.Get_rank() == 0 else x[1:]


def halo_of_zeros(comm: Any, y: Any) -> Any:
    return np.concatenate([y, [0.0]] if comm.Get_rank() == 0 else [[0.0], y])


def test_windows_with_values_of_their_own_are_no_sequential_tensor() -> None:
    @al.subject.pair(without_halo, halo_of_zeros, ranks=(2,), reference=lambda x: x)
    def windows(draw: Any, ranks: int) -> dict[str, Any]:
        overlapping = al.Layout((4,), al.Partition((2,)), [[(0, 3), (1, 4)]])
        return dict(domain=al.Space(overlapping), codomain=al.Space(al.Layout((4,), al.Partition((2,)))))

    assert verdict(windows, "adjoint").is_coherent
    found = verdict(windows, "sequential")
    assert found.status is Status.UNJUDGED
    assert any("values of their own" in text for _, text in found.lines)


class BiasOnOneRank(nn.Module):
    """A linear module of which rank 0 alone has, and declares, the bias."""

    def __init__(self, comm: Any) -> None:
        super().__init__()
        copies = al.Layout((2, 3), al.Partition((comm.Get_size(),)), axes=(None, None))
        held = [al.Tensor(copies, types=("replicated",), name="weight")]
        self.weight, self.bias = nn.Parameter(torch.ones(2, 3, dtype=torch.float64)), None
        if comm.Get_rank() == 0:
            self.bias = nn.Parameter(torch.ones(2, dtype=torch.float64))
            held.append(al.Tensor(al.Layout((2,), al.Partition((1,))), name="bias"))
        self.parameter_space = al.Space(*held)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


def test_ranks_that_declare_other_parameters_are_named_with_what_they_declare() -> None:
    @al.subject.layer(lambda comm: BiasOnOneRank(comm), lambda: nn.Linear(3, 2).double(), ranks=(2,))
    def linears(draw: Any, ranks: int) -> dict[str, Any]:
        partition = al.Partition((ranks, 1))
        return dict(
            domain=al.Space(al.Layout((4, 3), partition)), codomain=al.Space(al.Layout((4, 2), partition))
        )

    found = verdict(linears, "sequential", 5)
    assert found.headline == "the ranks declare different parameters or buffers"
    told = dict(found.lines)
    assert told["rank 0"].startswith("bias ")
    assert told["rank 1"] == "none of these"


def test_sums_of_integers_are_compared_exactly_whatever_the_gain() -> None:
    def summed(comm: Any, x: Any) -> Any:
        return np.array([x.sum(dtype=np.int32) + (x[0] != 0)], np.int32)

    def spread(comm: Any, y: Any) -> Any:
        return np.full(900, y[0], np.int32)

    def whole(x: Any) -> Any:
        return x.sum(dtype=np.int32)[None]

    @al.subject.pair(summed, spread, ranks=(1,), reference=whole)
    def sums(draw: Any, ranks: int) -> dict[str, Any]:
        one = al.Partition((1,))
        return dict(
            domain=al.Space(al.Layout((900,), one), dtype="int32"),
            codomain=al.Space(al.Layout((1,), one), dtype="int32"),
        )

    assert verdict(sums, "sequential").headline == "the distributed result is not the sequential one"


def test_terms_that_cancel_in_the_derivative_of_a_mean_are_allowed_their_rounding() -> None:
    subject = find_subject("adjointlab.layers.subjects.losses:mean_squared_errors")
    parameters = dict(
        partition=al.Partition((1, 1, 1)),
        input_shape=(2, 3, 4),
        reduction="mean",
        root=0,
        all_reduce=False,
        dtype="float64",
        cuts=((0, 2), (0, 3), (0, 4)),
    )
    world = al.SimulatedWorld(1)

    def conduct(run: Any) -> list[Any]:
        # With these seeds the sum over all directions is 0, of which rounding leaves some 1e-16.
        cases = (
            Case("MSELoss", "double_backward", 1, parameters, InputSetting(seed, "torch"), 0)
            for seed in (219, 259, 591)
        )
        return [run_case(run, case) for case in cases]

    assert all(each.verdict.is_coherent for each in world.lead(body(subject), conduct))


class WithoutHalo(nn.Module):
    """Squares its own elements of windows that overlap."""

    def __init__(self, comm: Any) -> None:
        super().__init__()
        self.own = slice(0, 2) if comm.Get_rank() == 0 else slice(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[self.own] ** 2


@pytest.mark.parametrize(("check", "is_judged"), [("sequential", False), ("jacobian", True)])
def test_layers_of_windows_with_values_of_their_own_are_judged_by_differences(
    check: str, is_judged: bool
) -> None:
    @al.subject.layer(lambda comm: WithoutHalo(comm), nn.Identity, ranks=(2,))
    def windows(draw: Any, ranks: int) -> dict[str, Any]:
        overlapping = al.Layout((4,), al.Partition((2,)), [[(0, 3), (1, 4)]])
        return dict(domain=al.Space(overlapping), codomain=al.Space(al.Layout((4,), al.Partition((2,)))))

    assert verdict(windows, check, 10).is_coherent is is_judged


class OwnLength(LinearOperator):
    """The identity, of as many elements as the rank has."""

    def __init__(self, comm: Any) -> None:
        lengths = comm.Get_rank() + 1, comm.Get_size()
        self.comm = comm
        self.domain = self.codomain = al.Space(al.Layout(lengths[:1], lengths[1:], axes=(None,)))

    def forward(self, x: Any) -> Any:
        return x.copy()

    adjoint = forward


@pytest.mark.parametrize("check", ["adjoint", "matrix", "linearity", "purity"])
def test_lengths_of_ranks_that_are_taken_for_that_of_the_tensor_are_told_by_every_check(check: str) -> None:
    @al.subject.operator(OwnLength, ranks=(2,))
    def lengths(draw: Any, ranks: int) -> dict[str, Any]:
        return {}

    assert "the ranks declare different spaces" in verdict(lengths, check).headline
