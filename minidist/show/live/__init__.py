"""A training run while it goes on: the loss, what each rank is about, what it holds and sends, and what goes wrong."""
