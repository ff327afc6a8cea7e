"""A signal at a random moment: what was found is printed and stored, nothing is left behind.

    python -m tests.faults.signals                        # 50 moments, over all targets and signals
    python -m tests.faults.signals --moments 10 --only supervised --signal SIGINT

Ctrl-C goes to every process of the terminal's foreground group, the other signals to one process. It exits with 1 if something is lost
or left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.left_behind import left_in
from tests.running import IS_OPEN_MPI, begun

SUBJECTS = """
import os
import time
from pathlib import Path

import adjointlab as al
from tests.faults.operators import Shift, _subject

HERE = Path(__file__).parent


class Wrong(Shift):
    def adjoint(self, y):
        time.sleep(0.01)
        (HERE / "begun").touch()
        result = super().adjoint(y)
        if self.rank == 1:
            result[-1:] = 0
        return result


class Slow(Shift):
    def forward(self, x):
        (HERE / "begun").touch()
        time.sleep(0.02)
        return super().forward(x)


wrong, slow = _subject(Wrong), _subject(Slow)
"""

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_SECONDS = 30.0
"""Seconds after which a process counts as one that does not end. On a machine that does nothing else it takes five at the most."""


@dataclass(frozen=True)
class Target:
    """A command, and to which of its processes the signal goes."""

    name: str
    ranks: int = 0  # under mpiexec
    is_supervised: bool = False
    to_rank: bool = False

    @property
    def command(self) -> list[str]:
        """Arguments of adjointlab, up to those of check."""
        if not self.is_supervised:
            return []
        return [
            "run",
            "--shrinking",
            "1",
            *(["-n", str(self.ranks)] if self.ranks else []),
            "--",
            "adjointlab",
        ]

    def takes(self, number: signal.Signals) -> bool:
        """Return False for a signal that nobody sends there, or that the launcher does not pass on."""
        if number == signal.SIGINT:
            return not self.to_rank
        return self.name != "launcher" or (number == signal.SIGTERM and not IS_OPEN_MPI)

    @property
    def cases(self) -> int:
        """Cases of each subject: their work outlasts the latest signal."""
        return 40 if self.goes_on() else 100

    def goes_on(self) -> bool:
        """Return True if the signal ends no more than a rank, which a supervisor replaces."""
        return self.is_supervised and self.to_rank


TARGETS = (
    Target("simulated"),
    Target("launcher", ranks=2),
    Target("rank", ranks=2, to_rank=True),
    Target("supervised", is_supervised=True),
    Target("supervised ranks", ranks=2, is_supervised=True),
    Target("supervised rank", ranks=2, is_supervised=True, to_rank=True),
)


@dataclass(frozen=True)
class Ended:
    """The problems after a signal, and how long the command took to end."""

    problems: list[str]
    seconds: float


def problems_at(target: Target, number: signal.Signals, after: float, folder: Path) -> Ended:
    """Send a signal `after` some seconds of work in `folder`."""
    (folder / "subjects.py").write_text(SUBJECTS)
    process = begun(
        *("-m", "adjointlab", *target.command, "check", "subjects.py:wrong", "subjects.py:slow"),
        *("--check", "adjoint", "--seed", "3", "--cases", str(target.cases), "--json", "verdicts.json"),
        ranks=0 if target.is_supervised else target.ranks,
        cwd=folder,
    )
    try:
        _wait_for(folder / "begun", process)
        time.sleep(after)
        sent = time.monotonic()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            os.kill(_rank_of(folder) if target.to_rank else process.pid, number)
        out, err = process.communicate(timeout=MOST_SECONDS * (3 if target.goes_on() else 1))
        seconds = time.monotonic() - sent
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return Ended(["it does not end", out, err], MOST_SECONDS)
    problems = []
    if target.name == "launcher" and IS_OPEN_MPI:
        # It kills the ranks, drops what they print, and ends a moment before they do.
        time.sleep(1.0)
        problems += [] if process.returncode else ["exit code 0"]
    else:
        problems += _lost(target, number, process.returncode, out, folder)
    problems += [f"left running: {one}" for one in left_in(folder)]
    return Ended([*problems, out, err] if problems else [], seconds)


def _lost(target: Target, number: int, code: int, out: str, folder: Path) -> list[str]:
    expected = (1, 3) if target.goes_on() else (128 + number,)
    problems = [] if code in expected else [f"exit code {code} instead of {expected}"]
    try:
        verdicts = json.loads((folder / "verdicts.json").read_text())
    except (OSError, ValueError) as problem:
        return [*problems, f"no results as JSON: {problem}"]
    if verdicts["exit_code"] != code:
        problems.append(f"exit code {verdicts['exit_code']} in the results")
    stored = sorted(path.name for path in (folder / ".adjointlab").glob("*.json"))
    if rest := [name for name in stored if name.startswith("run")]:
        problems.append(f"left in the folder: {rest}")
    printed = "Wrong: adjoint is not" in out
    if any(name.startswith("Wrong") for name in stored) and not (
        printed or any(report["subject"] == "Wrong" for report in verdicts["reports"])
    ):
        # The case that was running may be one of the wrong subject before its failure was known.
        kept = json.loads((folder / ".adjointlab" / stored[0]).read_text())["headline"]
        if "ended the process" not in kept:
            problems.append("a failure is stored, and not reported")
    if not stored and number != signal.SIGINT:
        problems.append("neither a failure nor the running case is stored")
    if " are done." not in out and not target.goes_on():
        problems.append("no summary")
    return problems


def _rank_of(folder: Path) -> int:
    """The second rank: a process in `folder` that the launcher has given that rank."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes()
            if Path(os.readlink(process / "cwd")) != folder or b"rank.py" in command:
                continue
        except OSError:
            continue
        if b"\0PMI_RANK=1\0" in environment or b"\0OMPI_COMM_WORLD_RANK=1\0" in environment:
            return int(process.name)
    raise AssertionError("there is no second rank")


def _wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not file.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    if process.poll() is not None or not file.exists():
        process.kill()
        raise AssertionError(process.communicate())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    parser.add_argument("--only", action="append", default=[], help="a target, by name")
    parser.add_argument("--signal", action="append", default=[], choices=[one.name for one in NUMBERS])
    given = parser.parse_args()
    moments = random.Random(given.seed)
    choices = [
        (target, number)
        for number in NUMBERS
        for target in TARGETS
        if target.takes(number)
        and (not given.only or target.name in given.only)
        and (not given.signal or number.name in given.signal)
    ]
    wrong, slowest = 0, 0.0
    for count in range(given.moments):
        target, number = choices[count % len(choices)]
        after = moments.uniform(0.0, 4.0)
        with tempfile.TemporaryDirectory(prefix="adjointlab-signal-") as folder:
            ended = problems_at(target, number, after, Path(folder))
        wrong += bool(ended.problems)
        slowest = slowest if target.goes_on() else max(slowest, ended.seconds)
        print(
            f"{target.name:18} {number.name} after {after:.2f} s: {ended.seconds:.1f} s",
            *ended.problems,
            sep="\n  ",
            flush=True,
        )
    print(
        f"seed {given.seed}: {given.moments} moments, {wrong} not as expected, {slowest:.1f} s for the slowest end"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
