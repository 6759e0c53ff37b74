"""Clusters whose runs end by themselves, and clusters that do not start at all."""

import minidist as md

RUN_SECONDS = 300  # that one run of a cluster may take, however busy the machine is; most take milliseconds


class PatientCluster(md.Cluster):
    """A Cluster each run of which has a limit, also where the test names none."""

    def run(self, fn, *args, timeout=RUN_SECONDS, **options):
        return super().run(fn, *args, timeout=timeout, **options)


class Started(BaseException):
    """A command has checked all that there is to check, and would start a rank."""


def start_no_ranks(monkeypatch) -> None:
    """Have whoever makes a Cluster end with Started."""

    def start(*_, **__):
        raise Started

    monkeypatch.setattr(md.Cluster, "__init__", start)
