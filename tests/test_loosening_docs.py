"""docs/loosening.md shows what was measured: ``python tests/test_loosening_docs.py`` renews its table."""

from pathlib import Path

from minidist.analysis.loosened import Experiment, Method, Run
from minidist.show.figures.loosened import headings, row

PAGE = Path(__file__).parent.parent / "docs" / "loosening.md"


def markdown(experiment: Experiment) -> str:
    """The experiment's table."""
    names = [heading.replace("\n", " ") for heading in headings(experiment)]
    rows = [names, ["---", *["---:"] * (len(names) - 1)], *(row(experiment, method) for method in experiment.methods)]
    return "".join("| " + " | ".join(cell.replace("*", "\\*") for cell in cells) + " |\n" for cells in rows)


def test_the_page_has_the_table_of_the_experiment():
    assert markdown(Experiment.read()) in PAGE.read_text(encoding="utf-8")
    halves = [Method("", "", seconds, [Run(0, [9.0] * 99 + [1.0] * 101, 1.0, 8)]) for seconds in (0.17, 0.5)]
    assert [Experiment([one]).after_seconds(one) for one in halves] == 2 * [([8.2], True)]  # of 100 steps each


def renew() -> None:
    """Write the table in the place of the one that is there."""
    before, rest = PAGE.read_text(encoding="utf-8").split("\n| method |")
    after = rest[rest.index("\n\n") :]
    PAGE.write_text(before + "\n" + markdown(Experiment.read()).rstrip("\n") + after, encoding="utf-8")


if __name__ == "__main__":
    renew()
