"""Messages of arrays between ranks: host buffers are passed to MPI directly, device buffers by a transport."""

from adjointlab.core.transport.choice import agree, chosen, inherit, over, use
from adjointlab.core.transport.packing import packed_together

__all__ = ["agree", "chosen", "inherit", "over", "packed_together", "use"]
