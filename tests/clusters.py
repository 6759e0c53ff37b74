"""Clusters whose runs end by themselves."""

import minidist as md

RUN_SECONDS = 300  # that one run of a cluster may take, however busy the machine is; most take milliseconds


class PatientCluster(md.Cluster):
    """A Cluster each run of which has a limit, also where the test names none."""

    def run(self, fn, *args, timeout=RUN_SECONDS, **options):
        return super().run(fn, *args, timeout=timeout, **options)
