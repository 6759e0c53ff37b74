"""Draws runs: a config and a layout that may stand together, every setting by chance.

What a setting means may depend on others: a schedule on a pipeline, a capacity on experts. ``draw`` goes from one to
the next and picks only what has a meaning, so that nearly every case is legal. ``Case.met`` says what meets in it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from heapq import heapify, heappop, heappush
from importlib.util import find_spec
from itertools import pairwise
from math import inf
from pathlib import Path

from minidist.comm.collectives import ALL_REDUCE
from minidist.data.packing import PACKINGS, RANDOM
from minidist.nn.config import GATES, SCOPES, divisors
from minidist.nn.precision.policy import POLICIES
from minidist.nn.recompute import MODES
from minidist.parallel.context import KINDS
from minidist.parallel.data import SYNCS
from minidist.parallel.tools.schedules import SCHEDULES
from minidist.train.config import LR_SCHEDULES, OPTIMIZERS, TrainConfig
from minidist.train.layout import Layout
from minidist.train.rules import GRAD_SYNCS, ZERO_ALGORITHMS, full_rank, why_it_differs
from minidist.verify.matrix import pairs_of

MOST_RANKS = 6
TEXT = str(Path(__file__).parents[2] / "LICENSE")  # so short that the loss on its end is known soon
DOCUMENTS = str(Path(__file__).with_name("documents.jsonl"))  # some with prompts
HAS_TOKENIZERS = find_spec("tokenizers") is not None
TOKENIZER = str(Path(__file__).with_name("tokenizer.json"))  # trained on it: 256 bytes and 7 merges
VOCAB = 263  # prime: only one head divides it
SERVED = ("server", "stale", "async")
COMPRESSED = ("topk:1", "powersgd")  # of full rank
LOOSE = ("delayed", "one local step", "local", *SERVED, *COMPRESSED)
ONE_STEP = {"local_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0, "optimizer": "sgd", "clip": inf}
ONE_STEP |= {"weight_decay": 0.0}  # data parallelism
LATER = {"local_steps": 2, "outer_lr": 0.7, "outer_momentum": 0.5}
KEPT = {  # what of a loosened layout shows in the bits
    "delayed": (), "local": ("dp", *LATER, "fragments"), "server": ("dp", "staleness", "arrivals"),
    "async": ("dp", "arrivals"),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A run: a config, a layout that fits it, and whether micro-batches are dealt out anew between its steps."""

    config: TrainConfig
    layout: Layout
    rebalance: bool
    met: dict[str, object]  # the settings that have a meaning in it, and their values; of many values, the kind

    @property
    def reference(self) -> Layout:
        """The simplest layout with the same bits: one process, unless steps are loosened."""
        if not why_it_differs(self.config, self.layout):
            return Layout()
        return Layout(**{key: getattr(self.layout, key) for key in ("sync", *KEPT[self.layout.sync])})

    def __str__(self) -> str:
        changed = {f.name: v for f in fields(self.config) if (v := getattr(self.config, f.name)) != f.default}
        return f"{self.layout}{' rebalanced' * self.rebalance}: TrainConfig(**{changed})"


