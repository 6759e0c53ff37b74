"""Pipeline parallelism: every rank holds some of the layers, and micro-batches flow through the ranks.

A schedule lists what each rank does, in order. It is plain data (tools/schedules.py), and ``Pipeline.run`` executes any
schedule. Two kinds of messages cross a stage boundary: a micro-batch's activations going forward, and their gradient
coming back. Tags name the boundary, the micro-batch and the direction, so the receiver may ask in any order, and no
rank waits for a send before its schedule has ended.

The first stage has the embeddings, the last one the head. If the head's weight is the embedding's (tied weights), it is
on two ranks, and its gradient is the sum of theirs, as in Megatron-LM.

Huang et al., "GPipe" (2019); Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters" (2021).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from minidist import trace
from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import irecv, isend
from minidist.nn.data import MicroBatch
from minidist.nn.gpt import GPT
from minidist.nn.layers import Module
from minidist.nn.precision.policy import current
from minidist.nn.tensor import Tensor, Walk
from minidist.parallel.axis import Axis
from minidist.parallel.tools.regions import Region
from minidist.parallel.tools.schedules import Action


def spread(layers: int, stages: int) -> list[int]:
    """Return how many layers each stage has: the same number, and one more on the first stages if some are left."""
    each, more = divmod(layers, stages)
    return [each + (stage < more) for stage in range(stages)]


class Stage(Module):
    """Consecutive blocks of a GPT; the first stage has the embeddings too, the last one the head."""

    def __init__(self, model: GPT, blocks: slice, first: bool, last: bool) -> None:
        self.embeddings = model.embeddings if first else None
        self.blocks = model.blocks[blocks]
        self.head = model.head if last else None

    def forward(self, x, targets, dropout_rng, documents=None) -> Tensor:
        """Map tokens (B, T) or activations (B, T, C) to activations (B, T, C); on the last stage to the scalar loss."""
        if self.embeddings is not None:
            x = self.embeddings(x, dropout_rng, documents)
        for block in self.blocks:
            x = block(x, dropout_rng, documents)
        return x if self.head is None else self.head.loss(x, targets, documents)


class LocalStages(Module):
    """A rank's part of the model: every N-th stage. ``blocks`` are the blocks of all of them, for axes that shard them.

    Args:
        stages: this rank's stages, in order.
        ranks: number of ranks in the pipeline, N.
    """

    def __init__(self, stages: Sequence[Stage], ranks: int) -> None:
        self.stages, self.ranks = list(stages), ranks

    def forward(self, stage: int, x, targets, dropout_rng, documents=None) -> Tensor:
        """Run one of this rank's stages, given its number in the whole pipeline."""
        return self.stages[stage // self.ranks](x, targets, dropout_rng, documents)

    @property
    def blocks(self) -> list[Module]:
        return [block for stage in self.stages for block in stage.blocks]


class Pipeline(Axis):
    """Pipeline parallelism as an axis: every rank holds some stages, and runs them as its schedule says.

    Args:
        group: the ranks of the pipeline, N of them.
        layers: number of layers of each stage, from the first to the last; rank r has stages r, r + N, ...
        activations: function from a micro-batch's T to the shape of the activations between stages: (B, T, C), or
            (B, T/tp, C) with sequence parallelism.
        schedule_of: function from a number of micro-batches to each rank's actions.
    """

    splits_loss = True  # only the rank with the last stage knows it

    def __init__(
        self, group: ProcessGroup, layers: Sequence[int], activations: Callable[[int], tuple[int, ...]],
        schedule_of: Callable[[int], Sequence[Sequence[Action]]],
    ) -> None:  # fmt: skip
        super().__init__(group, group)
        self.layers, self.activations, self.schedule_of, self.policy = layers, activations, schedule_of, current()
        self.last = len(layers) - 1
        self.embedding_group = group.new_group([0, group.size - 1])  # Megatron-LM's name for it
        if self.embedding_group is not None:
            self.embedding_group.name = "embedding"

    def apply(self, model: GPT) -> LocalStages:
        """Keep this rank's stages. Parameters of other stages become NaN in every element, without memory."""
        ends = [sum(self.layers[: stage + 1]) for stage in range(len(self.layers))]
        stages = [
            Stage(model, slice(end - count, end), stage == 0, stage == self.last)
            for stage, (end, count) in enumerate(zip(ends, self.layers, strict=True))
        ]
        self.local = LocalStages(stages[self.group.rank :: self.group.size], self.group.size)
        mine = set(self.local.parameters())
        self.tied = [p for p in stages[0].parameters() if p in stages[-1].parameters()]
        for parameter in self.tied if self.embedding_group is not None else ():
            parameter.summed_late = True
        for parameter in model.parameters():
            if parameter not in mine:
                parameter.stored = xp.broadcast_to(xp.asarray(xp.nan, parameter.dtype), parameter.shape)
        return self.local

    # The executor

    def run(
        self,
        batch: Sequence[MicroBatch],
        scale: float = 1.0,
        no_sync: Callable[[], AbstractContextManager] = nullcontext,
    ) -> float:
        """Run the schedule: accumulate the gradients of these micro-batches, and return the sum of their losses.

        Only the rank with the last stage knows the losses; elsewhere the sum is 0.

        Args:
            batch: this pipeline's micro-batches of the step.
            scale: factor of the loss, and so of all gradients (nn/precision/underflow.py).
            no_sync: context that the whole schedule runs in: tied gradients are summed before any gradient is sent.
        """
        self.batch, self.scale = batch, scale
        self.inputs: dict[tuple[int, int], Tensor] = {}  # (stage, micro-batch) -> the stage's input
        self.outputs: dict[tuple[int, int], Tensor] = {}  # the stage's output
        self.rests: dict[tuple[int, int], Callable[[], None]] = {}  # the second half of a backward
        self.lengths: dict[int, int] = {}  # T of each micro-batch
        self.sends: list = []
        self.total = xp.zeros(())
        run = {"F": self.forward, "B": self.backward, "I": self.backward_input, "W": self.backward_weight}
        with no_sync():
            for action in self.schedule_of(len(batch))[self.group.rank]:
                run[action.kind](action.stage, action.micro_batch)
                self.sends = [work for work in self.sends if not work.is_completed()]
        with trace.span("send the rest", "wait"):
            for work in self.sends:
                work.wait()
        return float(self.total)

    def forward(self, stage: int, i: int) -> None:
        tokens, targets, dropout_rng, documents = self.batch[i]
        self.lengths[i] = tokens.shape[1]
        x = tokens
        if stage > 0:
            x = self.inputs[stage, i] = Tensor(self.receive(stage - 1, i, "forward"), requires_grad=True)
            # its two gradients, the residual's and LayerNorm's, are added as in one process: in float32, at once
            x.grad_dtype = xp.float32
        with trace.span(f"forward {i}", action=f"{stage}F{i}"):
            y = self.outputs[stage, i] = self.local(stage, x, targets, dropout_rng, documents)
        if stage < self.last:
            self.send(y.data, stage, i, "forward")
        else:
            self.total += y.data

    def backward(self, stage: int, i: int) -> None:
        gradient = self.gradient(stage, i)
        with trace.span(f"backward {i}", action=f"{stage}B{i}"):
            self.outputs.pop((stage, i)).backward(gradient)
        self.send_gradient(stage, i)

    def backward_input(self, stage: int, i: int) -> None:
        gradient = self.gradient(stage, i)
        inputs = [self.inputs[stage, i]] if stage > 0 else []
        with trace.span(f"backward {i}", action=f"{stage}I{i}"):
            self.rests[stage, i] = backward_inputs(self.outputs.pop((stage, i)), gradient, inputs)
        self.send_gradient(stage, i)

    def backward_weight(self, stage: int, i: int) -> None:
        with trace.span(f"backward {i}, weights", action=f"{stage}W{i}"):
            self.rests.pop((stage, i))()

    def gradient(self, stage: int, i: int):
        """Return the gradient of the stage's output: received, or on the last stage the scale of the loss."""
        return xp.full((), self.scale, xp.float32) if stage == self.last else self.receive(stage, i, "backward")

    def send_gradient(self, stage: int, i: int) -> None:
        """Send the gradient of the stage's input to the stage before."""
        if stage > 0:
            self.send(self.inputs.pop((stage, i)).grad, stage - 1, i, "backward")

    # Messages: each crosses the boundary after ``stage``.

    def send(self, array, stage: int, i: int, way: str) -> None:
        receiver = (stage + (way == "forward")) % self.group.size
        self.sends.append(isend(self.policy.outgoing(array), receiver, self.group, self.tag(stage, i, way)))

    def receive(self, stage: int, i: int, way: str):
        sender = (stage + (way == "backward")) % self.group.size
        array = xp.empty(self.activations(self.lengths[i]), self.policy.wire_dtype(xp.float32))
        with trace.span(f"receive {i}", "wait"):
            irecv(array, sender, self.group, self.tag(stage, i, way)).wait()
        return self.policy.incoming(array)

    def tag(self, stage: int, i: int, way: str) -> int:
        return 2 * (stage * len(self.batch) + i) + (way == "backward")

    # Synchronisation

    def sync_gradients(self) -> None:
        """Sum the gradients of tied weights, which are on both ends of the pipeline: the embedding's and the head's."""
        if self.embedding_group is not None:
            for parameter in self.tied:
                all_reduce(parameter.grad, ReduceOp.SUM, self.embedding_group)

    def regions(self, regions: dict[str, Region], trained: bool = True) -> dict[str, Region]:
        return {parameter.name: regions[parameter.name] for parameter in self.local.parameters()}


def backward_inputs(output: Tensor, gradient, inputs: Sequence[Tensor]) -> Callable[[], None]:
    """Run the first half of ``output.backward(gradient)``: compute only the gradients of the leaves ``inputs``.

    A stage whose neighbour waits for the gradient of its input computes and sends that first, and the gradients of its
    weights when it would be idle (Qi et al., "Zero Bubble Pipeline Parallelism", 2023).

    Returns:
        Function that runs the second half: it adds the gradients of all other leaves. Until then it keeps the graph.
    """
    walk = Walk(output, gradient)
    later = []  # nodes with leaves that are not among the inputs, and the gradients of their outputs
    while walk.ready:
        node, incoming = walk.ready.pop()
        waits = [isinstance(source, Tensor) and source not in inputs for source in node.sources]
        now = tuple(needed and not wait for needed, wait in zip(node.needs_input_grad, waits, strict=True))
        if any(now):
            node.needs_input_grad = now
            walk.visit(node, incoming, last=not any(waits))
        if any(waits):
            node.needs_input_grad = tuple(waits)
            later.append((node, incoming))

    def second_half() -> None:
        for node, incoming in later:
            walk.visit(node, incoming)
        later.clear()

    return second_half
