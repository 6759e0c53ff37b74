"""Plans against real runs, one of each layout: its ledger, its counters, and its trace on the cluster's clock.

The runs know nothing of plans. A rank notes what its ledger holds whenever a backward pass begins: then nothing of it
is temporary. Counters are those of arrays that grow with the model; rows of a few numbers for each token, norm or step
are left out by their size. The trace is played on hardware whose memory is infinitely fast: then only products and
links take time, and both sides are arithmetic on the same numbers. What a plan leaves out is small, and stated here.
"""

from collections import Counter
from dataclasses import dataclass, fields, replace
from math import ceil

import pytest

from minidist import ledger
from minidist.analysis.replay import as_if
from minidist.analysis.report import report
from minidist.comm import collectives
from minidist.nn.tensor import Tensor
from minidist.parallel import pipeline
from minidist.plan.cluster.efficiency import PERFECT
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.layout import PlannedLayout, stages_of
from minidist.plan.memory import (
    HERE,
    Memory,
    Numerics,
    in_flight,
    memory_of,
    parameters_of_layers,
    parameters_of_rank,
    saved_scores,
)
from minidist.plan.models import ModelShape
from minidist.plan.step.collectives import Sent
from minidist.plan.time import StepCosts, StepTime
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, RunOptions
from minidist.train.trainer import run, train_rank

