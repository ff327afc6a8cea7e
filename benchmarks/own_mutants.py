"""Random mutants of the lab's own code, and the number of them that the tests find.

    python benchmarks/reaching_tests.py --jobs 2                        once: the tests that reach each line
    python benchmarks/own_mutants.py --seed 1 --count 300 --jobs 2      a random sample, by the size of each package
    python benchmarks/own_mutants.py --all --jobs 8                     every mutant: a second or two for most
    python benchmarks/own_mutants.py --only 17,23                       some of a sample again

The mutants are those of cosmic-ray's operators (``pip install cosmic-ray``): another comparison, another arithmetic operator, a number
that is one more or less, ``not`` put before a condition, ``break`` for ``continue``, another exception, a decorator less, a loop that is
not run. For each the tests run that reach the altered statement, the closest ones first, until one fails or --seconds of tests have
been run; where it is not known which reach it, the closest. A function is altered in a fork of one process that has collected the tests
(:mod:`benchmarks.altered_functions`), what else a file has in a copy of the package (:mod:`benchmarks.altered_copies`).

Annotations and docstrings have none, nor have ``strict=True`` of `zip` and the star before arguments by keyword: guards that never
act; nor `if TYPE_CHECKING`, the decorators of protocols, and `overload`; nor what keeps results that are computed again otherwise
(`functools.cache`). Survivors are printed as differences of the source, to be read: those that stand in ``equivalent_mutants.toml``
change nothing that anybody could see, and do not count. The exit code is 1 if fewer than 90 % are found.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import math
import random
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import altered_copies, altered_functions
from benchmarks.chosen_tests import with_reaching_tests
from benchmarks.closest_tests import ROOT
from benchmarks.forked_tests import NOT_RUN, Mutant, Outcome
from benchmarks.reaching_tests import Reached, has_been_measured
from benchmarks.timing import is_smoke, least

PACKAGES = ("core", "checks", "engine", "store", "worlds/simulated")
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")

_GOAL = 0.9
# Variables in place of others need names to choose from. Equality for identity and the reverse is the same for what is compared here:
# None, enumerations, small numbers and interned texts.
_LEFT_OUT = (
    "NoOp",
    "VariableInserter",
    "VariableReplacer",
    "_Eq_Is",
    "_NotEq_IsNot",
    "_Is_Eq",
    "_IsNot_NotEq",
)


_INERT = re.compile(r"(functools\.)?(lru_)?cache\b|overload\b")
"""Decorators that keep results, or that type checkers alone read."""


class Spot(NamedTuple):
    """A place where a mutant can be made: the operator's name, the file, and the number of the occurrence there."""

    operator: str
    file: str
    occurrence: int


def files() -> dict[str, list[Path]]:
    """The files of each package."""
    return {name: sorted((ROOT / "adjointlab" / name).rglob("*.py")) for name in PACKAGES}


def spots_of(path: Path) -> list[Spot]:
    """Every place in a file where an operator makes a mutant."""
    from cosmic_ray.ast import Visitor, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    tree = get_ast(path.read_text(encoding="utf-8"))
    found = []

    class Counting(Visitor):  # type: ignore[misc]
        def __init__(self, operator: Any) -> None:
            self.operator, self.count = operator, 0

        def visit(self, node: Any) -> Any:
            self.count += sum(1 for _ in self.operator.mutation_positions(node))
            return node

    for name in sorted(operator_names()):
        if name.endswith(_LEFT_OUT):
            continue
        counting = Counting(get_operator(name)())
        counting.walk(tree)
        file = str(path.relative_to(ROOT))
        found += [Spot(name, file, number) for number in range(counting.count)]
    return found


