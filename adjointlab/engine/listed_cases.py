"""The cases that a subject lists within a bound, from the small to the large."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence

from adjointlab.checks.context import InputSetting
from adjointlab.checks.proof import PROOF
from adjointlab.engine.case import Case
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.options import RANKS
from adjointlab.worlds.exception_text import kind_and_message

__all__ = ["Bound", "bound_of", "every_case", "memory_of_proofs"]

Bound = Mapping[str, int]
"""The limits of a subject's cases: the keyword arguments of its enumeration."""


def bound_of(subject: Subject, given: Mapping[str, int] | None = None) -> Bound:
    """The bound of `subject`: the defaults of its enumeration, overridden by those in `given` that it has.

    Raises :class:`SubjectError` if the subject lists no cases: it has no enumeration, there are none within the bound, or the
    enumeration fails.
    """
    if subject.every is None:
        raise SubjectError(
            f"{subject.name}: lists no cases; give its decorator every=function, where function(ranks=3, side=2) with "
            "any bounds as keyword arguments yields pairs of a number of ranks and a dictionary of arguments"
        )
    defaults = {name: entry.default for name, entry in inspect.signature(subject.every).parameters.items()}
    for name, default in defaults.items():
        if not isinstance(default, int):
            raise SubjectError(
                f"{subject.name}: the bound {name} of every= has no whole number as its default; give one, as {name}=3"
            )
    bound = {name: (given or {}).get(name, default) for name, default in defaults.items()}
    try:
        first = next(every_case(subject, bound), None)
    except (KeyboardInterrupt, SubjectError):
        raise
    except BaseException as error:
        text = kind_and_message(error)
        raise SubjectError(f"{subject.name}: every= fails, {text}") from error
    if first is None:
        limits = ", ".join(f"{name} {value}" for name, value in bound.items())
        within = (
            f"there is no case within the bound {limits}; give a larger one"
            if limits
            else "every= lists no case"
        )
        raise SubjectError(f"{subject.name}: {within}")
    return bound


def memory_of_proofs(subject: Subject, device: str | None) -> str:
    """Return the memory in which a subject's cases are proved: except on "cuda", NumPy's, so that torch need not be loaded.

    Raises :class:`SubjectError` if `device` is "cuda" and the subject draws no tensors there.
    """
    return subject.libraries(device)[0] if device == "cuda" else "numpy"


def every_case(subject: Subject, bound: Bound, memory: str = "numpy") -> Iterator[Case]:
    """List all cases within `bound`, in the order of the subject's enumeration, with tensors in `memory`.

    Raises :class:`SubjectError` for an enumeration that yields something else.
    """
    assert subject.every is not None
    for number, entry in enumerate(subject.every(**bound)):
        if not _is_case(entry):
            raise SubjectError(
                f"{subject.name}: every= yields {entry!r}, not a pair of a number of ranks and a dictionary of arguments"
            )
        ranks, parameters = entry
        if not 1 <= ranks <= RANKS.most:
            raise SubjectError(
                f"{subject.name}: every= yields a case on {ranks} ranks; legal are 1 to {RANKS.most}"
            )
        # Each case gets a different random vector by its seed, and a different legal interleaving by its schedule.
        setting = InputSetting(seed=number, library=memory)
        yield Case(subject.name, PROOF.name, ranks, parameters, setting, schedule=number % 2**16)


def _is_case(entry: object) -> bool:
    return (
        isinstance(entry, Sequence)
        and len(entry) == 2
        and isinstance(entry[0], int)
        and isinstance(entry[1], Mapping)
    )
