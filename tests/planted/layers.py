"""Planted bugs of distributed layers: each one slip in a layer of the library, or in a small loss as a user writes one.

The strategies and sequential twins are the built-in ones, with another layer.
"""

from __future__ import annotations

from typing import Any, cast

import torch

import adjointlab as al
from adjointlab import layers
from adjointlab.engine.subject import Subject
from adjointlab.layers.losses.classes import ClassLoss
from adjointlab.layers.normalisation import ChannelNormalisation
from adjointlab.layers.resampling import Resampling
from adjointlab.layers.subjects import installed as subjects
from adjointlab.layers.subjects.class_losses import class_loss
from adjointlab.layers.subjects.class_probabilities import probability_loss
from adjointlab.layers.subjects.embedding import with_legal_indices
from adjointlab.layers.subjects.losses import with_legal_target
from adjointlab.layers.subjects.pooling import unpool
from tests.planted import (
    attention,
    classes,
    convolutions,
    linear_layers,
    matrix_products,
    normalisations,
    small_layers,
    small_loss,
    stationary,
    windows,
)
from tests.planted.bug import PlantedBug

MOVED: tuple[tuple[type[layers.DistributedModule], tuple[Any, ...], Subject], ...] = (
    (layers.Unflatten, (), subjects.unflattenings),
    (layers.Reshape, (), subjects.reshapes),
    (layers.Stack, (), subjects.stacks),
    (layers.Chunk, (), subjects.chunks),
    (layers.PixelShuffle, (), subjects.pixel_shuffles),
    (layers.PixelUnshuffle, (), subjects.pixel_unshuffles),
    (layers.ChannelShuffle, (), subjects.channel_shuffles),
    (layers.AdaptiveMaxPooling, (), subjects.adaptive_max_pools),
    (layers.LPPooling, (layers.LPPool1d, layers.LPPool2d, layers.LPPool3d), subjects.power_average_pools),
    (layers.MaxUnpooling, (layers.MaxUnpool1d, layers.MaxUnpool2d, layers.MaxUnpool3d), subjects.max_unpools),
    (small_layers.OfProbabilities, (), subjects.probability_cross_entropies),
)
"""Families of small layers, before the classes that they derive from; the right ones are in tests/subjects/test_layers.py alone."""

FAMILIES: tuple[tuple[type[layers.DistributedModule], tuple[Any, ...], Subject], ...] = (
    (layers.Convolution, (layers.Conv1d,), convolutions.lines),
    (layers.StationaryConvolution, (layers.StationaryConv1d,), stationary.stationary_lines),
    (
        layers.TransposedConvolution,
        (layers.ConvTranspose1d, layers.ConvTranspose2d, layers.ConvTranspose3d),
        subjects.transposed_convolutions,
    ),
    (layers.Linear, (), subjects.linears),
    (layers.MatrixProduct, (), subjects.matrix_products),
    (
        layers.BatchNormalisation,
        (layers.BatchNorm1d, layers.BatchNorm2d, layers.BatchNorm3d),
        subjects.batch_norms,
    ),
    (layers.GroupNorm, (), subjects.group_norms),
    (layers.LayerNorm, (), subjects.layer_norms),
    (layers.RMSNorm, (), subjects.rms_norms),
    (
        layers.InstanceNormalisation,
        (layers.InstanceNorm1d, layers.InstanceNorm2d, layers.InstanceNorm3d),
        subjects.instance_norms,
    ),
    (layers.Upsample, (), subjects.upsamplings),
    (layers.AdaptiveAveragePooling, (), subjects.adaptive_average_pools),
    (layers.Padding, (), subjects.paddings),
    (layers.Dropout, (), subjects.dropouts),
    (layers.Attention, (), subjects.attentions),
    (layers.Concatenation, (), subjects.concatenations),
    (layers.Split, (), subjects.splits),
    (layers.Embedding, (), subjects.embeddings),
    (layers.Softmax, (), subjects.softmaxes),
    (layers.LogSoftmax, (), subjects.log_softmaxes),
    (layers.CrossEntropyLoss, (), subjects.cross_entropies),
    (layers.NLLLoss, (), subjects.negative_log_likelihoods),
    (layers.KLDivLoss, (), subjects.divergences),
    (layers.AveragePooling, (layers.AvgPool1d, layers.AvgPool2d, layers.AvgPool3d), subjects.average_pools),
    (layers.MaxPooling, (layers.MaxPool1d, layers.MaxPool2d, layers.MaxPool3d), subjects.max_pools),
    (small_loss.MeanSquaredError, (), small_loss.errors),
)
"""A family, its classes for one to three dimensions, and the subject whose strategy and twin its bugs share."""


