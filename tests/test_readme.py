"""What README and the pages in docs/ show is what happens."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from minidist import show
from minidist.cli import main as cli
from minidist.cli.verify import FEW_STEPS, MATRIX_CHUNKS, MATRIX_EXPERTS, MATRIX_LAYERS
from minidist.comm.collectives import ALL_REDUCE
from minidist.course.answers import chapter_names
from minidist.course.tasks import tasks_of
from minidist.parallel.tools.schedules import SCHEDULES
from minidist.show.demos import DEMONSTRATIONS
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.rules import loosened_by
from minidist.verify.comparison import DEFAULT_LAYOUTS, MORE_LAYOUTS, PUBLISHED
from minidist.verify.interruption import covering_interruptions
from minidist.verify.matrix import covering_set, every_combination

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
LIMIT = 300  # seconds for one program


def blocks(page: Path | str, language: str) -> list[str]:
    """The fenced code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT[ROOT / page], re.DOTALL | re.MULTILINE)


def without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", TEXT[page], flags=re.DOTALL | re.MULTILINE)


def run(folder: Path, program: str, *flags: str) -> subprocess.CompletedProcess:
    """Run a program from a file named stuck.py, as one page calls it."""
    script = folder / "stuck.py"
    script.write_text(program, encoding="utf-8")
    command = [sys.executable, "-X", "utf8", *flags, script]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=LIMIT)


def output(folder: Path, program: str) -> str:
    result = run(folder, program)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_counts_of_tasks_and_demonstrations_are_right():
    graders = {int(file.name[7:9]): file.read_text() for file in (ROOT / "tests" / "exercises").glob("test_ch*.py")}
    counts = {chapter: len(re.findall(r"^@pytest\.mark\.task\(", text, re.M)) for chapter, text in graders.items()}
    rows = re.findall(r"^\| \[(\d+)\]\(.*?\) \|.*\| (\d+) \|$", TEXT[ROOT / "docs" / "course.md"], re.MULTILINE)
    assert {int(chapter): int(tasks) for chapter, tasks in rows} == counts
    assert f"{sum(counts.values())} exercises" in TEXT[README]
    assert f"[{len(DEMONSTRATIONS)} mechanisms]" in TEXT[README]
    listed = TEXT[ROOT / "docs" / "demonstrations.md"].split("prints the menu")[1]
    assert set(re.findall(r"`([\w-]+)`", listed)) >= set(DEMONSTRATIONS)


