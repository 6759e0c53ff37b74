"""docs/plan.md and docs/published_runs.md: their tables are what the planner says now.

``python tests/test_plan_docs.py`` writes them anew.
"""

import re
from pathlib import Path

from minidist.plan.validation.compare import FAMILIES, Comparison, Figure, compare_all, figures_of, summarize

DOCS = Path(__file__).parent.parent / "docs"
WORDS = {"step_seconds": "step, s", "mfu": "MFU, %", "memory_bytes": "memory, GB"}
SCALE = {"step_seconds": 1, "mfu": 100, "memory_bytes": 1e-9}
HEAD = """# Published runs beside their plans

`minidist plan --validate` makes this table; [plan.md](plan.md#held-against-published-runs) says what it means. Where a
step's seconds were not published, they follow from tokens or FLOPs a second, as the authors count them. Sources and
what was inferred are in [published_runs.toml](../minidist/plan/validation/published_runs.toml).
"""


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def three(figure: Figure | None) -> list[str]:
    """Published, planned, error."""
    if figure is None:
        return ["", "", ""]
    scale = SCALE[figure.name]
    return [f"{figure.published * scale:,.3g}", f"{figure.planned * scale:,.3g}", f"{100 * figure.error:+.0f} %"]


def runs_document(compared: list[Comparison]) -> str:
    """All runs, a table for each family."""
    lines = [HEAD]
    for family, words in FAMILIES.items():
        lines += [f"## {family.capitalize()}", "", f"{words}.", ""]
        lines.append(row("run", *(f"{word} | ours | error" for word in WORDS.values())))
        lines.append(row("---", *["---: | ---: | ---:"] * len(WORDS)))
        for one in compared:
            if one.family == family:
                figures = {figure.name: figure for figure in one.figures}
                lines.append(row(one.run.name, *(cell for name in WORDS for cell in three(figures.get(name)))))
        lines.append("")
    return "\n".join(lines)


def errors_table(compared: list[Comparison]) -> str:
    """The errors by family and figure."""
    lines = [row("systems", "figure", "runs", "mean error", "mean size", "worst"), row("---", "---", *["---:"] * 4)]
    for family in FAMILIES:
        for name, figures in figures_of(compared, family).items():
            found = summarize(figures)
            errors = (f"{100 * found.bias:+.1f} %", f"{100 * found.mean:.1f} %", f"{100 * found.worst:+.1f} %")
            lines.append(row(family, WORDS[name].partition(",")[0], str(found.count), *errors))
    return "\n".join(lines)


def errors_of(compared: list[Comparison], beginning: str) -> str:
    """Errors of the step of all runs whose name begins so, in words."""
    figures = [one.figures[0] for one in compared if one.run.name.startswith(beginning) and one.figures]
    found = summarize(figures)
    return f"{len(figures)} steps, mean error {100 * found.bias:+.1f} %, worst {100 * found.worst:+.1f} %"


def written(compared: list[Comparison], text: str) -> str:
    """docs/plan.md with its table and figures as they are now."""
    text = re.sub(r"\| systems \|.*?\n\n", lambda _: errors_table(compared) + "\n\n", text, flags=re.DOTALL)
    figures = sum(len(one.figures) for one in compared)
    count = f"has every run: {len(compared)} of them, {figures} figures"
    text = re.sub(r"has every run: \d+ of them, \d+ figures", count, text)
    for name, words in (("Korthikanti", r"table 5\): "), ("Llama 3 405B", r"table 4\): ")):
        pattern = rf"({words})\d+ steps, mean error [-+.\d]+ %, worst [-+.\d]+ %"
        text = re.sub(pattern, lambda m, name=name: m[1] + errors_of(compared, name), text.replace("\n  ", " \x00"))
        text = text.replace(" \x00", "\n  ")
    return text


def test_the_tables_are_those_of_now():
    compared = compare_all()
    assert (DOCS / "published_runs.md").read_text(encoding="utf-8") == runs_document(compared)
    text = (DOCS / "plan.md").read_text(encoding="utf-8")
    assert errors_table(compared) in text and written(compared, text) == text


def test_the_example_prints_what_it_says(capsys):
    text = (DOCS / "plan.md").read_text(encoding="utf-8")
    code, _, expected = text.partition("```python\n")[2].partition("```")[0].rpartition("# ")
    exec(code, {})
    assert capsys.readouterr().out == expected


if __name__ == "__main__":
    plan, now = DOCS / "plan.md", compare_all()
    plan.write_text(written(now, plan.read_text(encoding="utf-8")), encoding="utf-8")
    (DOCS / "published_runs.md").write_text(runs_document(now), encoding="utf-8")
