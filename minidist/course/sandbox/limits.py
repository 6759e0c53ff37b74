"""Limits that the operating system puts on the grading process and on the ranks that it starts."""

FILE_BYTES = 512 << 20  # largest size of any file; the ranks' shared memory counts as a file


def set_limits(memory: float | None) -> None:
    """Limit the memory (GiB) and the file sizes of this process and of all that it starts. Does nothing on Windows."""
    try:
        import resource
    except ImportError:
        return
    limits = [(resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_CORE, 0)]
    if memory is not None:
        limits.append((resource.RLIMIT_AS, int(memory * 2**30)))
    for kind, limit in limits:
        resource.setrlimit(kind, (limit, limit))
