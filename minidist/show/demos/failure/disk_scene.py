"""What the animation of a save says: what programs read after each operation, and what a power cut would leave."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.show.demos.failure.power_cut import Left, Moment
from minidist.show.demos.failure.recording import FOLDER, OLD, RANKS, Group, Recording
from minidist.show.palette import MEANINGS
from minidist.show.player.scene import Box, Frame, Label, Scene, Shape
from minidist.train.checkpoint.commit import LATEST, MANIFEST, name_of, step_of

SAVE = "save"  # the name of the scene in the right order
FIRST, END, BETWEEN = 12, 72, 3  # of the columns: what programs read, what a power cut leaves, and in the right order
READ, SAFE = MEANINGS["checkpoint"], MEANINGS["result"]  # what programs read, and what no power cut takes away
KEY = {"can be read": READ, "on the disk": SAFE, "not sure": "faint"}
NOTES = {
    ("write", RANKS): "Each rank writes its file, under another name.",
    ("flush", RANKS): "Each rank flushes its file: its content is on the disk.",
    ("rename", RANKS): "Each rank gives its file its name.",
    ("flush_folder", RANKS): "Each rank flushes the folder: the names of the files are on the disk.",
    ("write", MANIFEST): "Rank 0 writes the manifest, under another name.",
    ("flush", MANIFEST): "Rank 0 flushes the manifest.",
    ("rename", MANIFEST): "Rank 0 gives the manifest its name: the folder is a checkpoint.",
    ("flush_folder", MANIFEST): "Rank 0 flushes the folder.",
    ("flush_folder", FOLDER): "Rank 0 flushes the folder above, which has the new folder's name.",
    ("write", LATEST): "Rank 0 writes a new `latest`, under another name.",
    ("flush", LATEST): "Rank 0 flushes it.",
    ("rename", LATEST): "Rank 0 renames it: `latest` moves on.",
    ("flush_folder", LATEST): "Rank 0 flushes the folder: `latest` is on the disk.",
    ("remove", OLD): "Rank 0 removes the old checkpoint: the manifest first.",
    ("flush_folder", OLD): "Rank 0 flushes the old folder.",
}
CUT = "cut before the flush"
TOO_LATE = "Whole at last. But a power cut before the flush may have left nothing to resume from."
LAST_NOTE = "Then the other files of the old checkpoint."
RESUME = 4.5  # the line of what a run resumes from, below the rows of the ranks
WHOLE, PART, GONE = "whole", "part", "gone"  # what may be left of a file


@dataclass(frozen=True)
class Cell:
    """What is known of a file, in a column.

    Args:
        text: "" for nothing.
        sure: whether it is filled.
        wrong: whether training may not be resumed because of it.
    """

    text: str
    sure: bool = True
    wrong: bool = False


class Table:
    """A row for each file, and what they are at any moment.

    Args:
        recording: the recorded save.
        ranks: how many have a file in it.
    """

    def __init__(self, recording: Recording, ranks: int) -> None:
        self.recording = recording
        self.old, self.new = name_of(recording.old), name_of(recording.new)
        self.contents = {f"{self.new}/{name}": content for name, content in recording.contents(recording.new).items()}
        old = recording.contents(recording.old)
        self.old_contents = {f"{self.old}/{name}": content for name, content in old.items()}
        self.rows = {f"rank {rank}": f"{self.new}/rank-{rank}.safetensors" for rank in range(ranks)}
        self.rows["manifest"] = f"{self.new}/{MANIFEST}"

    @property
    def height(self) -> float:
        return len(self.rows) + 6.6

    def read(self, moment: Moment) -> list[Cell]:
        """What programs read."""
        files = moment.read
        whole = self.old_contents.items() <= files.items()
        there = any(path in files for path in self.old_contents)
        cells = [Cell(WHOLE if whole else "being removed" if there else "", whole)]
        for path in self.rows.values():
            folder, name = path.split("/")
            new = f"{folder}/.new-{name}"
            whole = files.get(path) == self.contents[path]
            cells.append(Cell(WHOLE) if whole else Cell("other name" if new in files else "", False))
        return [*cells, Cell(_arrow({files[LATEST]}))]

    def left(self, moment: Moment) -> list[Cell]:
        """What a power cut leaves, and what training goes on from."""
        refused = [one for one in moment.left if one.step is None]
        old = {self._old_state(one) for one in moment.left}
        lost = bool(refused) and any(self._old_state(one) != WHOLE for one in refused)
        text = ("lost" if old == {GONE} else "may be lost") if lost else _words(old)
        cells = [Cell(text, old == {WHOLE}, lost)]
        for path in self.rows.values():
            states = {self._state(one, path) for one in moment.left}
            wrong = any(self._state(one, path) != WHOLE for one in refused)
            cells.append(Cell("may be empty" if wrong else _words(states), states == {WHOLE}, wrong))
        pointers = {one.files[LATEST] for one in moment.left}
        cells.append(Cell(_arrow(pointers), len(pointers) == 1))
        steps = sorted(one.step for one in moment.left if one.step is not None)
        text = "from step " + " or ".join(map(str, dict.fromkeys(steps)))
        if refused:
            text = "may be refused" if steps else "refused"
        return [*cells, Cell(text, len(moment.resumes) == 1, bool(refused))]

    def _state(self, left: Left, path: str) -> str:
        if path not in left.files:
            return GONE
        return WHOLE if left.files[path] == self.contents[path] else PART

    def _old_state(self, left: Left) -> str:
        """State of the old checkpoint: a part of it is none."""
        return WHOLE if self.old_contents.items() <= left.files.items() else GONE

    def shapes(self, moment: Moment, right: Moment | None, cut: Moment | None = None) -> list[Shape]:
        """The table.

        Args:
            right: the same moment in the right order, to compare with.
            cut: an earlier moment, if the power failed then.
        """
        heads = ["programs read", CUT if cut else "a power cut leaves", "in the right order"]
        count = 3 if right else 2
        width = (END - FIRST - (count - 1) * BETWEEN) / count
        columns = [self.read(moment), self.left(cut or moment)] + ([self.left(right)] if right else [])
        names = [f"step {self.recording.old}", *self.rows, LATEST, "resume"]
        lines = [1, *(3 + line for line in range(len(self.rows) + 1)), RESUME + len(self.rows)]
        shapes: list[Shape] = [
            Label(2 * (name in self.rows), y + 0.5 + 0.4 * (name == "resume"), name)
            for y, name in zip(lines, names, strict=True)
        ]
        shapes.append(Label(0, 2.5, f"step {self.recording.new}"))
        for number, (head, cells) in enumerate(zip(heads, columns, strict=False)):
            x = FIRST + number * (width + BETWEEN)
            shapes.append(Label(x + width / 2, 0.5, head, "wrong" if head == CUT else "ink", "middle"))
            sure = (READ, "-") if cells is columns[0] else (SAFE, "=")
            for y, cell in zip(lines, cells, strict=False):
                if cell.text:
                    fill, mark = ("wrong", "!") if cell.wrong else sure if cell.sure else (None, " ")
                    high = 1.8 if y == lines[-1] else 0.9  # from where the run resumes: what counts
                    shapes.append(Box(x, y, width, high, fill, cell.text, mark, None if fill else "faint"))
        return shapes


def _words(states: set[str]) -> str:
    if states == {WHOLE}:
        return WHOLE
    return "" if states == {GONE} else "not sure"


def _arrow(pointers: set[bytes]) -> str:
    steps = sorted(step_of(pointer.decode()) for pointer in pointers)
    return "→ step " + " or ".join(map(str, steps))


def of_save(
    recording: Recording, moments: Sequence[Moment], ranks: int, verdict: str, right: Sequence[Moment] | None = None
) -> Scene:
    """A frame for each moment; ``right`` has those of the right order, if this one is wrong."""
    table, frames = Table(recording, ranks), []
    notes = [f"Step {recording.old} is saved. Now step {recording.new} is, by {ranks} ranks."]
    notes += [_note(group, recording.groups[:place]) for place, group in enumerate(recording.groups)]
    bad = [place for place, moment in enumerate(moments) if None in moment.resumes]
    for place, (moment, note) in enumerate(zip(moments, notes, strict=True)):
        cut = moments[bad[-1]] if bad and place == len(moments) - 1 else None  # the end shows what was at stake
        shapes = tuple(table.shapes(moment, right[place] if right else None, cut))
        text = f"{note} Wrong: the ranks' files are not flushed." if place in bad else TOO_LATE if cut else note
        facts = {
            "operations": f"{place} of {len(recording.groups)}",
            "power cuts tried": str(sum(len(one.left) for one in moments[: place + 1])),
            "refused": str(sum(one.step is None for seen in moments[: place + 1] for one in seen.left)),
        }
        frames.append(Frame(shapes, text, facts))
    title = f"Saving step {recording.new}: what if the power fails now?"
    key = KEY | ({"wrong": "wrong"} if right else {})
    stills = (bad[0], bad[-1]) if bad else (1, 4, len(frames) - 1)
    return Scene(
        "broken" if right else SAVE, title, tuple(frames), table.height, key, verdict, bad[0] if bad else None, stills,
        SAVE if right else "",
    )  # fmt: skip


def _note(group: Group, before: Sequence[Group]) -> str:
    if group.about == OLD and any(one.about == OLD and one.method == "flush_folder" for one in before):
        return LAST_NOTE
    return NOTES[group.method, group.about]


def verdict(recording: Recording, moments: Sequence[Moment]) -> str:
    """That no power cut does harm."""
    tried = sum(len(moment.left) for moment in moments)
    return f"After each of {tried} different power cuts minidist finds a whole checkpoint. {_is_right(recording)}"


def _is_right(recording: Recording) -> str:
    return f"The run that saves is right: it has the SHA-256 of one process, {recording.fingerprint[:8]}."


def harm(recording: Recording, moments: Sequence[Moment]) -> str:
    """What the bug costs, once the power fails.

    Raises:
        RuntimeError: if it costs nothing.
    """
    refused = [one for moment in moments for one in moment.left if one.step is None]
    if not refused:
        raise RuntimeError("after every power cut minidist finds a whole checkpoint: the injected bug does no harm")
    bad = [moment for moment in moments if None in moment.resumes]
    old = f"{name_of(recording.old)}/{MANIFEST}"
    gone = sum(any(one.step is None and old not in one.files for one in moment.left) for moment in bad)
    error = min(refused, key=lambda one: sum(map(len, one.files.values()))).error.split("\n")[0]  # the emptiest
    return (
        f"In {len(bad)} of {len(moments)} moments a power cut may leave a checkpoint that minidist refuses: {error}. "
        f"In {gone} of them the old one is gone too. Without a power cut nobody notices. {_is_right(recording)}"
    )
