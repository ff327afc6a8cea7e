"""``python -m adjointlab``, and the console script."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from typing import NoReturn

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.launch import launched_rank

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line. Ctrl-C while it is imported, before it heeds signals itself, ends the process as it does later."""
    try:
        from adjointlab.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one, on the way out
        if launched_rank() == 0:
            with suppress(Exception):  # it may be closed
                sys.stderr.write("interrupted\n")
        raise SystemExit(ExitCode.INTERRUPTED) from None


if __name__ == "__main__":
    main()
