"""The program that starts ranks: where it is, whose it is, and what it has to be told on this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Launcher", "NoLauncher", "find_launcher", "find_program", "fits", "library_of_mpi4py", "prepared"]

MPICH, OPEN_MPI, INTEL, SLURM, UNKNOWN = "MPICH", "Open MPI", "Intel MPI", "Slurm", "an unknown launcher"

_NAMES: Final = ("mpiexec", "mpirun")
_MARKS: Final = (
    # In this order: Intel's launcher is a Hydra too.
    (INTEL, r"Intel\(R\) MPI"),
    (MPICH, r"HYDRA|MPICH"),
    (OPEN_MPI, r"Open ?MPI|OpenRTE|PRTE|prterun"),
    (SLURM, r"^slurm"),
)
_ALLIED: Final = frozenset({frozenset({MPICH, INTEL})})
"""Libraries that understand each other's launchers."""


class NoLauncher(ValueError):
    """There is no launcher, or none that fits; the message says what to do."""


@dataclass(frozen=True)
class Launcher:
    """A launcher with what it is to be given."""

    path: str
    vendor: str
    version: str = ""
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # why the flags and variables are there

    def command(self, ranks: int) -> list[str]:
        """The words that come before a rank's own."""
        return [self.path, *self.flags, "-n", str(ranks)]

    def __str__(self) -> str:
        told = "; ".join(self.notes)
        return f"{self.path} ({' '.join(filter(None, (self.vendor, self.version)))}){': ' + told if told else ''}"


def find_program(name: str) -> str | None:
    """A program beside the Python interpreter, else on PATH: what is installed with this Python comes first."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(folders))


def find_launcher(given: str | None = None) -> Launcher:
    """The launcher that `given` names, with the flags that stand after it; else the one that is installed.

    Raises :class:`NoLauncher`.
    """
    words = shlex.split(given) if given is not None else []
    if given is not None and not words:
        raise NoLauncher(
            "--launcher: it is empty; give a program, such as --launcher 'mpiexec --bind-to none'"
        )
    path = find_program(words[0]) if words else next(filter(None, map(find_program, _NAMES)), None)
    if path is None:
        if words:
            raise NoLauncher(
                f"--launcher: there is no program {words[0]}, beside {sys.executable} or on PATH"
            )
        raise NoLauncher(
            f"there is no {' or '.join(_NAMES)}, beside {sys.executable} or on PATH; install one (pip install mpich), "
            "name it with --launcher, or leave out -n to run on simulated ranks"
        )
    vendor, version = _identified(_said_by([path, "--version"]))
    return Launcher(path, vendor, version, tuple(words[1:]))


def prepared(launcher: Launcher, ranks: int, cores: int | None = None, root: bool | None = None) -> Launcher:
    """`launcher` with the flags and variables that it needs for so many ranks here, each with its reason."""
    cores = _cores() if cores is None else cores
    root = os.geteuid() == 0 if root is None else root
    if launcher.vendor != OPEN_MPI:
        return launcher
    flags, environment, notes = list(launcher.flags), dict(launcher.environment), list(launcher.notes)
    if ranks > cores:
        few = f"{ranks} ranks share {cores} cores"
        if not any("oversubscribe" in flag.lower() for flag in flags):
            flags.append("--oversubscribe")
            notes.append(f"--oversubscribe, because {few}")
        if not any("yield_when_idle" in flag for flag in flags):
            # Else a rank that waits keeps the core from the one it waits for.
            environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
            notes.append(f"mpi_yield_when_idle, because {few}")
    if root and "--allow-run-as-root" not in flags and "OMPI_ALLOW_RUN_AS_ROOT" not in os.environ:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        notes.append("OMPI_ALLOW_RUN_AS_ROOT, because you are root")
    return Launcher(launcher.path, launcher.vendor, launcher.version, tuple(flags), environment, tuple(notes))


def library_of_mpi4py() -> str:
    """Whose MPI library this Python's mpi4py loads.

    Raises :class:`NoLauncher` if there is none. In a process of its own: the supervisor must not be part of MPI.
    """
    code = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if asked.returncode:
        why = asked.stderr.strip().splitlines()[-1:] or ["?"]
        raise NoLauncher(
            f"mpi4py cannot be used with {sys.executable}: {why[0]}; install it (pip install mpi4py mpich), or leave out "
            "-n to run on simulated ranks"
        )
    return _identified(asked.stdout)[0]


def fits(launcher: Launcher, library: str) -> bool:
    """Whether ranks of `library` that `launcher` starts find each other, as far as one knows."""
    known = {launcher.vendor, library}
    return SLURM in known or UNKNOWN in known or len(known) == 1 or frozenset(known) in _ALLIED


def _identified(text: str) -> tuple[str, str]:
    for vendor, mark in _MARKS:
        if re.search(mark, text, re.IGNORECASE | re.MULTILINE):
            version = re.search(r"\d+\.\d+(\.\d+)*", text)
            return vendor, version[0] if version else ""
    return UNKNOWN, ""


def _said_by(command: list[str]) -> str:
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout + asked.stderr


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
