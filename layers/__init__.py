"""Distributed layers for torch, one module for each kind; `networks` composes them, and `subjects` draws cases of each.

The names below are loaded when they are first used, so that this package can be imported without torch.
"""

from __future__ import annotations

if __name__ != "adjointlab.layers":
    raise ImportError(
        f"this package is adjointlab.layers, but it was imported as {__name__!r}, which would load its modules "
        "twice; write `import adjointlab.layers`"
    )

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from adjointlab.layers.attention import Attention, ScaledDotProductAttention
    from adjointlab.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormalisation
    from adjointlab.layers.convolution import Conv1d, Conv2d, Conv3d, Convolution
    from adjointlab.layers.distributed import DistributedModule, TorchLayer
    from adjointlab.layers.dropout import Dropout, SeededDropout
    from adjointlab.layers.embedding import Embedding
    from adjointlab.layers.equal_values import check_values_alike
    from adjointlab.layers.flatten import Flatten
    from adjointlab.layers.group_norm import GroupNorm
    from adjointlab.layers.instance_norm import (
        InstanceNorm1d,
        InstanceNorm2d,
        InstanceNorm3d,
        InstanceNormalisation,
    )
    from adjointlab.layers.joining import Chunk, Chunks, Concatenation, Join, Part, Pile, Split, Stack
    from adjointlab.layers.layer_norm import LayerNorm, RMSNorm
    from adjointlab.layers.linear import Linear
    from adjointlab.layers.losses import (
        BCEWithLogitsLoss,
        CrossEntropyLoss,
        HuberLoss,
        KLDivLoss,
        L1Loss,
        MSELoss,
        NLLLoss,
        SmoothL1Loss,
    )
    from adjointlab.layers.matrix_product import MatrixProduct, Product
    from adjointlab.layers.multihead_attention import MultiheadAttention
    from adjointlab.layers.networks.lenet import LeNet5
    from adjointlab.layers.networks.network import Network
    from adjointlab.layers.networks.sequential import from_sequential
    from adjointlab.layers.padded import Padded
    from adjointlab.layers.padding import (
        CircularPad1d,
        CircularPad2d,
        CircularPad3d,
        ConstantPad1d,
        ConstantPad2d,
        ConstantPad3d,
        Padding,
        ReflectionPad1d,
        ReflectionPad2d,
        ReflectionPad3d,
        ReplicationPad1d,
        ReplicationPad2d,
        ReplicationPad3d,
        ZeroPad1d,
        ZeroPad2d,
        ZeroPad3d,
    )
    from adjointlab.layers.permute import Permute, Permuted, Transpose, Transposed
    from adjointlab.layers.pointwise import Pointwise
    from adjointlab.layers.pooling import (
        AdaptiveAveragePooling,
        AdaptiveAvgPool1d,
        AdaptiveAvgPool2d,
        AdaptiveAvgPool3d,
        AdaptiveMaxPool1d,
        AdaptiveMaxPool2d,
        AdaptiveMaxPool3d,
        AdaptiveMaxPooling,
        AveragePooling,
        AvgPool1d,
        AvgPool2d,
        AvgPool3d,
        LPPool1d,
        LPPool2d,
        LPPool3d,
        LPPooling,
        MaxPool1d,
        MaxPool2d,
        MaxPool3d,
        MaxPooling,
        MaxUnpool1d,
        MaxUnpool2d,
        MaxUnpool3d,
        MaxUnpooling,
    )
    from adjointlab.layers.rank_strides import strided_partition
    from adjointlab.layers.repartition import Repartition
    from adjointlab.layers.reshape import Reshape, Reshaped, Unflatten
    from adjointlab.layers.shuffle import ChannelShuffle, PixelShuffle, PixelUnshuffle
    from adjointlab.layers.softmax import LogSoftmax, Softmax
    from adjointlab.layers.states import load_sequential_state_dict, sequential_state_dict
    from adjointlab.layers.stationary_convolution import (
        StationaryConv1d,
        StationaryConv2d,
        StationaryConv3d,
        StationaryConvolution,
    )
    from adjointlab.layers.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from adjointlab.layers.transposed_convolution import (
        ConvTranspose1d,
        ConvTranspose2d,
        ConvTranspose3d,
        TransposedConvolution,
    )
    from adjointlab.layers.upsampling import Upsample, UpsamplingBilinear2d, UpsamplingNearest2d
    from adjointlab.layers.utilities import (
        clip_grad_norm_,
        get_total_norm,
        parameters_to_vector,
        sequential_gradients,
        vector_to_parameters,
    )
    from adjointlab.layers.windows import local_window

