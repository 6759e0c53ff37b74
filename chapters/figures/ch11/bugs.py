"""Two bugs of expert parallelism in real runs; in place of its log, a rank returns the gradient norm of every step."""

from functools import partial
from unittest.mock import patch

import minidist as md
from minidist.show.demos.expert_parallel.run import average_over_own_group
from minidist.train import step
from minidist.train.parallelize import ParallelModel


def with_norms(world, config, layout, options):
    """Train without a bug."""
    correct, norms = step.clip_grad_norm, []
    with patch.object(step, "clip_grad_norm", lambda *arguments: norms.append(correct(*arguments))):
        result = md.train_rank(world, config, layout, options)
    result.log = norms
    return result


def too_large(world, config, layout, options):
    """Average an expert's gradient over edp, which is ep times smaller than dp."""
    with patch.object(step, "average_gradients", partial(average_over_own_group, ep=layout.ep)):
        return with_norms(world, config, layout, options)


def norm_of_some(world, config, layout, options):
    """Let rank 0 alone count the parameters in the norm, so that it misses the experts of the others."""
    with patch.object(ParallelModel, "owns", lambda self, parameter: self.group.rank == 0):
        return with_norms(world, config, layout, options)
