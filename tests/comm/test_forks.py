"""A process that holds ranks is forked: the ranks stay the parent's, and the child may start its own."""

import os
import signal
from contextlib import suppress

import pytest
from scripts import LIMIT, in_script, left_after

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
METHODS = ["forkserver", "spawn", "fork"]

FORK_WITH_RANKS = """
    import os, sys
    import minidist as md
    def double(world):
        return 2 * world.rank
    with md.Cluster(2, start_method="{method}") as cluster:
        cluster.run(double)
        child = os.fork()
        if child == 0:
            {child}
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), cluster.run(double))
    """


@pytest.mark.parametrize("method", METHODS)
def test_a_child_that_exits_leaves_the_parents_ranks_alone(tmp_path, method):
    code, out, err = in_script(tmp_path, FORK_WITH_RANKS.format(method=method, child="pass"))
    assert (code, out, err) == (0, "7 [0, 2]\n", "")


def test_a_child_cannot_run_functions_on_the_parents_ranks(tmp_path):
    child = "cluster.run(double)"
    code, out, err = in_script(tmp_path, FORK_WITH_RANKS.format(method="forkserver", child=child))
    assert (code, out) == (0, "1 [0, 2]\n")  # the parent's ranks are as they were
    assert "RuntimeError: the ranks of this Cluster belong to process" in err
    assert "make a new Cluster here, or call run there" in err


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_a_child_can_start_ranks_of_its_own(tmp_path, method):
    child = f'print(md.launch(double, 3, start_method="{method}"))'
    code, out, err = in_script(tmp_path, FORK_WITH_RANKS.format(method=method, child=child))
    assert (code, out, err) == (0, "[0, 2, 4]\n7 [0, 2]\n", "")


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="looks into /proc and /dev/shm")
def test_a_child_can_start_ranks_after_its_parent_has_ended(tmp_path):
    """As a daemon does. The parent takes its fork server and its temporary folder with it."""
    process = in_script(
        tmp_path,
        """
        import os, sys
        import minidist as md
        print(md.launch(lambda world: world.rank, 1), flush=True)
        ended, end = os.pipe()
        if os.fork() == 0:
            os.close(end)
            os.read(ended, 1)    # until the parent has ended
            print(md.launch(lambda world: world.size, 2))
            sys.exit()
        """,
        wait=False,
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
        assert (out, err) == ("[0]\n[2, 2]\n", "")
        assert left_after(process.pid) == ([], [])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
