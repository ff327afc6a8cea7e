"""Cases on a device: single ones of primitives, small and fixed, that move strided faces between all ranks, and searches of a subject."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import adjointlab as al
from adjointlab.checks.check import checks_of
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Verdict
from adjointlab.core import arrays
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.run_case import run_case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.primitives.send_receive import SendReceive
from adjointlab.primitives.subjects import installed

__all__ = ["CASES", "incoherent_in", "judged", "judged_all"]


class SentAmongOthers(SendReceive):
    """The same map, with messages of zeros behind, that arrive before anybody has looked at what came first."""

    def forward(self, x: Any) -> Any:
        first = super().forward(x)
        for _ in range(3):
            super().forward(arrays.zeros(x.shape, self.x.dtype, x))
        return first


_GRID = Partition((2, 2))
_CUT = Layout.cut((7, 9), _GRID, (None, None))
_ROWS, _COLUMNS = (
    Layout.cut((7, 9), Partition((4, 1) if rows else (1, 4)), (None, None)) for rows in (True, False)
)

CASES: dict[str, tuple[Subject, dict[str, Any]]] = {
    "halo exchange": (
        installed.halo_exchanges,
        {"layout": _CUT, "windows": Layout((7, 9), _GRID, (((-1, 6), (2, 8)), ((0, 7), (3, 9))))},
    ),
    "repartition": (installed.repartitions, {"layout": _ROWS, "target": _COLUMNS}),
    "all-sum-reduce": (
        installed.all_sum_reduces,
        {"layout": Layout((6, 5), Partition((2, 2)), (((0, 6),), ((0, 5),)), (None, None)), "dims": (0, 1)},
    ),
    "send-receive": (
        installed.send_receives,
        {"layout": Layout((6, 5), Partition((1, 1), [1])), "destination": 3, "form": "move"},
    ),
    "sent among others": (
        replace(installed.send_receives, build=SentAmongOthers),
        {"layout": Layout((6, 5), Partition((1, 1), [1])), "destination": 3, "form": "move"},
    ),
}


def judged(
    world: al.SimulatedWorld,
    name: str,
    check: str = "specification",
    memory: str = "cupy",
    order: str = "row-major",
) -> Verdict:
    """The verdict of a check on one case, on 4 ranks, whose tensors lie in `memory`."""
    subject, parameters = CASES[name]
    return judged_subject(world, subject, parameters, check, memory, order)


def judged_subject(
    world: al.SimulatedWorld,
    subject: Subject,
    parameters: dict[str, Any],
    check: str,
    memory: str = "cupy",
    order: str = "row-major",
) -> Verdict:
    """The verdict of a check on a case of a subject, on 4 ranks."""
    case = Case(subject.name, check, 4, parameters, InputSetting(1, memory, order, order), 0)
    observe = body(subject)
    judgement = run_case(lambda payload, ranks, **given: world.run(observe, payload, ranks, **given), case)
    assert judgement is not None
    return judgement.verdict


def judged_all(world: al.SimulatedWorld, name: str) -> list[Verdict]:
    """The verdicts of the checks of numbers on a case, in plain and in strided memory; those that are not coherent."""
    verdicts = [
        judged(world, name, check, order=order)
        for check in ("specification", "adjoint", "reentrancy")
        for order in ("row-major", "column-major")
    ]
    return [verdict for verdict in verdicts if not verdict.is_coherent]


def incoherent_in(world: al.SimulatedWorld, subject: Subject, memory: str, budget: Budget) -> dict[str, str]:
    """The verdicts, by check, that are not coherent of a subject whose tensors lie in `memory`."""
    placed = replace(subject, arrays=(memory,))
    verdicts = {check: investigate(world, placed, check, budget).verdict for check in checks_of(placed)}
    return {check: str(verdict) for check, verdict in verdicts.items() if not verdict.is_coherent}
