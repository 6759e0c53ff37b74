"""Graders of chapter 16: float64 formulas and slopes, the library's own blocks, what is read of a file, one process."""

import json
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from minidist.course.authoring.assertions import check_numbers, compared, peak_bytes, same, trained
from minidist.course.sandbox.values import generator, working_dtype
from minidist.nn.config import GPTConfig
from minidist.nn.models import model_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

OPERATIONS = "minidist.nn.llama_operations"


def answers(*forbidden):
    """Answers may not call these parts of the library."""
    return pytest.mark.answers("ch16_llama", forbidden=forbidden)


pytestmark = answers()


def run_each(world, module, name: str, cases: list[tuple]) -> list[tuple]:
    """Return, in a rank, the function's result for each case, and whether it has left the arrays as they were."""
    found = []
    for case in cases:
        lent = [one.copy() if isinstance(one, np.ndarray) else one for one in case]
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            result = getattr(module, name)(*lent)
        found.append((result, all(map(np.array_equal, case, lent))))
    return found


def each(student, name: str, cases: list[tuple]) -> list:
    """Return the function's result for each case; asserts that it modifies none of its arrays."""
    seen = student.on_ranks(1, run_each, name, cases)[0].value
    for case, (_, kept) in zip(cases, seen, strict=True):
        assert kept, f"{in_words(name, case)}: expected the arguments unmodified"
    return [result for result, _ in seen]


def in_words(name: str, case: tuple) -> str:
    """A call, for a message."""
    words = [f"{one.dtype} {one.shape}" if isinstance(one, np.ndarray) else repr(one) for one in case]
    return f"{name}({', '.join(words)})"


def parts(found, count: int, what: str) -> tuple:
    assert isinstance(found, tuple) and len(found) == count, f"{what}: expected {count} arrays, got {found!r:.60}"
    return found


def near(found, expected: np.ndarray, dtype, what: str, tolerance: float | None = None) -> None:
    """Assert that an array has this dtype, the shape of another, and its values but for some roundings.

    A number may be wrong by ``tolerance`` times the largest (at least 1): by default eight roundings.
    """
    assert isinstance(found, np.ndarray) and found.dtype == dtype and found.shape == expected.shape, (
        f"{what}: expected an array {expected.shape} of {np.dtype(dtype)}, got {getattr(found, 'shape', '')} "
        f"{getattr(found, 'dtype', type(found).__name__)}"
    )
    limit = (4 * np.finfo(dtype).eps if tolerance is None else tolerance) * max(1, np.abs(expected).max(initial=0))
    wrong = np.flatnonzero(~(np.abs(found - expected) <= limit))
    assert not len(wrong), (
        f"{what}: element {wrong[0]}: {compared(expected.flat[wrong[0]], found.flat[wrong[0]], digits=9)}"
        f" ({len(wrong)} of {found.size} elements differ)"
    )


def draw(*shape: int) -> np.ndarray:
    """Normal numbers of the working dtype."""
    return generator(*shape).standard_normal(shape).astype(working_dtype())


