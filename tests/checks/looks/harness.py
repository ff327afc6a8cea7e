"""A table of looks: for each way in which a check looks at an operator, one fault that nothing else of the check shows.

Each operator is put to one check alone, in one case on two or three simulated ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from adjointlab.checks.check import AnyCheck, Spaces
from adjointlab.checks.context import INPUT_VALUES, CheckContext, InputSetting
from adjointlab.checks.fresh_memory import fill_by, filled
from adjointlab.checks.verdict import Verdict
from adjointlab.core.layer import Layer
from adjointlab.core.operator import LinearOperator
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import RankObservation
from adjointlab.engine.run_case import judge
from adjointlab.worlds.simulated.world import SimulatedWorld

Make = Callable[[Any], LinearOperator | Layer]
"""Makes an operator, or a layer, for a communicator."""

WORLD = SimulatedWorld(3)
PLAIN = InputSetting()


@dataclass(frozen=True)
class Look:
    """A look of a check, the operator whose fault it alone shows, and a part of what the verdict says of it.

    Where nothing is to be said, the operator is right, and a check without the look would accuse it.
    """

    name: str
    make: Make
    says: str
    ranks: int = 2
    setting: InputSetting = PLAIN
    reference: Callable[..., Any] | None = None
    values: str = INPUT_VALUES[0]  # of a layer's inputs


def verdict(check: AnyCheck, look: Look) -> Verdict:
    """The verdict of one check on one case."""

    def observe(rank_context: Any, _: object) -> RankObservation:
        comm = rank_context.comm
        context = CheckContext(
            partial(look.make, comm), look.setting, comm, look.reference, values=look.values
        )
        with filled(fill_by(look.setting.seed) if isinstance(context.instance, Layer) else None):
            observation = check.observe(context)
        leaks = tuple(context.leaks.items())
        return RankObservation(observation, Spaces(context.domain, context.codomain), leaks)

    with check.surroundings():
        run = WORLD.run(observe, None, look.ranks)
    return judge(Case("Look", check.name, look.ranks, {}, look.setting, 0), run)


def assert_seen(check: AnyCheck, look: Look) -> None:
    """The check says of the operator what the look says; or nothing, where the operator is right."""
    found = verdict(check, look)
    if look.says:
        assert not found.is_coherent
        assert look.says in str(found)
    else:
        assert found.is_coherent, found


def each_of(looks: Sequence[Look]) -> Any:
    """Parametrise a test by a table."""
    assert len({look.name for look in looks}) == len(looks)
    return pytest.mark.parametrize("look", looks, ids=lambda look: look.name)
