"""The demonstration of a deadlock: the graph in the picture is the one that the parent finds."""

import os

import multiprocess
import pytest
from frames import boxes, told

from minidist.analysis.wait_for import STUCK
from minidist.show.demos import DEMONSTRATIONS, deadlock
from minidist.show.demos.deadlock import picture
from minidist.show.demos.deadlock.programs import ODD, SEND_FIRST, TOGETHER, lines_of
from minidist.show.demos.deadlock.run import FITS, Event, Moment, moments
from minidist.show.figures.waits import COLOURS
from minidist.show.player.scene import WIDTH, Arrow, Box, Curve, Label
from minidist.trace import Message

DEMO = DEMONSTRATIONS["deadlock"]


@pytest.fixture(scope="module")
def animation():
    return DEMO(ranks=3)


def arrows(frame) -> set[str]:
    return {shape.label for shape in frame.shapes if isinstance(shape, Arrow)}


def test_every_rank_enters_its_calls_and_ends(animation):
    for scene, calls in zip(animation.scenes, (1, 2, 2), strict=True):
        assert len(scene.frames) == 1 + 3 * (calls + 1)  # before, and each call and each end
        assert not arrows(scene.frames[0]) and not arrows(scene.frames[-1])
        assert scene.frames[-1].note.endswith("and ends.") and scene.first_wrong is None
        assert COLOURS[STUCK] not in {
            shape.fill for frame in scene.frames for shape in frame.shapes if isinstance(shape, Box)
        }
        assert "bit for bit" in told(scene)


@pytest.mark.parametrize("ranks", [2, 4, pytest.param(8, marks=pytest.mark.long)])
def test_the_cycle_is_what_the_parent_finds(ranks):
    animation = DEMO(ranks=ranks, size=FITS + 1, seed=ranks)
    broken = animation.broken
    assert animation.breakable() == tuple(scene.name for scene in animation.scenes)
    for scene in animation.scenes:  # the same moment is the same number of ranks that have started
        assert [frame.at for frame in scene.frames] == sorted({frame.at for frame in scene.frames})
        assert {int(frame.at) for frame in scene.frames} == {*range(ranks + 1)}
    assert [frame.at for frame in broken.frames] == [*range(ranks + 1), ranks + 0.9]
    everybody = {f"{rank} waits for {(rank + 1) % ranks}" for rank in range(ranks)}
    assert len(broken.frames) == 1 + ranks + 1 and broken.first_wrong == ranks
    assert [len(arrows(frame)) for frame in broken.frames] == [*range(ranks + 1), ranks]
    assert arrows(broken.frames[-2]) == arrows(broken.frames[-1]) == everybody  # drawn from the calls, and as reported
    for number, frame in enumerate(broken.frames):
        red = [shape for shape in frame.shapes if isinstance(shape, Curve) and shape.width == picture.CLOSED]
        assert len(red) == (2 * ranks if number >= broken.first_wrong else 0)  # each with its head
        assert ("DEADLOCK" in {box.text for box in boxes(frame)}) == (frame is broken.frames[-1])
        assert frame.lines == ((0,) if number else ())  # send is the first line, and nobody leaves it
    ring = " → ".join(map(str, [*range(ranks), 0]))
    assert f"waits for rank 1 to take {8 * (FITS + 1):,} bytes" in told(broken) and ring in told(broken)
    assert "in send_first" in told(broken)  # the line


