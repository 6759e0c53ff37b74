"""Processes that run functions as the ranks of torch groups: one group on minidist, and one on gloo to compare with."""

import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

LIMIT = 120  # seconds: for processes that import torch on a busy machine, and for any one function


class Groups(NamedTuple):
    """Argument of a function that runs on ranks: groups of all ranks."""

    rank: int
    size: int
    both: tuple  # on minidist, on gloo


class TorchRanks:
    """``size`` warm processes. ``ranks(function, *arguments)`` returns each rank's result, in rank order."""

    def __init__(self, size: int, folder: Path, seconds: float = LIMIT) -> None:
        context, store = multiprocessing.get_context("spawn"), str(folder / "store")
        pairs = [context.Pipe() for _ in range(size)]
        self.pipes, self.processes = [mine for mine, _ in pairs], []
        for rank, (_, theirs) in enumerate(pairs):
            arguments = theirs, rank, size, store, seconds
            self.processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self.processes[-1].start()
            theirs.close()  # so that a process that dies is noticed

    def __call__(self, function: Callable, *arguments) -> list:
        self.send(function, *arguments)
        return [self.receive(rank) for rank in range(len(self.pipes))]

    def send(self, function: Callable, *arguments) -> None:
        for pipe in self.pipes:
            pipe.send((function, arguments))

    def receive(self, rank: int):
        assert self.pipes[rank].poll(LIMIT), f"rank {rank} does not answer"
        error, result = self.pipes[rank].recv()
        assert error is None, f"rank {rank}:\n{error}"
        return result

    def close(self) -> list[int]:
        """Let the processes end by themselves; return their exit statuses."""
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(30)
            process.kill()
            process.join(30)
        return [process.exitcode for process in self.processes]


def _serve(pipe, rank: int, size: int, store: str, seconds: float) -> None:
    import torch
    import torch.distributed as dist

    import minidist.pytorch

    torch.set_num_threads(1)
    minidist.pytorch.register("ring")
    limit = timedelta(seconds=LIMIT)  # they may load for longer than a wait may take later
    dist.init_process_group("minidist", f"file://{store}", rank=rank, world_size=size, timeout=limit)
    groups = Groups(rank, size, (dist.group.WORLD, dist.new_group(backend="gloo", timeout=limit)))
    dist.group.WORLD.set_timeout(timedelta(seconds=seconds))
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((None, function(groups, *arguments)))
        except Exception:
            pipe.send((traceback.format_exc(), None))
    dist.destroy_process_group()
