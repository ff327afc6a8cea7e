"""A case: pure data that determines a run completely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from adjointlab.checks.context import InputSetting
from adjointlab.engine.case_data import from_data, to_data
from adjointlab.worlds.schedule import Schedule

__all__ = ["Case", "StoredCase"]


@dataclass(frozen=True)
class Case:
    """Which subject is put to which check, on how many ranks, with which parameters and values.

    `schedule` seeds the ranks' global random streams, and what the simulated world may choose: the interleaving, and how
    early messages travel. Where there are `schedules`, the case runs under each of these instead.
    """

    subject: str
    check: str
    ranks: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    setting: InputSetting = field(default_factory=InputSetting)
    schedule: int = 0
    schedules: tuple[Schedule, ...] = ()

    def data(self) -> dict[str, Any]:
        """The case in JSON's terms."""
        return {
            "subject": self.subject,
            "check": self.check,
            "ranks": self.ranks,
            "parameters": to_data(self.parameters),
            "setting": msgspec.to_builtins(self.setting),
            "schedule": self.schedule,
            # Left out where there are none: the names of files are made from this.
            **({"schedules": msgspec.to_builtins(self.schedules)} if self.schedules else {}),
        }

    def key(self) -> bytes:
        """Equal for equal cases."""
        return msgspec.json.encode(self.data(), order="deterministic")


class StoredCase(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A case as files hold it (:meth:`Case.data`)."""

    subject: str
    check: str
    ranks: int
    parameters: dict[str, Any]
    setting: InputSetting
    schedule: int
    schedules: tuple[Schedule, ...] = ()

    def case(self) -> Case:
        """The case. Raises `ValueError` or `TypeError` for what is none."""
        if self.ranks < 1:
            raise ValueError(f"ranks: at least 1, not {self.ranks}")
        parameters = from_data(self.parameters)
        return Case(
            self.subject,
            self.check,
            self.ranks,
            parameters,
            self.setting,
            self.schedule,
            self.schedules,
        )
