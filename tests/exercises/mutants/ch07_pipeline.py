"""Mutants of chapter 7."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 7.1 worksheet
    Mutant(
        "7.1",
        "idle over busy slots, not over all slots",
        "(virtual * micro_batches + ranks - 1)",
        "(virtual * micro_batches)",
    ),
    Mutant(
        "7.1", "p instead of p - 1 in the bubble", "(virtual * micro_batches + ranks - 1)", "(micro_batches + ranks)"
    ),
    Mutant("7.1", "ignores the number of stages per rank", "virtual * micro_batches", "micro_batches"),
    Mutant(
        "7.1",
        "per cent of the busy time, not of the total",
        "needed = -(-(ranks - 1) * (100 - percent) // (percent * virtual))",
        "needed = -(-(ranks - 1) * 100 // (percent * virtual))",
    ),
    Mutant(
        "7.1",
        "rounded down",
        "needed = -(-(ranks - 1) * (100 - percent) // (percent * virtual))",
        "needed = (ranks - 1) * (100 - percent) // (percent * virtual)",
    ),
    Mutant("7.1", "not rounded to a multiple of the ranks", "rounds = ranks if virtual > 1 else 1", "rounds = 1"),
    Mutant(
        "7.1",
        "every rank sends in both directions for each stage",
        "return micro_batches * (forward + backward) * activation_bytes",
        "return micro_batches * 2 * virtual * activation_bytes",
    ),
    Mutant(
        "7.1",
        "the first and the last rank have no neighbour for any of their stages",
        """
        forward = virtual - (rank == ranks - 1)  # all its stages but the model's last
        backward = virtual - (rank == 0)  # all but the first
        """,
        """
        forward = virtual * (rank != ranks - 1)
        backward = virtual * (rank != 0)
        """,
    ),
    Mutant("7.1", "counts forward only", "(forward + backward)", "forward"),
    Mutant(
        "7.1",
        "the pipeline sends in one direction only",
        "return 4 * layers * 2 * (ranks - 1) / ranks / 2",
        "return 4 * layers * 2 * (ranks - 1) / ranks",
    ),
    Mutant(
        "7.1",
        "per cent as a float: one micro-batch too many where the division is exact",
        "needed = -(-(ranks - 1) * (100 - percent) // (percent * virtual))",
        "needed = int(np.ceil((ranks - 1) * (1 / (percent / 100) - 1) / virtual))",
        kind="edge",
    ),
    Mutant(
        "7.1",
        "no micro-batch for one rank",
        "return max(1, -(-needed // rounds)) * rounds",
        "return -(-needed // rounds) * rounds",
        kind="edge",
    ),
    Mutant(
        "7.1",
        "remembers the first answer for a number of ranks",
        "return (ranks - 1) / (virtual * micro_batches + ranks - 1)",
        """kept = vars(bubble_share)
    return kept.setdefault(str(ranks), (ranks - 1) / (virtual * micro_batches + ranks - 1))""",
        kind="second call",
    ),
    # 7.2 gpipe
    Mutant(
        "7.2",
        "one micro-batch at a time",
        WHOLE,
        'return [Action(rank, k, i) for i in range(micro_batches) for k in "FB"]',
    ),
    Mutant("7.2", "one micro-batch too few", "range(micro_batches)", "range(1, micro_batches)"),
    Mutant("7.2", "micro-batches count from 1", "Action(rank, kind, i)", "Action(rank, kind, i + 1)"),
    Mutant(
        "7.2",
        "the last rank goes backward in reverse order, the others do not",
        WHOLE,
        """
        order = range(micro_batches)
        back = reversed(order) if rank == ranks - 1 else order
        return [Action(rank, "F", i) for i in order] + [Action(rank, "B", i) for i in back]
        """,
    ),
    Mutant("7.2", "stages in reverse order", "Action(rank, kind, i)", "Action(ranks - 1 - rank, kind, i)"),
    Mutant("7.2", "1F1B", WHOLE, "return one_f_one_b(rank, ranks, micro_batches)"),
    Mutant(
        "7.2",
        "calls the library's own",
        WHOLE,
        """
        from minidist.parallel.tools.schedules import schedule

        return schedule("gpipe", ranks, micro_batches)[rank]
        """,
    ),
    Mutant(
        "7.2",
        "one list that grows",
        WHOLE,
        """
        actions = vars(gpipe).setdefault("actions", [])
        actions.clear()
        actions += [Action(rank, kind, i) for kind in "FB" for i in range(micro_batches)]
        return actions
        """,
        kind="second call",
    ),
    Mutant(
        "7.2",
        "text instead of actions",
        WHOLE,
        'return [f"{rank}{kind}{i}" for kind in "FB" for i in range(micro_batches)]',
        kind="dtype",
    ),
    Mutant(
        "7.2",
        "a generator, which can be read once",
        WHOLE,
        'return (Action(rank, kind, i) for kind in "FB" for i in range(micro_batches))',
        kind="second call",
    ),
    Mutant(
        "7.2", "sixteen micro-batches at most", "range(micro_batches)", "range(min(micro_batches, 16))", kind="edge"
    ),
    # 7.3 needs, timeline, bubble
    Mutant(
        "7.3",
        "a backward does not wait for its forward",
        'return [(Action(stage, "F", i),), *following]',
        "return following",
    ),
    Mutant("7.3", "a W waits for F alone", 'return [(Action(stage, "I", i),)]', 'return [(Action(stage, "F", i),)]'),
    Mutant(
        "7.3",
        "only B, not I, releases the previous stage",
        'following = [(Action(stage + 1, "B", i), Action(stage + 1, "I", i))]',
        'following = [(Action(stage + 1, "B", i),)]',
    ),
    Mutant(
        "7.3",
        "waits for both B and I",
        'following = [(Action(stage + 1, "B", i), Action(stage + 1, "I", i))]',
        'following = [(Action(stage + 1, "B", i),), (Action(stage + 1, "I", i),)]',
    ),
    Mutant("7.3", "the first stage waits for a previous one", " if stage > 0 else []", ""),
    Mutant("7.3", "the last stage waits for a next one", " if stage + 1 < stages else []", ""),
    Mutant(
        "7.3", "the gradient comes from the previous stage", 'Action(stage + 1, "I", i)', 'Action(stage - 1, "I", i)'
    ),
    Mutant(
        "7.3",
        "an action starts when the rank is free, even without its input",
        "start = max([*times, slots[-1].end if slots else 0])",
        "start = slots[-1].end if slots else 0",
    ),
    Mutant(
        "7.3",
        "a rank runs several actions at once",
        "start = max([*times, slots[-1].end if slots else 0])",
        "start = max([*times, 0])",
    ),
    Mutant("7.3", "ignores the durations", "start + duration(action)", "start + slots_of(action)"),
    Mutant("7.3", "every action takes one slot", "start + duration(action)", "start + 1"),
    Mutant("7.3", "a deadlock raises no error", "if stuck:", "if False:"),
    Mutant("7.3", "names only the first stuck rank", "{', '.join(stuck)}", "{stuck[0]}"),
    Mutant(
        "7.3",
        "visits each rank once",
        """
        while any([step(actions, slots) for actions, slots in zip(schedule, found, strict=True)]):
            pass
        """,
        """
        for actions, slots in zip(schedule, found, strict=True):
            while step(actions, slots):
                pass
        """,
    ),
    Mutant(
        "7.3",
        "assumes one stage per rank",
        "stages = 1 + max((action.stage for actions in schedule for action in actions), default=-1)",
        "stages = len(schedule)",
    ),
    Mutant(
        "7.3",
        "idle over busy time, not over total",
        "return 1 - busy / (len(slots) * span)",
        "return len(slots) * span / busy - 1",
    ),
    Mutant(
        "7.3",
        "the busy share instead of the idle one",
        "return 1 - busy / (len(slots) * span)",
        "return busy / (len(slots) * span)",
    ),
    Mutant("7.3", "divides by the time of one rank", "return 1 - busy / (len(slots) * span)", "return 1 - busy / span"),
    Mutant("7.3", "assumes that time starts at 0", " - min(slot.start for slot in everything)", ""),
    Mutant("7.3", "whole slots", "start + duration(action)", "start + int(duration(action))", kind="edge"),
    Mutant(
        "7.3",
        "a time of 0 counts as none",
        "if None in times:",
        "if not all(times):",
        kind="edge",
    ),
    Mutant(
        "7.3",
        "time begins at 0 or later",
        " - min(slot.start for slot in everything)",
        " - max(0, min(slot.start for slot in everything))",
        kind="edge",
    ),
    Mutant(
        "7.3",
        "remembers the ends of earlier schedules",
        "ended: dict[Action, float] = {}",
        'ended = vars(timeline).setdefault("ended", {})',
        kind="second call",
    ),
    Mutant(
        "7.3",
        "takes the actions out of the schedule",
        "return found",
        "[list.clear(actions) for actions in schedule if isinstance(actions, list)]; return found",
        kind="lent",
    ),
    # 7.4 check_schedule
    Mutant("7.4", "accepts deadlocks", "timeline(schedule)", "pass"),
    Mutant("7.4", "checks for deadlock only", WHOLE, "timeline(schedule)"),
    Mutant("7.4", "accepts duplicated actions", "if times > 1 or not 0 <=", "if not 0 <="),
    Mutant(
        "7.4",
        "accepts an extra micro-batch",
        "if times > 1 or not 0 <= action.micro_batch < micro_batches:",
        "if times > 1:",
    ),
    Mutant(
        "7.4",
        "accepts one micro-batch too many",
        "action.micro_batch < micro_batches:",
        "action.micro_batch <= micro_batches:",
    ),
    Mutant("7.4", "accepts a stage on two ranks", "if ranks_of.setdefault(action.stage, rank) != rank:", "if False:"),
    Mutant(
        "7.4",
        "requires stage s on rank s",
        "if ranks_of.setdefault(action.stage, rank) != rank:",
        "if ranks_of.setdefault(action.stage, rank) != rank or action.stage != rank:",
    ),
    Mutant(
        "7.4",
        "accepts B together with its halves",
        'if kinds not in ({"F", "B"}, {"F", "I", "W"}):',
        'if not (kinds >= {"F", "B"} or kinds >= {"F", "I", "W"}):',
    ),
    Mutant("7.4", "accepts half a backward", '{"F", "I", "W"}):', '{"F", "I", "W"}, {"F", "I"}):'),
    Mutant(
        "7.4", "rejects split backwards", 'if kinds not in ({"F", "B"}, {"F", "I", "W"}):', 'if kinds != {"F", "B"}:'
    ),
    Mutant(
        "7.4",
        "only counts the actions",
        'if kinds not in ({"F", "B"}, {"F", "I", "W"}):',
        "if len(kinds) not in (2, 3):",
    ),
    Mutant(
        "7.4",
        "an error that names nothing",
        'raise ScheduleError(f"expected {stage}F{i} and {stage}B{i}, or its I and W, got {found}")',
        'raise ScheduleError("something is missing")',
    ),
    Mutant(
        "7.4",
        "returns False instead of raising",
        "timeline(schedule)",
        """try:
        timeline(schedule)
    except ScheduleError:
        return False""",
    ),
    Mutant(
        "7.4",
        "remembers the stages of earlier schedules",
        "ranks_of: dict[int, int] = {}",
        'ranks_of = vars(check_schedule).setdefault("ranks_of", {})',
        kind="second call",
    ),
    Mutant(
        "7.4",
        "sorts the schedule that it was lent",
        "timeline(schedule)",
        "timeline(schedule); [actions.sort() for actions in schedule if isinstance(actions, list)]",
        kind="lent",
    ),
    Mutant(
        "7.4",
        "every rank has actions",
        "timeline(schedule)",
        """if not all(schedule):
        raise ScheduleError("a rank does nothing")
    timeline(schedule)""",
        kind="edge",
    ),
    # 7.5 one_f_one_b
    Mutant(
        "7.5", "one forward too many ahead", "min(ranks - 1 - rank, micro_batches)", "min(ranks - rank, micro_batches)"
    ),
    Mutant(
        "7.5",
        "one forward too few ahead",
        "min(ranks - 1 - rank, micro_batches)",
        "min(max(ranks - 2 - rank, 0), micro_batches)",
    ),
    Mutant(
        "7.5",
        "every rank is equally far ahead",
        "min(ranks - 1 - rank, micro_batches)",
        "min(ranks - 1, micro_batches)",
    ),
    Mutant(
        "7.5", "the last rank is furthest ahead", "min(ranks - 1 - rank, micro_batches)", "min(rank, micro_batches)"
    ),
    Mutant(
        "7.5",
        "forgets that there may be fewer micro-batches than ranks",
        "min(ranks - 1 - rank, micro_batches)",
        "ranks - 1 - rank",
    ),
    Mutant(
        "7.5",
        "forgets the last backwards",
        'return actions + [Action(rank, "B", i) for i in range(micro_batches - ahead, micro_batches)]',
        "return actions",
    ),
    Mutant(
        "7.5",
        "backward first",
        'actions += [Action(rank, "F", ahead + i), Action(rank, "B", i)]',
        'actions += [Action(rank, "B", i), Action(rank, "F", ahead + i)]',
    ),
    Mutant(
        "7.5",
        "the backward of the micro-batch that just went forward",
        'actions += [Action(rank, "F", ahead + i), Action(rank, "B", i)]',
        'actions += [Action(rank, "F", ahead + i), Action(rank, "B", ahead + i)]',
    ),
    Mutant("7.5", "GPipe: the same bubble, everything in flight", WHOLE, "return gpipe(rank, ranks, micro_batches)"),
    Mutant(
        "7.5",
        "calls the library's zero bubble and merges the halves",
        WHOLE,
        """
        from minidist.parallel.tools.schedules import zero_bubble_h1

        kinds = {"F": "F", "I": "B"}
        found = zero_bubble_h1(rank, ranks, micro_batches)
        return [Action(a.stage, kinds[a.kind], a.micro_batch) for a in found if a.kind in kinds]
        """,
    ),
    Mutant(
        "7.5",
        "one list for all ranks",
        'return actions + [Action(rank, "B", i) for i in range(micro_batches - ahead, micro_batches)]',
        """kept = vars(one_f_one_b).setdefault("actions", [])
    kept[:] = actions + [Action(rank, "B", i) for i in range(micro_batches - ahead, micro_batches)]
    return kept""",
        kind="second call",
    ),
    Mutant(
        "7.5",
        "eight ranks at most",
        "min(ranks - 1 - rank, micro_batches)",
        "min(ranks - 1 - rank, micro_batches, 7)",
        kind="edge",
    ),
    # 7.6 worksheet
    Mutant("7.6", "what is held at the end, not at the peak", "most = max(most, held)", "most = held"),
    Mutant("7.6", "frees activations at I", 'elif action.kind in "BW":', 'elif action.kind in "BI":'),
    Mutant("7.6", "frees activations at both halves", 'elif action.kind in "BW":', "else:"),
    Mutant("7.6", "never frees activations", 'elif action.kind in "BW":', "elif False:"),
    Mutant("7.6", "1F1B's formula for GPipe", "return micro_batches", "return min(micro_batches, ranks - rank)"),
    Mutant("7.6", "1F1B: one too few", "min(micro_batches, ranks - rank)", "min(micro_batches, ranks - rank - 1)"),
    Mutant("7.6", "1F1B: p on every rank", "min(micro_batches, ranks - rank)", "min(micro_batches, ranks)"),
    Mutant(
        "7.6", "1F1B: forgets that there may be fewer micro-batches", "min(micro_batches, ranks - rank)", "ranks - rank"
    ),
    Mutant("7.6", "all layers on each rank", "held * (layers // ranks) * layer_bytes", "held * layers * layer_bytes"),
    Mutant(
        "7.6",
        "one more micro-batch than fits",
        "return memory // activation_bytes(1, layers, ranks, layer_bytes)",
        "return -(-memory // activation_bytes(1, layers, ranks, layer_bytes))",
    ),
    Mutant(
        "7.6",
        "through a float",
        "return memory // activation_bytes(1, layers, ranks, layer_bytes)",
        "return int(memory / activation_bytes(1, layers, ranks, layer_bytes))",
        kind="dtype",
    ),
    Mutant(
        "7.6",
        "adds to what earlier lists held",
        "held = most = 0",
        'held = most = vars(in_flight).setdefault("held", 0); vars(in_flight)["held"] += 1',
        kind="second call",
    ),
    Mutant("7.6", "at least one micro-batch", "held = most = 0", "held, most = 0, 1", kind="edge"),
    # 7.7 run_schedule
    Mutant(
        "7.7",
        "blocking sends",
        "sends.append(isend(array, receiver, group, tag=2 * (boundary * len(inputs) + i) + back))",
        "send(array, receiver, group, tag=2 * (boundary * len(inputs) + i) + back)",
    ),
    Mutant(
        "7.7",
        "no tags",
        """
    def begin_send(array, boundary: int, i: int, back: bool) -> None:
        \"\"\"Across the boundary after a stage.\"\"\"
        receiver = (group.rank + (-1 if back else 1)) % group.size
        sends.append(isend(array, receiver, group, tag=2 * (boundary * len(inputs) + i) + back))

    def receive(boundary: int, i: int, back: bool) -> np.ndarray:
        array = np.empty_like(inputs[i])
        sender = (group.rank + (1 if back else -1)) % group.size
        irecv(array, sender, group, tag=2 * (boundary * len(inputs) + i) + back).wait()
        return array
    """,
        """
    def begin_send(array, boundary: int, i: int, back: bool) -> None:
        receiver = (group.rank + (-1 if back else 1)) % group.size
        sends.append(isend(array, receiver, group))

    def receive(boundary: int, i: int, back: bool) -> np.ndarray:
        array = np.empty_like(inputs[i])
        sender = (group.rank + (1 if back else -1)) % group.size
        irecv(array, sender, group).wait()
        return array
    """,
    ),
    Mutant(
        "7.7",
        "tags without the stage boundary",
        """
    def begin_send(array, boundary: int, i: int, back: bool) -> None:
        \"\"\"Across the boundary after a stage.\"\"\"
        receiver = (group.rank + (-1 if back else 1)) % group.size
    """,
        """
    def begin_send(array, boundary: int, i: int, back: bool) -> None:
        boundary = 0
        receiver = (group.rank + (-1 if back else 1)) % group.size
    """,
    ),
    Mutant(
        "7.7",
        "stages do not wrap around from the last rank to the first",
        "receiver = (group.rank + (-1 if back else 1)) % group.size",
        "receiver = group.rank + (-1 if back else 1)",
    ),
    Mutant("7.7", "sends no gradient back", "begin_send(grad_x, s - 1, i, back=True)", "pass"),
    Mutant("7.7", "every micro-batch gets the first input", "x = inputs[i] if s == 0", "x = inputs[0] if s == 0"),
    Mutant(
        "7.7",
        "every micro-batch gets the gradient of the last loss",
        "grad_y = gradients.pop(i) if s == last",
        "grad_y = gradients[max(gradients)] if s == last",
    ),
    Mutant("7.7", "returns only the last loss", "total += loss", "total = loss"),
    Mutant("7.7", "the mean of the losses instead of the sum", "total += loss", "total += loss / len(inputs)"),
    Mutant(
        "7.7",
        "backward takes the newest micro-batch",
        "stages[s].backward_input(kept.pop((s, i)), grad_y)",
        "stages[s].backward_input(kept.pop(max(kept)), grad_y)",
    ),
    Mutant("7.7", "B skips the weights", 'if action.kind in "BW":', 'if action.kind == "W":'),
    Mutant("7.7", "ignores W", 'if action.kind in "BW":', 'if action.kind == "B":'),
    Mutant("7.7", "I computes the weights' gradients too", 'if action.kind in "BW":', 'if action.kind in "BI":'),
    Mutant("7.7", "keeps activations to the end", "kept.pop((s, i))", "kept[s, i]"),
    Mutant("7.7", "keeps the second halves' inputs to the end", "rests.pop((s, i))", "rests[s, i]"),
    Mutant("7.7", "keeps messages to the end", "sends = [work for work in sends if not work.is_completed()]", "pass"),
    Mutant(
        "7.7",
        "waits for every send right away",
        "sends = [work for work in sends if not work.is_completed()]",
        """for work in sends:
            work.wait()
        sends = []""",
    ),
    Mutant(
        "7.7",
        "does not wait for the last sends",
        """
    for work in sends:
        work.wait()
    """,
        """
    sends.clear()
    """,
    ),
    Mutant(
        "7.7",
        "its own order: all forwards first",
        "for action in actions:",
        'for action in sorted(actions, key=lambda action: action.kind != "F"):',
    ),
    Mutant(
        "7.7",
        "one message too many",
        "begin_send(y, s, i, back=False)",
        "begin_send(y, s, i, back=False); begin_send(np.empty(0), s, i, back=False)",
    ),
    Mutant(
        "7.7",
        "receives into NumPy's default dtype",
        "array = np.empty_like(inputs[i])",
        "array = np.empty(inputs[i].shape)",
        kind="dtype",
    ),
    Mutant(
        "7.7",
        "sends float64 and rounds what arrives",
        """
    def begin_send(array, boundary: int, i: int, back: bool) -> None:
        \"\"\"Across the boundary after a stage.\"\"\"
        receiver = (group.rank + (-1 if back else 1)) % group.size
        sends.append(isend(array, receiver, group, tag=2 * (boundary * len(inputs) + i) + back))

    def receive(boundary: int, i: int, back: bool) -> np.ndarray:
        array = np.empty_like(inputs[i])
        sender = (group.rank + (1 if back else -1)) % group.size
        irecv(array, sender, group, tag=2 * (boundary * len(inputs) + i) + back).wait()
        return array
    """,
        """
    def begin_send(array, boundary: int, i: int, back: bool) -> None:
        receiver = (group.rank + (-1 if back else 1)) % group.size
        array = array.astype(np.float64)
        sends.append(isend(array, receiver, group, tag=2 * (boundary * len(inputs) + i) + back))

    def receive(boundary: int, i: int, back: bool) -> np.ndarray:
        array = np.empty(inputs[i].shape)
        sender = (group.rank + (1 if back else -1)) % group.size
        irecv(array, sender, group, tag=2 * (boundary * len(inputs) + i) + back).wait()
        return array.astype(inputs[i].dtype)
    """,
        kind="dtype",
    ),
    Mutant(
        "7.7",
        "one array for all messages of a shape",
        "array = np.empty_like(inputs[i])",
        'array = vars(run_schedule).setdefault(f"{inputs[i].shape}{inputs[i].dtype}", np.empty_like(inputs[i]))',
        kind="second call",
    ),
    Mutant(
        "7.7",
        "one array for each message, also in the next call",
        "array = np.empty_like(inputs[i])",
        'array = vars(run_schedule).setdefault(f"{boundary} {i} {back}", np.empty_like(inputs[i]))',
        kind="second call",
    ),
    Mutant(
        "7.7",
        "adds to the loss of earlier calls",
        "return total",
        """vars(run_schedule)["total"] = vars(run_schedule).get("total", 0.0) + total
    return vars(run_schedule)["total"]""",
        kind="second call",
    ),
    Mutant(
        "7.7",
        "uses an input's array for the output",
        "y, kept[s, i] = stages[s].forward(x)",
        "y, kept[s, i] = stages[s].forward(x.copy()); x[...] = y; y = x",
        kind="lent",
    ),
    Mutant(
        "7.7",
        "waits for the sends of the last micro-batch only",
        """
    for work in sends:
        work.wait()
    """,
        """
    for work in sends[-1:]:
        work.wait()
    """,
        kind="lent",
    ),
    Mutant(
        "7.7",
        "tags for eight micro-batches",
        "isend(array, receiver, group, tag=2 * (boundary * len(inputs) + i)",
        "isend(array, receiver, group, tag=2 * (boundary * len(inputs) + i % 8)",
        kind="edge",
    ),
    # 7.8 train_1f1b
    Mutant(
        "7.8",
        "even ranks send first, odd ranks receive first",
        "sendrecv(y, right, grad_y, right, group)",
        """if group.rank % 2:
                recv(grad_y, right, group)
                send(y, right, group)
            else:
                send(y, right, group)
                recv(grad_y, right, group)""",
    ),
    Mutant(
        "7.8",
        "avoids the deadlock by not sending",
        "sendrecv(y, right, grad_y, right, group)",
        "recv(grad_y, right, group)",
    ),
    Mutant(
        "7.8",
        "avoids the deadlock by not receiving",
        "sendrecv(y, right, grad_y, right, group)",
        "send(y, right, group); grad_y[...] = 0",
    ),
    Mutant(
        "7.8",
        "receives into NumPy's default dtype",
        "sendrecv(y, right, grad_y, right, group)",
        "grad_y = np.empty(y.shape); sendrecv(y, right, grad_y, right, group)",
        kind="dtype",
    ),
    Mutant(
        "7.8",
        "one array for the gradients of all calls",
        "sendrecv(y, right, grad_y, right, group)",
        """grad_y = vars(train_1f1b).setdefault("kept", grad_y)
            sendrecv(y, right, grad_y, right, group)""",
        kind="second call",
    ),
    Mutant(
        "7.8",
        "receives into an input",
        "sendrecv(y, right, grad_y, right, group)",
        "grad_y = inputs[i]; sendrecv(y, right, grad_y, right, group)",
        kind="lent",
    ),
    Mutant(
        "7.8",
        "an isend that nobody waits for",
        "sendrecv(y, right, grad_y, right, group)",
        "isend(y, right, group); recv(grad_y, right, group)",
        kind="lent",
    ),
    Mutant(
        "7.8",
        "waits for its send before it receives, if the message is small",
        "sendrecv(y, right, grad_y, right, group)",
        """if y.size < 1000:
                send(y, right, group)
                recv(grad_y, right, group)
            else:
                sendrecv(y, right, grad_y[:0], right, group)""",
        kind="edge",
    ),
    # 7.9 interleaved_1f1b
    Mutant(
        "7.9",
        "consecutive stages on a rank",
        "Action(chunk * ranks + rank, kind,",
        "Action(rank * virtual + chunk, kind,",
    ),
    Mutant(
        "7.9",
        "backward starts at the first stage",
        'chunk = turn if kind == "F" else virtual - 1 - turn',
        "chunk = turn",
    ),
    Mutant(
        "7.9",
        "all micro-batches through one stage, then the next",
        """
    rounds, place = divmod(n, ranks * virtual)
    turn, within = divmod(place, ranks)
    """,
        """
    rounds, (turn, within) = 0, divmod(n, micro_batches)
    """,
    ),
    Mutant(
        "7.9",
        "as few forwards ahead as 1F1B",
        "min(2 * (ranks - 1 - rank) + (virtual - 1) * ranks, total)",
        "min(ranks - 1 - rank, total)",
    ),
    Mutant(
        "7.9",
        "two forwards too many ahead",
        "min(2 * (ranks - 1 - rank) + (virtual - 1) * ranks, total)",
        "min(2 * (ranks - rank) + (virtual - 1) * ranks, total)",
    ),
    Mutant("7.9", "all forwards ahead", "min(2 * (ranks - 1 - rank) + (virtual - 1) * ranks, total)", "total"),
    Mutant(
        "7.9",
        "more forwards ahead than exist",
        "min(2 * (ranks - 1 - rank) + (virtual - 1) * ranks, total)",
        "2 * (ranks - 1 - rank) + (virtual - 1) * ranks",
    ),
    Mutant("7.9", "accepts any number of micro-batches", "if micro_batches % ranks:", "if False:"),
    Mutant("7.9", "divides the wrong way round", "if micro_batches % ranks:", "if ranks % micro_batches:"),
    Mutant(
        "7.9",
        "an error without numbers",
        'ValueError(f"expected a multiple of {ranks} micro-batches for {ranks} ranks, got {micro_batches}")',
        'ValueError("the micro-batches do not divide")',
    ),
    Mutant("7.9", "forgets the last backward", "range(total - ahead, total)]", "range(total - ahead, total - 1)]"),
    Mutant(
        "7.9",
        "one list for all ranks",
        'return actions + [nth("B", n) for n in range(total - ahead, total)]',
        """kept = vars(interleaved_1f1b).setdefault("actions", [])
    kept[:] = actions + [nth("B", n) for n in range(total - ahead, total)]
    return kept""",
        kind="second call",
    ),
    Mutant(
        "7.9",
        "three stages on a rank at most",
        "total = micro_batches * virtual",
        "virtual = min(virtual, 3); total = micro_batches * virtual",
        kind="edge",
    ),
    # 7.10 zero_bubble_h1
    Mutant(
        "7.10",
        "W right after I, so 1F1B's bubble",
        """
        if i >= rank:
            actions.append(Action(rank, "W", i - rank))
    return actions + [Action(rank, "W", i) for i in range(max(0, micro_batches - rank), micro_batches)]
    """,
        """
        actions.append(Action(rank, "W", i))
    return actions
    """,
    ),
    Mutant(
        "7.10",
        "all W at the end, so everything is in flight",
        """
        if i >= rank:
            actions.append(Action(rank, "W", i - rank))
    return actions + [Action(rank, "W", i) for i in range(max(0, micro_batches - rank), micro_batches)]
    """,
        """
    return actions + [Action(rank, "W", i) for i in range(micro_batches)]
    """,
    ),
    Mutant(
        "7.10",
        "the first rank delays its W, not the last",
        """
        if i >= rank:
            actions.append(Action(rank, "W", i - rank))
    return actions + [Action(rank, "W", i) for i in range(max(0, micro_batches - rank), micro_batches)]
    """,
        """
        if i >= ranks - 1 - rank:
            actions.append(Action(rank, "W", i - (ranks - 1 - rank)))
    return actions + [Action(rank, "W", i) for i in range(max(0, micro_batches - (ranks - 1 - rank)), micro_batches)]
    """,
    ),
    Mutant(
        "7.10",
        "forgets the last W",
        'return actions + [Action(rank, "W", i) for i in range(max(0, micro_batches - rank), micro_batches)]',
        "return actions",
    ),
    Mutant(
        "7.10",
        "with fewer micro-batches than ranks: W of micro-batches that do not exist",
        "range(max(0, micro_batches - rank), micro_batches)",
        "range(micro_batches - rank, micro_batches)",
    ),
    Mutant(
        "7.10",
        "W before I",
        """
        actions.append(Action(rank, "I", i))
        if i >= rank:
            actions.append(Action(rank, "W", i - rank))
    """,
        """
        if i >= rank:
            actions.append(Action(rank, "W", i - rank))
        actions.append(Action(rank, "I", i))
    """,
    ),
    Mutant("7.10", "backward is not split", WHOLE, "return one_f_one_b(rank, ranks, micro_batches)"),
    Mutant(
        "7.10",
        "GPipe's forwards, so everything is in flight",
        "ahead = min(ranks - 1 - rank, micro_batches)",
        "ahead = micro_batches",
    ),
    Mutant(
        "7.10",
        "every rank is equally far ahead",
        "ahead = min(ranks - 1 - rank, micro_batches)",
        "ahead = min(ranks - 1, micro_batches)",
    ),
    Mutant(
        "7.10",
        "one list for all ranks",
        'return actions + [Action(rank, "W", i) for i in range(max(0, micro_batches - rank), micro_batches)]',
        """kept = vars(zero_bubble_h1).setdefault("actions", [])
    kept[:] = actions + [Action(rank, "W", i) for i in range(max(0, micro_batches - rank), micro_batches)]
    return kept""",
        kind="second call",
    ),
    Mutant(
        "7.10",
        "eight ranks at most",
        "ahead = min(ranks - 1 - rank, micro_batches)",
        "ahead = min(ranks - 1 - rank, micro_batches, 7)",
        kind="edge",
    ),
]
