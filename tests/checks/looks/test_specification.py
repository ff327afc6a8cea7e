"""Looks of the comparison with the specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.checks.specification import SPECIFICATION
from adjointlab.core.program import Deallocate, Program, buffers, copy_to_new
from tests.checks.looks.harness import Look, assert_seen, each_of, verdict
from tests.checks.looks.operators import Ring, filled_with, larger_than, last_lost, on, ring, where


class OfAPair(Ring):
    """Its specification is a pair of programs, of which one has a fault of its own."""

    def __init__(self, comm: Any, wrong: int, **given: Any) -> None:
        super().__init__(comm, is_specified=True, **given)
        self.wrong = wrong

    def specification(self) -> Any:
        program = super().specification()
        assert isinstance(program, Program)
        # Around the ring the other way, the two are each other's adjoints as well.
        programs = [program, program.adjoint()]
        other = Reversed(self.comm, is_specified=True).specification()
        assert isinstance(other, Program)
        programs[self.wrong] = other if self.wrong == 0 else other.adjoint()
        return tuple(programs)


class Reversed(Ring):
    """Specified to move to the worker before."""

    def specification(self) -> Program | None:
        inputs, outputs = buffers(self.domain), buffers(self.codomain)
        copies = [
            step
            for rank, one in enumerate(inputs)
            for step in copy_to_new(one.whole, outputs[(rank - 1) % self.size])
        ]
        return Program(inputs, [*copies, *map(Deallocate, inputs)])


class KeepsItsInput(Ring):
    """Its program of forward ends with the buffers of the domain too."""

    def specification(self) -> Any:
        program = super().specification()
        assert program is not None
        kept = [step for step in program.steps if not isinstance(step, Deallocate)]
        return Program(program.inputs, kept), program.adjoint()


class OfOtherBuffers(Ring):
    """Specified for tensors of another size."""

    def specification(self) -> Program | None:
        return Ring(self.comm, (3,), is_specified=True).specification()


def both(direction: str) -> list[Look]:
    """The looks of a direction."""
    wrong = f"{direction} is not what its specification says"

    def specified(fault: Any) -> Any:
        return ring(is_specified=True, **{direction: fault})

    return [
        Look(f"{direction} on rank 0", specified(on(0)), wrong, 3),
        Look(f"{direction} on the last rank", specified(on(-1)), wrong, 3),
        Look(f"{direction}, the last element", specified(on(1, last_lost)), wrong),
        Look(f"{direction}, the sign", specified(lambda operator, x, result: -result), wrong),
        Look(f"{direction}, large integers", specified(where(larger_than(2.0**18))), wrong),
        Look(f"{direction}, exactly", specified(lambda operator, x, result: result * (1 + 2.0**-50)), wrong),
        Look(f"{direction}, NaN on the last rank", specified(on(-1, filled_with(np.nan))), f"{direction} returned nan on rank 2", 3),
        Look(f"{direction}, the imaginary part", ring(is_specified=True, dtype="complex128", **{direction: lambda operator, x, r: r.conj()}), wrong),
        Look(f"{direction}, its own program of two", ring(OfAPair, wrong=("forward", "adjoint").index(direction)), wrong, 3),
    ]  # fmt: skip


LOOKS = [*both("forward"), *both("adjoint"), Look("a program of the spaces", ring(is_specified=True), "", 3)]


@each_of(LOOKS)
def test_a_look_of_the_specification(look: Look) -> None:
    assert_seen(SPECIFICATION, look)


@pytest.mark.parametrize("kind", [OfOtherBuffers, KeepsItsInput])
def test_a_specification_of_other_buffers_is_refused(kind: type[Ring]) -> None:
    found = verdict(SPECIFICATION, Look("", ring(kind, is_specified=True), ""))
    assert "raised ValueError: the specification maps" in found.headline
    assert "but the spaces need" in found.headline


def test_an_operator_without_one_is_not_judged() -> None:
    found = verdict(SPECIFICATION, Look("", ring(), ""))
    assert "no specification in this case" in found.headline
