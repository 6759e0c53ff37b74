"""Answers on ranks: what they may not do, what is noticed besides a right value, and that no later answer suffers."""

import re

import numpy as np
import pytest

import minidist as md
from minidist.course.answers import Source, course_folder
from minidist.course.authoring.assertions import peak_bytes
from minidist.course.authoring.plugin import RANK_MODULES
from minidist.course.sandbox.guard import PRINTED_CHARACTERS
from minidist.course.sandbox.in_rank import Contract, run_in_rank
from minidist.course.sandbox.student import Student, WarmRanks
from minidist.course.sandbox.values import generator, numbers

ALGORITHMS, COLLECTIVES = "minidist.comm.algorithms", "minidist.comm.collectives"


@pytest.fixture(scope="module")
def warm():
    with WarmRanks(RANK_MODULES) as ranks:
        yield ranks


@pytest.fixture
def student(warm, tmp_path):
    """``student(code, **contract)``: a Student with that file of answers, or with ``f(world)`` of that body."""

    def make(code: str, **contract) -> Student:
        if "def f" not in code:
            code = "def f(world):\n" + "".join(f"    {line}\n" for line in code.splitlines())
        text = f"import os\nimport numpy as np\nimport minidist as md\nimport minidist.comm.algorithms as a\n{code}"
        return Student(Source("ch09_test", str(tmp_path / "ch09_test.py"), text), Contract(**contract), warm)

    return make


def f_of_world(world, answers):
    return answers.f(world)


def calls_of_f(world, answers, *inputs):
    return [answers.f(*each) for each in inputs]


def f_of_a_large_array(world, answers):
    answers.f(np.ones(1 << 14), world)


def peak_of_f(world, answers):
    return peak_bytes(lambda: answers.f(world))


def peak_of_a_sum(world, answers):
    x = np.ones(1 << 15)
    answers.f(x)
    return peak_bytes(lambda: answers.f(x)) < 1 << 15


X, ROWS = np.ones(3), [[1], [2]]
ONE, TWO, TWICE, LIST_TWICE = [(X,)], [(X,), (np.full(3, 5.0),)], [(X,), (X,)], [(ROWS,), (ROWS,)]


COPIES = "import types\ncode = a.all_reduce_ring.__wrapped__.__code__\n"
LINK = "here = os.path.dirname(__file__) + '/mine'\nif os.path.lexists(here):\n    os.remove(here)\n"
ROOT = "from minidist.course.answers import ROOT\n"
PROGRAMS = "import multiprocessing, subprocess\n"
IN_FLIGHT = """
def f(x, world):
    other = 1 - world.rank
    arriving = md.irecv(np.empty_like(x), other, world)
    leaving = md.isend(x, other, world)
    arriving.wait()
    """
