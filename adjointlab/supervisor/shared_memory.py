"""Removal of shared-memory files that a killed job leaves behind (on Linux).

MPI libraries make files in ``/dev/shm`` and remove them when MPI is finalized; after a crash they stay, 2 MB each,
until the memory is full. The supervisor removes those that the job's own processes were seen to map.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["SharedMemory"]

_FOLDER: Final = Path("/dev/shm")
_PREFIXES: Final = ("mpich_shm_", "Intel_MPI_", "ucx_shm_posix_", "vader_segment.", "sm_segment.")
"""Prefixes of the files of MPICH, Intel MPI, UCX and Open MPI."""


class _Mapped(NamedTuple):
    """A file that a process has mapped. The inode distinguishes it from a later file of the same name."""

    path: Path
    inode: int


class SharedMemory:
    """The shared-memory files of one job in `folder`; to be made before the job starts."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._folder = folder
        self._before = frozenset(_names(folder))
        self._seen: dict[int, set[_Mapped]] = {}

    def look(self, processes: Iterable[int], *, again: bool = False) -> None:
        """Record the files that `processes` of the job have mapped; skip processes with recorded files, unless `again`."""
        for process in processes:
            if again or not self._seen.get(process):
                self._seen.setdefault(process, set()).update(self._mapped_by(process))

    def clear(self) -> None:
        """Remove the files of the job after all its processes have ended, except files that existed before or that others use."""
        left = {
            mapped for of_process in self._seen.values() for mapped in of_process if self._is_left(mapped)
        }
        if not left:
            return
        for process in filter(str.isdigit, _names(Path("/proc"))):
            left -= set(self._mapped_by(int(process)))
        for mapped in left:
            with suppress(OSError):
                mapped.path.unlink()

    def _is_left(self, mapped: _Mapped) -> bool:
        try:
            status = mapped.path.stat(follow_symlinks=False)
        except OSError:
            return False
        is_same = status.st_ino == mapped.inode and stat.S_ISREG(status.st_mode)
        return is_same and status.st_uid == os.getuid() and mapped.path.name not in self._before

    def _mapped_by(self, process: int) -> list[_Mapped]:
        start = f"{self._folder}/"
        try:
            with Path(f"/proc/{process}/maps").open(encoding="utf-8", errors="replace") as maps:
                # "ADDRESSES PERMISSIONS OFFSET DEVICE INODE PATH"
                fields = [line.rstrip("\n").split(maxsplit=5) for line in maps if start in line]
        except OSError:  # it has ended, belongs to another user, or the system is not Linux
            return []
        found = [_Mapped(Path(field[5]), int(field[4])) for field in fields if len(field) == 6]
        return [
            mapped
            for mapped in found
            if mapped.path.parent == self._folder and mapped.path.name.startswith(_PREFIXES)
        ]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
