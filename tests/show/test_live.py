"""A run that goes on: what is known of it, in the terminal, and on the page."""

import json
import urllib.error
import urllib.request

import pytest
from rich.console import Console

from minidist.show.live.server import serving
from minidist.show.live.state import Live
from minidist.show.live.terminal import picture
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.measuring.instruments import Moment
from minidist.train.resilience.elastic import Interruption
from minidist.train.resilience.faults import Fault, take_order

MS = 1_000_000  # ns


def moment(step: int, start: int = 0, end: int = 10) -> Moment:
    events = (
        ("forward 0", "compute", start * MS, (start + 3) * MS),
        ("all_reduce(SUM)", "communication", (start + 1) * MS, (start + 2) * MS),
        ("backward 0", "compute", (start + 3) * MS, (end - 2) * MS),
        ("sync gradients", "wait", (end - 2) * MS, (end - 1) * MS),
        ("optimizer step", "compute", (end - 1) * MS, end * MS),
    )
    return Moment(step, start * MS, end * MS, events, {"parameters": 2_000_000, "activations": 500_000}, 7000)


@pytest.fixture
def live() -> Live:
    live = Live(TrainConfig(steps=20), Layout(dp=2))
    for step, loss in enumerate((5.0, 4.0, 3.0)):
        live.on_step(step, loss)
    live.on_event(0, ("moment", moment(2)))
    live.on_event(1, ("moment", moment(2, 5, 20)))
    return live


def test_the_newest_step_that_all_ranks_reported_is_shown_and_news_is_told(live):
    told = live.as_dict()
    assert (told["step"], told["losses"], told["seconds"]) == (2, [5.0, 4.0, 3.0], 0.02)
    first, second = (rank["lanes"] for rank in told["ranks"])
    assert [lane[0] for lane in first] == ["forward", "backward", "optimizer", "communication", "wait"]
    assert second[0] == ("forward", 0.25, 0.4)
    for rank, newest in ((0, 2), (1, 3)):  # not before rank 1 has reported it
        live.on_event(rank, ("moment", moment(3)))
        assert live.as_dict()["step"] == newest
    live.on_event(1, ("fault", Fault(1, 2, "kill")))
    live.on_event(0, ("saved", "step-2", ""))
    live.on_event(0, ("saved", "step-3", "the disk is full"))
    failed = Interruption(2, (1,), "rank 1 of 2 was killed", Layout(dp=2), Layout(), 1, "the memory of peers")
    live.on_interruption(failed)
    told = live.as_dict()
    assert told["news"] == [
        "step 2, rank 1: kill, as ordered", "checkpoint step-2",
        "checkpoint step-3 could not be saved: the disk is full",
        "step 2: rank 1 of 2 was killed", "the run goes on as dp=1 from step 1, the memory of peers",
    ]  # fmt: skip
    assert told["ranks"] == [None] and told["layout"] == "dp=1" and live.reported.keys() <= {3}
    assert told["saved"] == []  # step-2 is discarded
    assert (told["dead"], told["lost"]) == ([(1, "dp=2", 2)], [(1, [4.0, 3.0])])
    live.on_step(1, 4.5)  # again
    assert live.as_dict()["losses"] == [5.0, 4.5]
    console = Console(width=100, record=True)
    console.print(picture(live))
    assert "rank 1 died in step 2, in dp=2" in console.export_text()
    restarted = Interruption(1, (0,), "rank 0 of 1 was killed", Layout(), Layout(), 0, "the beginning")
    live.on_interruption(restarted)
    assert len(live.as_dict()["dead"]) == 1  # it is there again


