"""Distributed pooling: max and average, over one to three dimensions."""

from adjointlab.layers.pooling.average import AveragePooling, AvgPool1d, AvgPool2d, AvgPool3d
from adjointlab.layers.pooling.maximum import MaxPool1d, MaxPool2d, MaxPool3d, MaxPooling
from adjointlab.layers.pooling.windows import Pooling

__all__ = [
    "AveragePooling",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxPooling",
    "Pooling",
]
