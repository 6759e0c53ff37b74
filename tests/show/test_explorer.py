"""The explorer: its page holds what was planned, looks it up, and computes nothing."""

import gzip
import random
import re
from dataclasses import replace
from itertools import product
from math import floor, log10

import pytest
from pages import CONTRAST, LOADS, data_in, packed_in

from minidist.cli.main import main
from minidist.plan.cluster.hardware import ClusterSpec, load
from minidist.plan.planned_run import PlannedRun
from minidist.plan.published_runs import family_of, spread_of
from minidist.show.explorer import explore
from minidist.show.explorer.choices import CHOICES, SLIDERS, own_choice, positions_of
from minidist.show.explorer.page import GPUS
from minidist.show.explorer.presets import PRESETS
from minidist.show.explorer.table import DAY, DIGITS, MEMORY, TIME, TOKENS, Planner, cells
from minidist.show.explorer.zoom import levels_of

FEW = {  # dense and with experts, with fewer positions than the real ones, so that they are planned in a second
    "7b": {"gpus": (8, 64), "cp": (1,), "pp": (1, 2), "sequence": (2048,), "micro_batch": (1, 2)},
    "llama3-70b": {"gpus": (2048, 4096), "tp": (4, 8), "cp": (1,), "pp": (1, 16), "sequence": (8192,)},
    "gpt3-175b": {"gpus": (64, 512), "tp": (1, 8), "pp": (1, 8), "micro_batch": (1,)},
    "mixtral-8x7b": {
        "gpus": (8, 64), "tp": (1, 2, 4), "cp": (1,), "pp": (1, 2), "sequence": (8192,), "micro_batch": (1,)
    },
}  # fmt: skip
ROUNDED = 0.5001e-2  # three digits
COUNTS = ("dp", "virtual", "micro_batches", "group")  # columns that are exact


@pytest.fixture(scope="module")
def explorer():
    with pytest.MonkeyPatch.context() as patch:
        for key, positions in FEW.items():
            patch.setitem(CHOICES, key, replace(CHOICES[key], positions=CHOICES[key].positions | positions))
        yield explore([*FEW])


def look(model: dict, position: dict, name: str) -> float:
    """Look a value up as web/lookup.js does."""
    places = [positions.index(position[slider]) for slider, positions in model["sliders"].items()]

    def written(strides: list[int], values: list) -> float:
        return values[sum(stride * place for stride, place in zip(strides, places, strict=True))]

    value = written(*model["reasons"] if name == "reason" else model["numbers"][model["columns"][name]])
    if name not in model["foretold"]:
        return value
    others, power, digits = model["foretold"][name]
    factor = written(*model["numbers"][model["columns"][f"{name} factor"]])
    foretold = factor * sum(look(model, position, other) for other in others) ** power
    unit = 10 ** (floor(log10(foretold) - 1e-4) - digits + 1)
    return float(f"{foretold + value * unit:.{digits}g}")


def planned(preset: str) -> PlannedRun:
    (found,) = (one for one in PRESETS if one.name == preset)
    choice = CHOICES[found.model]
    return Planner(choice, "h100")(found.position(choice.sliders(load().accelerators["h100"])))


@pytest.mark.parametrize("key", FEW)
def test_the_page_holds_what_plan_run_says_and_its_parts_add_up(explorer, key):
    content, table, planner = data_in(explorer.html(), "planned"), explorer.tables[key], Planner(CHOICES[key], "h100")
    model = content["models"][key]
    assert tuple(model["sliders"]) == tuple(SLIDERS) and model["texts"][0] == ""
    legal, sample = 0, random.Random(0).sample(range(len(table.reasons)), 60)
    for number, position in enumerate(positions_of({name: tuple(some) for name, some in model["sliders"].items()})):
        if number in sample:
            try:
                expected = cells(planner(position))
            except ValueError as error:
                assert model["texts"][look(model, position, "reason")] == str(error)
                continue
            assert look(model, position, "reason") == 0
            for name, value in expected.items():
                shown = value if name.startswith(COUNTS) else float(f"{value:.{DIGITS[name]}g}")
                assert look(model, position, name) == pytest.approx(shown, rel=1e-9), (position, name)
        if table.reasons[number]:
            continue
        legal += 1
        for total, kind, parts in (("memory", "memory", MEMORY), ("step", "time", TIME)):
            shown = sum(look(model, position, f"{kind}.{part}") for part in parts)
            assert shown == pytest.approx(look(model, position, total), rel=ROUNDED)  # no part is rounded by more
        assert look(model, position, "fits") == (table.columns["memory"][number] <= 80)
    assert legal > 50


