"""What an answer is not allowed to do, and what happens if it does."""

import numpy as np
import pytest

import minidist as md
from minidist.course.answers import Source, course_folder
from minidist.course.authoring.plugin import RANK_MODULES
from minidist.course.sandbox.guard import PRINTED_CHARACTERS
from minidist.course.sandbox.in_rank import Contract
from minidist.course.sandbox.student import Student
from minidist.course.sandbox.warm_ranks import WarmRanks


@pytest.fixture(scope="module")
def warm():
    ranks = WarmRanks(RANK_MODULES)
    yield ranks
    ranks.close()


@pytest.fixture
def student(warm, tmp_path):
    """``student(code, *forbidden)``: a Student whose file of answers has that text."""

    def make(code: str, *forbidden: str) -> Student:
        return Student(Source("ch09_test", str(tmp_path / "ch09_test.py"), code), Contract(forbidden=forbidden), warm)

    return make


def failure(student, name="f", *args) -> md.RankFailed:
    with pytest.raises(md.RankFailed) as caught:
        student.call(name, *args)
    return caught.value


def test_values_come_back(student):
    code = "import numpy as np\ndef f(x):\n    return {'twice': x * 2, 'shape': x.shape, 'word': 'yes', 'none': None}"
    found = student(code).call("f", np.arange(3))
    assert found["twice"].tolist() == [0, 2, 4] and found["shape"] == (3,) and found["word"] == "yes"


def test_only_plain_values_leave_a_rank(student):
    code = "class Equal:\n    def __eq__(self, other):\n        return True\ndef f():\n    return [1, Equal()]"
    assert "got a Equal" in failure(student(code)).summary
    code = "import numpy as np\nclass A(np.ndarray):\n    pass\ndef f():\n    return np.ones(3).view(A)"
    assert "got a A" in failure(student(code)).summary


def test_subclasses_of_numbers_do_not_leave_a_rank(student):
    """Nothing that comes back brings code into the grading process."""
    code = "import numpy as np\nclass F(np.float64):\n    def __reduce__(self):\n        return print, ('here',)\n"
    assert "got a F" in failure(student(code + "def f():\n    return F(1.0)")).summary
    assert student("import numpy as np\ndef f():\n    return np.float64(2.5)").call("f") == 2.5


def test_replacements_during_loading_are_restored(student):
    code = """
import numpy as np, minidist as md, builtins
from minidist.comm import group, point_to_point
np.add = np.subtract
point_to_point.send = md.send = print
group.ProcessGroup.traffic = None
builtins.len = lambda x: 0
def f(a):
    return [np.add(a, a), len([1, 2])]
"""
    one = student(code)
    total, length = one.call("f", np.ones(2))
    assert total.tolist() == [2, 2] and length == 2
    (remark,) = one.remarks
    for name in ("numpy.add", "minidist.comm.point_to_point.send", "ProcessGroup.traffic", "builtins.len"):
        assert name in remark
    assert student("def f():\n    return len([1])").call("f") == 1  # the same process, the next answer


def test_replacements_during_a_call_fail(student):
    code = "import numpy as np\ndef f():\n    np.add = np.subtract\n    return 1"
    assert failure(student(code)).summary == "Tampering: the answer replaces numpy.add"
    assert student("import numpy as np\ndef f():\n    return int(np.add(1, 1))").call("f") == 2


RING = "minidist.comm.algorithms"


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import types\nimport minidist.comm.algorithms as a\n"
         "g = types.FunctionType(a.all_reduce_ring.__wrapped__.__code__, vars(a))\ndef f():\n    g(1, 2, 3)", RING),
        ("import minidist.comm.algorithms as a\ncode = a.all_reduce_ring.__wrapped__.__code__\n"
         "def mine(flat, combine, group):\n    pass\nmine.__code__ = code\ndef f():\n    mine(1, 2, 3)", RING),
        ("import minidist.comm.algorithms as a\ntry:\n    a.all_reduce_ring(1, 2, 3)\nexcept AttributeError:\n"
         "    pass\ndef f():\n    pass", RING),
        ("import types\nfrom minidist.parallel.zero import ZeroStage3 as Z\n"  # it calls super(): its code has a cell
         "g = types.FunctionType(Z.complete.__code__, globals(), closure=Z.complete.__closure__)\n"
         "def f():\n    g(None)", "minidist.parallel.zero:ZeroStage3"),
    ],
)  # fmt: skip
def test_the_librarys_answer_is_closed_while_answers_load(student, code, forbidden):
    """Nobody can copy its code then, to call it later."""
    assert failure(student(code, forbidden)).summary.startswith("LibraryAnswer: the answer calls minidist's own ")


