"""A subject as a class of tests, one for each check. Does not import pytest: the plugin provides the fixture `_adjointlab`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from adjointlab.checks.check import check_named, checks_of
from adjointlab.engine.subject import Subject, SubjectError

if TYPE_CHECKING:
    import pytest

__all__ = ["coherence_of", "coherence_tests", "is_left_out"]


_MADE_HERE: Final = "_has_coherence_tests"
"""Attribute that marks the classes that :func:`coherence_tests` makes."""


def coherence_tests(subject: Subject, *, checks: Sequence[str] | None = None) -> type:
    """Return a class for pytest to collect, with one test for each check of `subject`: ``test_adjoint``, ``test_matrix``, ...

    Assign it to a name that starts with ``Test``. Every test is collective: it replays the stored failures of its subject and
    check, then draws fresh cases. `checks` selects some of the checks.

    Raises :class:`SubjectError` if `subject` is not a subject, and `ValueError` for a check that is unknown or does not apply to it.
    """
    if not isinstance(subject, Subject):
        raise SubjectError(
            f"coherence_tests takes a subject, not {subject!r}; declare one with @adjointlab.subject.operator(...) or its other methods, and pass "
            "the result"
        )
    names = checks_of(subject) if checks is None else _legal(checks, subject)
    members: dict[str, object] = {
        "__doc__": f"The coherence of {subject.name}.",
        "__module__": subject.draws.__module__,
        _MADE_HERE: True,
    }
    for name in names:
        members[f"test_{name}"] = _test(subject, name)
    return type(f"Test{subject.name}", (), members)


def _legal(checks: Sequence[str], subject: Subject) -> tuple[str, ...]:
    given: object = checks
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ValueError(
            f"checks: {checks!r} is not a list of names, such as ['adjoint']; leave it out for all"
        )
    for name in checks:
        if not check_named(name).applies_to(subject):
            raise ValueError(
                f"checks: {name} does not apply to {subject.name}; those that do are {', '.join(checks_of(subject))}"
            )
    return tuple(checks)


def _test(subject: Subject, check: str) -> Callable[..., None]:
    def test(self: object, _adjointlab: Callable[[Subject, str], None]) -> None:
        __tracebackhide__ = True
        _adjointlab(subject, check)

    # pytest takes the location of a test from its code object, which all these tests share. The location that a report should
    # show, and that an editor should open, is that of the subject.
    draws = getattr(subject.draws, "__code__", test.__code__)
    test.__code__ = test.__code__.replace(co_filename=draws.co_filename, co_firstlineno=draws.co_firstlineno)
    test.__name__ = f"test_{check}"
    test.__qualname__ = f"Test{subject.name}.test_{check}"
    test.__doc__ = f"{subject.name}: {check}."
    test.coherence = (subject, check)  # type: ignore[attr-defined]
    return test


def is_left_out(collector: pytest.Module | pytest.Class, name: str, made: object) -> bool:
    """Return True for a class of :func:`coherence_tests` that pytest collects neither under this name nor as a base of another class."""
    if not (isinstance(made, type) and _MADE_HERE in vars(made)):
        return False
    named = ((name, made), *vars(collector.obj).items())
    return not any(
        isinstance(each, type) and issubclass(each, made) and collector.classnamefilter(own)
        for own, each in named
    )


def coherence_of(item: object) -> tuple[Subject, str] | None:
    """Return the subject and the check of a test that pytest has collected; `None` for an ordinary test."""
    return getattr(getattr(item, "obj", None), "coherence", None)
