"""The files of the lab that take part in a check: those with a function that runs between the command and its verdict.

    python benchmarks/files_of_a_check.py [--cases 5] [--check adjoint] [SUBJECT]

Importing a module does not count, calling one of its functions does. The default subject is the README's ring shift.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "adjointlab"


def files_of(command: list[str]) -> Counter[Path]:
    """Count, by file of the lab, the calls of its functions while the command line runs `command`."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    from adjointlab.cli.main import main

    def run() -> str:
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
            main(command)
        return output.getvalue()

    run()  # imports everything, so that nothing that runs at import counts below
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        output = run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    if "1 coherent" not in output:
        raise RuntimeError(f"the check did not end coherent:\n{output}")
    lab = Counter({Path(name): number for name, number in calls.items() if name.startswith(str(PACKAGE))})
    return Counter({file.relative_to(PACKAGE): number for file, number in lab.items()})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subject", nargs="?", default=str(ROOT / "examples/ring_shift.py"))
    parser.add_argument("--cases", type=int, default=5)
    parser.add_argument("--check", default="adjoint")
    options = parser.parse_args()
    command = [
        "check",
        options.subject,
        "--cases",
        str(options.cases),
        "--check",
        options.check,
        "--seed",
        "1",
    ]
    files = files_of(command)
    for file, number in sorted(files.items()):
        print(f"{number:8} {file}")
    print(f"\n{len(files)} files")


if __name__ == "__main__":
    main()