def nodes(shapes) -> list[tuple[float, float]]:
    """The middle of each rank on the circle."""
    boxes = {s.text: s for s in shapes if isinstance(s, Box) and s.text.isdigit()}
    return [
        (boxes[str(rank)].x + boxes[str(rank)].w / 2, boxes[str(rank)].y + boxes[str(rank)].h / 2)
        for rank in range(len(boxes))
    ]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_rank_0_is_on_top_and_the_others_follow_clockwise(ranks):
    moment = Moment({}, {rank: [(rank + 1) % ranks] for rank in range(ranks)}, frozenset())
    shapes = picture.draw(ranks, moment, False)
    places = nodes(shapes)
    middle = [sum(place[axis] for place in places) / ranks for axis in (0, 1)]
    assert places[0][1] == min(y for _, y in places) and places[0][0] == pytest.approx(middle[0])
    for (x, y), (next_x, next_y) in zip(places, [*places[1:], places[0]], strict=True):
        turn = (x - middle[0]) * (next_y - middle[1]) - (y - middle[1]) * (next_x - middle[0])
        assert turn > 0 or ranks == 2  # y grows downwards


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("way", [1, -1])
def test_an_arrow_follows_the_ring_from_the_rank_that_waits_to_the_other(ranks, way):
    for rank in range(ranks):
        awaited = (rank + way) % ranks
        shapes = picture.draw(ranks, Moment({}, {rank: [awaited]}, frozenset()), False)
        places = nodes(shapes)
        _, line, head = (shape for shape in shapes if isinstance(shape, Curve))
        (arrow,) = (shape for shape in shapes if isinstance(shape, Arrow))
        assert arrow.label == f"{rank} waits for {awaited}" and (arrow.to_x, arrow.to_y) == line.points[-1]
        assert head.points[1] == line.points[-1]  # its tip
        for place, end in ((places[rank], line.points[0]), (places[awaited], line.points[-1])):
            away = abs(end[0] - place[0]) / (picture.NODE[0] / 2), abs(end[1] - place[1]) / (picture.NODE[1] / 2)
            assert 1 < max(away) < 2  # just outside the node at that end
        for x, y in line.points:
            (left, top), (across, down) = picture.MIDDLE, picture.RADII
            assert ((x - left) / across) ** 2 + ((y - top) / down) ** 2 == pytest.approx(1)


def test_lines_in_which_ranks_are():
    assert lines_of(SEND_FIRST, {0: "send to 1", 1: "recv from 0", 2: ""}) == (0, 1) and lines_of(SEND_FIRST, {}) == ()
    assert [lines_of(ODD, {rank: call}) for rank in (0, 1) for call in ("send to 2", "recv from 2")] == [
        (1,), (2,), (5,), (4,),
    ]  # fmt: skip
    assert lines_of(TOGETHER, {0: "send to 1, recv from 3"}) == (2, 3) and lines_of(TOGETHER, {0: ""}) == ()


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="the list of shared memory is Linux's")
def test_it_leaves_nothing_behind():
    def segments() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if name.startswith(f"minidist-{os.getpid()}-")}

    before, children = segments(), set(multiprocess.active_children())
    DEMO(ranks=2)
    assert segments() <= before and set(multiprocess.active_children()) <= children


def test_who_waits_after_each_call():
    send, recv = {"sends": ((0, 1),)}, {"receives": ((0, 1),)}
    events = [Event(1, 0, "send", **send), Event(2, 1, "recv", **recv), Event(3, 0, ""), Event(4, 1, "")]
    assert [moment.waiting for moment in moments(events, fits=False)] == [{0: [1]}, {}, {}, {}]
    assert [moment.waiting for moment in moments(events, fits=True)] == [{}, {}, {}, {}]
    assert [moment.waiting for moment in moments(events[1::-1], fits=True)] == [{1: [0]}, {}]
    assert moments(events, fits=False)[-1].finished == {0, 1}


@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.long)])
def test_everything_is_in_the_picture(ranks):
    animation = DEMO(ranks=ranks)
    for scene in (*animation.scenes, animation.broken):
        for shape in (shape for frame in scene.frames for shape in frame.shapes):
            if isinstance(shape, Box):
                assert 0 <= shape.x <= shape.x + shape.w <= WIDTH
                assert 0 <= shape.y <= shape.y + shape.h <= scene.height
                assert len(shape.text) <= shape.w
            if isinstance(shape, Label) and shape.anchor == "start":
                assert shape.x + len(shape.text) <= WIDTH


def test_the_log_has_every_message(animation):
    messages = [entry for log in animation.logs for entry in log if isinstance(entry, Message)]
    assert {(m.kind, m.source, m.destination) for m in messages} == {
        (kind, rank, (rank + 1) % 3) for rank in range(3) for kind in ("send", "receive")
    }


def test_sizes():
    with pytest.raises(ValueError, match="numbers in a message, must be from 1,001 to 1,000,000, got 1,000"):
        DEMO(size=FITS)
    with pytest.raises(ValueError, match="numbers in a message, must be from 1 to 1,000,000, got 1,000,001"):
        DEMO(size=deadlock.MOST + 1)