def test_a_run_is_what_its_sliders_say_and_illegal_ones_have_the_reason(explorer):
    position = {
        "gpus": 64, "tp": 2, "cp": 4, "pp": 2, "ep": 2, "sequence": 32768, "micro_batch": 2, "recompute": "full",
        "precision": "fp8", "zero": 2,
    }  # fmt: skip
    run = Planner(CHOICES["mixtral-8x7b"], "h100")(position)
    assert run.cluster.world_size == 64 and run.model.context == 32768 and run.precision == "fp8"
    assert run.batch * 32768 == CHOICES["mixtral-8x7b"].batch_tokens
    for key in ("tp", "cp", "pp", "ep", "micro_batch", "recompute", "zero"):
        assert getattr(run.layout, key) == position[key]
    assert run.layout.sp == 1 and run.layout.dp == 4 and run.layout.attention == "flash"
    reason = "share the experts, but do not divide dp=4: choose ep from 1, 2, 4"
    assert any(reason in text for text in explorer.tables["mixtral-8x7b"].texts)


def test_the_number_of_stages_on_a_rank_is_the_quickest():
    planner = Planner(CHOICES["gpt3-175b"], "h100")
    for gpus, tp, pp, zero in product((64, 512), (4, 8), (4, 8), (0, 1)):
        position = {"gpus": gpus, "tp": tp, "cp": 1, "pp": pp, "ep": 1, "sequence": 2048, "micro_batch": 1,
                    "recompute": "none", "precision": "bf16", "zero": zero if gpus > tp * pp else 0}  # fmt: skip
        run = planner(position)
        for virtual in (1, 2, 3, 4, 6, 12):
            other = replace(run.layout, virtual=virtual, schedule="1f1b" if virtual == 1 else "interleaved")
            if not other.problem(run.model, run.batch) and 96 % (pp * virtual) == 0:
                total = planner.costs[gpus, 2048, "bf16"].step(other, run.batch)[0].total
                assert run.step_seconds <= 1.001 * total


def test_presets_are_legal_and_as_published():
    for one in PRESETS:
        sliders = CHOICES[one.model].sliders(load().accelerators["h100"])
        position = one.position(sliders)
        assert list(position) == list(SLIDERS) and planned(one.name)
        assert all(position[slider] in positions for slider, positions in sliders.items()), one.name
    run = planned("7B on 8")  # 16 bytes for each parameter, and fp32 gradients: 18
    assert run.memory.parameters + run.memory.gradients + run.memory.optimizer == 18 * run.model.parameters
    assert not run.fits and not planned("405B on 8").fits and planned("405B on 128").fits
    gpt = planned("175B on 512")  # Narayanan et al., 2021
    assert (gpt.layout.tp, gpt.layout.pp, gpt.layout.dp, gpt.batch) == (8, 8, 8, 1536) and gpt.fits
    for name, dp, gpus, cp in (
        ("Llama 3 on 8,192", 64, 8192, 1), ("Llama 3 on 16,384", 128, 16384, 1), ("Llama 3, long", 8, 16384, 16)
    ):  # fmt: skip
        run = planned(name)  # Llama team, 2024, table 4
        assert (run.layout.tp, run.layout.cp, run.layout.pp, run.layout.dp) == (8, cp, 16, dp)
        assert run.cluster.world_size == gpus and run.tokens == 16 << 20


