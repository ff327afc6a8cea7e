"""The fault matrix: each fault in each world with each MPI library, as a user would run it, and the tables in docs/faults.md.

    python -m tests.faults.matrix                                   # this Python's library
    python -m tests.faults.matrix --also /other/environment/bin/python
    python -m tests.faults.matrix --only "Messages" --only "infinite loop in Python" --world simulated --jobs 2

What is not run stays as it stands on the page. It exits with 1 if a cell that was run has a problem: the command did not
end, the fault was not found as its row says, a verdict of another subject was lost, or something was left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from adjointlab.checks.check import checks_of
from adjointlab.exit_codes import ExitCode
from tests.faults.all_rows import FAULTS, TOPICS
from tests.faults.declaring import INCOMPLETE, RuntimeFault
from tests.faults.left_behind import MARK, kill, processes_of
from tests.faults.operators import right

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- generated: python -m tests.faults.matrix -->", "<!-- end -->"

SIMULATED = "simulated"
LIBRARIES = ("MPICH", "Open MPI")
NOT_RUN, NOT_APPLICABLE = "not run", "n/a"
RANKS = 4
WATCHDOG = "15"
LIMIT = 180.0
"""Seconds after which a run is given up, which is a failure: every run should end by itself."""

BEFORE = f"{ROOT / 'tests' / 'faults' / 'operators.py'}:right"
AFTER = f"{ROOT / 'tests' / 'samples.py'}:right"
OTHERS = ("Shift", "RingShift")
"""The right subjects that are checked before and after the fault by the same command."""

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Cell:
    """The result of one fault in one world."""

    found: str = ""
    ranks: int = 0
    seconds: float = 0.0
    did_not_end: str = ""
    wrong_name: str = ""
    lost: str = ""
    left: str = ""

    @property
    def problems(self) -> list[str]:
        """Everything that is not as it should be."""
        return [each for each in (self.did_not_end, self.wrong_name, self.lost, self.left) if each]

    @property
    def text(self) -> str:
        """The cell on the page."""
        ranks = f"; {self.ranks} rank{'s' if self.ranks > 1 else ''}" if self.ranks else ""
        text = f"{self.found or 'nothing'}{ranks}; {self.seconds:.0f} s"
        if not self.problems:
            return f"✓✓✓✓ {text}"
        marks = "".join(
            "✗" if each else "✓" for each in (self.did_not_end, self.wrong_name, self.lost, self.left)
        )
        return f"**{marks} {text}: {'; '.join(self.problems)}**".replace("|", "/").replace("\n", " ")


def run(fault: RuntimeFault, python: str, world: str) -> Cell:
    """One cell, in a folder and processes of its own."""
    with tempfile.TemporaryDirectory(prefix="adjointlab-fault-", ignore_cleanup_errors=True) as folder:
        here, temporary = Path(folder) / "work", Path(folder) / "tmp"
        here.mkdir()
        temporary.mkdir()
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(temporary),
            MARK: folder,
        }
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            started = time.monotonic()
            process = subprocess.Popen(
                [*_with_memory_of_its_own(folder), *_command(fault, python, world)],
                cwd=here,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=_as_in_a_terminal,
            )
            try:
                code, did_not_end = process.wait(LIMIT), ""
            except subprocess.TimeoutExpired:
                code, did_not_end = None, "did not end"
            seconds = time.monotonic() - started
            running = processes_of(here, folder)
            left = [] if did_not_end else [f"running: {one[-60:]}" for one in running.values()]
            for each in running:
                kill(each)
            process.wait()
            err.seek(0)
            said = err.read()
        left += [f"temporary: {path.name}" for path in temporary.iterdir()]
        memory = Path(folder) / "shared-memory"
        left += [f"shared memory: {name}" for name in memory.read_text().split()] if memory.exists() else []
        found, ranks, wrong_name, lost = _judged(fault, world, here, code, said)
        left += [] if did_not_end else _unknown_files(here)
        return Cell(
            found, ranks, seconds, did_not_end, wrong_name, lost, f"left {', '.join(left)}" if left else ""
        )


def _as_in_a_terminal() -> None:
    """Heed the signals that a shell has told its children in the background to ignore."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _command(fault: RuntimeFault, python: str, world: str) -> list[str]:
    ranks = [] if world == SIMULATED else ["-n", str(RANKS)]
    command = [python, "-m", "adjointlab", "run", "--shrinking", "20", *ranks, "--", "adjointlab", "check"]
    command += [BEFORE, fault.reference, AFTER, "--check", fault.check]
    if not checks_of(right, [fault.check]):
        command += ["--check", "adjoint"]
    command += ["--watchdog", WATCHDOG, "--cases", "30", "--json", "verdict.json"]
    return [*command, *(fault.options if world == SIMULATED else ())]


