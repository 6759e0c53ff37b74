"""What the animation of recomputation says: rank 0's memory during a step, and the work done again."""

from collections.abc import Sequence
from dataclasses import replace

from minidist.nn.gpt import GPT
from minidist.show.demos.recompute import lecture
from minidist.show.demos.recompute.run import bytes_of_block, recomputed_share
from minidist.show.demos.shared.memory_log import MemoryLog, last_steps
from minidist.show.demos.shared.stacks import Mark, Stacks, bytes_text
from minidist.show.palette import MEANINGS
from minidist.show.player.scene import Scene
from minidist.train.result import Run

AGAIN = MEANINGS["recomputed"]
STATE = 2 + 12 + 8  # bytes per parameter in bf16: the parameter, its master and two moments, the sum of its gradients
NOTES = {
    "zero grad": "Parameters, optimizer state and gradients are the same in every scene.",
    "optimizer": "No activations are left; every rank updates all parameters.",
}
OF_MODE = {
    "none": {
        "forward": "Forward: every operation keeps what backward needs.",
        "backward": "Backward consumes what was kept, the last block first.",
    },
    "selective": {
        "forward": "Forward: attention's core keeps only queries, keys and values; everything else is kept as before.",
        "backward": "Backward recomputes each block's attention weights when it reaches them.",
    },
    "full": {
        "forward": "Forward: each block keeps only its input.",
        "backward": "Backward runs each block's forward again before its backward.",
    },
}


def of_run(run: Run, most: int, verdict: str, bug: bool = False) -> Scene:
    """The scene of a run in its mode; ``verdict`` is what is proved or, of a run with the bug, the details."""
    config, mode = run.config, run.layout.recompute
    held = [last_steps(run.ranks[0].log)]  # all ranks do the same, so one is shown, large
    flops = run.ranks[0].flops
    share = flops.get("recompute", 0) / (flops["forward"] + flops["backward"])
    words = {"none": "s b (34 h + 3 a s + 4 a + 8)", "selective": "s b (34 h + 8)", "full": "2 s b h"}[mode]
    blocks = config.layers * bytes_of_block(config, mode)
    again = [start for start, _ in held[0].places("recompute")]

    def facts(rank: MemoryLog, place: float) -> dict[str, str]:
        return {
            "activations now": bytes_text(rank.at(place)["activations"]),
            "most so far": bytes_text(rank.highest("activations", end=place)),
            f"{config.layers} blocks keep {words} each": bytes_text(blocks),
            "recomputed so far": f"{sum(start < place for start in again)} of {len(again)} blocks"
            if again
            else "nothing",
            "recomputed share of FLOPs": f"{share:.1%}",
            "by formula": f"{recomputed_share(config, mode):.1%}",
        }

    colour = "wrong" if bug else AGAIN
    text = "different dropout mask" if bug else "recomputed"
    marks: Sequence[Sequence[Mark]] = [[Mark(*place, colour, text) for place in r.places("recompute")] for r in held]
    key = {"kept from forward, by formula": "ink", text: colour} if again else {"kept from forward, by formula": "ink"}
    title = f"Recomputation: {mode}. Memory of rank 0 of {len(run.ranks)} during a step"
    state = STATE * sum(parameter.size for parameter in GPT(config.model).parameters())
    shown = Stacks(held, most, state + blocks, NOTES | OF_MODE[mode], facts, marks, key, lane=True)
    if not bug:
        scene = shown.scene(mode, title, verdict)
        return replace(
            scene, questions=lecture.questions(mode, held[0], share, len(scene.frames)), cues=lecture.CUES[mode]
        )
    found = shown.scene(f"broken {mode}", title, "Wrong gradients, and no error: backward used other numbers.")
    question = lecture.question_of_bug(found.first_wrong)
    return replace(found, twin=mode, details=verdict, questions=(question,), cues=lecture.CUES["broken"])
