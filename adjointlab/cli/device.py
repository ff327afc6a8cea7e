"""The option ``--device``: its value, and a device for it."""

from __future__ import annotations

from adjointlab import options

__all__ = ["usable_device"]


def usable_device(text: str | None) -> str | None:
    """Return the value of the option, None where it is left out.

    Raises `ValueError` for another value than those that are legal, and :class:`~adjointlab.devices.probes.NoDevice`, which is
    one too, for "cuda" where there is no device that can be used, or where CuPy, the driver and torch do not fit together.
    """
    device = None if text is None else options.DEVICE.parse(text)
    if device == "cuda":
        from adjointlab.devices.probes import require_device

        require_device()
    return device
