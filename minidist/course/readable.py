"""Makes text that comes from a submission safe for any file and any terminal."""

CHARACTERS = 2000


def readable(text: str) -> str:
    """The text without control characters, such as a terminal's escapes, and cut to a limit."""
    return _printable(text, "\n\t")


def readable_line(text: str) -> str:
    """Return a name, or other text that must stay on one line, with all that does not print escaped."""
    return _printable(text, "")


def _printable(text: str, others: str) -> str:
    text = text if len(text) <= CHARACTERS else text[:CHARACTERS] + " [...]"
    return "".join(c if c.isprintable() or c in others else "\ufffd" for c in text)