ASYNCHRONOUS = "def f(x, world):\n    works = [md.all_reduce(x, group=world, async_op=True) for _ in range(2)]\n    "
FORBIDDEN = {"forbidden": (ALGORITHMS, COLLECTIVES)}
VIOLATIONS = [  # (what is said, contract, caller, ranks, answers), all of them in one rank, one after the other
    (r"^LibraryAnswer: the answer calls minidist's own all_reduce", FORBIDDEN, f_of_world, 1, [
        "md.all_reduce(np.ones(3), group=world, algorithm='ring')",
        "from minidist import all_reduce as mine\ndef f(w):\n    mine(np.ones(3), group=w)",
        "from minidist.comm.algorithms import all_reduce_ring as mine\ndef f(w):\n    mine(np.ones(3), np.add, w)",
        "a.ALL_REDUCE['ring'](np.ones(3), np.add, world)",
        # while answers load: nobody can copy its code then, to call it later
        f"{COPIES}g = types.FunctionType(code, vars(a))\ndef f(w):\n    g(1, 2, 3)",
        f"{COPIES}def g(flat, combine, group):\n    pass\ng.__code__ = code\ndef f(w):\n    g(1, 2, 3)",
        "try:\n    a.all_reduce_ring(1, 2, 3)\nexcept AttributeError:\n    pass\ndef f(w):\n    pass",
    ]),
    (r"^LibraryAnswer: the answer calls minidist's own ", {"forbidden": ("minidist.parallel.zero:ZeroStage3",)},
     f_of_world, 1, [
        "import types\nfrom minidist.parallel.zero import ZeroStage3 as Z\n"  # it calls super(): its code has a cell
        "g = types.FunctionType(Z.complete.__code__, globals(), closure=Z.complete.__closure__)\n"
        "def f(w):\n    g(None)"]),
    # one function or class is forbidden, not its module
    (r"the answer calls minidist's own barrier,", {"forbidden": ("minidist.comm.point_to_point:barrier",)},
     f_of_world, 1, ["md.barrier(world)"]),
    (r"the answer calls minidist's own BucketedDataParallel\.__init__,",
     {"forbidden": ("minidist.parallel.data:BucketedDataParallel",)}, f_of_world, 1, [
        "from minidist.parallel import data\ndata.BucketedDataParallel([], world)"]),
    (r"^LibraryAnswer: the answer reads ", FORBIDDEN, f_of_world, 1, [
        f"{LINK}os.link(a.__file__, here)\nopen(here)",
        f"{LINK}os.symlink(a.__file__, here)\nopen(here)",
        "open(os.fsencode(a.__file__))",
        "os.open(a.__file__, os.O_RDONLY)",
        "os.chdir(os.path.dirname(a.__file__))\nopen('algorithms.py')",
        "open(a.__spec__.cached, 'rb')",
        "import linecache\nlinecache.getlines(a.__file__)",
        "import importlib.util as u\nu.spec_from_file_location('mine', a.__file__).loader.get_data(a.__file__)",
        "from solutions.ch03_collectives import all_reduce_ring",
        ROOT + "open(ROOT / 'solutions' / 'ch00_walls.py')",
        ROOT + "os.chdir(ROOT)\nopen('solutions/../solutions/ch00_walls.py')",
    ]),
    (r"^StartsProgram: the answer starts a program with ", {}, f_of_world, 1, [PROGRAMS + body for body in (
        "subprocess.run(['cat', 'x'])",
        "subprocess.getoutput('cat x')",
        "os.system('cat x')",
        "os.popen('cat x')",
        "os.posix_spawn('/bin/cat', ['cat', 'x'], {})",
        "os.execv('/bin/cat', ['cat', 'x'])",
        "multiprocessing.get_context('spawn').Process(target=print).start()",
        "multiprocessing.get_context('forkserver').Process(target=print).start()",
        "try:\n    subprocess.run(['true'])\nexcept Exception:\n    return 1",
        "os.system('true')\ndef f(world):\n    return 1",  # while it is loaded
    )]),
    (r"^Tampering: the answer replaces numpy\.add$", {}, f_of_world, 1, ["np.add = np.subtract\nreturn 1"]),
    (r"exit\(3\)", {}, f_of_world, 1, ["import sys\nsys.exit(3)"]),
    (r"stops the measurement of its memory", {}, peak_of_f, 1, ["import tracemalloc\ntracemalloc.stop()"]),
    # only plain values leave a rank: nothing that comes back brings code into the grading process
    (r"got a Equal", {}, f_of_world, 1, [
        "class Equal:\n    def __eq__(self, other):\n        return True\nreturn [1, Equal()]"]),
    (r"got a A", {}, f_of_world, 1, ["class A(np.ndarray):\n    pass\nreturn np.ones(3).view(A)"]),
    (r"got a F", {}, f_of_world, 1, [
        "class F(np.float64):\n    def __reduce__(self):\n        return print, ('here',)\nreturn F(1.0)"]),
    # second calls
    (r"f changes an array of an earlier call", {}, TWO, 1, [
        "KEPT = np.empty(3)\ndef f(x):\n    np.multiply(x, 2, out=KEPT)\n    return KEPT",
        "LENT = []\ndef f(x):\n    LENT.append(x)\n    LENT[0] += 1\n    return x.sum()"]),
    (r"f returns memory of an array of an earlier call", {}, TWO, 1, [
        f"KEPT = np.arange(3)\ndef f(x):\n    return {result}" for result in ("KEPT", "KEPT[1:]", "[KEPT]")]),
    (r"in two calls, although the caller of the first may change it", {}, TWO, 1, [
        f"KEPT = {made}\ndef f(x):\n    return KEPT" for made in ("[1, 2]", "([], [])", "{'a': 1}", "{1, 2}")]),
    (r"f returns the same list in two calls", {}, LIST_TWICE, 1, [  # it makes f no plain function
        "import functools\ndef f(n):\n    return [1]\nf = functools.partial(lambda kept, rows: kept, [1])"]),
    (r"f returns an array that shares memory with its arguments", {"shared": ("g",)}, ONE, 1, [
        f"def f(x):\n    return {result}" for result in ("x", "x[1:]", "[{'part': x[::2]}]")]),
]  # fmt: skip
ENDINGS = [  # those that need ranks of their own
    (r"^Forked:", {}, f_of_world, 1, ["return [os.fork() for _ in range(3)] and 1"]),
    (r"exited with status 4", {}, f_of_world, 1, ["os._exit(4)"]),
    (r"at ch09_test\.py:6 in f", {}, f_of_world, 2, ["md.recv(np.ones(1), 1 - world.rank, world)"]),  # a deadlock
    (r"never received", {}, f_of_world, 2, ["world.rank or md.send(np.ones(2), 1, world)"]),
    # messages in flight
    (r"an isend of 131072 bytes to rank", {}, f_of_a_large_array, 2, [IN_FLIGHT]),
    (r"an asynchronous collective is never waited for: all_reduce", {}, f_of_a_large_array, 1, [ASYNCHRONOUS]),
    (r"an asynchronous collective is never waited for: all_reduce", {}, f_of_a_large_array, 2, [
        f"{ASYNCHRONOUS}works[0].wait()"]),
]  # fmt: skip
ALLOWED = [  # (what rank 0 returns, contract, caller, ranks, answers)
    ([[{"shape": (3,), "word": "yes", "none": None}, 2.5, 0.75]], {}, ONE, 1, [
        "from fractions import Fraction\n"
        "def f(x):\n    return [{'shape': x.shape, 'word': 'yes', 'none': None}, np.float64(2.5), Fraction(3, 4)]"]),
    ([{"a": [0, 1], "b": [2], "c": (3, 4)}], {}, ONE, 1, [  # any kind of dict, list or tuple
        "from collections import defaultdict, deque, namedtuple\n"
        "def f(x):\n    return defaultdict(list, a=range(2), b=deque([2]), c=namedtuple('Pair', 'm n')(3, 4))"]),
    ([[2, 2, 2], [10, 10, 10]], {}, TWO, 1, ["def f(x):\n    return x * 2"]),
    ([[0, 1, 2]] * 2, {"shared": ("f",)}, TWO, 1, ["KEPT = np.arange(3)\ndef f(x):\n    return KEPT"]),
    ([[1, 1, 1]], {"shared": ("f",)}, ONE, 1, ["def f(x):\n    return x"]),
    ([[1, 2]] * 2, {}, TWO, 1, ["def f(x):\n    return [1, 2]"]),
    ([[1], [1]], {}, LIST_TWICE, 1, ["def f(rows):\n    return rows[0]"]),  # a list that is lent again
    ([6, 12], {}, TWICE, 1, ["def f(x):\n    x *= 2\n    return x.sum()"]),
    (True, {}, peak_of_a_sum, 1, ["def f(x):\n    return x.sum()"]),
    (None, {}, f_of_a_large_array, 2, [
        f"{IN_FLIGHT}leaving.wait()", f"{IN_FLIGHT}while not leaving.is_completed(): pass",
        # a group runs collectives in the order of the calls: when the last is done, all are
        f"{ASYNCHRONOUS}works[1].wait()", f"{ASYNCHRONOUS}while not works[1].is_completed(): pass"]),
    # modules call, while they are imported, what is forbidden to the answer that imports them
    (5, {"forbidden": ("minidist.parallel.tools.schedules",)}, f_of_world, 1, [
        "import minidist.show.demos.pipeline.bug\ndef f(world):\n    return 5"]),
    # "module:name" forbids a function or a class; the rest of the module may be called
    ([0, 1], {"forbidden": ("minidist.comm.point_to_point:barrier", "minidist.parallel.data:BucketedDataParallel")},
     f_of_world, 2, [
        "from minidist.parallel import data\nother = 1 - world.rank\n"
        "md.sendrecv(np.ones(1), other, np.ones(1), other, world)\nreturn list(data.share_of(0, 2, 4))"]),
    (1, {"forbidden": (COLLECTIVES, ALGORITHMS)}, f_of_world, 1, ["return 1"]),  # and the next one may, in this rank
    (6, {}, f_of_world, 1, [  # nothing is forbidden to an answer whose task does not say so
        "import linecache\nx = np.full(2, 3.0)\nmd.all_reduce(x, group=world)\n"
        "return int(x.sum()) if len(linecache.getlines(a.__file__)) > 10 else 0"]),
    ([1, 2, 2, True], {}, f_of_world, 1, [  # and nothing is left of the answers before
        "return [len([1]), int(np.add(1, 1)), len('ab'), md.ProcessGroup.traffic is not None]"]),
]  # fmt: skip


