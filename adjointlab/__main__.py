"""Entry point of ``python -m adjointlab`` and of the console script."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from typing import NoReturn

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.launch import launched_rank

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line. Ctrl-C during its import, before it handles signals itself, ends the process as it does later."""
    try:
        from adjointlab.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the exit
        if launched_rank() == 0:
            with suppress(Exception):  # standard error may be closed
                sys.stderr.write("interrupted\n")
        raise SystemExit(ExitCode.INTERRUPTED) from None


if __name__ == "__main__":
    main()
