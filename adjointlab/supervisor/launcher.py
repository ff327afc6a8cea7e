"""The program that starts ranks: its path, the MPI library that it belongs to, and the options that it needs on this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from adjointlab.cores import cores as available_cores

__all__ = ["Launcher", "NoLauncher", "find_launcher", "find_program", "fits", "library_of_mpi4py", "prepared"]


class Vendor(StrEnum):
    """The maker of a launcher or library."""

    MPICH = "MPICH"
    OPEN_MPI = "Open MPI"
    INTEL = "Intel MPI"
    SLURM = "Slurm"
    TORCH = "torchrun"
    UNKNOWN = "an unknown launcher"


_NAMES: Final = ("mpiexec", "mpirun")
_SIGNATURES: Final = (
    # Parts of the output of `mpiexec --version` and MPI_Get_library_version. The order matters: Intel MPI descends from MPICH, and
    # its launcher also calls itself Hydra.
    (Vendor.INTEL, r"Intel\(R\) MPI"),
    (Vendor.MPICH, r"HYDRA|MPICH"),
    # Open MPI's launcher is mpirun of OpenRTE up to version 4, and a link to PRRTE's prterun from version 5 on.
    (Vendor.OPEN_MPI, r"Open ?MPI|OpenRTE|PRTE|prterun"),
    (Vendor.SLURM, r"^slurm"),
)
_COMPATIBLE: Final = frozenset({Vendor.MPICH, Vendor.INTEL})
"""Libraries that work with each other's launchers: both use Hydra's protocol."""


_MEETING: Final = ("--standalone", "--nnodes", "--rdzv", "--master")
"""Flags of torchrun that configure the rendezvous of its processes."""


class NoLauncher(ValueError):
    """No launcher was found, or none that fits; the message gives advice."""


@dataclass(frozen=True)
class Launcher:
    """A launcher with its flags and environment; the `notes` give the reasons for these."""

    path: str
    vendor: Vendor
    version: str = ""
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def command(self, ranks: int) -> list[str]:
        """The command line up to the program that each rank runs."""
        if self.vendor is Vendor.TORCH:
            return [self.path, *self.flags, "--nproc-per-node", str(ranks), "--no-python"]
        return [self.path, *self.flags, "-n", str(ranks)]

    def __str__(self) -> str:
        notes = "; ".join(self.notes)
        return f"{self.path} ({' '.join(filter(None, (self.vendor, self.version)))}){': ' + notes if notes else ''}"


def find_program(name: str) -> str | None:
    """Find a program next to the Python interpreter, else on PATH: programs installed with this Python take precedence."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(folders))


def find_launcher(given: str | None = None) -> Launcher:
    """Find the launcher that `given` names, followed by its flags; by default, the installed one.

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
    if Path(path).name == "torchrun":  # asking for its version would import torch
        return Launcher(path, Vendor.TORCH, "", tuple(words[1:]))
    vendor, version = _identified(_output_of([path, "--version"]))
    return Launcher(path, vendor, version, tuple(words[1:]))


def prepared(launcher: Launcher, ranks: int, cores: int | None = None, root: bool | None = None) -> Launcher:
    """Return `launcher` with the flags and variables that it needs for so many ranks on this machine, with the reasons."""
    if launcher.vendor is Vendor.TORCH and not any(flag.startswith(_MEETING) for flag in launcher.flags):
        note = "--standalone, so that other jobs of this machine may use torchrun's usual port"
        return replace(launcher, flags=(*launcher.flags, "--standalone"), notes=(*launcher.notes, note))
    if launcher.vendor != Vendor.OPEN_MPI:
        return launcher
    cores = available_cores() if cores is None else cores
    root = os.geteuid() == 0 if root is None else root
    flags, environment, notes = list(launcher.flags), dict(launcher.environment), list(launcher.notes)
    if ranks > cores:
        why = f"because {ranks} ranks share {cores} cores"
        # Open MPI refuses to start more ranks than there are slots; --map-by :OVERSUBSCRIBE is the newer spelling.
        if not any("oversubscribe" in flag.lower() for flag in flags):
            flags.append("--oversubscribe")
            notes.append(f"--oversubscribe, {why}")
        # Its ranks poll while they wait, and may occupy the core that the other rank needs.
        if not any("yield_when_idle" in flag for flag in flags):
            environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
            notes.append(f"mpi_yield_when_idle, {why}")
    # It refuses to run as root, as in many containers, unless both of these variables are set.
    if root and "--allow-run-as-root" not in flags and "OMPI_ALLOW_RUN_AS_ROOT" not in os.environ:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        notes.append("OMPI_ALLOW_RUN_AS_ROOT, because you are root")
    return replace(launcher, flags=tuple(flags), environment=environment, notes=tuple(notes))


def library_of_mpi4py() -> Vendor:
    """Return the vendor of the MPI library that this Python's mpi4py loads. Raises :class:`NoLauncher` if it loads none.

    A separate process loads it, because the supervisor must not be part of MPI.
    """
    code = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
    # -P, because a file in the current folder may have the name of a standard module.
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    if result.returncode:
        why = result.stderr.strip().splitlines()[-1:] or ["?"]
        raise NoLauncher(
            f"mpi4py cannot be used with {sys.executable}: {why[0]}; install it (pip install mpi4py mpich), or leave out "
            "-n to run on simulated ranks"
        )
    return _identified(result.stdout)[0]


def fits(launcher: Launcher, library: str) -> bool:
    """Return False if ranks of `library` started by `launcher` are known not to connect to each other."""
    vendors = {launcher.vendor, library}
    # Slurm's srun starts ranks of any library.
    return bool(vendors & {Vendor.SLURM, Vendor.UNKNOWN}) or len(vendors) == 1 or vendors <= _COMPATIBLE


def _identified(text: str) -> tuple[Vendor, str]:
    for vendor, signature in _SIGNATURES:
        if re.search(signature, text, re.IGNORECASE | re.MULTILINE):
            version = re.search(r"\d+\.\d+(\.\d+)*", text)
            return vendor, version[0] if version else ""
    return Vendor.UNKNOWN, ""


def _output_of(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout + result.stderr
