"""The dot test of one operator that already exists, from inside an SPMD program."""

from __future__ import annotations

from adjointlab.checks.adjoint import AdjointCheck
from adjointlab.checks.bench import Bench, Setting
from adjointlab.checks.check import Spaces
from adjointlab.checks.matrix import MatrixCheck
from adjointlab.checks.verdict import Verdict
from adjointlab.operator import LinearOperator

__all__ = ["check_adjoint"]

_WITNESS_DIMENSION = 256


def check_adjoint(operator: LinearOperator, *, seed: int = 0, library: str = "numpy") -> Verdict:
    """Collective over ``operator.comm``: check <Fx, y> = <x, F*y> on this instance (the dot test).

    Returns the verdict, the same on every rank, with the figures of the test: the miss probability of its exact
    form, the error of its floating form (seed paper, eq. 26). Raises `AssertionError` with the verdict's text, naming
    the wrong entry where the operator is small, if the adjoint is wrong.
    """
    setting = Setting(seed=seed, library=library)
    bench = Bench(lambda: operator, setting, operator.comm)
    spaces = Spaces(operator.domain, operator.codomain)
    verdict = AdjointCheck().judge(spaces, operator.comm.allgather(AdjointCheck().observe(bench)))
    if verdict.is_coherent:
        return verdict
    lines = verdict.lines
    if max(operator.domain.dimension, operator.codomain.dual.dimension) <= _WITNESS_DIMENSION:
        entries = MatrixCheck(limit=_WITNESS_DIMENSION)
        lines += entries.judge(spaces, operator.comm.allgather(entries.observe(bench))).lines
    raise AssertionError(
        str(Verdict(verdict.status, f"{type(operator).__name__}: {verdict.headline}", verdict.kind, lines))
    )
