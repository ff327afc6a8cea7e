"""Subjects of every way in, each with another kind of finding; on two ranks, where a right one would be easy."""

from __future__ import annotations

from typing import Any

import numpy as np
from siblings import STEP, adjoint, forward, shifted

import adjointlab as al
from adjointlab.MPI import ANY_SOURCE, SUM


class Constants(al.LinearOperator):
    """Its adjoint lacks a sum; it uses the constants of the lab."""

    gain = fan_in = 2

    def __init__(self, comm: Any, layout: al.Layout, parameters: Any = None) -> None:
        self.comm, self.domain, self.codomain = comm, al.Space(layout), al.Space(layout)

    def forward(self, x: Any) -> Any:
        result = np.empty_like(x)
        self.comm.Allreduce([np.ascontiguousarray(x), al.MPI.DOUBLE], result, SUM)
        return result

    def adjoint(self, y: Any) -> Any:
        return np.array(y)


class Deadlock(Constants):
    """Waits for a message that nobody sends."""

    def forward(self, x: Any) -> Any:
        return self.comm.recv(source=ANY_SOURCE)


class Leak(Constants):
    """Makes a communicator in each call, and a message that nobody receives."""

    def forward(self, x: Any) -> Any:
        self.comm.Dup()
        return np.array(x)


class Raises(Constants):
    """Has no time, on one rank."""

    def forward(self, x: Any) -> Any:
        if self.comm.Get_rank() == STEP:
            raise RuntimeError('"""\nimport os; os._exit(77)  # \\N{BEL}')
        return np.array(x)


class FirstCome(Constants):
    """Rank 0 tells all ranks the rank of the message that came first."""

    def forward(self, x: Any) -> Any:
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        first = 0
        if rank:
            self.comm.send(rank, 0)
        else:
            first = next(iter([self.comm.recv(source=ANY_SOURCE) for _ in range(1, size)]))
        return self.comm.bcast(first) * np.array(x)

    def adjoint(self, y: Any) -> Any:
        return self.forward(y)


def whole(draw: Any, ranks: int) -> dict[str, Any]:
    layout = al.Layout((2 * ranks,), al.Partition((ranks,)))
    return {"layout": layout, "parameters": {"no identifier": float("nan"), "key": (1j, -0.0, "\ud800")}}


def pairs(draw: Any, ranks: int) -> dict[str, Any]:
    space = al.Space(al.Layout((2 * ranks,), al.Partition((ranks,))))
    return {"domain": space, "codomain": space, "factor": {"times 2": 2}}


constants = al.subject.operator(Constants, ranks=[2])(whole)
deadlock = al.subject.operator(Deadlock, ranks=[2])(whole)
leak = al.subject.operator(Leak, ranks=[2])(whole)
raises = al.subject.operator(Raises, ranks=[2])(whole)
first_come = al.subject.operator(FirstCome, ranks=[3])(whole)
sequential = al.subject.operator(
    type("Unlike", (Constants,), {"adjoint": Constants.forward, "__module__": __name__}),
    ranks=[2],
    reference=lambda x, **arguments: 3 * x,
)(whole)
pair = al.subject.pair(forward, adjoint, ranks=[2], name="""Pair\x1b[31m'''\n"../../x""")(pairs)
pair_of_lambdas = al.subject.pair(
    lambda comm, x, factor: forward(comm, x, factor), lambda comm, y, factor: y, ranks=[2], name="Lambdas"
)(pairs)


def shift_of_torch(comm: Any, x: Any, factor: Any) -> Any:
    import torch

    # The graph ends at NumPy: the gradient is that of the second term alone.
    return torch.from_numpy(shifted(comm, x.detach().numpy(), 1)) + x * factor["times 2"]


autograd = al.subject.autograd(shift_of_torch, ranks=[2])(pairs)


def linear(comm: Any, scale: float) -> Any:
    import torch

    class Scale(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return scale * x * (2 if comm.Get_rank() else 1)

    return Scale()


def twin(scale: float) -> Any:
    import torch

    return torch.nn.Linear(1, 1) if scale == 0 else _Twin()


class _Twin:
    def __new__(cls) -> Any:
        import torch

        return torch.nn.Identity()


@al.subject.layer(linear, twin, ranks=[2])
def layer(draw: Any, ranks: int) -> dict[str, Any]:
    space = al.Space(al.Layout((2 * ranks,), al.Partition((ranks,))))
    return {"domain": space, "codomain": space, "scale": 1.0}