def test_the_levels_of_the_zoom_make_the_chip_of_its_vendor():
    for gpu in GPUS:
        cluster = ClusterSpec.parse(f"{gpu}:8")
        chip, levels = cluster.accelerator, {level.name: level for level in levels_of(cluster)}
        cores = levels["GPU"].holds * levels["SM"].holds
        rate = cores * levels["tensor core"].holds * 2 * chip.clock
        assert cores == chip.tensor_cores
        assert rate == pytest.approx(chip.flops["bf16"], rel=0.002)  # the vendor rounds it, and its clock


def test_a_notebook_and_the_command_give_a_page_that_loads_nothing(explorer, tmp_path, capsys, monkeypatch):
    page, shown = explorer.html(), explorer._repr_html_()
    assert gzip.decompress(packed_in(shown)).decode() == page
    assert not re.search(LOADS, page[page.index("<style>") :])
    few = CHOICES["gpt3-175b"].positions | FEW["gpt3-175b"] | {"gpus": (512,)}
    monkeypatch.setitem(CHOICES, "gpt3-175b", replace(CHOICES["gpt3-175b"], positions=few))
    path = tmp_path / "explorer.html"
    assert main(["explore", "--html", str(path), "--models", "gpt3-175b", "--gpu", "a100"]) == 0
    told, content = capsys.readouterr().out, data_in(path.read_text(encoding="utf-8"), "planned")
    assert str(path) in told and content["gpu"]["name"] == load().accelerators["a100"].name
    assert content["models"]["gpt3-175b"]["sliders"]["precision"] == ["bf16"]  # an A100 has no fp8
    shape = "layers=6,width=96,heads=6,vocab=768,context=96"
    own = ["--shape", shape, "--positions", "gpus=8,24;tp=1,3;cp=1;pp=1;sequence=96;micro_batch=1"]
    assert main(["explore", "--html", str(path), *own]) == 0
    model = data_in(path.read_text(encoding="utf-8"), "planned")["models"]["own"]
    assert model["sliders"]["gpus"] == [8, 24] and model["sliders"]["tp"] == [1, 3]
    position = dict.fromkeys(SLIDERS, 1) | {
        "gpus": 24, "tp": 3, "sequence": 96, "recompute": "full", "precision": "bf16", "zero": 2
    }  # fmt: skip
    run = Planner(own_choice(shape), "h100")(position)
    assert look(model, position, "step") == pytest.approx(run.step_seconds, rel=5e-4) and run.layout.tp == 3
    capsys.readouterr()
    for arguments, said in (
        (("--positions", "zero=1"), "'zero=1' is not a slider"), (("--positions", "gpus=x"), "'gpus=x' is not"),
        (("--shape", "layers=2"), "width"),
    ):  # fmt: skip
        assert main(["explore", "--html", str(path), "--models", "7b", *arguments]) == 2
        assert said in capsys.readouterr().err


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def page(open_page, explorer, tmp_path):
    (tmp_path / "page.html").write_text(explorer.html(), encoding="utf-8")
    one = open_page((tmp_path / "page.html").as_uri())
    one.wait_for_selector("body.ready")
    return one


def text(page, selector: str) -> str:
    return page.locator(selector).inner_text().replace("\u00a0", " ")


def position_on(page, explorer) -> tuple[str, dict]:
    """The model and the position that the page's controls show."""
    key = page.locator("#model").input_value()
    sliders = explorer.tables[key].sliders
    places = page.evaluate(
        "() => [...document.querySelectorAll('#controls [type=range]')].map((one) => [one.id, +one.value])"
    )
    shown = {name.removeprefix("slider-"): sliders[name.removeprefix("slider-")][place] for name, place in places}
    for slider in ("recompute", "precision", "zero"):
        pressed = page.locator(f'[data-slider="{slider}"][aria-pressed="true"]').inner_text()
        shown[slider] = next(value for value in sliders[slider] if str(value) == pressed)
    return key, {slider: shown.get(slider, sliders[slider][0]) for slider in sliders}


def go_to(page, key: str, position: dict, tab: str) -> None:
    """Open an address, in a tab that shows another one."""
    words = "&".join(f"{name}={value}" for name, value in ({"model": key} | position | {"tab": tab}).items())
    address = f"{page.url.split('#')[0]}#{words}"
    page.goto("about:blank")  # of the same page, it would be a jump, and a reload might come before the page has jumped
    page.goto(address)
    page.wait_for_selector("body.ready")


