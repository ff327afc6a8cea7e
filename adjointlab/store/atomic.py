"""Writing a file so that a reader never sees half of it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`, in place of what is there.

    The data go into a temporary file beside `path`, because a rename is atomic within one file system only, and that file is
    renamed. So whenever the process is killed, `path` holds either the old content or the new. The file is not synchronised to
    the disk: the kernel keeps what a killed process has written, and a power failure is not what this guards against.
    """
    # Not tempfile: its files can be read by their owner only, whatever the umask says.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
