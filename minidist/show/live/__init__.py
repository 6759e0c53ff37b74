"""Live view of a training run: the loss; what each rank does, holds and sends; and what goes wrong."""
