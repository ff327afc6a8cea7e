"""The settings of the front ends. Each is declared once, with its name, default, range and help.

The command line derives its options from these declarations (:mod:`adjointlab.cli.parameters`), and the pytest plugin its
``--adjointlab-NAME`` and ``adjointlab_NAME`` (:mod:`adjointlab.pytest.profile`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Final, Generic, TypeVar

from adjointlab.devices.memories import DEVICES

__all__ = [
    "CASES",
    "DEVICE",
    "FOLDER",
    "HTML",
    "MAX_TIME",
    "OPTIONS",
    "PATIENCE",
    "RANKS",
    "SCHEDULES",
    "SEED",
    "SHRINKING",
    "STRICT",
    "WATCHDOG",
    "WORLD",
    "XFAILS",
    "Option",
]

T = TypeVar("T")


def _path(text: str) -> Path:
    if not text.strip():
        raise ValueError("the path is empty")
    return Path(text)


@dataclass(frozen=True)
class Option(Generic[T]):
    """A setting. `convert` parses its text; a number is from `least` to `most`; `default_text` explains the default in the help."""

    name: str
    default: T
    convert: Callable[[str], T]
    help: str
    default_text: str = ""
    least: float | None = None
    most: float = math.inf
    choices: tuple[str, ...] = ()
    metavar: str | None = None

    @property
    def full_help(self) -> str:
        """The help text, ending with the default."""
        return f"{self.help} Default: {self.default_text or self.default}."

    @property
    def is_path(self) -> bool:
        """True if the value is the path of a file or folder."""
        return self.convert is _path

    def parse(self, text: str) -> T:
        """Convert the text that a user gave. Raises `ValueError`, which says what would be legal."""
        try:
            value = self.convert(text)
        except (ValueError, KeyError):
            raise self._error(text) from None
        self.check(value)
        return value

    def parse_plain(self, value: object) -> T:
        """Convert a value of a configuration file: a string as on the command line, a number or a boolean. Raises `ValueError`."""
        if isinstance(value, bool) and isinstance(self.default, bool):
            return self.parse("yes" if value else "no")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (isinstance(value, str) or (is_number and self.convert in (int, float))):
            raise self._error(value)
        return self.parse(str(value))

    def check(self, value: T) -> None:
        """Raise `ValueError` if a number is required and `value` is not one or is out of range, or if it is not one of the choices."""
        if isinstance(value, str) and self.choices and value not in self.choices:
            raise self._error(value)
        if self.least is None:
            return
        kind = Integral if self.convert is int else Real
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        if not (is_number and self.least <= value <= self.most and value < math.inf):  # type: ignore[operator]  # a number
            raise self._error(value)

    def _error(self, value: object) -> ValueError:
        legal = f"a {'whole ' if self.convert is int else ''}number of at least {self.least or 0:g}"
        if self.most < math.inf:
            legal += f" and at most {self.most:g}"
        if self.choices:
            legal = f"one of {', '.join(self.choices)}"
        elif self.is_path:
            legal = "a path"
        shown = str(value).lower() if isinstance(value, bool) else repr(value)  # as TOML has it
        return ValueError(f"{self.name}: {shown} is not {legal}")


CASES: Final = Option(
    "cases",
    50,
    int,
    "Cases to draw for each check. Some checks draw only a share of them, because they find faults early.",
    least=1,
)
SEED: Final = Option[int | None](
    "seed", None, int, "Seed of the draws.", "a fresh one, which the report shows", least=0
)
RANKS: Final = Option(
    "ranks",
    8,
    int,
    "Largest number of ranks in a case.",
    "8, or as many as the launcher started",
    least=1,
    # Simulated ranks are threads, and this many can be started on any machine.
    most=1024,
)
SCHEDULES: Final = Option(
    "schedules", 1, int, "Legal interleavings to run each case under, with simulated ranks.", least=1
)
SHRINKING: Final = Option(
    "shrinking", 60.0, float, "Seconds to spend on shrinking a failing case.", "60", least=0
)
WATCHDOG: Final = Option[float | None](
    "watchdog",
    None,
    float,
    "End a rank after this many seconds without an MPI call, or four times as long in all. Also for strategies.",
    "30; less while shrinking a hang",
    least=0.1,
)
STRICT: Final = Option(
    "strict",
    False,
    {"yes": True, "no": False}.__getitem__,
    "Under MPI, compare every blocking collective across all ranks before carrying it out.",
    "no",
    choices=("yes", "no"),
)
DEVICE: Final = Option[str | None](
    "device",
    None,
    {name: name for name in DEVICES}.__getitem__,
    "Draw tensors in host memory only (cpu), or only cases with CUDA device memory (cuda).",
    "every memory available",
    choices=DEVICES,
    metavar="|".join(DEVICES),
)
XFAILS: Final = Option[Path | None](
    "xfails",
    None,
    _path,
    "File of known failures, one per line: SUBJECT CHECK  # why (with pytest also a test's node id). A listed "
    "failure is expected; if it passes, the run fails.",
    "none",
    metavar="FILE",
)
FOLDER: Final = Option(
    "folder",
    Path(".adjointlab"),
    _path,
    "Folder where failures are stored, and from which they are replayed first.",
)
MAX_TIME: Final = Option[float | None](
    "max-time",
    None,
    float,
    "Seconds for all checks together; each draws at least 10 cases.",
    "no limit",
    least=0,
)
HTML: Final = Option[Path | None](
    "html", None, _path, "Write the verdicts with pictures as one HTML page.", "none", metavar="FILE"
)
WORLD: Final = Option(
    "world",
    "auto",
    str,
    "Where coherence tests run: simulated, mpi, torch, or auto, which is mpi under mpiexec, torch under torchrun, and simulated "
    "elsewhere.",
    choices=("auto", "simulated", "mpi", "torch"),
)
PATIENCE: Final = Option(
    "patience",
    300.0,
    float,
    "Under mpiexec or torchrun, seconds that ranks wait for one another between tests.",
    "300",
    least=0,
)

OPTIONS: Final = (
    CASES, SEED, RANKS, SCHEDULES, DEVICE, WATCHDOG, STRICT, XFAILS, FOLDER, HTML, MAX_TIME, WORLD,
    PATIENCE,
)  # fmt: skip
"""The settings that a configuration file may change."""
