"""Chooses the tests of a mutant: those that reach the statements that it alters."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.closest_tests import ALWAYS, ROOT, closest_tests
from benchmarks.forked_tests import LIMIT, Mutant

if TYPE_CHECKING:
    from benchmarks.reaching_tests import Reached

__all__ = ["altered_lines", "stages_of", "with_reaching_tests"]

_FIRST_SECONDS = 30.0
"""Seconds of the closest tests that run before those of other tests are looked for."""


def with_reaching_tests(mutants: Sequence[Mutant], reached: Reached, seconds: float) -> list[Mutant]:
    """The mutants with the tests that reach them."""
    return [
        replace(
            mutant,
            stages=stages_of(mutant.file, mutant.text, reached, seconds),
            limit=min(LIMIT, 120 + 4 * seconds),
        )
        for mutant in mutants
    ]


def stages_of(file: str, text: str, reached: Reached, seconds: float) -> tuple[tuple[str, ...], ...]:
    """Return the tests that reach the altered lines of a file, up to a total of `seconds`: those of the closest files first, then the quickest.

    What runs when the file is imported is reached by every test of the file, and by others that read what it has made: so by all of the
    closest files. Closest files that were not measured come last; where no test reaches the statements, all closest files, for they may
    reach them in processes that they start.
    """
    before = (ROOT / file).read_text(encoding="utf-8")
    closest = closest_tests(file)
    first, others, spent = list[str](), list[str](), 0.0
    lines = altered_lines(before, text)
    tests = reached.tests(file, lines) & reached.seconds.keys()
    is_reached = bool(tests)
    if lines is None:
        tests |= {test for test in reached.seconds if test.split("::")[0] in closest}
    tests |= {test for test in reached.seconds if test.startswith(ALWAYS)}
    for test in sorted(tests, key=lambda test: (test.split("::")[0] not in closest, reached.seconds[test])):
        spent += reached.seconds[test]
        if spent > seconds:
            break
        (first if spent < _FIRST_SECONDS and test.split("::")[0] in closest else others).append(test)
    measured = {test.split("::")[0] for test in reached.seconds}
    others += [each for each in closest if each not in measured or not is_reached]
    return tuple(tuple(stage) for stage in (first, others) if stage) or (closest[:1],)


def altered_lines(before: str, after: str) -> list[int] | None:
    """Return the old lines of the statements that differ; for a decorator or default value, those of the function's body.

    None where one of them runs when the file is imported.
    """
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    altered = [
        line
        for kind, start, stop, _, _ in matcher.get_opcodes()
        if kind != "equal"
        for line in range(start + 1, max(stop, start + 1) + 1)
    ]
    lines: list[int] = []
    for line in altered:
        found = _statement(ast.parse(before), line)
        if found is None:
            return None
        lines += found
    return lines


def _statement(tree: ast.Module, line: int) -> list[int] | None:
    node: ast.AST = tree
    inside = False  # of a function
    while True:
        child = next(
            (each for each in _statements(node) if _first(each) <= line <= (each.end_lineno or 0)), None
        )
        if child is None:
            break
        inside = inside or isinstance(node, ast.FunctionDef)
        node = child
    if isinstance(node, ast.FunctionDef):
        return list(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    if not inside or not isinstance(node, ast.stmt):
        return None
    body = _statements(node)
    stop = body[0].lineno - 1 if body else node.end_lineno or 0
    return [*range(_first(node), stop + 1), line]


def _statements(node: ast.AST) -> list[ast.stmt]:
    """The statements directly below a node, including those of exception handlers and match cases."""
    found: list[ast.stmt] = []
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt):
            found.append(each)
        elif isinstance(each, ast.ExceptHandler | ast.match_case):
            found += _statements(each)
    return found


def _first(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])
