"""Environment variables by which the processes of one command know each other; a file that imports nothing, for the first steps of a command."""

from __future__ import annotations

from typing import Final

__all__ = ["COMMAND", "HOOKED", "SUPERVISED"]

COMMAND: Final = "ADJOINTLAB_COMMAND"
"""A number that a command gives itself, for the processes that it shares its checks out to."""

SUPERVISED: Final = "ADJOINTLAB_SUPERVISED"
"""The folder of a supervised job."""

HOOKED: Final = "ADJOINTLAB_HOOKED"
"""The process number of a supervised job. Its children inherit both variables, and tell by this one that they are not the job;
processes beside it tell by a lock (:func:`~adjointlab.store.job_log.claimed`)."""
