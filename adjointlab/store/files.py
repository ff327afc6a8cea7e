"""Reading and atomically writing the lab's files, which are regular files only; and escaping of arbitrary text for files and terminals."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

__all__ = [
    "encodable",
    "in_folder",
    "open_file",
    "overwrite",
    "paths_in",
    "printable",
    "read_file",
    "why_unreachable",
    "why_unusable",
    "working_directory",
    "write_atomically",
]

T = TypeVar("T")

_TRIES: Final = 20


def open_file(path: Path, flags: int) -> int:
    """Open one of the lab's files, as `os.open` does; a new file has the permissions that the umask leaves.

    Raises `OSError` for a symbolic link, which may point anywhere, and for anything else but a regular file: opening a FIFO or
    a device may block forever or have side effects.
    """
    # O_NONBLOCK, because opening a FIFO would wait for its other end. It has no effect on a regular file.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def read_file(path: Path) -> bytes:
    """Read one of the lab's files. Raises `OSError` as :func:`open_file` does."""
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def in_folder(path: Path, make: Callable[[], T]) -> T:
    """Make the folder of `path` and call `make`, which makes a file there; retry if the folder has been removed in between.

    Each process removes the folder at its end if it is empty, which may happen between these two steps of another process.
    """
    for _ in range(_TRIES):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return make()
        except FileNotFoundError:
            continue
    return make()


def paths_in(folder: Path, pattern: str) -> list[Path]:
    """Return the sorted paths in `folder` whose names match; empty if the folder does not exist, or is removed meanwhile.

    Another process may remove it (see :func:`in_folder`), and before Python 3.13 `Path.glob` then raises `FileNotFoundError`.
    """
    with suppress(FileNotFoundError):
        return sorted(folder.glob(pattern))
    return []


def why_unreachable(path: Path) -> str:
    """Return the reason why no file can exist at `path`, such as a name that is too long; "" if one can."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""


def why_unusable(folder: Path) -> str:
    """Return the reason why no file can be created in `folder`, or in its nearest existing parent; "" if one can."""
    if problem := why_unreachable(folder):
        return problem
    present = next((each for each in (folder, *folder.absolute().parents) if os.path.lexists(each)), folder)
    if not os.path.isdir(present):
        return f"{present} is not a folder"
    # Tested by creating a file, because permissions do not show what the file system allows, or denies even to the superuser.
    trial = present / f".{os.getpid()}-{secrets.token_hex(8)}"
    try:
        trial.touch(exist_ok=False)
        try:
            trial.write_bytes(b"\n")  # because on a full disk an empty file can still be created
        finally:
            trial.unlink()
    except OSError as error:
        return f"no file can be made in {present}: {error.strerror or error}"
    return ""


@contextmanager
def working_directory(path: Path) -> Iterator[None]:
    """Context with `path` as the current folder, unless it has been removed: user code may have changed the current folder."""
    try:
        before = os.getcwd()
    except OSError:  # it has been removed
        before = ""
    with suppress(OSError):
        os.chdir(path)
    try:
        yield
    finally:
        if before:
            with suppress(OSError):
                os.chdir(before)


def write_atomically(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write `data` to `path`, one of the lab's files, and replace an existing file.

    The permissions are `mode`, or by default those that the umask leaves.

    The data are written to a temporary file, which is then renamed. It lies beside `path`, because a rename is atomic only within
    one file system. So whenever the process is killed, `path` holds either the old or the new content. The file is not synchronised
    to the disk: the kernel keeps what a killed process has written, and this does not protect against a power failure.

    A symbolic link at `path` is replaced, not followed. Raises `FileExistsError` for anything else but a regular file.
    """
    if not _is_file_or_nothing(path, follow=False) and not path.is_symlink():
        raise FileExistsError(f"{path} is not a file, and is left as it is")
    # Not made by tempfile, whose files can be read by their owner only, whatever the umask is.
    temporary = path.with_name(f".{os.getpid()}-{secrets.token_hex(8)}")
    try:
        # Opened with `mode`, so that a private file is private before it has any content.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(temporary, flags, 0o666 if mode is None else mode), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)  # restores the bits that the umask has cleared
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def overwrite(path: Path, data: bytes) -> None:
    """Write `data` to the file that a user has named: to the target of a symbolic link, or into a device or pipe.

    A regular file is replaced atomically and keeps its permissions; if it cannot be replaced, it is overwritten in place.
    """
    for standard in (1, 2):
        if _is_file_behind(standard, path):
            # A new file would lose what else is printed to this one.
            with os.fdopen(os.dup(standard), "wb") as file:
                file.write(data)
            return
    target = Path(os.path.realpath(path))
    if _is_file_or_nothing(path, follow=True):
        with suppress(PermissionError):  # a writable file in a folder that is not
            mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
            write_atomically(target, data, mode)
            return
    # `path` rather than `target`, because /dev/stdout and /dev/fd may lead to a pipe, which has no path.
    with path.open("wb") as file:
        file.write(data)


def _is_file_or_nothing(path: Path, *, follow: bool) -> bool:
    try:
        return stat.S_ISREG(path.stat(follow_symlinks=follow).st_mode)
    except FileNotFoundError:
        return True


def _is_file_behind(descriptor: int, path: Path) -> bool:
    try:
        status = os.fstat(descriptor)
        return stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.stat())
    except OSError:
        return False


def encodable(text: str) -> str:
    """Return `text` with lone surrogates, which UTF-8 cannot encode, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str, keep: str = "") -> str:
    """Return `text` with all characters escaped that are neither printable nor in `keep`, such as control characters and bidi marks."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )
