"""What holds in every story, right and broken, at every beat and between: ``check(story)``."""

import re
from itertools import combinations, pairwise

from minidist.show.stage.marks import HEIGHT, SMALLEST, WIDTH, Mark
from minidist.show.stage.story import Beat, Story

LETTER = 0.58  # of the size of type, the mean width of a letter
MOST_WORDS = 60
NAMES = re.compile(r"(GPU|rank|[Ss]tage|step|worker|expert) \d+|\d+ bit")  # of what is on the stage anyway
CLOSE = 1e-6  # pixels: the rounding of sums of some floats


def area(mark: Mark, now: dict) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a mark."""
    if mark.kind == "box":
        return now["x"], now["y"], now["x"] + now["w"], now["y"] + now["h"]
    if mark.kind == "line":
        across, down = zip(*mark.still["points"], strict=True)
        return now["x"] + min(across), now["y"] + min(down), now["x"] + max(across), now["y"] + max(down)
    wide, high = LETTER * mark.still["size"] * len(mark.still["text"]), mark.still["size"] * 0.7
    left = now["x"] - wide * {"start": 0, "middle": 0.5, "end": 1}[mark.still["anchor"]]
    return left, now["y"] - high / 2, left + wide, now["y"] + high / 2


def shown(story: Story, moment: float) -> list[tuple[Mark, tuple[float, float, float, float]]]:
    """The marks that are visible at a moment, and where."""
    now = [(mark, mark.at(moment)) for mark in story.marks]
    return [(mark, area(mark, values)) for mark, values in now if values["opacity"] > 0]


def words(story: Story, moment: float) -> list[str]:
    """The texts on the stage at a moment."""
    return [mark.still["text"] for mark, place in shown(story, moment) if "text" in mark.still and fits(mark, place)]


def fits(mark: Mark, place: tuple[float, float, float, float]) -> bool:
    """Whether a box is wide enough for its text: the page, stills and terminals leave it out while it is not."""
    return mark.kind != "box" or place[2] - place[0] > mark.still["size"] * len(mark.still["text"]) / 2


def check(story: Story) -> None:
    """Assert that a story can be read: all is on the stage, no text covers another, none is small, few are there."""
    beats = [beat.at for beat in story.beats]
    for moment in [*beats, *((one + other) / 2 for one, other in pairwise(beats))]:
        visible = shown(story, moment)
        assert visible, f"{story.name} shows nothing at {moment:g} s"
        for mark, (left, top, right, bottom) in visible:
            inside = left >= -CLOSE and right <= WIDTH + CLOSE and top >= -CLOSE and bottom <= HEIGHT + CLOSE
            name = mark.still.get("text") or mark.thing or mark.kind
            assert inside, f"{story.name}, {moment:g} s: {name} leaves the stage"
        texts = [(mark, place) for mark, place in visible if mark.kind == "text"]
        for (one, a), (other, b) in combinations(texts, 2):
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert apart, f"{story.name}, {moment:g} s: {one.still['text']!r} covers {other.still['text']!r}"
        for mark, _ in visible:
            assert mark.still.get("size", SMALLEST) >= SMALLEST, f"{story.name}: {mark.still['text']!r} is too small"
        count = sum(any(map(str.isalpha, word)) for word in " ".join(words(story, moment)).split())
        assert count <= MOST_WORDS, f"{story.name}, {moment:g} s: {count} words on the stage"
    for number, beat in enumerate(story.beats):
        if beat.asks:
            seen = figures(" ".join(text for one in story.beats[: number + 1] for text in told(story, one)))
            given = [bool((figures(choice) - figures(beat.asks.text)) & seen) for choice in beat.asks.choices]
            assert not given[beat.asks.answer] or all(given), f"{story.name} shows the answer before beat {number} asks"
            assert any(later.answers == beat.asks for later in story.beats), f"{beat.asks.text!r} is never answered"


def figures(text: str) -> set[str]:
    """The numbers in a text with their units; no zeros, with which counters begin, and no numbers in names."""
    return set(re.findall(r"(?<![\w.,-])[\d.,]*\d(?:%| GB| MB| ms)?(?![\w])", NAMES.sub("", text))) - {"0"}


def told(story: Story, beat: Beat) -> list[str]:
    """Return what a class sees at a beat: the texts on the stage, and the sentence below it."""
    return [*words(story, beat.at), beat.says]
