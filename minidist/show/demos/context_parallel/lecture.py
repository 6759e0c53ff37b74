"""What a lecturer asks and says about context parallelism."""

from minidist.show.demos.context_parallel import backward, forward
from minidist.show.demos.context_parallel.run import Pass
from minidist.show.demos.shared.lectures import for_lecture
from minidist.show.player.scene import Cue, Question, Scene

WHO = ("none", "rank 0", "the last rank")
WHY_RING = "Rank 0 has the first tokens, and the keys that arrive are later than its queries: the mask hides them all."
WHY_ZIGZAG = "Each rank has an early and a late chunk, so that every arriving pair of chunks has work for it."


def of_kind(kind: str, scene: Scene, run: Pass, ends: dict[str, int]) -> Scene:
    """The scene of one way to deal chunks; ``run`` is its forward, ``ends`` the last slot of both."""
    idle = [rank for rank, visit in enumerate(run.visits[1]) if not visit.pairs]
    answer = 0 if not idle else 1 if 0 in idle else 2
    text = "The keys have moved on by one rank. Who has nothing to compute?"
    questions = [Question(forward.HOP_1, text, WHO, answer, WHY_RING if kind == "ring" else WHY_ZIGZAG)]
    last = len(scene.frames) - 1
    if kind == "ring":
        shares = sorted({run.busy(), 0.25, 1.0})
        questions.append(
            Question(
                last, "For which share of the time are the ranks busy, all together?",
                tuple(f"{share:.0%}" for share in shares), shares.index(run.busy()),
                f"All wait for the last rank, which works in every hop: (n + 1) / 2n of the time, n = {run.ranks}.",
                asked=forward.HOP_1 + 1 if last > forward.HOP_1 else 0,
            )
        )  # fmt: skip
        cues = [
            Cue(0, 2, "A row is a query, a column a key. Which keys does rank 1 need?"),
            Cue(forward.HOP_1, 2, "Point at the grey bar: rank 0 never works again."),
            Cue(last, 1, "How would you deal the tokens instead? Then show zigzag beside it."),
        ]
    else:
        slots = sorted({ends["zigzag"], ends["ring"], 2 * ends["ring"]})
        questions.append(
            Question(
                last, f"Contiguous chunks took {ends['ring']}. When is zigzag done?",
                tuple(map(str, slots)), slots.index(ends["zigzag"]),
                "The number of tiles is nearly the same, but now they are spread evenly over the ranks.",
                asked=forward.HOP_1 + 1 if last > forward.HOP_1 else 0,
            )
        )  # fmt: skip
        cues = [
            Cue(
                0,
                1.5,
                "As in a card game with a weak and a strong card for everyone. Read Q: an early and a late chunk.",
            ),
            Cue(last, 1, "Set it beside the contiguous ring: same axis."),
        ]
    return for_lecture(scene, questions, cues)


def of_backward(scene: Scene, ranks: int) -> Scene:
    choices = (f"{ranks - 1}: as many as keys", f"{ranks}: one more", f"{2 * ranks}: twice round")
    question = Question(
        len(scene.frames) - 1, "How many hops must a gradient dK, dV make until it is complete and at home?",
        choices, 1, "It collects a term on each rank; from the last of them it is one more hop home.", asked=2,
    )  # fmt: skip
    cues = [
        Cue(0, 1, "Which ranks have a term of dK, dV of rank 0? Read column 0."),
        Cue(backward.HOP_1, 1.5, "Watch the right side: a cell for each rank that used the keys."),
    ]
    return for_lecture(scene, [question], cues)


def of_heads(scene: Scene, ranks: int) -> Scene:
    questions = [
        Question(
            1, "Attention mixes tokens, but no heads. What should travel, so that each rank can work alone?",
            ("all keys to every rank", "tokens: a rank gets one head of all tokens", "nothing"), 1,
            "A head needs all of its tokens and nothing of the other heads. One all-to-all, and no ring at all.",
        ),
        Question(
            3, f"A model has {ranks} heads. On how many ranks can this run at most?",
            (f"{ranks}", f"{2 * ranks}", "any number"), 0,
            "A head is not divided. With few heads of keys (GQA) it is fewer still, and rings take over.",
        ),
    ]  # fmt: skip
    cues = [Cue(0, 1, "Rows are tokens, columns heads."), Cue(1, 1.5, "The colours: a rank has tokens of all others.")]
    return for_lecture(scene, questions, cues)


def of_wrong_keys(scene: Scene) -> Scene:
    """Forward with the bug."""
    question = Question(
        scene.first_wrong, "A rank uses its own keys again instead of those that came. What happens?",
        ("it crashes: shapes", "the loss is NaN", "nothing complains"), 2,
        "All chunks have the same shape. The numbers look like attention, and the loss is plausible.",
    )  # fmt: skip
    cues = [Cue(scene.first_wrong, 2, "The column says which keys a tile needs, the red tile which it got. A test?")]
    return for_lecture(scene, [question], cues)


def of_wrong_gradients(scene: Scene) -> Scene:
    """Backward with the bug."""
    question = Question(
        scene.first_wrong,
        "In backward a rank uses its own keys instead of those that arrived. Does the loss of this step show it?",
        ("yes", "no"),
        1,
        "The loss comes from forward, which was right. Only the gradients, and with them the next steps, are wrong.",
    )
    return for_lecture(scene, [question], [Cue(0, 2, "A real bug, of a library that many use. What would find it?")])


def questions_of_gpus(link: str, hidden: bool, message: float, work: float, wrong: bool) -> tuple[Question, ...]:
    """Questions about a timeline on the cluster's clock; times in µs."""
    if wrong:
        return (
            Question(
                1, "Every rank computes with wrong keys. What does the profile show?",
                ("longer tiles", "missing messages", "nothing"), 2,
                "The same messages arrive and the same tiles are computed: only with other numbers.",
            ),
        )  # fmt: skip
    return (
        Question(
            2, f"With links of {link}: does zigzag ever wait for keys?",
            ("no: messages hide under tiles", "yes: messages take longer"), 0 if hidden else 1,
            f"A message takes {message:,.0f} µs, the tiles of a hop {work:,.0f} µs. Work grows with the square of the "
            "tokens, messages only with their number: longer chunks hide them.", asked=1,
        ),
    )  # fmt: skip


def cues_of_gpus(wrong: bool) -> tuple[Cue, ...]:
    if wrong:
        return (
            Cue(0, 1, "Neither a profiler nor a sanitizer sees wrong numbers. A comparison with one process does."),
        )
    return (
        Cue(0, 2, "Ask before each turn of a dial. Slow the link down: at 0.1 GB/s zigzag gains nothing any more."),
        Cue(
            2,
            2,
            "Then a faster chip: the tiles shrink, the messages do not. That is why long sequences need fast links.",
        ),
    )