READ = "import os, linecache, minidist.comm.algorithms as a\nfrom minidist.course.answers import ROOT\n"
READ += "theirs = str(ROOT / 'solutions' / 'ch00_walls.py')\nhere = os.path.dirname(__file__) + '/mine'\n"


@pytest.mark.parametrize(
    "body",
    [
        "os.link(a.__file__, here)\n    open(here)",
        "os.symlink(a.__file__, here)\n    open(here)",
        "open(os.fsencode(a.__file__))",
        "os.open(a.__file__, os.O_RDONLY)",
        "os.chdir(os.path.dirname(a.__file__))\n    open('algorithms.py')",
        "open(a.__spec__.cached, 'rb')",
        "linecache.getlines(a.__file__)",
        "open(theirs)",
        "os.chdir(ROOT)\n    open('solutions/../solutions/ch00_walls.py')",
    ],
)
def test_reading_the_librarys_answer_under_another_name(student, body):
    error = failure(
        student(READ + "def f():\n    if os.path.lexists(here):\n        os.remove(here)\n    " + body, RING)
    )
    assert error.summary.startswith("LibraryAnswer: the answer reads "), error


def test_a_hard_link_to_the_solutions(student, tmp_path):
    """One that exists already, wherever it came from."""
    try:
        (tmp_path / "mine").hardlink_to(course_folder("solutions") / "ch00_walls.py")
    except OSError:
        pytest.skip("the temporary folder is on another file system")
    assert failure(student("def f():\n    open('mine')")).summary.startswith("LibraryAnswer: the answer reads ")
    assert failure(student("import os\nopen(os.open('mine', os.O_RDONLY))")).summary.startswith("LibraryAnswer: ")


def test_a_source_that_python_remembers(student):
    """Python keeps the lines of files that a traceback has quoted, and returns them without opening the file again."""
    one = "import linecache, minidist.comm.algorithms as a\ndef f():\n    return len(linecache.getlines(a.__file__))"
    assert student(one).call("f") > 10  # nothing is forbidden yet
    assert failure(student(one, RING)).summary.startswith("LibraryAnswer: the answer reads ")


@pytest.mark.parametrize(
    "body",
    [
        "subprocess.run(['cat', 'x'])",
        "subprocess.getoutput('cat x')",
        "os.system('cat x')",
        "os.popen('cat x')",
        "os.posix_spawn('/bin/cat', ['cat', 'x'], {})",
        "os.execv('/bin/cat', ['cat', 'x'])",
        "multiprocessing.get_context('spawn').Process(target=print).start()",
        "multiprocessing.get_context('forkserver').Process(target=print).start()",
        "try:\n        subprocess.run(['true'])\n    except Exception:\n        return 1",
    ],
)
def test_programs_do_not_start(student, body):
    code = f"import multiprocessing, os, subprocess\ndef f():\n    {body}"
    assert failure(student(code)).summary.startswith("StartsProgram: the answer starts a program with ")
    assert failure(student(f"import os\nos.system('true')\n{code}")).summary.startswith("StartsProgram: ")  # at load
    assert student("def f():\n    return 5").call("f") == 5


def test_the_library_imports_itself_before_it_is_closed(student):
    """Some of its modules call, while they are imported, what is forbidden to the answer that imports them."""
    code = "import minidist.show.demos.pipeline.scene\ndef f():\n    return 5"
    assert student(code, "minidist.parallel.tools.schedules").call("f") == 5


@pytest.mark.parametrize(
    "code",
    [
        "import minidist as md\ndef f(w):\n    md.all_reduce(x, group=w, algorithm='ring')",
        "from minidist import all_reduce as mine\ndef f(w):\n    mine(x, group=w)",
        "from minidist.comm.algorithms import all_reduce_ring as mine\ndef f(w):\n    mine(x, np.add, w)",
        "from minidist.comm import algorithms\ndef f(w):\n    algorithms.ALL_REDUCE['ring'](x, np.add, w)",
    ],
)
def test_calling_the_librarys_own_answer_fails(student, code):
    one = student(
        "import numpy as np\nx = np.ones(3)\n" + code, "minidist.comm.algorithms", "minidist.comm.collectives"
    )
    with pytest.raises(md.RankFailed) as caught:
        one.on_ranks(2, lambda world, answers: answers.f(world))
    assert caught.value.summary.startswith("LibraryAnswer: the answer calls minidist's own all_reduce")
    assert md.all_reduce.__code__.co_name == "all_reduce"  # nothing is forbidden here


def test_forbidden_modules_are_allowed_again(student, warm):
    student("def f():\n    return 1", "minidist.comm.collectives").call("f")

    def all_reduce(world):
        x = np.ones(2)
        md.all_reduce(x, group=world)
        return x

    assert warm(1).run(all_reduce)[0].tolist() == [1, 1]


