"""Which package may import which, read from the source."""

import ast
import re
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import minidist
import minidist.comm

ROOT = Path(minidist.__file__).parent
MAY_IMPORT = {  # a package or file -> the others that it may import
    "comm": "backend trace overrides launched turns",
    "nn": "backend trace overrides ledger flops",
    "data": "files overrides nn",
    "parallel": "backend trace overrides ledger comm nn",
    "train": "backend files trace overrides ledger flops turns comm nn data parallel",
    "plan": "comm nn parallel train",
    "verify": "comm nn parallel train",
    "analysis": "overrides trace comm parallel plan verify",
    "show": "backend files trace overrides ledger comm nn data parallel train plan verify analysis",
    "course": "files comm overrides trace parallel train analysis",
    "pytorch": "overrides comm course",
    "cli": "backend files ledger flops launched __version__ comm nn data parallel train plan verify analysis show "
    "course",
    "__init__": "backend comm",
} | dict.fromkeys("backend trace overrides ledger flops launched files turns".split(), "")  # noqa: SIM905
COURSE = ROOT / "course"
COURSE_MAY_IMPORT = {  # the same within course/
    "tasks": "answers",
    "stubs": "answers dependencies",
    "dependencies": "tasks",
    "sandbox": "answers",
    "grading": "answers tasks",
    "authoring": "answers tasks stubs dependencies sandbox grading",
    "learner": "answers tasks stubs dependencies sandbox grading authoring",
    "challenges": "answers tasks sandbox grading authoring",
    "commands": "answers stubs grading authoring learner challenges",
} | dict.fromkeys(("answers", "__init__"), "")
FILES = sorted(ROOT.rglob("*.py"))


def package_of(file: Path, root: Path = ROOT) -> str:
    """The package, or the file, directly below ``root`` that a file belongs to."""
    return file.relative_to(root).parts[0].removesuffix(".py")


@cache
def imports_of(file: Path) -> set[tuple[str, ...]]:
    """The dotted names that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {(*node.module.split("."), alias.name) for alias in node.names}
    return found


def test_imports_go_downwards():
    """Only backend.py imports CuPy, and the axes do not know each other."""
    wrong = []
    for file in FILES:
        package, family = package_of(file), file.parent.name  # several files may make one family of methods
        for name in imports_of(file):
            beside = name[:2] == ("minidist", "parallel") == ("minidist", package)
            if name[0] == "minidist" and len(name) > 1 and name[1] not in (package, *MAY_IMPORT[package].split()):
                wrong.append(f"{file} imports {'.'.join(name)}")
            if (name[0] == "cupy" and package != "backend") or (beside and name[2] not in ("axis", "tools", family)):
                wrong.append(f"{file} imports {'.'.join(name)}")
            if package == "analysis" and name[0] in ("matplotlib", "PIL", "rich", "textual"):
                wrong.append(f"{file} draws, with {name[0]}")
    for file in COURSE.rglob("*.py"):
        folder = package_of(file, COURSE)
        for name in imports_of(file):
            if name[:2] == ("minidist", "course") and name[2] not in (folder, *COURSE_MAY_IMPORT[folder].split()):
                wrong.append(f"{file} imports {'.'.join(name)}")
    assert wrong == []


def test_no_files_import_each_other_in_a_circle():
    """Imports inside functions count too."""
    modules = {file.relative_to(ROOT.parent).with_suffix("").parts: file for file in FILES}
    modules = {name[:-1] if name[-1] == "__init__" else name: file for name, file in modules.items()}
    graph = {
        name: {found if found in modules else found[:-1] for found in imports_of(file)} & (modules.keys() - {name})
        for name, file in modules.items()
    }
    assert len(graph) > 100 and any(graph.values())
    TopologicalSorter(graph).prepare()  # raises CycleError and names the files


def test_the_model_says_nothing_of_parallelism():
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(ast.parse((ROOT / "nn" / "gpt.py").read_text()))
        if isinstance(node, ast.Name | ast.Attribute)
    }
    assert not {name for name in names if name.lower() in ("group", "world", "rank", "ranks", "all_reduce", "parallel")}


def test_the_package_offers_what_comm_offers_and_what_a_notebook_begins_with():
    """minidist/__init__.py lists the names, because it loads them only when they are used."""
    assert sorted(minidist.__all__) == sorted([*minidist.comm.__all__, "backend", *minidist.WHERE])
    for name, module in minidist.WHERE.items():
        assert getattr(minidist, name).__module__ == f"minidist.{module}"
    stub = {name[-1]: ".".join(name[1:-1]) for name in imports_of(ROOT / "__init__.pyi")}
    assert stub == minidist.WHERE | {"backend": "", "*": "comm"}


def test_no_two_test_files_have_one_name():
    """pytest imports them by their names alone, so it could not collect the second."""
    names = [file.name for file in (ROOT.parent / "tests").rglob("test_*.py")]
    assert not [name for name in names if names.count(name) > 1]


def test_tests_that_the_library_names_exist():
    files = [file for kind in ("*.py", "*.toml") for file in ROOT.rglob(kind)]
    named = {name for file in files for name in re.findall(r"tests/[a-z_/0-9]+\.py", file.read_text(encoding="utf-8"))}
    assert len(named) > 3 and [name for name in named if not (ROOT.parent / name).exists()] == []


def test_every_library_mutant_changes_a_line_that_is_there_once():
    mutants = tomllib.loads((ROOT.parent / "tests" / "library_mutants.toml").read_text(encoding="utf-8"))
    gone = [
        (package, mutant["file"], mutant["line"])
        for package, some in mutants.items()
        for mutant in some
        if (ROOT / package / mutant["file"]).read_text(encoding="utf-8").count(mutant["line"]) != 1
    ]
    assert sum(map(len, mutants.values())) == 60 and not gone


def test_docstrings_stand_alone():
    """Docstrings say what is done or returned: not what it is of, and not that it is the same as something above."""
    kinds = ast.FunctionDef | ast.ClassDef | ast.Module
    opened = [
        (file.name, docstring.split("\n")[0])
        for file in (*FILES, *(ROOT.parent / "solutions").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node) or "")
        if re.match(r"(Of|From|For|In|With|The same|What|Which|Who|Where|How|That|Those)\b", docstring)
    ]
    assert opened == []
