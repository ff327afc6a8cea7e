"""Messages of arrays between ranks: buffers of the host as they are, those of a device by a transport."""

from adjointlab.core.transport.choice import agree, chosen, inherit, over, use

__all__ = ["agree", "chosen", "inherit", "over", "use"]
