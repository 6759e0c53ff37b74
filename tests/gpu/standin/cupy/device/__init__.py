"""A device that does not exist: its streams, and the libraries that work on addresses."""
