"""The kinds of fault that hints may name of each planted bug and recreated fault; what it does tells them, not what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from adjointlab.checks.hints import FaultKind as Kind

__all__ = ["MAY_BE_NAMED"]

_GROUPS: Final[tuple[tuple[tuple[Kind, ...], tuple[str, ...]], ...]] = (
    ((Kind.ACCUMULATED,), ("accumulated gradient lost",)),
    ((Kind.BY_RANKS, Kind.HALVED), ("gradients averaged over the sequence dimension too",)),
    (
        (Kind.BY_RANKS, Kind.HALVED, Kind.FRACTION),
        (
            "weight gradient averaged",
            "cotangent divided among the summands",
            "stationary weight's gradient averaged",
            "positions counted by every worker",
        ),
    ),
    ((Kind.CONJUGATE,), ("conjugate missing",)),
    ((Kind.DOUBLED,), ("overlap adds the rim twice",)),
    ((Kind.DOUBLED, Kind.HALVED), ("sum doubled",)),
    ((Kind.EXTRA,), ("trimmed rows not restored as zero",)),
    ((Kind.EXTRA, Kind.KEPT), ("adjoint does not clear the halo", "halos at the border keep old values")),
    (
        (Kind.EXTRA, Kind.MISPLACED),
        ("wraps round where it should not", "groups counted from the worker's first channel"),
    ),
    ((Kind.EXTRA, Kind.TIMES_RANKS, Kind.DOUBLED), ("rows of other workers' vocabulary kept",)),
    ((Kind.HALVED,), ("scale skipped on one rank", "running variance biased", "average counts padding")),
    ((Kind.IMAGINARY, Kind.REAL_PART), ("imaginary part lost",)),
    (
        (Kind.KEPT,),
        (
            "stale buffer reused",
            "returned buffer overwritten",
            "adjoint sums on the first call alone",
            "buffer cleared by subtraction",
            "input saved on the module",
        ),
    ),
    (
        (Kind.MISPLACED,),
        (
            "left and right width swapped, both ways",
            "left and right width swapped in the adjoint",
            "blocks of a wide halo in the wrong order",
            "ranks of the grid sorted",
            "left and right confused where one rank is both",
            "sums in the order of a dictionary",
            "adjoint's stages in forward order",
            "rank axis merged without moving it",
            "offset of a shard is the size of the one before",
            "stationary input gathered from the other sub-grid",
            "gathered channels in the order of ranks",
            "panel of another step",
            "dropout mask by local index",
            "parts of a split in the wrong place",
            "reshaped on each worker",
            "unflattened in the other order",
            "stacked along another dimension",
            "blocks of pixels from the own first one",
            "channels left where they are cut",
            "heads without their part of the output projection",
        ),
    ),
    ((Kind.MISPLACED, Kind.KEPT), ("send buffer reused before the send completed",)),
    (
        (Kind.MISPLACED, Kind.OWN_PART),
        (
            "groups take the wrong channels",
            "joined on each worker",
            "ring attention with a stale block",
            "chunks of the own part",
            "adaptive maximum of the own part",
        ),
    ),
    (
        (Kind.MISPLACED, Kind.OWN_PART, Kind.TIMES_RANKS, Kind.DOUBLED),
        ("block of the first ring step in every step",),
    ),
    ((Kind.MISPLACED, Kind.UNEVEN, Kind.OWN_PART), ("stride counted from the local start",)),
    (
        (Kind.MISSING,),
        (
            "halo one row too narrow, both ways",
            "trimmed before a neighbour has its rows",
            "halo cleared as x[-0:]",
            "corners skipped, both ways",
            "overlap ends one row early, both ways",
            "transposed convolution's halo without dilation",
            "maximum pads with zero",
            "gradients without a graph",
        ),
    ),
    ((Kind.MISSING, Kind.EXTRA, Kind.MISPLACED), ("send slice runs into the sender's own halo",)),
    ((Kind.MISSING, Kind.EXTRA, Kind.OWN_PART), ("constant padding at every part's border",)),
    (
        (Kind.MISSING, Kind.MISPLACED),
        (
            "periodic index clamped",
            "one dimension's width used for all",
            "neighbours taken from rank ± 1",
            "left and right halo swapped",
        ),
    ),
    ((Kind.MISSING, Kind.MISPLACED, Kind.KEPT), ("halo read before it arrived",)),
    (
        (Kind.MISSING, Kind.MISPLACED, Kind.OWN_PART),
        ("unpooled by local index", "transposed convolution pads every part"),
    ),
    (
        (Kind.MISSING, Kind.MISPLACED, Kind.UNEVEN),
        ("receive buffer kept where shapes differ", "overlap placed relative to the own old window"),
    ),
    (
        (Kind.MISSING, Kind.MISPLACED, Kind.UNEVEN, Kind.EMPTY, Kind.OWN_PART),
        ("pixels of an uneven channel cut",),
    ),
    (
        (Kind.MISSING, Kind.MISPLACED, Kind.UNEVEN, Kind.OWN_PART),
        ("unpooled elements' gradients stay", "interpolation of the own part"),
    ),
    (
        (Kind.MISSING, Kind.OWN_PART),
        ("overlap starts before the exchange is complete", "overlap's interior reads the halo"),
    ),
    (
        (Kind.MISSING, Kind.ZERO_RANK),
        ("interior taken as x[n:-0]", "padding row counted from the own vocabulary"),
    ),
    ((Kind.MISSING, Kind.ZERO_RANK, Kind.EXTRA, Kind.MISPLACED), ("wrong root",)),
    (
        (Kind.MISSING, Kind.ZERO_RANK, Kind.MISPLACED),
        (
            "places in the grid taken for ranks",
            "missing grid coordinates taken as 1",
            "stationary weight on the exchanged grid",
        ),
    ),
    (
        (Kind.MISSING, Kind.ZERO_RANK, Kind.MISPLACED, Kind.UNEVEN, Kind.EMPTY),
        ("wide halo filled by the nearest neighbours alone",),
    ),
    ((Kind.MISSING, Kind.ZERO_RANK, Kind.OWN_PART), ("scattered input's gradient not gathered",)),
    (
        (Kind.MISSING, Kind.ZERO_RANK, Kind.UNEVEN, Kind.EMPTY),
        ("last rows of an uneven cut not sent", "rank without rows skips the exchange"),
    ),
    ((Kind.NARROWED,), ("dtype narrowed",)),
    (
        (Kind.OWN_PART,),
        (
            "root mean square of the own part",
            "running statistics of the local batch",
            "adaptive average of the own part",
            "softmax divides by the own part's sum",
            "softmax subtracts the own part's largest",
            "adaptive indices in the own part",
            "indices in the local tensor",
        ),
    ),
    (
        (Kind.OWN_PART, Kind.DOUBLED, Kind.TIMES_RANKS, Kind.MULTIPLE),
        (
            "label smoothing over the own classes",
            "probabilities smoothed over the own classes",
            "mean over the own weights",
            "attention weights averaged over the own heads",
        ),
    ),
    (
        (Kind.REPEATED,),
        (
            "bias added on every worker along P_ci",
            "bias added before a reduce-scatter",
            "row-parallel bias added on every worker",
            "output bias of every head's worker",
        ),
    ),
    (
        (Kind.STRIDES,),
        ("sum of a contiguous copy discarded", "raw storage sent", "cotangent taken for contiguous"),
    ),
    (
        (Kind.SUM_DROPPED,),
        (
            "adjoint assigns for adding",
            "adjoint crops, and gives nothing back",
            "adjoint takes one of the copies",
        ),
    ),
    (
        (Kind.SUM_DROPPED, Kind.DECLARATION),
        ("missing sum in a broadcast's adjoint", "adjoint of an all-gather is a slice"),
    ),
    ((Kind.SUM_DROPPED, Kind.EXTRA, Kind.MISPLACED), ("sliced before the sum",)),
    (
        (Kind.SUM_DROPPED, Kind.EXTRA, Kind.UNEVEN, Kind.EMPTY, Kind.OWN_PART),
        ("mean over the local longitudes",),
    ),
    (
        (Kind.SUM_DROPPED, Kind.MISPLACED, Kind.OWN_PART),
        ("transposed partition ignored", "gradients of a ring's blocks stay"),
    ),
    (
        (Kind.SUM_DROPPED, Kind.MISPLACED, Kind.TIMES_RANKS, Kind.DOUBLED),
        ("third step of a butterfly exchanges with rank ^ 3",),
    ),
    ((Kind.SUM_DROPPED, Kind.MISSING), ("corners skipped in the adjoint",)),
    ((Kind.SUM_DROPPED, Kind.MISSING, Kind.MISPLACED), ("adjoint's dimensions in forward order",)),
    (
        (Kind.SUM_DROPPED, Kind.MISSING, Kind.OWN_PART),
        ("overlap's weight gradient of own cells", "overlap sends the interior's data gradient"),
    ),
    (
        (Kind.SUM_DROPPED, Kind.MISSING, Kind.ZERO_RANK, Kind.OWN_PART),
        (
            "input gradient not summed where the weight is frozen",
            "partial gradient taken for a replicated one",
            "own summand taken for the product",
            "column-parallel input gradient not reduced",
        ),
    ),
    ((Kind.SUM_DROPPED, Kind.MISSING, Kind.ZERO_RANK, Kind.UNEVEN, Kind.EMPTY), ("uneven shard dropped",)),
    (
        (Kind.SUM_DROPPED, Kind.OWN_PART),
        (
            "weight gradient not summed over the spatial workers",
            "bias gradient not summed",
            "input gradient not reduced over P_co",
            "forward mode without the sum",
            "panel's gradient not summed",
            "local statistics",
            "identity as the statistics' backward",
            "sequence-parallel gradient not reduced",
        ),
    ),
    (
        (Kind.SUM_DROPPED, Kind.OWN_PART, Kind.ZERO_RANK),
        ("gathered input's gradient not summed", "slice in place of a reduce-scatter"),
    ),
    (
        (Kind.TIMES_RANKS, Kind.DOUBLED),
        ("scaled by the number of ranks", "adjoint sums by the local type of the primal"),
    ),
    ((Kind.TIMES_RANKS, Kind.BY_RANKS, Kind.DOUBLED, Kind.HALVED), ("dropout scaled by the own share",)),
    (
        (Kind.TIMES_RANKS, Kind.DOUBLED, Kind.MULTIPLE),
        (
            "gradients summed twice",
            "gathered output's gradient summed",
            "row-parallel gradient reduced twice",
        ),
    ),
    (
        (Kind.UNEVEN, Kind.EMPTY),
        (
            "balanced cut assumed",
            "rank that is to hold nothing does not send",
            "rank that held nothing does not receive",
            "a rank without data skips a sum",
            "own shape taken for every rank's",
            "variance averaged over uneven parts",
            "group's variance averaged over uneven parts",
        ),
    ),
    ((Kind.UNEVEN, Kind.EMPTY, Kind.BY_RANKS, Kind.HALVED), ("mean of local means under uneven cuts",)),
    ((Kind.UNEVEN, Kind.EMPTY, Kind.MISPLACED), ("same local shape taken for same layout",)),
    (
        (
            Kind.UNEVEN,
            Kind.OWN_PART,
            Kind.TIMES_RANKS,
            Kind.BY_RANKS,
            Kind.DOUBLED,
            Kind.HALVED,
            Kind.MULTIPLE,
        ),
        ("batch mean of the own part",),
    ),
    (
        (),
        (
            "input modified",
            "inactive ranks skip the set-up",
            "one stateful layer in two roles",
            "padding forgotten on one rank",
            "communicators made in own order",
            "bias added on every rank",
            "idle worker leaves the graph",
            "no backward where the input requires no gradient",
            "stationary output on the input's grid",
            "running statistics updated in evaluation",
            "norm's weight gradient not reduced",
            "gradients of weight and bias in the wrong order",
            "causal mask by local positions",
            "clipped windows of a power average",
            "output buffer reused",
            "cotangent zeroed",
            "input overwritten",
            "parameter not declared",
            "quotient on the root alone",
            "scores scaled by embed_dim",
        ),
    ),
)
"""Kinds, and the bugs of which any of them may be named. Of those in the last group no kind is right."""

MAY_BE_NAMED: Final[Mapping[str, frozenset[Kind]]] = {
    bug: frozenset(kinds) for kinds, bugs in _GROUPS for bug in bugs
}
"""By the name of the bug."""
