"""Messages of a process group, under the names by which torch calls them."""

from __future__ import annotations

import torch.distributed as dist

from adjointlab import MPI
from adjointlab.torch_distributed.contiguity import check_contiguous
from adjointlab.torch_distributed.memory import Staged, moved, received
from adjointlab.torch_distributed.operations import Operations, Tensors
from adjointlab.torch_distributed.work import RequestWork
from adjointlab.torch_distributed.wrapped_tensors import of_plain_tensors
from adjointlab.worlds.call_labels import CallLabel
from adjointlab.worlds.local_calls import LARGEST_TAG

__all__ = ["Messages"]


@of_plain_tensors
class Messages(Operations):
    """The messages, each a non-blocking message of the communicator."""

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        check_contiguous("send", "tensor", [tensor], is_refused=True)
        label = self._message("send", dst=self._global_rank("send", "dst", dst), tag=tag)
        return self._started(label, self._comm.Isend, moved(tensor), dst, tag, tensors=[tensor])

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        label = self._message("recv", src=self._global_rank("recv", "src", src), tag=tag)
        return self._received(tensors, src, label, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        return self._received(tensors, MPI.ANY_SOURCE, self._message("recv", src="any", tag=tag), tag)

    def _received(self, tensors: Tensors, source: int, label: CallLabel, tag: int) -> RequestWork:
        (tensor,) = tensors
        check_contiguous("recv", "tensor", [tensor], is_refused=True)
        into, status = received(tensor), MPI.Status()

        def check_size() -> None:
            if status.count != into.array.nbytes:
                raise ValueError(
                    f"{label} has received {status.count // into.array.itemsize} elements, and its tensor has {tensor.numel()}"
                )

        return self._started(
            label,
            self._comm.Irecv,
            into.array,
            source,
            tag,
            into=(Staged(into.array, check_size), into),
            tensors=[tensor],
            status=status,
        )

    def _message(self, name: str, *, tag: int, **given: object) -> CallLabel:
        if not 0 <= tag <= LARGEST_TAG:
            raise ValueError(
                f"{name}: tag={tag}: adjointlab takes tags from 0 to {LARGEST_TAG}, as MPICH does (gloo takes larger ones too)"
            )
        return CallLabel(name, (*given.items(), ("tag", tag), *self._named))
