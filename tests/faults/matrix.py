"""The fault matrix: each fault in each world with each MPI library, as a user would run it, and the table in docs/faults.md.

    python -m tests.faults.matrix                                   # this Python's library
    python -m tests.faults.matrix --also /other/environment/bin/python
    python -m tests.faults.matrix --only throws --only loops        # these rows, and the others as they stand there

It exits with 1 if a fault is not found as ``FAULTS`` says, a process is left running, or a reproducer is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from adjointlab.exit_codes import ExitCode
from tests.faults.operators import FAULTS, RuntimeFault

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- generated: python -m tests.faults.matrix -->", "<!-- end -->"

SIMULATED = "simulated"
RANKS = 4
WATCHDOG = "15"
LIMIT = 300.0
"""Seconds after which a run is given up, which is a failure: every run should end by itself."""


@dataclass(frozen=True)
class Cell:
    """The result of one fault in one world."""

    kinds: tuple[str, ...]  # as which it may be found
    kind: str = ""
    ranks: int = 0
    seconds: float = 0.0
    problems: tuple[str, ...] = field(default=())


def run(fault: RuntimeFault, python: str, world: str) -> Cell:
    """One cell, in a folder and processes of its own."""
    kinds = fault.simulated if world == SIMULATED else fault.mpi
    with tempfile.TemporaryDirectory(prefix="adjointlab-fault-") as folder:
        here = Path(folder)
        ranks = [] if world == SIMULATED else ["-n", str(RANKS)]
        options = fault.options if world == SIMULATED else ()
        reference = f"{Path(__file__).with_name('operators.py')}:{fault.subject.draws.__name__}"
        command = [python, "-m", "adjointlab", "run", *ranks, "--", "adjointlab", "check", reference]
        command += ["--check", fault.check, "--watchdog", WATCHDOG, "--json", "verdict.json", *options]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        started = time.monotonic()
        try:
            ended = subprocess.run(
                command, cwd=here, env=environment, timeout=LIMIT, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return Cell(kinds, "", 0, LIMIT, ("it did not end",))
        seconds = time.monotonic() - started
        problems = [f"left running: {one}" for one in left_in(here)]
        try:
            report = json.loads((here / "verdict.json").read_text())["reports"][0]
        except (OSError, ValueError, LookupError):
            errors = ended.stderr.strip().splitlines()[-1:]
            return Cell(
                kinds, "", 0, seconds, (*problems, f"no verdict (exit code {ended.returncode}: {errors})")
            )
        found, smallest = report["kind"], report["case"]["ranks"] if report["case"] else 0
        expected = ExitCode.INCOHERENT if report["verdict"] == "incoherent" else ExitCode.UNJUDGED
        if found not in kinds:
            problems.append(f"found as {found!r}, expected {' or '.join(kinds)}")
        if smallest != fault.ranks and fault.ranks:
            problems.append(f"shrunk to {smallest} ranks, expected {fault.ranks}")
        if ended.returncode != expected:
            problems.append(f"exit code {ended.returncode}, expected {int(expected)}")
        stored = [path for path in (here / ".adjointlab").glob("*.json") if path.name != "running.json"]
        if report["reproducer"] is None or not (here / report["reproducer"]).exists() or not stored:
            problems.append("the reproducer is lost")
        if rest := [
            path.name for path in (here / ".adjointlab").iterdir() if path.suffix not in (".json", ".py")
        ]:
            problems.append(f"left in the folder: {', '.join(rest)}")
        return Cell(kinds, found, smallest, seconds, tuple(problems))


def left_in(folder: Path) -> list[str]:
    """The processes whose working directory is `folder` (on Linux)."""
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and Path(os.readlink(process / "cwd")) == folder:
                left.append((process / "cmdline").read_text().replace("\0", " ").strip())
        except OSError:
            continue
    return left


def table(rows: dict[str, dict[str, str]]) -> str:
    """RuntimeFault by world, in Markdown."""
    worlds = list(dict.fromkeys(world for cells in rows.values() for world in cells))
    lines = [f"| fault | {' | '.join(worlds)} |", "| --- |" + " --- |" * len(worlds)]
    for name, cells in rows.items():
        lines.append(f"| {name} | {' | '.join(cells.get(world, 'n/a') for world in worlds)} |")
    return "\n".join(lines)


def read(text: str) -> dict[str, dict[str, str]]:
    """The inverse of :func:`table`."""
    lines = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.split("\n")
        if line[:1] == "|"
    ]
    if not lines:
        return {}
    (_, *worlds), _, *rows = lines
    return {name: dict(zip(worlds, cells, strict=True)) for name, *cells in rows}


def _text(cell: Cell) -> str:
    if cell.problems:
        return f"**{'; '.join(cell.problems)}**"
    return f"{cell.kind}; {cell.ranks} rank{'s' if cell.ranks > 1 else ''}; {cell.seconds:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--also", action="append", default=[], metavar="PYTHON")
    parser.add_argument("--only", action="append", default=[], metavar="SUBJECT")
    given = parser.parse_args()
    pythons = {SIMULATED: sys.executable}
    pythons |= {_library(python): python for python in (sys.executable, *given.also)}
    faults = [fault for fault in FAULTS if not given.only or fault.subject.draws.__name__ in given.only]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    text, _, after = rest.partition(END)
    known, rows, wrong, count = read(text), dict[str, dict[str, str]](), 0, 0
    for fault in FAULTS:
        rows[fault.name] = known.get(fault.name, {})
        for world, python in pythons.items() if fault in faults else ():
            if fault.simulated if world == SIMULATED else fault.mpi:
                cell = run(fault, python, world)
                rows[fault.name][world] = _text(cell)
                count, wrong = count + 1, wrong + bool(cell.problems)
                print(f"{fault.name:45} {world:10} {_text(cell)}", flush=True)
    print(f"{count} cells, {wrong} not as expected")
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}", encoding="utf-8")
    return 1 if wrong else 0


def _library(python: str) -> str:
    code = "from adjointlab.supervisor.launcher import library_of_mpi4py; print(library_of_mpi4py())"
    asked = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return asked.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
