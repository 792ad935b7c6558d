"""Which turns may begin now, which wait in the queue, and which are refused."""
