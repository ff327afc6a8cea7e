"""The dot test of one operator that already exists, from inside an SPMD program."""

from __future__ import annotations

from dataclasses import replace

from adjointlab.checks.adjoint import AdjointCheck
from adjointlab.checks.check import Spaces
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.matrix import MatrixCheck
from adjointlab.checks.verdict import Figure, Inapplicable, Measurement, NotMeasured, Verdict
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import whole_number
from adjointlab.spelling import described_type
from adjointlab.typing import Communicator

__all__ = ["check_adjoint"]

_WITNESS_DIMENSION = 256


def check_adjoint(operator: LinearOperator, *, seed: int = 0, library: str = "numpy") -> Verdict:
    """Collective over ``operator.comm``: check <Fx, y> = <x, F*y> on this instance (the dot test).

    Returns the verdict, the same on every rank, with the figures of the test: the miss probability of its exact
    form, the error of its floating form [Hewett21, eq. 26]. The exact form needs coefficients that leave integers
    exact, and a gain that is declared or specified; otherwise differences within rounding pass, and an operator of at most
    256 dimensions is compared entry by entry too. `str(verdict)` says which form was used. Raises `AssertionError` with the
    verdict's text if the adjoint is wrong, naming the wrong entry of a small operator; `TypeError` for an object without
    `comm`, `domain` and `codomain`; `ValueError` for integers whose sums no bound keeps exact, and for an unknown `library`; `ModuleNotFoundError` for one
    that is not installed. Exceptions of the operator are not
    caught: a rank that raises alone leaves the others waiting, as in any MPI program, unless the program runs under
    ``python -m mpi4py``, which ends them.
    """
    __tracebackhide__ = True  # pytest and IPython end the traceback at the caller
    if isinstance(operator, type):
        raise TypeError(f"operator: {operator.__name__} is a class; give an instance of it")
    if missing := [name for name in ("comm", "domain", "codomain") if not hasattr(operator, name)]:
        raise TypeError(
            f"operator: {described_type(operator)} has no {missing[0]}; derive it from adjointlab.LinearOperator, or wrap it: "
            "docs/adapters.md has adapters for operators of other libraries"
        )
    setting = InputSetting(seed=whole_number("seed", seed), library=library)
    where = ", on one rank alone" if operator.comm.Get_size() == 1 else ""
    context = CheckContext(lambda: operator, setting, operator.comm)
    spaces = Spaces(operator.domain, operator.codomain)
    try:
        verdict = _of_products(context, spaces, operator.comm)
    except NotMeasured:
        measuring = CheckContext(lambda: operator, setting, operator.comm, measurement=Measurement.ALL)
        verdict = _of_products(measuring, spaces, operator.comm)
    except Inapplicable as error:
        raise ValueError(f"operator: {error}") from error
    if verdict.is_coherent and verdict.is_exact:
        return replace(
            verdict,
            headline=f"coherent (exact; missed with probability {verdict.figures[Figure.MISS_PROBABILITY]:.1g}{where})",
        )
    entries: Verdict | None = None
    if max(operator.domain.dimension, operator.codomain.dual.dimension) <= _WITNESS_DIMENSION:
        check = MatrixCheck(limit=_WITNESS_DIMENSION)
        entries = check.judge(spaces, operator.comm.allgather(check.observe(context)))
    if verdict.is_coherent and (entries is None or entries.is_coherent):
        how = "within rounding, in which a small error may hide" if entries is None else "every entry"
        return replace(verdict, headline=f"coherent ({how}{where})")
    wrong = entries if verdict.is_coherent and entries is not None else verdict
    lines = verdict.lines + (() if entries is None else entries.lines)
    raise AssertionError(
        str(replace(wrong, lines=lines, headline=f"{type(operator).__name__}: {wrong.headline}"))
    )


def _of_products(context: CheckContext, spaces: Spaces, comm: Communicator) -> Verdict:
    return AdjointCheck().judge(spaces, comm.allgather(AdjointCheck().observe(context)))
