"""MPI's constants, statuses and operations on several requests, under mpi4py's names and without MPI.

Operators that take their constants from here run in every world: the simulated one needs no MPI at all,
and the guarded communicator of the MPI world translates them (:mod:`adjointlab.worlds.constants`).
mpi4py's own constants are understood in both worlds too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias

from adjointlab.datatypes import BYTE, ORDER_C, ORDER_FORTRAN, Datatype

if TYPE_CHECKING:
    from adjointlab.typing import Status as AnyStatus

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "BAND",
    "BOOL",
    "BOR",
    "BXOR",
    "BYTE",
    "CART",
    "COMM_NULL",
    "COMM_TYPE_SHARED",
    "COMPLEX",
    "C_DOUBLE_COMPLEX",
    "C_FLOAT_COMPLEX",
    "DIST_GRAPH",
    "DOUBLE",
    "DOUBLE_COMPLEX",
    "ERR_ARG",
    "ERR_BUFFER",
    "ERR_COMM",
    "ERR_GROUP",
    "ERR_OP",
    "ERR_OTHER",
    "ERR_RANK",
    "ERR_ROOT",
    "ERR_TAG",
    "ERR_TRUNCATE",
    "ERR_TYPE",
    "FLOAT",
    "FLOAT_COMPLEX",
    "INT",
    "INT8_T",
    "INT16_T",
    "INT32_T",
    "INT64_T",
    "IN_PLACE",
    "LAND",
    "LONG",
    "LOR",
    "LXOR",
    "MAX",
    "MIN",
    "ORDER_C",
    "ORDER_FORTRAN",
    "PROC_NULL",
    "PROD",
    "REQUEST_NULL",
    "ROOT",
    "SUM",
    "UINT8_T",
    "UINT16_T",
    "UINT32_T",
    "UINT64_T",
    "UNDEFINED",
    "UNWEIGHTED",
    "WEIGHTS_EMPTY",
    "Buffer",
    "Create_keyval",
    "Datatype",
    "Exception",
    "Free_keyval",
    "Keyval",
    "Op",
    "Prequest",
    "Request",
    "Status",
]


class Constant(int):
    """Integer that also equals mpi4py's constant of the same name, if mpi4py is imported.

    Code may therefore compare the result of a call with a constant of either library. (Equal constants of the two
    libraries have different hashes, so a dictionary finds only those of one library.)
    """

    _name: str

    def __new__(cls, name: str, value: int) -> Constant:
        made = super().__new__(cls, value)
        made._name = name
        return made

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not int:
            return isinstance(other, int) and int(self) == int(other)
        theirs = sys.modules.get("mpi4py.MPI")
        return int(self) == other or (theirs is not None and other == getattr(theirs, self._name))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(int(self))

    def __reduce__(self) -> tuple[type[Constant], tuple[str, int]]:
        return Constant, (self._name, int(self))

    def __repr__(self) -> str:
        return self._name


# Integers that no MPI library uses, so that a library's constant is never mistaken for one of ours.
ANY_SOURCE: Final = Constant("ANY_SOURCE", -9001)
ANY_TAG: Final = Constant("ANY_TAG", -9002)
PROC_NULL: Final = Constant("PROC_NULL", -9003)
ROOT: Final = Constant("ROOT", -9004)
UNDEFINED: Final = Constant("UNDEFINED", -9005)
COMM_TYPE_SHARED: Final = Constant("COMM_TYPE_SHARED", -9006)

# Results of comparing two groups.
IDENT: Final = Constant("IDENT", -9021)
SIMILAR: Final = Constant("SIMILAR", -9022)
UNEQUAL: Final = Constant("UNEQUAL", -9023)

# Error classes.
ERR_ARG: Final = Constant("ERR_ARG", -9101)
ERR_BUFFER: Final = Constant("ERR_BUFFER", -9102)
ERR_COMM: Final = Constant("ERR_COMM", -9103)
ERR_GROUP: Final = Constant("ERR_GROUP", -9104)
ERR_OP: Final = Constant("ERR_OP", -9105)
ERR_OTHER: Final = Constant("ERR_OTHER", -9106)
ERR_RANK: Final = Constant("ERR_RANK", -9107)
ERR_ROOT: Final = Constant("ERR_ROOT", -9108)
ERR_TAG: Final = Constant("ERR_TAG", -9109)
ERR_TRUNCATE: Final = Constant("ERR_TRUNCATE", -9110)
ERR_TYPE: Final = Constant("ERR_TYPE", -9111)

# Results of Get_topology.
CART: Final = Constant("CART", -9006)
DIST_GRAPH: Final = Constant("DIST_GRAPH", -9007)

# Edge weights of a graph topology.
UNWEIGHTED: Final = Constant("UNWEIGHTED", -9008)
WEIGHTS_EMPTY: Final = Constant("WEIGHTS_EMPTY", -9009)


def __getattr__(name: str) -> NoReturn:
    instead = (
        "one-sided communication works in neither world: exchange messages, or gather"
        if name == "Win"
        else "mpi4py's own may have it (from mpi4py import MPI), and both worlds understand them"
    )
    raise AttributeError(f"adjointlab.MPI has no {name}; {instead}", name=name, obj=sys.modules[__name__])


class Op(Enum):
    """A reduction operation."""

    SUM = "SUM"
    PROD = "PROD"
    MAX = "MAX"
    MIN = "MIN"
    LAND = "LAND"
    LOR = "LOR"
    LXOR = "LXOR"
    BAND = "BAND"
    BOR = "BOR"
    BXOR = "BXOR"

    @staticmethod
    def Create(function: object, commute: bool = False) -> NoReturn:
        """Raise `NotImplementedError`: user-defined operations are made with mpi4py, and both worlds accept them."""
        raise NotImplementedError(
            "adjointlab.MPI makes no operations of your own; make it with mpi4py's Op.Create (from mpi4py import MPI), which both worlds take"
        )


SUM: Final = Op.SUM
PROD: Final = Op.PROD
MAX: Final = Op.MAX
MIN: Final = Op.MIN
LAND: Final = Op.LAND
LOR: Final = Op.LOR
LXOR: Final = Op.LXOR
BAND: Final = Op.BAND
BOR: Final = Op.BOR
BXOR: Final = Op.BXOR


class Buffer(Enum):
    """Placeholder that a call accepts in place of a buffer."""

    IN_PLACE = "IN_PLACE"


IN_PLACE: Final = Buffer.IN_PLACE


BOOL: Final = Datatype("BOOL", "bool")
INT: Final = Datatype("INT", "int32")
LONG: Final = Datatype("LONG", "int64")
FLOAT: Final = Datatype("FLOAT", "float32")
DOUBLE: Final = Datatype("DOUBLE", "float64")
COMPLEX: Final = Datatype("COMPLEX", "complex64")
FLOAT_COMPLEX: Final = COMPLEX
C_FLOAT_COMPLEX: Final = COMPLEX
DOUBLE_COMPLEX: Final = Datatype("DOUBLE_COMPLEX", "complex128")
C_DOUBLE_COMPLEX: Final = DOUBLE_COMPLEX
INT8_T: Final = Datatype("INT8_T", "int8")
INT16_T: Final = Datatype("INT16_T", "int16")
INT32_T: Final = Datatype("INT32_T", "int32")
INT64_T: Final = Datatype("INT64_T", "int64")
UINT8_T: Final = Datatype("UINT8_T", "uint8")
UINT16_T: Final = Datatype("UINT16_T", "uint16")
UINT32_T: Final = Datatype("UINT32_T", "uint32")
UINT64_T: Final = Datatype("UINT64_T", "uint64")


class _SizedDatatype(Protocol):
    """A datatype of mpi4py."""

    def Get_size(self) -> int: ...


class Status:
    """Status of a completed receive or probe: source, tag and size of the message."""

    def __init__(self) -> None:
        self.source: int = ANY_SOURCE
        self.tag: int = ANY_TAG
        self.nbytes: int = 0
        self.cancelled: bool = False

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_count(self, datatype: Datatype | _SizedDatatype = BYTE) -> int:
        """Number of elements of `datatype` received (:data:`UNDEFINED` if it is not a whole number)."""
        size = datatype.Get_size()
        return self.nbytes // size if self.nbytes % size == 0 else UNDEFINED

    def Is_cancelled(self) -> bool:
        return self.cancelled

    def Set_source(self, source: int) -> None:
        self.source = source

    def Set_tag(self, tag: int) -> None:
        self.tag = tag

    def Set_cancelled(self, flag: bool) -> None:
        self.cancelled = flag

    @property
    def count(self) -> int:
        """Bytes received."""
        return self.nbytes

    @count.setter
    def count(self, nbytes: int) -> None:
        self.nbytes = nbytes


def class_of_mpi4py(name: str, *, otherwise: type) -> type:
    """Return mpi4py's class of that name, for `isinstance` checks; `otherwise` if mpi4py is not imported."""
    found: type = getattr(sys.modules.get("mpi4py.MPI"), name, otherwise)
    return found


