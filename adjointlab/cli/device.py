"""The option ``--device``: parsing its value, and checking that the device can be used."""

from __future__ import annotations

from adjointlab import options

__all__ = ["usable_device"]


def usable_device(text: str | None) -> str | None:
    """Return the value of the option; None if it is not given.

    Raises `ValueError` for an illegal value, and its subclass :class:`~adjointlab.devices.probes.NoDevice` for "cuda" if no
    device can be used, or if the versions of CuPy, the driver and torch do not match.
    """
    device = None if text is None else options.DEVICE.parse(text)
    if device == "cuda":
        from adjointlab.devices.probes import require_device

        require_device()
    return device
