"""Runs all benchmarks, and records versions, date and load of the machine.

    python -m benchmarks                        prints every table
    python -m benchmarks --only layers,guard    those of some scripts
    python -m benchmarks --write figures        also writes a file for each script, unless the machine is busy
    python -m benchmarks --smoke                only shows that the scripts run: each with its least sizes

Scripts that need MPI run under mpiexec, on 2 and 4 ranks, where an MPI library is installed. Those that need DistDL are left out
where it is missing. Exits with 1 if a script fails, and with 2 if figures are not written because other processes used the machine.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.timing import SMOKE

FOLDER = Path(__file__).resolve().parent
IDLE_SHARE = 0.05
"""Share of the processors that other processes may use while figures are taken."""
LIMIT_OF_SMOKE = 300.0
"""Seconds after which a script that hangs with the least sizes is ended."""


@dataclass(frozen=True)
class Script:
    """A benchmark; one without `ranks` runs without MPI."""

    name: str
    arguments: tuple[str, ...] = ()
    smoke: tuple[str, ...] = ()  # more arguments with the least sizes
    ranks: tuple[int, ...] = ()
    needs: tuple[str, ...] = ()  # modules

    @property
    def title(self) -> str:
        """The name with the arguments; it is also a file name."""
        return "-".join((self.name, *(argument.lstrip("-") for argument in self.arguments)))

    def commands(self, *, smoke: bool) -> dict[str, list[str]]:
        """The commands by title, one for each number of ranks."""
        script = [
            sys.executable,
            str(FOLDER / f"{self.name}.py"),
            *self.arguments,
            *(self.smoke if smoke else ()),
        ]
        if not self.ranks:
            return {self.title: script}
        return {f"{self.title}-{ranks}": [*mpiexec(), "-n", str(ranks), *script] for ranks in self.ranks}


BOTH = (2, 4)
SCRIPTS = (
    Script("harness"),
    Script("proofs"),
    Script("draws", needs=("torch",)),
    Script("simulated_ranks", ("all",)),
    Script("matrix_entries"),
    Script("hand_over"),
    Script("torch_distributed", needs=("torch",)),
    Script("agreement", needs=("mpi4py",)),
    Script("agreement", ranks=(2,)),
    Script("guard", ranks=(2,)),
    Script("primitives", ranks=BOTH),
    Script("movement", ranks=BOTH),
    Script("gpu", smoke=("--host",)),
    Script("gpu", ranks=BOTH, smoke=("--host",)),
    Script("layers", ranks=BOTH, needs=("torch",)),
    Script("layers", ("--stationary",), ranks=BOTH, needs=("torch",)),
    Script("against_distdl", ranks=BOTH, needs=("torch", "distdl")),
    Script("failing_runs", needs=("torch",)),
    Script("failing_runs", ranks=(4,), needs=("torch",)),
    Script("files_of_a_check", smoke=("--cases", "1")),
    # Of these the figures are counts, which need no idle machine.
    Script("detection", smoke=("--part", "planted"), needs=("torch",)),
    Script("hints", smoke=("--part", "operators"), needs=("torch",)),
    Script("mutants"),
    Script("sly_mutants"),
    Script("reaching_tests", needs=("coverage",)),
    Script("own_mutants", needs=("cosmic_ray", "coverage")),
    Script("smooth", needs=("torch",)),
    Script("values", needs=("torch",)),
    Script("soak"),
)


def mpiexec() -> list[str]:
    """The launcher in this environment that belongs to mpi4py's library; empty if there is none."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None or find_spec("mpi4py") is None:
        return []
    answer = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    # More ranks than cores: Open MPI must be allowed it, and must not spin while it waits.
    open_mpi = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    return [found, *(open_mpi if "open" in answer.stdout.lower() else ())]


def missing(script: Script) -> str:
    """Return the names of the packages that a script needs and that are not installed; empty if it can run."""
    if script.ranks and not mpiexec():
        return "an MPI library with mpiexec, and mpi4py"
    return ", ".join(module for module in script.needs if find_spec(module) is None)