class Exception(RuntimeError):
    """Raised by a call that MPI itself rejects: a rank out of range, an operation that the datatype does not support.

    If mpi4py is imported, it is also an instance of ``mpi4py.MPI.Exception``, for code that catches that class.
    """

    def __new__(cls, text: str, error_class: int = ERR_OTHER) -> Exception:
        theirs = class_of_mpi4py("Exception", otherwise=cls)
        kind = cls if issubclass(cls, theirs) else _of_both(cls, theirs)  # type: ignore[arg-type]  # hashable
        return RuntimeError.__new__(kind, text)

    # Every method of mpi4py's class is overridden, because its own methods ask the MPI library for the text of an error code.

    def __init__(self, text: str, error_class: int = ERR_OTHER) -> None:
        RuntimeError.__init__(self, text)
        self._text, self._class = text, error_class

    __repr__ = RuntimeError.__repr__
    __str__ = RuntimeError.__str__
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[type[Exception], tuple[str, int]]:
        return Exception, (self._text, self._class)  # the class made by `_of_both` cannot be imported by name

    def __bool__(self) -> bool:
        return True

    def __int__(self) -> int:
        return self._class

    def Get_error_class(self) -> int:
        return self._class

    def Get_error_code(self) -> int:
        return self._class

    def Get_error_string(self) -> str:
        return self._text

    error_class = property(Get_error_class)
    error_code = property(Get_error_code)
    error_string = property(Get_error_string)


