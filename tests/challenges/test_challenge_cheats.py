"""No wrong answer has a score, whatever it would cost."""

import importlib
import re
import sys

import pytest
from conftest import BETTER, better_answer

from minidist.course.challenges.catalogue import challenge_of
from minidist.course.challenges.side_channels import no_side_channels

ALL_REDUCE = """
import numpy as np
from minidist import all_reduce, recv, send, sendrecv
def fast_all_reduce(flat, alpha, beta, group):
"""
MLP = """
import numpy as np
from minidist import all_gather_into_tensor, all_reduce
def place_weights(a, b, tokens, rank, ranks):
"""
SCHEDULE = """
from minidist.parallel.tools.schedules import Action, schedule
def choose_schedule(ranks, micro_batches, limit):
"""

# (chapter, what it tries, its code, a pattern that the message matches)
CHEATS = [
    ("3", "does nothing", ALL_REDUCE + "    pass", "not the sum"),
    ("3", "returns a score", ALL_REDUCE + "    return 0.001\nscore = library = 0.001", "not the sum"),
    (
        "3",
        "right for powers of two alone",
        better_answer(challenge_of("3")).text.replace("2**steps != group.size or group.size == 1", "group.size == 1"),
        "of (3|6)|never received|rank",
    ),
    (
        "3",
        "sends in the background",
        ALL_REDUCE + "    all_reduce(flat, group=group, async_op=True).wait()",
        "all_reduce runs in the background",
    ),
    (
        "3",
        "hands arrays over in files",
        ALL_REDUCE + "    np.save(f'/tmp/minidist-{group.rank}', flat)\n    all_reduce(flat, group=group)",
        "passes data on with open",
    ),
    (
        "3",
        "hands arrays over in shared memory",
        ALL_REDUCE
        + "    from multiprocessing.shared_memory import SharedMemory\n    SharedMemory(create=True, size=8)\n",
        "passes data on with shared memory",
    ),
    (
        "3",
        "replaces the measurement",
        ALL_REDUCE + "    from minidist import trace\n    trace.stop = lambda: []\n    all_reduce(flat, group=group)",
        "replaces minidist.trace.stop",
    ),
    (
        "3",
        "knows the numbers of the others",
        ALL_REDUCE + "    import sys\n    seeds = sys._getframe(1).f_locals.get('seeds')\n    flat[:] = len(seeds)",
        "not the sum|rank",
    ),
    (
        "3",
        "reads a better answer",
        f"text = open({str(BETTER / 'challenge03_all_reduce.py')!r}).read()\nexec(text)",
        "the answer reads tests/challenges/better",
    ),
    ("3", "loops for ever", ALL_REDUCE + "    while True:\n        pass", "did not end within"),
    ("3", "ends its process", ALL_REDUCE + "    import os\n    os._exit(0)", "exited with status 0"),
    ("4", "sends nothing", "def choose_buckets(*_):\n    return []", "each must be in one bucket, exactly once"),
    (
        "4",
        "forgets the gradient that is last",
        "def choose_buckets(nbytes, *_):\n    return [list(range(1, len(nbytes)))]",
        "exactly once",
    ),
    (
        "4",
        "sends a gradient twice",
        "def choose_buckets(nbytes, *_):\n    return [[n, 3] for n in range(len(nbytes))]",
        "exactly once",
    ),
    ("4", "has empty buckets", "def choose_buckets(*_):\n    return [[]]", "a bucket is empty"),
    ("4", "returns a score", "def choose_buckets(*_):\n    return 0.0", "expected a list of buckets, got 0.0"),
    (
        "5",
        "needs more memory than there is",
        "def choose_shards(parameters, *_):\n    return [(0, 0)] * len(parameters)",
        r"they hold [\d,]+ of [\d,]+ bytes",
    ),
    (
        "5",
        "invents a way to shard",
        "def choose_shards(parameters, *_):\n    return [(-1, 0)] * len(parameters)",
        "a pair says 0",
    ),
    (
        "6",
        "holds all weights everywhere",
        MLP + "    return [a.copy(), b.copy()]\ndef mlp(x, placed, *_):\n    a, b = placed\n    return x",
        "its share of the weights is",
    ),
    (
        "6",
        "sends nothing",
        MLP + "    return []\ndef mlp(x, *_):\n    return x.copy()",
        r"other numbers than its rows of relu\(x a\) b",
    ),
    (
        "6",
        "keeps the weights for later",
        MLP
        + "    global A, B\n    A, B = a.copy(), b.copy()\n    return []\n"
        + "def mlp(x, *_):\n    return np.maximum(x @ A, 0) @ B",
        "NameError",
    ),
    (
        "7",
        "leaves a micro-batch out",
        SCHEDULE + "    return [list(map(str, one)) for one in schedule('1f1b', ranks, micro_batches - 1)]",
        "micro-batch 7 must go through stage 0 once forward",
    ),
    (
        "7",
        "holds more than it may",
        SCHEDULE + "    return [list(map(str, one)) for one in schedule('gpipe', ranks, micro_batches)]",
        "rank 0 holds the activations of 8 micro-batches",
    ),
    (
        "7",
        "can never run",
        SCHEDULE + "    return [[*map(str, reversed(one))] for one in schedule('naive', ranks, micro_batches)]",
        "this schedule can never end",
    ),
    (
        "7",
        "gives one rank more stages",
        SCHEDULE + "    one = [f'{s}{k}{i}' for i in range(micro_batches) for k in 'FB' for s in "
        "(range(ranks) if k == 'F' else reversed(range(ranks)))]\n    return [one, *[[] for _ in range(ranks - 1)]]",
        "expected the same number of stages on every rank",
    ),
    ("8", "does nothing", "def plan_recomputation(flops, slots):\n    return []", "the plan ends before B23"),
    (
        "8",
        "keeps everything",
        "def plan_recomputation(flops, slots):\n    n = len(flops)\n    return [s for i in range(n - 1) for s in "
        "(f'F{i}', f'K{i + 1}')] + [f'B{i}' for i in reversed(range(n))]",
        "5 inputs are kept, and 4 fit",
    ),
    (
        "8",
        "goes backward without inputs",
        "def plan_recomputation(flops, slots):\n    return [f'B{i}' for i in reversed(range(len(flops)))]",
        "the input of block 23 is not there",
    ),
    (
        "8",
        "begins with the cheap backwards",
        "def plan_recomputation(flops, slots):\n    return ['B0'] * len(flops)",
        "the next backward is B23",
    ),
    (
        "9",
        "places one rank everywhere",
        "def place_ranks(sent, per_node):\n    return [0] * len(sent)",
        "each must have one place",
    ),
    (
        "9",
        "changes the traffic",
        "def place_ranks(sent, per_node):\n    sent[:] = 0\n    return []",
        "expected 32 numbers",
    ),
]


