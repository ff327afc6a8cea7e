"""Released software is what docs/findings.md says: coherent in a few cases, and what is known to fail still fails.

Where a known failure passes, it was fixed upstream: its line in examples/released/known_failures.txt goes, and so does its entry in
docs/findings.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import adjointlab as al
from adjointlab.engine.discovery import find
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Kind, Subject
from adjointlab.store.known_failures import read

RELEASED = Path(__file__).parents[2] / "examples" / "released"
KNOWN = read(RELEASED / "known_failures.txt").checks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of torch: what these tests are about is what it computes
]


def subjects(file: str, step: int) -> Iterator[tuple[Subject, str]]:
    """Subjects of a file with the check that says most about each: all that are known to fail, and every one in `step` of the others."""
    for number, found in enumerate(find([str(RELEASED / file)])):
        subject = found.subject
        listed = [check for name, check in KNOWN if name == subject.name]
        if listed or number % step == 0:
            for check in listed or ["gradients" if subject.kind is Kind.LAYER else "adjoint"]:
                yield subject, check


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}")


@pytest.mark.parametrize(
    ("file", "cases", "step"),
    [
        ("torch_collectives.py", 3, 1),
        ("torch_redistribute.py", 20, 1),
        ("torch_dtensor_operators.py", 1, 4),  # a quarter of a second for each
        ("torch_modules.py", 3, 1),
        pytest.param("released_pylops_mpi.py", 3, 1, marks=needs("pylops_mpi")),
        pytest.param("released_megatron.py", 3, 1, marks=needs("megatron")),
        pytest.param("released_fairscale.py", 3, 1, marks=needs("fairscale")),
        pytest.param("released_torch_harmonics.py", 3, 1, marks=needs("torch_harmonics")),
        pytest.param("released_neuraloperator.py", 3, 1, marks=needs("neuralop")),
        pytest.param("released_physicsnemo.py", 3, 1, marks=needs("physicsnemo")),
        pytest.param("released_ring_attention.py", 3, 1, marks=needs("ring_attention_pytorch")),
        pytest.param("released_deepspeed.py", 3, 1, marks=needs("deepspeed")),
        pytest.param("released_deepspeed_tiles.py", 3, 1, marks=needs("deepspeed")),
        pytest.param("released_deepspeed_regions.py", 3, 1, marks=needs("deepspeed")),
        pytest.param("released_axonn.py", 3, 1, marks=needs("axonn")),
        pytest.param("released_anemoi.py", 3, 1, marks=needs("anemoi")),
        pytest.param("released_diffusers.py", 3, 1, marks=needs("diffusers")),
        pytest.param("released_open_clip.py", 3, 1, marks=needs("open_clip")),
        pytest.param("released_metric_learning.py", 3, 1, marks=needs("pytorch_metric_learning")),
        pytest.param("released_yunchang.py", 3, 1, marks=needs("yunchang")),
        pytest.param("released_colossalai.py", 3, 1, marks=needs("colossalai")),
        pytest.param("released_ringmaster.py", 3, 1, marks=needs("ringmaster")),
        pytest.param("released_mpiarray.py", 3, 1, marks=needs("mpiarray")),
        pytest.param("released_veomni.py", 3, 1, marks=needs("veomni")),
        pytest.param("released_verl.py", 3, 1, marks=[needs("verl"), needs("megatron")]),
        pytest.param("released_swift.py", 3, 1, marks=[needs("swift"), needs("megatron")]),
        pytest.param("released_ring_flash_attn.py", 3, 1, marks=needs("ring_flash_attn")),
        pytest.param("released_stable_pretraining.py", 3, 1, marks=needs("stable_pretraining")),
        pytest.param(
            "released_fvcore.py", 3, 1, marks=[needs(each) for each in ("fvcore", "pytorchvideo", "nnunetv2")]
        ),
        pytest.param("released_pylate.py", 3, 1, marks=needs("pylate")),
        pytest.param("released_sentence_transformers.py", 3, 1, marks=needs("sentence_transformers")),
        pytest.param("released_lightly.py", 3, 1, marks=needs("lightly")),
        pytest.param("released_nanotron.py", 3, 1, marks=needs("nanotron")),
        pytest.param("released_deepinv.py", 3, 1, marks=needs("deepinv")),
        pytest.param("released_olmo_core.py", 3, 1, marks=needs("olmo_core")),
        pytest.param("released_vector_quantize.py", 3, 1, marks=needs("vector_quantize_pytorch")),
        pytest.param("released_torchrec.py", 3, 1, marks=needs("torchrec")),
        pytest.param("released_fairchem.py", 3, 1, marks=needs("fairchem")),
        pytest.param("released_fla.py", 3, 1, marks=needs("fla")),
        pytest.param("released_muon.py", 3, 1, marks=needs("muon")),
        pytest.param("released_fairseq2.py", 3, 1, marks=needs("fairseq2")),
        pytest.param("released_heat.py", 3, 1, marks=needs("heat")),
        pytest.param(
            "released_gathers.py",
            3,
            1,
            marks=[needs(package) for package in ("lightning_fabric", "solo", "torchmetrics", "x_clip")],
        ),
        pytest.param("released_transformers.py", 3, 1, marks=needs("transformers")),
        pytest.param("released_spmd_types.py", 3, 2, marks=needs("spmd_types")),
    ],
)
def test_it_is_coherent_but_for_what_is_known(
    world: al.SimulatedWorld, file: str, cases: int, step: int
) -> None:
    # A failure is not shrunk: that takes longer than to see it, and the subjects of known ones have one case.
    budget = Budget(cases, ranks=4, seed=1, shrinking=0)
    wrong = []
    for subject, check in subjects(file, step):
        verdict = investigate(world, subject, check, budget).verdict
        if verdict.is_coherent == ((subject.name, check) in KNOWN):
            wrong.append(f"{subject.name} {check}: {verdict.headline or 'coherent, and known to fail'}")
    assert wrong == []
