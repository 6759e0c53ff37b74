"""Which package may import which, read from the source."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import minidist
import minidist.comm

ROOT = Path(minidist.__file__).parent
MAY_IMPORT = {  # a package or file -> the others that it may import
    "backend": set(),
    "fused": {"backend"},
    "products": {"backend"},
    "reductions": {"backend", "fused"},
    "trace": set(),
    "overrides": set(),
    "ledger": set(),
    "flops": set(),
    "one_thread": set(),
    "launched": set(),
    "files": set(),
    "comm": {"backend", "trace", "overrides", "launched"},
    "nn": {"backend", "fused", "products", "reductions", "trace", "overrides", "ledger", "flops"},
    "parallel": {"backend", "reductions", "trace", "overrides", "ledger", "comm", "nn"},
    "train": {"backend", "files", "trace", "overrides", "ledger", "flops", "comm", "nn", "parallel"},
    "plan": {"comm", "nn", "parallel", "train"},
    "verify": {"comm", "nn", "parallel", "train"},
    "analysis": {"overrides", "trace", "comm", "parallel", "plan", "verify"},
    "show": {
        "backend", "files", "trace", "overrides", "ledger", "comm", "nn", "parallel", "train", "plan", "verify",
        "analysis",
    },
    "course": {"files", "comm", "overrides", "trace", "parallel", "train", "analysis"},
    "pytorch": {"overrides", "comm", "course"},
    "cli": {
        "backend", "ledger", "flops", "comm", "nn", "parallel", "train", "plan", "verify", "analysis", "show", "course",
        "files", "launched", "__version__",
    },
    "__init__": {"backend", "comm", "one_thread"},
}  # fmt: skip
COURSE = ROOT / "course"
COURSE_MAY_IMPORT = {  # the same within course/
    "answers": set(),
    "tasks": set(),
    "readable": set(),
    "verdict_file": {"tasks"},
    "sandbox": {"answers"},
    "source": {"answers", "tasks"},
    "grading": {"answers", "tasks", "readable", "verdict_file"},
    "authoring": {"answers", "tasks", "readable", "verdict_file", "sandbox", "source", "grading"},
    "learner": {"answers", "tasks", "sandbox", "source", "grading", "authoring"},
    "challenges": {"answers", "readable", "sandbox", "grading", "authoring"},
    "commands": {"answers", "source", "grading", "authoring", "learner", "challenges"},
    "__init__": set(),
}
FILES = sorted(ROOT.rglob("*.py"))


def package_of(file: Path, root: Path = ROOT) -> str:
    """The package, or the file, directly below ``root`` that a file belongs to."""
    return file.relative_to(root).parts[0].removesuffix(".py")


def imports_of(file: Path) -> set[tuple[str, ...]]:
    """The dotted names that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {(*node.module.split("."), alias.name) for alias in node.names}
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_go_downwards(file):
    package = package_of(file)
    assert package in MAY_IMPORT, f"{package} is new: add it to MAY_IMPORT"
    for name in imports_of(file):
        if name[0] == "minidist" and len(name) > 1 and name[1] != package:
            assert name[1] in MAY_IMPORT[package], f"{file} imports {'.'.join(name)}"
        if name[0] == "cupy":
            assert package == "backend", f"{file} imports cupy"
        family = file.parent.name  # several files may make one family of methods
        if package == "parallel" and name[:2] == ("minidist", "parallel") and name[2] not in ("axis", "tools", family):
            pytest.fail(f"{file} imports {'.'.join(name)}: the axes do not know each other")


def test_no_files_import_each_other_in_a_circle():
    """Imports inside functions count too."""
    modules = {file.relative_to(ROOT.parent).with_suffix("").parts: file for file in FILES}
    modules = {name[:-1] if name[-1] == "__init__" else name: file for name, file in modules.items()}
    graph = {
        name: {found if found in modules else found[:-1] for found in imports_of(file)} & (modules.keys() - {name})
        for name, file in modules.items()
    }
    assert graph["minidist", "show", "player", "animation"] > {("minidist", "show", "player", "page")}
    TopologicalSorter(graph).prepare()  # raises CycleError and names the files


@pytest.mark.parametrize("file", [f for f in FILES if package_of(f) == "analysis"], ids=lambda file: file.name)
def test_analysis_draws_nothing(file):
    assert not {name[0] for name in imports_of(file)} & {"matplotlib", "PIL", "rich", "textual"}


@pytest.mark.parametrize("file", sorted(COURSE.rglob("*.py")), ids=lambda file: str(file.relative_to(COURSE)))
def test_imports_within_the_course_go_downwards(file):
    folder = package_of(file, COURSE)
    for name in imports_of(file):
        if name[:2] == ("minidist", "course") and name[2] != folder:
            assert name[2] in COURSE_MAY_IMPORT[folder], f"{file} imports {'.'.join(name)}"


@pytest.mark.parametrize("package", sorted(MAY_IMPORT.keys() - {"course", "cli", "pytorch"}))
def test_only_the_command_line_and_the_door_to_pytorch_know_the_course(package):
    files = [file for file in FILES if package_of(file) == package]
    assert [str(file) for file in files if "learner" in file.read_text(encoding="utf-8").lower()] == []


def test_the_model_says_nothing_of_parallelism():
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(ast.parse((ROOT / "nn" / "gpt.py").read_text()))
        if isinstance(node, ast.Name | ast.Attribute)
    }
    assert not {name for name in names if name.lower() in ("group", "world", "rank", "ranks", "all_reduce", "parallel")}


def test_the_package_offers_what_comm_offers():
    """minidist/__init__.py lists the names, because it loads them only when they are used."""
    assert sorted(minidist.__all__) == sorted([*minidist.comm.__all__, "backend"])
    assert all(getattr(minidist, name) is getattr(minidist.comm, name) for name in minidist.comm.__all__)


def test_no_two_test_files_have_one_name():
    """pytest imports them by their names alone, so it could not collect the second."""
    names = [file.name for file in (ROOT.parent / "tests").rglob("test_*.py")]
    assert not [name for name in names if names.count(name) > 1]
