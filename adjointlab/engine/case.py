"""A case: pure data that determines a run completely."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import structs

from adjointlab.checks.context import InputSetting
from adjointlab.engine.case_data import Data, Parameters, from_data, to_data
from adjointlab.worlds.schedule import Schedule

__all__ = ["Case"]


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The subject and check, the number of ranks, the parameters and the values of one run.

    `schedule` is a seed: of the ranks' global random streams, and of what the simulated world may choose, the interleaving and
    whether messages are buffered. `schedules` are not seeds: where there are any, the case runs once under each of them, and
    `schedule` seeds the random streams alone. (Files have both keys, hence the likeness.)

    Files hold a case field by field (:meth:`plain`). The name of a reproducer is made from :meth:`key`, so a field that is added
    needs a default, which is left out of the file; a field that has always been there has none.
    """

    subject: str
    check: str
    ranks: int
    parameters: Parameters
    setting: InputSetting
    schedule: int
    schedules: tuple[Schedule, ...] = ()

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"ranks: at least 1, not {self.ranks}")

    def plain(self) -> Case:
        """The case with its parameters as JSON has them. Raises `TypeError` for parameters that are not data."""
        return structs.replace(self, parameters=to_data(self.parameters))

    def restored(self) -> Case:
        """The inverse of :meth:`plain`. Raises `ValueError` for parameters that it does not make."""
        return structs.replace(self, parameters=from_data(dict(self.parameters)))

    def data(self) -> dict[str, Data]:
        """The case as a JSON object."""
        data: dict[str, Data] = msgspec.to_builtins(self.plain())
        return data

    def key(self) -> bytes:
        """Equal for equal cases."""
        return msgspec.json.encode(self.plain(), order="sorted")

    @property
    def digest(self) -> str:
        """A name that no other case has: 64 hexadecimal digits."""
        return hashlib.sha256(self.key()).hexdigest()
