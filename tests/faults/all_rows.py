"""All rows of the fault matrix, by topic."""

from __future__ import annotations

from importlib.util import find_spec

from tests.faults import (
    collective_calls,
    communicators,
    dying,
    leaving,
    messages,
    not_returning,
    operators,
    pending_requests,
    process_state,
    raising,
    wrong_results,
)
from tests.faults.declaring import RuntimeFault

TOPICS: dict[str, tuple[RuntimeFault, ...]] = {
    "One of each": operators.FAULTS,
    "Exceptions": raising.FAULTS,
    "Ends with 0": leaving.FAULTS,
    "Collectives": collective_calls.FAULTS,
    "Messages": messages.FAULTS,
    "Requests": pending_requests.FAULTS,
    "Communicators": communicators.FAULTS,
    "Wrong results": wrong_results.FAULTS,
    "Code that does not return, or leaves something running": not_returning.FAULTS,
    "Ends by a signal or a limit": dying.FAULTS,
    "State of the process": process_state.FAULTS,
}
if find_spec("torch") is not None:
    from tests.faults import torch_modules

    TOPICS["Layers and functions of torch"] = torch_modules.FAULTS

FAULTS = tuple(fault for faults in TOPICS.values() for fault in faults)