def test_a_moved_slider_shows_the_numbers_of_its_position(page, explorer):
    spread = spread_of(family_of(False))
    outcome = text(page, "#outcome")
    assert outcome.startswith("Does not fit: 133 GB, 52.7 GB more than a GPU has. 15T tokens take ")
    years = TOKENS / planned("7B on 8").tokens_per_second / DAY / 365
    took = [float(number) for number in re.findall(r"[0-9.]+", outcome.rstrip("."))[-2:]]
    assert took == pytest.approx([years * spread.low, years * spread.high], rel=2 * ROUNDED)
    page.locator("#slider-micro_batch").focus()
    page.keyboard.press("ArrowRight")
    page.locator('[data-slider="zero"]', has_text="1").click()
    key, position = position_on(page, explorer)
    assert (key, position["micro_batch"], position["zero"]) == ("7b", 2, 1)
    run = Planner(CHOICES[key], "h100")(position)
    assert text(page, "#outcome").startswith("Fits: ") and run.fits
    told = f"{spread.low:.2f} to {spread.high:.2f} times as long as planned (8 in 10 of {spread.count};"
    assert told in text(page, "#range")
    assert float(text(page, "#memory-total").split()[0]) == pytest.approx(run.memory.total / 1e9, rel=ROUNDED)
    assert float(text(page, "#time-total").split()[0]) == pytest.approx(run.step_seconds, rel=ROUNDED)
    rows = page.locator("#memory .parts div").all()
    shown = {row.get_attribute("data-part"): row.locator("dd").first.inner_text().split() for row in rows}
    for part, (number, unit) in shown.items():
        nbytes = float(number) * {"MB": 1e6, "GB": 1e9}[unit]
        assert nbytes == pytest.approx(getattr(run.memory, part), rel=2 * ROUNDED)
    assert {part for part in MEMORY if getattr(run.memory, part)} == set(shown)


def test_an_illegal_position_says_why_and_leads_to_the_nearest_legal_one(page, explorer):
    page.locator("#slider-tp").focus()
    page.keyboard.press("End")
    page.locator("#slider-pp").focus()
    page.keyboard.press("ArrowRight")
    assert text(page, "#outcome") == "No run can be split this way."
    assert "= 16 ranks, but the cluster has 8 GPUs" in text(page, "#because")
    assert text(page, "#range") == "" and not page.is_enabled("#pin") and "tp=8&cp=1&pp=2" in page.url
    page.keyboard.press("p")  # has no numbers to pin
    page.keyboard.press("r")
    page.locator("#map").hover(position={"x": 100, "y": 50})
    assert not text(page, "#rank")
    page.keyboard.press("a")  # a way out
    assert "on 8 GPUs" in text(page, "#map-of-all") and page.locator("#map-of-all td button:enabled").count()
    page.locator("#nearest").click()
    page.keyboard.press("m")
    assert not page.locator("#facts small").count()
    key, position = position_on(page, explorer)
    assert position["pp"] == 2 and position["tp"] * position["pp"] <= position["gpus"]  # what was moved stays
    Planner(CHOICES[key], "h100")(position)
    assert text(page, "#outcome").startswith(("Fits", "Does not fit"))


def test_a_model_chosen_by_a_key_keeps_the_focus(page, explorer):
    page.focus("#model")
    for key in list(explorer.tables)[1:]:
        page.keyboard.press("ArrowDown")
        assert page.locator("#model:focus").input_value() == key


def test_without_scripts_it_says_what_it_needs(page, browser):
    plain = browser.new_page(java_script_enabled=False)
    plain.goto(page.url)
    assert plain.locator("noscript").is_visible()
    plain.close()