def slopes(function, x: np.ndarray, gradient: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """The gradient of ``sum(function(x) gradient)`` by central differences in float64, which err by about 1e-9."""
    x, found = x.astype(np.float64), np.empty(x.shape)
    for place in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[place] += step
        down[place] -= step
        found[place] = ((function(up) - function(down)) * gradient).sum() / (2 * step)
    return found


SLOPES = {np.dtype(np.float64): 1e-7, np.dtype(np.float32): 4e-6}  # tolerances, of differences and of some roundings
CONFIG = TrainConfig(
    arch="llama", layers=1, heads=4, width=16, kv_heads=2, context=8, sequence_chunks=4, global_batch=2, micro_batch=1,
    steps=2, warmup=1,
)  # fmt: skip


def check_training(student, warm_ranks, names: list[str], *layouts: str, own: bool = True) -> None:
    """Assert that runs with these functions land on the bits of one rank with them; or, not ``own``, the library's."""
    if own:
        right = student.on_ranks(1, trained, names, CONFIG, Layout())[0].value[0]
    else:
        right = run(warm_ranks(1), CONFIG, Layout()).fingerprint
    for layout in map(Layout.parse, layouts):
        for rank, one in enumerate(student.on_ranks(layout.world_size, trained, names, CONFIG, layout)):
            found, calls = one.value
            unused = [name for name in names if not calls.get(name)]
            assert not unused, f"{layout}: the run has not called {', '.join(unused)}"
            assert found == right, (
                f"{layout}, rank {rank}: trained with your {', '.join(names)} the fingerprint is {found[:8]}, that of "
                f"{'one rank with them' if own else 'the library in one process'} is {right[:8]}"
            )


# 16.1


def rms_norm(x, gain, eps):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * gain


@answers(f"{OPERATIONS}:rms_norm_forward", f"{OPERATIONS}:rms_norm_backward")
@pytest.mark.task(
    "16.1",
    points=4,
    dtypes=("float64", "float32"),
)
class TestRMSNorm:
    """rms_norm_forward and rms_norm_backward: LayerNorm without its mean and bias"""

    def inputs(self) -> list[tuple]:
        shapes = (6,), (1, 1), (3, 10), (2, 3, 16), (0, 5), (2, 1, 2, 7)
        cases = [(3 * draw(*shape), draw(shape[-1]) + 2, eps) for shape in shapes for eps in (1e-5, 0.5)]
        return [*cases, (np.zeros((2, 4), working_dtype()), draw(4), 1e-5)]

    def test_forward(self, student):
        cases = self.inputs()
        for case, found in zip(cases, each(student, "rms_norm_forward", cases), strict=True):
            (x, gain, eps), what = (case[0].astype(np.float64), *case[1:]), in_words("rms_norm_forward", case)
            inverse = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
            right = {"y": x * inverse * gain, "normal": x * inverse, "inverse": inverse}
            for (name, expected), one in zip(right.items(), parts(found, 3, what), strict=True):
                near(one, expected, working_dtype(), f"{what}: {name}")

    def test_backward(self, student):
        inputs = [one for one in self.inputs() if one[0].any()]
        forward = each(student, "rms_norm_forward", inputs)
        cases = [(draw(2, *x.shape)[0], *back[1:], gain) for (x, gain, _), back in zip(inputs, forward, strict=True)]
        for (x, gain, eps), case, found in zip(inputs, cases, each(student, "rms_norm_backward", cases), strict=True):
            gradient, what = case[0].astype(np.float64), f"{in_words('rms_norm_backward', case)}, eps {eps}"
            grad_x, grad_gain = parts(found, 2, what)
            exact, limit = x.astype(np.float64), SLOPES[x.dtype]
            right = slopes(lambda x, g=gain, e=eps: rms_norm(x, g, e), x, gradient)
            near(grad_x, right, x.dtype, f"{what}: the gradient of x", limit)
            right = slopes(lambda gain, x=exact, e=eps: rms_norm(x, gain, e), gain, gradient)
            near(grad_gain, right, np.float64, f"{what}: the gradient of the gain", limit)

    def test_sum_over_tokens(self, student):
        """The terms are 4,096 ones and as many small numbers, none of which a sum in float32 notices."""
        gradient = np.repeat(np.array([1, 2.0**-14], working_dtype()), 4096)[:, None].repeat(2, axis=1)
        one = np.ones_like(gradient)
        _, found = parts(
            each(student, "rms_norm_backward", [(gradient, one, one[:, :1].copy(), one[0])])[0], 2, "rms_norm_backward"
        )
        near(found, np.full(2, 4096.25), np.float64, "the gradient of the gain, 8,192 tokens", 1e-9)

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        check_training(student, warm_ranks, ["rms_norm_forward", "rms_norm_backward"], "dp=2", "tp=2,sp=1")


# 16.2

TABLES = ((0, 5, 6, 1e4), (3, 4, 10, 100), (0, 1, 2, 1.0), (7, 0, 16, 1e4), (131_000, 40, 16, 5e5), (8, 8, 128, 1e4))


def angles_of(first: int, count: int, width: int, base: float) -> np.ndarray:
    return np.array(
        [[p * float(base) ** (-2 * i / width) for i in range(width // 2)] for p in range(first, first + count)]
    ).reshape(count, width // 2)


@answers(*(f"{OPERATIONS}:{name}" for name in ("rotary_table", "rotate_forward", "rotate_backward")))
@pytest.mark.task(
    "16.2",
    points=4,
    dtypes=("float64", "float32"),
)
class TestRotary:
    """rotary_table, rotate_forward and rotate_backward: positions as angles"""

    SHAPES = ((3, 6, 6), (5, 10, 20), (2, 3, 4, 16, 16), (1, 2, 5), (0, 6, 6), (6, 4, 2, 6, 12))  # ..., T, D and W

    def cases(self) -> list[tuple]:
        found = []
        for *lead, length, width, total in self.SHAPES:
            angles = angles_of(3, length, width, 100.0)
            found.append((draw(*lead, length, total), *(f(angles).astype(np.float32) for f in (np.cos, np.sin))))
        return found

    @pytest.mark.one_dtype
    def test_table(self, student):
        for case, found in zip(TABLES, each(student, "rotary_table", list(TABLES)), strict=True):
            for name, one in zip(("cos", "sin"), parts(found, 2, f"rotary_table{case}"), strict=True):
                right = getattr(np, name)(angles_of(*case))
                near(one, right, np.float32, f"rotary_table{case}: {name}, rounded once", 2.0**-25 + 1e-9)

    def turned(self, x, cosines, sines) -> np.ndarray:
        half = cosines.shape[-1]
        pairs = (x[..., :half] + 1j * x[..., half : 2 * half]) * (cosines + 1j * sines.astype(np.float64))
        return np.concatenate((pairs.real, pairs.imag, x[..., 2 * half :]), axis=-1)

    def test_forward(self, student):
        cases = self.cases()
        for case, found in zip(cases, each(student, "rotate_forward", cases), strict=True):
            near(found, self.turned(*case), working_dtype(), in_words("rotate_forward", case))

    def test_backward(self, student):
        cases = self.cases()
        for case, found in zip(cases, each(student, "rotate_backward", cases), strict=True):
            gradient, cosines, sines = case
            right = self.turned(gradient, cosines, -sines)  # the transposed matrix of a turn is its inverse
            near(found, right, working_dtype(), f"{in_words('rotate_backward', case)}, turned back")

    def test_distances(self, student):
        """All positions may be shifted: the products of queries and keys stay what they are."""
        for width, base in ((6, 1e4), (10, 1e4), (16, 5e5)):
            tables = each(student, "rotary_table", [(first, 9, width, base) for first in (0, 1, 40, 3000)])
            q, k = draw(2, 9, width)
            turned = each(student, "rotate_forward", [(x, *table) for table in tables for x in (q, k)])
            products = [one @ other.T for one, other in zip(turned[::2], turned[1::2], strict=True)]
            for found, first in zip(products[1:], (1, 40, 3000), strict=True):
                off = np.abs(found - products[0]).max()  # the table is float32: 2^-25 in each of some factors
                assert off < 1e-5, f"width {width}: products of q and k move by {off:.2g} if all are shifted by {first}"
            assert np.abs(products[0] - q @ k.T).max() > 0.1, (
                f"width {width}: expected products that depend on distance"
            )

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        names = ["rotary_table", "rotate_forward", "rotate_backward"]
        check_training(student, warm_ranks, names, "cp=2,cp_kind=zigzag")


# 16.3


def gated(x) -> np.ndarray:
    gate, up = np.split(x.astype(np.float64), 2, axis=-1)
    return gate * up / (1 + np.exp(-np.clip(gate, -700, 700)))


def block_parameters(**settings) -> int:
    """The parameters of a block, as the library has them."""
    model = model_of(GPTConfig(layers=1, **settings), seed=None)
    return sum(p.data.size for name, p in model.named_parameters() if name.startswith("blocks.0."))


@answers(*(f"{OPERATIONS}:{name}" for name in ("silu_gate_forward", "silu_gate_backward", "sigmoid")))
@pytest.mark.task(
    "16.3",
    points=4,
    dtypes=("float64", "float32"),
)
class TestSwiGLU:
    """silu_gate_forward and silu_gate_backward, hidden units, and the parameters of a block"""

    def inputs(self) -> list[np.ndarray]:
        return [4 * draw(*shape) for shape in ((2,), (3, 10), (2, 3, 12), (0, 4), (6, 1, 2, 6))]

    def test_forward(self, student):
        gates = np.array([1e4, -1e4, 800, -800, 90, -90, 20, -20, 0.0], working_dtype())
        extremes = np.stack((gates, np.full_like(gates, 3)), axis=1)
        inputs = [*self.inputs(), extremes, extremes[:, ::-1].copy()]
        for x, found in zip(inputs, each(student, "silu_gate_forward", [(x,) for x in inputs]), strict=True):
            near(found, gated(x), working_dtype(), in_words("silu_gate_forward", (x,)))

    def test_backward(self, student):
        inputs = self.inputs()
        cases = [(draw(*x.shape[:-1], x.shape[-1] // 2), x) for x in inputs]
        for case, found in zip(cases, each(student, "silu_gate_backward", cases), strict=True):
            gradient, x = case
            what = in_words("silu_gate_backward", case)
            near(found, slopes(gated, x, gradient.astype(np.float64)), x.dtype, what, SLOPES[x.dtype])

    def test_backward_of_large_values(self, student):
        """The slope of gate sigmoid(gate) is 1 for a large gate, and 0 for one far below 0."""
        x = np.array([[1e4, 2.0], [800, 2], [-800, 2], [-1e4, 2]], working_dtype())
        right = np.array([[6, 3e4], [6, 2400], [0, 0], [0, 0]])
        found = each(student, "silu_gate_backward", [(np.full((4, 1), 3, x.dtype), x)])[0]
        near(found, right, x.dtype, "silu_gate_backward, gates from 1e4 to -1e4")

    @pytest.mark.one_dtype
    def test_hidden(self, student):
        """The least multiple of the heads with which three matrices have no fewer parameters, found by trying."""
        cases = {}
        for width, heads in ((36, 6), (64, 4), (60, 6), (16, 1), (96, 6), (4096, 32), (5, 5), (2, 1)):
            hidden = heads
            while 3 * width * hidden < 8 * width**2:
                hidden += heads
            cases[width, heads] = hidden
        check_numbers(student, "gated_hidden", cases, "a multiple of the heads, with no fewer parameters than 8 C^2")

    @pytest.mark.one_dtype
    def test_parameters(self, student):
        cases = {(width,): block_parameters(width=width, heads=heads) for width, heads in ((8, 2), (30, 6), (1, 1))}
        check_numbers(student, "gpt2_block_parameters", cases, "as the library's block has")
        cases = {
            (width, heads, groups, hidden): block_parameters(
                arch="llama", width=width, heads=heads, kv_heads=groups, hidden=hidden
            )
            for width, heads, groups, hidden in ((36, 6, 2, 96), (60, 6, 3, 6), (96, 6, 1, 258), (8, 2, 2, 22))
        }
        check_numbers(student, "llama_block_parameters", cases, "as the library's block has")

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        check_training(student, warm_ranks, ["silu_gate_forward", "silu_gate_backward"], "tp=2")


# 16.4


@answers("minidist.parallel.tensor:groups_of")
@pytest.mark.task(
    "16.4",
    points=5,
    dtypes=("float64", "float32"),
)
class TestGroupedQueries:
    """groups_of, shared_gradient, and what grouped queries mean for each axis"""

    HEADS = ((6, 1), (6, 2), (6, 3), (6, 6), (12, 4), (32, 8), (1, 1), (8, 2))  # H and G

    @pytest.mark.one_dtype
    def test_groups(self, student):
        """A rank holds exactly what its query heads need."""
        cases = {}
        for heads, groups in self.HEADS:
            for ranks in (n for n in range(1, heads + 1) if heads % n == 0):
                if groups % ranks == 0 or ranks % groups == 0:
                    each = heads // ranks
                    for rank in range(ranks):
                        mine = range(rank * each, (rank + 1) * each)
                        cases[rank, ranks, groups] = sorted({head * groups // heads for head in mine})
        for case, found in zip(cases, student.on_ranks(1, run_groups, list(cases))[0].value, strict=True):
            assert found == cases[case], f"groups_of{case}: expected heads {cases[case]}, as a range, got {found}"

    @pytest.mark.one_dtype
    def test_refuses(self, student):
        cases = [(0, 2, 3), (1, 4, 6), (3, 4, 3), (0, 3, 2)]
        for case, found in zip(cases, student.on_ranks(1, run_groups, cases)[0].value, strict=True):
            assert found == "ValueError", f"groups_of{case}: expected ValueError, got {found}"

    def test_shared_gradient(self, student):
        """These sums are exact in float64, and not in float32."""
        cases = [
            (draw(heads, *shape), groups)
            for heads, groups in self.HEADS
            for shape in ((2, 5, 6), (3, 16), (), (0, 10), (1, 2, 3, 2))
        ]
        for case, found in zip(cases, each(student, "shared_gradient", cases), strict=True):
            gradient, groups = case
            right = np.stack([part.astype(np.float64).sum(axis=0) for part in np.split(gradient, groups)])
            near(found, right, np.float64, in_words("shared_gradient", case), 1e-15)

    @pytest.mark.one_dtype
    def test_kv_parameters(self, student):
        cases = {}
        for width, heads, groups in ((36, 6, 2), (60, 6, 3), (96, 6, 1), (12, 6, 6)):
            model = model_of(GPTConfig(arch="llama", layers=1, width=width, heads=heads, kv_heads=groups), seed=None)
            cases[width, heads, groups] = dict(model.named_parameters())["blocks.0.attention.qkv.kv"].data.size
        cases[4096, 32, 8] = 2 * 4096 * 1024
        check_numbers(student, "kv_parameters", cases, "as the library's layer has")

    @pytest.mark.one_dtype
    def test_ring_bytes(self, student):
        """The arrays, as often as a rank passes some on."""
        cases = {
            (n, batch, length, groups, width, size): sum(
                np.empty((2, batch, groups, length // n, width), f"V{size}").nbytes for _ in range(n - 1)
            )
            for n, batch, length in ((1, 2, 8), (2, 1, 8), (3, 4, 24), (8, 1, 4096))
            for groups, width, size in ((1, 6, 4), (2, 10, 8), (8, 128, 2))
        }
        check_numbers(student, "ring_bytes", cases, "keys and values of T/N tokens in each of N - 1 steps")

    @pytest.mark.one_dtype
    def test_ranks(self, student):
        cases = [*self.HEADS, (12, 3), (24, 6), (64, 8)]
        for (heads, groups), found in zip(cases, student.call_each("tensor_ranks", cases), strict=True):
            right = [n for n in range(1, heads + 1) if heads % n == 0 and 0 in (groups % n, n % groups)]
            assert found == right, f"tensor_ranks({heads}, {groups}): expected {right}, got {found!r:.80}"
        cases = {
            (n, g): next(m for m in range(g, n * g + 1, g) if m % n == 0) for n in range(1, 9) for g in range(1, 9)
        }
        check_numbers(student, "ulysses_kv_heads", cases, "the least multiple of G that N divides")

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        check_training(student, warm_ranks, ["groups_of"], "tp=2", "tp=4", own=False)


def run_groups(world, module, cases):
    found = []
    for case in cases:
        try:
            one = module.groups_of(*case)
            found.append(list(one) if isinstance(one, range) else repr(one))
        except ValueError:
            found.append("ValueError")
    return found


# 16.5


def write_tensors(path: Path, arrays: dict[str, tuple[str, np.ndarray]], spaces: int = 0) -> None:
    """A safetensors file, its header in another order than its data; BF16 numbers come as their upper 16 bits."""
    header, place = {}, 0
    for name, (kind, array) in arrays.items():
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    header = {"__metadata__": {"format": "pt"}} | dict(reversed(header.items()))
    text = json.dumps(header).encode() + b" " * spaces
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for _, a in arrays.values()))


def run_read(world, module, files: list[tuple], cases: list[tuple], weight_map: dict | None) -> list:
    """Return what is read from a folder with these files, called from elsewhere. Only the shard asked for is there."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        for name, *rest in files:
            write_tensors(folder / name, *rest)
        if weight_map is not None:
            index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return [module.read_slice(folder, name, range(*rows), range(*columns)) for name, rows, columns in cases]


SHAPES = {"long": (16_384, 64), "wide": (8, 131_072)}


def bytes_read() -> int:
    """Return the bytes that this process has read from files so far, as Linux counts them; elsewhere 0."""
    try:
        return int(Path("/proc/self/io").read_text(encoding="utf-8").split()[1])
    except OSError:
        return 0


def run_costs(world, module, kind: str, cases: list[tuple]) -> list[tuple[int, int]]:
    """Return peak memory and bytes read, of reads of slices of 4 MB, or 2 MB in BF16."""
    with TemporaryDirectory() as place:
        folder, seen = Path(place), []
        zeros = {name: (kind, np.zeros(s, np.float32 if kind == "F32" else np.uint16)) for name, s in SHAPES.items()}
        write_tensors(folder / "model.safetensors", {"before": zeros["long"], **zeros, "behind": zeros["long"]})
        for name, rows, columns in cases:
            before = bytes_read()
            peak = peak_bytes(lambda place=(name, range(*rows), range(*columns)): module.read_slice(folder, *place))
            seen.append((peak, bytes_read() - before))
        return seen


@answers("minidist.train.checkpoint.shards")
@pytest.mark.task(
    "16.5",
    points=4,
)
class TestReadSlice:
    """read_slice: rows and columns of a tensor from Hugging Face's files"""

    def arrays(self) -> dict[str, tuple[str, np.ndarray]]:
        rng = generator(16)
        return {
            "model.norm.weight": ("F32", rng.standard_normal(5).astype(np.float32)),
            "lm_head.weight": ("F32", rng.standard_normal((7, 3)).astype(np.float32)),
            "q": ("F16", rng.standard_normal((6, 2, 5)).astype(np.float16)),
            "k": ("BF16", rng.integers(0, 1 << 16, (9, 4)).astype(np.uint16) & 0xBFFF),  # no infinity, no NaN
            "b": ("F32", rng.standard_normal((1, 2)).astype(np.float32)),
        }

    def values(self, kind: str, array: np.ndarray) -> np.ndarray:
        if kind == "BF16":  # sign, eight bits of exponent, seven of mantissa
            sign, exponent, mantissa = array >> 15, (array >> 7).astype(np.int32) & 255, array & 127
            array = (1 - 2.0 * sign) * np.ldexp(mantissa / 128 + (exponent > 0), np.maximum(exponent, 1) - 127)
        return array.astype(np.float32)

    def cases(self, arrays) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        found = []
        for name, (_, array) in arrays.items():
            parts = ({(0, n), (0, 1), (n - 1, n), (n // 3, n // 2), (n, n)} for n in self.matrix(array).shape)
            found += [(name, *both) for both in product(*map(sorted, parts))]
        return found

    def matrix(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(len(array), -1)

    def check(self, student, files, arrays, weight_map=None, cases=None) -> None:
        cases = cases or self.cases(arrays)
        seen = student.on_ranks(1, run_read, files, cases, weight_map)[0].value
        for (name, rows, columns), found in zip(cases, seen, strict=True):
            kind, array = arrays[name]
            what = f"read_slice, {kind} tensor {name} of {array.shape}, {range(*rows)} and {range(*columns)}"
            same(found, self.values(kind, self.matrix(array))[slice(*rows), slice(*columns)], what)

    def test_one_file(self, student):
        arrays = self.arrays()
        for spaces in (0, 7):
            self.check(student, [("model.safetensors", arrays, spaces)], arrays)

    def test_shards(self, student):
        """Only the file with the tensor is there, and it has a tensor that the index does not name."""
        arrays = self.arrays()
        for number, name in enumerate(arrays):
            names = {other: f"model-{n + 1:05}-of-00005.safetensors" for n, other in enumerate(arrays)}
            files = [(names[name], {"more": ("F32", np.ones(3, np.float32)), name: arrays[name]}, number)]
            self.check(student, files, arrays, names, self.cases({name: arrays[name]}))

    def test_costs(self, student):
        """Python reads a file by up to 128 KiB at a time, the header among them."""
        parts = {"long": [((0, 2), (0, 64)), ((8_192, 8_448), (0, 64)), ((16_383, 16_384), (0, 64)), ((5, 5), (0, 64))]}
        parts["wide"] = [((3, 5), (0, 1)), ((2, 4), (65_536, 69_632)), ((7, 8), (131_071, 131_072)), ((0, 8), (5, 5))]
        cases = [(name, *part) for name, each in parts.items() for part in each]
        for kind, size in (("F32", 4), ("BF16", 2)):
            seen = student.on_ranks(1, run_costs, kind, cases)[0].value
            for (name, rows, columns), (peak, read) in zip(cases, seen, strict=True):
                what = f"read_slice, {kind} tensor of {SHAPES[name]}, {range(*rows)} and {range(*columns)}"
                own = len(range(*rows)) * len(range(*columns)) * size
                limit = 300_000 + 8 * own
                assert peak < limit, f"{what}: peak memory: expected less than {limit:,} bytes, got {peak:,}"
                limit = 450_000 + own
                assert read < limit, f"{what}: bytes read: expected less than {limit:,}, got {read:,}"


# 16.6


def run_attend(world, module, cases) -> list[tuple]:
    seen = []
    for *arrays, base in cases:
        lent = [array.copy() for array in arrays]
        seen.append((module.attend_here(*lent, base, world), all(map(np.array_equal, lent, arrays))))
    return seen


def in_one_process(q, k, v, base) -> np.ndarray:
    length, width = q.shape
    turns = np.exp(1j * angles_of(0, length, width, base))
    q, k = ((x[:, : width // 2] + 1j * x[:, width // 2 :]) * turns for x in (q, k))
    scores = (q @ k.conj().T).real / np.sqrt(width)
    weights = np.where(np.tri(length) > 0, np.exp(scores - scores.max()), 0)
    return weights / weights.sum(axis=1, keepdims=True) @ v


@pytest.mark.task(
    "16.6",
    points=3,
    kind="debugging",
)
class TestAttendHere:
    """attend_here: rotary positions under zigzag, right on one rank. Find the bug and fix it"""

    def check(self, student, size: int) -> None:
        cases = [
            (*generator(each, width).standard_normal((3, 2 * size * each, width)), base)
            for each, width, base in ((1, 6, 100.0), (3, 10, 1e4), (4, 16, 10.0), (2, 2, 1.0))
        ]
        for rank, one in enumerate(student.on_ranks(size, run_attend, cases)):
            for case, (found, kept) in zip(cases, one.value, strict=True):
                what = f"rank {rank} of {size}, {len(case[0])} tokens of width {case[0].shape[1]}"
                chunks = np.split(in_one_process(*case), 2 * size)
                assert kept, f"{what}: expected q, k and v unmodified"
                near(found, np.concatenate([chunks[rank], chunks[-1 - rank]]), np.float64, what, 1e-12)

    def test_one_rank(self, student):
        self.check(student, 1)

    def test_more_ranks(self, student):
        for size in (2, 3, 5):
            self.check(student, size)
