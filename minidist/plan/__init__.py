"""Cost of a run, from arithmetic alone. Nothing here trains a model."""
