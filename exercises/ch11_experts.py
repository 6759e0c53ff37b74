"""Chapter 11: experts: routing, balance, dispatch, and expert parallelism.

**A mixture of experts** takes the place of a layer's MLP. It has E experts, each of them an MLP, and each of N tokens
uses k of them. A router gives each token a score for each expert, (N, E). The k experts that a token uses are its
*choices*, (N, k). C is the width of the model.

**Rows.** A token is copied once for each of its choices. The copies are sorted by expert: row r of (R, C) belongs to
one choice of one token. R is k N, less the choices that are dropped where experts have a capacity.

**Expert parallelism.** The experts are divided among N ranks: each has E/N of them, rank 0 the first ones, and the
whole rest of the model. Every rank has tokens of its own. Rows go to the ranks that have their experts, and come back.

Most functions of 11.2 to 11.8 have the names and arguments of minidist's own, so the library can train with them:

    minidist verify --impl exercises ep=2,dp=4

You may use the imports below, NumPy, and what you write here. ``minidist check 11`` grades this file,
``minidist check --hint 11.2`` gives a hint.
"""

from math import floor

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_reduce, all_to_all_single

# 11.1  Worksheet: parameters and FLOPs
#
# A router is a matrix of width x experts. An expert is two matrices, from ``width`` to ``hidden`` units and back. The
# shared expert, if there is one, is another such MLP with ``shared`` units, which every token uses. Nothing has biases.


def mixture_parameters(width: int, experts: int, hidden: int, shared: int = 0) -> int:
    """All parameters of a mixture, with its router."""
    raise NotImplementedError("task 11.1")


def active_parameters(width: int, experts: int, k: int, hidden: int, shared: int = 0) -> int:
    """The parameters that one token uses: it needs its score for every expert, and then k experts."""
    raise NotImplementedError("task 11.1")


def mixture_flops(tokens: int, width: int, experts: int, k: int, hidden: int, shared: int = 0) -> int:
    """The operations of all matrix products in forward. A multiplication and an addition are two."""
    raise NotImplementedError("task 11.1")


def experts_for(times: int, k: int, hidden: int, shared: int = 0) -> int:
    """The fewest experts, k or more, for which a mixture has at least ``times`` times the parameters a token uses.

    Leave the router out of both counts. ``times`` is at least 1.
    """
    raise NotImplementedError("task 11.1")


# 11.2  Routing


def top_k_experts(scores: np.ndarray, k: int) -> np.ndarray:
    """11.2  Each token's k experts with the highest scores, the highest first; on a tie the lower index first.

    Args:
        scores: (N, E), float32 or float64; not modified. Some may be -inf: those come last. N may be 0.
        k: from 1 to E.

    Returns:
        integers (N, k)
    """
    raise NotImplementedError("task 11.2")


def gate_weights(scores: np.ndarray, chosen: np.ndarray, normalize: bool) -> np.ndarray:
    """11.2  The weights of each token's experts: their scores, with ``normalize`` divided by their sum.

    Args:
        scores: (N, E), at least 0; not modified.
        chosen: integers (N, k).
        normalize: whether a token's k weights add up to 1. If its scores are all 0, as those of sigmoids may be, its
            weights are 0.

    Returns:
        (N, k), of the dtype of the scores.
    """
    raise NotImplementedError("task 11.2")