@cache
def _of_both(own: type[Exception], theirs: type[BaseException]) -> type[Exception]:
    return type(own.__name__, (own, theirs), {"__module__": own.__module__, "__qualname__": own.__qualname__})


class NullCommunicator:
    """The communicator that a rank gets if it is not a member: ``COMM_NULL``."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return class_of_mpi4py("Intracomm", otherwise=NullCommunicator)

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        # NotImplemented, so that the other communicator decides: one that has been freed equals this one.
        return True if isinstance(other, NullCommunicator) or _is_null_of_mpi4py(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(NullCommunicator)

    def __getattr__(self, name: str) -> Any:
        raise Exception(f"{name} of the null communicator: this rank is not in the communicator", ERR_COMM)

    def __repr__(self) -> str:
        return "COMM_NULL"


COMM_NULL: Final = NullCommunicator()


def _is_null_of_mpi4py(value: object) -> bool:
    theirs = sys.modules.get("mpi4py.MPI")
    return theirs is not None and isinstance(value, theirs.Comm) and bool(value == theirs.COMM_NULL)


class Keyval:
    """Key of a communicator attribute. mpi4py's communicators accept it too; MPI's own key is then created on demand."""

    def __init__(self) -> None:
        self._of_mpi: int | None = None

    def __index__(self) -> int:
        if self._of_mpi is None:
            # Created only when one of mpi4py's communicators asks, because MPI need not be installed.
            self._of_mpi = int(sys.modules["mpi4py.MPI"].Comm.Create_keyval())
        return self._of_mpi

    __int__ = __index__  # what Cython converts an argument with


def Create_keyval() -> Keyval:
    """Return a new key for ``comm.Get_attr``, ``comm.Set_attr`` and ``comm.Delete_attr``."""
    return Keyval()


def Free_keyval(keyval: Keyval) -> None:
    """Free a key. (Attributes that are attached under it are deleted with their communicators.)"""
    if keyval._of_mpi is not None:
        sys.modules["mpi4py.MPI"].Comm.Free_keyval(keyval._of_mpi)
        keyval._of_mpi = None


class AnyRequest(Protocol):
    """A request of any library, with mpi4py's method names; true while it is active."""

    def __bool__(self) -> bool: ...
    def Get_status(self) -> bool: ...
    def wait(self, status: Any = None, /) -> Any: ...