def test_the_quickest_layout_that_fits_is_the_simplest_within_a_hundredth(page, explorer):
    for key, table in explorer.tables.items():
        page.locator("#model").select_option(key)
        page.locator("#slider-gpus").fill("1")
        page.locator("#quickest").click()
        model, position = position_on(page, explorer)
        sliders = table.sliders
        fixed = {"gpus": sliders["gpus"][1], "sequence": sliders["sequence"][0], "precision": "bf16"}
        assert model == key and position.items() >= fixed.items()
        fitting = [
            (sum(value != sliders[slider][0] for slider, value in one.items()), table.columns["step"][number])
            for number, one in enumerate(positions_of(sliders))
            if not table.reasons[number] and table.columns["fits"][number] and one.items() >= fixed.items()
        ]
        least = min(step for _, step in fitting)
        moved, step = min(one for one in fitting if one[1] <= 1.01 * least)
        run = Planner(CHOICES[key], "h100")(position)
        assert run.fits and run.step_seconds == pytest.approx(step, rel=5e-4)  # four digits
        assert sum(value != sliders[slider][0] for slider, value in position.items()) == moved


def test_links_and_ranks_are_those_of_the_mesh(page):
    page.get_by_role("button", name="175B on 512").click()
    run = planned("175B on 512")
    for axis in ("tp", "pp", "dp"):
        row = [cell.replace("\u00a0", " ") for cell in page.locator(f'[data-axis="{axis}"] td').all_inner_texts()]
        sent = [one for one in run.sent if one.axis == axis]
        assert int(row[1]) == sent[0].group.size
        assert row[2] == ("network, between nodes" if sent[0].group.leaves_node else "NVLink, inside a node")
        assert float(row[3].split()[0]) == pytest.approx(sum(one.nbytes for one in sent) / 1e9, rel=ROUNDED)
        bar = page.locator(f'#time .parts [data-part="{axis}"] dd').first.inner_text()
        assert row[4] == bar.replace("\u00a0", " ")  # one number for one thing
    assert not page.locator('[data-axis="cp"]').count()
    page.keyboard.press("r")
    page.locator("#map").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert "tp 2 of 8 (neighbours, one node); dp 1 of 8 (8 apart, 8 nodes)" in text(page, "#rank")


@pytest.mark.parametrize(
    ("key", "gpus", "nones"),
    [("gpt3-175b", 512, set()), ("gpt3-175b", 64, {"none fits"}), ("7b", 8, {"none is legal"})],
)
def test_the_map_shows_the_quickest_of_each_split_and_a_click_goes_there(page, explorer, key, gpus, nones):
    sliders, table = explorer.tables[key].sliders, explorer.tables[key]
    those = list(zip(table.reasons, table.columns["fits"], table.columns["mfu"], positions_of(sliders), strict=True))
    go_to(page, key, next(one for reason, *_, one in those if not reason and one["gpus"] == gpus), "map-of-all")
    cells_shown = page.locator("#map-of-all td button").all()
    shown = [button.inner_text() for button in cells_shown]
    for words, (pp, tp) in zip(shown, product(sliders["pp"], sliders["tp"]), strict=True):
        wanted = {"gpus": gpus, "sequence": 2048, "precision": "bf16", "tp": tp, "pp": pp}.items()
        legal = [(fits, rate) for reason, fits, rate, one in those if not reason and one.items() >= wanted]
        if rates := [rate for fits, rate in legal if fits]:
            assert float(words.rstrip("%")) == pytest.approx(100 * max(rates), rel=0.011)
        else:
            assert words == ("none fits" if legal else "none is legal")
    assert {words for words in shown if words.startswith("none")} == nones
    contrasts = f"""() => {{{CONTRAST} return [...document.querySelectorAll('#map-of-all td button')]
        .map(e => getComputedStyle(e)).map(e => of(light(e.color), light(e.backgroundColor)));}}"""
    for _ in range(2):  # in both themes
        assert min(page.evaluate(contrasts)) >= 4.5
        page.keyboard.press("d")
    if "%" in shown[-1]:
        page.locator("#map-of-all td button").last.click()
        assert position_on(page, explorer)[1].items() >= {"tp": sliders["tp"][-1], "pp": sliders["pp"][-1]}.items()


