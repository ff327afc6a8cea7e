"""Requests that are not completed, or whose buffers are used while they are pending."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjointlab import MPI
from tests.faults.declaring import COHERENT, DEADLOCK, MESSAGE, MISUSED, WRONG, Shift, declared, fault

OPEN = ("request left open",)
REQUEST_OR_MESSAGE = ("request left open", "message left over")
NOT_FINITE = ("forward is not finite", "adjoint is not finite")
"""Memory that nothing has been received into yet is filled with NaN on simulated ranks."""


class Pending(Shift):
    """A ring shift by requests, with a place for a fault between posting them and waiting for them."""

    def shifted(self, x: Any, dest: int, source: int) -> Any:
        result, sent = np.zeros(x.shape, x.dtype), np.array(x)
        requests = [self.comm.Irecv(result, source, 0), self.comm.Isend(sent, dest, 0)]
        return self.completed(requests, result, sent)

    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        MPI.Request.Waitall(requests)
        return result


class ReadsBeforeItWaits(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        early = np.array(result)
        MPI.Request.Waitall(requests)
        return early


class ReusesTheSendBuffer(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        if self.size > 1:
            sent[...] = 0
        MPI.Request.Waitall(requests)
        return result


class WritesIntoTheReceiveBuffer(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        if self.size > 1:
            result[...] = 7
        MPI.Request.Waitall(requests)
        return result


class WaitsTwice(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        MPI.Request.Waitall(requests)
        for each in requests:
            each.Wait()
        return result


class WaitsForTheSendAlone(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        requests[1].Wait()
        return result


class WaitsForTheReceiveAlone(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        requests[0].Wait()
        return result


class WaitsForAny(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        MPI.Request.Waitany(requests)
        return result


class TestsOnce(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        requests[1].Wait()
        requests[0].Test()
        return result


class CancelsTheReceive(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        if self.is_faulty:
            requests[0].Cancel()
        MPI.Request.Waitall(requests)
        return result


class FreesTheReceive(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        if self.is_faulty:
            requests[0].Free()
            requests[1].Wait()
            return result
        MPI.Request.Waitall(requests)
        return result


class ReceivesTwiceIntoOneBuffer(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        if self.size > 1:
            requests.append(self.comm.Irecv(result, MPI.ANY_SOURCE, 1))
            requests.append(self.comm.Isend(np.zeros(sent.shape), self.right, 1))
        MPI.Request.Waitall(requests)
        return result


class PostsAReceiveTooMany(Pending):
    def completed(self, requests: list[Any], result: Any, sent: Any) -> Any:
        if self.is_faulty:
            requests.append(self.comm.Irecv(np.empty(1), 0, 5))
        MPI.Request.Waitall(requests)
        return result


def summed_too_early(op: Any, x: Any, right: Any) -> Any:
    total = np.zeros(1)
    request = op.comm.Iallreduce(np.ones(1), total, MPI.SUM)
    early = float(total[0])
    request.Wait()
    return right * early


def unwaited_barrier(op: Any) -> None:
    op.comm.Ibarrier()


def unsent(op: Any) -> None:
    op.comm.Issend(np.ones(1), 0, 9)


FAULTS = declared(
    globals(),
    (
        fault(
            "reads before it waits",
            (*WRONG, *MISUSED, *NOT_FINITE),
            base=ReadsBeforeItWaits,
            ranks=0,
        ),
        fault("writes into a send buffer that is in use", (*MISUSED, *WRONG), base=ReusesTheSendBuffer),
        # Under MPI it shows only where the message is already there, and no copy of the buffer says whether it is.
        fault(
            "writes into a receive buffer that is in use",
            (*MISUSED, *WRONG),
            ("coherent", *MISUSED, *WRONG),
            base=WritesIntoTheReceiveBuffer,
            ranks=0,
        ),
        fault("waits twice", COHERENT, base=WaitsTwice, ranks=0),
        fault("waits for the send alone", (*OPEN, *WRONG), base=WaitsForTheSendAlone, ranks=1),
        fault("waits for the receive alone", OPEN, (*OPEN, *COHERENT), base=WaitsForTheReceiveAlone, ranks=0),
        fault("waits for any of two", (*OPEN, *WRONG), base=WaitsForAny, ranks=0),
        fault(
            "tests once, and goes on", (*OPEN, *WRONG), (*OPEN, *WRONG, *COHERENT), base=TestsOnce, ranks=0
        ),
        fault(
            "cancels a receive",
            (*REQUEST_OR_MESSAGE, *DEADLOCK),
            (*REQUEST_OR_MESSAGE, *DEADLOCK, *MESSAGE, *WRONG),  # the next receive may get it
            base=CancelsTheReceive,
        ),
        fault(
            "frees a receive before it is complete",
            ("raised Exception", "raised ValueError", *OPEN, *WRONG, *NOT_FINITE),
            base=FreesTheReceive,
        ),
        fault("two receives into one buffer", (*MISUSED, *WRONG), base=ReceivesTwiceIntoOneBuffer, ranks=0),
        fault("posts a receive too many, and waits", DEADLOCK, base=PostsAReceiveTooMany),
        fault("collective request leaked", (*OPEN, *COHERENT), everywhere={"forward": unwaited_barrier}),
        fault(
            "collective request on one rank alone",
            (*OPEN, *DEADLOCK, "mismatched collective"),
            first={"forward": unwaited_barrier},
        ),
        fault(
            "reads a reduction before it waits",
            (*WRONG, *MISUSED, *NOT_FINITE),
            (
                *WRONG,
                *MISUSED,
                *NOT_FINITE,
                *COHERENT,
            ),  # where the library has the sum at once; a read leaves no trace
            result={"adjoint": summed_too_early},
            ranks=0,
        ),
        fault("synchronous send request leaked", REQUEST_OR_MESSAGE, first={"forward": unsent}),
        fault(
            "irecv of an object leaked", OPEN, first={"forward": lambda op: op.comm.irecv(source=0, tag=9)}
        ),
        fault(
            "wait for a request that nobody serves",
            DEADLOCK,
            first={"forward": lambda op: op.comm.irecv(source=0, tag=9).wait()},
        ),
    ),
)
