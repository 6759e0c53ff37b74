"""Planted bugs of chapter 7."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 7.1 worksheet
    Mutant(
        "7.1",
        "the idle slots beside the busy ones, not among all",
        "(virtual * micro_batches + ranks - 1)",
        "(virtual * micro_batches)",
    ),
    Mutant(
        "7.1", "p, and not p - 1, in the bubble", "(virtual * micro_batches + ranks - 1)", "(micro_batches + ranks)"
    ),
    Mutant("7.1", "several stages change nothing", "virtual * micro_batches", "micro_batches"),
    Mutant(
        "7.1",
        "of the micro-batches alone, not of the whole",
        "needed = -(-(ranks - 1) * (100 - percent) // (percent * virtual))",
        "needed = -(-(ranks - 1) * 100 // (percent * virtual))",
    ),
    Mutant(
        "7.1",
        "rounded down",
        "needed = -(-(ranks - 1) * (100 - percent) // (percent * virtual))",
        "needed = (ranks - 1) * (100 - percent) // (percent * virtual)",
    ),
    Mutant("7.1", "no whole rounds", "rounds = ranks if virtual > 1 else 1", "rounds = 1"),
    Mutant(
        "7.1",
        "every rank sends both ways for each stage",
        "return micro_batches * (forward + backward) * activation_bytes",
        "return micro_batches * 2 * virtual * activation_bytes",
    ),
    Mutant(
        "7.1",
        "the ends of the pipeline have no neighbour for any of their stages",
        """
        forward = virtual - (rank == ranks - 1)  # all its stages but the model's last
        backward = virtual - (rank == 0)  # all but the first
        """,
        """
        forward = virtual * (rank != ranks - 1)
        backward = virtual * (rank != 0)
        """,
    ),
    Mutant("7.1", "only forward", "(forward + backward)", "forward"),
    Mutant(
        "7.1",
        "the pipeline sends only to the right",
        "return 4 * layers * 2 * (ranks - 1) / ranks / 2",
        "return 4 * layers * 2 * (ranks - 1) / ranks",
    ),
    # 7.2 gpipe
    Mutant(
        "7.2",
        "one micro-batch at a time",
        WHOLE,
        'return [Action(rank, k, i) for i in range(micro_batches) for k in "FB"]',
    ),
    Mutant("7.2", "one micro-batch too few", "range(micro_batches)", "range(1, micro_batches)"),
    Mutant("7.2", "micro-batches are counted from 1", "Action(rank, kind, i)", "Action(rank, kind, i + 1)"),
    Mutant(
        "7.2",
        "the last rank goes backward from the last micro-batch, the others from the first",
        WHOLE,
        """
        order = range(micro_batches)
        back = reversed(order) if rank == ranks - 1 else order
        return [Action(rank, "F", i) for i in order] + [Action(rank, "B", i) for i in back]
        """,
    ),
    Mutant("7.2", "the stages from the other end", "Action(rank, kind, i)", "Action(ranks - 1 - rank, kind, i)"),
    Mutant("7.2", "1F1B", WHOLE, "return one_f_one_b(rank, ranks, micro_batches)"),
    Mutant(
        "7.2",
        "the library's own",
        WHOLE,
        """
        from minidist.parallel.tools.schedules import schedule

        return schedule("gpipe", ranks, micro_batches)[rank]
        """,
    ),
    # 7.3 one_f_one_b
    Mutant("7.3", "one more ahead", "min(ranks - 1 - rank, micro_batches)", "min(ranks - rank, micro_batches)"),
    Mutant(
        "7.3", "one less ahead", "min(ranks - 1 - rank, micro_batches)", "min(max(ranks - 2 - rank, 0), micro_batches)"
    ),
    Mutant("7.3", "every rank as many ahead", "min(ranks - 1 - rank, micro_batches)", "min(ranks - 1, micro_batches)"),
    Mutant("7.3", "the last rank is most ahead", "min(ranks - 1 - rank, micro_batches)", "min(rank, micro_batches)"),
    Mutant(
        "7.3",
        "fewer micro-batches than ranks are forgotten",
        "min(ranks - 1 - rank, micro_batches)",
        "ranks - 1 - rank",
    ),
    Mutant(
        "7.3",
        "the last backwards are forgotten",
        'return actions + [Action(rank, "B", i) for i in range(micro_batches - ahead, micro_batches)]',
        "return actions",
    ),
    Mutant(
        "7.3",
        "backward first",
        'actions += [Action(rank, "F", ahead + i), Action(rank, "B", i)]',
        'actions += [Action(rank, "B", i), Action(rank, "F", ahead + i)]',
    ),
    Mutant(
        "7.3",
        "the backward of the micro-batch that has just gone forward",
        'actions += [Action(rank, "F", ahead + i), Action(rank, "B", i)]',
        'actions += [Action(rank, "F", ahead + i), Action(rank, "B", ahead + i)]',
    ),
    Mutant("7.3", "GPipe: the same bubble, everything in flight", WHOLE, "return gpipe(rank, ranks, micro_batches)"),
    Mutant(
        "7.3",
        "the library's zero bubble, its halves put together",
        WHOLE,
        """
        from minidist.parallel.tools.schedules import zero_bubble_h1

        kinds = {"F": "F", "I": "B"}
        found = zero_bubble_h1(rank, ranks, micro_batches)
        return [Action(a.stage, kinds[a.kind], a.micro_batch) for a in found if a.kind in kinds]
        """,
    ),
    # 7.4 needs, timeline, bubble
    Mutant("7.4", "a backward does without its forward", 'return [(Action(stage, "F", i),), *behind]', "return behind"),
    Mutant("7.4", "a W waits for F alone", 'return [(Action(stage, "I", i),)]', 'return [(Action(stage, "F", i),)]'),
    Mutant(
        "7.4",
        "only B, and no I, lets the stage before go on",
        'behind = [(Action(stage + 1, "B", i), Action(stage + 1, "I", i))]',
        'behind = [(Action(stage + 1, "B", i),)]',
    ),
    Mutant(
        "7.4",
        "both B and I are waited for",
        'behind = [(Action(stage + 1, "B", i), Action(stage + 1, "I", i))]',
        'behind = [(Action(stage + 1, "B", i),), (Action(stage + 1, "I", i),)]',
    ),
    Mutant("7.4", "the first stage waits for one before it", " if stage > 0 else []", ""),
    Mutant("7.4", "the last stage waits for one behind it", " if stage + 1 < stages else []", ""),
    Mutant("7.4", "the gradient comes from the stage before", 'Action(stage + 1, "I", i)', 'Action(stage - 1, "I", i)'),
    Mutant(
        "7.4",
        "an action begins when the rank is free, whether or not its input is there",
        "start = max([*times, slots[-1].end if slots else 0])",
        "start = slots[-1].end if slots else 0",
    ),
    Mutant(
        "7.4",
        "a rank does several things at once",
        "start = max([*times, slots[-1].end if slots else 0])",
        "start = max([*times, 0])",
    ),
    Mutant("7.4", "durations are not asked for", "start + duration(action)", "start + slots_of(action)"),
    Mutant("7.4", "every action takes one slot", "start + duration(action)", "start + 1"),
    Mutant("7.4", "what can never end just stops", "if stuck:", "if False:"),
    Mutant("7.4", "only the first rank that waits is told", "{', '.join(stuck)}", "{stuck[0]}"),
    Mutant(
        "7.4",
        "each rank is gone through once",
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
        "7.4",
        "one stage a rank",
        "stages = 1 + max((action.stage for actions in schedule for action in actions), default=-1)",
        "stages = len(schedule)",
    ),
    Mutant(
        "7.4",
        "the idle time beside the busy one",
        "return 1 - busy / (len(slots) * span)",
        "return len(slots) * span / busy - 1",
    ),
    Mutant("7.4", "the busy share", "return 1 - busy / (len(slots) * span)", "return busy / (len(slots) * span)"),
    Mutant("7.4", "of one rank", "return 1 - busy / (len(slots) * span)", "return 1 - busy / span"),
    Mutant("7.4", "time begins at 0", " - min(slot.start for slot in everything)", ""),
    # 7.5 check_schedule
    Mutant("7.5", "what can never end is accepted", "timeline(schedule)", "pass"),
    Mutant("7.5", "only whether it ends", WHOLE, "timeline(schedule)"),
    Mutant("7.5", "doubled actions are accepted", "if times > 1 or not 0 <=", "if not 0 <="),
    Mutant(
        "7.5",
        "a micro-batch too many is accepted",
        "if times > 1 or not 0 <= action.micro_batch < micro_batches:",
        "if times > 1:",
    ),
    Mutant("7.5", "off by one", "action.micro_batch < micro_batches:", "action.micro_batch <= micro_batches:"),
    Mutant(
        "7.5", "a stage on two ranks is accepted", "if ranks_of.setdefault(action.stage, rank) != rank:", "if False:"
    ),
    Mutant(
        "7.5",
        "stage s has to be on rank s",
        "if ranks_of.setdefault(action.stage, rank) != rank:",
        "if ranks_of.setdefault(action.stage, rank) != rank or action.stage != rank:",
    ),
    Mutant(
        "7.5",
        "both B and its halves are accepted",
        'if kinds not in ({"F", "B"}, {"F", "I", "W"}):',
        'if not (kinds >= {"F", "B"} or kinds >= {"F", "I", "W"}):',
    ),
    Mutant("7.5", "half a backward is accepted", '{"F", "I", "W"}):', '{"F", "I", "W"}, {"F", "I"}):'),
    Mutant("7.5", "halves are refused", 'if kinds not in ({"F", "B"}, {"F", "I", "W"}):', 'if kinds != {"F", "B"}:'),
    Mutant(
        "7.5",
        "only as many actions as there should be",
        'if kinds not in ({"F", "B"}, {"F", "I", "W"}):',
        "if len(kinds) not in (2, 3):",
    ),
    Mutant(
        "7.5",
        "an error that names nothing",
        'raise ScheduleError(f"{stage}F{i} and {stage}B{i}, or its I and W, are needed, but there is {found}")',
        'raise ScheduleError("something is missing")',
    ),
    Mutant(
        "7.5",
        "it says False",
        "timeline(schedule)",
        """try:
        timeline(schedule)
    except ScheduleError:
        return False""",
    ),
    # 7.6 interleaved_1f1b
    Mutant(
        "7.6",
        "consecutive stages on a rank",
        "Action(chunk * ranks + rank, kind,",
        "Action(rank * virtual + chunk, kind,",
    ),
    Mutant(
        "7.6",
        "backward goes through the stages from the first",
        'chunk = turn if kind == "F" else virtual - 1 - turn',
        "chunk = turn",
    ),
    Mutant(
        "7.6",
        "all micro-batches through a stage, then the next",
        """
    rounds, place = divmod(n, ranks * virtual)
    turn, within = divmod(place, ranks)
    """,
        """
    rounds, (turn, within) = 0, divmod(n, micro_batches)
    """,
    ),
    Mutant(
        "7.6",
        "as few ahead as 1F1B",
        "min(2 * (ranks - 1 - rank) + (virtual - 1) * ranks, total)",
        "min(ranks - 1 - rank, total)",
    ),
    Mutant(
        "7.6",
        "two more ahead",
        "min(2 * (ranks - 1 - rank) + (virtual - 1) * ranks, total)",
        "min(2 * (ranks - rank) + (virtual - 1) * ranks, total)",
    ),
    Mutant("7.6", "everything ahead", "min(2 * (ranks - 1 - rank) + (virtual - 1) * ranks, total)", "total"),
    Mutant(
        "7.6",
        "more ahead than there is",
        "min(2 * (ranks - 1 - rank) + (virtual - 1) * ranks, total)",
        "2 * (ranks - 1 - rank) + (virtual - 1) * ranks",
    ),
    Mutant("7.6", "what does not divide is taken", "if micro_batches % ranks:", "if False:"),
    Mutant("7.6", "the wrong numbers are compared", "if micro_batches % ranks:", "if ranks % micro_batches:"),
    Mutant(
        "7.6",
        "an error without numbers",
        'ValueError(f"{micro_batches} micro-batches are no multiple of {ranks} ranks")',
        'ValueError("micro-batches do not divide")',
    ),
    Mutant(
        "7.6", "the last backwards are forgotten", "range(total - ahead, total)]", "range(total - ahead, total - 1)]"
    ),
    # 7.7 run_schedule
    Mutant(
        "7.7",
        "sends that wait",
        "sends.append(isend(array, receiver, group, tag=2 * (border * len(inputs) + i) + back))",
        "send(array, receiver, group, tag=2 * (border * len(inputs) + i) + back)",
    ),
    Mutant(
        "7.7",
        "no labels",
        """
    def begin_send(array, border: int, i: int, back: bool) -> None:
        \"\"\"Across the border behind a stage.\"\"\"
        receiver = (group.rank + (-1 if back else 1)) % group.size
        sends.append(isend(array, receiver, group, tag=2 * (border * len(inputs) + i) + back))

    def receive(border: int, i: int, back: bool) -> np.ndarray:
        array = np.empty_like(inputs[i])
        sender = (group.rank + (1 if back else -1)) % group.size
        irecv(array, sender, group, tag=2 * (border * len(inputs) + i) + back).wait()
        return array
    """,
        """
    def begin_send(array, border: int, i: int, back: bool) -> None:
        receiver = (group.rank + (-1 if back else 1)) % group.size
        sends.append(isend(array, receiver, group))

    def receive(border: int, i: int, back: bool) -> np.ndarray:
        array = np.empty_like(inputs[i])
        sender = (group.rank + (1 if back else -1)) % group.size
        irecv(array, sender, group).wait()
        return array
    """,
    ),
    Mutant(
        "7.7",
        "labels without the border",
        """
    def begin_send(array, border: int, i: int, back: bool) -> None:
        \"\"\"Across the border behind a stage.\"\"\"
        receiver = (group.rank + (-1 if back else 1)) % group.size
    """,
        """
    def begin_send(array, border: int, i: int, back: bool) -> None:
        border = 0
        receiver = (group.rank + (-1 if back else 1)) % group.size
    """,
    ),
    Mutant(
        "7.7",
        "no rank but the next one: stages do not go round",
        "receiver = (group.rank + (-1 if back else 1)) % group.size",
        "receiver = group.rank + (-1 if back else 1)",
    ),
    Mutant("7.7", "no gradient goes back", "begin_send(grad_x, s - 1, i, back=True)", "pass"),
    Mutant("7.7", "all micro-batches take the first input", "x = inputs[i] if s == 0", "x = inputs[0] if s == 0"),
    Mutant(
        "7.7",
        "the gradient of the last loss for all",
        "grad_y = gradients.pop(i) if s == last",
        "grad_y = gradients[max(gradients)] if s == last",
    ),
    Mutant("7.7", "only the last loss", "total += loss", "total = loss"),
    Mutant("7.7", "the mean of the losses", "total += loss", "total += loss / len(inputs)"),
    Mutant(
        "7.7",
        "one micro-batch in hand at a time: the newest",
        "stages[s].backward_input(kept.pop((s, i)), grad_y)",
        "stages[s].backward_input(kept.pop(max(kept)), grad_y)",
    ),
    Mutant("7.7", "B forgets the weights", 'if action.kind in "BW":', 'if action.kind == "W":'),
    Mutant("7.7", "W is forgotten", 'if action.kind in "BW":', 'if action.kind == "B":'),
    Mutant("7.7", "I does the weights too", 'if action.kind in "BW":', 'if action.kind in "BI":'),
    Mutant("7.7", "activations are kept to the end", "kept.pop((s, i))", "kept[s, i]"),
    Mutant("7.7", "halves are kept to the end", "rests.pop((s, i))", "rests[s, i]"),
    Mutant(
        "7.7", "messages are kept to the end", "sends = [work for work in sends if not work.is_completed()]", "pass"
    ),
    Mutant(
        "7.7",
        "it waits for every send at once",
        "sends = [work for work in sends if not work.is_completed()]",
        """for work in sends:
            work.wait()
        sends = []""",
    ),
    Mutant(
        "7.7",
        "nobody waits for the last sends",
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
        "the order of its own: all forwards first",
        "for action in actions:",
        'for action in sorted(actions, key=lambda action: action.kind != "F"):',
    ),
    Mutant(
        "7.7",
        "a message too many",
        "begin_send(y, s, i, back=False)",
        "begin_send(y, s, i, back=False); begin_send(np.empty(0), s, i, back=False)",
    ),
    # 7.8 worksheet
    Mutant("7.8", "what is held in the end", "most = max(most, held)", "most = held"),
    Mutant("7.8", "activations go with I", 'elif action.kind in "BW":', 'elif action.kind in "BI":'),
    Mutant("7.8", "both halves let go", 'elif action.kind in "BW":', "else:"),
    Mutant("7.8", "all forwards", 'elif action.kind in "BW":', "elif False:"),
    Mutant("7.8", "GPipe as 1F1B", "return micro_batches", "return min(micro_batches, ranks - rank)"),
    Mutant("7.8", "1F1B: one less", "min(micro_batches, ranks - rank)", "min(micro_batches, ranks - rank - 1)"),
    Mutant("7.8", "1F1B: p on every rank", "min(micro_batches, ranks - rank)", "min(micro_batches, ranks)"),
    Mutant("7.8", "1F1B: few micro-batches are forgotten", "min(micro_batches, ranks - rank)", "ranks - rank"),
    Mutant("7.8", "all layers on each rank", "held * (layers // ranks) * layer_bytes", "held * layers * layer_bytes"),
    Mutant(
        "7.8",
        "one more micro-batch than fits",
        "return memory // activation_bytes(1, layers, ranks, layer_bytes)",
        "return -(-memory // activation_bytes(1, layers, ranks, layer_bytes))",
    ),
    # 7.9 train_1f1b
    Mutant(
        "7.9",
        "the other rank waits in its send too: the ranks take turns by number",
        "sendrecv(y, right, grad_y, right, group)",
        """if group.rank % 2:
                recv(grad_y, right, group)
                send(y, right, group)
            else:
                send(y, right, group)
                recv(grad_y, right, group)""",
    ),
    Mutant("7.9", "no send, no deadlock", "sendrecv(y, right, grad_y, right, group)", "recv(grad_y, right, group)"),
    Mutant(
        "7.9",
        "no receive, no deadlock",
        "sendrecv(y, right, grad_y, right, group)",
        "send(y, right, group); grad_y[...] = 0",
    ),
    # 7.10 zero_bubble_h1
    Mutant(
        "7.10",
        "W right after I: 1F1B's bubble",
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
        "all W at the end: everything in flight",
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
        "the first rank puts its W off, not the last",
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
        "the last W are forgotten",
        'return actions + [Action(rank, "W", i) for i in range(max(0, micro_batches - rank), micro_batches)]',
        "return actions",
    ),
    Mutant(
        "7.10",
        "fewer micro-batches than ranks: W of some that there are not",
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
    Mutant("7.10", "backward in one piece", WHOLE, "return one_f_one_b(rank, ranks, micro_batches)"),
    Mutant(
        "7.10",
        "GPipe's forwards: everything in flight",
        "ahead = min(ranks - 1 - rank, micro_batches)",
        "ahead = micro_batches",
    ),
    Mutant(
        "7.10",
        "as many ahead on every rank",
        "ahead = min(ranks - 1 - rank, micro_batches)",
        "ahead = min(ranks - 1, micro_batches)",
    ),
]
