"""Collectives by NCCL, for groups in which every rank has a GPU of its own."""