EVEN = TrainConfig(layers=4, heads=4, width=32, context=16, global_batch=8, micro_batch=1, steps=1, dropout=0.1)
FEW = replace(EVEN, layers=2, global_batch=2)
LONG = replace(EVEN, context=256, global_batch=2)  # scores are more than the MLP keeps
CHUNKS = replace(FEW, sequence_chunks=4)
THREES = TrainConfig(layers=6, heads=3, width=24, context=15, global_batch=6, micro_batch=2, steps=1, dropout=0.1)
FIVES = TrainConfig(layers=5, heads=5, width=20, context=10, global_batch=5, micro_batch=1, steps=1, dropout=0.0)
SEVENS = TrainConfig(layers=7, heads=7, width=28, context=14, global_batch=7, micro_batch=1, steps=1, dropout=0.2)
LLAMA = replace(EVEN, arch="llama", kv_heads=2, hidden=40, dropout=0.0)
LARGE = replace(LLAMA, hidden=160)  # a layer with more parameters than embedding and head
LLAMA_CHUNKS = replace(LLAMA, layers=2, global_batch=2, sequence_chunks=4)
CASES = {
    "even": (
        EVEN,
        "dp=1; recompute=selective; recompute=full; dp=2; dp=4,bucket_mb=0.05; dp=2,bucket_mb=0.05; "
        "dp=2,recompute=full; dp=2,zero=1; dp=4,zero=1; dp=2,zero=2; dp=4,zero=2; dp=2,zero=3,prefetch=1; "
        "dp=4,zero=3,prefetch=1; dp=2,zero=2,grad_sync=step; dp=2,zero=3,reshard_after_forward=0; "
        "dp=4,zero=2,shard=2; dp=2,zero=1,pp=2; dp=2,zero=3,pp=2; dp=2,zero=3,pp=2,reshard_after_forward=0; "
        "dp=2,zero=1,recompute=selective; pp=2; pp=4; pp=4,schedule=gpipe; pp=2,virtual=2; pp=2,schedule=naive; "
        "pp=2,schedule=interleaved; pp=4,schedule=zb-h1; pp=2,schedule=zb-h1; pp=2,recompute=full; "
        "pp=2,recompute=selective; pp=2,virtual=2,recompute=full; dp=2,pp=2; tp=2,sp=1",
    ),
    "few": (
        FEW,
        "tp=2; tp=2,recompute=selective; tp=2,pp=2; tp=4,sp=1; tp=2,recompute=full; tp=2,sp=1,recompute=full; "
        "tp=2,dp=2; dp=2,tp=2,sp=1,recompute=full; tp=2,sp=1,pp=2; tp=2,sp=1,pp=2,recompute=full",
    ),
    "long": (LONG, "recompute=selective; pp=2,recompute=selective"),
    "chunks": (
        CHUNKS,
        "cp=2; cp=4; cp=2,cp_kind=zigzag; cp=2,cp_kind=all-gather; cp=2,cp_kind=ulysses; cp=4,cp_kind=ulysses; "
        "cp=2,cp_kind=ulysses,tp=2; cp=2,recompute=full; cp=2,recompute=selective",
    ),
    "halves": (replace(CHUNKS, sequence_chunks=8), "cp=4,cp_kind=zigzag; cp=4,cp_kind=all-gather"),
    "threes": (THREES, "dp=3,algorithm=ring; dp=3,zero=1; tp=3,sp=1,recompute=selective; pp=3,recompute=full"),
    "fives": (FIVES, "dp=5,zero=1; dp=5,recompute=selective; pp=5"),
    "llama": (
        LLAMA,
        "dp=1; recompute=selective; recompute=full; dp=2,zero=1; dp=2,bucket_mb=0.05; tp=2; "
        "tp=2,sp=1; pp=2; pp=2,schedule=zb-h1; pp=2,virtual=2; dp=2,zero=1,pp=2; tp=2,pp=2; tp=4,sp=1",
    ),
    "tied": (replace(LLAMA, tied=1), "dp=1; tp=2; pp=2"),
    "large": (LARGE, "dp=2,zero=2; dp=4,zero=2; dp=2,zero=3,prefetch=1; dp=4,zero=3,prefetch=1"),
    "large, tied": (replace(LARGE, tied=1), "dp=2,zero=2; dp=2,zero=3,prefetch=1"),
    "llama's chunks": (
        LLAMA_CHUNKS,
        "cp=2; cp=4,cp_kind=ring; cp=2,cp_kind=all-gather; cp=2,cp_kind=ulysses; cp=2,tp=2",
    ),
    "sevens": (SEVENS, "dp=7,zero=1; pp=3; pp=7; pp=7,schedule=gpipe"),
}
SHORT = (  # the cases of EVEN that plain ``pytest`` runs
    "dp=2,zero=1; dp=2,zero=3,prefetch=1; dp=2,bucket_mb=0.05; tp=2,sp=1; pp=2,virtual=2; pp=2,recompute=full; "
    "pp=2,schedule=zb-h1"
)
MORE = 1.1  # of a pipeline, where the plan spreads what the first and the last stage hold over all
ROW = 8 + 1  # bytes that the embedding keeps of a token: its row, int64, and whether it is here
TARGET = 3 * 8  # bytes that the loss keeps of a token's target: its head, its column and its row, int64 each
NAMES = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}
NEVER = 1e30  # bytes/s: such a link, or memory, takes no time
SMALL = 1e-9  # relative: float64 sums of thousands of kernels, where the plan multiplies
SCALARS = 400  # bytes at most, one after another: the gradient's norm (a maximum, a count, a sum) and the loss