def made(spot: Spot) -> str | None:
    """The text of the file with the mutant; None if it cannot change behaviour, as in an annotation, or is not valid Python."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    text = (ROOT / spot.file).read_text(encoding="utf-8")
    mutated = mutate_code(text, get_operator(spot.operator)(), spot.occurrence)
    if mutated is None or _leniently(mutated) == _leniently(text):
        return None
    if "if not TYPE_CHECKING" in mutated:
        return None
    try:
        return None if _behaviour(mutated) == _behaviour(text) else mutated
    except SyntaxError:
        return None


def _leniently(text: str) -> str:
    """The text without `strict=True` in calls of `zip`, and without the `*` that makes arguments keyword-only."""
    return text.replace("strict=True", "strict=False").replace(" *, ", " /, ").replace(" *,\n", " /,\n")


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        node.decorator_list = [each for each in node.decorator_list if not _INERT.match(ast.unparse(each))]
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        if any(ast.unparse(base).startswith("Protocol") for base in node.bases):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    method.decorator_list = []
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.annotation = ast.Constant(0)  # the names of a dataclass's fields stay
        self.generic_visit(node)
        return node


def _behaviour(text: str) -> str:
    return ast.dump(_WithoutAnnotations().visit(ast.parse(text)))


def sample(seed: int, count: int) -> Iterator[tuple[Spot, str]]:
    """Draw `count` mutants, from each package in proportion to the mutants that it has."""
    spots = [spot for paths in files().values() for path in paths for spot in spots_of(path)]
    random.Random(seed).shuffle(spots)
    drawn = 0
    for spot in spots:
        if drawn == count:
            break
        if (text := made(spot)) is not None:
            drawn += 1
            yield spot, text


def difference(mutant: Mutant) -> str:
    """The lines that the mutant changes."""
    before = (ROOT / mutant.file).read_text(encoding="utf-8").splitlines()
    lines = difflib.unified_diff(before, mutant.text.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


def equivalents() -> list[dict[str, str]]:
    """Mutants that were reviewed and found to change nothing observable: file, new line, and reason."""
    if not EQUIVALENT.exists():
        return []
    return list(tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"])


def is_equivalent(mutant: Mutant) -> bool:
    """True for a survivor that is listed as equivalent."""
    changed = {line[1:].strip() for line in difference(mutant).splitlines() if line.startswith("+")}
    return any(each["file"] == mutant.file and each["line"] in changed for each in equivalents())


def outcomes_of(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """Run the tests of the mutants: for those within functions, first the measured tests, without a copy of the package."""
    within: list[Mutant] = []
    others: list[Mutant] = []
    for mutant in mutants:
        before = (ROOT / mutant.file).read_text(encoding="utf-8")
        is_within = altered_functions.altered_functions(before, mutant.text, mutant.file) is not None
        (within if is_within and mutant.stages else others).append(mutant)
    for outcome in altered_functions.run_all(within, jobs) if within else ():
        rest = tuple(test for stage in outcome.mutant.stages for test in stage if "::" not in test)
        if outcome.by == NOT_RUN:  # Python does not take the code in place of the function's own
            others.append(outcome.mutant)
        elif outcome.found or not rest:
            yield outcome
        else:
            others.append(replace(outcome.mutant, stages=(rest,)))
    yield from altered_copies.run_all(others, jobs)


def interval(found: int, of: int) -> tuple[float, float]:
    """Wilson's 95% confidence interval of the share."""
    z, share = 1.96, found / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return middle - half, middle + half


def table(outcomes: Sequence[Outcome]) -> str:
    """By package: the mutants found, of those that are not equivalent."""
    found: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for outcome in outcomes:
        package = next(name for name in PACKAGES if outcome.mutant.file.startswith(f"adjointlab/{name}/"))
        every[package] += 1
        found[package] += outcome.found
    lines = ["| package | found | of |", "|---|---|---|"]
    lines += [f"| {name} | {found[name]} | {every[name]} |" for name in PACKAGES]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=least(300))
    parser.add_argument("--all", action="store_true", help="every mutant, in a random order")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of the tests of a mutant, as they were measured"
    )
    parser.add_argument("--only", default="", help="numbers of mutants of the sample, separated by commas")
    options = parser.parse_args(arguments)
    only = {int(number) for number in options.only.split(",") if number}
    mutants = [
        Mutant(f"{number}: {spot.operator.removeprefix('core/')} {spot.occurrence}", spot.file, text)
        for number, (spot, text) in enumerate(sample(options.seed, -1 if options.all else options.count), 1)
        if not only or number in only
    ]
    if is_smoke():
        print("\n".join(map(difference, mutants)))
        return 0
    if has_been_measured():
        mutants = with_reaching_tests(mutants, Reached(), options.seconds)
    counted, survivors, equivalent = [], [], 0
    for outcome in outcomes_of(mutants, options.jobs):
        if not outcome.found and is_equivalent(outcome.mutant):
            equivalent += 1
            continue
        counted.append(outcome)
        print(f"{'found ' if outcome.found else 'MISSED'} {outcome.seconds:6.1f} s  {outcome.mutant.file}  {outcome.mutant.name}  {outcome.by}", flush=True)  # fmt: skip
        if not outcome.found:
            survivors.append(outcome.mutant)
            print(difference(outcome.mutant), flush=True)
    found = len(counted) - len(survivors)
    low, high = interval(found, len(counted)) if counted else (0.0, 1.0)
    print(f"\n{table(counted)}\n")
    print(f"{found} of {len(counted)} mutants found that are not equivalent ({equivalent} more are), seed {options.seed}: {found / max(1, len(counted)):.1%}, of all that there are {low:.0%} to {high:.0%} with a confidence of 95 %")  # fmt: skip
    return 1 if found < _GOAL * len(counted) else 0


if __name__ == "__main__":
    sys.exit(main())