def test_two_times_have_one_unit_that_of_the_longer(page, explorer):
    """If the shorter one is below 1,000 days and the longer one is above, both are in years."""
    spread, key, table = spread_of(family_of(False)), *next(iter(explorer.tables.items()))
    took, position = next(
        (days, one) for days, one in zip(table.columns["days"], positions_of(table.sliders), strict=True)
        if days and one["zero"] < 3 and days * spread.low < 950 and days * spread.high > 1050
    )  # fmt: skip
    go_to(page, key, position, "costs")
    low, high = re.search(r"take ([0-9.]+) to ([0-9.]+) years", text(page, "#outcome")).groups()
    assert float(low) == pytest.approx(took * spread.low / 365, rel=2 * ROUNDED)
    assert float(high) == pytest.approx(took * spread.high / 365, rel=2 * ROUNDED)


def test_an_address_opens_what_it_was_copied_from_and_a_pinned_layout_stays_in_sight(page, open_page, explorer):
    page.get_by_role("button", name="175B on 512").click()
    page.keyboard.press("p")
    page.locator("#price").fill("2")
    page.locator('[data-slider="zero"]', has_text="3").click()
    page.keyboard.press("a")
    other = open_page(page.url)
    other.wait_for_selector("body.ready")
    assert position_on(other, explorer) == position_on(page, explorer) and other.is_visible("#map-of-all")
    page.keyboard.press("m")
    facts = {
        one.get_attribute("data-fact"): one.inner_text().replace("\u00a0", " ")
        for one in page.locator("#facts div").all()
    }
    run = planned("175B on 512")
    days = TOKENS / run.tokens_per_second / DAY
    assert facts["step"].endswith(f"pinned: {run.step_seconds:.3g} s") and facts["step"].count(" s") == 2
    price = facts["price of 15T tokens"].split("pinned: ")[1].replace(",", "")
    assert float(price) == pytest.approx(days * 24 * 512 * 2, rel=ROUNDED)
    page.focus("#model")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")  # the select, which is a new one, still has the focus
    assert page.input_value("#model") == [*explorer.tables][1]
    page.evaluate("address => { location.hash = address; }", other.url.split("#")[1])  # as by hand
    page.wait_for_selector("#map-of-all:visible")
    assert position_on(page, explorer) == position_on(other, explorer)
    for wrong in ("model=7b", "model=nobody&gpus=8", "x"):
        assert open_page(page.url.split("#")[0] + "#" + wrong).locator("#outcome").inner_text()


def test_a_gpu_that_is_alone_has_no_neighbours(open_page, tmp_path):
    shape, alone = "layers=1,width=96,heads=6,vocab=768,context=96", "gpus=1;tp=1;cp=1;pp=1;sequence=96;micro_batch=1"
    (tmp_path / "page.html").write_text(explore([shape], positions=alone).html(), encoding="utf-8")
    page = open_page((tmp_path / "page.html").as_uri())
    page.wait_for_selector("body.ready")
    page.keyboard.press("r")
    assert text(page, "#rank").startswith("Rank 0 of 1: node 0, rack 0, pod 0. Outlined: its tp group;")
    page.keyboard.press("a")
    assert "on 1 GPU;" in text(page, "#map-of-all")


def test_a_phone_shows_all_of_it_in_its_width(page):
    page.set_viewport_size({"width": 390, "height": 844})
    for key in "12345mar":
        page.keyboard.press(key)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        verdict = page.locator("#verdict").bounding_box()
        assert verdict["y"] + verdict["height"] <= 844  # while sliders above it move


@pytest.mark.parametrize("size", [(1280, 720), (1920, 1080)])
def test_all_of_it_is_on_one_screen_in_letters_that_can_be_read(page, size):
    width, height = size
    page.set_viewport_size({"width": width, "height": height})
    for number in range(1, 1 + page.locator("#presets button").count()):
        page.keyboard.press(str(number))
        for tab in "marz":
            page.keyboard.press(tab)
            assert page.evaluate("document.documentElement.scrollHeight") <= height
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            small = page.evaluate("""() => [...document.querySelectorAll('body *')].filter((one) => one.offsetParent
                && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
                && parseFloat(getComputedStyle(one).fontSize) < 14).map((one) => one.outerHTML)""")
            assert small == []
