"""A case: pure data that determines a run completely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from adjointlab.checks.bench import Setting
from adjointlab.harness.data import to_data

__all__ = ["Case"]


@dataclass(frozen=True)
class Case:
    """Which subject is put to which check, on how many ranks, with which parameters and values.

    `schedule` seeds what the simulated world may choose: the interleaving, and how early messages travel.
    """

    subject: str
    check: str
    ranks: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    setting: Setting = field(default_factory=Setting)
    schedule: int = 0

    def data(self) -> dict[str, Any]:
        """The case in JSON's terms."""
        return {
            "subject": self.subject,
            "check": self.check,
            "ranks": self.ranks,
            "parameters": to_data(self.parameters),
            "setting": msgspec.to_builtins(self.setting),
            "schedule": self.schedule,
        }

    def key(self) -> bytes:
        """Equal for equal cases."""
        return msgspec.json.encode(self.data(), order="deterministic")