def test_a_resumed_run_counts_from_where_it_began():
    live = Live(TrainConfig(steps=20), Layout(dp=2), first=10)
    for step in (10, 11, 12):
        live.on_step(step, 4.0)
    console = Console(width=100, record=True)
    console.print(picture(live))
    assert "4.0000 (step 12)" in console.export_text()
    layouts = Layout(dp=2), Layout(dp=2)
    live.on_interruption(Interruption(13, (1,), "rank 1 of 2 was killed", *layouts, 12, "the memory of peers"))
    told = live.as_dict()
    assert (told["first"], told["losses"], told["lost"]) == (10, [4.0, 4.0], [(12, [4.0])])
    live.on_interruption(Interruption(12, (1,), "rank 1 of 2 was killed", *layouts, 4, "step-000004"))
    told = live.as_dict()  # an older checkpoint than the one with which it began
    assert (told["first"], told["losses"], told["lost"][1]) == (4, [], (10, [4.0, 4.0]))


def test_before_all_ranks_have_reported_each_has_its_own_lane():
    live = Live(TrainConfig(steps=20), Layout(dp=3))
    live.on_event(2, ("moment", moment(0)))
    assert [rank and rank["sent"] for rank in live.as_dict()["ranks"]] == [None, None, 7000]


@pytest.mark.parametrize("layout", [Layout(dp=2, sync="async"), Layout(dp=3, sync="local")], ids=str)
def test_of_ranks_that_are_steps_apart_each_ones_newest_step_is_shown_from_its_start(layout):
    live = Live(TrainConfig(steps=20), layout)
    for rank, newest in enumerate((moment(9, 400, 420), moment(3, 100, 110), moment(8, 390, 400))):
        live.on_event(rank, ("moment", moment(0)))
        live.on_event(rank, ("moment", newest))
    told = live.as_dict()
    assert (told["step"], told["seconds"]) == (9, 0.02) and not live.reported
    assert [rank["lanes"][0] for rank in told["ranks"]] == [("forward", 0, 0.15)] * 3


def test_the_terminal_shows_the_loss_and_a_lane_for_each_rank_or_that_there_is_no_step_yet(live):
    console = Console(width=100, record=True, force_terminal=True, color_system="truecolor")
    console.print(picture(live))
    text = console.export_text(styles=False)
    assert "loss █▅▁ 3.0000 (step 2)" in text and "step 2: 20.0 ms" in text
    assert "2.50 MB" in text and "7 kB" in text and text.count("rank ") == 2
    console.print(picture(Live(TrainConfig(steps=3), Layout(dp=3))))
    assert "no step yet" in console.export_text(styles=False)


@pytest.mark.parametrize("ranks", [16, 32])
def test_many_ranks_their_news_and_the_bar_fit_a_usual_terminal(ranks):
    live = Live(TrainConfig(steps=2000), Layout(dp=ranks))
    for step in range(2000):
        live.on_step(step, 4.0)
    for rank in range(ranks):
        live.on_event(rank, ("moment", moment(1999)))
        live.tell(f"step 1999: rank {rank} was killed by SIGKILL (likely: kill -9, or the system ran out of memory)")
    console = Console(width=80, record=True)
    console.print(picture(live))
    lines = console.export_text(clear=False).splitlines()
    assert len(lines) == 23 and " ".join(lines[1].split()).endswith("memory at peak sent in the step")
    assert ("17 more ranks are on the page" in console.export_text(clear=False)) == (ranks == 32)


