"""Methods of mpi4py's communicators that a world does not offer: refused by name, with advice on alternatives.

A call that the lab does not handle could block for ever, because a wait inside MPI cannot be revoked. So it is refused when its
attribute is looked up, before anything is sent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

__all__ = ["ONLY_SIMULATED", "instead_of", "missing"]

# Listed here because the two worlds must not import each other, and the simulated one must work without MPI.
ONLY_SIMULATED: Final = frozenset({"Bsend", "Improbe", "Mprobe", "bsend", "improbe", "mprobe"})

_OF_NEIGHBOURS: Final = ("degrees", "indegree", "outdegree", "inedges", "outedges", "inoutedges")

_INSTEAD: Final = {
    name: sentence
    for names, sentence in (
        (
            "Bsend Ibsend bsend ibsend Bsend_init",
            "use Isend (or isend), which needs no buffer that is attached",
        ),
        (
            "Attach_buffer Detach_buffer Flush_buffer Iflush_buffer",
            "use Isend, which needs no attached buffer",
        ),
        ("Rsend Irsend Rsend_init", "use Send or Isend, which do not need the receive to be posted"),
        ("Psend_init Precv_init", "use an Isend and an Irecv for each part"),
        ("Isendrecv Isendrecv_replace", "use Irecv and Isend, and wait for both requests"),
        (
            "Mprobe Improbe mprobe improbe",
            "use Probe or Iprobe, and receive with the source and tag of the status",
        ),
        ("Idup Idup_with_info", "use Dup"),
        ("free", "use Free"),
        ("Compare", "compare communicators with ==, or what their Get_group gives"),
        ("Cart_map Graph_map", "use Create_cart with reorder=False, which keeps the ranks"),
        ("Create_graph", "use Create_dist_graph_adjacent, to which each rank names its own neighbours"),
        (
            "Create_intercomm Create_from_group Get_parent Accept Connect Join Spawn Spawn_multiple",
            "a case has the ranks of its communicator and no others; use Split, Create or Create_group",
        ),
        (
            "Ack_failed Agree Iagree Get_failed Is_revoked Revoke Shrink Ishrink",
            "leave it out: the lab itself ends the waits for a rank that has failed",
        ),
        (
            "Create_errhandler Get_errhandler Set_errhandler Call_errhandler",
            "leave it out: errors of MPI are exceptions here",
        ),
        ("Get_info Set_info info", "leave it out: hints to MPI have no effect here"),
        (
            "Create_keyval Free_keyval",
            "use the function of that name in adjointlab.MPI, or mpi4py's own of the class Comm",
        ),
        (
            "f2py py2f fromhandle fromint handle toint",
            "the lab cannot follow a handle into compiled code; communicate in Python, and give that code its arrays",
        ),
    )
    for name in names.split()
}


def instead_of(name: str) -> str:
    """Advice on alternatives to mpi4py's method `name`; empty if the name is unknown."""
    if name in _INSTEAD:
        return _INSTEAD[name]
    if name in _OF_NEIGHBOURS or ("neighbor_" in name.lower() and not name.endswith("_init")):
        return "the communicator of a grid or a graph has it, which Create_cart or Create_dist_graph_adjacent makes"
    if name.endswith("_init"):
        call = name.removesuffix("_init")
        turns = f"call I{call.lower()} in every turn; only messages have persistent requests here"
        return _INSTEAD.get(call, turns)
    return ""


def missing(kind: str, name: str, methods: Iterable[str], elsewhere: str = "") -> AttributeError:
    """Error for an attribute `name` that a `kind` of communicator with `methods` lacks, though the one `elsewhere` may have it."""
    mpi = sys.modules.get("mpi4py.MPI")
    if elsewhere:
        known = f", but {elsewhere} has"
    elif mpi is not None and any(hasattr(kind, name) for kind in (mpi.Cartcomm, mpi.Distgraphcomm)):
        known = ", though MPI has"
    else:
        known = ""
    instead = instead_of(name)
    meant = () if instead else _meant(name, tuple(methods))
    return AttributeError(
        f"the {kind} communicator has no {name!r}{known}{': ' + instead if instead else ''}"
        f"{'; it has ' + ', '.join(meant) if meant else ''}"
    )


@lru_cache
def _meant(name: str, methods: tuple[str, ...]) -> tuple[str, ...]:
    """Names similar to a misspelt one; a list of all methods would make the message too long for tables.

    Cached, because code that tests for an attribute with `hasattr` may do so in every call.
    """
    return tuple(get_close_matches(name, methods, n=4))
