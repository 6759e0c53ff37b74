"""Check that a run can fit this machine's memory, before a weight is drawn or a rank starts.

All ranks share one machine, so their sum counts. With P the model's number of parameters, a run holds

    parameters         4 bytes each, or 2 in a 16-bit precision, in every copy
    gradients          8 bytes each while they are summed in float64, or 4 in float32; twice if updates are delayed
    optimizer state    8 bytes each, AdamW's two moments (SGD has none); 4 for the master weights of a 16-bit precision;
                       with local steps 4 for the weights at the start of a round, and 4 for the outer momentum

Tensor and pipeline parallelism split one copy. Data and context parallelism make ``dp`` x ``cp`` copies, and of the
experts ``dp`` x ``cp`` / ``ep``; with ZeRO, what a stage shards exists once for each group of ranks that share a copy.
Parameter servers together hold one more copy of the parameters, in float32, a gradient of each worker, and the only
copy of the moments. But before anything is split, every rank initializes the whole model in float32: 4 P bytes for each
rank, which real systems avoid. With many shards this is the larger sum.

Activations, messages and Python itself come on top. So a run that is refused could not have worked, and one that is
not refused may still run out of memory.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from minidist.nn.gpt import GPTConfig
from minidist.nn.precision.policy import POLICIES
from minidist.plan.units import in_bytes
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout


def available_memory() -> int | None:
    """Return the bytes that programs can still allocate, at most; None if the system does not report it.

    On Linux it is the available memory of /proc/meminfo, or the rest of the limit that a container or a batch system
    has set (a cgroup), whichever is less, plus the free swap. On other Unixes it is all of the machine's memory.
    """
    memory = _meminfo()
    if memory is None:
        return _physical()
    free, swap = memory
    left = _left_by_cgroup()
    return (free if left is None else min(free, left)) + swap


def _meminfo(file: str = "/proc/meminfo") -> tuple[int, int] | None:
    """Return available memory and free swap in bytes."""
    with suppress(OSError, ValueError, KeyError):
        lines = (line.split(":") for line in Path(file).read_text(encoding="utf-8").splitlines())
        kib = {name: int(rest.split()[0]) for name, rest in lines}
        return kib["MemAvailable"] * 1024, kib["SwapFree"] * 1024
    return None


def _left_by_cgroup(file: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int | None:
    """Return the least that any cgroup of this process leaves: version 2 (``0::/path``) or 1 (``4:memory:/path``)."""
    left = []
    with suppress(OSError, ValueError):
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                names = "memory.max", "memory.current", ""
                mounted = Path(root)
            elif "memory" in controllers.split(","):
                names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
                mounted = Path(root, "memory")
            else:
                continue
            folder = mounted / path.strip("/")
            for place in (folder, *folder.parents):
                if place.is_relative_to(mounted) and (count := _left_in(place, *names)) is not None:
                    left.append(count)
    return min(left, default=None)


def _left_in(folder: Path, limit: str, usage: str, prefix: str) -> int | None:
    """Return the bytes that one cgroup's limit leaves; None if it has none. Cached files count as free."""
    with suppress(OSError, ValueError):  # "max" is not a number: no limit
        most, used = (int((folder / name).read_text()) for name in (limit, usage))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = sum(int(statistics[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
        return max(0, most - used + cached)
    return None


def _physical() -> int | None:
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


@dataclass(frozen=True)
class MemoryNeeded:
    """Least bytes that all ranks of a run hold together."""

    parameters: int
    gradients: int
    optimizer: int
    initialization: int  # before the other three exist

    @property
    def training(self) -> int:
        return self.parameters + self.gradients + self.optimizer

    @property
    def most(self) -> int:
        """The larger of the bytes needed before training and during it."""
        return max(self.training, self.initialization)


def parameter_count(config: GPTConfig) -> int:
    """Count the parameters of a model of these sizes, from the shapes of its weights, without making it."""
    width, llama = config.width, config.arch == "llama"
    tokens = config.heads * -(-config.vocab // config.heads) * width
    embeddings = tokens * (2 - config.tied) if llama else tokens + config.context * width
    norm = width if llama else 2 * width
    # queries, keys and values, and out; GPT-2 has biases
    attention = 2 * width**2 + 2 * width * (width // config.heads * config.groups) + (0 if llama else 4 * width)
    sparse = config.layers // config.moe.moe_every if config.moe else 0
    dense = config.layers - sparse
    blocks = config.layers * (attention + 2 * norm) + dense * mlp(config, config.hidden_units)
    if config.moe:  # routers and shared experts
        blocks += sparse * (
            width * config.moe.experts + bool(config.moe.shared_expert) * mlp(config, config.moe.shared_expert)
        )
    return embeddings + blocks + expert_parameter_count(config) + norm


def mlp(config: GPTConfig, hidden: int) -> int:
    """Count the parameters of an MLP with ``hidden`` units: fc and proj with biases; in a Llama gate, up and down."""
    if config.arch == "llama":
        return 3 * config.width * hidden
    return 2 * config.width * hidden + hidden + config.width


def expert_parameter_count(config: GPTConfig) -> int:
    """Count the parameters of all routed experts, which have no biases."""
    if config.moe is None:
        return 0
    matrices, hidden = 3 if config.arch == "llama" else 2, config.moe.expert_hidden or config.hidden_units
    return config.layers // config.moe.moe_every * config.moe.experts * matrices * config.width * hidden


def memory_needed(config: TrainConfig, layout: Layout) -> MemoryNeeded:
    """Compute the memory that a run must hold, from arithmetic alone."""
    P, experts = parameter_count(config.model), expert_parameter_count(config.model)

    def held(copies: int) -> int:
        """Count parameters in ``copies`` copies of the model; ep of them together have one copy of the experts."""
        return (P - experts) * copies + experts * max(1, copies // layout.ep)

    copies = layout.replicas
    sharded = copies // (layout.shard or copies)  # copies of what ZeRO shards
    summed = sharded if layout.zero >= 2 and layout.grad_sync == "micro_batch" else copies
    updated = sharded if layout.zero >= 1 else copies
    mixed = POLICIES[config.precision].compute is not None
    moments = 0 if config.optimizer == "sgd" else 8
    outer = 4 + 4 * bool(layout.outer_momentum) if layout.sync == "local" else 0
    sums = (8 if config.reduce_dtype == "float64" else 4) * (2 if layout.sync == "delayed" else 1)
    if layout.zero == 3:  # in 16 bits the master weights are the shard
        parameters = 0 if mixed else 4 * held(sharded)
    else:
        parameters = (2 if mixed else 4) * held(copies)
    gradients = sums * held(summed)
    optimizer = ((4 if mixed else 0) + outer) * held(updated)
    if layout.servers:
        parameters += 4 * P
        gradients += (4 if layout.slack else sums) * P * layout.dp
        updated = 1
    optimizer += moments * held(updated)
    return MemoryNeeded(parameters, gradients, optimizer, initialization=4 * P * layout.world_size)


def check_memory(config: TrainConfig, layout: Layout) -> None:
    """Raise ValueError if a run would need more memory than this machine has available.

    Nothing is checked if the system does not report available memory, or the backend has its own memory.
    """
    available = available_memory() if config.backend == "numpy" else None
    needed = memory_needed(config, layout)
    if available is None or needed.most <= available:
        return
    ranks = f" for the {layout.world_size} ranks of layout {layout} together" if layout.world_size > 1 else ""
    if needed.training > available:
        use = (
            f"training it needs at least {in_bytes(needed.training)}{ranks}: parameters {in_bytes(needed.parameters)}, "
            f"gradients {in_bytes(needed.gradients)}, optimizer state {in_bytes(needed.optimizer)}"
        )
    else:
        use = f"initializing it on every rank needs at least {in_bytes(needed.initialization)}{ranks}"
    ways = ["fewer layers", *["fewer experts"] * bool(config.experts), "a smaller width or context"]
    ways += ["a smaller vocabulary"] * (config.vocab > TrainConfig.vocab)
    raise ValueError(
        f"the model has {parameter_count(config.model):,} parameters, and {use}. This machine has "
        f"{in_bytes(available)} of memory available. Choose {', '.join(ways)}" + (", or fewer ranks" if ranks else "")
    )
