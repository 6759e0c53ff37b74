"""Contents of the lanes of a pipeline's animation: its boxes, rank after rank, each lane from left to right."""


def _boxes(story) -> list:
    marks = [mark for mark in story.marks if "micro-batch" in mark.thing and "activations" not in mark.thing]
    return sorted(marks, key=lambda mark: (mark.now["y"], mark.now["x"]))


def actions(story) -> list[tuple[str, str]]:
    """Return each box's label (its schedule and micro-batch) and its colour, which stands for F, B, I or W."""
    return [(box.thing, box.now["fill"]) for box in _boxes(story)]


def wrong(story) -> list[str]:
    """Return the micro-batch of each box that computes something wrong."""
    return [box.still["text"] for box in _boxes(story) if box.now["fill"] == "wrong"]
