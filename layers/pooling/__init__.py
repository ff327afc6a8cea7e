"""Distributed pooling over one to three dimensions: max, average and power averages, adaptive ones, and unpooling."""

from adjointlab.layers.pooling.adaptive import (
    AdaptiveAveragePooling,
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AdaptiveMaxPooling,
)
from adjointlab.layers.pooling.average import AveragePooling, AvgPool1d, AvgPool2d, AvgPool3d
from adjointlab.layers.pooling.maximum import MaxPool1d, MaxPool2d, MaxPool3d, MaxPooling
from adjointlab.layers.pooling.power_average import LPPool1d, LPPool2d, LPPool3d, LPPooling
from adjointlab.layers.pooling.unpooling import MaxUnpool1d, MaxUnpool2d, MaxUnpool3d, MaxUnpooling
from adjointlab.layers.pooling.windows import Pooling

__all__ = [
    "AdaptiveAveragePooling",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AdaptiveMaxPooling",
    "AveragePooling",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "LPPooling",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxPooling",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "MaxUnpooling",
    "Pooling",
]