def route(scores: np.ndarray, bias: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """11.2  The experts that each token uses, and their weights.

    ``bias`` evens out the load (11.4): it counts when experts are chosen, and nowhere else. The choice has no gradient,
    so the router learns through the weights alone. Decide for which k they may be normalized: they must depend on the
    scores.

    Args:
        scores: (N, E), at least 0; not modified.
        bias: (E,)

    Returns:
        The choices, integers (N, k), the highest of score + bias first, and their weights (N, k). For k > 1 the weights
        of a token add up to 1.
    """
    raise NotImplementedError("task 11.2")


# 11.3  The balance loss
#
# E sum_i f_i P_i: f_i is the share of all choices that went to expert i, P_i the mean over the tokens of its score. It
# is 1 if the load is even. (Fedus et al., "Switch Transformers", 2021, equation 4.)


def balance_loss(scores: np.ndarray, counts: np.ndarray) -> float:
    """11.3  The balance loss, without a coefficient.

    Args:
        scores: (N, E); a token's add up to 1.
        counts: how often each expert was chosen, integers (E,). They may count more tokens than these.

    Returns:
        The loss; 0 where nothing was chosen, or there are no tokens.
    """
    raise NotImplementedError("task 11.3")


def balance_loss_gradient(scores: np.ndarray, shares: np.ndarray, coefficient: float, normalized: bool) -> np.ndarray:
    """11.3  The gradient of ``coefficient`` E sum_i f_i P_i with respect to the scores.

    f is a constant: counts have no gradient. The library computes the slope with respect to each expert's probability
    in float64 and rounds it once, to the dtype of the scores. To get its bits, do the same.

    Args:
        scores: (N, E), above 0, float32 or float64; not modified. N may be 0.
        shares: f, (E,) float64.
        coefficient: of the loss.
        normalized: whether a token's scores add up to 1. If not, as with sigmoids, P is the mean over the tokens of
            their scores divided by the token's sum, and the gradient passes through this division.

    Returns:
        (N, E), of the dtype of the scores.
    """
    raise NotImplementedError("task 11.3")


def moved_bias(bias: np.ndarray, counts: np.ndarray, rate: float) -> np.ndarray:
    """11.4  Balance without a loss: the routers' biases for the next step.

    The bias of an expert with more tokens than the mean of its layer falls by ``rate``; with fewer it rises by
    ``rate``. Where the count equals the mean, the bias stays. (Wang et al., "Auxiliary-Loss-Free Load Balancing",
    2024.)

    Args:
        bias: (L, E) float32, of L layers; not modified.
        counts: of the tokens that chose each expert in this step, integers (L, E), up to 2^40; not modified.
        rate: the change in one step. Round it to float32 before you add it, as the library does.

    Returns:
        (L, E) float32
    """
    raise NotImplementedError("task 11.4")


def sort_by_expert(chosen: np.ndarray, experts: int, capacity: int | None) -> tuple[np.ndarray, np.ndarray]:
    """11.5  The choices sorted by expert, those of one expert in the order of the tokens: from tokens to rows.

    The choices are numbered token by token: token t has the numbers k t to k t + k - 1.

    Args:
        chosen: integers (N, k); the k of a token are different. N may be 0. Not modified.
        experts: E.
        capacity: how many choices an expert takes, in the order of the tokens; the others are dropped. It may be 0.
            None: nothing is dropped.

    Returns:
        The numbers of the choices that are kept, integers (R,), and how many each expert keeps, integers (E,).
    """
    raise NotImplementedError("task 11.5")


# 11.6  Combine


def combine_rows(rows: np.ndarray, weights: np.ndarray, places: np.ndarray) -> np.ndarray:
    """11.6  Each token's weighted sum of its experts' outputs.

    The terms of a token are added in the order of its choices, in the dtype of the rows, starting from zero: each
    product is rounded, then each sum. Another order gives other bits.

    Args:
        rows: (R, C); not modified. R may be 0, and elements may be infinite.
        weights: (N, k), of the same dtype.
        places: the row of each choice, integers (N, k); -1 for one that was dropped, which counts as 0.

    Returns:
        (N, C), of the same dtype.
    """
    raise NotImplementedError("task 11.6")


def combine_rows_backward(
    gradient: np.ndarray,
    rows: np.ndarray,
    order: np.ndarray,
    token: np.ndarray,
    places: np.ndarray,
    weights: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """11.6  The gradients of ``combine_rows`` with respect to its rows and its weights.

    The library takes the sums over C with ``np.einsum("rc,rc->r", ...)``. To get its bits, do the same.

    Args:
        gradient: of the output, (N, C); not modified, like all that follow.
        rows, places, weights: as for ``combine_rows``.
        order: the number of each row's choice, as in 11.5: integers (R,).
        token: the token that each row belongs to: integers (R,).

    Returns:
        The gradients (R, C) and (N, k). The weight of a choice that was dropped has a gradient of 0.
    """
    raise NotImplementedError("task 11.6")


# 11.7  Two all-to-alls
#
# A rank does not know how many rows the others will send it. So the counts go first. Every rank calls both functions,
# even one that has no tokens, or whose experts nobody chose: the others wait for it.


def exchange_counts(counts: list[int], group: ProcessGroup) -> list[list[int]]:
    """11.7  The number of rows that come from every rank to each expert of this rank.

    Args:
        counts: how many of this rank's rows go to each of all E experts: E integers, those of rank 0's experts first. N
            divides E.
        group: the N ranks.

    Returns:
        For each rank its counts for the E/N experts here: N lists of E/N Python integers.

    Cost: one all-to-all of E integers.
    """
    raise NotImplementedError("task 11.7")


def exchange_rows(rows: np.ndarray, send: list[int], receive: list[int], group: ProcessGroup) -> np.ndarray:
    """11.7  Send the first ``send[0]`` rows to rank 0, the next ``send[1]`` to rank 1 and so on.

    Args:
        rows: (R, C), C-contiguous, of any dtype; R is the sum of ``send``. Not modified.
        send, receive: how many rows go to, and come from, each rank. Any of them may be 0.
        group: the ranks.

    Returns:
        The rows that arrive, those of rank 0 first: a new array (sum of ``receive``, C).

    Cost: one all-to-all, of no more than these rows.
    """
    raise NotImplementedError("task 11.7")


def expert_groups(mesh: np.ndarray, ranks: int) -> tuple[list[list[int]], list[list[int]]]:
    """11.8  The groups of ranks that exchange tokens, and the groups of ranks that have the same experts.

    ``ranks`` consecutive data-parallel ranks share the experts: their coordinates in the mesh differ in dp alone. The
    n-th of them has the n-th part of the experts. Tensor-parallel ranks have different parts of an expert's weights,
    and pipeline stages have other layers. Context-parallel ranks have the same experts, and other tokens.

    Args:
        mesh: all ranks, integers (pp, dp, cp, tp), numbered in any way.
        ranks: how many ranks share the experts; divides dp.

    Returns:
        Two lists of groups, each group a list of Python integers. Every rank is in one group of each list. A group is
        in the order of dp, and where it spans cp too, in the order of dp, then of cp. The groups may come in any order.
    """
    raise NotImplementedError("task 11.8")


class ExpertSync:
    """11.9  Debugging: gradients in step, and clipped, where some parameters are experts.

    Every rank has samples of its own, the same number on each. ``ranks`` consecutive ranks share the experts. The loss
    of a rank is the mean over its own samples, the loss of the run the mean over all samples. With ``ranks=1`` all is
    well. With more, the loss falls too, but the experts learn faster than in one process. And after some steps the
    ranks no longer agree on the dense parameters, of which each has a replica. Find out why, and fix it: dividing the
    experts among ranks must change nothing.

    Args:
        ranks: how many ranks share the experts; divides the size of ``world``.
        world: all ranks.
    """

    def __init__(self, ranks: int, world: ProcessGroup) -> None:
        self.world = world
        exchanging = [list(range(first, first + ranks)) for first in range(0, world.size, ranks)]
        same_experts = [list(range(first, world.size, ranks)) for first in range(ranks)]
        self.exchanging = self._mine(exchanging)
        self.same_experts = self._mine(same_experts)

    def _mine(self, groups: list[list[int]]) -> ProcessGroup:
        made = [self.world.new_group(members) for members in groups]  # None where this rank is not a member
        return next(group for group in made if group is not None)

    def sync_gradients(self, dense: np.ndarray, experts: np.ndarray) -> None:
        """Turn both into the gradients of the run's loss, in place.

        Args:
            dense: gradient of the dense parameters, from this rank's loss.
            experts: gradient of this rank's experts, from all tokens that came to them: from the losses of all ranks
                that exchange tokens with this one, added up.
        """
        all_reduce(dense, ReduceOp.SUM, self.world)
        dense /= self.world.size
        all_reduce(experts, ReduceOp.SUM, self.same_experts)
        experts /= self.same_experts.size

    def clip(self, dense: np.ndarray, experts: np.ndarray, limit: float) -> float:
        """Scale synchronised gradients, in place, so that the norm of all of them is at most ``limit``.

        Returns:
            The norm before that, over the dense parameters and all experts, each of which counts once.
        """
        squares = np.array([np.sum(experts**2)])
        all_reduce(squares, ReduceOp.SUM, self.same_experts)
        squares /= self.same_experts.size
        norm = float(np.sqrt(np.sum(dense**2) + squares[0]))
        scale = min(1.0, limit / (norm + 1e-6))
        dense *= scale
        experts *= scale
        return norm


# 11.10  Worksheet: when does the all-to-all cost more than tensor parallelism's all-reduce?
#
# The functions count what one rank sends in one layer, in forward and backward together, in elements: numbers, whatever
# their size. The rank works on ``tokens`` tokens of ``width`` numbers. Routing is even: each choice is equally likely
# to be on any of the ``ranks`` ranks, this one included. A node has ``node_size`` ranks; that number divides ``ranks``
# or is larger. ``fast`` and ``slow`` are elements a second inside a node and across nodes. Both links work at the same
# time.


def all_to_all_elements(tokens: int, width: int, k: int, ranks: int) -> float:
    """Expert parallelism: dispatch and combine in forward, and the gradients of both on their way back."""
    raise NotImplementedError("task 11.10")


def all_reduce_elements(tokens: int, width: int, ranks: int) -> float:
    """Tensor parallelism: a ring all-reduce of (tokens, width) in forward, and one in backward."""
    raise NotImplementedError("task 11.10")


def crossing_elements(tokens: int, width: int, k: int, ranks: int, node_size: int) -> float:
    """The part of ``all_to_all_elements`` that leaves this rank's node."""
    raise NotImplementedError("task 11.10")


def all_to_all_seconds(tokens: int, width: int, k: int, ranks: int, node_size: int, fast: float, slow: float) -> float:
    """Seconds that the all-to-alls take: what stays in the node and what leaves it travel at the same time."""
    raise NotImplementedError("task 11.10")


def limited_seconds(
    tokens: int, width: int, k: int, most: int, ranks: int, node_size: int, fast: float, slow: float
) -> float:
    """Seconds that the all-to-alls take with node-limited routing, on more than one node.

    A token's k experts are on ``most`` nodes, at most k. Each node is equally likely, the token's own included. The
    token goes to each of these nodes once, however many of its experts are there. The rank that receives it passes the
    copies on inside the node, k in all; each is equally likely to be for any rank there, itself included. Results
    return the same way. (DeepSeek-V3 Technical Report, 2024, sections 2.1.2 and 3.2.2.)
    """
    raise NotImplementedError("task 11.10")


def smallest_k(ranks: int, node_size: int, tensor: int, fast: float, slow: float) -> int:
    """The smallest k with which the all-to-alls take longer than the all-reduces over ``tensor`` ranks of one node.

    Both are for the same tokens of the same width; routing is not limited. Both numbers of ranks are at least 2.
    """
    raise NotImplementedError("task 11.10")
