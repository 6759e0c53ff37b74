"""What graders notice besides a right value: the second call, what was lent, and messages in flight."""

from fractions import Fraction

import numpy as np
import pytest

import minidist as md
from minidist.course.answers import Source
from minidist.course.authoring.assertions import peak_bytes
from minidist.course.authoring.plugin import RANK_MODULES
from minidist.course.sandbox.in_rank import Contract
from minidist.course.sandbox.student import Student
from minidist.course.sandbox.values import generator, many_digits, numbers, use_dtype, working_dtype
from minidist.course.sandbox.warm_ranks import WarmRanks


@pytest.fixture(scope="module")
def warm():
    with WarmRanks(RANK_MODULES) as ranks:
        yield ranks


@pytest.fixture
def student(warm, tmp_path):
    """``student(code, task=..., shared=...)``: a Student whose file of answers has that text."""

    def make(code: str, **contract) -> Student:
        text = f"import numpy as np\nimport minidist as md\n{code}"
        return Student(Source("ch09_test", str(tmp_path / "ch09_test.py"), text), Contract(**contract), warm)

    return make


def refusal(student: Student, size: int, function, *args) -> str:
    with pytest.raises(md.RankFailed) as caught:
        student.on_ranks(size, function, *args)
    return caught.value.summary


# Second calls


def twice(world, answers):
    first = answers.f(np.ones(3))
    answers.f(np.full(3, 5.0))
    return first


def test_a_buffer_that_is_kept_and_returned(student):
    kept = "BUFFER = np.empty(3)\ndef f(x):\n    np.multiply(x, 2, out=BUFFER)\n    return BUFFER"
    assert "f changes an array of an earlier call" in refusal(student(kept), 1, twice)
    assert student("def f(x):\n    return x * 2").on_ranks(1, twice)[0].value.tolist() == [2, 2, 2]


def test_a_function_that_remembers_its_results(student):
    """functools.cache makes something of it that is no plain function."""
    kept = "import functools\n@functools.cache\ndef f(n):\n    return list(range(n))"
    with pytest.raises(md.RankFailed, match="f returns the same list in two calls"):
        student(kept).on_ranks(1, lambda world, answers: [answers.f(3), answers.f(3)])


def test_an_array_that_was_lent_and_changes_later(student):
    kept = "LENT = []\ndef f(x):\n    LENT.append(x)\n    LENT[0] += 1\n    return x.sum()"
    assert "f changes an array of an earlier call" in refusal(student(kept), 1, twice)


@pytest.mark.parametrize("result", ["KEPT", "KEPT[1:]", "[KEPT]"])
def test_an_array_that_is_returned_twice(student, result):
    again = f"KEPT = np.arange(3)\ndef f(x):\n    return {result}"
    assert "f returns memory of an array of an earlier call" in refusal(student(again), 1, twice)
    student(again, shared=("f",)).on_ranks(1, twice)


@pytest.mark.parametrize("made", ["[1, 2]", "([], [])", "{'a': 1}", "{1, 2}"])
def test_a_list_that_is_returned_twice(student, made):
    again = f"KEPT = {made}\ndef f(x):\n    return KEPT"
    assert "in two calls, although the caller of the first may change it" in refusal(student(again), 1, twice)
    assert student(f"def f(x):\n    return {made}").on_ranks(1, twice)[0].value == eval(made)


def the_same_list(world, answers):
    rows = [[1], [2]]
    return [answers.f(rows) for _ in range(2)]


def test_a_list_that_is_lent_again_may_be_returned(student):
    assert student("def f(rows):\n    return rows[0]").on_ranks(1, the_same_list)[0].value == [[1], [1]]


def in_place_twice(world, answers):
    x = np.ones(3)
    answers.f(x)
    answers.f(x)
    return x


def test_an_array_that_is_lent_again_may_change(student):
    assert student("def f(x):\n    x *= 2").on_ranks(1, in_place_twice)[0].value.tolist() == [4, 4, 4]


def test_what_an_answer_keeps_from_its_first_call(student):
    """One load serves all calls of a task, and the first that counts is not the first: a default list has grown."""
    grows = "def f(seen=[]):\n    seen.append(1)\n    return len(seen)"
    assert [student(grows, task="9.1").call("f") for _ in range(2)] == [2, 3]
    assert student(grows, task="9.1", dtype="int32").call("f") == 4  # whatever the dtype
    assert student(grows, task="9.2").call("f") == 2  # another task loads it again


def of_numbers(world, answers):
    return answers.f(numbers(world.rank, 4)), numbers(world.rank, 4)


def test_a_rehearsal_has_other_values(student):
    memo = "MEMO = {}\ndef f(x):\n    return MEMO.setdefault(x.shape, x * 2).copy()"
    found, lent = student(memo).on_ranks(1, of_numbers)[0].value
    assert not np.array_equal(found, 2 * lent)
    assert np.array_equal(lent, numbers(0, 4))  # what counts has the values that the grader itself computes


# What was lent


def once(world, answers):
    answers.f(np.ones(3))


@pytest.mark.parametrize("result", ["x", "x[1:]", "[{'part': x[::2]}]"])
def test_a_result_that_refers_to_an_argument(student, result):
    code = f"def f(x):\n    return {result}"
    assert "f returns an array that shares memory with its arguments" in refusal(student(code), 1, once)
    student(code, shared=("f",)).on_ranks(1, once)
    assert "shares memory" in refusal(student(code, shared=("g",)), 1, once)


def lend(world, answers):
    return answers.f([np.ones(3)])


def look(world, answers):
    return answers.g()


