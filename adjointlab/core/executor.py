"""Execution of a program over a communicator: each rank executes its part.

An Add between two ranks is a message from one and a receive-and-add on the other; nothing else communicates.

No schedule deadlocks: all ranks go through the steps in the program's order, sends do not block, and a receive waits for a send
at the same step. The waiting receive at the lowest step can complete, for its sender has passed that step or is on its way there.
"""

from __future__ import annotations

from collections.abc import Mapping

from adjointlab.core import arrays, transport
from adjointlab.core.arguments import check_arguments
from adjointlab.core.communicators import size_of
from adjointlab.core.operator import LinearOperator
from adjointlab.core.program import (
    Add,
    Allocate,
    Buffer,
    Clear,
    Deallocate,
    Generator,
    Program,
    Region,
    buffers,
)
from adjointlab.core.space import Space, Tensor
from adjointlab.typing import Array, Communicator, Request

__all__ = ["LocalProgram", "ProgramOperator", "execute"]

_TAGS = 32768
"""Number of tags in use: MPI guarantees no more [MPI41, section 3.2.3]. Messages of one tag between two ranks keep their order."""


class LocalProgram:
    """One rank's part of a program: its buffers at the start, by name, and the steps that touch its memory."""

    def __init__(self, program: Program, rank: int) -> None:
        self.rank = rank
        self.inputs = {buffer.name: buffer for buffer in program.inputs if buffer.rank == rank}
        # With their positions in the whole program: sender and receiver must agree on the tag of a message.
        self.steps = [(position, step) for position, step in enumerate(program.steps) if rank in _ranks(step)]

    def execute(
        self,
        comm: Communicator,
        memory: Mapping[str, Array],
        like: Array | str = "numpy",
        batch: tuple[int, ...] = (),
    ) -> dict[str, Array]:
        """Run this rank's part from its buffers `memory` by name, which are not changed. Collective over the program's ranks.

        With a `batch` (b,) each buffer has a trailing dimension b, for a batch of memories. New buffers are made in the library
        (and on the device) of `like`, an array or a library's name. Returns this rank's buffers in scope at the end, by name.
        """
        scope = {name: arrays.copy(memory[name]) for name in self.inputs}
        requests: list[Request] = []
        # MPI reads a message until the send completes, so it must stay alive until then.
        in_flight: list[Array] = []
        for position, step in self.steps:
            match step:
                case Allocate(buffer):
                    scope[buffer.name] = arrays.zeros((*buffer.shape, *batch), buffer.dtype, like)
                case Deallocate(buffer):
                    del scope[buffer.name]
                case Clear(region):
                    arrays.clear(_at(scope, region))
                case Add(source, target) if source.rank == target.rank:
                    arrays.add_into(_at(scope, target), _at(scope, source))
                case Add(source, target) if source.rank == self.rank:
                    # A copy, since later steps may write to the region while the message is still on its way.
                    message = arrays.message(arrays.copy(_at(scope, source)))
                    in_flight.append(message)
                    requests.append(
                        transport.over(comm, message).Isend(message, dest=target.rank, tag=position % _TAGS)
                    )
                case Add(source, target):
                    summand = _at(scope, target)
                    received = arrays.empty((*target.shape, *batch), arrays.dtype_name(summand), summand)
                    over = transport.over(comm, received)
                    over.Recv(arrays.message(received), source=source.rank, tag=position % _TAGS)
                    arrays.add_into(summand, received)
        if requests:
            type(requests[0]).Waitall(requests)
        return scope


def execute(
    program: Program, comm: Communicator, memory: Mapping[str, Array], like: Array | str = "numpy"
) -> dict[str, Array]:
    """Run `program` once. Collective over its ranks; see :meth:`LocalProgram.execute`."""
    return LocalProgram(program, comm.Get_rank()).execute(comm, memory, like)


class ProgramOperator(LinearOperator):
    """The operator that a program defines, executed over the communicator.

    The buffers of `domain` and `codomain` (:func:`adjointlab.core.program.buffers`) carry the arguments and results. Further inputs
    of a program start at zero and further outputs are dropped, so that a mutated program that forgets a deallocation is still
    an operator. `adjoint` defaults to the mechanical adjoint of `forward`.

    Raises `ValueError` for a rank beyond the communicator's, and for a buffer of a space that a program does not start from or
    end with.
    """

    symbol = "F"
    batched = True

    def __init__(
        self,
        comm: Communicator,
        domain: Space,
        codomain: Space,
        forward: Program,
        adjoint: Program | None = None,
    ) -> None:
        size = size_of(comm)
        backward = forward.adjoint() if adjoint is None else adjoint
        for name, program, source, target in (
            ("forward", forward, domain, codomain),
            ("adjoint", backward, codomain, domain),
        ):
            _check_ranks(name, program, size)
            _check_buffers(name, "starts from", program.inputs, source)
            _check_buffers(name, "ends with", program.outputs, target)
        self.comm, self.domain, self.codomain = comm, domain, codomain
        # The gain is derived from the program, in both directions, so that the exact test applies to any program.
        self.gain = forward.gain() if adjoint is None else max(forward.gain(), backward.gain())
        self.fan_in = self.gain  # no coefficient is below 1, so no sum has more terms than its row sum
        self._programs = (forward, adjoint)
        self._forward = LocalProgram(forward, comm.Get_rank())
        self._adjoint = LocalProgram(backward, comm.Get_rank())

    def specification(self) -> Program | tuple[Program, Program]:
        """Return the program, or both programs where the adjoint was given."""
        forward, adjoint = self._programs
        return forward if adjoint is None else (forward, adjoint)

    def forward(self, *x: Array) -> Array | tuple[Array, ...]:
        """Return this rank's outputs of the forward program."""
        return self._apply(self._forward, self.domain, self.codomain, x)

    def adjoint(self, *y: Array) -> Array | tuple[Array, ...]:
        """Return this rank's outputs of the adjoint program."""
        return self._apply(self._adjoint, self.codomain.dual, self.domain.dual, y)

    def _apply(
        self, program: LocalProgram, source: Space, target: Space, local: tuple[Array, ...]
    ) -> Array | tuple[Array, ...]:
        rank = program.rank
        batch = check_arguments(source.tensors, local, rank)
        like = local[0]
        memory = {
            name: arrays.zeros((*buffer.shape, *batch), buffer.dtype, like)
            for name, buffer in program.inputs.items()
        }
        for tensor, array in zip(source.tensors, local, strict=True):
            if tensor.layout.partition.is_active(rank):
                memory[tensor.name] = array
        scope = program.execute(self.comm, memory, like, batch)
        results = tuple(_result(tensor, scope, rank, like) for tensor in target.tensors)
        return results[0] if len(results) == 1 else results


def _result(tensor: Tensor, scope: Mapping[str, Array], rank: int, like: Array) -> Array:
    if tensor.layout.partition.is_active(rank):
        return scope[tensor.name]
    return arrays.empty(tensor.layout.local_shape(rank), tensor.dtype, like)


def _at(scope: Mapping[str, Array], region: Region) -> Array:
    """Return the region's memory, as a view."""
    view: Array = scope[region.buffer][region.index]
    return view


def _ranks(step: Generator) -> tuple[int, ...]:
    match step:
        case Allocate(buffer) | Deallocate(buffer):
            return (buffer.rank,)
        case Clear(region):
            return (region.rank,)
        case Add(source, target):
            return (source.rank, target.rank)


def _check_ranks(name: str, program: Program, size: int) -> None:
    ranks = {buffer.rank for buffer in program.inputs} | {
        rank for step in program.steps for rank in _ranks(step)
    }
    if beyond := sorted(rank for rank in ranks if rank >= size):
        raise ValueError(
            f"{name}: the program uses ranks {beyond}, but the communicator has ranks 0 to {size - 1}"
        )


def _check_buffers(name: str, verb: str, held: tuple[Buffer, ...], space: Space) -> None:
    known = set(held)
    for buffer in buffers(space):
        if buffer not in known:
            raise ValueError(
                f"{name}: the space needs the buffer {buffer} of shape {buffer.shape} and type {buffer.dtype}, "
                f"but the program {verb} {', '.join(f'{each} {each.shape}' for each in held) or 'none'}"
            )
