"""Stories of expert parallelism: tokens stream to their experts, and the clock stops at the tallest column."""

from collections.abc import Mapping

import numpy as np

from minidist.show.demos.expert_parallel.balance import STEPS, Load
from minidist.show.demos.expert_parallel.run import TOP_K, Step
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.stage.curve import Chart
from minidist.show.stage.marks import Mark, box, counter, line, text
from minidist.show.stage.story import Beat, Question, Story

FLY, WORK, ROW = 1.4, 3.4, 0.55  # seconds: when tokens leave, when experts begin, and how long a row takes
TOP, BASE = 34, 470  # y of the tokens at home, and of the foot of the columns
OFF, ON = "#D55E00", "#009E73"  # colours without a balance loss, and with it


def routes(name: str, step: Step, right: Step, bug: str = "", details: str = "") -> Story:
    """Show one layer: tokens leave their GPUs, wait in the columns of their experts, and come home.

    Args:
        right: the same step in one process.
    """
    ranks = step.ranks
    wide = 1000 / ranks
    homes = [len(routed.chosen) * TOP_K for routed in step.routes]
    loads = step.loads
    side = min(46.0, (wide - 24) / max(homes) - 3, (BASE - TOP - 70) / max(*loads, 1) - 3)
    marks: list[Mark] = []
    for rank in range(ranks):
        x = 10 + rank * wide
        marks.append(
            box(x + 6, BASE + 6, wide - 12, 56, of_rank(rank), f"GPU {rank}", text=f"expert {rank}", weight=700)
        )
        marks.append(line([(x + 6, TOP + side + 12), (x + wide - 6, TOP + side + 12)], of_rank(rank), 5))
    ends = WORK + max(loads) * ROW
    height = [0] * ranks
    for source in range(ranks):
        taken = {(token, expert) for expert in range(step.experts) for token in step.tokens(source, expert)}
        place = 0
        for token, chosen in enumerate(step.routes[source].chosen.tolist()):
            for expert in chosen:
                x, y = 10 + source * wide + 12 + place * (side + 3), TOP
                place += 1
                copy = box(
                    x,
                    y,
                    side,
                    side,
                    of_rank(source),
                    f"token {token} of GPU {source}, for expert {expert}",
                    sign=str(source),
                )
                marks.append(copy)
                if (token, expert) not in taken:
                    copy.to(FLY + 0.8, 0.4, fill="wrong").to(FLY + 1.2, 0.4, opacity=0.25)
                    continue
                rank = step.rank_of(expert)
                level = height[rank]
                height[rank] += 1
                column = 10 + rank * wide + wide / 2 - side / 2
                copy.to(FLY, 1.2, x=column, y=BASE - (level + 1) * (side + 3))
                copy.to(FLY + 1.2, 0.2, opacity=0.4).to(WORK + level * ROW, ROW * 0.8, opacity=1)
                copy.to(ends + 0.4, 1.2, x=x, y=y)
    clock = line([(4, BASE), (1006, BASE)], "ink", 4).enter(WORK - 0.3, 0.2)
    clock.to(WORK, max(loads) * ROW, y=-max(loads) * (side + 3)).leave(ends + 0.1, 0.1)
    marks.append(clock)
    shown = [(0.0, "0")] + [(WORK + row * ROW, str(row)) for row in range(1, max(loads) + 1)]
    marks += counter(1140, 220, "time steps", shown)
    most = max(*right.gradients.averaged, *step.gradients.averaged)
    for expert, (mine, one) in enumerate(zip(step.gradients.averaged, right.gradients.averaged, strict=True)):
        high = (BASE - TOP - 130) * mine / most
        x = 10 + step.rank_of(expert) * wide + wide / 2 - 40
        off = step.gradients.digests[expert] != right.gradients.digests[expert]
        bar = box(x, BASE, 80, 0, "wrong" if off else MEANINGS["gradients"], f"gradient of expert {expert}: {mine:.3g}")
        marks.append(bar.enter(ends + 2.0, 0.1).to(ends + 2.2, 0.9, y=BASE - high, h=high))
        level = BASE - (BASE - TOP - 130) * one / most
        marks.append(line([(x - 14, level), (x + 94, level)], "right", 6).enter(ends + 2.2, 0.3))
    mean, busiest = sum(loads) / ranks, max(loads)
    asked = Question.number(
        f"{sum(loads)} rows for {ranks} experts, one time step per row. When are all done?",
        busiest,
        (int(mean), int(mean) + (busiest == int(mean)), busiest + 2),
        "All wait for the tallest column: nobody goes home before the last expert is done.",
        "after step {}",
    )
    times = sum(step.gradients.averaged) / sum(right.gradients.averaged)
    spoiled = sum(a != b for a, b in zip(step.gradients.digests, right.gradients.digests, strict=True))
    lost = step.choices - sum(loads)
    facts = {"rows": " ".join(map(str, loads)), "mean": f"{mean:.3g}", "bytes of a row": str(step.row_bytes)}
    asked = None if bug else asked
    beats = [
        Beat(0, f"Every token has chosen {TOP_K} of {step.experts} experts; each GPU has one.", facts, asks=asked),
        Beat(
            WORK - 0.4,
            f"An all-to-all. Full experts drop {lost} of {step.choices} rows."
            if lost
            else "An all-to-all: each token goes to its experts.",
            facts,
        ),
        Beat(ends + 0.1, f"{busiest} time steps; the mean column is {mean:.3g}.", facts, answers=asked),
        Beat(ends + 1.8, "A second all-to-all brings the results home.", facts),
        Beat(
            ends + 3.4,
            f"The experts' gradients are {times:.3g} times as large as those of one process."
            if bug
            else "Backward: each expert's gradient matches one process (green line).",
            facts,
        ),
    ]
    verdict = "Every bit matches one process."
    if bug:
        verdict = f"Wrong: the gradients of {spoiled} of {step.experts} experts."
    title = "What if an expert is full?" if step.capacity is not None else "Who waits for the favourite expert?"
    return Story(name, title, marks, beats, verdict, bug, details)


