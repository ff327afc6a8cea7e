"""Collectives of a process group, under the names by which torch calls them.

torch 2.13 has new names for some; for older versions these have their old names too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import index
from typing import Any, SupportsIndex, cast

import numpy as np
import torch
import torch.distributed as dist

from adjointlab import MPI
from adjointlab.quantities import counted
from adjointlab.torch_distributed.contiguity import (
    check_contiguous,
    check_dense,
    check_for_nccl,
    check_in_order_of,
    check_laid_out_as,
    layout_of,
)
from adjointlab.torch_distributed.memory import (
    Staged,
    blocks,
    elements_of,
    fill_undefined,
    gathered,
    moved,
    received,
    scattered,
    share_memory,
)
from adjointlab.torch_distributed.operations import Operations, Tensors
from adjointlab.torch_distributed.reductions import Reduction, reduction_of
from adjointlab.torch_distributed.sparse_sums import dense_message, write_sum
from adjointlab.torch_distributed.work import Handle, JoinedWork, RequestWork
from adjointlab.torch_distributed.wrapped_tensors import of_plain_tensors
from adjointlab.worlds.call_labels import CallLabel

__all__ = ["Collectives", "is_own_part"]


@of_plain_tensors
class Collectives(Operations):
    """The collectives, each a non-blocking collective of the communicator."""

    # One to all, all to one

    # torch's methods take an options object; for a single tensor also root and operation as separate arguments, and then a timeout.

    def broadcast(self, tensors: Tensors, opts: Any = 0, timeout: Any = None, **given: Any) -> dist.Work:
        tensor, root = _only("broadcast", tensors), _root(opts, given)
        check_dense("broadcast", tensor)
        given = {
            "src": self._global_rank("broadcast", "src", root),
            "count": tensor.numel(),
            **dict(layout_of(tensor)),
        }
        label = self._label("broadcast", tensor, **given)
        staged = Staged(moved(tensor)) if self._rank == root else received(tensor)
        return self._started(label, self._comm.Ibcast, staged.array, root, into=(staged,), tensors=[tensor])

    def reduce(
        self, tensors: Tensors, opts: Any = 0, op: Any = dist.ReduceOp.SUM, timeout: Any = None, **given: Any
    ) -> dist.Work:
        tensor, root = _only("reduce", tensors), _root(opts, given)
        reduction = self._reduction(getattr(opts, "reduceOp", op), tensor)
        label = self._reducing_in_place(
            "reduce", reduction, tensor, dst=self._global_rank("reduce", "dst", root)
        )
        sent: object = MPI.IN_PLACE
        room: object = None
        if self._rank == root:
            staged = reduction.in_place(tensor)
            room = staged.array
        else:
            # gloo leaves partial sums there, which must not be used.
            sent = operand = reduction.operand(tensor)
            staged = Staged(operand, partial(fill_undefined, tensor))
        return self._started(
            label, self._comm.Ireduce, sent, room, reduction.op, root, into=(staged,), tensors=[tensor]
        )

    def gather(
        self, outputs: list[Tensors], inputs: Tensors, opts: Any = 0, timeout: Any = None, **given: Any
    ) -> dist.Work:
        tensor, root = _only("gather", inputs), _root(opts, given)
        label = self._label("gather", tensor, dst=self._global_rank("gather", "dst", root))
        if self._rank != root:
            return self._started(label, self._comm.Igatherv, moved(tensor), None, root)
        (parts,) = _lists(outputs)
        _check_shapes("gather", parts, tensor)
        into, room = self._gathered(parts)
        return self._started(
            label, self._comm.Igatherv, moved(tensor), room, root, into=(into,), tensors=parts
        )

    def scatter(
        self, outputs: Tensors, inputs: list[Tensors], opts: Any = 0, timeout: Any = None, **given: Any
    ) -> dist.Work:
        tensor, root = _only("scatter", outputs), _root(opts, given)
        parts = _lists(inputs)[0] if self._rank == root else []
        _check_shapes("scatter", parts, tensor)
        check_laid_out_as("scatter", "scatter_list", parts, tensor)
        into = received(tensor)
        label = self._label(
            "scatter", tensor, src=self._global_rank("scatter", "src", root), **dict(layout_of(tensor))
        )
        sent: object = None
        if self._rank == root:
            self._check_parts("scatter", parts)
            sent = blocks(scattered(parts), _sizes(parts))
        return self._started(
            label, self._comm.Iscatterv, sent, into.array, root, into=(into,), tensors=[tensor]
        )

    # All to all

    def allreduce(self, tensors: Tensors, opts: Any = None, **given: Any) -> dist.Work:
        return self._all_reduce(_only("all_reduce", tensors), opts, given)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None, **given: Any) -> dist.Work:
        return _joined([self._all_reduce(tensor, opts, given) for tensor in tensors])

    def _all_reduce(self, tensor: torch.Tensor, opts: Any, given: Mapping[str, Any]) -> RequestWork:
        op = given.get("op", getattr(opts, "reduceOp", opts) or dist.ReduceOp.SUM)
        reduction = self._reduction(op, tensor)
        if tensor.is_sparse:
            label, into = self._sparse_sum(tensor, reduction)
        else:
            label = self._reducing_in_place("all_reduce", reduction, tensor)
            into = (reduction.in_place(tensor),)
        array = into[0].array
        return self._started(
            label, self._comm.Iallreduce, MPI.IN_PLACE, array, reduction.op, into=into, tensors=[tensor]
        )

    def _sparse_sum(self, tensor: torch.Tensor, reduction: Reduction) -> tuple[CallLabel, tuple[Staged, ...]]:
        """The label of a sum of sparse tensors, and its dense message, which is written into `tensor` in the end."""
        if reduction.name != "SUM":
            raise ValueError(
                f"all_reduce: sparse tensors are added up alone, by ReduceOp.SUM, not {reduction.name}"
            )
        label, message = self._reducing("all_reduce", reduction, tensor), dense_message(tensor)
        staged = reduction.in_place(message)
        return label, (staged, Staged(staged.array, lambda: write_sum(tensor, message)))

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        tensor = _only("all_gather", inputs)
        (parts,) = _lists(outputs)
        return self._all_gather(parts, tensor)

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        # `outputs` has a list of all tensors for each rank, not a list of all ranks for each tensor.
        lists = [list(parts) for parts in zip(*outputs, strict=True)]
        return _joined([self._all_gather(*each) for each in zip(lists, inputs, strict=True)])

    def _all_gather(self, parts: Tensors, tensor: torch.Tensor) -> RequestWork:
        _check_shapes("all_gather", parts, tensor)
        label = self._label("all_gather", tensor)
        into, room = self._gathered(parts)
        return self._started(label, self._comm.Iallgatherv, moved(tensor), room, into=(into,), tensors=parts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> RequestWork:
        if output.numel() != tensor.numel() * self._size or output.dtype != tensor.dtype:
            raise ValueError(
                f"all_gather_into_tensor: {self._size} ranks gather {tensor.numel()} elements of {tensor.dtype} each, and "
                f"the output has {output.numel()} of {output.dtype}"
            )
        check_for_nccl("all_gather_into_tensor", "output", output)
        label, into = self._label("all_gather_into_tensor", tensor, count=tensor.numel()), received(output)
        room = blocks(into.array, [tensor.numel()] * self._size)
        # A rank's input may be its own part of the output, as in FSDP. For MPI this is `IN_PLACE`.
        is_in_place = is_own_part(tensor, output, self._rank)
        if not is_in_place and share_memory(tensor, output):
            raise ValueError(
                "all_gather_into_tensor: the input lies in the output, where another rank's part would overwrite it: it may be "
                f"this rank's own part, number {self._rank}, or lie elsewhere"
            )
        sent = MPI.IN_PLACE if is_in_place else moved(tensor)
        return self._started(label, self._comm.Iallgatherv, sent, room, into=(into,), tensors=[output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        return _joined([self.all_gather_single(*each) for each in zip(outputs, inputs, strict=True)])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(
        self, outputs: Tensors, inputs: list[Tensors], opts: Any = dist.ReduceOp.SUM, **given: Any
    ) -> dist.Work:
        output, opts = _only("reduce_scatter", outputs), given.get("op", opts)
        (parts,) = _lists(inputs)
        _check_shapes("reduce_scatter", parts[self._rank : self._rank + 1], output, self._rank)
        check_in_order_of("reduce_scatter", "input_list", parts, output)
        whole = torch.cat([elements_of(part) for part in parts])
        given = dict(layout_of(output))
        return self._reduce_scatter("reduce_scatter", output, whole, opts, _sizes(parts), **given)

    def reduce_scatter_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = dist.ReduceOp.SUM
    ) -> RequestWork:
        counts = [output.numel()] * self._size
        return self._reduce_scatter("reduce_scatter_tensor", output, tensor, opts, counts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = dist.ReduceOp.SUM
    ) -> dist.Work:
        return _joined(
            [self.reduce_scatter_single(*each, opts) for each in zip(outputs, inputs, strict=True)]
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter(
        self,
        name: str,
        output: torch.Tensor,
        tensor: torch.Tensor,
        opts: Any,
        counts: list[int],
        **given: object,
    ) -> RequestWork:
        if (
            counts[self._rank] != output.numel()
            or sum(counts) != tensor.numel()
            or output.dtype != tensor.dtype
        ):
            raise ValueError(
                f"{name}: the parts have {counts} elements, {tensor.numel()} of {tensor.dtype} in all, and the output of rank "
                f"{self._rank} of the group has {output.numel()} of {output.dtype}"
            )
        check_for_nccl(name, "output", output)
        reduction = self._reduction(getattr(opts, "reduceOp", opts), tensor)
        label = self._reducing(name, reduction, tensor, **given)
        sent, into = reduction.operand(tensor), reduction.result(output)
        if np.may_share_memory(sent, into.array):
            sent = sent.copy()  # the output may be this rank's part of the input
        return self._started(
            label,
            self._comm.Ireduce_scatter,
            sent,
            into.array,
            counts,
            reduction.op,
            into=(into,),
            tensors=[output],
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        self._check_parts("all_to_all", inputs)
        for number, part in enumerate(inputs):
            _check_shapes("all_to_all", outputs[number : number + 1], part, number)
        label = self._label("all_to_all", (inputs or outputs)[0])
        into, room = self._gathered(outputs)
        sent = blocks(scattered(inputs), _sizes(inputs))
        return self._started(label, self._comm.Ialltoallv, sent, room, into=(into,), tensors=outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> dist.Work:
        check_contiguous("all_to_all_single", "input", [tensor], is_refused=True)
        check_contiguous("all_to_all_single", "output", [output])
        if share_memory(tensor, output):
            raise ValueError(
                "all_to_all_single: the input and the output share memory, and what is sent would be overwritten"
            )
        label, into = self._label("all_to_all_single", tensor), received(output)
        sent = blocks(moved(tensor), self._split("input", tensor, input_split_sizes))
        room = blocks(into.array, self._split("output", output, output_split_sizes))
        return self._started(label, self._comm.Ialltoallv, sent, room, into=(into,), tensors=[output])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, **_: Any) -> dist.Work:
        return self._started(CallLabel("barrier", self._named), self._comm.Ibarrier)

    def monitored_barrier(self, timeout: object = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; the world names those that never come."""
        self._started(CallLabel("monitored_barrier", self._named), self._comm.Ibarrier).wait()

    # Implementation

    def _reducing(self, name: str, reduction: Reduction, tensor: torch.Tensor, **given: object) -> CallLabel:
        return self._label(name, tensor, op=reduction.name, count=tensor.numel(), **given)

    def _reducing_in_place(
        self, name: str, reduction: Reduction, tensor: torch.Tensor, **given: object
    ) -> CallLabel:
        """The label of a reduction that real backends compute in storage order."""
        check_dense(name, tensor)
        return self._reducing(name, reduction, tensor, **given, **dict(layout_of(tensor)))

    def _reduction(self, op: Any, tensor: torch.Tensor) -> Reduction:
        return reduction_of(op, tensor.dtype, self._size)

    def _gathered(self, parts: Tensors) -> tuple[Staged, object]:
        """Room for a part from each rank, as a staged array and as a buffer for MPI."""
        self._check_parts("the output list", parts)
        into = gathered(parts)
        return into, blocks(into.array, _sizes(parts))

    def _check_parts(self, name: str, parts: Tensors) -> None:
        if len(parts) != self._size:
            raise ValueError(f"{name} has {len(parts)} tensors, and the group {self._size} ranks")

    def _split(self, what: str, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
        """The number of elements for each rank in `tensor`, whose rows are split into `sizes`; evenly if these are empty."""
        rows = tensor.shape[0] if tensor.dim() else 1
        sizes = _integers(sizes, f"all_to_all_single: the split sizes of the {what}")
        if not sizes:
            if rows % self._size:
                raise ValueError(
                    f"all_to_all_single: the {what} has {counted(rows, 'row')}, which {self._size} ranks cannot share evenly"
                )
            sizes = [rows // self._size] * self._size
        if sum(sizes) != rows or len(sizes) != self._size:
            raise ValueError(
                f"all_to_all_single: the {what} has {counted(rows, 'row')} for {counted(self._size, 'rank')}, and its split sizes "
                f"are {list(sizes)}"
            )
        row = tensor.numel() // rows if rows else 0
        return [size * row for size in sizes]


def _only(call: str, tensors: Tensors | torch.Tensor) -> torch.Tensor:
    """The one tensor that a rank passes. Raises `ValueError` for several: nccl refuses them, and gloo may add them up."""
    given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if len(given) != 1:
        raise ValueError(f"{call}: a rank passes {len(given)} tensors in one call, and should pass one")
    return given[0]


def _check_shapes(call: str, parts: Tensors, tensor: torch.Tensor, first: int = 0) -> None:
    """Raise `ValueError` for a part with as many elements as `tensor` in another shape; `first` is the number of the first part.

    gloo refuses it, nccl mostly does not. A part with another number of elements is legal: parts may be uneven.
    """
    for number, part in enumerate(parts, first):
        if tensor.is_cpu and part.numel() == tensor.numel() and part.shape != tensor.shape:
            raise ValueError(
                f"{call}: invalid tensor size at index {number} (expected {tuple(tensor.shape)}, got {tuple(part.shape)})"
            )


def _lists(tensors: list[Tensors] | Tensors) -> list[Tensors]:
    """Lists of tensors; a plain list of tensors counts as a list of one list."""
    if any(isinstance(each, torch.Tensor) for each in tensors):
        return [cast("Tensors", list(tensors))]
    return [list(each) for each in tensors]


def _root(opts: Any, given: Mapping[str, Any]) -> int:
    """The root of a call, which is in its options or a separate argument."""
    return index(given.get("root", getattr(opts, "rootRank", opts)))


def _integers(given: Iterable[SupportsIndex] | torch.Tensor, what: str) -> list[int]:
    """The integers of a list or another sequence; not of a tensor, which torch's own backends refuse."""
    with suppress(TypeError):
        if not isinstance(given, torch.Tensor):
            return [index(each) for each in given]
    raise TypeError(f"{what} are {given!r}, and should be a list of integers")


def _sizes(tensors: Tensors) -> list[int]:
    return [tensor.numel() for tensor in tensors]


def is_own_part(tensor: torch.Tensor, output: torch.Tensor, rank: int) -> bool:
    """Return True if `tensor` is `rank`'s part of a gathered `output`, in the same memory order."""
    size = tensor.numel()
    part = elements_of(output)[rank * size : (rank + 1) * size]
    return size > 0 and tensor.is_contiguous() and part.data_ptr() == tensor.data_ptr()


def _joined(works: Sequence[RequestWork]) -> Handle:
    return works[0] if len(works) == 1 else JoinedWork(works)
