"""Files of the lab: written whole or not at all, none but regular files; and text of any origin, made fit for them and terminals."""

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
    """Open a file of the lab's own, as `os.open` does; one that is made has the permissions that the umask leaves.

    Raises `OSError` for a link, which may lead anywhere, and for anything else that is no regular file: to open a FIFO or
    a device may wait for ever, or do something.
    """
    # O_NONBLOCK: to open a FIFO would wait for its other end. It does nothing to a regular file.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def read_file(path: Path) -> bytes:
    """Read a file of the lab's own. Raises `OSError` as :func:`open_file` does."""
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def in_folder(path: Path, make: Callable[[], T]) -> T:
    """Make the folder of `path` and call `make`, which makes a file there: again where the folder is gone by then.

    Each process removes the folder at its end if it is empty, so one may do so between the two steps of another.
    """
    for _ in range(_TRIES):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return make()
        except FileNotFoundError:
            continue
    return make()


def paths_in(folder: Path, pattern: str) -> list[Path]:
    """The paths in `folder` whose names match, in order; none where there is no folder, or where a process removes it meanwhile.

    :func:`in_folder` says which. `Path.glob` itself raises `FileNotFoundError` then, before Python 3.13.
    """
    with suppress(FileNotFoundError):
        return sorted(folder.glob(pattern))
    return []


def why_unreachable(path: Path) -> str:
    """Return the reason why there can be no file at `path`, such as a name that is too long; "" where there may be one."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""


def why_unusable(folder: Path) -> str:
    """Return the reason why no file can be made in `folder`, or in the nearest one above that is there; "" where one can."""
    if problem := why_unreachable(folder):
        return problem
    present = next((each for each in (folder, *folder.absolute().parents) if os.path.lexists(each)), folder)
    if not os.path.isdir(present):
        return f"{present} is not a folder"
    # Tried, for permissions do not tell what a file system allows, nor what it forbids the superuser.
    trial = present / f".{os.getpid()}-{secrets.token_hex(8)}"
    try:
        trial.touch(exist_ok=False)
        try:
            trial.write_bytes(b"\n")  # on a full disk there may be empty files
        finally:
            trial.unlink()
    except OSError as error:
        return f"no file can be made in {present}: {error.strerror or error}"
    return ""


@contextmanager
def working_directory(path: Path) -> Iterator[None]:
    """Context in which relative paths count from `path`, as far as it is still there; user code may have gone elsewhere."""
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
    """Write `data` to `path`, a file of the lab's own, in place of the file that is there.

    Its permissions are `mode`, or else those that the umask leaves.

    The data go into a temporary file beside `path`, because a rename is atomic within one file system only, and that file is
    renamed. So whenever the process is killed, `path` holds either the old content or the new. The file is not synchronised to
    the disk: the kernel keeps what a killed process has written, and a power failure is not what this guards against.

    A link at `path` is not followed. Raises `FileExistsError` for anything else that is no file.
    """
    if not _is_file_or_nothing(path, follow=False) and not path.is_symlink():
        raise FileExistsError(f"{path} is not a file, and is left as it is")
    # Not tempfile: its files can be read by their owner only, whatever the umask says.
    temporary = path.with_name(f".{os.getpid()}-{secrets.token_hex(8)}")
    try:
        # Never more than `mode`, not even for a moment: a private file is one before there is anything in it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(temporary, flags, 0o666 if mode is None else mode), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)  # the umask has taken some of it away
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def overwrite(path: Path, data: bytes) -> None:
    """Write `data` to where a user has pointed `path`: to the target of a link, or into a device or pipe.

    A regular file is replaced as a whole, with its permissions; where it cannot be replaced, it is written over.
    """
    for standard in (1, 2):
        if _is_file_behind(standard, path):
            # A new file in its place would lose what is printed there too.
            with os.fdopen(os.dup(standard), "wb") as file:
                file.write(data)
            return
    target = Path(os.path.realpath(path))
    if _is_file_or_nothing(path, follow=True):
        with suppress(PermissionError):  # a file that may be written in a folder that may not
            mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
            write_atomically(target, data, mode)
            return
    # Not `target`: behind /dev/stdout and /dev/fd there may be a pipe, which has no path.
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
    """`text` with its lone surrogates, which UTF-8 does not have, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str, keep: str = "") -> str:
    """`text` with escapes for all characters but printable ones and those of `keep`: control characters, marks of direction."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )
