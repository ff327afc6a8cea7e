"""The text of ``adjointlab info``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from adjointlab.devices.compatibility import version_text
from adjointlab.devices.overview import Overview, RankOverview
from adjointlab.devices.probes import Found

__all__ = ["machine_lines"]

_WIDTH: Final = 26


def machine_lines(overview: Overview) -> Iterator[str]:
    """Yield the lines, in sections with a heading."""
    yield "versions"
    yield from _lines(overview.packages)
    first = overview.ranks[0]
    yield from _libraries(first.found)
    yield ""
    yield "MPI"
    evidence, aware = overview.mpi.evidence, overview.mpi.cuda_aware
    yield _line("library", evidence.library.partition(",")[0] or evidence.error)
    if evidence.standard:
        yield _line("standard", evidence.standard)
    yield _line("launcher", overview.launcher)
    yield _line("CUDA-aware", f"{'yes' if aware.is_aware else 'no'}: {aware.reason} [test: {aware.test}]")
    yield ""
    yield "ranks" if len(overview.ranks) > 1 else "machine"
    for numbers, rank in _alike(overview.ranks):
        yield from _machine(numbers if len(overview.ranks) > 1 else "", rank)
    yield ""
    yield "worlds"
    yield from _lines(overview.worlds)
    yield ""
    yield "transport of device buffers"
    yield from _lines(
        {name: f"{each.transport}: {each.reason}" for name, each in overview.transports.items()}
    )
    if overview.environment:
        yield ""
        yield "environment"
        yield from _lines(overview.environment)
    for heading, texts in (("mismatches", overview.mismatches), ("problems", overview.problems)):
        if texts:
            yield ""
            yield heading
            yield from (f"  {text}" for text in texts)


def _libraries(found: Found) -> Iterator[str]:
    """Yield lines on the driver, CuPy and torch's CUDA, with errors in place of unknown versions."""
    wheels = ", ".join(f"{name} {version}" for name, version in found.wheels)
    runtime = found.cupy.get("runtime")
    nccl = found.cupy.get("nccl")
    parts = (
        wheels,
        f"CUDA runtime {version_text(runtime)}" if runtime else "",
        f"NCCL {nccl}" if nccl else "",
        found.cupy.get("error", ""),
    )
    yield _line("cupy", "; ".join(filter(None, parts)))
    driver = found.driver
    known = f"{driver.get('release') or 'release unknown'}, CUDA {version_text(driver.get('cuda'))}"
    yield _line("driver", driver.get("error") or known)
    if "version" in found.torch:
        yield _line("CUDA of torch", found.torch.get("cuda") or "none: torch is built without CUDA")


def _machine(numbers: str, rank: RankOverview) -> Iterator[str]:
    here = rank.machine
    memory = "memory unknown" if here.memory is None else f"{_gib(here.memory)} of memory"
    if numbers:
        yield _line("rank " + numbers, here.host)
    else:
        yield _line("host", here.host)
    yield _line("platform", here.platform)
    yield _line("cores", f"{here.cores} of {here.all_cores}, {memory}")
    for library, answer in (("CuPy", rank.found.cupy), ("torch", rank.found.torch)):
        yield _line(f"devices of {library}", _devices(answer))


def _devices(answer: Mapping[str, Any]) -> str:
    devices = [
        f"{each['name']}, {_gib(each['memory'])}, compute capability {each['capability']}"
        for each in answer.get("devices", ())
    ]
    return "; ".join(devices) or f"none: {answer.get('error') or 'there is no device'}"


def _alike(ranks: Sequence[RankOverview]) -> Iterator[tuple[str, RankOverview]]:
    """Yield each distinct overview once, with the numbers of its ranks."""
    seen: list[tuple[RankOverview, list[int]]] = []
    for number, rank in enumerate(ranks):
        numbers = next((numbers for each, numbers in seen if each == rank), None)
        if numbers is None:
            seen.append((rank, [number]))
        else:
            numbers.append(number)
    for rank, numbers in seen:
        yield ", ".join(map(str, numbers)), rank


def _lines(entries: Mapping[str, str]) -> Iterator[str]:
    yield from (_line(name, text) for name, text in entries.items())


def _line(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}}  {text}"


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