def _with_memory_of_its_own(folder: str) -> list[str]:
    """The beginning of a command in a mount namespace with a /dev/shm of its own, if the system permits that."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        return []
    listed = f"ls -A {SHARED_MEMORY} > {folder}/shared-memory"
    script = f'mount -t tmpfs tmpfs {SHARED_MEMORY} && "$@"; code=$?; {listed}; exit $code'
    return ["unshare", "-m", "sh", "-c", script, "sh"]


def _judged(
    fault: RuntimeFault, world: str, here: Path, code: int | None, said: str
) -> tuple[str, int, str, str]:
    """As what a fault was found, on how many ranks; what is wrong with that, and with the verdicts on others."""
    kinds = fault.simulated if world == SIMULATED else fault.mpi
    if fault.is_refused:
        told = next((words for words in kinds if words in said), "")
        wrong = "" if told and code == ExitCode.USAGE else f"exit code {code}: {said.strip()[-200:]}"
        return f"refused: {told}" if told else "", 0, wrong, ""
    try:
        verdict = json.loads((here / "verdict.json").read_text())
        reports: list[dict[str, Any]] = verdict["reports"]
    except (OSError, ValueError, LookupError):
        errors = " ".join(said.strip().splitlines()[-1:])[:200]
        return "", 0, f"expected {' or '.join(kinds)}", f"no verdict (exit code {code}: {errors})"
    by_subject = {report["subject"]: report for report in reports if report["subject"] in OTHERS}
    missing = [name for name in OTHERS if by_subject.get(name, {}).get("verdict") != "coherent"]
    lost = f"lost the verdict on {' and '.join(missing)}" if missing else ""
    found = next(
        (report for report in reports if report["subject"] not in OTHERS and report["check"] == fault.check),
        None,
    )
    if found is None:
        return "", 0, f"expected {' or '.join(kinds)}", lost
    kind = found["kind"] or found["verdict"]
    ranks = found["case"]["ranks"] if found["case"] else 0
    problems = [] if kind in kinds else [f"expected {' or '.join(kinds)}"]
    if ranks != fault.ranks and fault.ranks:
        problems.append(f"expected {fault.ranks} rank{'s' if fault.ranks > 1 else ''}")
    is_wrong_usage = (kind,) == INCOMPLETE
    expected = {
        "coherent": ExitCode.COHERENT,
        "incoherent": ExitCode.INCOHERENT,
        "could not be judged": ExitCode.USAGE if is_wrong_usage else ExitCode.UNJUDGED,
    }[found["verdict"]]
    if code != expected and not missing:
        problems.append(f"exit code {code}, expected {int(expected)}")
    if (
        ranks
        and not is_wrong_usage
        and (found["reproducer"] is None or not (here / found["reproducer"]).exists())
    ):
        problems.append("the reproducer is lost")
    return kind, ranks, "; ".join(problems), lost


def _unknown_files(here: Path) -> list[str]:
    """Files in the working directory that are no result, by name."""
    known = {"verdict.json", ".hypothesis", ".adjointlab"}
    unknown = [path.name for path in here.iterdir() if path.name not in known]
    folder = here / ".adjointlab"
    stored = folder.iterdir() if folder.is_dir() else ()
    unknown += [
        path.name for path in stored if path.suffix not in (".json", ".py") or path.name == "running.json"
    ]
    return [f"file: {name}" for name in unknown]


Rows = dict[str, dict[str, str]]
"""Texts of cells, by fault and world."""


def tables(rows: Rows) -> str:
    """A heading and a table in Markdown for each topic."""
    columns = (SIMULATED, *LIBRARIES)
    lines: list[str] = []
    for topic, faults in TOPICS.items():
        lines += [
            f"## {topic}",
            "",
            f"| fault | {' | '.join(columns)} |",
            "| --- |" + " --- |" * len(columns),
        ]
        for fault in faults:
            cells = [
                rows.get(fault.name, {}).get(world, NOT_RUN) if _applies(fault, world) else NOT_APPLICABLE
                for world in columns
            ]
            lines.append(f"| {fault.name} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _applies(fault: RuntimeFault, world: str) -> bool:
    return bool(fault.simulated if world == SIMULATED else fault.mpi)


def read(text: str) -> Rows:
    """The inverse of :func:`tables`."""
    rows: Rows = {}
    worlds: list[str] = []
    for line in text.split("\n"):
        if line[:1] != "|" or line.startswith("| ---"):
            continue
        name, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if name == "fault":
            worlds = cells
        else:
            rows[name] = {
                world: cell
                for world, cell in zip(worlds, cells, strict=True)
                if cell not in (NOT_RUN, NOT_APPLICABLE)
            }
    return rows


@dataclass(frozen=True)
class Page:
    """The page: its words, the generations of cells, and the cells."""

    before: str
    generations: tuple[str, ...]
    rows: Rows
    after: str

    @staticmethod
    def load() -> Page:
        """Read it."""
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        text, _, after = rest.partition(END)
        generations = tuple(
            line.partition(". ")[2] for line in text.split("\n") if line.split(". ")[0].isdigit()
        )
        return Page(before, generations, read(text), after)

    def save(self) -> None:
        """Write it, with the count of its cells."""
        cells = [cell for row in self.rows.values() for cell in row.values()]
        bold = sum(cell.startswith("**") for cell in cells)
        listed = "\n".join(f"{number}. {each}" for number, each in enumerate(self.generations, 1))
        count = f"{len(FAULTS)} faults; {len(cells)} cells run, {bold} of them with a problem."
        text = f"{self.before}{BEGIN}\n\n{count}\n\n{listed}\n\n{tables(self.rows)}\n{END}{self.after}"
        PAGE.write_text(text, encoding="utf-8")


def _generation(pythons: dict[str, str]) -> str:
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude", "*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    commit = asked.stdout.strip() or "unknown"
    return f"commit {commit}, {datetime.now(UTC):%Y-%m-%d}, Python {sys.version.split()[0]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--also", action="append", default=[], metavar="PYTHON")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a fault, by name or subject, or a topic"
    )
    parser.add_argument(
        "--world", action="append", default=[], metavar="WORLD", help="simulated, MPICH, Open MPI"
    )
    parser.add_argument("--not-run", action="store_true", help="only cells that stand as not run on the page")
    parser.add_argument("--problems", action="store_true", help="only cells that have a problem on the page")
    parser.add_argument("--jobs", type=int, default=1, help="so many cells at a time; their seconds grow")
    given = parser.parse_args()
    pythons = {SIMULATED: sys.executable}
    if set(given.world) != {SIMULATED}:
        pythons |= {_library(python): python for python in (sys.executable, *given.also)}
    page = Page.load()
    generation = _generation(pythons)
    generations = page.generations if generation in page.generations else (*page.generations, generation)
    number = generations.index(generation) + 1
    known = {fault.name: dict(page.rows.get(fault.name, {})) for fault in FAULTS}
    page = Page(page.before, generations, known, page.after)
    work = [
        (fault, world, python)
        for fault in _selected(given.only)
        for world, python in pythons.items()
        if _applies(fault, world)
        and (not given.world or world in given.world)
        and not (given.not_run and world in known[fault.name])
        and not (given.problems and not known[fault.name].get(world, "").startswith("**"))
    ]
    lock, wrong = threading.Lock(), 0

    def cell(job: tuple[RuntimeFault, str, str]) -> bool:
        fault, world, python = job
        result = run(fault, python, world)
        text = result.text
        text = f"{text[:-2]} [{number}]**" if text.endswith("**") else f"{text} [{number}]"
        with lock:
            print(f"{fault.name:45} {world:10} {text}", flush=True)
            known[fault.name][world] = text
            page.save()
        return bool(result.problems)

    with ThreadPoolExecutor(given.jobs) as pool:
        wrong = sum(pool.map(cell, work))
    print(f"{len(work)} cells, {wrong} with a problem")
    page.save()
    return 1 if wrong else 0


def _selected(only: Sequence[str]) -> Iterator[RuntimeFault]:
    """The first of each topic, then the second of each: rows that only wait run beside rows that work."""
    for row in zip_longest(*TOPICS.values()):
        for topic, fault in zip(TOPICS, row, strict=True):
            if fault is not None and (not only or {topic, fault.name, fault.attribute} & set(only)):
                yield fault


def _library(python: str) -> str:
    code = "from adjointlab.supervisor.launcher import library_of_mpi4py; print(library_of_mpi4py())"
    asked = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return asked.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
