"""What Windows and macOS lack or do otherwise, as far as Python on Linux can show it.

A process that has this folder in its PYTHONPATH imports it before anything else, and so does each that it starts.
"""

import builtins
import io
import os
import signal
import subprocess
import sys
import sysconfig

import multiprocess.popen_fork
import psutil

SYSTEM = ("fork", "forkpty", "register_at_fork", "sched_yield", "sched_getaffinity", "statvfs", "mkfifo", "O_DIRECTORY")
SYSTEM += ("geteuid", "getpgid", "killpg", "setsid")
SIGNALS = ("SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGCHLD", "alarm", "setitimer")
SIGNALS += ("pthread_sigmask", "pthread_kill", "sigwait")
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty")
FOLDERS = ("/proc", "/dev/shm")

sysconfig.get_config_vars()  # reads a file whose name has the platform
for module, names in ((os, SYSTEM), (signal, SIGNALS)):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.modules.update(dict.fromkeys(MODULES))  # None: an import fails
sys.platform = "elsewhere"
psutil.PROCFS_PATH = "//proc"  # its own way to processes, which it has on each system
subprocess.Popen.kill = subprocess.Popen.terminate
psutil.Process.kill = psutil.Process.terminate
multiprocess.popen_fork.Popen.kill = multiprocess.popen_fork.Popen.terminate


def refuse(event: str, arguments: tuple) -> None:
    """Tell that there is no such file, for what only Linux has."""
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(FOLDERS):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


def stat(path, *arguments, _stat=os.stat, **named):
    """``os.stat``, which does not see these files either."""
    refuse("open", (path,))
    return _stat(path, *arguments, **named)


def open_text(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *more, _open=io.open, **named):
    """``open``, where a text's lines end in CRLF when they are written."""
    if newline is None and mode.strip("t") in ("w", "x", "a"):
        newline = "\r\n"
    return _open(file, mode, buffering, encoding, errors, newline, *more, **named)


def kill(pid, number, _kill=os.kill):
    """``os.kill``, where SIGTERM asks nobody."""
    _kill(pid, 9 if number == signal.SIGTERM else number)


sys.addaudithook(refuse)
os.stat, os.kill, io.open, builtins.open = stat, kill, open_text, open_text