def slug(title: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_links_lead_somewhere_and_names_that_link_to_a_file_are_defined_there():
    wrong = []
    for page, text in ((page, without_blocks(page)) for page in PAGES):
        for target in re.findall(r"\]\(((?!https://)[^)\s]+)\)", text):
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if not file.exists() or (anchor and anchor not in map(slug, re.findall(r"^#+ (.*)", TEXT[file], re.M))):
                wrong.append((page.name, target))
        for name, target in re.findall(r"\[`?([\w\\]+\.py)`?\]\(([^)\s]+\.py)\)", text):
            if name.replace("\\", "") != Path(target).name:
                wrong.append((page.name, name, target))
        for name, target in re.findall(r"\[`([\w.]+)(?<!\.py)`\]\(([^)\s]+\.py)\)", text):
            code = (page.parent / target).read_text(encoding="utf-8")
            if not all(re.search(rf"\b(class|def) {part}\b|^{part} = ", code, re.M) for part in name.split(".")):
                wrong.append((page.name, name, target))
    assert not wrong


def test_files_that_are_named_exist():
    folders = "minidist|tests|benchmarks|chapters|docs|exercises|solutions"
    names = {name for text in TEXT.values() for name in re.findall(rf"`((?:{folders})/[\w/.]*)`", text)}
    assert [n for n in names if not re.search(r"NN_name|/\.backups/", n) and not (ROOT / n).exists()] == []


def commands_of(page: Path) -> list[str]:
    """Every ``minidist`` command line of a page: in its bash blocks, and in backticks in its text."""
    lines = "".join(blocks(page, "bash")).splitlines()
    shell = [part.strip() for line in lines for part in line.partition("#")[0].split("&&")]
    inline = [text.replace("\n", " ") for text in re.findall(r"`(minidist [a-z][^`]*)`", without_blocks(page))]
    return [command for command in (*shell, *inline) if command.startswith("minidist ")]


def test_commands_that_are_shown_are_understood(capsys):
    commands = [(page.name, command) for page in PAGES for command in commands_of(page)]
    assert {("README.md", "minidist verify"), ("README.md", "minidist demo dp")} <= {*commands} and len(commands) > 60
    for page, command in commands:
        arguments = shlex.split(command)[1:]
        try:  # (the text may name a command without its arguments)
            options = cli.build_parser().parse_args(arguments if arguments[1:] else [*arguments, "--help"])
        except SystemExit as end:
            assert end.code == 0, f"{page}: {command}: {capsys.readouterr().err}"  # 0: --help
        else:
            for text in getattr(options, "layouts", []):
                Layout.parse(text)


@pytest.mark.long
def test_programs_print_what_their_pages_say(tmp_path):
    launch, warm, nodes, costs, stuck = blocks("docs/comm.md", "python")
    sums, sent, *times, name = output(tmp_path, launch + warm + nodes + costs).splitlines()
    assert sums == "[" + ", ".join(["array([6., 6., 6., 6.])"] * 4) + "]"
    assert sent == str([16000] * 8) and name == "halving_doubling"
    assert [f"{float(time):.5f}" for time in times] == re.findall(r"# ([\d.]+) s", costs)
    (shown,) = blocks("docs/comm.md", "text")
    result = run(tmp_path, stuck)
    assert result.returncode == 1 and result.stderr.endswith(shown)
    (code,) = blocks("docs/clock.md", "python")
    assert output(tmp_path, code).strip() == code.splitlines()[-1].removeprefix("# ")
    (code,) = blocks("docs/demonstrations.md", "python")  # the player in a notebook
    assert code == "from minidist import show\n\nshow.ring(ranks=4)\n" and callable(show.ring)


@pytest.mark.long
@pytest.mark.parametrize("fsdp", [False, True], ids=["ddp", "fsdp2"])
def test_pytorch_trains_on_the_ring(tmp_path, fsdp):
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'minidist[torch]'")
    program, sharded = blocks("docs/pytorch.md", "python")
    (shown,) = blocks("docs/pytorch.md", "text")
    if fsdp:
        wrapped = "model = DistributedDataParallel(model)\n"
        assert wrapped in program
        program = program.replace(wrapped, sharded).replace("all_reduce_ring", "reduce_scatter_ring")
    result = run(tmp_path, program, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert result.returncode == 0, result.stderr
    assert result.stdout == shown and "leaked" not in result.stderr  # as Python calls shared memory that stays behind


def test_the_page_about_verify_shows_the_layouts_that_are_verified():
    shown, on_every_machine = blocks("docs/verify.md", "text")
    hashes = [line.split()[0] for line in on_every_machine.splitlines()]
    assert hashes == [*PUBLISHED.values(), "Every"] and hashes[0] in TEXT[README]
    layouts = [str(layout) for layout in DEFAULT_LAYOUTS]
    ran = [line.split()[0] for line in shown.splitlines() if line.endswith("  yes")]
    assert sorted(ran) == sorted(layouts) and f"All {len(layouts)} layouts" in shown
    assert f"in {len(layouts)} layouts" in TEXT[README]
    page = TEXT[ROOT / "docs" / "verify.md"]
    assert f"These {len(layouts)} layouts use every axis, schedule and all-reduce algorithm" in page
    used = {part for layout in layouts for part in layout.split(",")} | {"schedule=1f1b"}  # the default, as in pp=2
    assert used >= {f"algorithm={name}" for name in ALL_REDUCE} | {f"schedule={name}" for name in SCHEDULES}
    assert f"`minidist verify --all` runs {len(DEFAULT_LAYOUTS + MORE_LAYOUTS)}." in page
    kept = [layout for layout in DEFAULT_LAYOUTS if not loosened_by(layout)]
    count = len(covering_interruptions(kept, FEW_STEPS))
    assert f" {count} interruptions of the {len(kept)} layouts" in " ".join(page.split())


@pytest.mark.long
def test_legal_combinations_are_as_many_as_the_pages_say(tmp_path):
    config = TrainConfig(layers=MATRIX_LAYERS, sequence_chunks=MATRIX_CHUNKS, experts=MATRIX_EXPERTS)
    everything = every_combination(config, 8)
    page = TEXT[ROOT / "docs" / "verify.md"]
    assert f": {len(everything):,} for this model" in page and f"({len(covering_set(everything))} runs," in page
    flags = "--model=llama3-405b", "--cluster=h100:16384", "--batch-tokens=16M", f"--json={tmp_path / 'plan'}"
    assert cli.main(["plan", *flags]) == 0
    legal = json.loads((tmp_path / "plan").read_text())["search"]["legal"]
    assert f"there are {legal:,} layouts" in TEXT[ROOT / "docs" / "plan.md"]


def test_the_lines_of_the_axes_are_about_those_of_their_files():
    rows = re.findall(r"\]\((minidist/\S+\.py)\) \| (\d+) \|", TEXT[README])
    counts = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file, _ in rows}
    assert len(rows) > 8 and [file for file, lines in rows if abs(int(lines) - counts[file]) > 15] == []


ROW = re.compile(r"^\| (\d+|one \w+) \| ([\d, ]+) \| ([^|]*) ?\| ([\d., to]+) \| (\d+) \|$", re.MULTILINE)  # of a path


def numbered(text: str) -> list[str]:
    """The tasks that a text such as "2.2, 3.3 to 3.5" names."""
    tasks = []
    for part in text.split(", "):
        first, _, last = part.partition(" to ")
        chapter, number = first.split(".")
        tasks += [f"{chapter}.{k}" for k in range(int(number), int((last or first).split(".")[1]) + 1)]
    return tasks


def reading_minutes(chapter: str) -> float:
    (path,) = (ROOT / "chapters").glob(f"{int(chapter):02}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    words = sum(len("".join(cell["source"]).split()) for cell in cells if cell["cell_type"] == "markdown")
    return words / 130 + sum(cell["cell_type"] == "code" for cell in cells) / 2


POINTS = {task.number: task.points for name in chapter_names() for task in tasks_of(name)}


def task_minutes(tasks: list[str]) -> int:
    return sum(min(25, max(10, 5 * POINTS[task])) for task in tasks)


HEAD = re.compile(r"((?:\d+\.\d+(?:, | and | to )?)+)(?: are for a second evening)?, (?:about )?(\d+) minutes")


def test_the_minutes_of_tasks_in_the_heads_of_chapters_are_computed():
    said = []
    for path in sorted((ROOT / "chapters").glob("[0-9]*.ipynb")):
        (head, *_) = json.loads(path.read_text(encoding="utf-8"))["cells"]
        said += HEAD.findall(" ".join("".join(head["source"]).split()))
    computed = [(tasks, str(task_minutes(numbered(tasks.replace(" and ", ", "))))) for tasks, _ in said]
    assert said == computed and len(said) >= 19


def test_the_paths_of_the_course_name_what_exists_and_their_minutes_are_computed():
    page = TEXT[ROOT / "docs" / "course.md"]
    paths, total, semester = ROW.findall(page), 0.0, []
    assert len(paths) == 2 + 12
    for week, chapters, demonstrations, text, minutes in paths:
        chapters, tasks = chapters.split(", "), numbered(text)
        assert set(re.findall(r"`([\w-]+)`", demonstrations)) <= set(DEMONSTRATIONS), week
        assert {task.split(".")[0] for task in tasks} <= set(chapters) and set(tasks) <= set(POINTS), week
        computed = sum(map(reading_minutes, chapters)) + task_minutes(tasks)
        assert abs(int(minutes) - computed) <= 0.06 * computed, (week, minutes, computed)
        if week.isdigit():
            semester += tasks
            total += computed
    assert semester == list(POINTS)
    hours, evenings = map(int, re.search(r"about (\d+) hours, or\s(\d+) evenings of two hours", page).groups())
    assert abs(hours - total / 60) < 2 and abs(2 * evenings - hours) < 2
    assert f"{hours} hours" in TEXT[ROOT / "docs" / "grading.md"]


@pytest.mark.long
def test_the_capstone_ends_on_the_solutions_as_the_page_says(capsys):
    capstone = TEXT[ROOT / "docs" / "course.md"].partition("\n## Capstone\n")[2]
    command, shown = (re.search(rf"^```{kind}\n(.*?)^```", capstone, re.M | re.S)[1] for kind in ("bash", "text"))
    arguments = [*shlex.split(command)[1:], "--steps=2"]
    assert cli.main(["solutions" if word == "exercises" else word for word in arguments]) == 0
    assert shown in capsys.readouterr().out