def test_what_was_lent_is_overwritten_before_the_next_run(student):
    keeps = "KEPT = []\ndef f(x):\n    KEPT.extend(x)\ndef g():\n    return KEPT[-1].sum()"
    one = student(keeps)
    one.on_ranks(1, lend)
    assert one.on_ranks(1, look)[0].value == 3 * 77


# Messages in flight


def exchange(world, answers):
    answers.f(np.ones(1 << 14), world)


IN_FLIGHT = """
def f(x, world):
    other = 1 - world.rank
    arriving = md.irecv(np.empty_like(x), other, world)
    leaving = md.isend(x, other, world)
    arriving.wait()
"""


def test_a_send_that_nobody_waits_for(student):
    assert "an isend of 131072 bytes to rank" in refusal(student(IN_FLIGHT), 2, exchange)


@pytest.mark.parametrize("end", ["leaving.wait()", "while not leaving.is_completed(): pass"])
def test_a_send_that_is_known_to_be_done(student, end):
    student(f"{IN_FLIGHT}    {end}\n").on_ranks(2, exchange)


def all_reduces(world, answers):
    answers.f(np.ones(1 << 14), world)


ASYNCHRONOUS = """
def f(x, world):
    works = [md.all_reduce(x, group=world, async_op=True) for _ in range(2)]
"""


@pytest.mark.parametrize("end", ["", "works[0].wait()"])
@pytest.mark.parametrize("size", [1, 2])
def test_an_asynchronous_collective_that_nobody_waits_for(student, end, size):
    found = refusal(student(f"{ASYNCHRONOUS}    {end}\n"), size, all_reduces)
    assert "an asynchronous collective is never waited for: all_reduce" in found


@pytest.mark.parametrize("end", ["works[1].wait()", "while not works[1].is_completed(): pass"])
def test_asynchronous_collectives_that_are_known_to_be_done(student, end):
    """A group runs them in the order of the calls: when the last is done, all are."""
    student(f"{ASYNCHRONOUS}    {end}\n").on_ranks(2, all_reduces)


# What a grader replaces


def replace(world, answers):
    answers.helper = lambda: "replaced"
    return answers.f(), answers.helper()


def use(world, answers):
    return answers.f()


def test_what_a_grader_replaces_is_restored(student):
    one = student("def helper():\n    return 'own'\ndef f():\n    return helper()")
    assert one.on_ranks(1, replace)[0].value == ("replaced", "replaced")
    assert one.on_ranks(1, use)[0].value == "own"


# What is shown and measured


def test_a_rehearsal_prints_nothing(student, capfd):
    student("def f():\n    print('seen')").call("f")
    assert capfd.readouterr().out.count("seen") == 1


def test_a_rehearsal_that_fails_shows_what_it_printed(student, capfd):
    with pytest.raises(md.RankFailed):
        student("def f():\n    print('seen')\n    raise ValueError").call("f")
    assert capfd.readouterr().out.count("seen") == 1


def peak(world, answers):
    x = np.ones(1 << 15)
    answers.f(x)
    return peak_bytes(lambda: answers.f(x))


def test_watching_is_not_the_answers_memory(student):
    assert student("def f(x):\n    return x.sum()").on_ranks(1, peak)[0].value < 1 << 15


def dtype_of(world, answers):
    return str(answers.f(numbers(0, 3)).dtype), str(working_dtype())


def test_numbers_have_the_dtype_of_the_test(student):
    double = "def f(x):\n    return 2 * x"
    for dtype in ("int32", "float32", None):
        found = student(double, dtype=dtype).on_ranks(1, dtype_of)[0].value
        assert found == (dtype or "float64",) * 2


def round_to_float32(world, answers, many):
    lent = many_digits(world.rank, 8) if many else numbers(world.rank, 8)
    return answers.f(lent), lent


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_rounding_to_float32_shows_in_many_digits(student, dtype):
    rounds = student("def f(x):\n    return x.astype(np.float32).astype(x.dtype)", dtype=dtype)
    found, lent = rounds.on_ranks(1, round_to_float32, True)[0].value
    assert (found != lent).any()
    found, lent = rounds.on_ranks(1, round_to_float32, False)[0].value
    assert (found == lent).all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
def test_sums_of_many_digits_are_exact(dtype):
    use_dtype(dtype)
    parts = np.stack([many_digits(rank, 200) for rank in range(16)])
    use_dtype(None)
    exact = [sum(map(Fraction, column.tolist())) for column in parts.T]
    for order in (slice(None), slice(None, None, -1)):
        total = parts[0] * 0
        for part in parts[order]:
            total = total + part
        assert total.dtype == dtype and list(map(Fraction, total.tolist())) == exact


# What comes back


def test_a_fraction_is_a_number(student):
    code = "from fractions import Fraction\ndef f():\n    return [Fraction(3, 4)]"
    assert student(code).call("f") == [0.75]


def a_generator(world, answers):
    return generator(6, world.rank).integers(0, 1 << 30, 3).tolist()


def test_generators_of_a_rehearsal_differ(student):
    """The run that counts has the numbers that the grader computes; the one before it had others."""
    keeps = "SEEN = []\ndef f(x):\n    SEEN.append(x.copy())\n    return SEEN[0] * 1"

    def expected(rank):
        return generator(6, rank).integers(0, 1 << 30, 3).tolist()

    assert student("").on_ranks(1, a_generator)[0].value == expected(0)
    found = student(keeps).on_ranks(1, a_first_array)[0].value
    assert found.tolist() != expected(0)


def a_first_array(world, answers):
    return answers.f(np.array(a_generator(world, answers)))