__all__ = [
    "AdaptiveAveragePooling", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AdaptiveMaxPooling", "Attention", "AveragePooling", "AvgPool1d",
    "AvgPool2d", "AvgPool3d", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d",
    "BatchNormalisation", "ChannelShuffle", "Chunk", "Chunks", "CircularPad1d", "CircularPad2d", "CircularPad3d",
    "ColumnParallelLinear", "Concatenation", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "Conv1d", "Conv2d",
    "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Convolution", "CrossEntropyLoss",
    "DistributedModule", "Dropout", "Embedding", "Flatten", "GroupNorm", "HuberLoss", "InstanceNorm1d",
    "InstanceNorm2d", "InstanceNorm3d", "InstanceNormalisation", "Join", "KLDivLoss", "L1Loss", "LPPool1d",
    "LPPool2d", "LPPool3d", "LPPooling", "LayerNorm", "LeNet5", "Linear", "LogSoftmax", "MSELoss", "MatrixProduct",
    "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxPooling", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d",
    "MaxUnpooling", "MultiheadAttention", "NLLLoss", "Network", "Padded", "Padding", "Part", "Permute", "Permuted",
    "Pile", "PixelShuffle", "PixelUnshuffle", "Pointwise", "Product", "RMSNorm", "ReflectionPad1d",
    "ReflectionPad2d", "ReflectionPad3d", "Repartition", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d",
    "Reshape", "Reshaped", "RowParallelLinear", "ScaledDotProductAttention", "SeededDropout", "SmoothL1Loss",
    "Softmax", "Split", "Stack", "StationaryConv1d", "StationaryConv2d", "StationaryConv3d",
    "StationaryConvolution", "TorchLayer", "Transpose", "Transposed", "TransposedConvolution", "Unflatten",
    "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
    "check_values_alike", "clip_grad_norm_", "from_sequential", "get_total_norm", "load_sequential_state_dict",
    "local_window", "parameters_to_vector", "sequential_gradients", "sequential_state_dict",
    "strided_partition", "vector_to_parameters",
]  # fmt: skip

_NAMES: Final = {
    "attention": ("Attention", "ScaledDotProductAttention",),
    "batch_norm": ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormalisation",),
    "convolution": ("Conv1d", "Conv2d", "Conv3d", "Convolution",),
    "distributed": ("DistributedModule", "TorchLayer",),
    "dropout": ("Dropout", "SeededDropout",),
    "embedding": ("Embedding",),
    "flatten": ("Flatten",),
    "group_norm": ("GroupNorm",),
    "instance_norm": ("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "InstanceNormalisation",),
    "joining": ("Chunk", "Chunks", "Concatenation", "Join", "Part", "Pile", "Split", "Stack",),
    "layer_norm": ("LayerNorm", "RMSNorm",),
    "linear": ("Linear",),
    "losses": (
        "BCEWithLogitsLoss", "CrossEntropyLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "NLLLoss",
        "SmoothL1Loss",
    ),
    "matrix_product": ("MatrixProduct", "Product",),
    "multihead_attention": ("MultiheadAttention",),
    "networks.lenet": ("LeNet5",),
    "networks.network": ("Network",),
    "networks.sequential": ("from_sequential",),
    "padded": ("Padded",),
    "padding": (
        "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d",
        "Padding", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d",
        "ReplicationPad3d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
    ),
    "permute": ("Permute", "Permuted", "Transpose", "Transposed",),
    "pointwise": ("Pointwise",),
    "pooling": (
        "AdaptiveAveragePooling", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d",
        "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AdaptiveMaxPooling", "AveragePooling",
        "AvgPool1d", "AvgPool2d", "AvgPool3d", "LPPool1d", "LPPool2d", "LPPool3d", "LPPooling", "MaxPool1d",
        "MaxPool2d", "MaxPool3d", "MaxPooling", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d", "MaxUnpooling",
    ),
    "rank_strides": ("strided_partition",),
    "repartition": ("Repartition",),
    "reshape": ("Reshape", "Reshaped", "Unflatten",),
    "shuffle": ("ChannelShuffle", "PixelShuffle", "PixelUnshuffle",),
    "softmax": ("LogSoftmax", "Softmax",),
    "equal_values": ("check_values_alike",),
    "states": ("load_sequential_state_dict", "sequential_state_dict",),
    "stationary_convolution": (
        "StationaryConv1d", "StationaryConv2d", "StationaryConv3d", "StationaryConvolution",
    ),
    "tensor_parallel": ("ColumnParallelLinear", "RowParallelLinear",),
    "transposed_convolution": (
        "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "TransposedConvolution",
    ),
    "upsampling": ("Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d",),
    "utilities": (
        "clip_grad_norm_", "get_total_norm", "parameters_to_vector", "sequential_gradients", "vector_to_parameters",
    ),
    "windows": ("local_window",),
}  # fmt: skip
"""The module of each name."""

_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'adjointlab.layers' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"adjointlab.layers.{name} needs torch, which is not installed: pip install 'adjointlab[torch]'",
            name="torch",
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
