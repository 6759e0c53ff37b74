"""What the course says of input that cannot be: every line of refusals.txt."""

from pathlib import Path

from refusals import check_refusals, refusal

from minidist import overrides
from minidist.course.answers import course_folder, read_answers
from minidist.course.authoring.mutants import Mutant
from minidist.course.stubs import definitions_by_task, plan_reset, stub_of

__all__ = ["Mutant", "definitions_by_task", "overrides", "stub_of"]  # for refusals.txt
FILE = Path(__file__).with_name("refusals.txt")


def grade(submissions: str, *flags: str) -> None:
    """minidist grade of a folder that has these submissions."""
    for name in submissions.split():
        place = Path("in", name)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"") if place.suffix else place.mkdir(exist_ok=True)
    try:
        raise ValueError(refusal(" ".join(["minidist grade in", *flags]), {}))
    finally:
        for place in Path("in").iterdir():
            place.unlink() if place.suffix else place.rmdir()


def verify_file(text: str) -> None:
    """minidist verify on a learner's file with this text."""
    Path("ch03_collectives.py").write_text(text)
    raise ValueError(refusal("minidist verify --impl . --steps=1 dp=2", {}))


def reset(target: str, text: str = "") -> None:
    """A plan to reset this target in a file with this text, or the untouched one."""
    stub = stub_of(read_answers(course_folder("solutions"))["ch03_collectives"].text)
    Path("ch03_collectives.py").write_text(text or stub)
    plan_reset(target, Path())


def test_what_cannot_be_is_named_with_what_can(tmp_path, monkeypatch):
    check_refusals(FILE, dict(globals()), monkeypatch, tmp_path)