class Settings:
    """Settings chosen so far: ``all``, and of these ``met``, whose pairs matter."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.all, self.met = rng, {}, {}

    def pick(self, key: str, *values):
        """Choose one of these values for a setting that should meet all others."""
        self.all[key] = self.met[key] = self.rng.choice(values)
        return self.all[key]

    def size(self, key: str, *values: int) -> int:
        """Choose a number, of which those above 2 are alike."""
        value = self.pick(key, *values)
        self.met[key] = min(value, 3)
        return value

    def any(self, key: str, *values):
        """Choose the value of a setting that need not meet all others."""
        self.all[key] = self.rng.choice(values)
        return self.all[key]


def draw(rng: random.Random) -> Case | None:
    """A case; None where what was chosen first leaves nothing for the rest.

    Raises:
        ValueError: if it is not legal after all.
    """
    s = Settings(rng)
    loose = s.pick("loose", *[""] * 12, *LOOSE)
    served, tight = loose in SERVED, loose in ("", *COMPRESSED)
    split = (1,) if served else (1, 1, 1, 2, 2, 3, 4)
    tp, pp, cp = (s.size(key, *split) for key in ("tp", "pp", "cp"))
    servers = s.size("servers", 1, 2, 3) if served else 0
    most = (MOST_RANKS - servers) // (tp * pp * cp)
    if not most:
        return None
    dp = s.size("dp", *range(1, most + 1))
    draw_model(s, tp, cp)
    if tight and rng.random() < 0.5:
        draw_experts(s, dp, bool(loose))
    draw_gradients(s, dp * cp, loose)
    draw_batch(s, dp, pp, tight)
    if tight:
        draw_documents(s)
    draw_steps(s, loose)
    if pp > 1:
        draw_stages(s, pp)
    else:
        s.any("layers", 1, 2) if s.all.get("moe_every") != 2 else s.any("layers", 2)
    draw_loosened(s, dp, loose)
    world = tp * pp * cp * dp + servers
    s.met["nodes"] = s.any("node_size", 0, *divisors(world)[:-1]) > 0
    legal = pp == 1 and dp > 1 and not loose and "rampup_batch_size" not in s.all
    rebalance = legal and s.pick("rebalance", False, False, True)
    of = {kind: {f.name for f in fields(kind)} & s.all.keys() for kind in (Layout, TrainConfig)}
    config = TrainConfig(**{"text": TEXT} | {key: s.all[key] for key in of[TrainConfig]})
    compress = {"compress": f"powersgd:{full_rank(config)}" if loose == "powersgd" else loose}
    layout = Layout(**{key: s.all[key] for key in of[Layout]}, **(compress if loose in COMPRESSED else {}))
    config.check(layout)
    return Case(config, layout, rebalance, s.met)


def draw_model(s: Settings, tp: int, cp: int) -> None:
    kind = s.pick("cp_kind", *KINDS) if cp > 1 else "ring"
    whole_heads = cp == 1 or kind == "ulysses"
    heads = s.any("heads", *(tp * (cp if kind == "ulysses" else 1) * n for n in (1, 2)))
    if s.pick("tokens", "bytes", "bytes", "others") == "others":
        s.all |= {"vocab": VOCAB, "tokenizer": TOKENIZER if HAS_TOKENIZERS else None}
    if s.pick("arch", "gpt2", "gpt2", "llama") == "llama":
        s.any("width", 2 * heads, 6 * heads)
        alone = tp * cp if kind == "ulysses" else tp  # ranks that share the key-value heads
        shared = [n for n in divisors(heads) if n % alone == 0 or (kind != "ulysses" and tp % n == 0)]
        kv_heads = s.any("kv_heads", *shared)
        s.met["kv_heads"] = "on several ranks" if kv_heads < tp else "shared" if kv_heads < heads else "own"
        s.pick("tied", 0, 1)
        s.any("rope_base", 100.0, 10_000.0)
    else:
        s.any("width", heads, 3 * heads)
    s.any("hidden", 0, 5 * heads)
    least = Layout(cp=cp, cp_kind=kind).least_chunks
    chunks = s.all["sequence_chunks"] = least * s.pick("chunks of a part", *((1, 2) if cp > 1 else (1, 1, 2, 3)))
    sp = s.pick("sp", 0, 1) if tp > 1 else 0
    s.any("context", *(chunks * (tp if sp else 1) * n for n in ((1, 2) if chunks > 1 else (3, 4))))
    if s.pick("attention", "plain", "tiled") == "tiled":
        s.pick("attention_tile", 1, 3, 128)
    if whole_heads and (s.all["attention"] == "tiled" or chunks > 1):  # elsewhere the order of the keys would show
        s.pick("softmax", "exact", "online32")
    s.pick("dropout", 0.0, 0.2)
    s.pick("recompute", *MODES)
    if s.pick("precision", *(name for name in POLICIES if name != "fp16" or not s.all["loose"])) == "fp16":
        s.pick("loss_scale", 0.0, 2.0**3)  # far larger ones would skip all steps
    s.pick("products", "fast", "fast", "exact")
    s.any("seed", 0, 7)


def draw_experts(s: Settings, dp: int, loosened: bool) -> None:
    nodes, ep = s.pick("expert_nodes", 1, 2), s.pick("ep", *([1] if loosened else divisors(dp)))
    s.met["ep"] = "some" if 1 < ep < dp else ep > 1
    experts = s.any("experts", 2 * nodes * ep, 3 * nodes * ep)
    top_k = s.pick("top_k", *range(1, min(experts, 3) + 1))
    if nodes > 1:
        s.pick("route_nodes", *(n for n in range(nodes) if not n or experts // nodes * n >= top_k))
    heads = s.all["heads"]
    s.any("expert_hidden", 0, heads, 4 * heads)
    s.met["shared_expert"] = s.any("shared_expert", 0, 2 * heads) > 0
    s.pick("moe_every", 1, 2)
    s.pick("gate", *GATES)
    s.pick("capacity", None, 0.75, 1.5)
    if s.pick("aux_loss", 0.0, 0.02):
        s.pick("aux_scope", *SCOPES)
    s.pick("z_loss", 0.0, 1e-3)
    s.pick("bias_rate", 0.0, 0.01)


def draw_gradients(s: Settings, data: int, loose: str) -> None:
    """Draw how gradients are summed over so many ranks."""
    zero = s.pick("zero", 0, 1, 2, 3) if data > 1 and not loose else 0
    if zero > 1:
        s.pick("grad_sync", *GRAD_SYNCS)
    if zero and s.all.get("ep", 1) == 1:
        shard = s.any("shard", 0, *divisors(data))
        s.met["shard"] = "some" if 1 < shard < data else shard == 1
    if not zero and loose in ("", *COMPRESSED) and s.pick("sync", *SYNCS[bool(loose) :]) != "naive":
        s.pick("bucket_mb", 1e-6, 0.002, 1.0)  # a parameter each, a few, all in one
    if loose not in SERVED:
        s.pick("algorithm", "auto", *(ZERO_ALGORITHMS if zero else ALL_REDUCE))


def draw_batch(s: Settings, dp: int, pp: int, tight: bool) -> None:
    """Draw how many micro-batches a step has: whole rounds where a pipeline, or what runs in it, needs them."""
    if pp > 1:
        s.pick("schedule", *SCHEDULES)
    zero, interleaved = s.all.get("zero", 0), s.all.get("schedule") == "interleaved"
    sharded_at_once = zero == 3 or (zero == 2 and s.all["grad_sync"] == "micro_batch")
    alike = pp > 1 and (s.all.get("ep", 1) > 1 or sharded_at_once)
    rounds = dp * pp if interleaved else dp if alike else 1
    least = -(-dp // rounds)
    count = rounds * s.rng.randint(least, max(least, 6 // rounds))
    s.met["uneven"] = count % dp > 0
    size = s.pick("micro_batch", 1, 2)
    s.all["global_batch"] = count * size
    starts = [n for n in range(dp, count) if n % rounds == 0]
    if starts and tight and s.pick("ramp", False, False, True):
        start = s.rng.choice(starts)
        s.all["rampup_batch_size"] = f"{start * size},{rounds * size},{count * size}"


def draw_documents(s: Settings) -> None:
    """Draw how documents make samples; some have one token, and some are much longer than any context."""
    if s.pick("packing", *[RANDOM] * 4, *PACKINGS) != RANDOM:
        s.all["text"] = DOCUMENTS
        s.pick("document_mask", 1, 1, 0)
        s.pick("restart_positions", 1, 1, 0)


def draw_steps(s: Settings, loose: str) -> None:
    s.all["steps"] = 2 if loose in ("", *COMPRESSED) else 3
    s.any("warmup", 0, 1, 2)
    if s.pick("lr_schedule", *LR_SCHEDULES) == "wsd":
        s.any("lr_decay_steps", 1, 2, 3)
    s.any("lr", 1e-3, 1e-2)
    if loose == "one local step":
        s.all |= ONE_STEP
    else:
        s.pick("optimizer", *OPTIMIZERS)
        s.pick("clip", 0.05, inf)
        s.any("weight_decay", 0.0, 0.1)


def draw_stages(s: Settings, pp: int) -> None:
    virtual = s.pick("virtual", 1, 2) if s.all["schedule"] == "interleaved" else 1
    layers = s.any("layers", pp * virtual, pp * virtual + 1)
    if s.pick("stages by hand", False, True):
        cuts = [0, *sorted(s.rng.sample(range(1, layers), pp * virtual - 1)), layers]
        s.all["stages"] = "+".join(str(end - start) for start, end in pairwise(cuts))


def draw_loosened(s: Settings, dp: int, loose: str) -> None:
    if s.all.get("zero") == 3:
        s.pick("reshard_after_forward", 0, 1)
        if s.all.get("virtual", 1) == 1:
            s.pick("prefetch", 0, 1)
    if loose in SERVED:
        given = "+".join(str(1 + n % 3) for n in range(dp))
        s.met["arrivals"] = s.any("arrivals", "seeded", given, *["live"] * (loose == "server")) == given
        if loose == "stale":
            s.pick("staleness", 1, 2)
    if loose == "local":
        s.all |= LATER
        s.pick("fragments", *range(1, min(s.all["layers"], 2) + 1))
    if loose in COMPRESSED:
        s.pick("error_feedback", 0, 1)
    if loose and loose not in COMPRESSED:
        s.all["sync"] = {"stale": "server", "one local step": "local"}.get(loose, loose)


@cache
def drawn(count: int, seed: int = 0) -> list[Case]:
    """Return ``count`` cases, the same ones every time."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        try:
            found += filter(None, [draw(rng)])
        except ValueError:  # seldom: groups that their nodes do not divide
            continue
    return found


