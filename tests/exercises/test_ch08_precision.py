"""Graders of chapter 8: exact numbers, what is saved and what is recomputed, and the fingerprints of training."""

import gc
import weakref
from fractions import Fraction
from functools import cache
from itertools import product
from math import inf, isfinite, nan, sqrt

import numpy as np
import pytest

from minidist.course.authoring.assertions import brief, number, same
from minidist.course.sandbox.values import working_dtype
from minidist.nn import functional
from minidist.nn.gpt import Block, GPTConfig
from minidist.nn.layers import Parameter
from minidist.nn.precision.formats import FORMATS
from minidist.nn.precision.policy import autocast
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor, no_grad
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run


def answers(*forbidden):
    """While these tests run, these parts of ``minidist.nn`` are forbidden."""
    return pytest.mark.answers("ch08_precision", forbidden=tuple(f"minidist.nn.{name}" for name in forbidden))


pytestmark = answers()

# On a rank


def run_each(world, module, name, inputs):
    return [getattr(module, name)(*args) for args in inputs]


def training_with(world, module, name, config, layout):
    """The library's training with one of these answers: the fingerprint, and the number of calls."""
    from minidist import overrides
    from minidist.train.trainer import train_rank

    overrides.override({name: getattr(module, name)})
    try:
        return train_rank(world, config, layout, RunOptions()).fingerprint, overrides.calls[name]
    finally:
        overrides.override({})


# In the grader


def found_for(student, name: str, inputs) -> list[tuple]:
    """Pairs of arguments and what the function returns for them."""
    inputs = list(inputs)
    return list(zip(inputs, student.on_ranks(1, run_each, name, inputs)[0].value, strict=True))


def config_of(precision: str) -> TrainConfig:
    return TrainConfig(
        layers=2, heads=2, width=8, context=8, steps=3, global_batch=4, micro_batch=2, dropout=0.2, warmup=1,
        precision=precision,
    )  # fmt: skip


fingerprints: dict[str, str] = {}  # of the library's own single-process run, by precision, computed when first needed


def check_training(student, warm_ranks, name: str, precision: str, layout: str = "dp=1") -> None:
    """The library's training loop with one answer matches the single-process run bit for bit."""
    config = config_of(precision)
    if precision not in fingerprints:
        fingerprints[precision] = run(warm_ranks(1), config, Layout()).fingerprint
    right = fingerprints[precision]
    fingerprint, calls = student.on_ranks(1, training_with, name, config, Layout.parse(layout))[0].value
    assert calls, f"{precision}, {layout}: the training loop did not call your {name}"
    assert fingerprint == right, (
        f"{precision}, {layout}, training with your {name}: expected the fingerprint {right[:16]}, "
        f"got {fingerprint[:16]}"
    )


# 8.1

BITS = {"float32": (8, 23, True), "float64": (11, 52, True)} | {
    name: (format.exponent, format.mantissa, format.infinite) for name, format in FORMATS.items()
}


def numbers_of(name: str) -> np.ndarray:
    """All finite numbers >= 0 of a 16-bit or 8-bit format, in float64."""
    format = FORMATS[name]
    values = format.decode(np.arange(1 << (format.bits - 1)).astype(format.dtype))
    return values[np.isfinite(values)].astype(np.float64)


def by_the_rule(exponent: int, mantissa: int, infinite: bool) -> np.ndarray:
    """All finite numbers >= 0 of a format, from the rule at the top of the learner's file, in float64."""
    powers, fractions = np.divmod(np.arange(1 << (exponent + mantissa)), 1 << mantissa)
    whole = np.where(powers > 0, 1 << mantissa, 0) + fractions
    bias = 2 ** (exponent - 1) - 1
    values = np.ldexp(whole.astype(np.float64), np.maximum(powers, 1) - bias - mantissa)
    return values[: -(1 << mantissa)] if infinite else values[:-1]


def around(value: float) -> list[float]:
    """The value, and the float64 numbers just below and above it."""
    return [np.nextafter(np.float64(value), 0), np.float64(value), np.nextafter(np.float64(value), inf)]


