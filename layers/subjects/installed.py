"""The subjects of the layers, where torch is installed: the entry point, which must be importable without it too."""

from importlib.util import find_spec

if find_spec("torch") is not None:
    from adjointlab.layers.subjects.modules import *  # noqa: F403
