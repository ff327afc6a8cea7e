"""adjointlab.layers has its layers, without torch too, and each layer prints what it is made of."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adjointlab as al
from adjointlab import layers
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, run_on_ranks

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import adjointlab.layers as layers
assert "Convolution" in dir(layers)
try:
    from adjointlab.layers import Convolution
except ImportError as error:
    print(error)
"""


def test_every_name_is_a_name_of_its_module_for_readers_of_types_too() -> None:
    tree = ast.parse(Path(layers.__file__ or "").read_text())
    branch = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    typed = {(str(n.module).removeprefix("adjointlab.layers."), alias.name)
             for n in ast.walk(branch) if isinstance(n, ast.ImportFrom) for alias in n.names}  # fmt: skip
    assert typed == {(module, name) for name, module in layers._MODULES.items()}
    assert sorted(layers.__all__) == sorted(layers._MODULES)
    assert set(layers.__all__) <= set(dir(al.layers))
    for name in layers.__all__:
        assert getattr(layers, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Convolutoin'"):
        _ = layers.Convolutoin  # type: ignore[attr-defined]


def test_every_layer_that_has_a_row_in_the_documentation_is_exported() -> None:
    page = (Path(layers.__file__ or "").resolve().parents[1] / "docs/layers.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ") and ".py`" in line]
    names = {word for row in rows for word in row.replace(",", " ").split() if word.isidentifier()}
    plain = {name for name in names if name[0].isupper() and hasattr(nn, name)}
    assert len(plain) >= 20
    assert plain <= set(layers.__all__)


@pytest.mark.skipif(is_launched(), reason="a process that a rank of MPI starts takes itself for that rank")
def test_without_torch_the_names_are_there_and_a_layer_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True)
    assert "adjointlab.layers.Convolution needs torch" in done.stdout
    assert "pip install 'adjointlab[torch]'" in done.stdout


@pytest.mark.skipif(is_launched(), reason="a process that a rank of MPI starts takes itself for that rank")
def test_without_torch_the_command_says_what_to_install_for_layers(tmp_path: Path) -> None:
    run = "import sys; sys.modules['torch'] = None; from adjointlab.cli.main import main; main()"

    def output(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-c", run, *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    wanted = "the subjects of adjointlab.layers, such as Linear, need torch, which is not installed: pip install 'adjointlab[torch]'"
    assert wanted in output("list")[1]
    code, text = output("check", "Linear")
    assert code == 2
    assert wanted in text


def test_a_layer_prints_its_arguments_its_shapes_and_its_partition(adjointlab_world: World) -> None:
    def body(comm: Any) -> list[str]:
        x = al.Layout((4, 6), (1, 1))
        loss = layers.MSELoss(comm, (1, 1), (4, 6), "sum", all_reduce=True, dtype=torch.float64)
        made = [
            layers.Conv1d(comm, (1, 1, 1, 1), (2, 3, 8), 3, 4, 5, padding=2, overlap=True),
            loss,
            layers.Attention(comm, (1, 1, 1), (2, 1, 4, 3), is_causal=True),
            layers.Concatenation(comm, (1, 1), [(4, 6), (2, 6)]),
            layers.Pointwise(comm, x, torch.sin),
            layers.Repartition(comm, x, al.Layout((4, 6), (1,), axes=(0, None))),
            layers.MultiheadAttention(comm, (1, 1, 1), (3, 2, 4), 4, 2),
        ]
        return list(map(repr, made))

    (texts,) = run_on_ranks(adjointlab_world, 1, body)
    assert texts[:6] == [
        "Conv1d(3, 4, kernel_size=(5,), stride=(1,), padding=(2,), overlap=True, x=[2, 3, 8], y=[2, 4, 8], partition=1x1x1x1)",
        "MSELoss(reduction='sum', all_reduce=True, x=[4, 6], target=[4, 6], loss=[], dtype=float64, partition=1x1)",
        "Attention(is_causal=True, scale=0.5773502691896258, q=[2, 1, 4, 3], k=[2, 1, 4, 3], v=[2, 1, 4, 3], y=[2, 1, 4, 3], "
        "partition=1x1x1)",
        "Concatenation(x0=[4, 6], x1=[2, 6], y=[6, 6], partition=1x1)",
        "Pointwise(function=sin, x=[4, 6], y=[4, 6], partition=1x1)",
        "Repartition(layout=[4, 6] cut at 0|4, 0|6, target=[4, 6] cut at 0|4, whole, x=[4, 6], y=[4, 6], partition=1x1)",
    ]
    assert texts[6].startswith("MultiheadAttention(\n  embed_dim=4, num_heads=2, ")


def test_the_sides_of_a_partition_will_do_for_it(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        layer = layers.Linear(comm, [1, ranks, 1], (3, 4), 4, 2)
        assert layer.partition == al.Partition((1, ranks, 1))
        lenet = layers.LeNet5(comm, 1, (ranks, 1), (1, ranks))
        assert lenet.domain.tensors[0].layout.partition.size == ranks
        x = al.Layout((4,), (ranks,))
        assert x == al.Layout((4,), al.Partition((ranks,)))
        broadcast = al.primitives.broadcast.Broadcast(comm, al.Layout((4,), (1,)), (ranks,))
        assert broadcast.codomain.tensors[0].layout.partition.size == ranks

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [((0, 1), "partition: every side of a partition is at least 1, not (0, 1)"), ((9, 9), "uses ranks")],
)
def test_sides_that_make_no_grid_of_the_ranks_are_refused(
    adjointlab_world: World, wrong: tuple[int, ...], message: str
) -> None:
    text = error_of_every_rank(adjointlab_world, 2, lambda comm: layers.Softmax(comm, wrong, (4, 4), dim=0))
    assert message in text
