"""Types of spmd_types are local types: a function that has other types than it says is found, where the package is or is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import adjointlab as al
from adjointlab.adapters.spmd_types import space_of, typed
from adjointlab.checks.verdict import Status
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

# spmd_types calls names that torch 2.13 advises against.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

EXAMPLE = Path(__file__).parents[2] / "examples" / "spmd_types_collectives.py"
LOCAL_TYPES = {"R": "replicated", "I": "invariant", "V": "varying", "P": "partial"}


def shard(dim: int) -> object:
    return pytest.importorskip("torch.distributed.tensor").Shard(dim)


@pytest.mark.parametrize("name", LOCAL_TYPES)
def test_whole_tensors_have_the_local_type_of_the_same_name(name: str) -> None:
    (tensor,) = space_of({"tp": 3}, {"tp": name}, (2, 4)).tensors
    assert [entry.value for entry in tensor.types] == [LOCAL_TYPES[name]]
    assert {tensor.layout.local_shape(rank) for rank in range(3)} == {(2, 4)}


@pytest.mark.parametrize("name", LOCAL_TYPES)
def test_a_gradient_has_the_type_that_spmd_types_says(name: str) -> None:
    spmd_types = pytest.importorskip("spmd_types")
    type_ = getattr(spmd_types, name)
    space = space_of({"tp": 2}, {"tp": type_}, (2,))
    assert space.dual == space_of({"tp": 2}, {"tp": type_.backward_type()}, (2,))


def test_each_axis_has_its_type_and_ranks_are_those_of_the_mesh() -> None:
    (tensor,) = space_of({"dp": 2, "tp": 2}, {"tp": shard(1), "dp": "P"}, (3, 4)).tensors
    # Ranks 0 and 1 are neighbours along "tp", the innermost axis.
    assert [tensor.layout.window(rank)[1] for rank in range(4)] == [(0, 2), (2, 4)] * 2
    assert tensor.summands == {0: 0, 1: 1, 2: 0, 3: 1}


def test_a_partition_spec_says_the_same_as_shards() -> None:
    mesh = {"dp": 2, "tp": 2}
    by_spec = space_of(mesh, {}, (8, 3), partition_spec=(("dp", "tp"), None))
    assert by_spec == space_of(mesh, {"dp": shard(0), "tp": shard(0)}, (8, 3))


@pytest.mark.parametrize(
    ("types", "spec", "message"),
    [
        ({}, (), "the axis 'dp' has none"),
        ({"dp": "R", "tp": "R", "pp": "R"}, (), "has no axis 'pp', but dp, tp"),
        ({"dp": "R", "tp": "Q"}, (), "'Q' is not one of R, I, V, P"),
        ({"dp": "R"}, (("tp", "dp"),), "each once, in its order: dp, tp"),
        ({"dp": "R", "tp": "V"}, ("tp",), "'tp' is in it, and has a type in `types` too"),
        ({}, ("dp", "dp"), "each once, in its order: dp, tp"),
        ({"dp": "R"}, ("pp",), "each once, in its order: dp, tp"),
    ],
)
def test_types_that_do_not_say_how_the_ranks_hold_a_tensor_are_refused(
    types: Mapping[str, object], spec: tuple[Any, ...], message: str
) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=message):
        space_of({"dp": 2, "tp": 2}, types, (4, 4), partition_spec=spec)


@pytest.mark.parametrize(
    ("name", "src", "dst", "wrong"), [("sums", "P", "I", "R"), ("gathers", shard, "R", "I")]
)
def test_a_function_is_coherent_between_its_own_types(
    world: al.SimulatedWorld, name: str, src: Any, dst: str, wrong: str
) -> None:
    pytest.importorskip("spmd_types")
    example = find_subject(f"{EXAMPLE}:{name}")
    given = src(0) if callable(src) else src

    def status(returned: str) -> Status:
        @al.subject.autograd(example.target, process_group=True)
        def cases(draw: Any, ranks: int) -> dict[str, Any]:
            return typed({"tp": ranks}, (2 * ranks, 2), src={"tp": given}, dst={"tp": returned})

        return investigate(world, cases, "adjoint", Budget(10, ranks=3, seed=1)).status

    assert status(dst) is Status.COHERENT
    assert status(wrong) is Status.INCOHERENT
