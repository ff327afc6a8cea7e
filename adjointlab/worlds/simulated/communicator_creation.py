"""Collectives that make communicators. The rank that arrives last makes the state that all members share, and each rank's
result is its own view of that. Functions with mpi4py's names take the communicator, then mpi4py's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import index
from typing import TYPE_CHECKING

from adjointlab import MPI
from adjointlab.worlds.constants import c_int, is_undefined
from adjointlab.worlds.graph_arguments import Weights, edges, grid, neighbours, unmatched_edge
from adjointlab.worlds.simulated.collectives import Disagreement
from adjointlab.worlds.simulated.groups import SimulatedGroup, group_of
from adjointlab.worlds.simulated.object_collectives import ObjectContribution
from adjointlab.worlds.simulated.topologies import Graph, Grid, Topology

if TYPE_CHECKING:
    from adjointlab.worlds.simulated.communicator import Communicator

__all__ = ["COMMUNICATOR_MAKERS", "GRID_MAKERS", "check_group", "contribution_to"]


def contribution_to(
    comm: Communicator, members: Sequence[int], topology: Topology | None = None, kind: str = "Dup"
) -> ObjectContribution:
    """Contribution to a communicator of `members`, ranks of the run; all callers must give the same ones.

    Callers that are not members get `COMM_NULL`.
    """

    def compute(contributions: Sequence[ObjectContribution]) -> None:
        _give(comm, members, topology, contributions)

    return ObjectContribution(kind, compute, result=comm.view, shape=(tuple(members), topology))


def _give(
    comm: Communicator,
    members: Sequence[int],
    topology: Topology | None,
    contributions: Sequence[ObjectContribution],
) -> None:
    """Set one new communicator of `members` as the result of all callers."""
    made = comm.new_shared(members, topology)
    for each in contributions:
        each.given = made


def _by_color(
    comm: Communicator,
    kind: str,
    color: Hashable | None,
    key: int,
    grid: Grid | None = None,
    alike: object = None,
) -> ObjectContribution:
    """Contribution to one communicator for each color, its ranks ordered by (key, rank); none for the color None.

    `alike` must be equal on all ranks.
    """

    def compute(contributions: Sequence[ObjectContribution]) -> None:
        members = comm.Get_group().members
        ranks_of: dict[Hashable, list[tuple[int, int]]] = {}
        for rank, each in enumerate(contributions):
            its_color, its_key = each.payload
            if its_color is not None:
                ranks_of.setdefault(its_color, []).append((its_key, rank))
        for keyed in ranks_of.values():
            ranks = [rank for _key, rank in sorted(keyed)]
            made = comm.new_shared([members[rank] for rank in ranks], grid)
            for rank in ranks:
                contributions[rank].given = made

    return ObjectContribution(kind, compute, (color, key), result=comm.view, shape=alike)


def Dup(comm: Communicator, info: object = None) -> ObjectContribution:
    return contribution_to(comm, comm.Get_group().members, comm.carried_topology)


def Clone(comm: Communicator) -> ObjectContribution:
    return Dup(comm)


def Dup_with_info(comm: Communicator, info: object) -> ObjectContribution:
    return Dup(comm)


def Split(comm: Communicator, color: int = 0, key: int = 0) -> ObjectContribution:
    color, key = c_int(color), c_int(key)
    if is_undefined(color):
        return _by_color(comm, "Split", None, key)
    if color < 0:
        raise MPI.Exception(f"Invalid color {color}: must be nonnegative or UNDEFINED", MPI.ERR_ARG)
    return _by_color(comm, "Split", color, key)


def Split_type(comm: Communicator, split_type: int, key: int = 0, info: object = None) -> ObjectContribution:
    """For every type, split by node: ranks that share memory share all other resources."""
    return _by_color(comm, "Split_type", None if is_undefined(split_type) else comm.node("Split_type"), key)


def Create(comm: Communicator, group: object) -> ObjectContribution:
    """Ranks may give different groups, as long as all members of a group give the same one (MPI 4.1, section 7.4.2)."""
    group = group_of(group, comm.rank)
    check_group(comm, group)

    def compute(contributions: Sequence[ObjectContribution]) -> None:
        rank_of = {member: rank for rank, member in enumerate(comm.Get_group().members)}
        for rank, each in enumerate(contributions):
            for member in each.payload:
                if contributions[rank_of[member]].payload != each.payload:
                    reason = f"rank {member}, a member of the group, gives another one"
                    raise Disagreement(rank, rank_of[member], reason)
        groups = dict.fromkeys(each.payload for each in contributions if each.payload)
        made = {members: comm.new_shared(members) for members in groups}
        for each in contributions:
            each.given = made.get(each.payload)

    contribution = ObjectContribution("Create", compute, group.members, result=comm.view)
    contribution.group = list(group.members)
    return contribution


def check_group(comm: Communicator, group: SimulatedGroup) -> None:
    """Raise `adjointlab.MPI.Exception` unless all members of `group` are in the communicator."""
    if not comm.Get_group().includes(group):
        raise MPI.Exception(
            f"Invalid group {group}: not all its members are in the communicator", MPI.ERR_GROUP
        )


def Create_cart(
    comm: Communicator,
    dims: Sequence[int],
    periods: Sequence[bool] | bool | None = None,
    reorder: bool = False,
) -> ObjectContribution:
    extents, periodic = grid(dims, periods)
    made = Grid(tuple(extents), tuple(periodic))
    if made.size > comm.size or any(extent < 0 for extent in made.dims):
        raise MPI.Exception(
            f"Invalid argument: the communicator has {comm.size} ranks, and the grid {made.dims} {made.size}",
            MPI.ERR_ARG,
        )
    members = comm.members_in_order("Create_cart", reorder=bool(reorder))
    return contribution_to(comm, members[: made.size], made, kind="Create_cart")


def Create_dist_graph_adjacent(
    comm: Communicator,
    sources: Sequence[int] | None,
    destinations: Sequence[int] | None,
    sourceweights: Weights = None,
    destweights: Weights = None,
    info: object = None,
    reorder: bool = False,
) -> ObjectContribution:
    own = neighbours(comm.size, sources, destinations, sourceweights, destweights)
    members = comm.members_in_order("Create_dist_graph_adjacent", reorder=bool(reorder))

    def compute(contributions: Sequence[ObjectContribution]) -> None:
        named = [each.payload for each in contributions]
        if unmatched := unmatched_edge(named):
            raise Disagreement(*unmatched)
        _give(comm, members, Graph(tuple(named)), contributions)

    return ObjectContribution("Create_dist_graph_adjacent", compute, own, result=comm.view)


def Create_dist_graph(
    comm: Communicator,
    sources: Sequence[int],
    degrees: Sequence[int],
    destinations: Sequence[int],
    weights: Weights = None,
    info: object = None,
    reorder: bool = False,
) -> ObjectContribution:
    own = edges(comm.size, sources, degrees, destinations, weights)
    members = comm.members_in_order("Create_dist_graph", reorder=bool(reorder))

    def compute(contributions: Sequence[ObjectContribution]) -> None:
        named = [edge for each in contributions for edge in each.payload]
        _give(comm, members, Graph.of_edges(comm.size, named), contributions)

    return ObjectContribution("Create_dist_graph", compute, own, result=comm.view)


def Sub(comm: Communicator, remain_dims: Sequence[bool]) -> ObjectContribution:
    """Grids of the remaining dimensions, one for each set of coordinates in the others."""
    grid = comm.carried_topology
    assert isinstance(grid, Grid)
    if len(remain_dims) != len(grid.dims):
        raise ValueError(f"expecting {len(grid.dims)} items, got {len(remain_dims)}")
    coordinates = grid.coordinates(comm.rank)
    alike = tuple(bool(index(remains)) for remains in remain_dims)
    color = tuple(at for at, remains in zip(coordinates, alike, strict=True) if not remains)
    return _by_color(comm, "Sub", color, comm.rank, grid.keep(alike), alike)


COMMUNICATOR_MAKERS: dict[str, Callable[..., ObjectContribution]] = {
    each.__name__: each
    for each in (
        Dup,
        Clone,
        Dup_with_info,
        Split,
        Split_type,
        Create,
        Create_cart,
        Create_dist_graph,
        Create_dist_graph_adjacent,
    )
}
GRID_MAKERS: dict[str, Callable[..., ObjectContribution]] = {"Sub": Sub}
