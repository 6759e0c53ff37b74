"""Levels of the machine, from a tensor core to the building: their parts, and how fast bytes reach them.

Chips, links and nodes are those of plan/cluster/hardware.toml. Above the node the levels are those of the clusters on
which Llama 3 was trained (PODS), with the network cards of the node that is shown.
"""

from dataclasses import dataclass
from math import log10

from minidist.plan.cluster.hardware import ClusterSpec

PODS = "glennklockwood.com/garden/systems/meta's-h100-clusters, from the Llama 3 paper (section 3.3.1)"
NODES_IN_RACK, RACKS_IN_POD, PODS_IN_BUILDING, OVERSUBSCRIPTION = 2, 192, 8, 7
SHARED_MEMORY = 128  # bytes that one SM reads from its shared memory in a clock
SHARED_MEMORY_SOURCE = (
    "pmc.ncbi.nlm.nih.gov/articles/PMC10448217, table 3: 32,348 GB/s for an H100 of 144 SMs at 1.755 GHz, and 23,101 "
    "GB/s for an A100 of 128 SMs at 1.41 GHz, are 128 bytes a clock"
)
FASTEST, SLOWEST = 1e14, 1e9  # bytes/s: the ends of the page's scale, which is logarithmic


@dataclass(frozen=True)
class Level:
    """Level of the machine.

    Attributes:
        holds: number of units of the level below. of: name of these units. gpus: GPUs in it; 0 below a whole GPU.
        bandwidth: bytes/s, for each GPU, of the link between these units. link: name of the link.
        share: place of the bandwidth on the page's scale, 0 to 1.
    """

    name: str
    holds: int
    of: str
    gpus: int
    bandwidth: float
    link: str
    note: str
    source: str

    @property
    def share(self) -> float:
        return log10(self.bandwidth / SLOWEST) / log10(FASTEST / SLOWEST)


def levels_of(cluster: ClusterSpec) -> list[Level]:
    """Return the levels, the smallest first."""
    chip, node = cluster.accelerator, cluster.node_size
    each, operands = chip.tensor_cores // chip.sms, 2 * 2  # bytes of two 16-bit numbers
    rate = 2 * chip.tensor_fma * chip.clock
    rack = NODES_IN_RACK * node
    pod, card = rack * RACKS_IN_POD, cluster.links.between.bandwidth
    shared = SHARED_MEMORY * chip.sms * chip.clock
    return [
        Level(
            "tensor core",
            chip.tensor_fma,
            "multiply-adds in each clock",
            0,
            shared,
            "shared memory of its SM",
            f"{rate / 1e12:.2f} TFLOP/s at {chip.clock / 1e9:g} GHz. A multiply-add takes {operands} bytes, and shared "
            f"memory brings {SHARED_MEMORY // each} bytes a clock to each core: a number must be used many times.",
            chip.source,
        ),
        Level(
            "SM",
            each,
            "tensor cores",
            0,
            shared,
            "shared memory, all SMs together",
            f"A streaming multiprocessor: {each} tensor cores and {chip.cores // chip.sms} float32 cores around one "
            "shared memory.",
            SHARED_MEMORY_SOURCE,
        ),
        Level(
            "GPU",
            chip.sms,
            "SMs",
            1,
            chip.memory_bandwidth,
            "HBM",
            f"{chip.flops['bf16'] / 1e12:,.0f} TFLOP/s in bf16 and {chip.memory / 1e9:g} GB: a product must do "
            f"{chip.flops['bf16'] / chip.memory_bandwidth:,.0f} FLOPs with each byte of memory to keep its cores busy.",
            chip.source,
        ),
        Level(
            "node",
            node,
            "GPUs",
            node,
            cluster.links.inside.bandwidth,
            cluster.inside.name,
            "All GPUs of a node talk at once through its switches. Tensor parallelism lives here.",
            cluster.inside.source,
        ),
        Level(
            "rack",
            NODES_IN_RACK,
            "nodes",
            rack,
            card,
            cluster.between.name,
            "One switch at the top of the rack; each GPU has a network card of its own.",
            PODS,
        ),
        Level(
            "pod",
            RACKS_IN_POD,
            "racks",
            pod,
            card,
            f"{cluster.between.name}, full bisection",
            "Every pair of racks has the whole bandwidth of the cards: pipelines and data parallelism live here.",
            PODS,
        ),
        Level(
            "building",
            PODS_IN_BUILDING,
            "pods",
            pod * PODS_IN_BUILDING,
            card / OVERSUBSCRIPTION,
            f"links between pods, oversubscribed {OVERSUBSCRIPTION} to 1",
            "If all GPUs talk to another pod at once, each gets a seventh of its card.",
            PODS,
        ),
    ]