@answers("precision.formats:Format")
@pytest.mark.task(
    "8.1",
    points=3,
    kind="worksheet",
)
class TestWorksheet:
    """Bytes of the model states, and a format's largest number, smallest number and spacing"""

    def test_bytes(self, student):
        kinds = {"fp32": (4, 4, 8), "mixed": (2, 2, 12), "megatron": (2, 4, 12), "minidist": (2, 8, 12)}
        cases = product(kinds, (0, 1, 2, 3), (1, 2, 3, 9, 64))
        for (recipe, stage, ranks), found in found_for(student, "bytes_per_parameter", cases):
            weights, gradients, optimizer = map(Fraction, kinds[recipe])
            right = (
                weights / (ranks if stage == 3 else 1)
                + gradients / (ranks if stage >= 2 else 1)
                + optimizer / (ranks if stage >= 1 else 1)
            )
            # a few operations of float64
            assert number(found, "bytes_per_parameter") == pytest.approx(float(right), rel=1e-12), (
                f"{recipe}, stage {stage}, {ranks} rank{'s' if ranks > 1 else ''}: expected {float(right):g} bytes per "
                f"parameter, got {found:g}"
            )

    def check(self, what: str, found, right: float) -> None:
        assert number(found, what) == right, f"{what}: expected {right!r}, got {found!r:.40}"

    def test_largest(self, student):
        right = {name: float(numbers_of(name)[-1]) for name in FORMATS}
        right |= {name: float(np.finfo(name).max) for name in ("float32", "float64")}
        cases = [BITS[name] for name in right]
        for name, (_, found) in zip(right, found_for(student, "largest_number", cases), strict=True):
            self.check(f"the largest number of {name}", found, right[name])

    def test_smallest(self, student):
        right = {name: float(numbers_of(name)[1]) for name in FORMATS}
        right |= {name: float(np.finfo(name).smallest_subnormal) for name in ("float32", "float64")}
        cases = [BITS[name][:2] for name in right]
        for name, (_, found) in zip(right, found_for(student, "smallest_number", cases), strict=True):
            self.check(f"the smallest number above 0 of {name}", found, right[name])

    def test_any_format(self, student):
        """Formats that nobody has built are compared too, with all their numbers."""
        formats = [*product((2, 3, 5, 6), (1, 2, 4), (True, False)), (8, 1, True), (8, 7, False), (7, 9, False)]
        largest, smallest = (
            found_for(student, name, cases)
            for name, cases in (("largest_number", formats), ("smallest_number", [one[:2] for one in formats]))
        )
        for one, (_, most), (_, least) in zip(formats, largest, smallest, strict=True):
            words = "{} bits of exponent, {} of mantissa, infinite={}".format(*one)
            values = by_the_rule(*one)
            self.check(f"the largest number with {words}", most, float(values[-1]))
            self.check(f"the smallest number above 0 with {words}", least, float(values[1]))
            chosen = [*values[1:9], *values[:: 1 << one[1]]]  # the smallest, and every power of two
            cases = np.unique([near for value in chosen for near in around(value)])
            cases = [float(value) for value in cases if 0 < value < values[-1]]
            right = np.diff(values)[np.searchsorted(values, cases, "right") - 1]
            spacings = found_for(student, "spacing", [(*one[:2], value) for value in cases])
            for value, (_, found), due in zip(cases, spacings, right, strict=True):
                self.check(f"the spacing with {words} at {value!r}", found, float(due))

    def test_spacing_around_powers_of_two(self, student):
        for name, format in (("float32", np.float32), ("float64", np.float64)):
            lowest, highest = np.log2([np.finfo(format).smallest_subnormal, np.finfo(format).max]).astype(int)
            powers = np.ldexp(format(1), np.arange(lowest, highest, 7))
            values = np.unique([near for power in powers for near in around(power)])
            values = values[values > 0]
            found = found_for(student, "spacing", [(*BITS[name][:2], float(value)) for value in values])
            for value, (_, one) in zip(values, found, strict=True):
                below = value.astype(format)
                below = np.nextafter(below, format(0)) if below > value else below
                self.check(f"the spacing of {name} at {float(value)!r}", one, float(np.spacing(below)))

    def test_spacing(self, student):
        for name in FORMATS:
            values = numbers_of(name)
            chosen = np.unique(np.concatenate([np.arange(1, min(len(values) - 1, 40)), np.searchsorted(values, [1.0])]))
            chosen = np.append(chosen, [len(values) // 2, len(values) - 2])
            cases = [(i, share) for i in chosen for share in (0.0, 0.75)]
            between = [float(values[i] + share * (values[i + 1] - values[i])) for i, share in cases]
            found = found_for(student, "spacing", [(*BITS[name][:2], value) for value in between])
            for (i, _), value, (_, one) in zip(cases, between, found, strict=True):
                self.check(f"the spacing of {name} at {value!r}", one, float(values[i + 1] - values[i]))


# 8.2

BFLOAT16 = np.append((np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32).astype(np.float64), 2.0**128)


def nearest_bfloat16(values: np.ndarray) -> np.ndarray:
    """The codes of the nearest bfloat16 numbers, from a table of all; differences are exact in float64. Without NaN."""
    magnitude = np.abs(values.astype(np.float64))
    below = np.minimum(np.searchsorted(BFLOAT16, magnitude, "right") - 1, len(BFLOAT16) - 2)
    down, up = magnitude - BFLOAT16[below], BFLOAT16[below + 1] - magnitude
    codes = below + ((up < down) | ((up == down) & (below % 2 == 1)))
    return (codes + (np.signbit(values) * 0x8000)).astype(np.uint16)


def of_bits(*bits: int) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


def run_bits(world, module, values):
    """The codes, and whether the values are unmodified. The same array held other values in an earlier call."""
    lent = values[::-1].copy()
    module.bfloat16_bits(lent)
    lent[...] = values
    codes = module.bfloat16_bits(lent)
    return codes, lent.tobytes() == values.tobytes()


def check_bits(student, values: np.ndarray) -> None:
    codes, untouched = student.on_ranks(1, run_bits, values)[0].value
    assert isinstance(codes, np.ndarray), f"expected an array, got {brief(codes)}"
    assert codes.dtype == np.uint16, f"expected an array of uint16, got {codes.dtype}"
    assert codes.shape == values.shape, f"expected codes of shape {values.shape}, got {codes.shape}"
    assert untouched, "expected the values unmodified, but bfloat16_bits modifies them"
    nan = np.isnan(values)
    for code, bits in zip(codes[nan], values.view(np.uint32)[nan], strict=True):
        back = (code.astype(np.uint32) << 16).view(np.float32)
        assert np.isnan(back), f"NaN with the bits 0x{bits:08x}: expected NaN, got 0x{code:04x} = {back}"
    right = np.where(nan, codes, nearest_bfloat16(np.where(nan, 0, values)))
    wrong = np.flatnonzero(codes != right)
    if len(wrong):
        first = wrong[0]
        found, value, bits = codes[first : first + 1], values[first], values.view(np.uint32)[first]
        came, due = (float((c.astype(np.uint32) << 16).view(np.float32)[0]) for c in (found, right[first : first + 1]))
        raise AssertionError(
            f"{float(value)!r} with the bits 0x{bits:08x}: expected 0x{right[first]:04x} = {due!r}, "
            f"got 0x{found[0]:04x} = {came!r} ({len(wrong):,} of {len(values):,} values are wrong)"
        )


HALVES = (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)


@answers("precision.formats:bfloat16_bits", "precision.formats:drop_bits")
@pytest.mark.task(
    "8.2",
    points=4,
)
class TestBfloat16Bits:
    """bfloat16_bits: half of a float32, rounded to nearest"""

    def test_exact_numbers(self, student):
        check_bits(student, np.array([0.0, 1.0, -2.0, 0.5, 3.140625, -0.0, 2.0**100, 2.0**-126], np.float32))

    def test_nearest(self, student):
        check_bits(student, np.array([1.001, 1.005, 3.14159, -0.1, 1e-20, -7e30, 1.9999], np.float32))

    def test_ties_go_to_even(self, student):
        check_bits(student, of_bits(0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000, 0x3FFF8000))

    def test_around_every_number(self, student):
        """Each number, subnormals and the largest included, the midpoint after it, and the neighbours of both."""
        codes = np.arange(0x7F80, dtype=np.uint32)
        bits = np.concatenate([(codes << 16) + np.uint32(half) for half in HALVES])
        values = bits.view(np.float32)
        check_bits(student, np.concatenate([values, -values]))

    def test_infinity(self, student):
        check_bits(student, np.array([inf, -inf, np.finfo(np.float32).max, -3.4e38, 3.3895e38], np.float32))

    def test_nan(self, student):
        values = of_bits(0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F80FFFF, 0x7FA00000)
        check_bits(student, values)
        for turn in range(3):  # NaN and numbers, in other places each time
            check_bits(student, np.roll(np.array([nan, 1.0, -0.0, -nan, 2.5, inf, 0.1, 3e38], np.float32), turn))

    def test_none_and_one(self, student):
        for values in (np.zeros(0, np.float32), of_bits(0x3F80C000)):
            check_bits(student, values)

    def test_random(self, student):
        bits = np.random.default_rng(82).integers(0, 1 << 32, 100_000, dtype=np.uint32)
        check_bits(student, bits.view(np.float32))

    def test_training(self, student, warm_ranks):
        check_training(student, warm_ranks, "bfloat16_bits", "bf16")


# 8.3


@cache
def right_scale(largest: float, values: tuple[float, ...]) -> float:
    """The largest power of two with which no value is too large, found by trying; 1 if there is none."""
    values = [abs(float(value)) for value in values]
    if not all(map(isfinite, values)) or not any(values):
        return 1.0
    greatest, bound, scale = Fraction(max(values)), Fraction(largest), Fraction(1)
    while greatest * scale > bound:
        scale /= 2
    while greatest * scale * 2 <= bound:
        scale *= 2
    return float(scale) if scale <= Fraction(2) ** 127 else 1.0


def run_scales(world, module, name, cases):
    """Return for each case, without and with gaps in memory, the scales, and whether the values are unmodified."""
    found = []
    for values, axes in cases:
        spread = np.zeros((*values.shape, 2), np.float32)[..., 0]  # the same values, not next to each other
        for lent in (values.copy(), spread):
            lent[...] = 5.0  # in an earlier call the same array has other values
            module.scale_to(FORMATS[name], lent, axes)
            lent[...] = values
            scale = module.scale_to(FORMATS[name], lent, axes)
            found.append((scale, lent.tobytes() == values.tobytes()))
    return found


def check_scales(student, name: str, *cases) -> None:
    """Each case: the values, and the axes that share a scale."""
    cases = [(np.asarray(values, np.float32), axes) for values, axes in cases]
    results = student.on_ranks(1, run_scales, name, cases)[0].value
    in_memory = ("", ", with gaps between the values in memory")
    for ((values, axes), gaps), (found, untouched) in zip(product(cases, in_memory), results, strict=True):
        what = f"{name}, values of shape {values.shape}{gaps}, axes {axes}"
        shape = tuple(1 if axis in axes else length for axis, length in enumerate(values.shape))
        assert isinstance(found, np.ndarray | np.float32) and found.dtype == np.float32, (
            f"{what}: expected float32, got {getattr(found, 'dtype', type(found).__name__)}"
        )
        assert found.shape == shape, f"{what}: expected scales of shape {shape}, got {found.shape}"
        assert untouched, f"{what}: expected the values unmodified, but scale_to modifies them"
        for index in np.ndindex(shape):
            part = values[tuple(slice(None) if axis in axes else i for axis, i in enumerate(index))].ravel()
            right = right_scale(FORMATS[name].largest, tuple(part.tolist()))
            listed = ", ".join(f"{value:.9g}" for value in part[:4]) + (", ..." if part.size > 4 else "")
            assert found[index] == right, (
                f"{what}, scale of the values {listed or '(none)'}: expected {right:.9g}, got {found[index]:.9g}; the "
                f"format's largest number is {FORMATS[name].largest:g}"
            )


@answers("precision.formats:scale_to")
@pytest.mark.task(
    "8.3",
    points=4,
)
class TestScaleTo:
    """scale_to: the power of two that brings numbers into a format's range"""

    def test_one_scale(self, student):
        for name in ("e4m3", "e5m2"):
            check_scales(student, name, ([1.0, 2.0, 3.0], (0,)), ([1e-6, 2e-5], (0,)), ([1e9, 1.0], (0,)))

    def test_negative(self, student):
        check_scales(student, "e4m3", ([-1000.0, 3.0], (0,)), ([-1.0, -0.25], (0,)))

    def test_a_scale_for_each_block(self, student):
        values = np.random.default_rng(83).standard_normal((3, 4, 5)) * np.array([1e-8, 1.0, 1e8])[:, None, None]
        check_scales(student, "e4m3", (values, (1, 2)), (values, (0, 1, 2)), (values, (0,)), (values, (2,)))

    def test_any_axes(self, student):
        values = np.random.default_rng(830).standard_normal((3, 2, 4)) * 1e5
        for name in FORMATS:
            check_scales(
                student, name, (values, ()), (values, (1,)), (values, (2, 0)), (-5.0, ()), (0.0, ()), (nan, ())
            )
        no_blocks, no_rows = np.zeros((0, 3)), np.zeros((2, 0, 3))
        check_scales(student, "e5m2", (no_blocks, (1,)), (no_blocks, (0,)), (no_rows, (1,)), (no_rows, (0, 2)))

    def test_other_values_of_one_shape(self, student):
        values = np.random.default_rng(831).standard_normal((4, 5)) * 10.0 ** np.arange(-20, 20, 2).reshape(4, 5)
        check_scales(student, "e4m3", *[(values * factor, (1,)) for factor in (1, -1e6, 0, 1e15, inf, 1e-15)])

    def test_no_usable_values(self, student):
        check_scales(
            student, "e4m3", (np.zeros((2, 3)), (1,)), (np.zeros((2, 0)), (1,)), ([[1.0, inf], [8.0, 4.0]], (1,)),
            ([[nan, 1.0], [0.5, -inf], [0.0, 3.0]], (1,)),
        )  # fmt: skip

    def test_at_the_limit(self, student):
        """The largest number times a power of two, and its two neighbours."""
        for name in ("e4m3", "e5m2", "float16"):
            limits = np.float32(FORMATS[name].largest) * np.float32(2.0) ** np.arange(-60, 60, 7, dtype=np.float32)
            neighbours = [np.nextafter(limits, np.float32(towards)) for towards in (0, inf)]
            check_scales(student, name, (np.stack([limits, *neighbours], -1)[..., None], (2,)))

    def test_wide_range(self, student):
        values = np.float32(2.0) ** np.arange(-149, 128, dtype=np.float32)
        for name in ("e4m3", "e5m2"):
            check_scales(student, name, (np.stack([values, values * np.float32(1.4)], -1)[..., None], (2,)))
        largest = np.finfo(np.float32).max
        for name in FORMATS:
            check_scales(student, name, ([[largest], [-largest], [1e-45], [-1e-38]], (1,)), ([largest, 1e-45], (0,)))

    def test_training(self, student, warm_ranks):
        check_training(student, warm_ranks, "scale_to", "fp8")


# 8.4


def parameters_for(seed: int) -> list[Parameter]:
    """Three parameters, one of them with weight decay, one without elements."""
    made = []
    for i, shape in enumerate(((3, 4), (5,), (0,))):
        parameter = Parameter(shape, decay=i == 0)
        parameter.name = f"layer{i}.weight"
        parameter.data = np.random.default_rng([84, seed, i]).standard_normal(shape).astype(np.float32)
        made.append(parameter)
    return made


def state_of(parameter: Parameter) -> dict:
    format = parameter.format and parameter.format.name
    return {"name": parameter.name, "decay": parameter.decay, "format": format, "stored": parameter.stored.copy()}


def run_masters(world, module, name):
    """The parameters and masters after construction."""
    weights = module.MasterWeights(parameters_for(1), FORMATS[name])
    return [state_of(p) for p in weights.parameters], [state_of(m) for m in weights.masters]


def run_steps(world, module, name, gradients, lr):
    """After each step of plain gradient descent: the master's values and those that the model computes with."""
    parameter = parameters_for(2)[1]
    weights = module.MasterWeights([parameter], FORMATS[name])
    seen = []
    for gradient in gradients:
        parameter.grad = np.full(parameter.shape, gradient, working_dtype())
        weights.take_gradients()
        (master,) = weights.masters
        master.data -= np.float32(lr) * master.grad
        weights.sync_params()
        seen.append((weights.masters[0].data.copy(), parameter.data.copy(), parameter.stored.dtype.name))
    return seen


def run_gradients(world, module):
    """Return by round (of three) and parameter whether the master has the parameter's own gradient array."""
    parameters = parameters_for(3)
    weights = module.MasterWeights(parameters, FORMATS["bfloat16"])
    seen = []
    for turn in range(3):
        for i, parameter in enumerate(parameters):
            parameter.grad = None if (i + turn) % 3 == 0 else np.full(parameter.shape, turn + 0.1, working_dtype())
        weights.take_gradients()
        seen.append(
            [
                ("None" if m.grad is None else "same" if m.grad is p.grad else "other", p.grad is None)
                for p, m in zip(parameters, weights.masters, strict=True)
            ]
        )
    return seen


def run_alternately(world, module, names, values):
    """Two objects in turn, whose masters get other values without a gradient: what the parameters hold then."""
    made = []
    for seed, name in enumerate(names):
        lent = parameters_for(seed)
        made.append((module.MasterWeights(lent, FORMATS[name]), list(lent)))
        lent.clear()  # the list is the caller's
    seen = []
    for value in values:
        for i, (weights, _) in enumerate(made):
            for master in weights.masters:
                master.data = np.full(master.shape, value + i, np.float32)
        for weights, originals in made:
            weights.sync_params()
            own = type(weights.parameters) is list and all(map(is_same, weights.parameters, originals))
            seen.append((own, [parameter.data.copy() for parameter in originals]))
    return seen


def is_same(a, b) -> bool:
    return a is b


@answers("precision.underflow:MasterWeights", "precision.underflow:master_weights")
@pytest.mark.task(
    "8.4",
    points=4,
    dtypes=("float32", "float64"),
)
class TestMasterWeights:
    """MasterWeights: accumulate in 32 bits what is too small for 16"""

    def test_constructor(self, student):
        for name, stored in (("bfloat16", "uint16"), ("float16", "uint16"), ("e5m2", "uint8"), ("e4m3", "uint8")):
            parameters, masters = student.on_ranks(1, run_masters, name)[0].value
            originals = parameters_for(1)
            for kind, states in (("parameters", parameters), ("masters", masters)):
                names, right = [state["name"] for state in states], [p.name for p in originals]
                assert names == right, f"{kind}: expected {right}, got {names}"
            for original, parameter, master in zip(originals, parameters, masters, strict=True):
                assert master["format"] is None, (
                    f"the master of {original.name}: expected the format None, got {master['format']}"
                )
                same(master["stored"], original.data, f"the master of {original.name}, {name}")
                assert master["decay"] == original.decay, (
                    f"the master of {original.name}: expected decay={original.decay}, got {master['decay']}"
                )
                assert parameter["format"] == name, (
                    f"{original.name}: expected the format {name}, got {parameter['format']}"
                )
                assert parameter["stored"].dtype == stored, (
                    f"{original.name}: expected codes in {stored}, got {parameter['stored'].dtype}; the constructor "
                    "has to sync the parameters"
                )
                same(parameter["stored"], FORMATS[name].encode(original.data), f"the codes of {original.name}, {name}")

    def test_gradients(self, student):
        for turn, row in enumerate(student.on_ranks(1, run_gradients)[0].value):
            for i, (found, none) in enumerate(row):
                right = "None" if none else "same"
                words = {"None": "None", "same": "the parameter's array", "other": "another array"}
                assert found == right, (
                    f"step {turn}, gradient of master {i}: expected {words[right]}, got {words[found]}"
                )

    def check_steps(self, student, name: str, gradients, lr: float) -> None:
        format, right = FORMATS[name], parameters_for(2)[1].data
        for step, (master, data, stored) in enumerate(student.on_ranks(1, run_steps, name, gradients, lr)[0].value, 1):
            update = np.float32(lr) * np.full(right.shape, gradients[step - 1], working_dtype())
            right = (right - update).astype(np.float32)
            what = f"{name}, after step {step} of {len(gradients)}, gradient {gradients[step - 1]:g}, lr {lr:g}"
            same(master, right, f"{what}, the master")
            same(data, format.round(right), f"{what}, the parameter's data")
            assert stored == format.dtype.__name__, f"{what}: expected codes in {format.dtype.__name__}, got {stored}"

    def test_one_step(self, student):
        self.check_steps(student, "bfloat16", [1.0], 0.5)

    def test_updates_that_would_vanish(self, student):
        """Each update is far below half of the bfloat16 spacing."""
        self.check_steps(student, "bfloat16", [-1.0] * 100, 1e-4)

    def test_there_and_back(self, student):
        self.check_steps(student, "float16", [1.0, -1.0, 0.5, 0.0, -0.5] * 3, 3e-4)

    def test_two_objects(self, student):
        names, values = ("bfloat16", "float16"), (1.001, -7e4, 0.0, 1e-9, 3e38)
        seen = student.on_ranks(1, run_alternately, names, values)[0].value
        for (value, (i, name)), (own, arrays) in zip(product(values, enumerate(names)), seen, strict=True):
            what = f"two objects, {name}, whose masters have been set to {value + i:g} without a gradient"
            assert own, f"{what}: expected parameters to be a list of its own, with the constructor's parameters"
            for original, array in zip(parameters_for(0), arrays, strict=True):
                right = FORMATS[name].round(np.full(original.shape, value + i, np.float32))
                same(array, right, f"{what}, the data of {original.name}")

    @pytest.mark.one_dtype
    def test_training(self, student, warm_ranks):
        check_training(student, warm_ranks, "MasterWeights", "bf16")
        check_training(student, warm_ranks, "MasterWeights", "fp16")


# 8.5


def gradients_for(rank: int, broken: dict) -> list:
    """The gradients of five parameters on this rank: two of an array's three columns, None, one without elements, one
    of the largest numbers of the dtype, and one that is float32 anyway.
    """
    dtype = working_dtype()
    columns = np.array([[1.0 + 2.0**-40, -8.0, 77.0], [0.5, 4.0, 77.0]], dtype)[:, :2]
    large = np.array([1.0, 1.0, -1.0, 2.0**-20], dtype) * np.finfo(dtype).max
    arrays = [columns, None, np.zeros((0, 3), dtype), large, np.array([2.0, 1024.0, -2.0], np.float32)]
    if rank in broken:
        arrays[{inf: 0, -inf: 3}.get(broken[rank], 4)].flat[1] = broken[rank]
    return arrays


def run_unscale(world, module, scale, broken, bare, enabled=True):
    """The verdict, the gradients, whether they are the same arrays, and the number of calls of all_max."""
    import minidist as md

    scaler = module.GradScaler(init_scale=scale, enabled=enabled)
    arrays = [] if world.rank in bare else gradients_for(world.rank, broken)
    parameters = []
    for array in arrays:
        parameter = Parameter(() if array is None else array.shape)
        parameter.grad = array
        parameters.append(parameter)
    calls = []

    def all_max(value):
        calls.append(value)
        box = np.array([value], np.float64)
        md.all_reduce(box, md.ReduceOp.MAX, world)
        return float(box[0])

    verdict = scaler.unscale(iter(parameters), all_max)
    kept = all(parameter.grad is array for parameter, array in zip(parameters, arrays, strict=True))
    return bool(verdict), [p.grad for p in parameters if p.grad is not None], kept, len(calls), scaler.scale


def run_alone(world, module, value):
    """Without all_max."""
    parameter = Parameter((2,))
    parameter.grad = np.array([64.0, value], working_dtype())
    return bool(module.GradScaler(init_scale=4.0).unscale([parameter]))


def run_two_scalers(world, module, settings, histories):
    """Both scalers in turn, with new parameters in each step: verdict, gradient, scale before and after. Also whether
    the gradients of all steps are still what they were after their own step.
    """
    scalers = [module.GradScaler(**one) for one in settings]
    seen, gradients = [], []
    for step, overflows in enumerate(zip(*histories, strict=True)):
        for scaler, overflow in zip(scalers, overflows, strict=True):
            parameter, before = Parameter((3,)), float(scaler.scale)
            parameter.grad = np.array([step + 1.0, -8.0, nan if overflow else 4.0], working_dtype())
            verdict = bool(scaler.unscale([parameter]))
            scaler.update(verdict)
            gradients.append((parameter.grad, parameter.grad.copy()))
            seen.append((verdict, parameter.grad.copy(), before, float(scaler.scale)))
    return seen, all(array.tobytes() == copy.tobytes() for array, copy in gradients)


def run_updates(world, module, settings, overflows):
    scaler = module.GradScaler(**settings)
    seen = []
    for overflow in overflows:
        scaler.update(overflow)
        seen.append((float(scaler.scale), int(scaler.skipped)))
    return seen


def right_updates(settings, overflows):
    """Return the updates, computed from the full history at each step."""
    scale = settings.get("init_scale", 2.0**16)
    interval = settings.get("growth_interval", 2000)
    last, seen = 0, []
    for step, overflow in enumerate(overflows, 1):
        if interval and overflow:
            scale, last = scale * settings.get("backoff_factor", 0.5), step
        elif interval and step - last == interval:
            scale, last = scale * settings.get("growth_factor", 2.0), step
        seen.append((scale, sum(overflows[:step])))
    return seen


@answers("precision.underflow:GradScaler", "precision.underflow:grad_scaler")
@pytest.mark.task(
    "8.5",
    points=4,
    dtypes=("float64", "float32"),
)
class TestGradScaler:
    """GradScaler: the loss scale, and an overflow on which all ranks agree"""

    def check_unscale(self, student, size: int, scale: float, broken: dict, bare=()) -> None:
        there = [rank for rank in broken if rank not in bare]
        where = f"{broken[there[0]]} only on rank {there[0]}" if there else "no overflow"
        for rank, seen in enumerate(student.on_ranks(size, run_unscale, scale, broken, bare)):
            verdict, gradients, kept, calls, _ = seen.value
            what = f"rank {rank} of {size}, scale {scale:g}, {where}"
            assert verdict == bool(there), f"{what}, unscale: expected {bool(there)}, got {verdict}"
            assert kept, f"{what}: expected the same gradient arrays, got new ones; divide in place"
            assert calls == 1, f"{what}, calls of all_max: expected 1 on every rank, got {calls}"
            right = [] if rank in bare else [a for a in gradients_for(rank, broken) if a is not None]
            for found, array in zip(gradients, right, strict=True):
                assert found.dtype == array.dtype, f"{what}: expected a gradient of {array.dtype}, got {found.dtype}"
                divided = array / array.dtype.type(scale)
                assert np.array_equal(found, divided, equal_nan=True), (
                    f"{what}, gradient {array.ravel()[:3]}: expected {divided.ravel()[:3]}, got {found.ravel()[:3]}"
                )

    def test_divides(self, student):
        for scale in (1.0, 4.0, 2.0**16):
            self.check_unscale(student, 1, scale, {})

    def test_overflow(self, student):
        for value in (inf, -inf, nan):
            self.check_unscale(student, 1, 8.0, {0: value})
            assert student.on_ranks(1, run_alone, value)[0].value is True, (
                f"one rank, {value}: expected True, got False"
            )
        assert student.on_ranks(1, run_alone, 1.0)[0].value is False, "one rank, all finite: expected False, got True"

    def test_all_ranks_agree(self, student):
        for broken in ({}, {1: inf}, {2: nan}):
            self.check_unscale(student, 3, 2.0, broken, bare=(0,))

    def test_two_scalers(self, student):
        settings = {"init_scale": 64.0, "growth_interval": 2}, {"init_scale": 4.0, "growth_interval": 3}
        histories = [False, True, False, False, True, False], [True, False, False, False, True, True]
        seen, kept = student.on_ranks(1, run_two_scalers, settings, histories)[0].value
        after = [right_updates(*both) for both in zip(settings, histories, strict=True)]
        for turn, (verdict, gradient, scale_before, scale) in enumerate(seen):
            step, i = divmod(turn, 2)
            what = f"scaler {i} of two that are used in turn, step {step + 1}"
            before = after[i][step - 1][0] if step else settings[i]["init_scale"]
            assert scale_before == before, f"{what}, scale before: expected {before:g}, got {scale_before:g}"
            overflow = histories[i][step]
            assert verdict == overflow, f"{what}, unscale: expected {overflow}, got {verdict}"
            due = np.array([step + 1.0, -8.0, nan if overflow else 4.0], working_dtype()) / working_dtype().type(before)
            assert np.array_equal(gradient, due, equal_nan=True), f"{what}, gradient: expected {due}, got {gradient}"
            assert scale == after[i][step][0], f"{what}, scale after: expected {after[i][step][0]:g}, got {scale:g}"
        assert kept, "expected the gradients of earlier steps unmodified, but unscale modifies them"

    def test_disabled(self, student):
        verdict, gradients, _, calls, scale = student.on_ranks(1, run_unscale, 8.0, {0: inf}, (), False)[0].value
        assert (verdict, calls, scale) == (False, 0, 1.0), (
            f"enabled=False: expected False, 0 calls of all_max and scale 1, got {verdict}, {calls} and {scale:g}"
        )
        for found, array in zip(gradients, [a for a in gradients_for(0, {0: inf}) if a is not None], strict=True):
            same(found, array, "enabled=False, a gradient")
        found = student.on_ranks(1, run_updates, {"enabled": False, "growth_interval": 1}, [False] * 3)[0].value
        assert found == [(1.0, 0)] * 3, (
            f"enabled=False, scale and skipped after each of three good steps: expected {[(1.0, 0)] * 3}, got {found}"
        )

    @pytest.mark.one_dtype
    def test_update(self, student):
        history = [False, True, False, False, False, True, True] + [False] * 9 + [True, False, False]
        cases = [
            ({}, [True, False, True]),
            ({"growth_interval": 3}, history),
            ({"growth_interval": 1, "init_scale": 8.0}, history),
            ({"growth_interval": 2, "growth_factor": 4.0, "backoff_factor": 0.125}, history),
            ({"growth_interval": 0, "init_scale": 128.0}, history),
            ({"growth_interval": 4}, ([False] * 3 + [True]) * 3 + [False] * 8),
            ({"growth_interval": 2, "growth_factor": 1.5, "backoff_factor": 0.75}, history),
            ({}, [False] * 2001),
        ]
        for settings, overflows in cases:
            found = student.on_ranks(1, run_updates, settings, overflows)[0].value
            for step, (came, right) in enumerate(zip(found, right_updates(settings, overflows), strict=True), 1):
                marks = "".join("x" if overflow else "." for overflow in overflows[:step])
                assert came == right, (
                    f"{settings or 'default settings'}, after {marks} (x is an overflow): expected scale "
                    f"{right[0]:g} and {right[1]} skipped, got {came[0]:g} and {came[1]}"
                )

    @pytest.mark.one_dtype
    def test_training(self, student, warm_ranks):
        check_training(student, warm_ranks, "GradScaler", "fp16")


# 8.6


def problem(samples: int, inputs: int, size: float, features: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([88, samples, inputs])
    features = (features * rng.standard_normal((samples, inputs))).astype(np.float16)
    targets = size * (features.astype(np.float64) @ rng.standard_normal(inputs))
    return features, targets.astype(np.float16)


def regression(features, targets, steps: int, lr: float, max_norm: float) -> tuple[list[float], np.ndarray]:
    """Train in float64, which needs no scaling."""
    features, targets = features.astype(np.float64), targets.astype(np.float64)
    weight, losses = np.zeros(features.shape[1]), []
    for _ in range(steps):
        errors = features @ weight - targets
        losses.append(float(np.mean(errors**2)))
        grad = 2 * features.T @ errors / len(errors)
        weight -= lr * grad * min(1.0, max_norm / sqrt(float(np.sum(grad**2))))
    return losses, weight


def overflows(targets, scale: float) -> int:
    """The steps at the start, with a weight of zeros, in which a gradient overflows in float16."""
    steps, largest = 0, float(np.abs(targets.astype(np.float64)).max())
    while 2 * scale / 2.0**steps / len(targets) * largest >= 65520:
        steps += 1
    return steps


PROBLEMS = [(256, 3, 1.0), (1000, 8, 0.5), (64, 1, 2.0)]  # samples, inputs, size of the targets


def run_training(world, module, cases):
    """Return for each case the result, and whether features and targets are unmodified."""
    seen = []
    for features, targets, *more in cases:
        lent = features.copy(), targets.copy()
        result = list(module.train_in_float16(*lent, *more))
        seen.append((result, all(a.tobytes() == b.tobytes() for a, b in zip(lent, (features, targets), strict=True))))
    return seen


@pytest.mark.task(
    "8.6",
    points=3,
    kind="debugging",
)
class TestTrainInFloat16:
    """train_in_float16: a scaled loss, and a run that stalls"""

    def check(self, student, steps: int, lr: float, max_norm: float, scale: float, problems=PROBLEMS) -> None:
        cases = [(*problem(*one), steps, lr, max_norm, scale) for one in problems]
        seen = student.on_ranks(1, run_training, cases)[0].value
        for (samples, inputs, size, *_), (features, targets, *_), (result, kept) in zip(
            problems, cases, seen, strict=True
        ):
            losses, weight, skips = result
            what = f"{samples} samples of {inputs}, max_norm {max_norm:g}, scale {scale:g}"
            assert kept, f"{what}: expected features and targets unmodified, but train_in_float16 modifies them"
            skipped = min(steps, overflows(targets, scale))
            assert skips == skipped, f"{what}, skipped steps: expected {skipped}, got {skips}"
            right_losses, right = regression(features, targets, steps - skipped, lr, max_norm)
            assert len(losses) == steps, f"{what}: expected {steps} losses, got {len(losses)}"
            # float16 has three digits, and weights and errors are rounded to it in each step
            near = {"rel": 0.02, "abs": 0.002 * min(size, 1)}
            for step, (found, due) in enumerate(zip(losses[skipped:], right_losses, strict=True)):
                assert found == pytest.approx(due, rel=near["rel"], abs=near["abs"] * min(size, 1)), (
                    f"{what}, loss before step {step + skipped}: expected {due:.4g} as in float64, got {found:.4g}"
                )
            assert isinstance(weight, np.ndarray) and weight.dtype == np.float32, (
                f"{what}, weight: expected an array of float32, got {brief(weight)}"
            )
            assert weight == pytest.approx(right, **near), (
                f"{what}, weight: expected {right} as in float64, got {weight}"
            )

    def test_without_clipping(self, student):
        self.check(student, 30, 0.1, inf, 2.0**10)

    def test_with_clipping(self, student):
        self.check(student, 60, 0.1, 1.0, 2.0**10)
        self.check(student, 60, 0.1, 0.25, 2.0**10)

    def test_scales(self, student):
        for scale in (2.0**4, 2.0**16):
            self.check(student, 40, 0.1, 0.5, scale)

    def test_small_gradients(self, student):
        self.check(student, 40, 0.1, 0.0005, 2.0**16, [(256, 3, 0.001), (200, 5, 0.0005)])
        self.check(student, 40, 1e7, inf, 2.0**20, [(256, 3, 10.0, 1e-4)])  # gradients of 1e-7: float16 has no digits

    def test_few(self, student):
        self.check(student, 0, 0.1, 0.5, 2.0**10)
        self.check(student, 20, 0.1, 0.5, 2.0**10, [(1, 2, 1.0), (2, 1, 0.5)])

    def test_overflow(self, student):
        for max_norm in (0.5, 0.05):
            self.check(student, 60, 0.1, max_norm, 2.0**40)


# 8.7


def directly(function, *inputs):
    return function(*inputs)


class Cell:
    """A function with its own parameter, which counts its calls."""

    def __init__(self, seed: int = 0) -> None:
        self.weight = Parameter((4,))
        self.weight.data = np.random.default_rng([86, seed]).integers(1, 9, 4).astype(np.float32)
        self.calls, self.got = 0, []

    def __call__(self, x, *others):
        self.calls += 1
        self.got.append(
            [
                ("tensor", value.requires_grad, value.data.copy()) if isinstance(value, Tensor) else value
                for value in (x, *others)
            ]
        )
        return x * self.weight * x + x


def run_simple(world, module, wrap=None):
    """Output, gradients and calls of one function, in two backward passes."""
    checkpoint = directly if module is None else module.checkpoint
    cell, leaf = Cell(), Tensor(np.array([1.0, -2.0, 3.0, 5.0], np.float32), requires_grad=True)
    seen = []
    for _ in range(2):
        before = cell.calls
        output = checkpoint(cell, leaf + 0.0)
        forward = cell.calls - before
        (output * np.array([1.0, 2.0, -1.0, 3.0], np.float32)).sum().backward()
        seen.append((output.data.copy(), leaf.grad.copy(), cell.weight.grad.copy(), forward, cell.calls - before))
    return seen


def mixed(x, scale, y, name, mask, z):
    """Tensors and other arguments, alternating; y needs no gradient."""
    return x * (scale * len(name)) + y * z * mask


def run_mixed(world, module):
    checkpoint = directly if module is None else module.checkpoint
    leaves = [
        Tensor(np.arange(1, 4, dtype=np.float32) + i, requires_grad=i != 1) for i in range(3)
    ]  # x, y (no gradient), z
    output = checkpoint(mixed, leaves[0], 3, leaves[1], "name", np.array([1.0, 0.0, 2.0], np.float32), leaves[2])
    output.backward(np.array([1.0, 10.0, 100.0], np.float32))
    return output.data, [leaf.grad for leaf in leaves]


def run_arguments(world, module):
    """The arguments that the function gets, in forward and in backward."""
    cell = Cell()
    x, y = (Tensor(np.full(4, value, np.float32), requires_grad=value == 1) for value in (1, 2))
    array = np.ones(2)
    module.checkpoint(cell, x, None, y, 7, array).sum().backward()

    def plain(value):
        if isinstance(value, np.ndarray):
            return "array" if value is array else "another array"
        return value[:3] if isinstance(value, tuple) else value

    return [list(map(plain, got)) for got in cell.got]


def run_uses(world, module, precision, dtype):
    """The gradient of an input that is used four times, with numbers whose sum depends on the order."""
    checkpoint = directly if module is None else module.checkpoint
    rng = np.random.default_rng(861)
    factors = [(rng.standard_normal(300) * 10.0 ** rng.integers(-3, 4)).astype(dtype) for _ in range(4)]
    x = Tensor(rng.standard_normal(300).astype(dtype), requires_grad=True)
    with autocast(precision):
        y = x + x

        def function(y):
            total = y * factors[0]
            for factor in factors[1:]:
                total = total + y * factor
            return total

        checkpoint(function, y).sum().backward()
    return x.grad


def times(x, factor):
    return x * x * factor


def run_together(world, module, dtype):
    """Several checkpoints in two graphs that exist at once. Small whole numbers: their sums are exact in any order."""
    checkpoint = directly if module is None else module.checkpoint
    x, y, z = (Tensor(np.array(start, dtype), requires_grad=True) for start in ([1, -2, 3], [2, 0, -1], [3, 1, 2]))
    places = Tensor(np.array([2, 0, 2]))
    one = checkpoint(times, x + 0.0, 2)
    other = checkpoint(times, y + 0.0, 3)
    one = checkpoint(times, one, 5)
    both = checkpoint(lambda a, b, c: a * b * c.data.astype(dtype), z, z, places)  # twice, and a tensor of integers
    nested = checkpoint(lambda a: checkpoint(times, a, 2) * a, both)
    plain = checkpoint(lambda a: a, nested)  # returns its input
    empty = Tensor(np.zeros((0, 2), dtype), requires_grad=True)
    nothing = checkpoint(times, empty, 2)
    nothing.backward(np.zeros((0, 2), dtype))
    other.sum().backward()
    (one + plain).sum().backward()
    outputs = {"the first output": one, "the second": other, "that of one tensor twice": both, "that of nested": plain}
    outputs |= {"that of no elements": nothing}
    leaves = {f"the gradient of {k}": v for k, v in (("x", x), ("y", y), ("z", z), ("no elements", empty))}
    return {k: v.data for k, v in outputs.items()} | {k: v.grad for k, v in leaves.items()}


def run_blocks(world, module, inside=None):
    """Two transformer blocks with dropout: the output, and the gradients of all parameters and of the input."""
    checkpoint = directly if module is None else module.checkpoint
    config = GPTConfig(context=6, layers=2, heads=2, width=8, dropout=0.3)
    blocks = [Block(config, layer) for layer in range(2)]
    for i, block in enumerate(blocks):
        block.init_parameters(seed=i)
    dropout_rng = DropoutRNG(1, 2, 3)
    x = Tensor(np.random.default_rng(862).standard_normal((2, 6, 8)).astype(np.float32), requires_grad=True)
    y = x + x  # not a leaf: the library sums the gradients of leaves in float64
    for block in blocks:
        y = checkpoint(block.forward, y, dropout_rng)
    y.backward(np.random.default_rng(863).standard_normal(y.shape).astype(np.float32))
    found = {f"blocks.{i}.{p.name}": p.grad for i, block in enumerate(blocks) for p in block.parameters()}
    return {"the output": y.data, "the input's gradient": x.grad} | {
        f"the gradient of {k}": v for k, v in found.items()
    }


def run_precision(world, module, precision):
    """Forward in a precision, backward outside of it."""
    checkpoint = directly if module is None else module.checkpoint
    rng = np.random.default_rng(864)
    weight = Parameter((2, 5, 5))
    weight.data = rng.standard_normal((2, 5, 5)).astype(np.float32)
    x = Tensor(rng.standard_normal((2, 3, 5)).astype(np.float32), requires_grad=True)

    def function(x):
        return functional.gelu(functional.linear(functional.gelu(functional.linear(x, weight)), weight))

    with autocast(precision):
        output = checkpoint(function, x + x).sum()
    output.backward()
    return {"the output": output.data, "the input's gradient": x.grad, "the parameter's gradient": weight.grad}


def run_kept(world, module, precision, layers):
    """The ledger's activation bytes after forward and after backward, and the tensors that are still alive."""
    from minidist import ledger

    rng = np.random.default_rng(865)
    alive: list[weakref.ref] = []
    bias = Tensor(np.ones(32, np.float32), requires_grad=True)  # a parameter: with a graph, its sums have one too

    def function(x, factor):
        for _ in range(5):
            x = functional.gelu(x) + bias * factor
            alive.append(weakref.ref(x))
        return x

    with autocast(precision):
        leaf = Tensor(rng.standard_normal((16, 32)).astype(np.float32), requires_grad=True)
        memory = ledger.start()
        x = leaf + 1.0
        for _ in range(layers):
            alive.append(weakref.ref(x))
            x = module.checkpoint(function, x, 0.5)
        gc.collect()
        held, most = memory.held["activations"], memory.peaks["activations"]
        output = x
        still = sum(ref() not in (None, output) for ref in alive)
        output.backward(np.ones(output.shape, np.float32))
        del x, output
        gc.collect()
        return held, most, still, memory.held["activations"]


def run_no_grad(world, module):
    cell, leaf = Cell(), Tensor(np.ones(4, np.float32), requires_grad=True)
    with no_grad():
        output = module.checkpoint(cell, leaf)
    return output.data, bool(output.requires_grad), cell.calls


def run_flops(world, module, layers):
    from minidist import flops

    weight = Parameter((1, 8, 8), std=1.0)
    weight.data = np.ones((1, 8, 8), np.float32)
    x = Tensor(np.ones((1, 5, 8), np.float32), requires_grad=True)
    before = flops.snapshot()
    y = x
    for _ in range(layers):
        y = module.checkpoint(lambda x: functional.linear(x, weight), y)
    y.sum().backward()
    return dict(flops.snapshot() - before)


def same_bits(found: dict, right: dict, what: str) -> None:
    for name, array in right.items():
        assert found[name] is not None, f"{what}: {name} is None"
        same(np.asarray(found[name]), np.asarray(array), f"{what}, {name}")


@answers("recompute:checkpoint", "recompute:Region", "recompute:Input")
@pytest.mark.task(
    "8.7",
    points=6,
)
class TestCheckpoint:
    """checkpoint: compute twice, save only the inputs"""

    def test_simple(self, student):
        right = run_simple(None, None)
        for turn, (found, due) in enumerate(zip(student.on_ranks(1, run_simple)[0].value, right, strict=True)):
            what = f"x * w * x + x, pass {turn + 1}"
            for name, came, correct in zip(("output", "gradient of x", "gradient of w"), found, due, strict=False):
                same(came, correct, f"{what}, the {name}")
            assert found[3] == 1, f"{what}, calls of the function in forward: expected 1, got {found[3]}"
            assert found[4] == 2, f"{what}, calls of the function in forward and backward: expected 2, got {found[4]}"

    def test_arguments(self, student):
        got = student.on_ranks(1, run_arguments)[0].value
        assert len(got) == 2, f"calls of the function in forward and backward: expected 2, got {len(got)}"
        for when, arguments in zip(("forward", "backward"), got, strict=True):
            kinds = [v[0] if isinstance(v, tuple) else v for v in arguments]
            assert kinds == ["tensor", None, "tensor", 7, "array"], (
                f"in {when}, the function's arguments: expected tensor, None, tensor, 7 and the array, got {kinds}"
            )
            for value, (_, needs, data) in zip((1, 2), (arguments[0], arguments[2]), strict=True):
                same(data, np.full(4, value, np.float32), f"in {when}, the tensor of {value}s")
                assert when == "forward" or needs == (value == 1), (
                    f"in backward, the tensor of {value}s: expected requires_grad={value == 1}, got {needs}"
                )

    def test_tensors_and_others(self, student):
        output, grads = student.on_ranks(1, run_mixed)[0].value
        right, right_grads = run_mixed(None, None)
        same(output, right, "two tensors with a gradient, one without, and three other arguments: the output")
        for name, found, due in zip("xyz", grads, right_grads, strict=True):
            if due is None:
                assert found is None, f"{name} needs no gradient: expected None, got an array"
            else:
                assert found is not None, f"{name} needs a gradient: expected an array, got None"
                same(found, due, f"the gradient of {name}, one of three tensors among six arguments")

    def test_several_uses(self, student):
        for case in (("fp32", "float32"), ("bf16", "float32"), ("fp32", "float64")):
            found, right = student.on_ranks(1, run_uses, *case)[0].value, run_uses(None, None, *case)
            same(found, right, f"{', '.join(case)}: the gradient of an input that the function uses four times")

    def test_together(self, student):
        for dtype in ("float32", "float64"):
            found, right = student.on_ranks(1, run_together, dtype)[0].value, run_together(None, None, dtype)
            same_bits(found, right, f"{dtype}, several checkpoints")

    def test_blocks(self, student):
        same_bits(student.on_ranks(1, run_blocks)[0].value, run_blocks(None, None), "two blocks with dropout")

    def test_precision(self, student):
        for precision in ("bf16", "fp16", "fp8"):
            same_bits(
                student.on_ranks(1, run_precision, precision)[0].value,
                run_precision(None, None, precision),
                f"forward within autocast({precision!r}), backward outside of it",
            )

    def test_saved_bytes(self, student):
        for precision, itemsize in (("fp32", 4), ("bf16", 2)):
            for layers in (1, 4):
                held, most, alive, after = student.on_ranks(1, run_kept, precision, layers)[0].value
                right = layers * 16 * 32 * itemsize
                what = f"{precision}, {'four functions in sequence' if layers > 1 else 'one function'}"
                assert held <= right, (
                    f"{what}, bytes saved after forward: expected those of the inputs, {right:,}, got {held:,}"
                )
                assert held == right, (
                    f"{what}, bytes saved after forward in the ledger: expected those of the inputs, {right:,}, got "
                    f"{held:,}. Save the inputs with ctx.save_for_backward"
                )
                assert most == right, (
                    f"{what}, peak of the bytes saved in forward: expected those of the inputs, {right:,}, got "
                    f"{most:,}. "
                    "The function runs with a graph; call it under no_grad()"
                )
                assert not alive, (
                    f"{what}, tensors of the function alive after forward: expected none, got {alive}. The graph must "
                    "keep arrays only"
                )
                assert after == 0, f"{what}, bytes saved after backward: expected 0, got {after:,}"

    def test_without_a_graph(self, student):
        output, requires_grad, calls = student.on_ranks(1, run_no_grad)[0].value
        same(output, Cell()(Tensor(np.ones(4, np.float32))).data, "under no_grad(), the output")
        assert not requires_grad, "under no_grad(), the output: expected requires_grad=False, got True"
        assert calls == 1, f"under no_grad(), calls of the function: expected 1, got {calls}"

    def test_flops(self, student):
        for layers in (1, 3):
            each = 2 * 5 * 8 * 8 * layers
            found = student.on_ranks(1, run_flops, layers)[0].value
            right = {"forward": each, "backward": 2 * each, "recompute": each}
            assert found == right, (
                f"FLOPs of {layers} product{'s' if layers > 1 else ''}: expected {right}, got {found}"
            )

    def test_training(self, student, warm_ranks):
        check_training(student, warm_ranks, "checkpoint", "fp32", "recompute=full")
        check_training(student, warm_ranks, "checkpoint", "bf16", "recompute=selective")


# 8.8

SIZES = [  # samples, tokens, width, heads
    (1, 16, 8, 2), (4, 1024, 768, 12), (1, 2048, 12288, 96), (3, 5, 6, 3), (1, 1, 1, 1), (64, 131072, 16384, 128)
]  # fmt: skip
MODES = ("none", "selective", "full")


def right_layer(b, s, h, a, mode, n=1, sequence=False) -> Fraction:
    """Korthikanti et al., table 2; for inputs that are not split, its text."""
    sbh = Fraction(b * s * h)
    if mode == "full":
        return 2 * sbh / (n if sequence else 1)
    squared = Fraction(5 * a * s, h) if mode == "none" else 0
    if sequence:
        return sbh * (34 + squared) / n
    return sbh * (10 + Fraction(24, n) + squared / n)


def sizes_as_text(b, s, h, a, *more) -> str:
    *layers, mode, n, sequence = more
    parts = [f"samples {b}, tokens {s}, width {h}, heads {a}", *(f"layers {one}" for one in layers), mode, f"ranks {n}"]
    return ", ".join(parts + ["with sequence parallelism"] * sequence)


def flops_of_a_block(tokens: int, width: int, mode: str) -> dict:
    """The FLOPs of a real block with the library's recomputation."""
    from minidist import flops
    from minidist.nn.gpt import GPT
    from minidist.nn.recompute import recompute_blocks

    model = GPT(GPTConfig(vocab=4, context=tokens, layers=1, heads=2, width=width), seed=1)
    recompute_blocks(model, mode)
    x = Tensor(np.ones((1, tokens, width), np.float32), requires_grad=True)
    before = flops.snapshot()
    model.blocks[0](x, None).backward(np.ones((1, tokens, width), np.float32))
    return dict(flops.snapshot() - before)


@pytest.mark.task(
    "8.8",
    points=3,
    kind="worksheet",
)
class TestActivationBytes:
    """layer_bytes, activation_bytes and recompute_share: what recomputation saves, and what it costs"""

    def check(self, what: str, found, right: Fraction) -> None:
        # a few operations of float64
        assert number(found, what.partition(":")[0]) == pytest.approx(float(right), rel=1e-12), (
            f"{what}: expected {float(right):,.6g}, got {found:,.6g}"
        )

    def test_one_rank(self, student):
        for args, found in found_for(student, "layer_bytes", [(*size, mode) for size in SIZES for mode in MODES]):
            self.check(f"layer_bytes: {sizes_as_text(*args, 1, False)}", found, right_layer(*args))

    def test_tensor_parallel(self, student):
        cases = [
            (*size, mode, n, sequence)
            for size in SIZES
            for mode in MODES
            for n in (1, 2, 7, 8, 9)
            for sequence in (False, True)
        ]
        for args, found in found_for(student, "layer_bytes", cases):
            self.check(f"layer_bytes: {sizes_as_text(*args)}", found, right_layer(*args))

    def test_all_layers(self, student):
        cases = [
            (*size, layers, mode, n, sequence)
            for size, layers, mode in product(SIZES, (1, 2, 24), MODES)
            for n, sequence in ((1, False), (4, False), (4, True), (5, True))
        ]
        for args, found in found_for(student, "activation_bytes", cases):
            *size, layers, mode, n, sequence = args
            kept, full = (right_layer(*size, m, n, sequence) for m in (mode, "none"))
            self.check(f"activation_bytes: {sizes_as_text(*args)}", found, layers * kept + (full - kept))

    def test_flops_of_a_real_block(self, student):
        cases = [(tokens, width, mode) for tokens, width in ((4, 8), (32, 8), (7, 12)) for mode in MODES]
        for (tokens, width, mode), found in found_for(student, "recompute_share", cases):
            counted = flops_of_a_block(tokens, width, mode)
            right = Fraction(counted.get("recompute", 0), counted["forward"] + counted["backward"])
            self.check(f"recompute_share: {tokens} tokens, width {width}, {mode}", found, right)

    def test_flops_of_large_models(self, student):
        cases = [(s, h, mode) for s, h in ((2048, 12288), (131072, 4096), (1, 64)) for mode in MODES]
        for (s, h, mode), found in found_for(student, "recompute_share", cases):
            again = {"none": 0, "selective": 2 * s * h, "full": 12 * h * h + 2 * s * h}[mode]
            self.check(
                f"recompute_share: {s} tokens, width {h}, {mode}", found, Fraction(again, 3 * (12 * h * h + 2 * s * h))
            )
