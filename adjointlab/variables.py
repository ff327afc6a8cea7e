"""Environment variables that identify the processes of one command. This module imports nothing, so that it is cheap at start-up."""

from __future__ import annotations

from typing import Final

__all__ = ["COMMAND", "HOOKED", "SUPERVISED"]

COMMAND: Final = "ADJOINTLAB_COMMAND"
"""A unique number of a command, which the processes that run its checks inherit."""

SUPERVISED: Final = "ADJOINTLAB_SUPERVISED"
"""The folder of a supervised job."""

HOOKED: Final = "ADJOINTLAB_HOOKED"
"""The process number of a supervised job. Its children inherit both variables; since this number is not theirs, they are not the job.
Processes that run beside it are excluded by a lock (:func:`~adjointlab.store.job_log.claimed`)."""
