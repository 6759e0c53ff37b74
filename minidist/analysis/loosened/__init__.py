"""What looser steps cost and save, measured."""
