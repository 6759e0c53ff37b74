"""NCCL, where every rank of a group has a GPU of its own."""
