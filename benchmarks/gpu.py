"""One training step of minidist on a GPU compared with the same step in PyTorch eager, in turns.

    python benchmarks/gpu.py --report DIR       # on a fresh machine: the tests, then everything below, into this folder
    python benchmarks/gpu.py                    # needs CuPy, PyTorch and an NVIDIA GPU
    python benchmarks/gpu.py --backend numpy --width 64    # the same on a CPU, to try the script

A step is forward, backward, gradient clipping and AdamW. float32 products use no TF32 on either side. In bf16 PyTorch
runs under ``torch.autocast`` and minidist under its own: on both sides the weights are float32 and are rounded where
they are used, and the products of linear layers and attention run in the tensor cores. minidist rounds every activation
to 16 bits; PyTorch leaves LayerNorm's output and the residual stream in float32, and fuses attention into one kernel.

A step ends when the GPU has done it. A ratio is the median over the turns. "kept" is what minidist keeps for backward
at the peak of a step. Also shown: which kernels take the GPU's time (PyTorch's profiler sees those of CuPy, too), and
where the time on the host goes. With ``--report`` each width and precision is a process of its own, and files are
written as results come, so a case that fails or takes too long loses only its own.
"""

import argparse
import cProfile
import io
import json
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from train_step import TorchGPT, minidist_step

from minidist import backend, ledger
from minidist.backend import xp
from minidist.nn.gpt import GPTConfig
from minidist.nn.precision.policy import autocast

ROOT = Path(__file__).parents[1]
WIDTHS, PRECISIONS = (1024, 256, 2048), ("fp32", "bf16")  # the most informative first
LAYERS, CONTEXT, BATCH, HEAD_WIDTH = 4, 512, 8, 64
WARM_UP = 3  # steps: kernels are compiled, memory pools filled
LINES = 15  # shown of a profile or an output
TESTS = tuple(f"tests/gpu/test_{name}.py" for name in ("on_a_gpu", "on_several_gpus"))
TEST_SECONDS, CASE_SECONDS = 360, 120  # of --report: for the tests, and for one width in one precision
DEVICES = {"numpy": "cpu", "cupy": "cuda"}  # backend -> PyTorch's device
ON_THE_GPU = {"kernel": "kernels", "gpu_memcpy": "copies", "gpu_memset": "memsets"}  # kinds of events in a trace


def torch_step(config: GPTConfig, device: str, precision: str):
    model = TorchGPT(config, nn.functional.scaled_dot_product_attention).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)

    def step(tokens, targets) -> None:
        with torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext():
            loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