Requests: TypeAlias = Sequence[AnyRequest]

Statuses: TypeAlias = "Sequence[AnyStatus] | None"
"""Statuses to fill, ours or mpi4py's; requests beyond the end of the list have none."""


class RequestBatch:
    """Several requests that are completed together. This class polls each in turn, so it works for any mixture of classes.

    A request class that can handle several requests at once more efficiently sets its own `batch_type` (:class:`Request`).
    """

    def __init__(self, requests: Requests) -> None:
        self.requests = requests

    def wait_all(self, name: str) -> None:
        """Wait for all, in the call `name`. (Does nothing here: :meth:`complete` waits for each.)"""

    def wait_any(self, name: str) -> list[int]:
        """Wait for at least one active request, of which there must be one; return the indices of those that are ready."""
        # Each unsuccessful test lets other ranks run, and raises on a rank whose run has been cancelled.
        while not (ready := self.test_any(name)):
            time.sleep(0)
        return ready

    def test_all(self, name: str) -> bool:
        """Return True if all are ready; let others run if not."""
        return all(request.Get_status() for request in self.requests if _is_active(request))

    def test_any(self, name: str) -> list[int]:
        """Return the indices of the active requests that are ready; let others run if none is."""
        return [index for index, each in enumerate(self.requests) if _is_active(each) and each.Get_status()]

    def choose(self, name: str, ready: list[int]) -> int:
        """Choose one of the `ready` indices, for a caller that waits for any one request."""
        return ready[0]

    def complete_all(self, statuses: Statuses) -> list[Any]:
        """Complete all requests, and return the objects received."""
        return [self.complete(index, _nth(statuses, index)) for index in range(len(self.requests))]

    def complete(self, index: int, status: AnyStatus | None) -> Any:
        """Complete a request that is ready, or inactive, and return the object received."""
        return self.requests[index].wait(status)


