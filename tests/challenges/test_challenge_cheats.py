"""No wrong answer has a score, whatever it would cost."""

import importlib
import re
import sys

import pytest
from better_answers import BETTER, better_answer
from choosing import long

from minidist.course.challenges.scoring import challenge_of
from minidist.course.sandbox.forbidden import no_side_channels

ONE_RANK_ALL_STAGES = (
    "one = [f'{s}{k}{i}' for i in range(micro_batches) for k in 'FB' for s in "
    "(range(ranks) if k == 'F' else reversed(range(ranks)))]\n    return [one, *[[] for _ in range(ranks - 1)]]"
)
KEEP_ALL = (
    "n = len(flops)\n    return [s for i in range(n - 1) for s in (f'F{i}', f'K{i + 1}')] + "
    "[f'B{i}' for i in reversed(range(n))]"
)
KEEP_WEIGHTS = "global A, B\n    A, B = a.copy(), b.copy()\n    return []\n"
BEGINNINGS = {  # what the bodies below go on with
    "3": "import numpy as np\nfrom minidist import all_reduce\ndef fast_all_reduce(flat, alpha, beta, group):\n    ",
    "4": "def choose_buckets(nbytes, *_):\n    ",
    "5": "def choose_shards(parameters, *_):\n    ",
    "6": "import numpy as np\ndef place_weights(a, b, tokens, rank, ranks):\n    ",
    "7": "from minidist.parallel.tools.schedules import schedule\n"
    "def choose_schedule(ranks, micro_batches, limit):\n    ",
    "8": "def plan_recomputation(flops, slots):\n    ",
    "9": "def place_ranks(sent, per_node):\n    ",
}
CHEATS = {  # chapter -> (what it tries, a body of the function that is asked for, a pattern that the message matches)
    "3": [
        ("does nothing", "pass", "not the sum"),
        ("sends in the background", "all_reduce(flat, group=group, async_op=True).wait()",
         "all_reduce runs in the background"),
        ("hands arrays over in files",
         "np.save(f'/tmp/minidist-{group.rank}', flat)\n    all_reduce(flat, group=group)", "passes data on with open"),
        ("hands arrays over in shared memory",
         "from multiprocessing.shared_memory import SharedMemory\n    SharedMemory(create=True, size=8)\n",
         "passes data on with shared memory"),
        ("replaces the measurement",
         "from minidist import trace\n    trace.stop = lambda: []\n    all_reduce(flat, group=group)",
         "replaces minidist.trace.stop"),
        ("knows the numbers of the others",
         "import sys\n    seeds = sys._getframe(1).f_locals.get('seeds')\n    flat[:] = len(seeds)",
         "not the sum|rank"),
        ("reads a better answer",
         f"pass\ntext = open({str(BETTER / 'challenge03_all_reduce.py')!r}).read()\nexec(text)",
         "the answer reads tests/challenges/better"),
        ("ends its process", "import os\n    os._exit(0)", "exited with status 0"),
    ],
    "4": [
        ("sends nothing", "return []", "each must be in one bucket, exactly once"),
        ("sends a gradient twice", "return [[n, 3] for n in range(len(nbytes))]", "exactly once"),
        ("has empty buckets", "return [[]]", "a bucket is empty"),
        ("returns a score", "return 0.0", "expected a list of buckets, got 0.0"),
    ],
    "5": [
        ("needs more memory than there is", "return [(0, 0)] * len(parameters)", r"they hold [\d,]+ of [\d,]+ bytes"),
        ("invents a way to shard", "return [(-1, 0)] * len(parameters)", "a pair must hold 0"),
    ],
    "6": [
        ("holds all weights everywhere",
         "return [a.copy(), b.copy()]\ndef mlp(x, placed, *_):\n    a, b = placed\n    return x",
         "its share of the weights is"),
        ("sends nothing", "return []\ndef mlp(x, *_):\n    return x.copy()",
         r"does not return its rows of relu\(x a\) b"),
        ("keeps the weights for later", KEEP_WEIGHTS + "def mlp(x, *_):\n    return np.maximum(x @ A, 0) @ B",
         "NameError"),
    ],
    "7": [
        ("leaves a micro-batch out",
         "return [list(map(str, one)) for one in schedule('1f1b', ranks, micro_batches - 1)]",
         "micro-batch 7 must go through stage 0 once forward"),
        ("holds more than it may", "return [list(map(str, one)) for one in schedule('gpipe', ranks, micro_batches)]",
         "rank 0 holds the activations of 8 micro-batches"),
        ("can never run", "return [[*map(str, reversed(one))] for one in schedule('naive', ranks, micro_batches)]",
         "this schedule can never end"),
        ("gives one rank more stages", ONE_RANK_ALL_STAGES, "expected the same number of stages on every rank"),
    ],
    "8": [
        ("does nothing", "return []", "the plan ends before B23"),
        ("keeps everything", KEEP_ALL, "5 inputs are kept, but only 4 fit"),
        ("goes backward without inputs", "return [f'B{i}' for i in reversed(range(len(flops)))]",
         "the input of block 23 is not there"),
        ("begins with the cheap backwards", "return ['B0'] * len(flops)", "the next backward is B23"),
    ],
    "9": [
        ("places one rank everywhere", "return [0] * len(sent)", "each must have one place"),
        ("changes the traffic", "sent[:] = 0\n    return []", "expected 32 numbers"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("chapter", CHEATS)
def test_no_cheat_has_a_score(chapter, judged):
    offenders = []
    for what, body, message in CHEATS[chapter]:
        found = judged(challenge_of(chapter), BEGINNINGS[chapter] + body)
        if found.score is not None or not re.search(message, found.message):
            offenders.append(f"{what}: {found}")
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("chapter", "old", "new", "message"),
    [
        ("3", "2**steps != group.size or group.size == 1", "group.size == 1", "of (3|6)|never received|rank"),
        ("5", "- 2 * unreduced", "- unreduced", "they hold"),  # a little more than the memory
        long("3", "    ", "    while True:\n        pass\n    ", "did not end within"),
    ],
    ids=["right for powers of two alone", "holds too much for a moment", "loops for ever"],
)
def test_a_better_answer_that_is_spoiled_has_no_score(chapter, old, new, message, judged):
    text = better_answer(challenge_of(chapter)).text
    assert old in text
    found = judged(challenge_of(chapter), text.replace(old, new, 1))
    assert found.score is None and re.search(message, found.message), found


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