def plain(value):
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def call_of(caller) -> tuple:
    """Return a rank's function and its arguments: a function of the world and the answers, or calls of f."""
    return (caller, ()) if callable(caller) else (calls_of_f, tuple(caller))


def run(answers: Student, size: int, caller):
    """Return the result of rank 0."""
    function, inputs = call_of(caller)
    return plain(answers.on_ranks(size, function, *inputs)[0].value)


def what_each_raises(world, calls: list[tuple]) -> list[str]:
    """Return what is said of each of these runs in a rank, which goes on."""
    found = []
    for call in calls:
        try:
            found.append(f"no error: {run_in_rank(world, *call).value!r}")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_what_is_not_allowed_is_said_and_what_is_allowed_comes_back_also_afterwards(student, warm):
    rows = [(message, student(code, **contract), caller) for message, contract, caller, _, answers in VIOLATIONS
            for code in answers]  # fmt: skip
    calls = [(one.source, one.contract, *call_of(caller)) for _, one, caller in rows]
    (said,) = warm(1).run(what_each_raises, calls, timeout=120)
    seen = [(message, one.source.text, words) for (message, one, _), words in zip(rows, said, strict=True)]
    for message, contract, caller, size, answers in ENDINGS:
        for code in answers:
            try:
                words = f"no error: {run(student(code, **contract), size, caller)!r}"
            except (md.RankFailed, md.Deadlock, AssertionError) as error:
                words = getattr(error, "summary", str(error))
            seen.append((message, code, words))
    offenders = [f"{code}\n    expected {message}, got {words}" for message, code, words in seen
                 if not re.search(message, words)]  # fmt: skip
    for expected, contract, caller, size, answers in ALLOWED:
        for code in answers:
            if (seen := run(student(code, **contract), size, caller)) != expected:
                offenders.append(f"{code}\n    expected {expected}, got {seen}")
    assert not offenders, "\n".join(offenders)
    assert md.all_reduce.__code__.co_name == "all_reduce"  # nothing is forbidden here


