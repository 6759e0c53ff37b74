"""Graders of chapter 12: power that fails at every operation, reads that are counted, real checkpoints, brute force."""

import hashlib
import json
import tempfile
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, product
from math import exp, floor
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from safetensors.numpy import load as decode

from minidist.analysis.stragglers import Straggler, StragglerWatch
from minidist.course.authoring.assertions import FLOAT64, check_numbers, compared, peak_bytes, same
from minidist.course.sandbox.values import generator
from minidist.show.demos.failure.crashing_disk import CrashingDisk, PowerFailure
from minidist.train.checkpoint.commit import latest
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import ArrayEntry, BadCheckpoint, Manifest, Slice
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.faults import Fault
from minidist.train.resilience.shrink import best_layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

PROTOCOL = tuple(f"minidist.train.checkpoint.commit:{name}" for name in ("write_durably", "commit", "discard"))
RESTORE = "minidist.train.checkpoint.restore"
Runs = tuple[tuple[int, int], ...]


def answers(*forbidden):
    """Answers may not call these parts of the library."""
    return pytest.mark.answers("ch12_failures", forbidden=forbidden)


pytestmark = answers()


def runs_of(places: np.ndarray) -> Runs:
    """Places in a flat array as runs, those that touch joined."""
    places = places.ravel().tolist()
    if not places:
        return ()
    breaks = [0, *(n for n, (a, b) in enumerate(pairwise(places), 1) if b != a + 1), len(places)]
    return tuple((places[start], places[stop - 1] + 1) for start, stop in pairwise(breaks))


def places_of(runs: Runs) -> np.ndarray:
    return np.concatenate([np.arange(start, stop) for start, stop in runs] or [np.arange(0)])


# Saving, and resuming in another layout, on an answer

CONFIG = TrainConfig(
    layers=2, heads=2, width=8, context=8, sequence_chunks=2, global_batch=4, micro_batch=1, steps=4, warmup=1
)  # fmt: skip


def save_and_resume(world, module, names, config, before, after, mode, place):
    """Train two steps in a rank and save, then the rest in another layout, from what was saved, and save."""
    from minidist import overrides
    from minidist.parallel.tools.messages import all_gather_object
    from minidist.train.trainer import train_rank

    folder = Path(all_gather_object(tempfile.mkdtemp(dir=place) if world.rank == 0 else "", world)[0])
    overrides.override({name: getattr(module, name) for name in names})
    try:
        saving = Saving(str(folder), every=2, keep=1, mode=mode)
        train_rank(world, config, before, RunOptions(saving=saving, stop_after=1))
        resume = str(folder / (latest(Disk(), folder) or "nothing"))
        result = train_rank(world, config, after, RunOptions(saving=saving, resume=resume))
        return result.fingerprint, dict(overrides.calls), sorted(Disk().names(folder)), result.save_errors
    finally:
        overrides.override({})


def check_saving(student, warm_ranks, names: list[str], *ways: tuple[str, str], config: TrainConfig = CONFIG) -> None:
    """Assert that a run saved with these functions in one layout and resumed in another ends on the library's bits."""
    right = run(warm_ranks(1), config, Layout()).fingerprint
    for number, (before, after) in enumerate(ways):
        layout = Layout.parse(before)
        call = names, config, layout, Layout.parse(after), ("async", "sync")[number % 2]
        with tempfile.TemporaryDirectory() as place:
            seen = [one.value for one in student.on_ranks(layout.world_size, save_and_resume, *call, place)]
        for name in names:
            assert any(calls.get(name, 0) for _, calls, _, _ in seen), f"saved in {before}: the run never calls {name}"
        for rank, (found, _, files, errors) in enumerate(seen):
            what = f"saved in {before}, resumed in {after}, rank {rank}"
            assert not errors, f"{what}: {errors[0]}"
            kept = ["latest", "step-000004"]
            assert files == kept, f"{what}: expected {', '.join(kept)} in the folder, got {', '.join(files)}"
            assert found == right, (
                f"{what}: with your {' and '.join(names)} the fingerprint is {found[:8]}, that of the library in one "
                f"process, never interrupted, is {right[:8]}"
            )


# 12.1

ROOT, FOLDER, FILE = Path("runs/one"), Path("runs/one/step-000020"), Path("runs/one/step-000020/rank-0")
OPERATIONS = 40  # no answer needs so many
OLD, NEW = {"rank-0": b"old 0", "rank-1": b"old rank 1"}, {"rank-0": b"new 0", "rank-1": b"new rank 1", "rank-2": b""}


def tree(disk, folder: Path = Path()) -> dict[str, bytes | None]:
    """All that is on a disk: path -> content, None for folders."""
    found: dict[str, bytes | None] = {}
    for name in disk.names(folder):
        try:
            found[str(folder / name)] = disk.read(folder / name)
        except FileNotFoundError:
            found |= {str(folder / name): None, **tree(disk, folder / name)}
    return found


def put(disk, folder: Path, files: dict[str, bytes]) -> None:
    """Files that are on the disk for good; the name of the folder is not."""
    disk.make_folder(folder)
    for name, content in files.items():
        disk.write(folder / name, content)
        disk.flush(folder / name)
    disk.flush_folder(folder)


def prepared(checkpoints: dict[str, dict[str, bytes]], points_to: str, *unnamed: str) -> CrashingDisk:
    """A disk with these folders. All is on it for good but the names of ``unnamed`` folders."""
    disk = CrashingDisk()
    disk.make_folder(ROOT)
    for folder in (Path(), *list(ROOT.parents)[:-1]):
        disk.flush_folder(folder)
    if points_to:
        put(disk, ROOT, {"latest": points_to.encode()})
    for name in sorted(checkpoints, key=lambda name: name in unnamed):
        if name in unnamed:
            disk.flush_folder(ROOT)
        put(disk, ROOT / name, checkpoints[name])
    if not unnamed:
        disk.flush_folder(ROOT)
    return disk


def cut_everywhere(prepare, call) -> list[tuple]:
    """Cut the power in every operation of a call, and after it.

    Returns:
        For each cut: whether the call had returned, in which operation, and the states that may be left: pairs of
        how that comes about and ``tree``.
    """
    found = []
    for moment in range(OPERATIONS):
        disk = prepare()
        before = len(disk.operations)
        disk.power_fails_at = before + moment
        try:
            call(disk)
        except PowerFailure:
            pass
        finally:
            cut = len(disk.operations) > disk.power_fails_at
            operation = " ".join(map(str, disk.operations[-1])) if cut else "no operation"
            done = [each[0] for each in disk.operations[before:]]
        states = {}  # those that differ
        for survival, left in disk.left():
            state = tree(left)
            states.setdefault(repr(state), (survival, state))
        found.append((not cut, operation, list(states.values()), done))
        if not cut:
            return found
    raise AssertionError(f"expected less than {OPERATIONS} operations")


def run_write(world, module, old):
    files = {"other": b"another file"} | ({"rank-0": old} if old is not None else {})
    return cut_everywhere(
        lambda: prepared({"step-000020": files}, ""), lambda disk: module.write_durably(disk, FILE, b"the new content")
    )


def run_commit(world, module, first):
    folders = {"step-000020": NEW} | ({} if first else {"step-000010": OLD | {"manifest.json": b"manifest 10"}})
    return cut_everywhere(
        lambda: prepared(folders, "" if first else "step-000010", "step-000020"),
        lambda disk: module.commit(disk, ROOT, "step-000020", b"manifest 20"),
    )


def run_discard(world, module, name, files):
    folders = {"step-000020": NEW | {"manifest.json": b"manifest 20"}, name: files}
    return cut_everywhere(
        lambda: prepared(folders, "step-000020"),
        lambda disk: module.discard(disk, ROOT, name),
    )


def run_three_saves(world, module):
    """Save as a run does: files of three ranks, a manifest, then the oldest checkpoint is removed; three times."""

    def saves(disk):
        for step in (30, 40, 50):
            name = f"step-{step:06d}"
            disk.make_folder(ROOT / name)
            for file, content in NEW.items():
                module.write_durably(disk, ROOT / name / file, content)
            module.commit(disk, ROOT, name, f"manifest {step}".encode())
            if step > 30:
                module.discard(disk, ROOT, f"step-{step - 20:06d}")

    global OPERATIONS
    before, OPERATIONS = OPERATIONS, 4 * OPERATIONS
    folders = {f"step-0000{step}": NEW | {"manifest.json": f"manifest {step}".encode()} for step in (10, 20)}
    try:
        return cut_everywhere(lambda: prepared(folders, "step-000020"), saves)
    finally:
        OPERATIONS = before


def files_in(state: dict, name: str) -> dict[str, bytes]:
    """The files of a folder in ``ROOT``."""
    prefix = f"{ROOT / name}/"
    return {path.removeprefix(prefix): content for path, content in state.items() if path.startswith(prefix)}


def in_words(content: bytes | None) -> str:
    return "no file" if content is None else repr(content)


