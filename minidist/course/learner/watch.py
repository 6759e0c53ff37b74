"""``minidist check --watch``: judges whatever the learner saves."""

from collections.abc import Callable, Sequence

from rich.console import Console

from minidist.course.answers import implementation_folder, read_answers
from minidist.course.grading.standby import Standby
from minidist.course.learner.check import check
from minidist.course.tasks import TaskResult, Verdict


def watch(console: Console, impl: str, target: str | None, all_chapters: bool) -> None:
    """``check`` again whenever a file of answers is saved, until Ctrl-C.

    Raises:
        ValueError: if the package watchfiles is missing.
    """
    try:
        from watchfiles import watch as changes
    except ImportError:
        raise ValueError("--watch needs watchfiles: pip install -e '.[course]'") from None
    folder = implementation_folder(impl)
    # Also wake up twice a second without an event: a file may have been saved while another was being judged.
    saves = changes(folder, recursive=False, raise_interrupt=False, debounce=50, step=20, rust_timeout=500,
                    yield_on_timeout=True)  # fmt: skip
    judged = None
    with _StandingBy() as judge:
        for _ in saves:
            now = {name: source.text for name, source in read_answers(folder).items()}
            if now == judged:
                continue
            if judged is not None:
                console.clear()
                changed = sorted(name for name in now.keys() | judged.keys() if now.get(name) != judged.get(name))
                console.print("changed: " + ", ".join(f"{name}.py" for name in changed), style="dim")
            judged = now
            check(console, impl, target, all_chapters, judge)
            console.print("Save a file to check it again. Stop with Ctrl-C.", style="dim")
            judge.prepare()


class _StandingBy:
    """Judges as ``run_graders`` does, in a process that has started before. A context manager."""

    def __enter__(self) -> "_StandingBy":
        self._standby = Standby().__enter__()
        self._used = False
        return self

    def __exit__(self, *_) -> None:
        self._standby.__exit__()

    def __call__(
        self, impl: str, targets: Sequence[str], on_verdict: Callable[[Verdict], None] | None = None
    ) -> list[TaskResult]:
        self._used = True
        return self._standby.run_graders(impl, targets, on_verdict)

    def prepare(self) -> None:
        """Start the next process, if the last one has judged."""
        if self._used:
            self._standby.__exit__()
            self.__enter__()
