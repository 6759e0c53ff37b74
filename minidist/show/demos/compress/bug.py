"""Compression with one bug: what a message leaves out is not added to the next gradient, so it is lost.

torch's PowerSGD hook loses its residuals once: when DistributedDataParallel rebuilds its buckets (pull request 49418).
"""

from functools import partial

import numpy as np

from minidist.show.demos.compress.run import train_recording

BUG = "no error feedback: what a message leaves out is lost (torch lost it when buckets were rebuilt, #49418)"
train_forgetting = partial(train_recording, keep=np.zeros_like)
COLD = "each round begins with random Q: no warm start (torch's PowerSGD did so until #50283)"