def test_a_hard_link_to_the_solutions(student, tmp_path):
    """One that exists already, wherever it came from."""
    try:
        (tmp_path / "mine").hardlink_to(course_folder("solutions") / "ch00_walls.py")
    except OSError:
        pytest.skip("the temporary folder is on another file system")
    for code in ("def f(world):\n    open('mine')", "open(os.open('mine', os.O_RDONLY))\ndef f(world):\n    pass"):
        with pytest.raises(md.RankFailed, match="LibraryAnswer: the answer reads a file under the name '"):
            student(code).on_ranks(1, f_of_world)


def test_replacements_during_loading_are_restored(student):
    code = """
import builtins, sys
from minidist.comm import group, point_to_point
np.add = np.subtract
point_to_point.send = md.send = print
group.ProcessGroup.traffic = None
builtins.len = lambda x: 0
sys.modules["numpy"] = md
def f(world):
    import numpy
    return [int(numpy.add(1, 1)), len([1, 2])]
"""
    one = student(code)
    assert run(one, 1, f_of_world) == [2, 2]
    (remark,) = one.remarks
    replaced = {"numpy", "numpy.add", "minidist.comm.point_to_point.send", "builtins.len"}
    assert replaced <= set(re.findall(r"[\w.]+", remark)) and "ProcessGroup.traffic" in remark


