"""The rules that an answer can violate. Each is an exception that fails the task and appears in the remarks."""


class LibraryAnswer(RuntimeError):
    """The answer calls or reads the library's own implementation of what the learner should write."""


class Tampering(RuntimeError):
    """The answer replaces functions of Python, NumPy or minidist."""


class Exited(RuntimeError):
    """The answer ends the process with exit()."""


class Forked(RuntimeError):
    """The answer starts processes of its own."""


class StartsProgram(RuntimeError):
    """The answer starts another program."""


VIOLATIONS = (LibraryAnswer, Tampering, Exited, Forked, StartsProgram)