@pytest.mark.parametrize(
    ("chapter", "code", "message"),
    [
        pytest.param(chapter, code, message, id=f"{chapter}: {what}", marks=pytest.mark.long if n % 4 else ())
        for n, (chapter, what, code, message) in enumerate(CHEATS)
    ],
)
def test_it_has_no_score(chapter, code, message, judged):
    found = judged(challenge_of(chapter), code)
    assert found.score is None and re.search(message, found.message), found


def test_what_is_replaced_while_loading_is_restored(judged):
    challenge = challenge_of("8")
    code = "import minidist.course.challenges.scoring.ch08_recompute as s\ns.forward_flops = lambda *_: 0\n"
    found = judged(challenge, code + better_answer(challenge).text)
    assert found.score == pytest.approx(challenge.known, rel=1e-3)
    assert re.search("replaces .*forward_flops; it was restored", found.remarks[0])


def test_an_import_is_no_side_channel(tmp_path, monkeypatch):
    """Python stores what it compiles in a file: whoever imports a module first would be refused."""
    (tmp_path / "imported_first_here.py").write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "compiled"))
    with no_side_channels():
        module = importlib.import_module("imported_first_here")
    assert module.ANSWER == 42 and not (tmp_path / "compiled").exists()
    assert not sys.dont_write_bytecode
