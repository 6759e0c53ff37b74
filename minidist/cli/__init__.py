"""The command ``minidist``. ``program`` imports what the commands need, so that it answers Ctrl-C from the start."""

import signal
import sys

INTERRUPTED = 130  # exit status that a shell gives to a command that Ctrl-C ended


def program() -> int:
    """Run the command line; return the exit status. SIGTERM and SIGHUP end it and its ranks, as Ctrl-C does.

    A signal that is ignored from the start, as SIGHUP is under ``nohup``, stays ignored.
    """
    try:
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler)
        from minidist.cli.main import main, print_in_any_encoding

        print_in_any_encoding()
        return main()
    except KeyboardInterrupt:
        print("minidist: interrupted; all ranks have ended", file=sys.stderr, flush=True)
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1:
            from minidist.comm.runtime.job import abort

            abort(INTERRUPTED)  # others may wait for this process, and MPI_Finalize would wait for them
        return INTERRUPTED
