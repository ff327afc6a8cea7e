"""Failures because simulated ranks are threads of one process, which share or lack state, and because modules keep state between cases."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import ModuleType
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from adjointlab.checks.verdict import Verdict
from adjointlab.engine.asked_at_import import OF_THIS_PROCESS, line_on_running_again, lines_on_asking
from adjointlab.engine.modules_of_subjects import imported_packages, modules_of
from adjointlab.engine.subject import Subject
from adjointlab.typing import Communicator
from adjointlab.worlds.module_state import ModuleState
from adjointlab.worlds.run import FindingKind

__all__ = ["note_state", "with_lines_on_exceptions", "with_module_state"]

_MOST_NAMED: Final = 5
_ON_THREADS: Final = (
    "simulated ranks are threads, and none of them the main one, which has imported the module: what Python binds to a thread, such as a "
    "signal handler, an event loop or a value of threading.local, is missing here and may be there on real ranks"
)
_ON_THE_ENVIRONMENT: Final = (
    "simulated ranks are threads of one process, and have no environment variables of their own: ask the communicator or dist.get_rank() "
    "for the rank of a case, which need not be that of the job under a launcher either"
)
_ON_COMPILED_CODE: Final = (
    "the communicator of a case has the methods of mpi4py's, but compiled code does not accept it: mpi4py.util.pkl5 and classes derived from "
    "mpi4py's cannot be made from it, so call its own methods"
)
_ON_THE_ORDER: Final = (
    "functions are called with the communicator of the case first, as forward(comm, x), and a torch.autograd.Function with it after the "
    "tensors, as apply(x, comm)"
)
_OF_A_TENSOR: Final = re.compile(
    r"AttributeError: '(?:numpy\.ndarray|Tensor)' object has no attribute '(\w+)'"
)
_OF_A_COMMUNICATOR: Final = re.compile(
    r"TypeError: (?!.*unhashable).*\b(?:Communicator|Guarded\w*comm)\b|AttributeError: the \w+ communicator has no '(\w+)'",
    re.IGNORECASE,
)
_IN_EXCEPTIONS: Final = {"expected mpi4py.MPI.": _ON_COMPILED_CODE}
"""Lines of advice by a text that an exception contains."""

_OF_SIMULATED_RANKS: Final = {
    "thread": _ON_THREADS,
    **dict.fromkeys(("RANK'", "WORLD_SIZE'", "MASTER_ADDR'", "MASTER_PORT'"), _ON_THE_ENVIRONMENT),
}
"""Those for simulated ranks only; a KeyError ends in the name of the missing key."""


def _are_in_other_order(headline: str) -> bool:
    """Return True for an error because a tensor was used as a communicator, or a communicator as a tensor."""
    if asked := _OF_A_TENSOR.search(headline):
        return hasattr(Communicator, asked[1])
    if asked := _OF_A_COMMUNICATOR.search(headline):
        tensors = (np.ndarray, getattr(sys.modules.get("torch"), "Tensor", None))
        name = asked[1]
        # `split` may be a misspelt `Split`.
        return name is None or (
            any(hasattr(kind, name) for kind in tensors) and not hasattr(Communicator, name.capitalize())
        )
    return False


def with_lines_on_exceptions(verdict: Verdict, *, is_simulated: bool) -> Verdict:
    """Return a failing verdict with advice if a rank's exception points to something that ranks of a case lack."""
    if not verdict.kind.startswith("raised "):
        return verdict
    words = _IN_EXCEPTIONS | (_OF_SIMULATED_RANKS if is_simulated else {})
    lines = dict.fromkeys(line for word, line in words.items() if word in verdict.headline)
    if not lines and _are_in_other_order(verdict.headline):
        lines[_ON_THE_ORDER] = None
    return verdict.with_lines(*(("perhaps", line) for line in lines))


class Explained(NamedTuple):
    """A verdict, and whether state in modules was found to be the cause."""

    verdict: Verdict
    is_of_state: bool


def with_module_state(
    verdict: Verdict, subject: Subject, passes: Callable[[Subject], bool], *, on_several_ranks: bool
) -> Explained:
    """Return a failing verdict on simulated ranks with a line on state in modules, kept from earlier cases or shared by all ranks.

    `passes` runs the failing case with another declaration of its subject, and returns True if it passes.
    """
    modules = dict(modules_of(subject))
    may_be_of_import = on_several_ranks or verdict.kind == FindingKind.PAST_THE_RUN
    if may_be_of_import and (line := line_on_running_again(modules, subject, passes)):
        return Explained(verdict.with_lines(("perhaps", line)), is_of_state=True)
    kept = ""
    for holders in (modules, dict(imported_packages(modules.values()))):
        kept = kept or _kept_state(holders, subject, passes, on_several_ranks=on_several_ranks)
    asked = lines_on_asking(modules, subject, OF_THIS_PROCESS) if on_several_ranks else ()
    lines = [*asked, *([kept] if kept else [])]
    return Explained(verdict.with_lines(*(("perhaps", line) for line in lines)), is_of_state=bool(kept))


_STATES: Final[WeakKeyDictionary[ModuleType, ModuleState]] = WeakKeyDictionary()
"""State of subjects' modules, and of packages that they import, before the first case in this process that ran their code."""


def note_state(subject: Subject) -> None:
    """Record the state of a subject's modules and of the packages that they import, except where an earlier case has done so.

    To be called before the subject's first case.
    """
    modules = dict(modules_of(subject))
    for name, module in (*modules.items(), *imported_packages(modules.values())):
        if module not in _STATES:
            _STATES[module] = ModuleState([name])


def _kept_state(
    modules: dict[str, ModuleType],
    subject: Subject,
    passes: Callable[[Subject], bool],
    *,
    on_several_ranks: bool,
) -> str:
    packages = tuple(f"{package}." for package in subject.rank_local)
    states = {
        name: _STATES[module]
        for name, module in sorted(modules.items())
        if module in _STATES and not f"{name}.".startswith(packages)
    }
    kept = {name: names for name, state in states.items() if (names := state.kept())}
    if not kept:
        return ""

    def passes_from_the_start(holders: Collection[str], *, apart: bool) -> bool:
        with ExitStack() as stack:
            for name in holders:
                stack.enter_context(states[name].put_back())
            return passes(replace(subject, rank_local=(*subject.rank_local, *holders)) if apart else subject)

    # If the case passes without it, the state is from an earlier case, and real processes would keep it too.
    if passes_from_the_start(kept, apart=False):
        named = _named(kept.values())
        return (
            f"earlier cases have changed {named}: the case passes with its state from before the first one, and so may a replay although "
            "the fault is still there"
        )
    if not on_several_ranks or not passes_from_the_start(kept, apart=True):
        return ""
    if len(kept) > 1:  # many packages keep state that is unrelated to the failure
        kept = next(({name: kept[name]} for name in kept if passes_from_the_start([name], apart=True)), kept)
    return (
        f"simulated ranks share what is kept in {_named(kept.values())}, where processes have their own: the case passes with "
        f"rank_local={list(kept)} in the subject's declaration, which gives each rank its own"
    )


def _named(kept: Iterable[Sequence[str]]) -> str:
    names = list(dict.fromkeys(name for names in kept for name in names))
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
