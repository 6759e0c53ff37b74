"""Inside somebody else's process: a pool's worker starts ranks, whatever its start method, and its errors come home."""

import copy
import importlib
import pickle
import pkgutil

import dill
import pytest
from choosing import long
from scripts import in_script

import minidist
from minidist.comm import Deadlock, Hang, RankFailed
from minidist.train.resilience.checks import CorruptedNumbers, Finding

POOL = """
    import {package}
    from dataclasses import dataclass
    import numpy as np
    import minidist as md

    SCALE = 3

    @dataclass
    class Shard:
        values: np.ndarray

    def main(world, shard):
        if shard.values.size == 3 and world.rank == 1:
            raise ValueError("no such shard")
        md.all_reduce(shard.values, group=world)
        return Shard(SCALE * shard.values)

    def task(number):
        if number == 4:
            return md.launch(lambda world: md.recv(np.empty(1), 1 - world.rank, world), 2)
        found = md.launch(main, 2, Shard(np.arange(number, dtype=float)), start_method={method!r})
        return [float(shard.values.sum()) for shard in found]

    if __name__ == "__main__":
        with {package}.get_context({pool!r}).Pool(4) as pool:
            for result in [pool.apply_async(task, (number,)) for number in range(5)]:
                try:
                    print(result.get(120))
                except Exception as error:
                    print(type(error).__name__, str(error).splitlines()[0], list(vars(error)))
    """
EXPECTED = """\
[0.0, 0.0]
[0.0, 0.0]
[6.0, 6.0]
RankFailed rank 1 of 2 failed: ValueError: no such shard ['rank', 'summary', 'traceback_text', 'exitcode', 'ranks']
Deadlock ranks 0, 1 of 2 can never continue: ['waiting']
"""


@pytest.mark.parametrize(
    ("package", "pool", "method"),
    [
        ("multiprocessing", "fork", None),
        *(long("multiprocessing", pool, method) for pool, method in (("forkserver", None), ("spawn", "spawn"))),
        *(long("multiprocess", pool, None) for pool in ("spawn", "fork")),
    ],
)
def test_a_pool_gives_values_or_the_named_error(tmp_path, package, pool, method):
    if package == "multiprocess":  # writes the script's functions by dill alone
        try:
            dill.dumps(lambda: None)
        except AttributeError as error:
            pytest.skip(f"this dill cannot write a function of this Python: {error}")
    code, out, err = in_script(tmp_path, POOL.format(package=package, pool=pool, method=method))
    assert (code, out) == (0, EXPECTED), err


ARGUMENTS = {  # of those whose constructor takes more than a message
    RankFailed: ("rank 1 failed", 1, "ValueError: x", "traceback", None, (1, 2)),
    Deadlock: ("can never go on", {0: "recv"}),
    Hang: ("hangs", (1,), {1: "computing"}),
    CorruptedNumbers: (Finding("vote", 3, 2, 1, (1,), ("w",), None),),
}


def test_every_error_can_be_pickled_and_copied():
    """Every exception class that a module of the library defines."""
    left_out, classes = ("__main__", ".demos.", ".pytorch"), set()
    for module in pkgutil.walk_packages(minidist.__path__, "minidist."):
        if not any(part in module.name for part in left_out):
            try:
                things = vars(importlib.import_module(module.name)).values()
            except ModuleNotFoundError as missing:
                if missing.name != "mpi4py":  # which a newcomer need not have
                    raise
                continue
            classes |= {c for c in things if isinstance(c, type) and c.__module__ == module.name}
    errors = {c for c in classes if issubclass(c, BaseException)}
    assert set(ARGUMENTS) < errors
    for one in errors:
        error = one(*ARGUMENTS.get(one, ("what is wrong",)))
        error.add_note("a note")
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(other) is one and str(other) == str(error) and other.args == error.args
            assert other.__dict__ == error.__dict__, one
