"""``minidist plan``: what a model would cost on a cluster, in which layout, and how well that agrees with real runs."""