def balance(loads: Mapping[str, Load], right: Mapping[str, Load], bug: str = "", details: str = "") -> Story:
    """Plot the busiest GPU's load over training, as a multiple of the mean, without a balance loss and with it."""
    paces = {name: load.pace() for name, load in loads.items()}
    others = {name: load.pace() for name, load in right.items()}
    most = float(np.ceil(max(pace.max() for pace in (*paces.values(), *others.values()))))
    chart = Chart(
        (120, 60, 860, 430),
        (0, STEPS - 1),
        (1, most),
        ("step", "load of busiest GPU / mean load"),
        ((0, STEPS - 1), range(1, int(most) + 1)),
    )
    marks: list[Mark] = []
    for name, colour in zip(loads, (OFF, ON), strict=True):
        if bug:
            chart.curve(list(enumerate(others[name])), "faint")
        chart.curve(list(enumerate(paces[name])), colour, 0.2, 4)
        y = chart.at(0, float(paces[name][-4:].mean()))[1]
        marks.append(text(1000, y, name, 28, colour, "start").enter(4.2, 0.2))
    first, last = (float(pace[-4:].mean()) for pace in paces.values())
    asked = Question(
        "Nobody asks the router to be fair. What happens to the load?",
        ("it stays even", "a few experts take most of it", "each expert in turn"),
        1,
        "An expert that is used learns faster and is chosen more often.",
    )
    facts = {name: f"{pace[-1]:.2f} times the mean" for name, pace in paces.items()}
    asked = None if bug else asked
    beats = [
        Beat(0, "The step takes as long as its busiest GPU.", asks=asked),
        Beat(4.6, f"Without a balance loss {first:.1f} times the mean, with it {last:.1f}.", facts, answers=asked),
    ]
    differ = any((loads[name].counts != right[name].counts).any() for name in loads)
    verdict = "Loads differ from the right run (grey)." if bug and differ else ""
    return Story(
        "balance", "Does every expert stay equally busy?", [*chart.marks(), *marks], beats, verdict, bug, details
    )
