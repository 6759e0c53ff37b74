"""Files of tensors: what is written, other programs read to the bit, and the other way; readers read rows and no more.

(Whole models: test_hugging_face.py. What is refused: refusals.txt.)
"""

import json
import tracemalloc
from itertools import product
from math import prod
from pathlib import Path
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from minidist import overrides
from minidist.cli.checkpoint import byte_count
from minidist.nn.models import model_of
from minidist.train.checkpoint.disk import BadCheckpoint
from minidist.train.checkpoint.hugging_face import begin_from, write_folder
from minidist.train.checkpoint.shards import INDEX, TENSORS, header_of, json_in, read_slice, tensors_in, write_model
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.share import Share

SHAPES = {"b.weight": (7, 5), "a": (3,), "c": (2, 3, 4), "one": (1, 1)}
NARROW = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}  # their own roundings
INFINITE = {"bfloat16": 2.0**128 - 2.0**119, "float16": 65520.0}  # the smallest number that becomes infinite
SIZES = {"one file": 10**6, "shards": 110, "one in each": 1}


def numbers(scale: float = 1.0) -> dict[str, np.ndarray]:
    """Tensors with ties, subnormal numbers of float16 and bfloat16, zeros and infinities in them."""
    found = {}
    for seed, (name, shape) in enumerate(SHAPES.items()):
        values = np.float32(scale) * np.random.default_rng(seed).standard_normal(shape, np.float32)
        some = np.float32([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 2**-25, 1e-39, -0.0, np.inf, -65504])[: values.size]
        values.reshape(-1)[: some.size] = some
        found[name] = values
    return found


def write(folder: Path, tensors: dict, dtype: str = "float32", size: int = 10**6, config: str = "{}") -> None:
    shapes = {name: each.shape for name, each in tensors.items()}
    write_model(folder, {"config.json": config}, shapes, iter(tensors.values()), dtype, size)


