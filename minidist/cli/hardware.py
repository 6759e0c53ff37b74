"""``minidist hardware``: accelerators, links and nodes, their numbers and sources, and what a cluster is made of."""

from dataclasses import asdict
from itertools import combinations

from rich.table import Table

from minidist.cli.output import Output, check_outputs, console_of, json_output, titled, written_last
from minidist.nn.gpt import GPTConfig
from minidist.plan.cluster.hardware import Accelerator, ClusterSpec, Hardware, LinkType, NodeType, load
from minidist.plan.cluster.roofline import compute_bound_batch, largest_batch, peak_flops, ridge_point, weight_count
from minidist.plan.cluster.toml_tables import choose
from minidist.plan.cluster.topologies import bisection_bandwidth, topology_of

MODEL = GPTConfig(vocab=50257, context=2048, layers=32, heads=32, width=4096)  # its prefill and decode are shown
ALL_HALVES = 10  # most ranks of a custom network whose halves, up to 252, are all tried for the bisection bandwidth
BYTES_EACH = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp4": 0.5}


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "hardware",
        help="GPUs, TPUs, links and nodes: their numbers, sources and rooflines",
        description="Show the hardware that runs are planned for: all of it, one entry with its sources, or a cluster. "
        "Rates are dense, and of one direction of a link.",
    )
    command.set_defaults(command=_hardware)
    command.add_argument("name", nargs="?", metavar="NAME", help="an entry such as h100, or a cluster such as h100:2x8")
    command.add_argument("--hardware", metavar="FILE", help="TOML file with entries of your own")
    command.add_argument("--png", metavar="PATH", help="draw the roofline of an accelerator, with prefill and decode")
    command.add_argument("--json", metavar="PATH", help="write the numbers to this file; - for standard output")


def _hardware(options) -> int:
    check_outputs({"json": options.json, "png": options.png})
    known, name = load(options.hardware), options.name
    spec = ClusterSpec.parse(name, known) if name and (set(name) & set(":,#") or name.endswith(".toml")) else None
    entries = _entries(known, name) if name and not spec else {}
    accelerator = spec.accelerator if spec else known.accelerators.get(name)
    if options.png and not accelerator:
        raise ValueError("--png draws the roofline of one accelerator: name it, such as minidist hardware h100 --png")
    console = console_of(options)
    if spec:
        content = _cluster_numbers(spec)
        tables = [_cluster(spec, content)]
    elif name:
        tables, content = [_TABLES[kind](known, name) for kind in entries], {k: asdict(v) for k, v in entries.items()}
    else:
        tables, content = [_accelerators(known), _links(known), _nodes(known)], asdict(known)
    files = [json_output(options.json, content)]
    if accelerator:
        files.append(Output("png", options.png, lambda path: _draw(accelerator, path), f"roofline: {options.png}"))
    with written_last(console, *files):
        for table in tables:
            console.print(table)
    return 0


def _entries(known: Hardware, name: str) -> dict[str, Accelerator | LinkType | NodeType]:
    """Return the entries of this name, by kind: often an accelerator and its node."""
    kinds = {"accelerator": known.accelerators, "link": known.links, "node": known.nodes}
    found = {kind: entries[name] for kind, entries in kinds.items() if name in entries}
    if not found:
        names = dict.fromkeys(key for entries in kinds.values() for key in entries)
        raise ValueError(f"unknown hardware {name!r}: {choose(name, names)}; or a cluster such as h100:2x8")
    return found


# ── All of it ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _accelerators(known: Hardware) -> Table:
    columns = ("memory, GB", "TB/s", "fp32", "16 bits", "fp8", "FLOPs per byte")
    table = titled("accelerators: dense TFLOP/s, ridge point at 16 bits", [""], ["year", *columns])
    for name, chip in known.accelerators.items():
        precision = _sixteen_bits(chip)
        rates = [_tera(chip.flops.get(key)) for key in ("fp32", precision, "fp8")]
        ridge = f"{ridge_point(chip, precision):,.0f}" if precision in chip.flops else ""
        year = str(chip.year) if chip.year else ""
        table.add_row(name, year, _number(chip.memory / 1e9), _tera(chip.memory_bandwidth), *rates, ridge)
    return table


def _links(known: Hardware) -> Table:
    table = titled("links: one direction", ["", "name"], ["GB/s", "latency, µs"])
    for key, link in known.links.items():
        table.add_row(key, link.name, _number(link.bandwidth / 1e9), _number(link.latency * 1e6))
    return table


def _nodes(known: Hardware) -> Table:
    table = titled("nodes", ["", "name"], ["accelerators", "inside", "between", "inside / between"])
    for key, node in known.nodes.items():
        inside, between = known.links[node.inside], known.links[node.between]
        ratio = _number(inside.bandwidth / between.bandwidth)
        table.add_row(key, node.name, _size(node), node.inside, node.between, ratio)
    return table


