"""Messages of arrays between ranks: buffers of the host as they are, those of a device by a transport."""

from adjointlab.core.transport.choice import agree, chosen, inherit, over, use
from adjointlab.core.transport.packing import packed_together

__all__ = ["agree", "chosen", "inherit", "over", "packed_together", "use"]
