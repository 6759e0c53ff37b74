"""What holds in every scene of every demonstration, with its bug and without: ``class TestScenes(EveryScene)``.

The fixture ``shown`` of the test file is what was recorded of a demonstration.
"""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from math import prod

from frames import boxes, labels, numbers, reds, texts, told
from pages import unpacked
from recorded import Recorded

from minidist.show.demos.menu import SCENES
from minidist.show.player import speaker
from minidist.show.player.characters import lines_of
from minidist.show.player.scene import WIDTH, Arrow, Box, Curve, Frame, Scene

CLOSE = 1e-9  # characters: the rounding of sums of some floats
TOUCHING = 1.0  # characters by which two texts may meet: letters of a page are narrower than their place
A_LINE = 0.7  # of two texts on neighbouring lines this far apart neither covers the other
SOME = 6  # of the variants of a scene
NOT_RED = ("broken weights", "broken two nodes", "broken congested uplink")  # ranks in their colours; slow, not wrong
RED_ALREADY = ("balance", "capacity", "die, go on")  # what is uneven, dropped or killed in the right run, too
NAMES = re.compile(r"(rank|server|step) \d")  # of what is in the picture anyway: no answer is given away by them
EMPTY_LABELS = ("✗", "╱")  # signs, and no words


def shown_scenes(recorded: Recorded) -> Iterator[Scene]:
    """Every scene, and those of some positions of its dials."""
    for scene in recorded.animation.all_scenes:
        yield scene
        yield from scene.variants[:: -(-len(scene.variants) // SOME) or 1]


def places(shape) -> list[tuple[float, float]]:
    """The corners or the points of a shape."""
    if isinstance(shape, Box):
        return [(shape.x, shape.y), (shape.x + shape.w, shape.y + shape.h)]
    if isinstance(shape, Curve):
        return list(shape.points)
    if isinstance(shape, Arrow):
        return [(shape.x, shape.y), (shape.to_x, shape.to_y)]
    before = {"start": 0, "middle": 0.5, "end": 1}[shape.anchor] * len(shape.text)
    return [(shape.x - before, shape.y), (shape.x - before + len(shape.text), shape.y)]


class EveryScene:
    def test_the_menu_names_its_scenes_before_anything_runs(self, shown):
        animation = shown.animation
        assert tuple(scene.name for scene in animation.scenes) == SCENES[animation.name]
        assert len({scene.name for scene in animation.all_scenes}) == len(animation.all_scenes)
        assert len(shown.animation.logs) >= 1 and all(shown.animation.logs)

    def test_everything_is_in_the_picture_and_every_text_in_its_box(self, shown):
        for scene in shown_scenes(shown):
            assert scene.height <= 16  # so that a terminal of 24 lines shows all of it
            for number, frame in enumerate(scene.frames):
                for shape in frame.shapes:
                    for x, y in places(shape):
                        assert -CLOSE <= x <= WIDTH + CLOSE, (scene.name, number, shape)
                        assert -CLOSE <= y <= scene.height + CLOSE, (scene.name, number, shape)
                    if isinstance(shape, Box):
                        assert len(shape.text) <= shape.w + 0.5, (scene.name, number, shape)

    def test_no_text_covers_another(self, shown):
        for scene in shown_scenes(shown):
            for number, frame in enumerate(scene.frames):
                for (left, right, y, one), (start, end, there, other) in combinations(texts(frame), 2):
                    apart = max(left, start) - min(right, end) >= -TOUCHING or abs(y - there) >= A_LINE
                    same = one == other and (left, y) == (start, there)
                    assert apart or same or one[0] in EMPTY_LABELS, (scene.name, number, one, other)

    def test_words_are_there_and_short(self, shown):
        for scene in shown_scenes(shown):
            assert len({tuple(frame.facts) for frame in scene.frames}) == 1  # the same names in every frame
            assert all(0 < len(frame.note) <= 160 for frame in scene.frames)
            assert 0 < len(scene.verdict) <= 160 and 0 < len(scene.title) <= 120
            moments = [number if frame.at is None else frame.at for number, frame in enumerate(scene.frames)]
            assert moments == sorted(moments)

    def test_every_colour_in_a_key_is_there(self, shown):
        scenes = shown.animation.all_scenes
        used = {getattr(shape, part, None) for scene in scenes for frame in scene.frames for shape in frame.shapes
                for part in ("fill", "outline", "colour")}  # fmt: skip
        assert {colour for scene in scenes for colour in scene.key.values()} <= used | {"paper"}

    def test_a_question_is_asked_before_its_answer_is_shown(self, shown):
        """An answer may be in sight if the others are, too: as the name of a rank, for example."""
        for scene in shown_scenes(shown):
            frames = [question.frame for question in scene.questions]
            asked = [question.before for question in scene.questions]
            assert len({*frames}) == len(frames) and len({*asked}) == len(asked), scene.name
            for question in scene.questions:
                assert len({*question.choices}) == len(question.choices)
                right = question.choices[question.answer]
                others = [choice for choice in question.choices if choice != right]
                for number, frame in enumerate(scene.frames[: question.frame]):
                    seen = {*labels(frame), *(box.text for box in boxes(frame)), *frame.facts.values()}
                    words = {text for text in seen if right in text}
                    among_others = any(other in text for text in seen for other in others)
                    known = len(right) < 5 or NAMES.fullmatch(right) or among_others
                    assert not words or known, (scene.name, number, right, words)

    def test_right_runs_are_right_and_broken_ones_wrong_from_their_first_wrong_frame_on(self, shown):
        animation = shown.animation
        for scene in animation.scenes:
            assert scene.first_wrong is None and scene.cues and scene.questions and not scene.twin
            assert scene.name in RED_ALREADY or not any(map(reds, scene.frames)), scene.name
        assert animation.breakable() and animation.bug
        for scene in animation.all_broken:
            assert 0 <= scene.first_wrong < len(scene.frames)
            assert "bit for bit" not in scene.verdict and "bits of one process" not in scene.verdict
            right = next((one for one in animation.scenes if one.name == scene.twin), None)
            assert right is not None or animation.name == "deadlock"  # there, it breaks all of them
            if right is None or scene.name in NOT_RED:
                continue
            assert right.height == scene.height and right.verdict != scene.verdict
            as_before = len(right.frames) == len(scene.frames)
            red = [reds(frame) - (reds(right.frames[i]) if as_before else 0) for i, frame in enumerate(scene.frames)]
            first = next(number for number, count in enumerate(red) if count > 0)
            assert abs(first - scene.first_wrong) <= 1, (scene.name, first)  # what has no length is seen a step later
            assert red[-1] > 0  # still in sight
            for one, other in zip(scene.frames[: scene.first_wrong - 1], right.frames, strict=False):
                assert not as_before or (one.facts.keys() >= other.facts.keys() and one.at == other.at)

    def test_every_fingerprint_is_that_of_a_single_process_and_every_difference_was_found(self, shown):
        one_process = {run.fingerprint[:8] for _, run in shown.runs if run.layout.world_size == 1}
        trained = {run.fingerprint[:8] for _, run in shown.runs}
        for scene in shown_scenes(shown):
            for sha in re.findall(r"SHA-256 ([0-9a-f]{8})", told(scene)):
                proved = shown.animation.name != "async" or "single-process" in told(scene)
                assert sha in (one_process if proved else trained), scene.name
            for sha in re.findall(r"The bits of one process: ([0-9a-f]{8})", scene.verdict):
                assert sha in one_process
            for expected, got in re.findall(r"expected (\S+), got ([^\s,;]+)", told(scene)):
                assert expected != got and scene.first_wrong

    def test_what_was_counted_is_what_the_formula_says(self, shown):
        for scene in shown.animation.scenes:
            facts = scene.frames[-1].facts
            for name, value in facts.items():
                if name.startswith(("formula", "by formula", "bubble")):
                    others = [one for other, text in facts.items() if other != name for one in numbers(text)]
                    digits = 0 if name.startswith("bubble") else 9  # the idle share beside it has no decimals
                    assert round(numbers(value)[0], digits) in others, (scene.name, name, value, others)

    def test_every_dial_changes_what_is_shown(self, shown):
        for scene in shown.animation.all_scenes:
            sizes = [len(dial.values) for dial in scene.dials]
            steps = [prod(sizes[place + 1 :]) for place in range(len(sizes))]
            start = sum(dial.start * step for dial, step in zip(scene.dials, steps, strict=True))
            for dial, step in zip(scene.dials, steps, strict=True):
                ends = [scene.variants[start + step * (at - dial.start)] for at in (0, len(dial.values) - 1)]
                assert ends[0].frames != ends[1].frames, (scene.name, dial.name)

    def test_the_page_has_all_of_it_and_is_one_small_file(self, shown):
        page = shown.animation.html()
        assert len(page) < 400_000 and not re.search(r"\b(src|href)=|https?://(?!www\.w3\.org/2000/svg)", page)
        scenes = unpacked(page)["scenes"]
        for scene, packed in zip(shown.animation.all_scenes, scenes, strict=True):
            assert packed["notes"] == [frame.note for frame in scene.frames]
            for number, frame in enumerate(scene.frames):
                kinds = [kind for kind, first, last, *_ in packed["shapes"] if first <= number <= last]
                assert kinds == [type(shape).__name__.lower() for shape in frame.shapes], (scene.name, number)
            assert packed["facts"] == json.loads(json.dumps([list(frame.facts.items()) for frame in scene.frames]))
            assert (packed["verdict"], packed["details"]) == (scene.verdict, scene.details)
            assert len(packed["variants"]) == len(scene.variants) and len(packed["questions"]) == len(scene.questions)
            assert packed["broken"] is shown.animation.is_broken(scene)

    def test_a_terminal_shows_every_frame_and_the_speaker_has_every_cue(self, shown):
        notes = re.sub(r"\s+", " ", speaker.notes(shown.animation))
        for scene in shown.animation.all_scenes:
            assert all(cue.text in notes for cue in scene.cues)
            assert all(question.reason in notes for question in scene.questions)
            for number, frame in enumerate(scene.frames):
                without_curves = Frame(tuple(one for one in frame.shapes if not isinstance(one, Curve)), "")
                lines = [line.plain for line in lines_of(without_curves, scene.height, colours=False)]
                assert {len(line) for line in lines} == {WIDTH}
                visible = {text for *_, text in texts(frame)} & {*labels(frame)}
                hidden = {one for one in visible if re.search("[a-z]{3}", one) and one not in "\n".join(lines)}
                assert not hidden, (scene.name, number, hidden)