class Request:
    """mpi4py's operations on several requests at once, for requests of every world.

    (mpi4py's own ``Request.Waitall`` accepts only mpi4py's requests.) The lower-case forms also return the objects
    received. A test that returns False completes no request.
    """

    batch_type: type[RequestBatch] = RequestBatch

    def __eq__(self, other: object) -> bool:
        """Return True if both are the same request, or if both are null, such as ``REQUEST_NULL`` or a completed request."""
        if self is other:
            return True
        if not isinstance(other, Request | class_of_mpi4py("Request", otherwise=Request)):
            return NotImplemented
        return not bool(self) and not other

    __hash__ = None  # type: ignore[assignment] # as of mpi4py's

    if TYPE_CHECKING:  # each world has its own

        def Wait(self, status: AnyStatus | None = None) -> bool: ...
        def Test(self, status: AnyStatus | None = None) -> bool: ...

    def wait(self, status: AnyStatus | None = None) -> Any:
        """Wait until it is complete, and return the object received, if it is a receive of one."""
        self.Wait(status)

    def test(self, status: AnyStatus | None = None) -> tuple[bool, Any]:
        """Return True, and the object received, if it is complete."""
        return self.Test(status), None

    @staticmethod
    def Waitall(requests: Requests, statuses: Statuses = None) -> bool:
        """Wait for all; return True."""
        if statuses is None and (of_library := _waitall_of_library(requests)) is not None:
            return of_library(requests)
        _wait_all("Waitall", requests, statuses)
        return True

    @staticmethod
    def waitall(requests: Requests, statuses: Statuses = None) -> list[Any]:
        """Wait for all; return the objects received."""
        return _wait_all("waitall", requests, statuses)

    @staticmethod
    def Testall(requests: Requests, statuses: Statuses = None) -> bool:
        """Return True if all are complete."""
        return _test_all("Testall", requests, statuses) is not None

    @staticmethod
    def testall(requests: Requests, statuses: Statuses = None) -> tuple[bool, list[Any] | None]:
        """Return True and the objects, or False and None."""
        objects = _test_all("testall", requests, statuses)
        return objects is not None, objects

    @staticmethod
    def Waitany(requests: Requests, status: AnyStatus | None = None) -> int:
        """Wait for one: its index, or `UNDEFINED` if none is active."""
        return _wait_any("Waitany", requests, status)[0]

    @staticmethod
    def waitany(requests: Requests, status: AnyStatus | None = None) -> tuple[int, Any]:
        """Wait for one: its index, or `UNDEFINED` if none is active."""
        return _wait_any("waitany", requests, status)

    @staticmethod
    def Testany(requests: Requests, status: AnyStatus | None = None) -> tuple[int, bool]:
        """Index of one that is complete, and True; `UNDEFINED` and True if none is active."""
        return _test_any("Testany", requests, status)[:2]

    @staticmethod
    def testany(requests: Requests, status: AnyStatus | None = None) -> tuple[int, bool, Any]:
        """Index of one that is complete, and True; `UNDEFINED` and True if none is active."""
        return _test_any("testany", requests, status)

    @staticmethod
    def Waitsome(requests: Requests, statuses: Statuses = None) -> list[int] | None:
        """Wait for at least one: the indices of those complete, or None if none is active."""
        return _some("Waitsome", requests, statuses, blocking=True)[0]

    @staticmethod
    def waitsome(requests: Requests, statuses: Statuses = None) -> tuple[list[int] | None, list[Any] | None]:
        """Wait for at least one: the indices of those complete, or None if none is active."""
        return _some("waitsome", requests, statuses, blocking=True)

    @staticmethod
    def Testsome(requests: Requests, statuses: Statuses = None) -> list[int] | None:
        """Indices of those that are complete, or None if none is active."""
        return _some("Testsome", requests, statuses, blocking=False)[0]

    @staticmethod
    def testsome(requests: Requests, statuses: Statuses = None) -> tuple[list[int] | None, list[Any] | None]:
        """Indices of those that are complete, or None if none is active."""
        return _some("testsome", requests, statuses, blocking=False)


class Prequest(Request):
    """A persistent request, made by ``Send_init``, ``Ssend_init`` or ``Recv_init``: each :meth:`Start` begins the same message again.

    It is true until it is freed, and active between its start and its completion.
    """

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start: Callable[[], Any] | None = start
        self._active: Any = None

    def Start(self) -> None:
        """Start the operation. Raises `adjointlab.MPI.Exception` if the request is active or has been freed."""
        if self.is_active():
            raise Exception("Start of a persistent request that is active: complete it first", ERR_OTHER)
        if self._start is None:
            raise Exception("Start of a persistent request that has been freed", ERR_OTHER)
        self._active = self._start()

    @staticmethod
    def Startall(requests: Sequence[Prequest]) -> None:
        """Start all requests."""
        for request in requests:
            request.Start()

    def __bool__(self) -> bool:
        return self._start is not None

    def is_active(self) -> bool:
        """Return True if it has been started, and is not complete."""
        return bool(self._active)

    @property
    def _under_way(self) -> Any:
        """The request of the operation in progress; ``REQUEST_NULL`` while inactive."""
        return self._active if self.is_active() else REQUEST_NULL

    def Wait(self, status: AnyStatus | None = None) -> bool:
        """Wait until the operation is complete and the request inactive; return at once if it is inactive already."""
        self._under_way.Wait(status)
        return True

    def Test(self, status: AnyStatus | None = None) -> bool:
        """Return True if it is complete, or inactive."""
        return bool(self._under_way.Test(status))

    def Get_status(self, status: AnyStatus | None = None) -> bool:
        """Return True if a test would complete it."""
        return bool(self._under_way.Get_status(status))

    def Cancel(self) -> None:
        """Cancel a receive that has no message yet; the request must still be completed."""
        if self.is_active():
            self._active.Cancel()

    def Free(self) -> None:
        """Free the request: it cannot be started again, and an operation in progress completes without notice."""
        self._start = None
        if self.is_active():
            self._active.Free()

    cancel, get_status = Cancel, Get_status


