"""The rooms of the project and who may import whom, read from the source."""

import ast
from pathlib import Path

import pytest

import minidist

ROOT = Path(minidist.__file__).parent
MAY_IMPORT = {  # a package or file -> the others that it may import
    "backend": set(),
    "trace": set(),
    "overrides": set(),
    "ledger": set(),
    "flops": set(),
    "comm": {"backend", "trace", "overrides"},
    "nn": {"backend", "trace", "overrides", "ledger", "flops"},
    "parallel": {"backend", "trace", "overrides", "ledger", "comm", "nn"},
    "train": {"backend", "trace", "overrides", "ledger", "flops", "comm", "nn", "parallel"},
    "verify": {"comm", "nn", "parallel", "train"},
    "analysis": {"trace", "comm", "parallel", "verify"},
    "show": {
        "backend", "trace", "overrides", "ledger", "comm", "nn", "parallel", "train", "verify", "analysis",
    },
    "course": {"comm", "overrides", "trace", "train", "analysis"},
    "cli": {
        "backend", "ledger", "flops", "comm", "nn", "parallel", "train", "verify", "analysis", "show", "course",
        "__version__",
    },
    "__init__": {"backend", "comm"},
}  # fmt: skip
FILES = sorted(ROOT.rglob("*.py"))


def room_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


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
    room = room_of(file)
    assert room in MAY_IMPORT, f"{room} is a new room: say here what it may import"
    for name in imports_of(file):
        if name[0] == "minidist" and len(name) > 1 and name[1] != room:
            assert name[1] in MAY_IMPORT[room], f"{file} imports {'.'.join(name)}"
        if name[0] == "cupy":
            assert room == "backend", f"{file} imports cupy"
        if room == "parallel" and name[:2] == ("minidist", "parallel") and name[2] not in ("axis", "tools"):
            pytest.fail(f"{file} imports {'.'.join(name)}: the axes do not know each other")


def test_the_model_says_nothing_of_parallelism():
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(ast.parse((ROOT / "nn" / "gpt.py").read_text()))
        if isinstance(node, ast.Name | ast.Attribute)
    }
    assert not {name for name in names if name.lower() in ("group", "world", "rank", "ranks", "all_reduce", "parallel")}
