"""Sly faults of the lab itself, and the number of them that the closest tests find.

    python benchmarks/sly_mutants.py --jobs 2
    python benchmarks/sly_mutants.py --only 3,17

Each is a change of a few characters, by hand, with a sentence: a check that compares less, a draw that never happens, a figure that is
wrong. They stand in ``sly_mutants.toml``. The exit code is 1 if one of them is not found, and 2 if one no longer fits the text of
its file.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.altered_copies import run_all
from benchmarks.closest_tests import ROOT
from benchmarks.forked_tests import Mutant
from benchmarks.timing import is_smoke

DATA = Path(__file__).with_suffix(".toml")


def mutants() -> list[Mutant]:
    """Return all faults of the data file. Raises `ValueError` if a fault's old text does not occur exactly once in its file."""
    found = []
    for number, each in enumerate(tomllib.loads(DATA.read_text(encoding="utf-8"))["mutant"], 1):
        text = (ROOT / each["file"]).read_text(encoding="utf-8")
        if (times := text.count(each["old"])) != 1:
            raise ValueError(
                f"mutant {number}: {each['old']!r} stands {times} times in {each['file']}, not once"
            )
        found.append(
            Mutant(f"{number}: {each['says']}", each["file"], text.replace(each["old"], each["new"]))
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="numbers of mutants, separated by commas")
    options = parser.parse_args(arguments)
    try:
        every = mutants()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    numbers = [int(number) for number in options.only.split(",") if number]
    chosen = [every[number - 1] for number in numbers] or every
    if is_smoke():  # all fit the text of their files, and are Python
        for mutant in every:
            ast.parse(mutant.text)
        print(f"{len(every)} sly mutants")
        return 0
    missed = []
    for outcome in run_all(chosen, options.jobs):
        print(f"{'found ' if outcome.found else 'MISSED'} {outcome.seconds:6.1f} s  {outcome.mutant.file}  {outcome.mutant.name}  {outcome.by}", flush=True)  # fmt: skip
        if not outcome.found:
            missed.append(outcome.mutant)
    print(f"\n{len(chosen) - len(missed)} of {len(chosen)} sly mutants found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