class Case:
    """Both steps of one width in one precision, on one device: "cuda" or "cpu"."""

    def __init__(self, width: int, precision: str, device: str) -> None:
        self.width, self.precision, self.device = width, precision, device
        config = GPTConfig(context=CONTEXT, layers=LAYERS, heads=width // HEAD_WIDTH, width=width)
        random = np.random.default_rng(0).integers(0, config.vocab, (2, BATCH, CONTEXT))
        self.ours, self.theirs = minidist_step(config), torch_step(config, device, precision)
        self.our_batch = [backend.from_host(part) for part in random]
        self.their_batch = torch.from_numpy(random).to(device)

    def minidist(self) -> None:
        with autocast(self.precision):
            self.ours(*self.our_batch)

    def torch(self) -> None:
        self.theirs(*self.their_batch)

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()  # of the whole device, so also for CuPy's work

    def seconds(self, step) -> tuple[float, float]:
        """Return the seconds until the GPU has done the step, and until the host has launched all of it."""
        self.wait()
        begin = time.perf_counter()
        step()
        asked = time.perf_counter()
        self.wait()
        return time.perf_counter() - begin, asked - begin

    def measured(self, turns: int) -> dict:
        """Return medians over the turns, in ms, and the peak memory, in MiB."""
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            xp.module.get_default_memory_pool().free_all_blocks()
        memory = ledger.start()
        self.minidist()
        ledger.stop()
        taken = [(self.seconds(self.minidist), self.seconds(self.torch)) for _ in range(turns + WARM_UP)][WARM_UP:]
        rows = [(*ours, *theirs) for ours, theirs in taken]
        ours, host, theirs, _ = (1000 * statistics.median(column) for column in zip(*rows, strict=True))
        found = {"width": self.width, "precision": self.precision, "minidist_ms": ours, "minidist_host_ms": host}
        found |= {"torch_ms": theirs, "ratio": statistics.median(row[0] / row[2] for row in rows)}
        found["kept_mib"] = memory.peaks["activations"] / 2**20
        if self.device == "cuda":
            found["minidist_pool_mib"] = xp.module.get_default_memory_pool().total_bytes() / 2**20
            found["torch_peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        return found


def on_the_gpu(case: Case, step) -> dict:
    """Return what one step does on the GPU: how often each kernel runs, for how many us, and how often memory moves."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        case.seconds(step)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    events = [event for event in events if event.get("cat") in ON_THE_GPU and "dur" in event]
    times, calls = Counter(), Counter()
    for event in events:
        times[event["name"]] += event["dur"]
        calls[event["name"]] += 1
    kinds = Counter(ON_THE_GPU[event["cat"]] for event in events)
    kernels = [{"name": name, "us": us, "calls": calls[name]} for name, us in times.most_common()]
    return {"us": sum(times.values()), **kinds, "by_kernel": kernels}


def kernel_table(title: str, found: dict) -> Table:
    counts = ", ".join(f"{found.get(kind, 0)} {kind}" for kind in ON_THE_GPU.values())
    table = Table("kernel", "calls", "us", title=f"{title}: {found['us']:.0f} us on the GPU, {counts}")
    for one in found["by_kernel"][: 2 * LINES]:
        table.add_row(one["name"][:80], str(one["calls"]), f"{one['us']:.0f}")
    return table


def host_profile(case: Case) -> str:
    """Profile minidist's time on the host in one step; waiting for the GPU counts for the function that waits."""
    profile, text = cProfile.Profile(), io.StringIO()
    profile.runcall(case.seconds, case.minidist)
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(LINES)
    return text.getvalue()


def run_case(width: int, precision: str, device: str, turns: int, console: Console) -> dict:
    """Measure one case, print it, and return its numbers."""
    case = Case(width, precision, device)
    found = case.measured(turns)
    console.print(
        ", ".join(f"{name} {value if isinstance(value, str) else round(value, 2)}" for name, value in found.items())
    )
    if device == "cuda":
        for name, step in (("minidist", case.minidist), ("torch", case.torch)):
            try:
                found[f"{name}_kernels"] = on_the_gpu(case, step)
                console.print(kernel_table(f"{name}, width {width}, {precision}", found[f"{name}_kernels"]))
            except Exception as error:  # the machine may forbid profiling
                console.print(f"no kernels of {name}: {type(error).__name__}: {error}", markup=False)
    console.print(f"width {width}, {precision}: where the host's time goes")
    console.print(host_profile(case), markup=False, highlight=False)
    return found


def table_of(found: list[dict]) -> Table:
    table = Table("width", "precision", title="one training step, ms")
    for name in ("minidist", "of it the host", "torch", "minidist / torch", "kept, MiB"):
        table.add_column(name, justify="right")
    for one in found:
        times = (one["minidist_ms"], one["minidist_host_ms"], one["torch_ms"], one["ratio"])
        kept = f"{one['kept_mib']:.0f}"
        table.add_row(str(one["width"]), one["precision"], *(f"{time:.2f}" for time in times), kept)
    return table


# A report


def show(command: list[str], file: Path, limit: float, console: Console) -> None:
    """Run a command with its output in a file; print the end of it, and write to ends.txt how the command ended."""
    console.print(f"$ {' '.join(command)}  > {file.name}", markup=False, highlight=False)
    begin = time.perf_counter()
    try:
        with file.open("w", encoding="utf-8") as output:
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=limit, cwd=ROOT).returncode
        ended = f"exit status {code}"
    except subprocess.TimeoutExpired:
        ended = f"ended after {limit:.0f} s"
    except OSError as error:
        ended = str(error)
    last = file.read_text("utf-8", errors="replace").splitlines()[-LINES:]
    console.print("\n".join(last), markup=False, highlight=False)
    ended = f"{file.name}: {ended}, {time.perf_counter() - begin:.1f} s"
    console.print(ended)
    with (file.parent / "ends.txt").open("a") as ends:
        ends.write(f"{ended}\n")


def report(folder: Path, arguments: argparse.Namespace, console: Console) -> None:
    """Record everything worth knowing from a first run on a machine, the most informative first.

    Raises:
        RuntimeError: if CuPy or a GPU is missing; the tests would only skip.
    """
    backend.find(arguments.backend)
    folder.mkdir(parents=True, exist_ok=True)
    python, this = sys.executable, str(Path(__file__).resolve())
    tests = [python, "-u", "-m", "pytest", *TESTS, "-v", "-s", "-rA", "--durations=0", f"--junitxml={folder}/tests.xml"]
    show(["nvidia-smi", "-q"], folder / "nvidia-smi.txt", 60, console)
    show([python, "-c", "import cupy; cupy.show_config()"], folder / "cupy.txt", 60, console)
    show(tests, folder / "tests.txt", arguments.test_seconds, console)
    found = []
    for width in arguments.width or WIDTHS:
        for precision in arguments.precision or PRECISIONS:
            name = folder / f"width{width}-{precision}"
            command = [python, this, f"--backend={arguments.backend}", f"--width={width}", f"--json={name}.json"]
            command += [f"--precision={precision}", f"--turns={arguments.turns}"]
            show(command, name.with_suffix(".txt"), CASE_SECONDS, console)
            if (written := name.with_suffix(".json")).exists():
                found += json.loads(written.read_text())
    console.print(table_of(found))
    show([python, "-m", "torch.utils.collect_env"], folder / "torch.txt", 120, console)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=10, help="timed steps of each (default: 10)")
    parser.add_argument("--width", type=int, action="append", help="only this width; may be given twice")
    parser.add_argument("--precision", choices=PRECISIONS, action="append", help="only this one")
    parser.add_argument("--backend", choices=("numpy", "cupy"), default="cupy")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--report", type=Path, metavar="DIR", help="run the tests and all cases, and write into DIR")
    parser.add_argument(
        "--test-seconds", type=float, default=TEST_SECONDS, help=f"of --report, for tests (default: {TEST_SECONDS})"
    )
    arguments = parser.parse_args()
    console = Console(width=120)
    if arguments.report:
        return report(arguments.report.resolve(), arguments, console)
    backend.use(arguments.backend)
    torch.backends.cuda.matmul.allow_tf32 = False
    found = []
    for width in arguments.width or WIDTHS:
        for precision in arguments.precision or PRECISIONS:
            found.append(run_case(width, precision, DEVICES[arguments.backend], arguments.turns, console))
            if arguments.json:
                arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    console.print(table_of(found))


if __name__ == "__main__":
    main()
