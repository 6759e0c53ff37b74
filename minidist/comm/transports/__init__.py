"""Carries messages from one rank to another, over queues in shared memory."""
