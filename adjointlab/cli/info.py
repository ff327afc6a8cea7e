"""``adjointlab info``: versions, MPI library, devices and transport, for a bug report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from adjointlab.cli.output import Output, write_json
from adjointlab.cli.result_files import target
from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.launch import check_partners, launched_rank, launched_world, open_channel

if TYPE_CHECKING:
    from adjointlab.devices.cuda_aware_mpi import MPIEvidence
    from adjointlab.devices.overview import Overview
    from adjointlab.devices.probes import Found

__all__ = ["info"]

_SECONDS_FOR_OUTPUT = 5.0


def info(
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write it as JSON; - is standard output.")
    ] = None,
) -> int:
    """Print what a bug report needs: versions, MPI, devices. Also print the worlds and transports that can be used.

    Whatever is missing or broken has a line that says so, and the exit code is 0. It is 2 for a FILE that cannot be written.
    """
    from adjointlab.report.machine_text import machine_lines
    from adjointlab.worlds.rendezvous import Rendezvous

    if json_to is not None:
        json_to = target("--json", json_to)
    problems: list[str] = []
    job: Rendezvous | None = None
    if launched_world():
        try:
            check_partners()
            job = Rendezvous(open_channel("info"))
        except Exception as problem:  # NoPartners, or any error of a broken library
            problems.append(str(problem) or type(problem).__name__)
    try:
        overview = _overview(job, problems)
    except Exception as problem:  # a rank has died or does not answer: print what this process knows
        overview = _overview(None, [*problems, f"the ranks did not all answer: {problem}"])
    code = ExitCode.COHERENT
    if launched_rank() == 0:
        if json_to is None:
            Output().line("\n".join(machine_lines(overview)))
        elif unwritten := write_json(json_to, overview.data()):
            Output(to_stderr=True).line(f"adjointlab: --json: {unwritten}")
            code = ExitCode.UNJUDGED
    elif job is not None:
        job.leave(_SECONDS_FOR_OUTPUT)
    return code


def _overview(job: object, problems: list[str]) -> Overview:
    from adjointlab.devices.cuda_aware_mpi import mpi_evidence
    from adjointlab.devices.overview import overview
    from adjointlab.devices.probes import asked_mpi
    from adjointlab.worlds.rendezvous import Rendezvous

    connected = job if isinstance(job, Rendezvous) else None
    # A rank has initialised MPI already. Otherwise a separate process asks, because the library may abort the process that asks.
    is_in_mpi = connected is not None and launched_world() == "mpi"
    mpi = mpi_evidence() if is_in_mpi else asked_mpi()
    launcher = _launcher() if launched_rank() == 0 else ""  # only rank 0 prints it
    return overview(mpi, launcher, _worlds, connected, problems)


def _launcher() -> str:
    """Describe the launcher that is found; add a note if it does not belong to mpi4py's library."""
    from adjointlab.supervisor.launcher import NoLauncher, find_launcher, fits, library_of_mpi4py

    try:
        launcher = find_launcher()
        library = library_of_mpi4py()
    except NoLauncher as problem:
        return f"none that could be used: {problem}"
    return str(launcher) + ("" if fits(launcher, library) else f": does not fit mpi4py's library, {library}")


def _worlds(found: Found, mpi: MPIEvidence) -> Mapping[str, str]:
    """Return a line for each world: the command that starts it, or the reason why it cannot be used."""
    from adjointlab.supervisor.launcher import NoLauncher, find_launcher, find_program

    under_mpi, under_torch = mpi.error, ""
    if not under_mpi:
        try:
            under_mpi = f"yes: {find_launcher().path} -n N adjointlab ..."
        except NoLauncher as problem:
            under_mpi = f"no: {problem}"
    else:
        under_mpi = f"no: {under_mpi}"
    backends = found.torch.get("backends", ())
    if "gloo" not in backends:
        under_torch = f"no: {found.torch.get('error') if 'version' not in found.torch else 'torch is built without gloo'}"
    elif (torchrun := find_program("torchrun")) is None:
        under_torch = "no: there is no torchrun"
    else:
        under_torch = f"yes: {torchrun} --nproc-per-node N -m adjointlab ..., backends {', '.join(backends)}"
    return {"simulated": "yes: without a launcher", "mpi": under_mpi, "torch": under_torch}