def model_in(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a folder, after the check of a reader."""
    return {name: all_of(folder, name, there.shape) for name, there in tensors_in(folder).items()}


def all_of(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    return read_slice(folder, name, range(prod(shape[:1])), range(prod(shape[1:]))).reshape(shape)


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("dtype, size", list(product(NARROW, SIZES)))
def test_what_is_written_is_rounded_once_and_safetensors_reads_it(dtype, size, tmp_path):
    tensors = numbers()
    right = {name: values.astype(NARROW[dtype]) for name, values in tensors.items()}
    write(tmp_path, tensors, dtype, SIZES[size])
    for name, values in model_in(tmp_path).items():
        assert values.dtype == np.float32 and values.tobytes() == right[name].astype(np.float32).tobytes(), name
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    index = json.loads((tmp_path / INDEX).read_text()) if size != "one file" else {"weight_map": {}}
    assert len(files) == {"one file": 1, "shards": {"float32": 3}.get(dtype, 2), "one in each": 4}[size]
    assert size == "one file" or index["metadata"]["total_size"] == sum(each.nbytes for each in right.values())
    there = {}
    for number, file in enumerate(files, 1):
        assert file == (f"model-{number:05}-of-{len(files):05}.safetensors" if len(files) > 1 else TENSORS)
        with safe_open(tmp_path / file, framework="numpy") as opened:
            assert opened.metadata() == {"format": "pt"}
            for name in opened.keys():  # noqa: SIM118  not a dictionary
                there[name] = opened.get_slice(name)
                assert index["weight_map"].get(name, TENSORS) == file
                if dtype != "bfloat16":  # which it has no NumPy dtype for
                    assert opened.get_tensor(name).tobytes() == right[name].tobytes(), name
    assert {name: tuple(part.get_shape()) for name, part in there.items()} == SHAPES


@pytest.mark.parametrize("dtype", NARROW)
def test_torch_reads_what_is_written_and_its_files_are_read(dtype, tmp_path):
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'minidist[torch]'")
    from safetensors.torch import load_file, save_file

    tensors = {name: torch.from_numpy(values).to(getattr(torch, dtype)) for name, values in numbers().items()}
    write(tmp_path, numbers(), dtype)
    found = load_file(tmp_path / TENSORS)
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in found)
    save_file(tensors | {"empty": torch.zeros(0, 3), "number": torch.tensor(2.0)}, tmp_path / TENSORS)
    for name, values in tensors.items():
        matrix = values.reshape(len(values), -1).float().numpy()
        for rows, columns in product(*([(0, 1), (1, size), (0, size), (size, size)] for size in matrix.shape)):
            found = read_slice(tmp_path, name, range(*rows), range(*columns))
            assert found.tobytes() == matrix[slice(*rows), slice(*columns)].tobytes(), name
    assert all_of(tmp_path, "empty", (0, 3)).shape == (0, 3) and all_of(tmp_path, "number", ()) == 2


@pytest.mark.parametrize("dtype, value", list(INFINITE.items()))
def test_numbers_too_large_are_named_and_nothing_is_replaced(dtype, value, tmp_path):
    """Infinities and NaN stay what they are; what would become one is an error, in any file."""
    write(tmp_path, numbers(), size=80)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    below, largest = np.nextafter(np.float32(value), np.float32(0)), ml_dtypes.finfo(NARROW[dtype]).max
    for beyond in np.float32([value, -value]):
        with pytest.raises(ValueError, match=f"^one has .* {dtype}, whose largest number is"):
            write(tmp_path, numbers() | {"one": np.array([[beyond]])}, dtype, 20)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    write(tmp_path, {"one": np.float32([below, -np.inf, np.nan])}, dtype)
    assert np.array_equal(all_of(tmp_path, "one", (3,)), np.float32([largest, -np.inf, np.nan]), equal_nan=True)


class Killed(BaseException):
    """The process has ended: nothing that it would do is done any more."""


def killed_after(count: int, write, *arguments) -> bool:
    """Write, and change no more names in a folder after so many of them. Returns whether it was not done by then."""
    done = []

    def at_most(own):
        def call(*given, **options):
            done.append(own)
            if len(done) > count:
                raise Killed
            return own(*given, **options)

        return call

    with (
        mock.patch.object(Path, "replace", at_most(Path.replace)),
        mock.patch.object(Path, "unlink", at_most(Path.unlink)),
    ):
        try:
            write(*arguments)
        except Killed:
            return True
    return False


@pytest.mark.parametrize("before, after", list(product(SIZES, SIZES)))
def test_another_model_takes_the_place_of_the_one_before(before, after, tmp_path):
    """Whenever the process is killed, a reader finds the old model, the new one, or no config."""
    models, killed, count = {"old": numbers(), "new": numbers(2.0)}, True, 0
    while killed:
        folder = tmp_path / str(count)
        folder.mkdir()
        write(folder, models["old"], size=SIZES[before], config="old")
        (folder / "tokenizer.json").write_text("{}")
        killed = killed_after(count, write, folder, models["new"], "float32", SIZES[after], "new")
        config = folder / "config.json"
        assert same(model_in(folder), models[config.read_text()]) if config.exists() else killed
        count += 1
    assert count > 2 and config.read_text() == "new"
    write(tmp_path, models["new"], size=SIZES[after])
    found = {path.name for path in folder.iterdir()}
    assert found == {path.name for path in tmp_path.iterdir() if path.is_file()} | {"tokenizer.json"}


def test_a_config_that_is_a_link_stays_one(tmp_path):
    """Hugging Face's cache has such links: the new model has the new config."""
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere.json"
    folder.mkdir()
    elsewhere.write_text("old")
    (folder / "config.json").symlink_to(elsewhere)
    write(folder, numbers(), config="new")
    assert (folder / "config.json").is_symlink() and (folder / "config.json").read_text() == "new"


def test_sizes_of_shards_are_written_in_powers_of_ten():
    assert [byte_count(text) for text in ("1KB", "200mb", "5GB", "2TB")] == [10**3, 2 * 10**8, 5 * 10**9, 2 * 10**12]


def test_one_file_counts_where_there_are_shards_too(tmp_path):
    """transformers does so too, so nobody reads a mixture."""
    old, new = numbers(), numbers(2.0)
    write(tmp_path, new)
    one_file = (tmp_path / TENSORS).read_bytes()
    write(tmp_path, old, size=SIZES["shards"])
    (tmp_path / TENSORS).write_bytes(one_file)
    assert (tmp_path / INDEX).exists() and same(model_in(tmp_path), new)


def test_rows_are_read_and_no_others(tmp_path):
    """The tensor has 64 GiB, nearly all of them a hole in the file: whoever read more would need the memory."""
    rows, some = 1 << 31, np.arange(24, dtype="<f4").reshape(3, 8)
    header = {"large": {"dtype": "F32", "shape": [rows, 8], "data_offsets": [0, rows * 32]}}
    text = json.dumps(header).encode()
    with (tmp_path / TENSORS).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + rows * 32)
        file.seek(8 + len(text) + (rows - 5) * 32)
        file.write(some.tobytes())
    tracemalloc.start()
    found = read_slice(tmp_path, "large", range(rows - 6, rows - 1), range(8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(found, np.vstack([np.zeros((1, 8)), some, np.zeros((1, 8))])) and peak < 1 << 20


@pytest.mark.parametrize("length", [1 << 39, 1 << 30, 1 << 25])
def test_a_header_is_believed_no_length(length, tmp_path):
    path = tmp_path / TENSORS
    with path.open("wb") as file:
        file.write(length.to_bytes(8, "little") + b"{")
        file.truncate(1 << 36)
    tracemalloc.start()
    for read in (header_of, lambda path: all_of(path.parent, "a", (1,)), json_in):
        with pytest.raises(BadCheckpoint, match=TENSORS):
            read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


def test_any_other_header_is_refused_or_reads_as_it_says(tmp_path):
    """Each byte of a small file is replaced: nothing but BadCheckpoint is raised, and no more is read than is there."""
    write(tmp_path, {"a": np.ones((2, 2), np.float32), "b": np.ones(2, np.float32)}, "bfloat16")
    right, refused = (tmp_path / TENSORS).read_bytes(), 0
    for place, byte in product(range(len(right)), b'\x00\x01\xff0"}],'):
        (tmp_path / TENSORS).write_bytes(right[:place] + bytes([byte]) + right[place + 1 :])
        try:
            model_in(tmp_path)
        except BadCheckpoint as error:
            assert TENSORS in str(error)
            refused += 1
    assert refused > 100
    for size in range(len(right)):
        (tmp_path / TENSORS).write_bytes(right[:size])
        with pytest.raises(BadCheckpoint):
            model_in(tmp_path)


SMALL = {"layers": 2, "heads": 4, "width": 16, "context": 8, "global_batch": 4, "micro_batch": 1}
MODELS = {
    "gpt2": TrainConfig(**SMALL),
    "llama": TrainConfig(**SMALL, arch="llama", kv_heads=2),
    "mixtral": TrainConfig(**SMALL, arch="llama", experts=4, expert_hidden=16, bias_rate=0.0),
}
READ = {  # layout -> at most so many bytes for each byte of a rank's share
    **dict.fromkeys(("dp=2", "pp=2", "dp=2,ep=2", "tp=2", "tp=4", "tp=2,pp=2"), 1.0),
    "dp=2,zero=3": 1.5, "dp=2,tp=2,zero=3": 1.5,  # shards begin in the middle of a row
}  # fmt: skip


def begin_and_count(world, config: TrainConfig, layout: Layout, folder: str) -> tuple[int, int, bool]:
    """Bytes that a rank reads of a folder, bytes of its share, and whether the share is then that of seed 0."""
    read = []

    def counting(*place):
        read.append(read_slice.__wrapped__(*place))
        return read[-1]

    right, share = Share.of(world, config, layout), Share.of(world, config, layout)
    for parameter in share.model.trained:
        parameter.data[...] = np.nan
    overrides.override({"read_slice": counting})
    try:
        begin_from(Path(folder), share)
    finally:
        overrides.override({})
    pairs = zip(share.model.trained, right.model.trained, strict=True)
    equal = all(one.data.tobytes() == other.data.tobytes() for one, other in pairs)
    return sum(part.nbytes for part in read), sum(parameter.data.nbytes for parameter in share.model.trained), equal


@pytest.mark.parametrize("name", MODELS)
def test_a_rank_reads_about_its_share(name, ranks, tmp_path):
    config = MODELS[name]
    arrays = {each.name: each.data for each in model_of(config.model, config.seed).parameters()}
    write_folder(tmp_path, config.model, arrays, shard_size=10_000)
    shards = list(tmp_path.glob("model-*-of-*"))
    assert len(shards) > 2
    assert all(int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0 for path in shards)  # so numbers are aligned
    for text, most in READ.items():
        layout = Layout.parse(text)
        if layout.ep > 1 and not config.experts:
            continue
        found = ranks(layout.world_size).run(begin_and_count, config, layout, str(tmp_path))
        worst = max(read / share for read, share, _ in found)
        assert worst <= most and all(equal for *_, equal in found), (text, worst)


def test_an_export_holds_one_array_at_a_time(tmp_path):
    config = TrainConfig(layers=12, heads=2, width=64).model
    shapes = {name: each.shape for name, each in model_of(config, seed=None).named_parameters()}
    sizes, held = [4 * prod(shape) for shape in shapes.values()], []

    class Arrays:
        def __getitem__(self, name):
            if not held:
                tracemalloc.reset_peak()
            held.append(tracemalloc.get_traced_memory()[0])
            return np.ones(shapes[name], np.float32)

    tracemalloc.start()
    write_folder(tmp_path, config, Arrays(), "bfloat16")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(held) - held[0] < 4 * max(sizes) and peak - held[0] < 6 * max(sizes) < sum(sizes) / 5