def status(url: str, order: bytes | None = None, **headers) -> int:
    """The status with which the server answers a request, or an order."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, order, headers), timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


EDGE = "(one) => getComputedStyle(one).borderLeftColor"
KILL = b'{"rank": 1, "what": "kill"}'
ODD = [
    b"", b"x", b"{", b"[" * 900, b"\xff\xfe", b"null", b"{}", b"[1]", b'{"rank": Infinity, "what": "kill"}', b"9" * 900,
    b'{"rank": 1e400, "what": "kill"}', b'{"rank": 2, "what": "kill"}', b'{"rank": -1, "what": "kill"}',
    b'{"rank": 0, "what": "a\\r\\nSet-Cookie: b"}', '{"rank": 0, "what": "\u4e00\x1b[31m"}'.encode(),
    b'{"rank": 0, "what": ["kill"]}', b'{"rank": true, "what": "kill"}', b'{"rank": 0}', b'{"what": "kill"}',
    b'{"rank": 1, "what": "format"}', b"x" * 5000,
]  # fmt: skip


def test_the_server_gives_the_state_and_takes_orders_but_no_odd_ones(live, tmp_path, capsys):
    """Odd orders are refused, and nothing is printed over the run."""
    live.end("it has ended")  # else the server waits for a last look
    with serving(live, str(tmp_path)) as address:
        root, key = address.split("/?")
        with urllib.request.urlopen(f"{root}/state?{key}", timeout=60) as answer:
            told = json.load(answer)
            assert (told["step"], told["ended"]) == (2, "it has ended")
        assert status(f"{root}/order?{key}", b'{"rank": 1, "what": "slow:3"}') == 200
        assert take_order(tmp_path, 1) == "slow:3"
        assert [body for body in ODD if status(f"{root}/order?{key}", body) != 400] == []
        assert status(f"{root}/order?{key}", KILL, **{"Content-Length": "-5"}) == 400
        for path in ("/", "/state", "/state?x", f"/{key}", f"/order?{key}"):
            assert status(root + path) == 404
        assert status(f"{root}/order?other", KILL) == 404  # who does not know the key
    assert capsys.readouterr().err == "" and not list(tmp_path.iterdir())


def test_the_page(live, tmp_path, browser):
    with serving(live, str(tmp_path)) as address:
        page, troubles = browser.new_page(), []
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(address)
        page.wait_for_selector(".rank >> nth=1")
        assert page.text_content("#title") == "dp=2: step 3 of 20, loss 3.0000; below: step 2, 20.0 ms"
        assert page.locator(".rank >> nth=0").locator("rect").count() == 5
        page.click(".rank >> nth=1 >> text=kill")
        page.wait_for_selector("#news >> text=ordered for rank 1: kill")
        assert take_order(tmp_path, 1) == "kill"
        assert page.get_by_role("button", name="kill rank 1").count() == 1
        page.evaluate("order(7, 'kill')")
        page.wait_for_selector("#refused >> text=not ordered for rank 7: kill: there is no rank 7")
        live.on_event(0, ("saved", "step-000002", ""))
        live.on_interruption(Interruption(2, (1,), "rank 1 of 2 was killed", Layout(dp=2), Layout(), 2, "step-000002"))
        page.wait_for_selector(".dead >> text=died in step 2, in dp=2")
        count = "all => all.map((one) => one.getAttribute('points').split(' ').length)"
        assert page.locator("#loss polyline").evaluate_all(count) == [2, 1, 2]  # a checkpoint, what is lost, the rest
        other = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")  # a phone
        other.goto(address)
        other.wait_for_selector(".rank >> nth=0")
        assert other.locator("button").evaluate_all("all => new Set(all.map((one) => one.offsetTop)).size") == 1
        assert other.locator(".dead b").bounding_box()["height"] < 40  # one line
        shade = other.locator("#high").evaluate("(one) => getComputedStyle(one).color")
        assert ((int(shade[4:].split(",")[0]) / 255) ** 2.4 + 0.05) / 0.06 > 4.5  # as WCAG requires on nearly black
        live.end("the run has stopped: rank 1 was killed")
        page.wait_for_selector("#ended >> text=rank 1 was killed")
    other.wait_for_timeout(600)  # the server has waited for it
    for one in (page, other):
        assert one.text_content("#ended") == "the run has stopped: rank 1 was killed"
        assert one.locator("button:enabled").count() == 0
        assert one.locator("#ended").evaluate(EDGE) == "rgb(194, 0, 47)"
        one.close()
    assert not troubles


def test_a_run_that_ends_well_is_not_edged_red(live, tmp_path, browser):
    with serving(live, str(tmp_path)) as address:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector(".rank >> nth=1")
        live.end("the run has ended", failed=False)
        page.wait_for_selector("#ended >> text=the run has ended")
        assert page.locator("#ended").evaluate(EDGE) == "rgb(0, 115, 79)"
        page.close()
