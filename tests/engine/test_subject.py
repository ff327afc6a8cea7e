"""Each kind of subject has a form of its own, and the older spelling declares the same."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Kind, Subject, SubjectError
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.samples import RingShift, equal_blocks


def copies(comm: Any, x: Any, factor: int) -> Any:
    return factor * x


def spaces(draw: Any, ranks: int) -> dict[str, Any]:
    space = al.Space(equal_blocks(draw, ranks)["layout"])
    return {"domain": space, "codomain": space, "factor": 3}


def make_layer(comm: Any, layout: al.Layout) -> Any:
    import torch

    module = torch.nn.Identity()
    module.domain = module.codomain = al.Space(layout)  # type: ignore[assignment]
    return module


def make_twin(layout: al.Layout) -> Any:
    import torch

    return torch.nn.Identity()


def coherent(subject: Subject, check: str) -> bool:
    return investigate(SimulatedWorld(3), subject, check, Budget(10, seed=1)).status is Status.COHERENT


def test_a_subject_knows_the_module_whose_import_declared_it(tmp_path: Path) -> None:
    file = tmp_path / "of_the_user.py"
    file.write_text("subject = (lambda: declare(lambda draw, ranks: {}))()")
    imported = run_path(str(file), {"declare": al.subject(RingShift)}, run_name="of_the_user")

    assert imported["subject"].declared_in == "of_the_user"


def test_an_operator_with_options() -> None:
    subject = al.subject.operator(RingShift, name="Ring", ranks=(2,), orders=("row-major",))(equal_blocks)

    assert (subject.kind, subject.name, subject.ranks) == (Kind.OPERATOR, "Ring", (2,))
    assert (subject.orders, subject.arrays) == (("row-major",), ("numpy",))
    assert coherent(subject, "adjoint")


def test_a_function_that_makes_an_operator() -> None:
    subject = al.subject.operator(lambda comm, layout: RingShift(comm, layout), name="made")(equal_blocks)

    assert coherent(subject, "adjoint")


def test_a_pair_is_judged_by_both_functions() -> None:
    right = al.subject.pair(forward=copies, adjoint=copies)(spaces)
    wrong = al.subject.pair(copies, lambda comm, y, factor: (factor + 1) * y)(spaces)

    assert right.kind is Kind.PAIR
    assert right.name == "copies"
    assert coherent(right, "adjoint")
    assert not coherent(wrong, "adjoint")


def test_an_operator_that_is_given_some_of_its_arguments_is_no_pair() -> None:
    layout = al.Layout((4,), (2,))
    given = al.subject.operator(partial(RingShift, layout=layout), name="Ring")(lambda draw, ranks: {})
    assert given.pair == ()


def test_what_torch_differentiates() -> None:
    pytest.importorskip("torch")
    subject = al.subject.autograd(copies)(spaces)

    assert (subject.kind, subject.arrays) == (Kind.AUTOGRAD, ("torch",))
    assert coherent(subject, "adjoint")


def test_a_layer_and_its_sequential_twin() -> None:
    pytest.importorskip("torch")
    subject = al.subject.layer(make_layer, sequential=make_twin, twice_differentiable=True)(equal_blocks)

    assert (subject.kind, subject.is_layer, subject.twice_differentiable) == (Kind.LAYER, True, True)
    assert coherent(subject, "sequential")


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (al.subject.operator(RingShift), al.subject(RingShift)),
        (al.subject.pair(copies, np.array), al.subject(forward=copies, adjoint=np.array)),
        (al.subject.autograd(copies), al.subject(autograd=copies)),
        (al.subject.layer(make_layer, make_twin), al.subject(layer=make_layer, sequential=make_twin)),
    ],
    ids=["operator", "pair", "autograd", "layer"],
)
def test_the_older_spelling_declares_the_same(new: Any, old: Any) -> None:
    one, other = new(spaces), old(spaces)

    assert (one.kind, one.name, one.target, one.arrays) == (
        other.kind,
        other.name,
        other.target,
        other.arrays,
    )
    assert not one.twice_differentiable
    assert not other.twice_differentiable


def test_what_is_missing_is_named() -> None:
    with pytest.raises(SubjectError, match="no `reference`"):
        al.subject.layer(make_layer, make_twin, reference=np.array)
    with pytest.raises(SubjectError, match="what to check"):
        al.subject.operator(equal_blocks)  # type: ignore[arg-type]
    with pytest.raises(SubjectError, match="what to check"):
        al.subject.operator(3)  # type: ignore[arg-type]
    with pytest.raises(SubjectError, match="not among"):
        al.subject.operator(RingShift, orders=("sideways",))
    with pytest.raises(SubjectError, match="one kind of subject"):
        al.subject(RingShift, autograd=copies)


def optimiser(parameters: Any) -> Any:
    return parameters


@pytest.mark.parametrize(
    "declare",
    [
        lambda **given: al.subject.parallel(lambda: None, lambda module, mesh: None, **given),
        lambda **given: al.subject.pipeline(lambda: None, lambda module: None, loss=lambda y, t: y, **given),
    ],
    ids=["parallel", "pipeline"],
)
def test_steps_and_an_optimiser_are_given_together_or_not_at_all(declare: Any) -> None:
    assert not declare()(equal_blocks).twice_differentiable
    assert callable(declare(optimizer=optimiser, steps=1))
    for wrong in ({"steps": 1}, {"optimizer": optimiser}, {"optimizer": optimiser, "steps": -1}):
        with pytest.raises(SubjectError, match="`steps` of at least 1 together with an `optimizer`"):
            declare(**wrong)


def test_ranks_are_drawn_up_to_those_of_the_world_and_one_at_least() -> None:
    subject = al.subject(RingShift)(equal_blocks)
    assert isinstance(subject, Subject)
    assert subject.ranks_up_to(8) == (1, 2, 3, 4, 5, 6, 7, 8)
    assert subject.ranks_up_to(3) == (1, 2, 3)
    assert subject.ranks_up_to(1) == (1,)
    assert subject.ranks_up_to(21) == (1, 2, 3, 4, 5, 6, 7, 8, 16, 21)