def work(case: Case) -> float:
    """Roughly the seconds of a case, in some unit, as they were measured: ranks exchange messages in each layer of each
    micro-batch, and tiles attend to tiles."""
    config, layout = case.config, case.layout
    tiles = max(config.sequence_chunks, config.attention == "tiled" and -(-config.context // config.attention_tile))
    messages = layout.world_size * config.steps * config.micro_batches * config.layers
    return messages**0.5 * (4 + tiles**2) ** 0.33 * (1.6 if layout.tp * layout.cp > 1 else 1)


def with_every(count: int, parts_of: Callable[[dict], set]) -> list[Case]:
    """Some of the first cases drawn, which have together all parts that any of them has. Greedy, for little work; as in
    ``covering``, what a case would add never grows, so few are looked at again."""
    cases, chosen = drawn(count), []
    adds = [parts_of(case.met) for case in cases]
    missing = set().union(*adds)
    gains = [(-len(add) / work(case) ** 0.5, place) for place, (add, case) in enumerate(zip(adds, cases, strict=True))]
    heapify(gains)
    while missing:
        _, best = heappop(gains)
        adds[best] &= missing
        now = -len(adds[best]) / work(cases[best]) ** 0.5, best
        if gains and now > gains[0]:
            heappush(gains, now)
        else:
            chosen.append(cases[best])
            missing -= adds[best]
    return chosen


def with_every_value(count: int) -> list[Case]:
    """Cases in which every value of every setting is that any of the first ones drawn has."""
    return with_every(count, lambda met: set(met.items()))


def with_every_pair(count: int) -> list[Case]:
    """Cases in which every two settings meet that meet in any of the first ones drawn."""
    return with_every(count, pairs_of)