# ── One entry ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _accelerator(known: Hardware, name: str) -> Table:
    chip = known.accelerators[name]
    table = _details(f"accelerator {name}: {chip.name}")
    table.add_row("memory", f"{_number(chip.memory / 1e9)} GB at {_tera(chip.memory_bandwidth)} TB/s")
    for precision, rate in chip.flops.items():
        sparse = f" ({_tera(chip.sparse_flops[precision])} sparse)" if precision in chip.sparse_flops else ""
        ridge = f"ridge point {ridge_point(chip, precision):,.0f} FLOPs per byte"
        table.add_row(precision, f"{_tera(rate)} TFLOP/s{sparse}, {ridge}")
    if chip.sms:
        cores = f", {chip.cores:,} cores" if chip.cores else ""
        table.add_row(
            "units", f"{chip.sms} SMs{cores}" + f", {chip.tensor_cores:,} tensor cores" * bool(chip.tensor_cores)
        )
    if chip.clock and chip.tensor_fma:
        peak = chip.tensor_cores * chip.tensor_fma * 2 * chip.clock
        factors = f"{chip.tensor_cores:,} x {chip.tensor_fma:,} multiply-adds x 2 x {chip.clock / 1e9:g} GHz"
        table.add_row("16 bits", f"{factors} = {_tera(peak)} TFLOP/s")
    precision = _sixteen_bits(chip)
    if precision in chip.flops:
        batch, fits = compute_bound_batch(MODEL, chip, precision), largest_batch(MODEL, chip, MODEL.context)
        bound = f"compute-bound from batch {batch} on" if batch else "memory-bound at any batch"
        table.add_row("decode", f"{_model()}: products {bound}")
        table.add_row("", f"memory holds the KV cache of {fits} samples of {MODEL.context:,} tokens")
    table.add_row("source", chip.source)
    return table


def _link(known: Hardware, name: str) -> Table:
    link = known.links[name]
    table = _details(f"link {name}: {link.name}")
    table.add_row("one direction", f"{_number(link.bandwidth / 1e9)} GB/s, {_number(link.latency * 1e6)} µs")
    table.add_row("source", link.source)
    return table


def _node(known: Hardware, name: str) -> Table:
    node = known.nodes[name]
    table = _details(f"node {name}: {node.name}")
    table.add_row("accelerators", f"{_size(node)} {node.accelerator}")
    for where, key in (("inside", node.inside), ("between", node.between)):
        link = known.links[key]
        table.add_row(where, f"{link.name}: {_number(link.bandwidth / 1e9)} GB/s in each direction")
    if not node.torus:
        table.add_row("network cards", f"{node.nics or node.size}")
    table.add_row("source", node.source)
    return table


_TABLES = {"accelerator": _accelerator, "link": _link, "node": _node}


# ── A cluster ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _cluster_numbers(spec: ClusterSpec) -> dict:
    topology = topology_of(spec)
    bisection = None
    if not spec.network.endswith(".toml"):
        bisection = bisection_bandwidth(topology) if spec.world_size > 1 else None
    elif 1 < spec.world_size <= ALL_HALVES:  # the worst halves of a custom network are not known
        halves = combinations(range(spec.world_size), spec.world_size // 2)
        bisection = min(bisection_bandwidth(topology, set(half)) for half in halves)
    return {"cluster": str(spec), "world_size": spec.world_size, "bisection_bandwidth": bisection} | asdict(spec)


def _cluster(spec: ClusterSpec, numbers: dict) -> Table:
    table = _details(f"cluster {spec}")
    table.add_row("accelerators", f"{spec.world_size:,} x {spec.accelerator.name}")
    if spec.network.endswith(".toml"):
        table.add_row("network", f"the links of {spec.network}")
    else:
        table.add_row("inside", f"{spec.inside.name}: {_number(spec.inside.bandwidth / 1e9)} GB/s in each direction")
    if spec.torus:
        table.add_row("network", f"a torus of {spec.size} chips")
    elif spec.nodes > 1 and not spec.network.endswith(".toml"):
        cards = spec.nics or spec.node_size
        rate = _number(spec.between.bandwidth / 1e9)
        table.add_row("between", f"{cards} x {spec.between.name}: {rate} GB/s in each direction")
        table.add_row("network", f"{spec.network}, oversubscription {spec.oversubscription:g}")
    if numbers["bisection_bandwidth"]:
        half = f"{_number(numbers['bisection_bandwidth'] / 1e9)} GB/s in each direction"
        table.add_row("bisection bandwidth", half)
    return table


# ── Words and numbers ────────────────────────────────────────────────────────────────────────────────────────────────


def _draw(accelerator: Accelerator, path) -> None:
    from minidist.show.figures.roofline import draw, ends_of_the_roofline

    precision = _sixteen_bits(accelerator)
    if precision not in accelerator.flops:
        precision = next(iter(accelerator.flops))
    series = ends_of_the_roofline(MODEL, BYTES_EACH[precision])
    title = f"{accelerator.name}: {_model()}, {MODEL.context:,} tokens of context"
    peak = peak_flops(accelerator, precision)
    draw(peak, accelerator.memory_bandwidth, series, title, precision).savefig(path, format="png", dpi=120)


def _model() -> str:
    return f"a GPT of {weight_count(MODEL) / 1e9:.1f} billion weights"


def _sixteen_bits(chip: Accelerator) -> str:
    """Return "bf16", or "fp16" for a chip that lacks it."""
    return "fp16" if "bf16" not in chip.flops else "bf16"


def _size(node: NodeType) -> str:
    return f"up to {node.size:,} in a torus" if node.torus else str(node.size)


def _details(title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    return table


def _tera(value: float | None) -> str:
    return "" if value is None else _number(value / 1e12)


def _number(value: float) -> str:
    """Format a number with five significant digits, or all before the decimal point, without trailing zeros."""
    return f"{value:,.0f}" if value >= 1e5 else f"{value:,.5g}"