def with_layer(kind: type[layers.DistributedModule]) -> Subject:
    """The subject of the family of `kind`, with `kind` in the place of the layer."""
    bases, right = next(
        (bases, right) for family, bases, right in (*MOVED, *FAMILIES) if issubclass(kind, family)
    )
    (_, prepare, _), (sequential,) = right.build.args, right.reference.args  # type: ignore[attr-defined, union-attr]
    kinds = [type(f"{kind.__name__}{dims}d", (kind, base), {}) for dims, base in enumerate(bases, start=1)]

    def layer(comm: Any, *, dims: int = 0, **arguments: Any) -> layers.DistributedModule:
        given = (
            {**arguments, "dtype": getattr(torch, arguments["dtype"])} if "dtype" in arguments else arguments
        )
        if issubclass(kind, small_layers.OfProbabilities):
            return cast(layers.CrossEntropyLoss, probability_loss(comm, kind=kind, **arguments))
        if issubclass(kind, layers.MaxUnpooling):
            return cast(layers.MaxUnpooling, unpool(comm, kinds=kinds, dims=dims, **arguments))
        if issubclass(kind, ClassLoss):
            return cast(ClassLoss, class_loss(comm, kind=kind, **arguments))
        if issubclass(kind, layers.KLDivLoss):
            return cast(layers.KLDivLoss, with_legal_target(kind(comm, **given), arguments["log_target"]))
        if issubclass(kind, layers.Embedding):
            return cast(layers.Embedding, with_legal_indices(kind(comm, **given), given["num_embeddings"]))
        if issubclass(kind, Resampling):
            shape, module = given["input_shape"], sequential(**arguments)
            return kind(comm, given["partition"], shape, module, dtype=given["dtype"])
        if not kinds:
            return kind(comm, **given)
        made: layers.DistributedModule = kinds[(dims or max(1, len(given["input_shape"]) - 2)) - 1](
            comm, **given
        )
        if isinstance(made, ChannelNormalisation):
            of_dims = {"dims": dims} if dims else {}
            made.load_sequential(sequential(**arguments, **of_dims))  # the running statistics
        return made

    return al.subject(
        layer=layer, sequential=sequential, prepare=prepare, twice_differentiable=True, name=kind.__name__
    )(right.draws)


def planted(bug: str, kind: type[layers.DistributedModule], check: str, least_ranks: int = 2) -> PlantedBug:
    """A bug with the strategy and the sequential twin of the right layer."""
    return PlantedBug(bug, with_layer(kind), check, least_ranks)


