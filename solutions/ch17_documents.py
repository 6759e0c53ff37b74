"""Chapter 17: documents: how they are packed into samples, kept apart, counted, ordered, and dealt to ranks.

**Words.** A *place* of a sample has a token and its target, the token after it in its document. So a document of n
tokens has n - 1 places. A sample, or *pack*, has T places; those that its documents leave free are *padding*. B samples
are a micro-batch.

``first_fit``, ``hidden_keys``, ``any_key_seen``, ``permuted`` and ``deal_chunks`` have the names and arguments of
minidist's own, so the library can train with them on a file of documents:

    minidist verify --impl exercises --text FILE.jsonl --packing first-fit --sequence-chunks 4 cp=2,cp_kind=balanced

You may use the imports below, NumPy, and what you write here. ``minidist check 17`` grades this file,
``minidist check --hint 17.1`` gives a hint.
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_reduce

IGNORED = -100  # a target that does not count: a prompt's, or padding's

# 17.1  Packing


def pieces(places: int, capacity: int) -> list[int]:
    """17.1  The number of places in each piece of one document: as many full pieces as there are, then the rest.

    Args:
        places: the document's; 0 for a document of a single token, which has no piece.
        capacity: the places of a sample, and of a full piece; at least 1.
    """
    # >>> 17.1
    full, rest = divmod(places, capacity)
    return [capacity] * full + [rest] * (rest > 0)
    # <<<


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """17.1  Packs, by first fit: each piece goes into the first pack that has room for it, or else into a new one.

    The library finds that pack in log2(packs) steps. Here you may look at one pack after the other.

    Args:
        lengths: the places of each piece, from 1 to ``capacity``, in the order in which they come; not modified.
        capacity: the places of a pack.

    Returns:
        For each pack the numbers of its pieces, from 0 on. Packs and pieces are in the order in which they came.
    """
    # >>> 17.1
    packs, room = [], []
    for number, length in enumerate(lengths):
        place = next((place for place, left in enumerate(room) if left >= length), len(packs))
        if place == len(packs):
            packs.append([])
            room.append(capacity)
        packs[place].append(number)
        room[place] -= length
    return packs
    # <<<


def wasted(lengths: Sequence[int], capacity: int, packs: Sequence[Sequence[int]]) -> float:
    """17.1  The share of all places of these packs that is padding, from 0 to 1; without any pack it is 0.

    Args:
        lengths, capacity: as for ``first_fit``. Some pieces may be in no pack.
        packs: the numbers of the pieces in each, packed by any rule.
    """
    # >>> 17.1
    places = capacity * len(packs)
    filled = sum(lengths[number] for pack in packs for number in pack)
    return (places - filled) / places if places else 0.0
    # <<<


# 17.2  The mask: one number per token
#
# A token sees itself and what is before it in its own document. That is an interval, so its first place describes the
# whole mask. Tiled attention asks two questions about a tile, which is some queries by some keys: does it have to be
# computed, and which of its scores are hidden?


def first_seen(lengths: Sequence[int], places: int) -> np.ndarray:
    """17.2  The first place that each token of a sample sees. Places after the last document see only themselves.

    Args:
        lengths: the places of each document in the sample, one after the other. A length may be 0: nothing is left of
            that document.
        places: T, at least the sum of the lengths.

    Returns:
        (T,) int64.
    """
    # >>> 17.2
    first = np.arange(places)
    begin = 0
    for length in lengths:
        first[begin : begin + length] = begin
        begin += length
    return first
    # <<<


def hidden_keys(first: np.ndarray, queries: slice, keys: slice) -> np.ndarray:
    """17.2  The keys that some queries do not see.

    Args:
        first: (B, T) integers: ``first_seen`` of each sample; not modified.
        queries, keys: consecutive places of the sample; there may be more of one than of the other, and they may be
            anywhere.

    Returns:
        Bool (B, keys, queries).

    Cost: memory for the tile, not for a mask of T by T.
    """
    # >>> 17.2
    query, key = np.arange(queries.start, queries.stop), np.arange(keys.start, keys.stop)[:, None]
    return (key > query) | (key < first[:, None, queries])  # (B, keys, queries)
    # <<<


def any_key_seen(first: np.ndarray, queries: slice, keys: slice) -> bool:
    """17.2  Whether any of these queries sees any of these keys, in any of the samples. If not, the tile is skipped.

    Args:
        first, queries, keys: as for ``hidden_keys``; there is at least one sample, one query and one key.

    Cost: memory for a few numbers per query, not for the tile. The queries are consecutive, and each sees itself.
    """
    # >>> 17.2
    return bool(keys.start < queries.stop and keys.stop > first[:, queries].min())
    # <<<


# 17.3  One mean over the global batch
#
# The loss of a step is the mean over all targets that count, wherever they are. Ranks and micro-batches have different
# numbers of them.


def global_mean(losses: Sequence[np.ndarray], targets: Sequence[np.ndarray], group: ProcessGroup) -> float:
    """17.3  The mean of the losses at all targets of all ranks that count; 0 if none does.

    Args:
        losses: float64 (B, T) of each micro-batch of this rank; not modified. The loss at a target that is ``IGNORED``
            means nothing, and may be NaN.
        targets: integers (B, T) of each micro-batch; not modified. A rank may have no micro-batch, and another one
            several, of different shapes.
        group: the ranks.

    Returns:
        The same number on every rank.

    Cost: a few numbers per rank, not its losses. Counts are summed as integers.
    """
    # >>> 17.3
    total = np.zeros(1)
    for loss, target in zip(losses, targets, strict=True):
        total += loss[target != IGNORED].sum()
    all_reduce(total, ReduceOp.SUM, group)
    return float(total[0]) / gradient_weight(targets, group)
    # <<<


def gradient_weight(targets: Sequence[np.ndarray], group: ProcessGroup) -> int:
    """17.3  The divisor of the gradient of each micro-batch's *sum* of losses, before all of them are added.

    They are added over micro-batches and ranks; the result is the gradient of ``global_mean``. In a step without any
    target that counts that gradient is 0, so the divisor is 1.

    Args:
        targets, group: as for ``global_mean``.
    """
    # >>> 17.3
    count = np.array([sum(int((target != IGNORED).sum()) for target in targets)])
    all_reduce(count, ReduceOp.SUM, group)
    return max(1, int(count[0]))
    # <<<


def local_mean_error(counts: Sequence[int], means: Sequence[float]) -> float:
    """17.3  Worksheet: the mean of the ranks' own means, minus the global mean.

    A bug that real systems had (torchtitan issue 2206): each rank divides by its own count, and the results are
    averaged.

    Args:
        counts: how many targets count on each rank.
        means: the mean of their losses on each rank; 0 for a rank without any, which is averaged too.
    """
    # >>> 17.3
    right = sum(count * mean for count, mean in zip(counts, means, strict=True)) / max(1, sum(counts))
    return sum(means) / len(means) - right
    # <<<


def token_weights(counts: Sequence[int]) -> list[float]:
    """17.3  Worksheet: the weight of one target on each rank in that wrong mean, over the weight that it should have.

    1 is right; 0 for a rank without targets that count.

    Args:
        counts: as for ``local_mean_error``.
    """
    # >>> 17.3
    return [sum(counts) / (len(counts) * count) if count else 0.0 for count in counts]
    # <<<


# 17.4  An order that is not stored

MIX = 0x9E3779B97F4A7C15  # an odd number of 64 bits, 2^64 over the golden ratio


def permuted(place: int, count: int, keys: Sequence[int]) -> int:
    """17.4  The sample at a place of an epoch of ``count`` samples: each is at one place, in an order made by the keys.

    No list is stored, so it costs as much for a thousand samples as for 10^15. Any such order passes, if every key
    changes it, each sample is equally likely at each place, and neighbours have no pattern. The library's is a Feistel
    network, whose rounds can be undone, so no two places meet:

        A place has two halves of b bits; b is half the bits of count - 1, rounded up.
        Split the place into ``left``, the b upper bits, and ``right``, the lower ones.
        For each key:    left, right = right, left XOR f(right), where f(x) is made in 64 bits (carries are dropped):
                             x = (x XOR key) MIX
                             x = (x XOR (x >> 29)) MIX
                             f(x) = bits 32 to 32 + b - 1 of x, bit 0 being the lowest
        Join them again. A result of ``count`` or more is no sample: permute it again, until it is one.

    Args:
        place: from 0 to count - 1.
        count: at least 1.
        keys: six or so integers from 0 to 2^63 - 1, drawn for each epoch.
    """
    # >>> 17.4
    half = ((count - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for key in keys:
            mixed = (right ^ key) * MIX % 2**64
            mixed = (mixed ^ mixed >> 29) * MIX % 2**64
            left, right = right, left ^ (mixed >> 32 & mask)
        place = left << half | right
        if place < count:
            return place
    # <<<


# 17.5  A sampler that may go on anywhere


def samples_of(
    step: int, rank: int, ranks: int, batches: Sequence[int], micro_batch: int, count: int
) -> list[list[tuple[int, int]]]:
    """17.5  The samples of a rank in a step, from these arguments alone: so nothing is saved but the step's number.

    A run takes one sample after the other. Each epoch has all of them, at places 0 to ``count`` - 1, and a step may
    begin in one epoch and end in a later one. Consecutive samples of a step make its micro-batches, whatever the number
    of ranks. Each rank has consecutive micro-batches, rank 0 the first ones; where they cannot be divided evenly, the
    first ranks have one more.

    Args:
        step: from 0 on.
        rank, ranks: this data-parallel rank, and how many there are in this step. Both may change in the next one.
        batches: samples of steps 0, 1, and so on, over all ranks: a ramp. The last number is that of all later steps
            too. Each is a multiple of ``micro_batch``.
        micro_batch: samples in a micro-batch.
        count: samples in an epoch.

    Returns:
        This rank's micro-batches, in order: for each sample its epoch, and its place in that epoch.
    """
    # >>> 17.5
    begin = sum(batches[:step]) + max(0, step - len(batches)) * batches[-1]
    each, more = divmod(batches[min(step, len(batches) - 1)] // micro_batch, ranks)
    first = rank * each + min(rank, more)
    starts = [begin + number * micro_batch for number in range(first, first + each + (rank < more))]
    return [[divmod(number, count) for number in range(start, start + micro_batch)] for start in starts]
    # <<<


# 17.6  Chunks dealt by their work


def work_of_chunks(first: np.ndarray, chunks: int) -> list[int]:
    """17.6  The work of attention in each sequence chunk: how many tiles it computes for the queries of that chunk.

    A tile is a chunk of queries by a chunk of keys. It is computed, for all samples at once, if a query of any sample
    sees a key in it.

    Args:
        first: (B, T) integers, the first place that each token sees, which never decreases along a sample; not
            modified.
        chunks: the number of chunks that the sequence is cut into; it divides T.

    Returns:
        A number for each chunk.
    """
    # >>> 17.6
    each = first.shape[1] // chunks
    begins = first[:, ::each].min(axis=0)  # (chunks,): a chunk's first token sees the earliest keys
    return (np.arange(1, chunks + 1) - begins // each).tolist()
    # <<<


def deal_chunks(work: Sequence[int], ranks: int) -> list[list[int]]:
    """17.6  Deal chunks to ranks, equally many to each, with nearly the same work.

    The chunk with the most work comes first, on a tie the one with the lower number. It goes to the rank with the least
    work of those that still lack chunks, on a tie to the one with the lower number.

    Args:
        work: the work of each chunk; not modified. ``ranks`` divides the number of chunks.

    Returns:
        The chunks of each rank, ascending.
    """
    # >>> 17.6
    shares = [[] for _ in range(ranks)]
    for chunk in sorted(range(len(work)), key=lambda chunk: (-work[chunk], chunk)):
        lacking = [share for share in shares if len(share) < len(work) // ranks]
        min(lacking, key=lambda share: sum(work[other] for other in share)).append(chunk)
    return [sorted(share) for share in shares]
    # <<<


def imbalance(work: Sequence[int], shares: Sequence[Sequence[int]]) -> float:
    """17.6  The largest work of a rank over the mean of all ranks: 1 is perfect, and with 2 half the time is waiting.

    Args:
        work: of each chunk.
        shares: the chunks of each rank.
    """
    # >>> 17.6
    sums = [sum(work[chunk] for chunk in share) for share in shares]
    return max(sums) * len(sums) / sum(sums)
    # <<<


def attend_packed(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """17.7  Debugging: one head's causal attention over documents that are packed one after the other.

    No document sees another. The authors tested it with one document. With more of them a model trains with it, and the
    loss falls. But tokens of one document change an output of the next one. Find out which, and fix it.

    Args:
        q, k, v: (T, D) float64; not modified.
        lengths: the tokens of each document, at least 1. They add up to T.

    Returns:
        (T, D)
    """
    places, ends = np.arange(len(q)), np.cumsum(lengths)
    # >>> 17.7
    document = np.searchsorted(ends, places, side="right")  # the first one that ends after a place
    # === given to the learner
    # document = np.searchsorted(ends, places)  # the first one that ends after a place
    # <<<
    first = (ends - lengths)[document]  # of its document

    scores = q @ k.T / sqrt(q.shape[1])
    scores[(places > places[:, None]) | (places < first[:, None])] = -np.inf  # (queries, keys)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v
