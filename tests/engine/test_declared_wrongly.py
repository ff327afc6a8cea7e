"""A strategy that draws arguments which its functions do not take is told so in one sentence, as a wrong declaration of the subject."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.verdict import Figure, Status
from adjointlab.core.declaration import has_parameter, require_accepts
from adjointlab.engine.discovery import found_as
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.session import run_check
from adjointlab.worlds.simulated.world import SimulatedWorld


def kept(comm: Any, x: Any, width: int) -> Any:
    return np.array(x)


def case(**more: Any) -> Any:
    space = al.Space(al.Layout((2,), al.Partition((1,))))

    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(domain=space, codomain=space) | more

    return draws


def sentence(subject: Subject, check: str, tmp_path: Path) -> str:
    result = run_check(SimulatedWorld(ranks=1), found_as(subject), check, Budget(3, seed=1), tmp_path)
    verdict = result.result.verdict
    assert result.is_misdeclared, str(verdict)
    assert not any(label == "traceback" for label, _ in verdict.lines)
    return verdict.headline


@pytest.mark.parametrize("role", ["domain", "codomain"])
def test_a_tensor_on_a_rank_that_the_communicator_has_not(role: str) -> None:
    here, beyond = (al.Space(al.Layout((4,), (size,)), name=name) for size, name in ((2, "x"), (3, "wide")))
    spaces = {"domain": here, "codomain": here} | {role: beyond}

    def zeros(name: str) -> Any:
        return lambda comm, x: np.zeros(spaces[name].tensors[0].layout.local_shape(comm.Get_rank()))

    functions = zeros("codomain"), zeros("domain")
    subject = al.subject.pair(*functions, ranks=(2,))(lambda draw, ranks: spaces)
    verdict = investigate(SimulatedWorld(2), subject, "purity", Budget(3, seed=1)).verdict
    assert verdict.status is Status.UNJUDGED
    assert verdict.headline == "the operator declares a tensor on rank 2, and its communicator has 2 ranks"
    assert dict(verdict.lines)["tensor"] == str(beyond.tensors[0])


def test_an_argument_that_a_function_of_a_pair_does_not_take(tmp_path: Path) -> None:
    wrong = al.subject.pair(kept, lambda comm, y, widths: y)(case(width=1))
    assert sentence(wrong, "adjoint", tmp_path) == (
        "adjoint is called as <lambda>(comm, x, width=…), but <lambda>(comm, y, widths) takes no `width`; did you mean widths?"
    )


def test_a_bound_that_one_function_of_a_pair_has_as_a_parameter_is_an_argument_of_both(
    tmp_path: Path,
) -> None:
    def scaled(comm: Any, x: Any, gain: int) -> Any:
        return gain * x

    wrong = al.subject.pair(scaled, lambda comm, y: y)(case(gain=2))
    assert sentence(wrong, "adjoint", tmp_path) == (
        "adjoint is called as <lambda>(comm, x, gain=…), but <lambda>(comm, y) takes no `gain`"
    )


def test_an_argument_that_a_function_of_torch_does_not_take(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    wrong = al.subject.autograd(lambda comm, x, widths: x)(case(width=1))
    assert sentence(wrong, "adjoint", tmp_path).endswith("takes no `width`; did you mean widths?")


def test_a_misspelled_entry_that_is_no_argument(tmp_path: Path) -> None:
    wrong = al.subject.pair(kept, kept)(case(width=1, codomian=2))
    assert sentence(wrong, "adjoint", tmp_path).endswith("takes no `codomian`; did you mean codomain?")


def test_a_function_that_takes_any_name_is_not_told_of_one(tmp_path: Path) -> None:
    def any_name(comm: Any, x: Any, width: int, **more: Any) -> Any:
        return x

    told = sentence(al.subject.pair(any_name, any_name)(case(height=1)), "adjoint", tmp_path)
    assert told.endswith("cannot be called so: missing a required argument: 'width'")


def test_a_function_that_does_not_tell_its_arguments_is_taken_to_take_all() -> None:
    for builtin in (dict.update, type):  # without a signature
        assert not has_parameter(builtin, "gain")
        require_accepts("the function", builtin, ("comm",), {"gain": 1})
    assert has_parameter(lambda *, gain: gain, "gain")
    assert not has_parameter(lambda **more: more, "gain")
    assert not has_parameter(lambda gain, /, *gains: gain, "gain")


def test_a_declared_rounding_counts_where_functions_take_any_name(tmp_path: Path) -> None:
    def shorter(comm: Any, x: Any, **more: Any) -> Any:
        assert not more
        return x.astype(np.float32).astype(x.dtype)

    declared = al.subject.pair(shorter, shorter)(case(rounding=2**-20))
    assert (
        run_check(SimulatedWorld(1), found_as(declared), "adjoint", Budget(20, seed=1), tmp_path).status
        is Status.COHERENT
    )
    undeclared = al.subject.pair(shorter, shorter)(case())
    assert (
        run_check(SimulatedWorld(1), found_as(undeclared), "adjoint", Budget(20, seed=1), tmp_path).status
        is Status.INCOHERENT
    )


def test_an_argument_that_the_strategy_lacks(tmp_path: Path) -> None:
    told = sentence(al.subject.pair(kept, kept)(case()), "adjoint", tmp_path)
    assert told.endswith("cannot be called so: missing a required argument: 'width'")


def test_functions_without_a_communicator_and_without_a_process_group(tmp_path: Path) -> None:
    wrong = al.subject.pair(lambda x, width: x, lambda y, width: y)(case(width=1))
    told = sentence(wrong, "adjoint", tmp_path)
    assert "called as <lambda>(comm, x, width=…)" in told
    assert "takes no communicator: say process_group=True in the subject" in told


def test_an_autograd_function_that_cannot_be_applied_so(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")

    def declared(forward: Any, *, sets_up: bool = False, **more: Any) -> Subject:
        members = {"forward": staticmethod(forward), "backward": staticmethod(lambda ctx, y: (y, None))}
        if sets_up:
            members["setup_context"] = staticmethod(lambda ctx, inputs, output: None)
        kind: Any = type("Kept", (torch.autograd.Function,), members)
        subject: Subject = al.subject.autograd(kind)(case(**more))
        return subject

    assert sentence(declared(lambda ctx, x: x), "adjoint", tmp_path).startswith(
        "the function is called as <lambda>(ctx, x, comm), but <lambda>(ctx, x) takes no communicator: say process_group=True"
    )
    assert sentence(declared(lambda ctx, x, comm: x, width=3), "adjoint", tmp_path).startswith(
        "the function is called as <lambda>(ctx, x, comm, width), but <lambda>(ctx, x, comm) cannot be called so: "
    )
    right = (
        declared(lambda ctx, x, comm: x.clone()),
        declared(lambda x, comm: x.clone(), sets_up=True),
        declared(lambda ctx, *given: given[0].clone()),
    )
    for subject in right:
        assert investigate(SimulatedWorld(1), subject, "adjoint", Budget(2, seed=1)).verdict.is_coherent


def test_a_gain_that_is_no_positive_integer(tmp_path: Path) -> None:
    told = sentence(al.subject.pair(kept, kept)(case(width=1, gain=0.5)), "adjoint", tmp_path)
    assert "gain = 0.5 is not an integer of at least 1" in told


def test_a_gain_in_the_case_makes_a_verdict_exact_and_is_passed_on_where_a_function_takes_it() -> None:
    def scaled(comm: Any, x: Any, gain: int) -> Any:
        return gain * x

    for subject, source in (
        (al.subject.pair(kept, kept, reference=lambda x, width: x)(case(width=1, gain=1)), "declared"),
        (al.subject.pair(scaled, scaled, reference=lambda x, gain: gain * x)(case(gain=3)), "probe"),
    ):
        for check in ("adjoint", "sequential"):
            result = investigate(SimulatedWorld(ranks=1), subject, check, Budget(3, seed=1))
            assert result.status is Status.COHERENT, result.verdict
            if check == "adjoint":
                assert result.figures[Figure.GAIN_SOURCE] == source
                assert bool(result.exact) == (source == "declared")


def test_an_argument_that_the_reference_does_not_take(tmp_path: Path) -> None:
    wrong = al.subject.pair(kept, kept, reference=lambda x: x)(case(width=1))
    assert sentence(wrong, "sequential", tmp_path) == (
        "the reference is called as <lambda>(x, width=…), but <lambda>(x) takes no `width`"
    )


def test_a_reference_whose_result_has_another_shape(tmp_path: Path) -> None:
    wrong = al.subject.pair(kept, kept, reference=lambda x, width: x[1:])(case(width=1))
    assert "the reference returned shape (1,)" in sentence(wrong, "sequential", tmp_path)


def test_an_argument_that_an_operator_does_not_take(tmp_path: Path) -> None:
    class Operator(al.LinearOperator):
        def __init__(self, comm: Any, layout: Any) -> None: ...

        forward = adjoint = lambda self, x: x  # type: ignore[assignment]

    told = sentence(al.subject.operator(Operator)(lambda draw, ranks: dict(layot=1)), "adjoint", tmp_path)
    assert told.endswith("Operator(comm, layout) takes no `layot`; did you mean layout?")


def test_a_function_behind_a_decorator_is_called_as_the_decorator_is(tmp_path: Path) -> None:
    @wraps(kept)
    def decorated(comm: Any, x: Any, **arguments: Any) -> Any:
        return kept(comm, x, 1)

    subject = al.subject.pair(decorated, decorated)(case(other=1))
    result = run_check(SimulatedWorld(ranks=1), found_as(subject), "adjoint", Budget(3, seed=1), tmp_path)
    assert result.result.verdict.is_coherent


@pytest.mark.parametrize(
    ("types", "told"), [("invariant", "is one string"), (("invarient",), "; did you mean invariant?")]
)
def test_what_the_lab_refuses_in_a_strategy(types: Any, told: str, tmp_path: Path) -> None:
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(domain=al.Space(al.Layout((2,), al.Partition((1,))), types=types))

    headline = sentence(al.subject.pair(kept, kept)(draws), "adjoint", tmp_path)
    assert told in headline
    assert f"{__file__}:" in headline


def test_an_error_of_the_strategy_itself_has_a_traceback_without_the_arguments_of_strategies(
    tmp_path: Path,
) -> None:
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        raise ValueError("not mine to tell")

    found = found_as(al.subject.pair(kept, kept)(draws))
    result = run_check(SimulatedWorld(ranks=1), found, "adjoint", Budget(3, seed=1), tmp_path)
    text = dict(result.result.verdict.lines)["traceback"]
    assert text.endswith("ValueError: not mine to tell")
    assert not result.is_misdeclared


class TestALayer:
    @pytest.fixture(autouse=True)
    def _with_torch(self) -> None:
        pytest.importorskip("torch")

    def layer(self, twin: Any, **more: Any) -> Subject:
        from torch import nn

        layout = al.Layout((1, 2), al.Partition((1, 1)))
        weight = al.Layout((2, 2), al.Partition((1, 1)))
        spaces = {
            "domain": al.Space(layout),
            "codomain": al.Space(layout),
            "parameter_space": al.Space(al.Tensor(weight, name="weight")),
        }
        declared: Subject = al.subject.layer(
            lambda comm, width: nn.Linear(width, width, bias=False).double(), twin
        )(lambda draw, ranks: {"width": 2} | spaces | more)
        return declared

    def test_that_takes_no_such_argument(self, tmp_path: Path) -> None:
        told = sentence(self.layer(lambda width: None, parameter_spaces=1), "sequential", tmp_path)
        assert told.endswith("takes no `parameter_spaces`; did you mean parameter_space?")

    def test_whose_twin_takes_no_such_argument(self, tmp_path: Path) -> None:
        told = sentence(self.layer(lambda: None), "sequential", tmp_path)
        assert told == "the sequential twin is called as <lambda>(width=…), but <lambda>() takes no `width`"

    def test_whose_twin_names_its_parameters_otherwise(self, tmp_path: Path) -> None:
        from torch import nn

        told = sentence(
            self.layer(lambda width: nn.Sequential(nn.Linear(2, 2, bias=False))), "gradients", tmp_path
        )
        assert "the twin has the parameter 0.weight, which parameter_space does not name" in told

    def test_whose_twin_has_another_element_type_is_told_that_it_is_the_twin(self, tmp_path: Path) -> None:
        from torch import nn

        found = found_as(self.layer(lambda width: nn.Linear(2, 2, bias=False)))
        result = run_check(SimulatedWorld(ranks=1), found, "gradients", Budget(3, seed=1), tmp_path)
        text = dict(result.result.verdict.lines)["traceback"]
        assert "raised by the sequential twin, not by the layer; its parameter weight is float32, and" in text


def test_a_reference_that_returns_no_array(tmp_path: Path) -> None:
    wrong = al.subject.pair(kept, kept, reference=lambda x, width: [float(each) for each in x])(case(width=1))
    assert sentence(wrong, "sequential", tmp_path).startswith("the reference returned a float: it returns an")