def conditions() -> str:
    """Lines on the date, the machine and its load, and the versions."""
    versions = []
    for package in ("adjointlab", "numpy", "hypothesis", "torch", "cupy-cuda13x", "cupy-cuda12x", "mpi4py"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    load = " ".join(f"{each:.2f}" for each in os.getloadavg())
    return "\n".join(
        (
            f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, load {load} on {os.cpu_count()} cores",
            f"{platform.platform()}, Python {platform.python_version()}, {', '.join(versions)}",
        )
    )


def busy_seconds() -> float | None:
    """Busy seconds of all processors since the system started; `None` if the system does not report them."""
    try:
        first, *_ = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, first.split()[1:9])
    return (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """CPU seconds of this process and of its child processes that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


@dataclass(frozen=True)
class Moment:
    """Readings of the clocks at one moment."""

    wall: float
    busy: float | None
    own: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.monotonic(), busy_seconds(), own_seconds())

    def share_of_others(self, later: Moment) -> float | None:
        """Share of the processors that other processes used between two moments, if the system reports it."""
        if self.busy is None or later.busy is None:
            return None
        others = (later.busy - self.busy) - (later.own - self.own)
        return max(0.0, others) / ((later.wall - self.wall) * (os.cpu_count() or 1))


def busy_before() -> str:
    """The reason why the machine is too busy to begin; empty if it is not."""
    begin = Moment.now()
    time.sleep(1.0)
    share = begin.share_of_others(Moment.now())
    if share is None:  # the load average alone, which lags behind
        load, allowed = os.getloadavg()[0], IDLE_SHARE * (os.cpu_count() or 1)
        return f"the load average is {load:.2f}, above {allowed:.2f}" if load > allowed else ""
    return reason(share)


def reason(share: float | None) -> str:
    """The reason why the share of other processes is too large; empty if it is not."""
    if share is None or share <= IDLE_SHARE:
        return ""
    return f"other processes use {share:.0%} of the processors, more than {IDLE_SHARE:.0%}"


def run(title: str, command: Sequence[str], *, smoke: bool) -> tuple[int, str, str]:
    """Run a script; return its exit code, its output, and a reason not to use its figures, if there is one."""
    environment = {"OMP_NUM_THREADS": "1", "COLUMNS": "120", **os.environ, **({SMOKE: "1"} if smoke else {})}
    begin = Moment.now()
    try:
        ended = subprocess.run(
            command,
            env=environment,
            cwd=FOLDER.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_OF_SMOKE if smoke else None,
            check=False,
        )
        code, text = ended.returncode, ended.stdout
    except subprocess.TimeoutExpired as late:
        code, text = 1, f"{late.stdout or ''}\nit did not end within {LIMIT_OF_SMOKE:.0f} s"
    end = Moment.now()
    busy = reason(begin.share_of_others(end))
    print(f"\n== {title}: {end.wall - begin.wall:.0f} s\n\n{text}", flush=True)
    return code, text, busy


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names of scripts, separated by commas")
    parser.add_argument(
        "--smoke", action="store_true", help="the least sizes: only shows that the scripts run"
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="also write a file for each script there")
    options = parser.parse_args(arguments)
    names = [name for name in options.only.split(",") if name]
    if unknown := set(names) - {script.name for script in SCRIPTS}:
        parser.error(f"--only: no script is called {', '.join(sorted(unknown))}")
    if options.write and options.smoke:
        parser.error("--write: figures of --smoke mean nothing; leave out either")
    print(conditions(), flush=True)
    if options.write and (why := busy_before()):
        print(f"--write: no figures are written: {why}", file=sys.stderr)
        return 2
    failed, unwritten = [], []
    for script in SCRIPTS:
        if names and script.name not in names:
            continue
        if lacking := missing(script):
            print(f"\n== {script.title}: left out, it needs {lacking}")
            continue
        for title, command in script.commands(smoke=options.smoke).items():
            taken_at = conditions()
            code, text, busy = run(title, command, smoke=options.smoke)
            if code:
                failed.append(title)
            elif options.write and busy:
                unwritten.append(f"{title}: {busy}")
            elif options.write:
                options.write.mkdir(parents=True, exist_ok=True)
                (options.write / f"{title}.txt").write_text(f"{taken_at}\n\n{text}", encoding="utf-8")
    for each in unwritten:
        print(f"not written: {each}", file=sys.stderr)
    for title in failed:
        print(f"failed: {title}", file=sys.stderr)
    return 1 if failed else 2 if unwritten else 0


if __name__ == "__main__":
    sys.exit(main())