PLANTED = (
    planted("bias added on every worker along P_ci", convolutions.BiasOnEveryChannelWorker, "sequential"),
    planted(
        "weight gradient not summed over the spatial workers",
        convolutions.WeightGradientNotSummed,
        "gradients",
    ),
    planted("weight gradient averaged", convolutions.WeightGradientAveraged, "gradients"),
    planted(
        "gradients of weight and bias in the wrong order", convolutions.JoinedGradientsSwapped, "gradients"
    ),
    planted("bias gradient not summed", convolutions.BiasGradientNotSummed, "gradients"),
    planted("input gradient not reduced over P_co", convolutions.InputGradientNotReduced, "gradients"),
    planted("left and right halo swapped", convolutions.HaloOfTheWrongSide, "sequential", 1),
    planted("stride counted from the local start", convolutions.StridePhaseFromTheLocalStart, "sequential"),
    planted("groups take the wrong channels", convolutions.GroupsFromTheWrongChannels, "sequential"),
    planted("idle worker leaves the graph", convolutions.IdleWorkerLeavesTheGraph, "gradients"),
    planted(
        "no backward where the input requires no gradient",
        linear_layers.BackwardOnlyWhereAGradientIsAskedFor,
        "gradients",
    ),
    planted("forward mode without the sum", linear_layers.TangentsNotSummed, "jacobian"),
    planted("cotangent divided among the summands", linear_layers.CotangentSharedOut, "gradients"),
    planted("stationary weight on the exchanged grid", stationary.WeightOnTheExchangedGrid, "sequential", 4),
    planted("stationary output on the input's grid", stationary.OutputOnTheGridOfTheInput, "sequential", 4),
    planted(
        "stationary input gathered from the other sub-grid",
        stationary.GatheredFromTheOtherSubgrid,
        "sequential",
        4,
    ),
    planted("gathered channels in the order of ranks", stationary.PartsInTheOrderOfRanks, "sequential"),
    planted("gathered input's gradient not summed", stationary.InputGradientNotScattered, "gradients"),
    planted("slice in place of a reduce-scatter", stationary.SliceInPlaceOfTheSum, "sequential"),
    planted("bias added before a reduce-scatter", stationary.BiasBeforeTheSum, "sequential"),
    planted(
        "stationary weight's gradient averaged", stationary.StationaryWeightGradientAveraged, "gradients"
    ),
    planted("panel of another step", matrix_products.PanelOfAnotherStep, "sequential", 1),
    planted("panel's gradient not summed", matrix_products.PanelGradientNotSummed, "gradients"),
    planted("own summand taken for the product", matrix_products.OwnSummandForTheProduct, "sequential"),
    planted("transposed convolution's halo without dilation", convolutions.HaloWithoutDilation, "sequential"),
    planted(
        "transposed convolution pads every part", convolutions.OutputsPlacedFromTheFirstInput, "sequential"
    ),
    planted("local statistics", normalisations.LocalStatistics, "sequential"),
    planted("variance averaged over uneven parts", normalisations.VariancesAveraged, "sequential"),
    planted("running variance biased", normalisations.RunningVarianceBiased, "sequential", 1),
    planted(
        "running statistics updated in evaluation",
        normalisations.RunningStatisticsUpdatedInEvaluation,
        "sequential",
        1,
    ),
    planted("identity as the statistics' backward", normalisations.StatisticsGradientNotReduced, "gradients"),
    planted(
        "group's variance averaged over uneven parts", normalisations.GroupVariancesAveraged, "sequential"
    ),
    planted(
        "groups counted from the worker's first channel", normalisations.GroupsCountedLocally, "sequential"
    ),
    planted("norm's weight gradient not reduced", normalisations.NormWeightGradientNotReduced, "gradients"),
    planted("root mean square of the own part", normalisations.RootMeanSquareOfTheOwnPart, "sequential"),
    planted(
        "running statistics of the local batch", normalisations.RunningStatisticsOfTheLocalBatch, "sequential"
    ),
    planted("interpolation of the own part", windows.InterpolatesTheOwnPart, "sequential"),
    planted("adaptive average of the own part", windows.AveragesTheOwnPart, "sequential"),
    planted("constant padding at every part's border", windows.ConstantAtEveryBorder, "sequential"),
    planted("dropout mask by local index", attention.MaskByLocalIndex, "sequential"),
    planted("dropout scaled by the own share", attention.MaskScaledByTheOwnShare, "sequential", 1),
    planted("joined on each worker", small_layers.JoinedOnEachWorker, "sequential"),
    planted("parts of a split in the wrong place", small_layers.PartsInTheWrongOrder, "sequential", 1),
    planted("ring attention with a stale block", attention.StaleBlock, "sequential"),
    planted("causal mask by local positions", attention.MaskByLocalPositions, "sequential"),
    planted("gradients of a ring's blocks stay", attention.GradientsOfBlocksStayWhereTheyAre, "gradients"),
    planted("rows of other workers' vocabulary kept", classes.RowsOfOtherWorkersKept, "sequential"),
    planted("padding row counted from the own vocabulary", classes.PaddingRowOfEveryWorker, "gradients"),
    planted("softmax divides by the own part's sum", classes.SumsOfTheOwnPart, "sequential"),
    planted("softmax subtracts the own part's largest", classes.LargestOfTheOwnPart, "sequential"),
    planted("label smoothing over the own classes", classes.SmoothedOverTheOwnClasses, "sequential"),
    planted("mean over the own weights", classes.DividedByOwnWeights, "sequential"),
    planted("batch mean of the own part", classes.BatchMeanOfTheOwnPart, "sequential"),
    planted("reshaped on each worker", small_layers.ReshapedLocally, "sequential"),
    planted("unflattened in the other order", small_layers.UnflattenedInTheOtherOrder, "sequential", 1),
    planted("stacked along another dimension", small_layers.StackedAlongAnotherDimension, "sequential", 1),
    planted("chunks of the own part", small_layers.ChunksOfTheOwnPart, "sequential"),
    planted("pixels of an uneven channel cut", small_layers.PixelsOfAnUnevenChannelCut, "sequential"),
    planted("blocks of pixels from the own first one", small_layers.PixelsOfTheOwnPart, "sequential"),
    planted("channels left where they are cut", small_layers.ChannelsLeftWhereTheyAreCut, "sequential"),
    planted("adaptive maximum of the own part", small_layers.AdaptiveMaximaOfTheOwnPart, "sequential"),
    planted("adaptive indices in the own part", small_layers.AdaptiveIndicesInTheOwnPart, "sequential"),
    planted("clipped windows of a power average", small_layers.ClippedWindowsCountedWhole, "sequential", 1),
    planted("unpooled by local index", small_layers.UnpooledByLocalIndex, "sequential"),
    planted("unpooled elements' gradients stay", windows.GradientsOfUnpooledElementsStay, "gradients"),
    planted(
        "probabilities smoothed over the own classes",
        small_layers.ProbabilitiesSmoothedOverTheOwnClasses,
        "sequential",
    ),
    planted("positions counted by every worker", small_layers.PositionsCountedByEveryWorker, "sequential"),
    planted("average counts padding", windows.AverageCountsPadding, "sequential", 1),
    planted("maximum pads with zero", windows.MaximumOfZeros, "sequential", 1),
    planted("indices in the local tensor", windows.IndicesInTheLocalTensor, "sequential"),
    planted("mean of local means under uneven cuts", small_loss.MeanOfLocalMeans, "sequential"),
    planted("input saved on the module", linear_layers.InputSavedOnTheModule, "gradients", 1),
    planted("output buffer reused", linear_layers.OutputBufferReused, "sequential", 1),
    planted("cotangent taken for contiguous", linear_layers.CotangentTakenForContiguous, "gradients", 1),
    planted("cotangent zeroed", linear_layers.CotangentZeroed, "gradients", 1),
    planted("accumulated gradient lost", linear_layers.AccumulatedGradientLost, "gradients", 1),
    planted("input overwritten", linear_layers.InputOverwritten, "sequential", 1),
    planted("parameter not declared", linear_layers.BiasNotDeclared, "gradients", 1),
    planted("gradients without a graph", linear_layers.GradientsWithoutAGraph, "double_backward", 1),
    planted("quotient on the root alone", small_loss.QuotientOnTheRootAlone, "double_backward"),
)

RIGHT = (
    convolutions.lines,
    stationary.stationary_lines,
    small_loss.errors,
    with_layer(linear_layers.OwnLinear),
    with_layer(linear_layers.OwnProduct),
)
"""The right layers that are no built-in subjects, all of whose checks `tests/subjects` runs."""
