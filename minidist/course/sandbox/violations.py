"""The rules that an answer may break, each an error that fails its task and is remarked."""


class LibraryAnswer(RuntimeError):
    """The answer calls, or reads, the library's own, which the task asks the learner to write."""


class Tampering(RuntimeError):
    """The answer replaces functions of Python, NumPy or minidist."""


class Exited(RuntimeError):
    """The answer ends the process with exit()."""


class Forked(RuntimeError):
    """The answer starts processes of its own."""


VIOLATIONS = (LibraryAnswer, Tampering, Exited, Forked)
