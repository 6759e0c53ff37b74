"""Collectives between GPUs by NCCL, where every rank of a group has a GPU of its own.

find_gpus.py    all ranks learn which GPU each of them uses
routes.py       which calls NCCL carries; all others go through host memory
communicator.py   the communicator of one group, and each collective as calls of NCCL
stream.py       NCCL works on a stream of its own, beside the stream that computes
traffic.py      what is counted as sent
"""