class NullRequest(Request):
    """The null request, which is always complete: ``REQUEST_NULL``."""

    def __bool__(self) -> bool:
        return False

    def Wait(self, status: AnyStatus | None = None) -> bool:
        _empty(status)
        return True

    def __repr__(self) -> str:
        return "REQUEST_NULL"

    Test = Get_status = get_status = Wait


REQUEST_NULL: Final = NullRequest()


def _is_active(request: AnyRequest) -> bool:
    return request.is_active() if isinstance(request, Prequest) else bool(request)


def _batch(requests: Requests) -> RequestBatch:
    """Return a batch of the type that the requests' common class declares; if they have several classes, the general one."""
    kinds = set(map(type, requests))
    batch_type: type[RequestBatch] = RequestBatch
    if len(kinds) == 1:
        batch_type = getattr(kinds.pop(), "batch_type", RequestBatch)
    return batch_type(requests)


def _waitall_of_library(requests: Requests) -> Callable[[Requests], bool] | None:
    """Return mpi4py's own Waitall, one call for all requests, if all are mpi4py's; `None` otherwise."""
    kinds = set(map(type, requests))
    if len(kinds) != 1 or hasattr(kind := kinds.pop(), "batch_type"):
        return None
    return getattr(kind, "Waitall", None)


def _wait_all(name: str, requests: Requests, statuses: Statuses) -> list[Any]:
    batch = _batch(requests)
    batch.wait_all(name)
    return batch.complete_all(statuses)


def _test_all(name: str, requests: Requests, statuses: Statuses) -> list[Any] | None:
    batch = _batch(requests)
    if not batch.test_all(name):
        return None
    return batch.complete_all(statuses)


def _wait_any(name: str, requests: Requests, status: AnyStatus | None) -> tuple[int, Any]:
    if not any(map(_is_active, requests)):
        _empty(status)
        return UNDEFINED, None
    batch = _batch(requests)
    index = batch.choose(name, batch.wait_any(name))
    return index, batch.complete(index, status)


def _test_any(name: str, requests: Requests, status: AnyStatus | None) -> tuple[int, bool, Any]:
    if not any(map(_is_active, requests)):
        _empty(status)
        return UNDEFINED, True, None
    batch = _batch(requests)
    ready = batch.test_any(name)
    return (ready[0], True, batch.complete(ready[0], status)) if ready else (UNDEFINED, False, None)


def _some(
    name: str, requests: Requests, statuses: Statuses, *, blocking: bool
) -> tuple[list[int] | None, list[Any] | None]:
    if not any(map(_is_active, requests)):
        return None, None
    batch = _batch(requests)
    ready = batch.wait_any(name) if blocking else batch.test_any(name)
    return ready, [batch.complete(index, _nth(statuses, place)) for place, index in enumerate(ready)]


def _empty(status: AnyStatus | None) -> None:
    """Set `status`, ours or mpi4py's, to the empty status: nothing was received."""
    if status is not None:
        constants = sys.modules[__name__ if isinstance(status, Status) else "mpi4py.MPI"]
        status.Set_source(constants.ANY_SOURCE)
        status.Set_tag(constants.ANY_TAG)
        status.Set_cancelled(False)
        status.count = 0


def _nth(statuses: Statuses, index: int) -> AnyStatus | None:
    return None if statuses is None or index >= len(statuses) else statuses[index]