@dataclass(frozen=True)
class Real:
    """A run, and how the planner knows its layout and its model."""

    config: TrainConfig
    layout: Layout
    ranks: list[RankResult]

    @property
    def planned(self) -> PlannedLayout:
        """Attention by sequence chunks is a flash attention: it keeps no scores."""
        shared = {field.name for field in fields(PlannedLayout)} & {field.name for field in fields(Layout)}
        attention = "standard" if self.config.sequence_chunks == 1 else "flash"
        settings = {name: getattr(self.layout, name) for name in shared}
        return PlannedLayout(**settings, micro_batch=self.config.micro_batch, attention=attention)

    @property
    def shape(self) -> ModelShape:
        """The vocabulary, of bytes, is rounded up to a multiple of the heads."""
        c = self.config
        vocab = -(-256 // c.heads) * c.heads
        shape = ModelShape("test", c.layers, c.width, c.heads, vocab, c.context, dropout=c.dropout > 0)
        if c.arch == "gpt2":
            return shape
        parts = {"gated": True, "biases": False, "learned_positions": False, "norm_vectors": 1}
        return replace(shape, kv_heads=c.kv_heads, hidden=c.hidden, tied=bool(c.tied), **parts)

    @property
    def numerics(self) -> Numerics:
        """A GPT-2's queries are part of an array that is kept for its keys; those of a Llama are kept scaled alone."""
        return replace(HERE, keeps_scaled=self.config.arch == "gpt2")

    def stage_of(self, rank: int) -> int:
        """A rank's place in the pipeline."""
        return rank // (self.layout.world_size // self.layout.pp)

    def step(self, bandwidth: float) -> tuple[float, StepTime, dict[tuple[str, str], Sent]]:
        """Seconds of the step on the clock, and in the plan with what is sent: on one node with such links."""
        spec = ClusterSpec.parse(f"h100:1x{self.layout.world_size}")
        chip = replace(spec.accelerator, memory_bandwidth=NEVER)
        spec = replace(spec, accelerator=chip, inside=replace(spec.inside, bandwidth=bandwidth, latency=0.0))
        costs = StepCosts(self.shape, spec, "fp32", self.numerics, PERFECT)
        time, sent = costs.step(self.planned, self.config.global_batch)
        seconds = report(as_if([rank.log for rank in self.ranks], spec, 1.0, 1.0)).seconds
        return seconds, time, {(one.axis, NAMES.get(one.collective, one.collective)): one for one in sent}


def noting_rank(world, config, layout, options):
    """A rank of a run. Its memory has one more entry: what was held when a backward pass began, each kind at its most.

    It sums small arrays, too, by algorithms that send as little as possible.
    """
    most = Counter()

    def noting(function):
        def call(*arguments):
            nonlocal most
            most |= Counter(ledger._memory.held)  # of each kind, the larger one
            return function(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((Tensor, "backward"), (pipeline, "backward_inputs")):
            patch.setattr(place, name, noting(getattr(place, name)))
        patch.setattr(collectives, "FEW_STEPS_BYTES", 0)
        result = train_rank(world, config, layout, options)
    result.memory["before_backward"] = most
    return result


@pytest.mark.parametrize(
    ("config", "text"),
    [
        pytest.param(config, text, id=f"{name}: {text}", marks=() if text in SHORT.split("; ") else pytest.mark.long)
        for name, (config, texts) in CASES.items()
        for text in texts.split("; ")
    ],
)
def test_a_run_holds_sends_and_takes_what_was_planned(ranks, config, text):
    layout = Layout.parse(text)
    if layout.pp > 1:  # with the stages of a pipeline as a plan cuts them
        layout = Layout.parse(f"{text},stages={'+'.join(map(str, stages_of(config.layers, layout.stage_count)))}")
    options = RunOptions(trace=True)
    real = Real(config, layout, run(ranks(layout.world_size), config, layout, options, rank_function=noting_rank).ranks)
    check_memory(real)
    check_traffic(real)
    check_seconds(real)


def check_memory(real: Real) -> None:
    planned, shape, batch = real.planned, real.shape, real.config.global_batch
    for number, result in enumerate(real.ranks):
        stage, found = real.stage_of(number), result.memory
        before = found["before_backward"]
        plan = memory_of(shape, planned, batch, real.numerics, stage)
        padded = padding(real, stage)
        if planned.zero < 2 or planned.grad_sync == "step":
            more = HERE.gradient * padded * (1 + 1 / planned.shards)
            assert before["gradients"] == plan.gradients + more or planned.schedule == "zb-h1"
            assert before["parameters"] == plan.parameters + HERE.parameter * padded
        elif planned.pp == 1 and planned.reshard_after_forward:
            check_what_zero_gathers(real, plan, found)
        elif not planned.reshard_after_forward:  # all parameters stay together, and gradients of two layers
            resharded = memory_of(shape, replace(planned, reshard_after_forward=1), batch, real.numerics, stage)
            gradients = HERE.gradient / (HERE.gradient + HERE.parameter) * resharded.gathered
            assert plan.gathered == pytest.approx(found["parameters"] - plan.parameters + gradients, rel=SMALL)
        begun = in_flight(planned, stage, planned.micro_batches(batch))
        rows = ROW * begun * real.config.micro_batch * real.config.context / planned.cp if stage == 0 else 0
        if planned.schedule == "zb-h1":  # W needs no scores, but gradients of outputs, which the ledger does not enter
            assert plan.activations / 2 < before["activations"] <= plan.activations * MORE + rows
        elif planned.pp > 1:
            assert before["activations"] == pytest.approx(plan.activations + rows, rel=MORE - 1)
        else:
            assert before["activations"] == plan.activations + left_out(real)
            if real.config.sequence_chunks == 1 or planned.recompute == "none":
                assert found["activations"] == plan.activations + left_out(real) + brought_back(real, plan)
        moments = HERE.optimizer * padded
        assert 0 <= plan.optimizer + moments / planned.shards - found["optimizer"] <= moments
    copies = real.layout.world_size if not planned.zero else real.layout.world_size // planned.shards
    every = sum(parameters_of_rank(shape, planned, stage).full for stage in range(planned.pp))
    assert sum(rank.memory["optimizer"] for rank in real.ranks) == HERE.optimizer * every * copies / planned.pp


def padding(real: Real, stage: int) -> float:
    """Elements that ZeRO's units are longer on a rank than its parameters: shards are padded to divide them."""
    planned, shape = real.planned, real.shape
    if not planned.zero:
        return 0
    layer = parameters_of_layers(shape, planned, 1, 0).full
    total = parameters_of_rank(shape, planned, stage).full
    layers = sum(stages_of(real.config.layers, planned.stage_count)[stage :: planned.pp])
    units = [layer] * layers + [total - layers * layer]
    return sum(ceil(unit / planned.shards) * planned.shards - unit for unit in units)


def left_out(real: Real) -> float:
    """Bytes of activations that the ledger of a rank counts, and the plan does not: tokens, targets, a few copies."""
    config, planned, e = real.config, real.planned, HERE.activation
    tokens = config.micro_batch * config.context / planned.cp
    found = (ROW + TARGET) * tokens
    layer = 0.0
    if planned.recompute != "full":
        layer += rotary_tables(real)
    if planned.sp:  # a norm saves its gain, which is a copy: see copy_parameter_to_group
        layer += 2 * e * config.width * (planned.recompute != "full")
        found += e * config.width
    if config.sequence_chunks > 1 and planned.recompute == "none":
        layer += 4 * config.heads / planned.tp * tokens  # the sum of a row's weights beside its exponent
        if planned.cp_kind == "ulysses" or config.sequence_chunks > planned.cp:
            layer += e * tokens * config.width / planned.tp  # the output of attention once more, chunk by chunk
    if config.sequence_chunks > 1 and planned.recompute == "selective":
        layer -= saved_scores(real.shape, planned, HERE)  # the plan recomputes nothing of a flash attention
    return found + layer * config.layers


def rotary_tables(real: Real) -> float:
    """Bytes of the cosines and sines of the positions, of one layer."""
    config = real.config
    each = HERE.activation * config.width / config.heads
    return each * config.context / real.planned.cp * (config.arch == "llama")


def brought_back(real: Real, plan: Memory) -> float:
    """Bytes at the most of one layer's recomputation, beside what is held. The head and its target are gone by then."""
    config, planned, sp, e = real.config, real.planned, real.layout.sp, HERE.activation
    tokens = config.micro_batch * config.context / planned.cp
    if planned.recompute == "selective":  # scores come when the MLP is gone: so a short context's are in nobody's way
        return max(0.0, plan.recomputed - TARGET * tokens)
    norm = e * tokens * config.width / (planned.tp if sp else 1)  # keeps here what it has made of its input, too
    more = norm + e * config.width * sp - TARGET * tokens + rotary_tables(real)
    return plan.recomputed + more if planned.recompute == "full" else 0.0


def check_what_zero_gathers(real: Real, plan: Memory, found: dict) -> None:
    """Two layers at once, and embedding and head all the while: of parameters, and of gradients to be sharded.

    The plan has ends that are not tied come and go like layers, as FSDP's users wrap them. Here they are one unit. (If
    it had more parameters than a layer, the most would be held between two micro-batches: both's gradients.)
    """
    shape, third = real.shape, real.layout.zero == 3
    root = shape.embeddings + shape.norm_vectors * shape.width
    together = root + 2 * parameters_of_layers(shape, real.planned, 1, 0).full
    assert plan.gathered == together * (HERE.gradient + HERE.parameter * third) or not shape.tied
    assert found["before_backward"]["gradients"] == plan.gradients + HERE.gradient * root  # on its way all the while
    if real.layout.prefetch or not third:
        assert found["parameters"] == plan.parameters + HERE.parameter * together * third
    # the head's gradient of a tied weight waits apart for the embedding's, and so does each as it is made
    apart = shape.tied * shape.vocab * shape.width + (1 + shape.gated) * shape.width * shape.mlp_hidden
    assert found["gradients"] == plan.gradients + HERE.gradient * (together + apart)


def check_traffic(real: Real) -> None:
    config, layout, planned = real.config, real.layout, real.planned
    threshold = max(config.context * config.micro_batch, config.width)
    found = [Counter() for _ in real.ranks]
    for counter, result in zip(found, real.ranks, strict=True):
        for row in result.collectives:
            if row["elements"] > threshold:
                counter[row["axis"], row["name"]] += row["bytes_sent"]
    plan = {key: one.nbytes for key, one in real.step(1e12)[2].items()}  # of the slowest stage, which has the head
    stream = config.micro_batch * config.context / planned.cp * config.width  # elements between two layers
    micro_batches = planned.micro_batches(config.global_batch)
    for (axis, name), nbytes in plan.items():
        if axis == "dp" and (planned.zero < 3 or planned.pp == 1):
            sent = sum(found[-1][group, name] for group in ("dp", "dp_cp", "shard", "replicate"))
            pads = 9 * layout.dp * HERE.gradient if padding(real, real.stage_of(layout.world_size - 1)) else 0
            assert nbytes <= sent <= nbytes + pads * micro_batches, name
        elif axis == "tp" and planned.pp == 1:
            # sums travel in float64; what the embedding looks up does not: a row and zeros, exact in float32. With sp
            # it is all-reduced, and then split: as many bytes as the plan's reduce-scatter in float64
            looked_up = (not planned.sp) * micro_batches * 2 * (layout.tp - 1) / layout.tp * stream * (8 - 4)
            sent = sum(count for counter in found for (group, _), count in counter.items() if group == "tp")
            calls = {call for counter in found for group, call in counter if group == "tp"}
            assert {NAMES.get(call, call) for call in name.split(", ")} <= calls
            assert sent == layout.world_size * (nbytes - looked_up)
        elif (axis, name) == ("pp", "send") and config.layers % planned.stage_count == 0:
            parts = 1 if planned.sp else layout.tp  # without sp every tensor-parallel rank sends all of it
            assert found[-1]["pp", "send"] == parts * nbytes
            messages = 2 * (planned.stage_count - 1) * micro_batches * layout.dp * layout.cp
            assert sum(counter["pp", "send"] for counter in found) == messages * stream * 4 * parts
        elif axis == "pp" and name == "all_reduce":
            assert found[0]["embedding", name] == found[-1]["embedding", name] == nbytes
        elif axis == "cp":
            # keys and values travel twice, as in the plan. Their gradients are pairs of float64 here, 16 bytes for 4,
            # and go all the way round a ring, N steps for the plan's N - 1
            steps = layout.cp / (layout.cp - 1) if name in ("ring", "zigzag") else 1
            back = {"ulysses": 1 / 3}.get(name, 4 / 3 * steps)
            sent = sum(count for (group, _), count in found[-1].items() if group == "cp")
            assert sent == pytest.approx(nbytes * (2 / 3 + back), rel=SMALL) or planned.recompute != "none"


def check_seconds(real: Real) -> None:
    """Compare seconds. Plans leave out scalar messages, loss statistics and norms' gradients; they know no buckets."""
    layout, planned, config = real.layout, real.planned, real.config
    without, plan, _ = real.step(NEVER)
    if config.sequence_chunks > 1:  # whose diagonal chunks have each token attend to itself as well
        assert 0.97 * without < plan.total < without
        return
    even = config.layers % planned.stage_count == 0
    if even or config.layers % planned.stage_count == 6:
        assert plan.total == pytest.approx(without, rel=SMALL) and (plan.bubble > 0) == (layout.pp > 1)
    m, tokens = planned.micro_batches(config.global_batch), config.micro_batch * config.context
    axes = {axis for axis in ("tp", "pp", "dp") if getattr(layout, axis) > 1}
    for bandwidth in (1e13, 1e12, 1e11):
        clock, plan, sent = real.step(bandwidth)
        scalars, message = SCALARS / bandwidth, tokens * config.width * 4 / bandwidth
        if axes == {"tp"}:  # the plan is short of small sums, and long by what the embedding looks up: float32 here
            ring = m * 2 * (layout.tp - 1) / layout.tp / bandwidth  # seconds of the all-reduces, for each byte
            loss = tokens * (8 + 8 + 4)  # two sums in float64 and a maximum, for each token
            vectors = 6 * config.layers + 2 if real.shape.biases else 2 * config.layers + 1
            norms = layout.sp * 8 * config.width * vectors  # gains and biases; biases of sums
            looked_up = (not layout.sp) * tokens * config.width * (8 - 4)
            copies = max(1, layout.tp // config.model.groups)  # ranks with the same keys and values, which gather
            each = 2 * 16 * tokens * config.width / config.heads * config.layers  # pairs of float64, their gradients
            gathered = m * (copies - 1) * each / bandwidth
            assert plan.total + ring * (loss + norms - looked_up) + gathered == pytest.approx(clock, abs=scalars)
        elif axes == {"pp"} and layout.schedule == "naive":
            assert plan.total == pytest.approx(clock, abs=scalars)
        elif axes == {"pp"} and even and message < without / (m + layout.pp - 1) / 10:
            # in the plan a rank waits for every message. Those that fill and drain never hide, others may
            tied = sent["pp", "all_reduce"].seconds if real.shape.tied else 0.0
            least = without + tied + 2 * (layout.pp - 1) * message
            late = message * (layout.schedule == "zb-h1")  # with few micro-batches its last products wait for one more
            assert clock - late - scalars <= plan.total <= least + m * 2 * layout.virtual * message
        elif axes == {"dp"} and layout.zero == 1:  # the run hides nothing, the plan hides sums and gathers
            seconds, pads = sum(one.seconds for one in sent.values()), 9 * layout.dp * HERE.gradient / bandwidth
            assert plan.total < clock == pytest.approx(without + seconds, abs=scalars + pads)
        elif axes == {"dp"} and not layout.zero and layout.bucket_mb < 1:
            # the plan sends what is ready; real gradients wait for their bucket, and the tied embedding's for the end
            seconds, one_layer = sent["dp", "all_reduce"].seconds, without / m / config.layers
            ends = seconds * (real.shape.embeddings + real.shape.dense_block) / real.shape.parameters
            assert abs(clock - plan.total) <= one_layer + min(ends, seconds / 2)
        for one in (one for (axis, _), one in sent.items() if axis == "dp"):
            assert one.seconds == pytest.approx(one.nbytes / bandwidth) and one.exposed <= one.seconds * (1 + SMALL)