def test_one_forbidden_function_or_class(student):
    """ "module:name": the rest of the module may be called."""
    code = "import minidist as md, numpy as np\nfrom minidist.parallel import data\n"
    code += "def f(w):\n    md.sendrecv(np.ones(1), 1 - w.rank, np.ones(1), 1 - w.rank, w)\n"
    code += "def g(w):\n    md.barrier(w)\ndef h(w):\n    data.BucketedDataParallel([], w).wait_for_gradients()\n"
    code += "def i(w):\n    return list(data.share_of(0, 2, 4))"
    one = student(code, "minidist.comm.point_to_point:barrier", "minidist.parallel.data:BucketedDataParallel")
    assert one.on_ranks(2, lambda world, answers: answers.i(world))[0].value == [0, 1]
    one.on_ranks(2, lambda world, answers: answers.f(world))
    for name, forbidden in (("g", "barrier"), ("h", "BucketedDataParallel.__init__")):
        with pytest.raises(md.RankFailed) as caught:
            one.on_ranks(2, lambda world, answers, name=name: getattr(answers, name)(world))
        assert caught.value.summary.startswith(f"LibraryAnswer: the answer calls minidist's own {forbidden},")


def test_threads_that_keep_running_are_reported_and_ended(student, warm):
    code = "import threading, time\ndef f():\n    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    one = student(code)
    before = warm(1)
    one.call("f")
    assert one.remarks == ["leaves threads running; they were ended"] and warm(1) is not before


def test_a_peak_cannot_be_hidden(student):
    from minidist.course.authoring.assertions import peak_bytes

    one = student("import tracemalloc\ndef f():\n    tracemalloc.stop()")
    with pytest.raises(md.RankFailed, match="stops the measurement of its memory"):
        one.on_ranks(1, lambda world, answers: peak_bytes(answers.f))


def test_forks_end_at_once(student):
    error = failure(student("import os\ndef f():\n    return [os.fork() for _ in range(3)] and 1"))
    assert error.summary.startswith("Forked:")
    assert student("def f():\n    return 5").call("f") == 5


def test_exits(student):
    assert "exit(3)" in failure(student("import sys\ndef f():\n    sys.exit(3)")).summary
    error = failure(student("import os\ndef f():\n    os._exit(4)"))
    assert error.exitcode == 4
    assert student("def f():\n    return 5").call("f") == 5


def test_an_endless_loop_is_reported_with_its_line(student, monkeypatch):
    monkeypatch.setattr("minidist.course.sandbox.student.SECONDS", 0.5)
    code = "import numpy as np\ndef f():\n    while True:\n        try:\n            np.array_split(np.ones(9), 3)\n"
    code += "        except BaseException:\n            pass"
    with pytest.raises(TimeoutError, match=r"within 0\.5 s:\n  rank 0 is at ch09_test\.py:[3-7] in f"):
        student(code).call("f")


def test_a_deadlock_is_reported_with_its_line(student):
    code = "import minidist as md, numpy as np\ndef f(w):\n    md.recv(np.ones(1), 1 - w.rank, w)"
    with pytest.raises(md.Deadlock, match=r"at ch09_test\.py:3 in f"):
        student(code).on_ranks(2, lambda world, answers: answers.f(world))


def test_messages_that_nobody_receives(student):
    code = "import minidist as md, numpy as np\ndef f(w):\n    if w.rank == 0:\n        md.send(np.ones(2), 1, w)"
    with pytest.raises(AssertionError, match="never received"):
        student(code).on_ranks(2, lambda world, answers: answers.f(world))


def test_printing_is_limited(student, capfd):
    one = student("def f():\n    for _ in range(50):\n        print('x' * 10_000)\n    return 1")
    assert one.call("f") == 1
    assert one.remarks == [f"printed more than {PRINTED_CHARACTERS:,} characters; the rest was dropped"]
    assert capfd.readouterr().out.count("x") == PRINTED_CHARACTERS - 1  # and a line end


def test_a_file_that_deletes_itself_and_its_folder(student, tmp_path):
    (tmp_path / "ch09_test.py").write_text("")
    code = (
        "import os, shutil\nshutil.rmtree(os.path.dirname(__file__), ignore_errors=True)\ndef f(w):\n    return w.rank"
    )
    one = student(code)
    for _ in range(3):
        assert [seen.value for seen in one.on_ranks(3, lambda world, answers: answers.f(world))] == [0, 1, 2]


def test_tracebacks_quote_a_file_that_is_gone(student):
    error = failure(student("def f():\n    x = 1\n    return x / 0  # here"))
    assert "return x / 0  # here" in error.traceback_text and 'ch09_test.py", line 3, in f' in error.traceback_text
