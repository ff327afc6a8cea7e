"""The differentiable collectives of torch: `torch.distributed.nn.functional` and the functional collectives.

Their adjoints are those for the Euclidean pairing of all memory, in which each copy of a result counts: where ranks go on differently
with their copies, the gradients of all are added. That is the convention of both modules, and what is declared here.

    adjointlab check examples/released/torch_collectives.py --check adjoint
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as nn_functional
from hypothesis import strategies as st

import adjointlab as al

warnings.filterwarnings("ignore", "torch.distributed", FutureWarning)  # torch 2.13 renames some of them

CONTIGUOUS = ("row-major",)
"""As process groups want the tensors of most collectives."""

ONE, EACH, ROOT, EACH_AT_ROOT = (
    "n rows",
    "n rows for each member",
    "n rows on the root",
    "all rows on the root",
)


def declare(
    name: str,
    domain: str,
    codomain: str,
    counts: tuple[int, ...] = (1, 2, 3, 4, 8),
    only: Any = (),
    orders: tuple[str, ...] = (),
    **drawn: Any,
) -> Callable[[Any], al.Subject]:
    """Check ``function(x, group, root, **drawn)``, called by the members of a group: of drawn ones, or `only` these."""

    def subject(function: Any) -> al.Subject:
        within = name.endswith("in_subgroups")  # else the default group

        def on_members(x: torch.Tensor, members: Any, root: int, **options: Any) -> Any:
            everyone = len(members) == dist.get_world_size()
            group = dist.group.WORLD if everyone else dist.new_group(list(members))
            return function(x, group, members[root], **options) if dist.get_rank() in members else x

        def cases(draw: Any, ranks: int) -> dict[str, Any]:
            some = st.sets(st.integers(0, ranks - 1), min_size=1)
            members = only or (tuple(sorted(draw(some))) if within else tuple(range(ranks)))
            n, columns, root = (
                draw(st.integers(1, 3)),
                draw(st.integers(1, 3)),
                draw(st.integers(0, len(members) - 1)),
            )
            space = lambda kind: space_of(kind, members, root, n, columns)  # noqa: E731
            options = {option: draw(strategy) for option, strategy in drawn.items()}
            return dict(domain=space(domain), codomain=space(codomain), members=members, root=root, **options)

        in_memory: Any = {"orders": orders} if orders else {}
        return al.subject.autograd(on_members, process_group=True, name=name, ranks=counts, **in_memory)(
            cases
        )

    return subject


def space_of(kind: str, members: Any, root: int, n: int, columns: int) -> al.Space:
    count = len(members)
    if kind in (ROOT, EACH_AT_ROOT):
        rows = n if kind == ROOT else n * count
        return al.Space(al.Layout((rows, columns), al.Partition((1, 1), members[root : root + 1])))
    rows = n if kind == ONE else n * count
    return al.Space(al.Layout((rows * count, columns), al.Partition((count, 1), members)))


def parts(x: torch.Tensor, group: Any) -> list[torch.Tensor]:
    return list(x.chunk(dist.get_world_size(group)))


def on_root(y: torch.Tensor, root: int) -> torch.Tensor:
    """Of a result that is defined on the root alone."""
    return y if dist.get_rank() == root else y[:0]


# torch.distributed.nn.functional


def _all_reduce(x, group, root):
    return nn_functional.all_reduce(x, group=group)


def _all_reduce_average(x, group, root):
    return nn_functional.all_reduce(x, dist.ReduceOp.AVG, group)


def _all_gather(x, group, root):
    return torch.cat(nn_functional.all_gather(x, group))


def _reduce_scatter(x, group, root):
    each = parts(x, group)
    return nn_functional.reduce_scatter(torch.empty_like(each[0]), each, group=group)


def _reduce_scatter_average(x, group, root):
    each = parts(x, group)
    return nn_functional.reduce_scatter(torch.empty_like(each[0]), each, dist.ReduceOp.AVG, group)


def _all_to_all(x, group, root):
    each = parts(x, group)
    return torch.cat(nn_functional.all_to_all([torch.empty_like(part) for part in each], each, group))


def _all_to_all_single(x, group, root):
    return nn_functional.all_to_all_single(torch.empty_like(x), x, group=group)


def _broadcast(x, group, root):
    return nn_functional.broadcast(x, root, group)


def _reduce(x, group, root):
    return on_root(nn_functional.reduce(x, root, group=group), root)


def _reduce_average(x, group, root):
    return on_root(nn_functional.reduce(x, root, dist.ReduceOp.AVG, group), root)


def _gather(x, group, root):
    return on_root(torch.cat(nn_functional.gather(x, root, group)), root)


def _scatter(x, group, root):
    each = parts(x, group)
    return nn_functional.scatter(each, root, group)


# torch.distributed._functional_collectives


def _functional_all_reduce(x, group, root):
    return functional.all_reduce(x, "sum", group)


def _functional_all_reduce_coalesced(x, group, root):
    return torch.cat(functional.all_reduce_coalesced([x[:1], x[1:]], "sum", group))


def _functional_all_gather(x, group, root, dim):
    y = functional.all_gather_tensor_autograd(x, dim, group)
    return y if dim == 0 else torch.cat(y.chunk(dist.get_world_size(group), dim))


def _functional_all_gather_coalesced(x, group, root):
    return functional.all_gather_into_tensor_coalesced([x], group)[0]


def _functional_reduce_scatter(x, group, root, dim):
    x = x if dim == 0 else torch.cat(parts(x, group), dim)
    return functional.reduce_scatter_tensor_autograd(x, "sum", dim, group)


def _functional_reduce_scatter_coalesced(x, group, root):
    return functional.reduce_scatter_tensor_coalesced([x], "sum", [0], group)[0]


def _functional_all_to_all(x, group, root):
    return functional.all_to_all_single_autograd(x, None, None, group)


def _functional_broadcast(x, group, root):
    return functional.broadcast(x, root, group)


# Those that fail, in all their cases: docs/findings.md
TWO: Any = dict(counts=(2,))
SECOND: Any = dict(counts=(2,), only=(1,))
IN_ORDER: Any = dict(orders=CONTIGUOUS)

_DIM: Any = dict(dim=st.integers(0, 1))

all_reduce = declare("nn.all_reduce", ONE, ONE)(_all_reduce)
all_reduce_average = declare("nn.all_reduce_average", ONE, ONE)(_all_reduce_average)
all_gather = declare("nn.all_gather", ONE, EACH, **IN_ORDER)(_all_gather)
all_gather_strided = declare("nn.all_gather.strided", ONE, EACH, (2,), orders=("column-major",))(_all_gather)
reduce_scatter = declare("nn.reduce_scatter", EACH, ONE)(_reduce_scatter)
reduce_scatter_average = declare("nn.reduce_scatter_average", EACH, ONE, **TWO)(_reduce_scatter_average)
all_to_all = declare("nn.all_to_all", EACH, EACH, **IN_ORDER)(_all_to_all)
all_to_all_single = declare("nn.all_to_all_single", EACH, EACH, **IN_ORDER)(_all_to_all_single)
broadcast = declare("nn.broadcast", ONE, ONE)(_broadcast)
reduce = declare("nn.reduce", ONE, ROOT, **IN_ORDER)(_reduce)
reduce_average = declare("nn.reduce_average", ONE, ROOT, **TWO)(_reduce_average)
gather = declare("nn.gather", ONE, EACH_AT_ROOT, **IN_ORDER)(_gather)
scatter = declare("nn.scatter", EACH, ONE, **IN_ORDER)(_scatter)

all_reduce_in_subgroups = declare("nn.all_reduce_in_subgroups", ONE, ONE)(_all_reduce)
all_gather_in_subgroups = declare("nn.all_gather_in_subgroups", ONE, EACH, **SECOND)(_all_gather)
reduce_scatter_in_subgroups = declare("nn.reduce_scatter_in_subgroups", EACH, ONE)(_reduce_scatter)
all_to_all_in_subgroups = declare("nn.all_to_all_in_subgroups", EACH, EACH, **SECOND)(_all_to_all)
all_to_all_single_in_subgroups = declare("nn.all_to_all_single_in_subgroups", EACH, EACH, **IN_ORDER)(
    _all_to_all_single
)
broadcast_in_subgroups = declare("nn.broadcast_in_subgroups", ONE, ONE, **SECOND)(_broadcast)
reduce_in_subgroups = declare("nn.reduce_in_subgroups", ONE, ROOT, **IN_ORDER)(_reduce)
gather_in_subgroups = declare("nn.gather_in_subgroups", ONE, EACH_AT_ROOT, **SECOND)(_gather)
scatter_in_subgroups = declare("nn.scatter_in_subgroups", EACH, ONE, **SECOND)(_scatter)

functional_all_reduce = declare("functional.all_reduce.in_subgroups", ONE, ONE)(_functional_all_reduce)
functional_all_reduce_coalesced = declare("functional.all_reduce_coalesced.in_subgroups", ONE, ONE)(
    _functional_all_reduce_coalesced
)
functional_all_gather = declare("functional.all_gather.in_subgroups", ONE, EACH, **_DIM)(
    _functional_all_gather
)
functional_all_gather_coalesced = declare("functional.all_gather_coalesced.in_subgroups", ONE, EACH)(
    _functional_all_gather_coalesced
)
functional_reduce_scatter = declare("functional.reduce_scatter.in_subgroups", EACH, ONE, **_DIM)(
    _functional_reduce_scatter
)
functional_reduce_scatter_coalesced = declare("functional.reduce_scatter_coalesced.in_subgroups", EACH, ONE)(
    _functional_reduce_scatter_coalesced
)
functional_all_to_all = declare("functional.all_to_all_single.in_subgroups", EACH, EACH)(
    _functional_all_to_all
)
functional_broadcast = declare("functional.broadcast", ONE, ONE, **TWO)(_functional_broadcast)
