"""The outcome of each run of the demonstration, in a sentence, and what proves it."""

import numpy as np

from minidist.show.demos.compress.curves import WINDOW, Curves
from minidist.show.demos.compress.curves_scene import above, worse
from minidist.show.demos.compress.factors import RANK, Approximation
from minidist.show.demos.compress.run import STEPS, Recorded

TORCH = (
    "In torch's PowerSGD hook the residuals became zeros whenever DistributedDataParallel rebuilt its buckets "
    "(pytorch pull request 49418)."
)


def books(shown: Recorded) -> str:
    """That sent + new residual is gradient + old residual everywhere.

    Raises:
        RuntimeError: if it is not.
    """
    balanced, total = shown.balances()
    if balanced != total:
        raise RuntimeError(f"{total - balanced} of {total} numbers do not add up: this is a bug in minidist")
    return (
        f"Sent + new residual is gradient + old residual to the last bit, in all {total:,} numbers of all parameters, "
        "ranks and steps."
    )


def missed(shown: Recorded) -> float:
    """How far rank 0's messages of the drawn parameter are from its gradients, over all steps, as a share of those."""
    gradients, sent = (sum(getattr(message, name) for message in shown.drawn) for name in ("gradient", "sent"))  # (n,)
    return float(np.linalg.norm(gradients - sent) / np.linalg.norm(gradients))


def sparse(right: Recorded, nbytes: int) -> str:
    count = right.drawn[0].sent.size
    return (
        f"{nbytes} bytes for {8 * count} in each step, and {right.moved()} of {count} biases have moved after {STEPS}."
    )


def broken_sparse(broken: Recorded, number: int) -> str:
    count = broken.drawn[0].sent.size
    lost = sum(message.gradient[number] for message in broken.drawn)
    return f"{count - broken.moved()} of {count} biases never moved. Number {number}'s gradients add up to {lost:+.2f}."


def signs(right: Recorded, nbytes: int) -> str:
    return f"{nbytes} bytes for {right.drawn[0].sent.nbytes} in each step; what they miss is in the residual."


def broken_signs(right: Recorded, broken: Recorded) -> str:
    return f"All messages together miss {missed(broken):.0%} of the gradients; with feedback, {missed(right):.0%} wait."


def account(right: Recorded, number: int) -> str:
    came, sent = (sum(getattr(message, name)[number] for message in right.drawn) for name in ("gradient", "sent"))
    return f"{came:+.4f} came in, {sent:+.4f} was sent, and {right.drawn[-1].after[number]:+.4f} is still there."


def broken_account(broken: Recorded, number: int) -> str:
    came = sum(message.gradient[number] for message in broken.drawn)
    return f"{STEPS} gradients of number {number} add up to {came:+.4f}, and nothing of it was ever sent."


def low_rank(shown: Approximation) -> str:
    first, last = shown.errors[0], shown.errors[-1]
    return f"The error falls from {first:.1%} to {last:.1%}; no matrix of rank {RANK} has less than {shown.best:.1%}."


def broken_low_rank(right: Approximation, broken: Approximation) -> str:
    return f"After the first round the mean error is {broken.later:.1%}; with a warm start it is {right.later:.1%}."


def losses(shown: Curves) -> str:
    low, high = _range(shown, shown.compressed)
    return f"With feedback, the loss ends {low:.2f} to {high:.2f} above that of full gradients, over methods and seeds."


def broken_losses(shown: Curves) -> str:
    low, high = _range(shown, shown.forgetful)
    runs = sum(len(loss) for loss in shown.forgetful.values())
    return (
        f"Without feedback it ends {low:.2f} to {high:.2f} above: higher than with it in {worse(shown)} of {runs} runs."
    )


def how_measured(shown: Curves) -> str:
    shares = ", ".join(f"{name} {share:.2%}" for name, share in shown.shares.items())
    return f"Means of the last {WINDOW} steps. Bytes that a rank sends in a step, beside full gradients: {shares}."


def _range(shown: Curves, losses: dict) -> tuple[float, float]:
    ends = np.array([above(loss, shown.full)[:, -1] for loss in losses.values()])
    return float(ends.min()), float(ends.max())
