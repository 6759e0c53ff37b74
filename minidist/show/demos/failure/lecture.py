"""What a lecturer asks and says about failures."""

from dataclasses import replace

from minidist.show.demos.failure.run import Interrupted
from minidist.show.demos.shared.lectures import for_lecture, frame_where
from minidist.show.player.scene import Cue, Question, Scene


def dies(scene: Scene, run: Interrupted) -> Scene:
    back = frame_where(scene, lambda frame: "Back to the checkpoint" in frame.note)
    first, died = run.after.first, run.before.ended_by(run.fault.rank)
    where = Question(
        back,
        f"The rank died in step {died}; a checkpoint has step {first}. With which step does the run go on?",
        (f"step {first}", f"step {died}", "step 0"),
        0,
        "Only what is in a checkpoint is left of the dead rank's state, so all steps after it are taken again.",
    )
    bits = Question(
        len(scene.frames) - 1,
        "Another layout, fewer ranks, some steps twice. Are the final weights those of the run without a failure?",
        ("yes, bit for bit", "nearly", "no"),
        0,
        "Every layout computes the same bits here, and state is saved by name and place, so any layout can read it.",
        asked=back + 1,
    )
    cues = [Cue(0, 1, "One rank of a thousand fails every few hours."), Cue(back, 2, "What is lost, and what not?")]
    return for_lecture(scene, [where, bits], cues)


def forgets(scene: Scene, bug: str) -> Scene:
    """The run whose moments are not loaded, with its bug, which is not that of the other scene."""
    question = Question(
        scene.first_wrong,
        "The weights come from the checkpoint, but Adam's moments begin at zero. Will the run notice?",
        ("it stops with an error", "no: it trains on, as another run", "no, and it ends on the same bits"),
        1,
        "All shapes fit, and the loss still falls. Its first loss is right, since it was computed before any update.",
    )
    cue = Cue(0, 2, "It happened: a new optimizer has no moments yet, so nothing was loaded into it.")
    return replace(for_lecture(scene, [question], [cue]), bug=bug)


def save(scene: Scene) -> Scene:
    committed = frame_where(scene, lambda frame: "gives the manifest its name" in frame.note)
    question = Question(
        committed,
        "The power fails while ranks write their files. What does a run resume from?",
        ("the new checkpoint", "the old checkpoint", "nothing: both are spoiled"),
        1,
        "The manifest comes last and `latest` after it. Until then nobody looks at the new folder.",
    )
    cues = [
        Cue(0, 2, "Left: what programs read. Right: what a power cut leaves."),
        Cue(committed, 2, "The commit."),
    ]
    return for_lecture(scene, [question], cues)


def broken(scene: Scene) -> Scene:
    question = Question(
        scene.first_wrong,
        "`latest` moves before the ranks' files are flushed. What may a power cut leave?",
        ("the old checkpoint", "a pointer to files that are empty", "only a slower save"),
        1,
        "A file's name can reach the disk before its content does (ext4, XFS). The flush must come first.",
    )
    return for_lecture(scene, [question], [Cue(0, 2, "It works on every machine whose power does not fail.")])
