"""A subject as a class of tests, one for each check. This file needs no pytest: the plugin brings the fixture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from adjointlab.engine.run_case import check_named, checks_of
from adjointlab.engine.subject import Subject, SubjectError

__all__ = ["coherence_tests"]


def coherence_tests(subject: Subject, *, checks: Sequence[str] | None = None) -> type:
    """A class that pytest collects, with one test for each check of `subject`: ``test_adjoint``, ``test_matrix``, ...

    Assign it to a name that starts with ``Test``. Every test is collective: it replays what the corpus folder holds
    of its subject and check, then draws fresh cases. `checks` picks some.

    Raises :class:`SubjectError` for what is no subject, `ValueError` for a check that there is not.
    """
    if not isinstance(subject, Subject):
        raise SubjectError(
            f"coherence_tests takes a subject, not {subject!r}; declare one with @adjointlab.subject(...) and hand over "
            "what that returns"
        )
    names = checks_of(subject) if checks is None else tuple(checks)
    for name in names:
        check_named(name)
    members: dict[str, Any] = {
        "__doc__": f"The coherence of {subject.name}.",
        "__module__": subject.draws.__module__,
    }
    for name in names:
        members[f"test_{name}"] = _test(subject, name)
    return type(f"Test{subject.name}", (), members)


def _test(subject: Subject, check: str) -> Callable[..., None]:
    def test(self: Any, _adjointlab: Any) -> None:
        __tracebackhide__ = True
        _adjointlab(subject, check)

    # Reports say that the test stands where the subject does, not in this file.
    drawn = subject.draws.__code__ if hasattr(subject.draws, "__code__") else test.__code__
    test.__code__ = test.__code__.replace(co_filename=drawn.co_filename, co_firstlineno=drawn.co_firstlineno)
    test.__name__ = f"test_{check}"
    test.__qualname__ = f"Test{subject.name}.test_{check}"
    test.__doc__ = f"{subject.name}: {check}."
    # What the plugin wants to know of it before it runs.
    test.coherence = (subject, check)  # type: ignore[attr-defined]
    return test
