"""Names of a module's tensors, as a layer declares them."""

from __future__ import annotations

import pytest

from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import Layer, elementwise, prepared, trained, undeclared
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.pieces import Pieces
from adjointlab.core.space import Space, Tensor

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.mpi_skip
nn = torch.nn


def space(*names: str) -> Space:
    return Space(*(Tensor(Layout((1,), Partition((1,))), name=name) for name in names))


class Shared(nn.Module):
    """Two names for one weight, a part with a cache of its own, and buffers that are kept and that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.BatchNorm1d(1)
        self.weight = nn.Parameter(torch.ones(1))
        self.tied = self.weight
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("constant", torch.ones(1), persistent=False)
        self.part.register_buffer("cache", torch.ones(1), persistent=False)
        self.register_buffer("calls", torch.ones(1))


def test_the_parameters_that_require_a_gradient_are_named_by_all_their_names() -> None:
    assert trained(Shared()) == {"part.weight", "part.bias", "weight", "tied"}
    assert trained(nn.ReLU()) == frozenset()


PARAMETERS = ("weight", "frozen", "part.weight", "part.bias")
BUFFERS = ("calls", "part.running_mean", "part.running_var", "part.num_batches_tracked")


@pytest.mark.parametrize(
    ("parameters", "buffers", "faults"),
    [
        (PARAMETERS, BUFFERS, []),
        (("tied", *PARAMETERS[1:]), BUFFERS, []),
        (("tied", *PARAMETERS), (*BUFFERS, "constant", "part.cache"), []),
        (
            PARAMETERS[1:],
            BUFFERS[1:],
            [
                "has the parameter weight, which parameter_space does not name",
                "has the parameter tied, which parameter_space does not name",
                "has the buffer calls, which buffer_space does not name",
            ],
        ),
        (
            ("extra", *PARAMETERS[:-1]),
            (*BUFFERS, "cache"),
            [
                "has the parameter part.bias, which parameter_space does not name",
                "has no parameter extra, which parameter_space names",
                "has no buffer cache, which buffer_space names",
            ],
        ),
        ((*PARAMETERS, "calls"), BUFFERS, ["has no parameter calls, which parameter_space names"]),
    ],
)
def test_differences_between_a_module_and_its_spaces_are_listed(
    parameters: tuple[str, ...], buffers: tuple[str, ...], faults: list[str]
) -> None:
    assert sorted(undeclared(Shared(), space(*parameters), space(*buffers))) == sorted(faults)


def test_inputs_that_need_no_preparation_stay_as_they_are() -> None:
    assert elementwise(1, "x") == (1, "x")


def test_a_layer_promises_nothing_that_it_does_not_say() -> None:
    layer = Layer(None, nn.ReLU(), space("x"), space("y"), space(), space())  # type: ignore[arg-type]
    assert (layer.rounding, layer.reach, layer.averaged, layer.steps) == (None, 0, 1, 0)
    assert (layer.frozen, layer.trained, layer.optimizer) == (None, None, None)
    assert (layer.overwrites_inputs, layer.uniform_requires_grad, layer.alternates) == (False,) * 3
    assert layer.accumulates
    assert layer.has_forward_mode
    assert layer.prepare is elementwise


def test_a_parameter_is_in_one_piece_unless_others_are_named() -> None:
    pieces = Pieces(0, 2)
    layer = Layer(None, nn.ReLU(), space("x"), space("y"), space(), space(), pieces={"up": pieces})  # type: ignore[arg-type]
    assert layer.pieces_of("up") is pieces
    weight, empty = torch.arange(4.0), torch.ones(2, 0)
    whole = layer.pieces_of("down")
    assert whole.apart(weight) is weight
    assert torch.equal(whole.joined(weight, (4,)), weight)
    assert whole.joined(empty, (0, 3)).shape == (0, 3)


def test_a_preparation_that_takes_or_returns_another_number_of_inputs_is_told_how_many_there_are() -> None:
    with pytest.raises(TypeError) as caught:
        prepared(torch.sin, torch.ones(1), torch.ones(1))
    assert caught.value.__notes__ == ["raised by prepare=, which gets 2 tensors, one for each input"]
    with pytest.raises(SubjectError, match="prepare= gets 2 tensors, one for each input, and returned 1"):
        prepared(lambda x, y: x, torch.ones(1), torch.ones(1))
    with pytest.raises(SubjectError, match="one for each input, and returned None"):
        prepared(lambda x: None, torch.ones(1))
