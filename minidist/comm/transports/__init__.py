"""What carries a message from one rank to another: queues in shared memory."""