@answers(*PROTOCOL)
@pytest.mark.task(
    "12.1",
    points=6,
)
class TestCommitProtocol:
    """write_durably, commit and discard: whole checkpoints, whenever the power fails"""

    def states(self, seen, what: str):
        """Each state that may be left, with whether the call had returned and where it comes from, in words."""
        for returned, operation, states, _ in seen:
            moment = f"after {what} has returned" if returned else f"{what}, power fails in: {operation}"
            for survival, state in states:
                yield returned, f"{moment}; left: {survival}", state

    def check_whole(self, state: dict, where: str, right: dict[str, dict[str, bytes]]) -> list[str]:
        """Assert that every folder with a manifest has all of a checkpoint; returns their names."""
        found = [path.split("/")[-2] for path in state if path.endswith("/manifest.json")]
        for name in found:
            files = files_in(state, name)
            for file, content in right[name].items():
                assert files.get(file) == content, (
                    f"{where}: {name} has a manifest, so expected {file} with {content!r}, got "
                    f"{in_words(files.get(file))}"
                )
        return found

    def test_write(self, student):
        for old in (None, b"the old content, which is longer", b""):
            seen = student.on_ranks(1, run_write, old)[0].value
            for returned, where, state in self.states(seen, "write_durably"):
                found = state.get(str(FILE))
                if returned:
                    assert found == b"the new content", f"{where}: expected all of the file, got {in_words(found)}"
                    files = sorted(path for path, content in state.items() if content is not None)
                    right = [str(FOLDER / "other"), str(FILE)]
                    assert files == right, f"{where}: expected these files, {right}, got {files}"
                assert found in (old, b"the new content"), (
                    f"{where}: expected the file as before, {in_words(old)}, or all of it, got {in_words(found)}"
                )
                assert state.get(str(FOLDER / "other")) == b"another file", f"{where}: another file has changed"

    def test_write_makes_few_operations(self, student):
        operations = student.on_ranks(1, run_write, None)[0].value[-1][3]
        assert len(operations) <= 4, f"write_durably: expected 4 operations, got {len(operations)}: {operations}"

    def test_commit(self, student):
        self.check_commit(student, first=False)

    def test_first_commit(self, student):
        self.check_commit(student, first=True)

    def check_commit(self, student, first: bool) -> None:
        right = {
            "step-000010": OLD | {"manifest.json": b"manifest 10"},
            "step-000020": NEW | {"manifest.json": b"manifest 20"},
        }
        seen = student.on_ranks(1, run_commit, first)[0].value
        for returned, where, state in self.states(seen, "commit"):
            there = self.check_whole(state, where, right)
            points_to = state.get(str(ROOT / "latest"))
            possible = [b"step-000020"] if returned else [None if first else b"step-000010", b"step-000020"]
            assert points_to in possible, (
                f"{where}: expected latest to be {' or '.join(map(in_words, possible))}, got {in_words(points_to)}"
            )
            assert points_to is None or points_to.decode() in there, (
                f"{where}: latest points to {points_to.decode()}, which is no checkpoint; there are {there}"
            )
            assert first or "step-000010" in there, f"{where}: the checkpoint before is gone"
        files = sorted(state for state in seen[-1][2][0][1] if "/" not in state.removeprefix(f"{ROOT}/"))
        expected = sorted(map(str, [ROOT.parent, ROOT, ROOT / "latest", *(ROOT / name for name in there)]))
        assert set(files) <= set(expected), f"commit leaves {files} behind, expected {expected}"

    def test_commit_makes_few_operations(self, student):
        operations = student.on_ranks(1, run_commit, False)[0].value[-1][3]
        flushes = sum(name.startswith("flush") for name in operations)
        assert flushes <= 5, f"commit: expected 5 flushes, got {flushes}: {operations}"

    def test_discard(self, student):
        whole = OLD | {"manifest.json": b"manifest 10"}
        rests = ({}, {"rank-0": b"old 0"}, {".new-rank-1": b"half", "rank-0": b"old 0"})
        for files in (whole, {"manifest.json": b"manifest 10"}, *rests):
            seen = student.on_ranks(1, run_discard, "step-000010", files)[0].value
            right = {"step-000010": files, "step-000020": NEW | {"manifest.json": b"manifest 20"}}
            for returned, where, state in self.states(seen, "discard"):
                there = self.check_whole(state, where, right)
                assert "step-000020" in there and state.get(str(ROOT / "latest")) == b"step-000020", (
                    f"{where}: expected the other checkpoint, and latest, to stay"
                )
                if returned:
                    assert "step-000010" not in there, f"{where}: the checkpoint has come back"
            left = [path for path in seen[-1][2][0][1] if "step-000010" in path]
            assert not left, f"discard leaves {left}"

    def test_discard_makes_few_operations(self, student):
        whole = OLD | {"manifest.json": b"manifest 10"}
        operations = student.on_ranks(1, run_discard, "step-000010", whole)[0].value[-1][3]
        flushes = sum(name.startswith("flush") for name in operations)
        assert flushes <= 2, f"discard: expected a flush or two, got {flushes}: {operations}"

    def test_three_saves(self, student):
        right = {
            f"step-0000{step}": NEW | {"manifest.json": f"manifest {step}".encode()} for step in (10, 20, 30, 40, 50)
        }
        seen = student.on_ranks(1, run_three_saves)[0].value
        newest = ""
        for _, where, state in self.states(seen, "three saves"):
            there = self.check_whole(state, where, right)
            points_to = (state.get(str(ROOT / "latest")) or b"").decode()
            assert points_to in there, f"{where}: latest points to {points_to!r}, and there are {sorted(there)}"
        newest = (state.get(str(ROOT / "latest")) or b"").decode()
        assert newest == "step-000050", f"after three saves latest points to {newest}"

    def test_trains_a_transformer(self, student, warm_ranks):
        names = ["write_durably", "commit", "discard"]
        check_saving(student, warm_ranks, names, ("dp=2,zero=1", "tp=2"), ("tp=2", "dp=2,zero=3"))


# 12.2


FILES = {"rank-0": b"what rank 0 has", "rank-1": b"what rank 1 has, and more", "rank-2": b"", "rank-3": b"3" * 70_000}


