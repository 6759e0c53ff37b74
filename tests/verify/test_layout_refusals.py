"""Any settings are refused, before any rank starts, in one line and always by a ValueError, or run."""

import random
from dataclasses import asdict, fields
from math import inf, nan

import pytest
from verify.sameness import difference
from verify.settings import MOST_RANKS, Case, drawn

from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.rules import why_it_differs

UNUSUAL = {int: (-1, 0, 1, 2, 3, 7, 65, 10**20), float: (-1.0, 0.0, inf, nan), str: ("", "x", "1+x", "²")}
SIZES = {"steps": 3, "layers": 8, "width": 24, "context": 24, "global_batch": 16, "experts": 12}  # that run in no time


def test_a_layout_reads_what_it_writes_and_numbers_in_the_usual_forms():
    assert [case.layout for case in drawn(500) if Layout.parse(str(case.layout)) != case.layout] == []
    layout = Layout.parse("dp=+2, bucket_mb=5e-1")
    assert (layout.dp, layout.bucket_mb) == (2, 0.5)
    assert Layout.parse("bucket_mb=inf").bucket_mb == inf
    assert Layout.parse("pp=2,stages=01+2").layers_of_stages == [1, 2]
    assert Layout.parse("dp=8,tp=8").world_size == 64  # the most


def altered(rng: random.Random) -> tuple[TrainConfig, Layout] | str:
    """A case with up to four settings of another one, or unusual ones; or why there is none."""
    one, *others = rng.choices(drawn(500), k=5)
    settings = {"config": asdict(one.config), "layout": asdict(one.layout)}
    for other in others[: rng.randint(1, 4)]:
        kind = rng.choice(("config", "layout"))
        field = rng.choice(fields(getattr(one, kind)))
        values = UNUSUAL.get(type(field.default), ())
        usual = getattr(getattr(other, kind), field.name)
        settings[kind][field.name] = rng.choice((usual, usual, *rng.choices(values or (usual,), k=1)))
    try:
        config, layout = TrainConfig(**settings["config"]), Layout(**settings["layout"])
        config.check(layout)
    except ValueError as error:
        return str(error)
    return config, layout


def test_any_settings_are_legal_or_refused_in_one_line():
    rng, legal, messages = random.Random(0), 0, set()
    for _ in range(5000):
        if isinstance(found := altered(rng), str):
            assert found and "\n" not in found and len(found) < 500
            messages.add(found)
        else:
            legal += 1
    assert legal > 1000 and len(messages) > 500


@pytest.mark.long
def test_what_is_accepted_runs_and_keeps_the_bits(ranks, tmp_path):
    """The cases include some that settings.py does not draw."""
    rng, cases = random.Random(1), []
    while len(cases) < 30:
        if isinstance(found := altered(rng), str) or found[1].world_size > MOST_RANKS:
            continue
        config, layout = found
        small = all(getattr(config, key) <= most for key, most in SIZES.items())
        repeats = not layout.slack or layout.arrivals != "live"
        in_order = config.softmax == "exact" or layout.cp == 1 or layout.cp_kind == "ulysses"
        if small and repeats and in_order and not (layout.compress and why_it_differs(config, layout)):
            cases.append(Case(config, layout, False, {}))
    wrong = {str(case): difference(ranks, case, tmp_path / str(number)) for number, case in enumerate(cases)}
    assert not {case: what for case, what in wrong.items() if what}