def test_threads_that_keep_running_are_reported_and_ended(student, warm):
    one = student("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()")
    before = warm(1)
    one.on_ranks(1, f_of_world)
    assert one.remarks == ["leaves threads running; they were ended"] and warm(1) is not before


def test_an_endless_loop_is_reported_with_its_line(student, monkeypatch):
    monkeypatch.setattr("minidist.course.sandbox.student.SECONDS", 0.5)
    code = "while True:\n    try:\n        np.array_split(np.ones(9), 3)\n    except BaseException:\n        pass"
    with pytest.raises(TimeoutError, match=r"within 0\.5 s:\n  rank 0 is at ch09_test\.py:([6-9]|10) in f"):
        student(code).on_ranks(1, f_of_world)


def test_printing_is_limited_and_a_rehearsal_prints_only_what_led_to_its_error(student, capfd):
    one = student("def f():\n    for _ in range(50):\n        print('x' * 10_000)\n    return 1")
    assert one.call("f") == 1
    assert one.remarks == [f"printed more than {PRINTED_CHARACTERS:,} characters; the rest was dropped"]
    assert capfd.readouterr().out.count("x") == PRINTED_CHARACTERS - 1  # and a line end
    student("def f():\n    print('seen')").call("f")
    with pytest.raises(md.RankFailed):
        student("def f():\n    print('seen')\n    raise ValueError").call("f")
    assert capfd.readouterr().out.count("seen") == 2


def test_a_file_that_is_gone_still_runs_and_tracebacks_quote_it(student, tmp_path):
    (tmp_path / "ch09_test.py").write_text("")
    code = "import shutil\nshutil.rmtree(os.path.dirname(__file__), ignore_errors=True)\n"
    one = student(code + "def f(w):\n    return w.rank\ndef g():\n    x = 1\n    return x / 0  # here")
    for _ in range(3):
        assert [seen.value for seen in one.on_ranks(3, f_of_world)] == [0, 1, 2]
    with pytest.raises(md.RankFailed) as caught:
        one.call("g")
    assert "return x / 0  # here" in caught.value.traceback_text
    assert 'ch09_test.py", line 11, in g' in caught.value.traceback_text


def test_what_an_answer_keeps_from_its_first_call(student):
    """One load serves all calls of a task, and the first that counts is not the first: a default list has grown."""
    grows = "def f(seen=[]):\n    seen.append(1)\n    return len(seen)"
    assert [student(grows, task="9.1").call("f") for _ in range(2)] == [2, 3]
    assert student(grows, task="9.1", dtype="int32").call("f") == 4  # whatever the dtype
    assert student(grows, task="9.2").call("f") == 2  # another task loads it again


def f_of_drawn_numbers(world, answers):
    drawn = generator(6, world.rank).integers(0, 1 << 30, 3)
    return [(answers.f(lent), lent) for lent in (numbers(world.rank, 4), drawn)]


def test_a_rehearsal_has_other_values(student):
    """The call that counts has the values that the grader itself computes."""
    memo = "MEMO = {}\ndef f(x):\n    return MEMO.setdefault(x.shape, x * 2).copy()"
    pairs = student(memo, task="9.1").on_ranks(1, f_of_drawn_numbers)[0].value
    for (found, lent), expected in zip(pairs, (numbers(0, 4), generator(6, 0).integers(0, 1 << 30, 3)), strict=True):
        assert not np.array_equal(found, 2 * lent) and np.array_equal(lent, expected)


def g_of_nothing(world, answers):
    return answers.g()


def f_with_another_helper(world, answers):
    answers.helper = lambda: "replaced"
    return answers.f(world), answers.helper()


def test_nothing_that_was_lent_or_replaced_is_there_in_the_next_run(student):
    one = student("KEPT = []\ndef f(x):\n    KEPT.append(x)\ndef g():\n    return KEPT[-1].sum()")
    run(one, 1, ONE)
    assert run(one, 1, g_of_nothing) == 3 * 77
    one = student("def helper():\n    return 'own'\ndef f(world):\n    return helper()")
    assert run(one, 1, f_with_another_helper) == ("replaced", "replaced")
    assert run(one, 1, f_of_world) == "own"