def run_damaged(world, module, contents, spoiled, written):
    """The files of a checkpoint, after some have been spoiled."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in spoiled.items():
            (Path(folder) / name).write_bytes(content)
        (Path(folder) / "manifest.json").write_bytes(b"{}")
        before = dict(written)
        return module.damaged(Path(folder), written), written == before, sorted(contents)


def run_damaged_large(world, module, mebibytes):
    """The most memory that a large file takes, and what is said of it whole, and with its last byte changed."""
    with tempfile.TemporaryDirectory() as folder:
        path, sha = Path(folder) / "large", hashlib.sha256()
        with path.open("wb") as file:
            for number in range(mebibytes):
                piece = bytes([number % 251]) * (1 << 20)
                sha.update(piece)
                file.write(piece)
        files = {"large": (mebibytes << 20, sha.hexdigest())}
        found: list = []
        peak = peak_bytes(lambda: found.append(module.damaged(Path(folder), files)))
        with path.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"\xff")
        found.append(module.damaged(Path(folder), files))
        return peak, found


@answers(f"{RESTORE}:missing_elements", f"{RESTORE}:check_files", "minidist.files:sha256_of")
@pytest.mark.task(
    "12.2",
    points=3,
)
class TestDamage:
    """damaged and missing_elements: what is wrong with a checkpoint"""

    def check(self, student, spoiled: dict[str, bytes], right: dict[str, str]) -> None:
        written = {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in FILES.items()}
        found, kept, _ = student.on_ranks(1, run_damaged, FILES, spoiled, written)[0].value
        assert kept, "damaged: expected files unmodified"
        assert found == right, f"damaged: expected {right}, got {found!r:.100}"

    def test_whole(self, student):
        self.check(student, FILES, {})
        self.check(student, FILES | {"rank-4": b"of another run"}, {})

    def test_missing(self, student):
        self.check(student, {"rank-0": FILES["rank-0"]}, dict.fromkeys(("rank-1", "rank-2", "rank-3"), "missing"))
        self.check(student, {}, dict.fromkeys(FILES, "missing"))

    def test_truncated(self, student):
        spoiled = FILES | {"rank-0": FILES["rank-0"][:-1], "rank-3": b""}
        self.check(student, spoiled, {"rank-0": "truncated", "rank-3": "truncated"})

    def test_changed(self, student):
        """One bit; two bytes exchanged; one more."""
        flipped = bytes([FILES["rank-0"][0] ^ 1]) + FILES["rank-0"][1:]
        exchanged = FILES["rank-1"][::-1]
        spoiled = FILES | {"rank-0": flipped, "rank-1": exchanged, "rank-2": b"x", "rank-3": b"3" * 70_001}
        self.check(student, spoiled, dict.fromkeys(FILES, "changed"))

    def test_several(self, student):
        spoiled = {"rank-0": b"what rank 1 has", "rank-1": b"what rank", "rank-3": b"3" * 69_999 + b"4"}
        right = {"rank-0": "changed", "rank-1": "truncated", "rank-2": "missing", "rank-3": "changed"}
        self.check(student, spoiled, right)

    def test_large(self, student):
        peak, found = student.on_ranks(1, run_damaged_large, 24)[0].value
        assert found == [{}, {"large": "changed"}], f"damaged, a file of 24 MiB: expected [{{}}, changed], got {found}"
        # a piece of 1 MiB, the next one while the first is still there, and what Python needs
        assert peak <= 3 << 20, f"damaged, a file of 24 MiB: expected about 1 MiB at once, got {peak / (1 << 20):.1f}"

    def check_missing(self, student, cases: list[ArrayEntry]) -> None:
        for entry, found in zip(cases, student.call_each("missing_elements", [(one,) for one in cases]), strict=True):
            covered = {place for part in entry.slices for run in part.runs for place in range(*run)}
            right = int(np.prod(entry.shape)) - len(covered)
            what = f"missing_elements, shape {entry.shape}, runs {[part.runs for part in entry.slices]!s:.100}"
            assert not isinstance(found, bool) and isinstance(found, int | np.integer), (
                f"{what}: expected an integer, got {found!r:.40}"
            )
            assert found == right, f"{what}: expected {right}, got {found}"

    def entry(self, shape, *runs: Runs) -> ArrayEntry:
        return ArrayEntry(shape, "float32", tuple(Slice(f"rank-{n}", each) for n, each in enumerate(runs)))

    def test_elements_missing(self, student):
        halves = ((0, 6),), ((6, 12),)
        self.check_missing(
            student,
            [
                self.entry((3, 4), *halves), self.entry((3, 4), *halves[::-1]), self.entry((3, 4), halves[0]),
                self.entry((3, 4), halves[1]), self.entry((12,), ((0, 3), (6, 9))), self.entry((12,)),
                self.entry((12,), ((1, 11),)), self.entry((12,), ((6, 9), (0, 3)), ((4, 6),)), self.entry((0, 4)),
                self.entry((), ((0, 1),)), self.entry((),),
            ],
        )  # fmt: skip

    def test_slices_that_overlap(self, student):
        self.check_missing(
            student,
            [
                self.entry((12,), ((0, 8),), ((4, 12),)), self.entry((12,), ((0, 12),), ((3, 5),), ((7, 9),)),
                self.entry((12,), ((2, 10),), ((3, 5),), ((4, 6),)), self.entry((12,), ((0, 4),), ((0, 4),)),
                self.entry((12,), ((0, 9),), ((2, 3), (10, 11))),
            ],
        )  # fmt: skip

    def test_larger_than_memory(self, student):
        shape, size = (1 << 20, 1 << 20, 1 << 10), 1 << 50
        entry = ArrayEntry(shape, "float32", (Slice("rank-0", ((0, size - 7),)), Slice("rank-1", ((size - 5, size),))))
        found = student.call("missing_elements", entry)
        assert found == 2, f"missing_elements, shape {shape}: expected 2, got {found!r:.40}"

    def test_a_real_checkpoint(self, student, warm_ranks, tmp_path):
        """Nothing is missing; then the slices of one file are."""
        options = RunOptions(saving=Saving(str(tmp_path), 1, mode="sync"), stop_after=0)
        run(warm_ranks(3), CONFIG, Layout.parse("dp=3,zero=3"), options)
        manifest = Manifest.read(Disk(), tmp_path / "step-000001")
        arrays = list(manifest.arrays.values())
        without = [
            ArrayEntry(one.shape, one.dtype, tuple(part for part in one.slices if part.file != "rank-1.safetensors"))
            for one in arrays
        ]
        self.check_missing(student, arrays + without)


# 12.3


def parts_of(runs: Runs, places: list[tuple[int, int]]) -> Runs:
    """Return every element's place, counted by hand."""
    everything = places_of(runs)
    return runs_of(np.concatenate([everything[:0], *(everything[start:stop] for start, stop in places)]))


@answers("minidist.parallel.tools.regions:part_of_runs")
@pytest.mark.task(
    "12.3",
    points=3,
)
class TestPartOfRuns:
    """part_of_runs: where a part of a part is in the full array"""

    def check(self, student, cases) -> None:
        for case, found in zip(cases, student.call_each("part_of_runs", cases), strict=True):
            what = f"part_of_runs{case}"
            right = parts_of(*case)
            is_runs = isinstance(found, tuple) and all(
                isinstance(each, tuple) and len(each) == 2 and all(type(place) is int for place in each)
                for each in found
            )
            assert is_runs, f"{what}: expected a tuple of pairs of Python integers, got {found!r:.80}"
            assert found == right, f"{what}: expected {right}, got {found}"

    def test_of_a_whole_array(self, student):
        whole = ((0, 12),)
        self.check(student, [(whole, [(0, 12)]), (whole, [(3, 7)]), (whole, [(0, 3), (6, 9)]), (whole, [(11, 12)])])

    def test_of_several_runs(self, student):
        """Places that begin, end or lie inside of runs, and those that reach over several."""
        columns = ((1, 3), (5, 7), (9, 11))
        places = [[(start, stop)] for start in range(6) for stop in range(start + 1, 7)]
        self.check(student, [(columns, each) for each in places])
        self.check(student, [(columns, [(0, 1), (2, 3), (5, 6)]), (((4, 5), (7, 20)), [(0, 3), (9, 13)])])

    def test_runs_that_touch(self, student):
        self.check(student, [(((0, 12),), [(0, 3), (3, 5), (7, 8)]), (((0, 4), (4, 8)), [(2, 6)])])
        self.check(student, [(((4, 8), (8, 9), (20, 22)), [(0, 1), (1, 5), (5, 7)])])

    def test_runs_that_do_not_ascend(self, student):
        """An expert's units come head by head."""
        self.check(
            student, [(((8, 12), (0, 4)), [(2, 6)]), (((8, 12), (4, 8)), [(0, 8)]), (((5, 6), (0, 5)), [(0, 3)])]
        )

    def test_nothing(self, student):
        self.check(student, [((), []), (((0, 12),), []), (((3, 9),), [(2, 2)]), (((0, 6),), [(0, 0), (2, 4), (5, 5)])])
        self.check(student, [((), [(0, 0)])])

    def test_cuts_of_cuts(self, student):
        """Heads of a matrix, then a part of its columns, then a stretch of that."""
        for shape in ((4, 6), (8, 3), (1, 12), (2, 2, 6)):
            full = np.arange(np.prod(shape)).reshape(shape)
            for part in (full[: len(full) // 2], full[..., 1:-1], full[..., ::2], full[::-1]):
                size, length = part.size, part.shape[-1]
                rows = [(start, start + length // 2) for start in range(0, size, length)]
                stretches = [[(0, size // 3)], [(size // 3, size)], [(size - 1, size)]]
                self.check(student, [(runs_of(part), each) for each in [rows, *stretches]])

    def test_trains_a_transformer(self, student, warm_ranks):
        check_saving(student, warm_ranks, ["part_of_runs"], ("dp=3,zero=3", "dp=3,zero=1"), ("tp=2", "zero=3,dp=2"))


# 12.4


def writers_by_hand(held) -> list[set[str]]:
    elements, chosen, seen = [0] * len(held), [set() for _ in held], []
    for parts in held:
        for name, runs in parts.items():
            runs = [list(run) for run in runs]
            if (name, runs) in seen:
                continue
            seen.append((name, runs))
            having = [
                rank for rank, other in enumerate(held) if name in other and [list(r) for r in other[name]] == runs
            ]
            least = min(elements[rank] for rank in having)
            writer = next(rank for rank in having if elements[rank] == least)
            chosen[writer].add(name)
            elements[writer] += len(places_of(tuple(map(tuple, runs))))
    return chosen


def replicas(ranks: int, sizes: dict[str, int]) -> list[dict]:
    return [{name: ((0, size),) for name, size in sizes.items()} for _ in range(ranks)]


def run_writers(world, module, cases):
    """Return what each rank chooses, and whether it left the argument as it was."""
    seen = []
    for held in cases:
        before = repr(held)
        seen.append((module.writers(held), repr(held) == before))
    return seen


@answers("minidist.train.checkpoint.saver:writers")
@pytest.mark.task(
    "12.4",
    points=3,
)
class TestWriters:
    """writers: who saves what, once each and evenly"""

    def check(self, student, cases) -> None:
        for rank, one in enumerate(student.on_ranks(2, run_writers, cases)):
            for held, (found, kept) in zip(cases, one.value, strict=True):
                what = f"writers, {len(held)} ranks, {len({name for parts in held for name in parts})} parameters"
                assert kept, f"{what}: expected held unmodified"
                is_sets = isinstance(found, list) and len(found) == len(held) and all(type(s) is set for s in found)
                assert is_sets, f"{what}: expected a list of {len(held)} sets, got {found!r:.80}"
                right = writers_by_hand(held)
                for owner, (mine, expected) in enumerate(zip(found, right, strict=True)):
                    assert mine == expected, (
                        f"{what}, computed on rank {rank}: rank {owner} saves {sorted(expected)}, got {sorted(mine)}"
                    )

    def test_replicas(self, student):
        """All ranks have all: shared out evenly."""
        sizes = {f"p{n}": int(size) for n, size in enumerate(generator(3).integers(1, 50, 20))}
        self.check(student, [replicas(ranks, sizes) for ranks in (1, 2, 3, 5)])
        self.check(student, [replicas(2, {"large": 100, "a": 1, "b": 60, "c": 30, "d": 20})])

    def test_ties(self, student):
        self.check(student, [replicas(4, dict.fromkeys("abcdefg", 5)), replicas(3, {"a": 2, "b": 1, "c": 1, "d": 1})])

    def test_shards(self, student):
        """Parts of one parameter that differ: each of them is saved."""
        zero = [{"a": ((0, 4),), "b": ()}, {"a": ((4, 8),), "b": ((0, 2),)}, {"a": ((8, 9),), "b": ((2, 9),)}]
        tensor = [{"a": ((n * 4, n * 4 + 4), (n * 4 + 20, n * 4 + 24)), "norm": ((0, 8),)} for n in (0, 1, 0, 1)]
        alike = [{"a": ((0, 2), (4, 6))}, {"a": ((0, 2), (8, 10))}, {"a": ((4, 6), (0, 2))}, {"b": ((0, 2), (4, 6))}]
        self.check(student, [zero, tensor, tensor[:2], tensor[::-1], alike])

    def test_pipelines(self, student):
        """Ranks have other parameters, in other numbers, and some have none."""
        stages = [{"a": ((0, 9),), "b": ((0, 4),)}, {"c": ((0, 3),), "b": ((0, 4),)}, {"c": ((0, 3),)}, {}]
        self.check(student, [stages, stages[::-1], [{}, {}], [{"a": ((0, 9),)}, {}]])

    def test_any(self, student):
        """Small parts, so that ranks are often even, with different numbers of them."""
        cases = []
        for n in range(30):
            random = generator(12, 4, n)
            held = []
            for rank, row in enumerate(random.integers(0, 2, (2 + n % 4, 9))):
                names = np.flatnonzero(row).tolist()
                held.append({f"p{name}": ((rank % 2, rank % 2 + name % 4),) for name in names})
            cases.append(held)
        self.check(student, cases)

    def test_as_it_comes_from_json(self, student):
        held = [{"a": ((0, 4), (8, 12)), "b": ((0, 6),)}, {"a": ((0, 4), (8, 12)), "b": ((6, 9),)}]
        self.check(student, [json.loads(json.dumps(held)), json.loads(json.dumps(replicas(3, {"a": 3, "b": 2})))])

    def test_trains_a_transformer(self, student, warm_ranks):
        check_saving(student, warm_ranks, ["writers"], ("dp=3", "dp=3,zero=3"), ("tp=2", "cp=2"))


# 12.5

WAYS = ("whole", "rows", "columns", "stretches of columns", "one by one", "any order")


def slices_in(way: str, shape: tuple[int, int], ranks: int) -> list[np.ndarray]:
    """An array cut for ranks: the places that each of them has, in its order."""
    full = np.arange(shape[0] * shape[1]).reshape(shape)
    if way == "whole":
        return [full.ravel()]
    if way == "rows":
        return [part.ravel() for part in np.array_split(full, ranks)]
    if way == "columns":
        return [part.ravel() for part in np.array_split(full, ranks, axis=1)]
    if way == "stretches of columns":
        return [some for part in np.array_split(full, 2, axis=1) for some in np.array_split(part.ravel(), ranks)]
    if way == "one by one":
        return [full.ravel()[rank::ranks] for rank in range(ranks)]
    return np.array_split(generator(*shape).permutation(full.size), ranks)


def common(wanted: Runs, there: Runs) -> list[tuple[int, int, int]]:
    """Return what two parts have in common for each pair of runs, counted by hand."""
    found, place = [], 0
    for first in wanted:
        other = 0
        for second in there:
            both = sorted(set(range(*first)) & set(range(*second)))
            if both:
                found.append((place + both[0] - first[0], other + both[0] - second[0], len(both)))
            other += second[1] - second[0]
        place += first[1] - first[0]
    return found


def run_overlaps(world, module, cases):
    return [[tuple(each) for each in module.overlaps(*case)] for case in cases]


def run_read_part(world, module, cases, values):
    """Return each case's result, and what was read: (file, name, start, stop)."""
    seen = []
    for entry, name, runs in cases:
        reads: list[tuple] = []
        stored = {part.file: values[places_of(part.runs)].astype(entry.dtype) for part in entry.slices}

        def read(file, array, start, stop, stored=stored, reads=reads):
            reads.append((file, array, int(start), int(stop)))
            part = stored[file][start:stop].view()
            part.flags.writeable = False  # as of a file that is mapped into memory
            return part

        try:
            found = module.read_part(entry, name, runs, read)
        except BadCheckpoint as error:
            found = f"BadCheckpoint: {error}"
        seen.append((found, reads))
    return seen


@answers("minidist.parallel.tools.regions:overlaps", f"{RESTORE}:read_part")
@pytest.mark.task(
    "12.5",
    points=4,
)
class TestResharding:
    """overlaps and read_part: any layout reads what any other wrote, and no element more than it needs"""

    def check_overlaps(self, student, cases) -> None:
        for case, found in zip(cases, student.on_ranks(1, run_overlaps, cases)[0].value, strict=True):
            right = common(*case)
            assert found == right, f"overlaps{case}: expected {right}, got {found!s:.200}"

    def test_overlaps(self, student):
        self.check_overlaps(
            student,
            [
                (((0, 12),), ((0, 12),)), (((0, 12),), ((3, 5), (8, 9))), (((3, 5), (8, 9)), ((0, 12),)),
                (((0, 4),), ((4, 8),)), (((0, 4), (8, 12)), ((2, 10),)), (((2, 6),), ((0, 3), (4, 5), (5, 9))),
                (((8, 12), (0, 4)), ((2, 10),)), (((0, 4),), ((8, 12), (2, 4), (0, 1))), ((), ((0, 3),)),
                (((0, 3),), ()), (((5, 6),), ((0, 9),)),
            ],
        )  # fmt: skip

    def test_overlaps_of_layouts(self, student):
        cases = []
        for one, other in product(WAYS, WAYS):
            cases += [
                (runs_of(a), runs_of(b))
                for a in slices_in(one, (4, 6), 2)[:2] for b in slices_in(other, (4, 6), 3)[-2:]
            ]  # fmt: skip
        self.check_overlaps(student, cases)

    def check_read(self, student, cases, values: np.ndarray) -> None:
        seen = student.on_ranks(1, run_read_part, cases, values)[0].value
        for (entry, name, runs), (found, reads) in zip(cases, seen, strict=True):
            files = {part.file: part.runs for part in entry.slices}
            what = f"read_part, runs {runs!s:.60} of {entry.shape}, from {len(files)} files"
            same(found, values[places_of(runs)].astype(entry.dtype), what)
            least = 0
            for file, there in files.items():
                overlapping = common(runs, there)
                least += len(overlapping)
                needed = sorted(place for _, start, length in overlapping for place in range(start, start + length))
                taken = sorted(
                    place for where, _, start, stop in reads if where == file for place in range(start, stop)
                )
                assert taken == needed, (
                    f"{what}: expected {len(needed)} elements read from {file}, each once, got {len(taken)}"
                )
            assert {array for _, array, _, _ in reads} <= {name}, f"{what}: expected reads of {name} only"
            assert len(reads) <= least, f"{what}: expected {least} reads, got {len(reads)}"

    def cases(self, shape: tuple[int, int], dtype: str = "float32") -> list[tuple]:
        found = []
        for written, wanted in product(WAYS, WAYS):
            slices = [Slice(f"rank-{n}", runs_of(part)) for n, part in enumerate(slices_in(written, shape, 3))]
            entry = ArrayEntry(shape, dtype, tuple(slices))
            found += [(entry, "exp_avg.weight", runs_of(part)) for part in slices_in(wanted, shape, 2)]
        return found

    def test_read(self, student):
        self.check_read(student, self.cases((4, 6)), generator(1).standard_normal(24))

    def test_uneven_parts(self, student):
        self.check_read(student, self.cases((5, 7)), generator(2).standard_normal(35))
        self.check_read(student, self.cases((1, 4)), generator(3).standard_normal(4))

    def test_dtypes(self, student):
        """More digits than float32 has, or float64 for integers."""
        for dtype, longer in (("float64", (1 << 30) + 1), ("int64", (1 << 50) + 1), ("float16", 1)):
            self.check_read(student, self.cases((4, 6), dtype)[:20], longer * generator(4).integers(-999, 999, 24))

    def test_nothing_to_read(self, student):
        entry = ArrayEntry((4, 6), "float32", (Slice("rank-0", ((0, 24),)),))
        self.check_read(student, [(entry, "a", ()), (entry, "a", ((3, 3),)[:0])], generator(5).standard_normal(24))

    def test_missing(self, student):
        """Elements that no file has are named, and nothing is made up; those not needed here may be missing."""
        values = generator(6).standard_normal(24)
        entry = ArrayEntry((4, 6), "float32", (Slice("rank-0", ((0, 6), (12, 18))), Slice("rank-2", ((19, 24),))))
        self.check_read(student, [(entry, "w", ((2, 6),)), (entry, "w", ((13, 18), (20, 23)))], values)
        cases = [(entry, "blocks.0.weight", runs) for runs in (((0, 24),), ((5, 7),), ((18, 19),), ((14, 20),))]
        seen = student.on_ranks(1, run_read_part, cases, values)[0].value
        for (_, _, runs), (found, _) in zip(cases, seen, strict=True):
            assert isinstance(found, str), f"read_part, runs {runs}: expected BadCheckpoint, got {found!r:.60}"

    def test_trains_a_transformer(self, student, warm_ranks):
        check_saving(student, warm_ranks, ["read_part"], ("dp=2,zero=3", "tp=2"), ("tp=2", "pp=2"))


# 12.6


def state_after(step: int) -> dict[str, np.ndarray]:
    """Return the state of a run after ``step`` steps."""
    return {
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3) + step,
        "exp_avg.weight": np.full((2, 3), 10 * step, np.float32),
        "bias": np.full(2, -step, np.float64),
    }


class Background:
    """Runs a function some steps after it was started: a thread behind training, on a slow disk."""

    def __init__(self, steps: int) -> None:
        self.steps, self.waiting = steps, []

    def start(self, function):
        entry = {"left": self.steps, "function": function, "ended": False}
        self.waiting.append(entry)
        self.run_due()
        return lambda: entry["ended"]

    def after_step(self) -> None:
        for entry in self.waiting:
            entry["left"] -= 1
        self.run_due()

    def run_due(self) -> None:
        for entry in self.waiting:
            if entry["left"] <= 0 and not entry["ended"]:
                entry["function"]()
                entry["ended"] = True


def run_saver(world, module, every, delay, steps):
    """Cut the power in every operation of a run that saves behind training; as ``cut_everywhere``, with the last step.

    Also returns the operations in all calls of ``save``.

    The state after a step is changed in place by the next one, and the write may come long after that.
    """
    seen = []
    for moment in range(10_000):
        disk = prepared({}, "")
        disk.power_fails_at = len(disk.operations) + moment
        background, state, last, in_save = Background(delay), state_after(0), 0, []
        try:
            saver = module.BackgroundSaver(disk, ROOT, background.start)
            for step in range(1, steps + 1):
                for name, array in state_after(step).items():
                    state[name][...] = array
                background.after_step()
                saver.after_step()
                last = step
                if step % every == 0 and saver.name is None:
                    before = len(disk.operations)
                    saver.save(step, state)
                    in_save += [name for name, *_ in disk.operations[before:]]
        except PowerFailure:
            pass
        cut = len(disk.operations) > disk.power_fails_at
        operation = " ".join(map(str, disk.operations[-1])) if cut else "no operation"
        states = {}
        for survival, left in disk.left():
            found = tree(left)
            states.setdefault(repr(found), (survival, found))
        seen.append((last, operation, list(states.values())))
        if not cut:
            return seen, in_save
    raise AssertionError("the run never ends")


@pytest.mark.task(
    "12.6",
    points=4,
    kind="debugging",
)
class TestBackgroundSaver:
    """BackgroundSaver: values of another step, and checkpoints that are gone. Find out why and fix it"""

    def check(self, student, every: int, delay: int, steps: int = 9) -> None:
        seen, in_save = student.on_ranks(1, run_saver, every, delay, steps)[0].value
        wait = max(1, delay)  # steps until a save is a checkpoint
        saved = list(range(every, steps, every * -(-wait // every)))
        for last, operation, states in seen:
            promised = [step for step in saved if step + wait <= last]
            moment = "at the end" if operation == "no operation" else f"power fails in step {last + 1}: {operation}"
            for survival, state in states:
                where = f"writes take {delay} steps, {moment}; left: {survival}"
                self.check_state(state, where, promised)
        there = [path for path in seen[-1][2][0][1] if path.endswith("/manifest.json")]
        assert len(there) == 1, f"writes take {delay} steps: expected one checkpoint at the end, got {there}"
        assert not delay or "write" not in in_save, "save writes a file itself: expected training to go on meanwhile"

    def check_state(self, state: dict, where: str, promised: list[int]) -> None:
        there = [path.split("/")[-2] for path in state if path.endswith("/manifest.json")]
        for name in there:
            content = files_in(state, name).get("rank-0.safetensors")
            assert content, f"{where}: {name} is a checkpoint, but its file is {in_words(content)}"
            step = int(name.removeprefix("step-"))
            try:
                arrays = decode(content)
            except Exception as error:
                raise AssertionError(f"{where}: the file of {name} cannot be read: {error}") from None
            right = state_after(step)
            assert arrays.keys() == right.keys(), f"{where}: {name} has {sorted(arrays)}"
            for key, array in right.items():
                same(arrays[key], array, f"{where}: {key} after step {step}")
        points_to = state.get(str(ROOT / "latest"))
        assert points_to is None or points_to.decode() in there, (
            f"{where}: latest points to {points_to!r}, and there are {there}"
        )
        if promised:
            newest = max((int(name.removeprefix("step-")) for name in there), default=None)
            assert newest is not None and newest >= promised[-1], (
                f"{where}: step {promised[-1]} was saved, but the newest checkpoint is of {newest}"
            )

    def test_writes_that_end_at_once(self, student):
        self.check(student, every=2, delay=0)

    def test_writes_that_take_a_step(self, student):
        self.check(student, every=2, delay=1)

    def test_slow_writes(self, student):
        self.check(student, every=3, delay=2)
        self.check(student, every=4, delay=4)

    def test_saves_after_every_step(self, student):
        self.check(student, every=1, delay=1, steps=5)

    def test_writes_that_are_slower_than_saves_are_due(self, student):
        self.check(student, every=2, delay=3, steps=11)


# 12.7

LLAMA = 54 * 24.0, 16_384, 419  # hours, GPUs, unexpected interruptions
MTBFS = (3.09 * 3600, 50_677.0 * 3600, 100.0, 1.0)


def expected_time(mtbf: float, length: float, lost: float) -> float:
    """The mean time to get through ``length`` without a failure, where each failure costs ``lost`` more.

    It solves E = exp(-T/M) T + integral over 0 to T of (t + lost + E) exp(-t/M) / M dt, by Gauss-Legendre quadrature.
    """
    nodes, weights = np.polynomial.legendre.leggauss(60)
    times, weights = (nodes + 1) * length / 2, weights * length / 2
    density = np.exp(-times / mtbf) / mtbf
    failing = float(np.sum(weights * density))
    return (exp(-length / mtbf) * length + float(np.sum(weights * density * (times + lost)))) / (1 - failing)


@answers("minidist.plan.goodput")
@pytest.mark.task(
    "12.7",
    points=4,
    kind="worksheet",
)
class TestHowOftenToSave:
    """How often to save: the time between failures, Young's interval, waste and goodput"""

    def test_of_one_gpu(self, student):
        cases = {LLAMA: 54 * 24 * 16_384 / 419, (10.0, 1, 5): 2.0, (7.0, 3, 1): 21.0, (1e6, 100_000, 30): 1e11 / 30}
        check_numbers(student, "gpu_mtbf", cases, "all GPUs' hours, for each failure")

    def test_of_a_cluster(self, student):
        cases = {(mtbf, gpus): mtbf / gpus for mtbf in MTBFS for gpus in (1, 3, 8, 16_384, 100_000)}
        check_numbers(student, "cluster_mtbf", cases, "any of its GPUs may fail")

    def test_nothing_fails(self, student):
        """The oracle is the limit of many short times, in each of which a failure is unlikely."""
        cases = {
            (mtbf, time): float(np.exp(-np.float64(time) / mtbf))
            for mtbf in MTBFS for time in (0.0, mtbf / 1000, mtbf / 2, mtbf, 5 * mtbf)
        }  # fmt: skip
        check_numbers(student, "no_failure_probability", cases, "failures have no memory")

    def test_waste(self, student):
        """Counted over a long time, in which failures come just in the middle of an interval."""
        cases = {}
        for mtbf, interval, pause, recovery in (
            (11_124.0, 1158.0, 60.0, 0.0), (11_124.0, 1158.0, 60.0, 300.0), (100.0, 10.0, 1.0, 5.0),
            (100.0, 40.0, 1.0, 0.0), (7.0, 3.0, 0.0, 2.0),
        ):  # fmt: skip
            useful = mtbf * interval * 1000
            saves, failures = useful / interval, useful / mtbf
            cases[mtbf, interval, pause, recovery] = (saves * pause + failures * (interval / 2 + recovery)) / useful
        check_numbers(
            student, "first_order_waste", cases, "saves, and half an interval and a recovery for each failure"
        )

    def test_interval(self, student):
        cases = {(mtbf, pause): 0.0 for mtbf in MTBFS for pause in (0.01, 10.0, 60.0, 300.0)}
        for mtbf, pause in cases:  # where a little more and a little less waste the same: at the minimum
            low, high = 1e-9, 1e9
            for _ in range(200):
                middle = (low * high) ** 0.5
                slope = -pause / middle**2 + 1 / (2 * mtbf)
                low, high = (middle, high) if slope < 0 else (low, middle)
            cases[mtbf, pause] = low
        check_numbers(student, "young_interval", cases, "the one with the least waste")

    def test_longest_pause(self, student):
        """The waste gives the pause, and the pause the waste."""
        cases = {}
        for mtbf, pause in product(MTBFS, (0.01, 1.0, 60.0)):
            interval = (2 * pause * mtbf) ** 0.5
            cases[mtbf, pause / interval + interval / (2 * mtbf)] = pause
        for args, found in zip(cases, student.call_each("longest_pause", list(cases)), strict=True):
            # the waste that is lent is rounded, and its square more so
            assert found == pytest.approx(cases[args], rel=1e-9), (
                f"longest_pause{args}: expected {cases[args]:.6g}, with which the best interval wastes as much, got "
                f"{found!r:.40}"
            )

    def test_goodput(self, student):
        """Integrated over the time of the failure, for the recovery and for the interval with its save."""
        cases = {}
        for mtbf, interval, pause, recovery in (
            (11_124.0, 1158.0, 60.0, 0.0), (11_124.0, 1158.0, 60.0, 300.0), (11_124.0, 2580.0, 300.0, 900.0),
            (100.0, 10.0, 1.0, 50.0), (100.0, 150.0, 20.0, 0.0), (1.0, 1.0, 1.0, 1.0),
        ):  # fmt: skip
            recovered = expected_time(mtbf, recovery, 0.0) if recovery else 0.0
            cases[mtbf, interval, pause, recovery] = interval / expected_time(mtbf, interval + pause, recovered)
        check_numbers(student, "goodput", cases, "an interval, of the mean time until it is trained and saved")


# 12.8

LAYOUTS = (
    "dp=1", "dp=2", "dp=3", "dp=4", "dp=5", "tp=2", "dp=3,tp=2", "cp=2", "dp=2,cp=2,tp=2", "pp=2", "pp=3", "pp=2,dp=2",
    "pp=2,schedule=naive", "pp=4,schedule=naive,tp=2", "pp=2,virtual=2", "pp=3,virtual=2", "pp=4,schedule=gpipe",
    "pp=2,schedule=zb-h1", "dp=2,zero=3", "dp=4,schedule=1f1b", "pp=2,stages=3+1",
)  # fmt: skip


def run_step_time(world, module, cases):
    found = [module.step_time(*case) for case in cases]
    return [(each.numerator, each.denominator) if type(each) in (int, Fraction) else repr(each) for each in found]


@answers("minidist.train.resilience.shrink:step_time")
@pytest.mark.task(
    "12.8",
    points=3,
)
class TestStepTime:
    """step_time: which layout is the best of those that are left?"""

    def check(self, student, config: TrainConfig, texts) -> None:
        """Every layer of every micro-batch on every rank, counted."""
        cases = [(config, Layout.parse(text)) for text in texts]
        for text, (_, layout), found in zip(
            texts, cases, student.on_ranks(1, run_step_time, cases)[0].value, strict=True
        ):
            dealt = [0] * layout.dp
            for number in range(config.micro_batches):
                dealt[number % layout.dp] += 1
            layers = [0] * layout.pp
            for stage, count in enumerate(config.stages(layout)):
                layers[stage % layout.pp] += count
            one = Fraction(max(layers), config.layers) / layout.tp / layout.cp  # a micro-batch on the fullest rank
            right = max(dealt) * one
            if layout.schedule == "naive":
                right *= layout.pp
            else:
                right += (layout.pp - 1) * one / layout.virtual  # waiting for what goes through one stage at a time
            what = f"step_time, {config.layers} layers, {config.micro_batches} micro-batches, {text}"
            assert not isinstance(found, str), f"{what}: expected a Fraction, got {found:.60}"
            assert Fraction(*found) == right, f"{what}: expected {right}, got {Fraction(*found)}"

    def config(self, layers: int, micro_batches: int) -> TrainConfig:
        return TrainConfig(
            layers=layers, heads=4, width=16, sequence_chunks=2, global_batch=micro_batches, micro_batch=1
        )

    def test_data_parallel(self, student):
        self.check(student, self.config(4, 12), ["dp=1", "dp=2", "dp=3", "dp=4", "dp=12", "dp=2,zero=3"])
        self.check(student, self.config(4, 12), ["dp=5", "dp=7", "dp=8", "dp=11"])

    def test_all_layouts(self, student):
        stages = [text for text in LAYOUTS if "stages" not in text]
        self.check(student, self.config(12, 8), stages)
        self.check(student, self.config(4, 8), [text for text in LAYOUTS if text != "pp=3,virtual=2"])

    def test_layers_that_do_not_divide(self, student):
        self.check(student, self.config(5, 6), ["pp=2", "pp=3", "pp=2,virtual=2", "pp=4,schedule=naive", "pp=5"])
        self.check(student, self.config(7, 6), ["pp=2,virtual=3", "pp=3,virtual=2", "pp=4,dp=2", "pp=3,tp=4,cp=2"])
        self.check(student, self.config(8, 6), ["pp=2,virtual=3", "pp=3,virtual=2", "pp=6"])

    def test_exact(self, student):
        """A third and two sixths are equal."""
        self.check(student, self.config(3, 7), ["dp=3", "pp=3", "dp=3,tp=2", "dp=7", "tp=4", "pp=3,tp=2"])

    def test_chooses_a_layout(self, student):
        """A run that has lost ranks goes on with the layout that the library would choose."""
        cases = []
        for text, ranks in (
            ("dp=4", 3),
            ("tp=2,dp=2", 3),
            ("pp=2,dp=2", 3),
            ("cp=2,dp=2", 3),
            ("dp=8", 7),
            ("tp=4", 3),
        ):
            cases += [
                (self.config(6, 8), Layout.parse(text), ranks),
                (self.config(4, 12), Layout.parse(text), ranks - 1),
            ]
        found, calls = student.on_ranks(1, run_best_layout, cases)[0].value
        assert calls, "the choice of a layout has not called step_time"
        for (config, layout, ranks), new in zip(cases, found, strict=True):
            right = str(best_layout(config, layout, ranks))
            assert new == right, f"{layout}, {ranks} ranks left, {config.layers} layers: expected {right}, got {new}"


def run_best_layout(world, module, cases):
    from minidist import overrides

    overrides.override({"step_time": module.step_time})
    try:
        return [str(best_layout(*case)) for case in cases], overrides.calls["step_time"]
    finally:
        overrides.override({})


# 12.9


def share_recoverable(machines: int, failures: int, holders) -> float:
    """Over all choices of failures, whether every part has a machine left; ``holders(part)`` are those that have it."""
    parts = [set(holders(part)) for part in range(machines)]
    choices = list(combinations(range(machines), failures))
    return sum(not any(part <= set(choice) for part in parts) for choice in choices) / len(choices)


@answers("minidist.plan.goodput")
@pytest.mark.task(
    "12.9",
    points=3,
    kind="worksheet",
)
class TestPeerCopies:
    """Copies in the memory of others: what can be recovered, and what it takes"""

    def test_in_groups(self, student):
        cases = {}
        for machines, copies in ((4, 2), (6, 2), (6, 3), (8, 4), (9, 3), (16, 2), (12, 2), (5, 1), (3, 3), (2, 2)):
            for failures in range(min(machines, 6) + 1):
                cases[machines, copies, failures] = share_recoverable(
                    machines, failures, lambda part, c=copies: range(part // c * c, part // c * c + c)
                )
        cases[6, 2, 6] = cases[4, 2, 4] = cases[9, 3, 9] = 0.0
        self.check(student, "recoverable_in_groups", cases)

    def test_in_a_ring(self, student):
        cases = {}
        for machines in (3, 4, 5, 7, 8, 12, 16):
            for failures in range(min(machines, 6)):
                cases[machines, failures] = share_recoverable(
                    machines, failures, lambda part, n=machines: (part, (part + 1) % n)
                )
        self.check(student, "recoverable_in_a_ring", cases)

    def check(self, student, name: str, cases) -> None:
        """The answers sum numbers far below 2^53, so they are right up to a few roundings."""
        for args, found in zip(cases, student.call_each(name, list(cases)), strict=True):
            assert isinstance(found, int | float), f"{name}{args}: expected a number, got {found!r:.40}"
            assert found == pytest.approx(cases[args], rel=FLOAT64, abs=FLOAT64), (
                f"{name}{args}: {compared(cases[args], found, ', counted over all choices of machines')}"
            )

    def test_bytes(self, student):
        cases = [(1600, 16, 2), (10**12, 128, 3), (7, 2, 1), (90, 3, 3)]
        for (state, machines, copies), found in zip(cases, student.call_each("copies_bytes", cases), strict=True):
            part = Fraction(state, machines)
            right = float(sum(part for _ in range(copies))), float(sum(part for _ in range(copies - 1)))
            assert isinstance(found, tuple) and found == pytest.approx(right, rel=FLOAT64), (
                f"copies_bytes({state}, {machines}, {copies}): expected {right}, got {found!r:.60}"
            )


# 12.10


def slow_by_hand(seconds: np.ndarray, threshold: float) -> dict[int, float]:
    times = [median(column) for column in seconds.T.tolist()] if len(seconds) else []
    found = {}
    for rank, time in enumerate(times):
        others = times[:rank] + times[rank + 1 :]
        if others and time / median(others) > threshold:
            found[rank] = time / median(others)
    return found


def noisy(steps: int, factors, noise: float = 0.1) -> np.ndarray:
    """Times of ranks of which some are slow: (steps, ranks)."""
    random = generator(steps, len(factors))
    return np.array(factors) * (1 + noise * random.random((steps, len(factors)))) / 50


def run_slow(world, module, cases):
    seen = []
    for seconds, *threshold in cases:
        lent = seconds.copy()
        found = module.slow_ranks(lent, *threshold)
        types = sorted({(type(rank).__name__, type(factor).__name__) for rank, factor in found.items()})
        seen.append((found, types, lent.tobytes() == seconds.tobytes()))
    return seen


def longest(counts, speeds) -> Fraction:
    """Return when the slowest rank ends."""
    return max(Fraction(count) / Fraction(speed) for count, speed in zip(counts, speeds, strict=True))


def soonest(speeds, micro_batches: int) -> Fraction:
    """Return the best end: the first moment at which each rank can have had one, and together all of them."""
    ends = {Fraction(count) / Fraction(speed) for speed in speeds for count in range(1, micro_batches + 1)}
    for end in sorted(ends):
        done = [floor(end * Fraction(speed)) for speed in speeds]
        if min(done) >= 1 and sum(done) >= micro_batches:
            return end
    raise AssertionError("at the last end everything is done")


@answers("minidist.analysis.stragglers:slow_ranks", "minidist.train.resilience.rebalance:deal")
@pytest.mark.task(
    "12.10",
    points=4,
)
class TestStragglers:
    """slow_ranks and deal: who is slow, how much, and what the others can take over"""

    def check(self, student, cases) -> None:
        for case, (found, types, kept) in zip(cases, student.on_ranks(1, run_slow, cases)[0].value, strict=True):
            seconds, threshold = case[0], case[1] if case[1:] else 1.8
            what = f"slow_ranks, {seconds.shape[0]} steps, {seconds.shape[1]} ranks, threshold {threshold}"
            assert kept, f"{what}: expected seconds unmodified"
            right = slow_by_hand(seconds, threshold)
            assert set(types) <= {("int", "float")}, f"{what}: expected Python's int and float, got {types}"
            assert found.keys() == right.keys(), f"{what}: expected ranks {sorted(right)}, got {sorted(found)}"
            for rank, factor in right.items():
                assert found[rank] == pytest.approx(factor, rel=FLOAT64), (
                    f"{what}: the factor of rank {rank}: {compared(factor, found[rank])}"
                )

    def test_one_of_several(self, student):
        slow = (1, 1, 3, 1), (1, 1, 2), (4, 1, 1, 1, 1)
        self.check(student, [(noisy(steps, factors),) for steps in (1, 2, 7) for factors in slow])

    def test_one_of_two(self, student):
        """If the slow rank were among those it is compared with, it would never be slow enough."""
        self.check(student, [(noisy(5, (1, 2)),), (noisy(5, (2.5, 1)),), (noisy(4, (1, 1)),)])

    def test_nobody(self, student):
        """Noise, and all ranks equally slow."""
        self.check(student, [(noisy(9, (1,) * ranks, 0.5),) for ranks in (2, 3, 7)])
        self.check(student, [(noisy(9, (5,) * 4),), (np.ones((3, 4)), 1.0)])

    def test_odd_steps(self, student):
        """One long step of a rank, and a slow rank with one short step, change nothing."""
        once = noisy(7, (1, 1, 1))
        once[3, 1] *= 100
        mostly = noisy(7, (1, 3, 1))
        mostly[5, 1] /= 100
        half = noisy(8, (1, 1, 1))
        half[4:, 2] *= 4
        self.check(student, [(once,), (mostly,), (half,)])

    def test_several_slow(self, student):
        self.check(
            student, [(noisy(5, (1, 3, 1, 4, 1)),), (noisy(5, (3, 3, 1, 1)),), (noisy(6, (2, 1, 2.2, 1, 1, 1)),)]
        )

    def test_thresholds(self, student):
        """A rank at the threshold is not over it."""
        seconds = np.array([[1.0, 1.5, 1.0], [1.0, 1.5, 1.0]])
        self.check(student, [(seconds, 1.5), (seconds, 1.4), (seconds, 1.6), (noisy(5, (1, 1.2, 1)), 1.05)])

    def test_nothing_to_compare(self, student):
        self.check(student, [(np.ones((0, 3)),), (np.ones((5, 1)),), (np.ones((1, 2)),), (np.ones((0, 1)),)])

    def to_deal(self) -> list[tuple[list[float], int]]:
        """Any speeds, and small whole ones, of which many are equal or multiples of each other."""
        cases = [([1.0, 1.0, 1.0], 7), ([1.0, 0.5], 2), ([5.0], 4), ([1.0, 100.0], 8), ([0.125, 0.25, 0.25, 1.0], 10)]
        cases.append(([8.0, 1.0, 1.0, 1.0], 5))  # its share is 3.6, and three others need one each
        cases.append(([4.0, 2.0, 0.25, 0.25, 0.25], 8))  # shares of 4 and 2, and one for each other, are one too many
        for n in range(80):
            random = generator(12, n)
            ranks = 1 + n % 5
            speeds = random.integers(1, 7, ranks) if n % 2 else random.uniform(1, 9, ranks) * 10.0 ** (n % 9 - 4)
            cases.append((speeds.astype(float).tolist(), ranks + int(random.integers(0, 40))))
        return cases

    def test_deal(self, student):
        """Nobody ends later than in the best of all deals."""
        cases = self.to_deal()
        for (speeds, count), found in zip(cases, student.call_each("deal", cases), strict=True):
            what = f"deal({speeds}, {count})"
            proper = isinstance(found, list) and all(type(each) is int for each in found) and len(found) == len(speeds)
            assert proper, f"{what}: expected a list of {len(speeds)} Python integers, got {found!r:.60}"
            assert sum(found) == count and min(found) >= 1, f"{what}: expected {count} in all, each 1, got {found}"
            best = soonest(speeds, count)
            took = longest(found, speeds)
            assert took == best, (
                f"{what}: the slowest rank can end at {float(best):.4g}, with {found} at {float(took):.4g}"
            )

    def test_deal_of_equals(self, student):
        """One after the other, to the rank that would end first; of several to the first."""
        cases = self.to_deal()
        for (speeds, count), found in zip(cases, student.call_each("deal", cases), strict=True):
            right = [1] * len(speeds)
            for _ in range(count - len(speeds)):
                ends = [Fraction(many + 1) / Fraction(speed) for many, speed in zip(right, speeds, strict=True)]
                right[ends.index(min(ends))] += 1
            assert found == right, (
                f"deal({speeds}, {count}): expected {right}, with times (count + 1) / speed, got {found}"
            )

    def test_watches_a_run(self, student):
        """The answer finds what the library's own finds, in a run in which a rank is slow for some steps."""
        rows = noisy(30, (1, 1, 1))
        rows[8:20, 1] *= 3
        right = [(each.rank, each.since, each.until, each.factor) for each in watched(rows.tolist())]
        found, calls = student.on_ranks(1, run_watch, rows.tolist())[0].value
        assert calls, "the watch has not called slow_ranks"
        assert found == right, f"a rank is slow in steps 8 to 19: expected {right}, got {found}"

    def test_trains_a_transformer(self, student, warm_ranks):
        """However micro-batches are dealt out, the bits are those of one process."""
        config, layout = replace(CONFIG, steps=6), Layout.parse("dp=2,zero=2")
        right = run(warm_ranks(1), config, Layout()).fingerprint
        for rank, one in enumerate(student.on_ranks(2, run_rebalanced, config, layout)):
            found, calls = one.value
            assert calls, f"rank {rank}: the run has not called deal"
            assert found == right, (
                f"rank {rank}: with your deal the fingerprint is {found[:8]}, that of one process is {right[:8]}"
            )


def watched(rows) -> list[Straggler]:
    """The stragglers that the library finds in times of three ranks, (steps, ranks)."""
    watch = StragglerWatch([[0, 1, 2]])
    for step, row in enumerate(rows):
        for rank, seconds in enumerate(row):
            watch.add(rank, step, seconds)
    return watch.found


def run_watch(world, module, rows):
    from minidist import overrides

    overrides.override({"slow_ranks": module.slow_ranks})
    try:
        found = [(each.rank, each.since, each.until, each.factor) for each in watched(rows)]
        return found, overrides.calls["slow_ranks"]
    finally:
        overrides.override({})


def run_rebalanced(world, module, config, layout):
    from minidist import overrides
    from minidist.train.trainer import train_rank

    overrides.override({"deal": module.deal})
    try:
        found = train_rank(world, config, layout, RunOptions(rebalance=True)).fingerprint
        return found, overrides.calls["deal"]
    finally:
        overrides.override({})


# 12.11


def run_digests(world, module, cases):
    seen = []
    for array, view in cases:
        lent = viewed(array.copy(), view)
        seen.append((module.digest(lent), np.array_equal(lent.tobytes(), viewed(array, view).tobytes())))
    return seen


def viewed(array: np.ndarray, view: str) -> np.ndarray:
    """The array in that order, or as that dtype: no array of the other byte order comes to a rank as it is."""
    return VIEWS[view](array) if view in VIEWS else array.view(view)


VIEWS = {
    "as it is": lambda array: array,
    "in Fortran's order": np.asfortranarray,
    "every second of twice as many": lambda array: np.repeat(array, 2, axis=0)[::2],
}


def run_first_difference(world, module, cases):
    seen = []
    for a, b in cases:
        lent = a.copy(), b.copy()
        found = module.first_difference(*lent)
        kept = lent[0].tobytes() == a.tobytes() and lent[1].tobytes() == b.tobytes()
        seen.append((found, type(found).__name__, kept))
    return seen


@answers("minidist.train.resilience.vote:odd_ones_out")
@pytest.mark.task(
    "12.11",
    points=4,
)
class TestVote:
    """digest, odd_ones_out and first_difference: which replica is wrong, and where"""

    def digests(self, student, cases) -> list[str]:
        found = []
        for (array, view), (each, kept) in zip(cases, student.on_ranks(1, run_digests, cases)[0].value, strict=True):
            what = f"digest, {array.dtype.str} {array.shape}, {view}"
            assert kept, f"{what}: expected the array unmodified"
            is_hex = isinstance(each, str) and len(each) == 64 and set(each) <= set("0123456789abcdef")
            assert is_hex, f"{what}: expected 64 hexadecimal digits, got {each!r:.80}"
            found.append(each)
        return found

    def test_the_same_bits(self, student):
        for dtype in ("float32", "float64", "int64", "float16"):
            array = generator(5).integers(-99, 99, (40, 60)).astype(dtype)
            cases = [(array, view) for view in VIEWS] + [(array.copy(), "as it is")]
            found = self.digests(student, cases)
            for (_, view), each in zip(cases, found, strict=True):
                assert each == found[0], f"digest, {dtype} (40, 60): expected the same digest {view}"

    def test_other_bits(self, student):
        """One bit of one element anywhere in a large array; zeros of two signs; NaNs that differ."""
        cases = []
        for dtype, word in (("float32", np.uint32), ("float64", np.uint64)):
            large = generator(7).standard_normal((60, 50)).astype(dtype)
            cases.append(large)
            for place in (0, 1499, 2999):
                flipped = large.copy()
                flipped.view(word).reshape(-1)[place] ^= word(1)
                cases.append(flipped)
        cases += [np.zeros(4, np.float32), -np.zeros(4, np.float32), np.array([1.0, 2, 3]), np.array([2.0, 1, 3])]
        cases += [
            np.array([0x7FC00000, 1], np.uint32).view(np.float32),
            np.array([0x7FC00001, 1], np.uint32).view("f4"),
        ]
        self.all_differ(student, cases)

    def test_nan(self, student):
        array = np.array([np.nan, np.inf, -0.0, 1.0])
        first, second = self.digests(student, [(array, "as it is"), (array.copy(), "as it is")])
        assert first == second, "digest: expected two arrays with the same NaN to have the same digest"

    def test_shapes_and_dtypes(self, student):
        bits = generator(9).integers(0, 1 << 30, 12).astype(np.uint32)
        shapes = [bits.reshape(shape) for shape in ((12,), (3, 4), (4, 3), (2, 6), (1, 12), (12, 1))]
        shapes += [bits[:11].reshape(shape) for shape in ((1, 11), (11, 1), (1, 1, 11))]  # 1 and 11 are 11 and 1
        dtypes = [bits.view(dtype) for dtype in ("float32", "int32", "uint16")]
        empty = [np.zeros(shape, np.float32) for shape in ((0,), (0, 3), (3, 0))]
        scalars = [np.array(1.0), np.array([1.0])]
        self.all_differ(student, shapes + dtypes + empty + scalars)
        one, other = self.digests(student, [(bits, "<u4"), (bits, ">u4")])
        assert one != other, "digest: expected other digests of <u4 and >u4, which have the same bytes"

    def all_differ(self, student, arrays) -> None:
        found = self.digests(student, [(array, "as it is") for array in arrays])
        for (n, one), (m, other) in combinations(enumerate(found), 2):
            assert one != other, (
                f"digest: expected other digests of {arrays[n].dtype.str} {arrays[n].shape} {arrays[n].ravel()[:3]} "
                f"and {arrays[m].dtype.str} {arrays[m].shape} {arrays[m].ravel()[:3]}"
            )

    def test_majority(self, student):
        """Every vote of up to five, with three answers."""
        cases = [list(vote) for voters in range(1, 6) for vote in product("abc", repeat=voters)]
        for vote, found in zip(
            cases, student.call_each("odd_ones_out", [(list(vote),) for vote in cases]), strict=True
        ):
            winners = [each for each in set(vote) if vote.count(each) > len(vote) / 2]
            right = [place for place, each in enumerate(vote) if each != winners[0]] if winners else None
            assert found == right and isinstance(found, list | None), (
                f"odd_ones_out({vote}): expected {right}, got {found!r:.60}"
            )

    def test_first_difference(self, student):
        cases = []
        for dtype, word in (("float32", np.uint32), ("float64", np.uint64)):
            for shape in ((7,), (3, 5), (1, 1), (2, 3, 4), ()):
                a = np.array(generator(*shape).standard_normal(shape), dtype)
                cases.append((a, a.copy()))
                for places in ((0,), (a.size - 1,), (a.size // 2, a.size - 1)):
                    b = a.copy()
                    for place in places:
                        b.reshape(-1).view(word)[place] ^= word(1)
                    cases.append((a, b))
            zeros, nans = np.zeros(3, dtype), np.array([1, np.nan, 2, 3], dtype)
            cases += [(zeros, np.array([0, -0.0, 0], dtype)), (nans, nans.copy()), (zeros[:0], zeros[:0])]
            cases += [(nans, np.array([1, np.nan, 2, 4], dtype)), (nans.copy(), np.array([1, 2, 2, 3], dtype))]
            cases += [(nans, (nans.view(word) ^ np.array([0, 1, 0, 0], word)).view(dtype))]  # another NaN
        seen = student.on_ranks(1, run_first_difference, cases)[0].value
        for (a, b), (found, kind, kept) in zip(cases, seen, strict=True):
            word = f"u{a.itemsize}"
            differ = [
                n for n, (x, y) in enumerate(zip(a.ravel().view(word), b.ravel().view(word), strict=True)) if x != y
            ]
            right = differ[0] if differ else None
            what = f"first_difference, {a.dtype} {a.shape}, {a.ravel()[:4]} and {b.ravel()[:4]}"
            assert kept, f"{what}: expected the arrays unmodified"
            assert found == right and kind in ("int", "NoneType"), f"{what}: expected {right}, got {found} ({kind})"

    def test_difference_in_an_array_that_is_not_contiguous(self, student):
        a = np.arange(12.0).reshape(3, 4)
        b = a.copy()
        b[1, 0] = 7.5
        for view in ("in Fortran's order", "every second of twice as many"):
            found = student.on_ranks(1, run_difference_of_views, a, b, view)[0].value
            assert found == 4, f"first_difference, arrays (3, 4) {view}: expected 4, got {found}"

    def test_watches_a_run(self, student, warm_ranks):
        """Three ranks vote after every step. One is outvoted when a bit of its weights flips, and none before."""
        layout = Layout.parse("dp=3")
        right = run(warm_ranks(1), CONFIG, Layout()).fingerprint
        for rank, one in enumerate(student.on_ranks(3, run_checked, CONFIG, layout, ())):
            found, calls = one.value
            assert calls, f"rank {rank}: the run has not called odd_ones_out"
            assert found == right, (
                f"rank {rank}: nothing has flipped: expected the fingerprint {right[:8]}, got {found}"
            )
        flip = (Fault(1, 2, "flip", place="weights"),)
        for rank, one in enumerate(student.on_ranks(3, run_checked, CONFIG, layout, flip)):
            found, _ = one.value
            assert "rank 1" in found and "step 2" in found, (
                f"rank {rank}: a bit of rank 1's weights flips in step 2: expected the run to say so, got {found:.200}"
            )


def run_checked(world, module, config, layout, faults):
    """The fingerprint of a run in which replicas vote after every step, or what it says of its numbers."""
    from minidist import overrides
    from minidist.train.resilience.checks import CorruptedNumbers
    from minidist.train.trainer import train_rank

    overrides.override({"odd_ones_out": module.odd_ones_out})
    try:
        options = RunOptions(check_replicas=1, check_by="vote", faults=faults)
        found = train_rank(world, config, layout, options).fingerprint
    except CorruptedNumbers as error:
        found = str(error)
    finally:
        calls = overrides.calls["odd_ones_out"]
        overrides.override({})
    return found, calls


def run_difference_of_views(world, module, a, b, view):
    return module.first_difference(VIEWS[view](a), VIEWS[view](b))
