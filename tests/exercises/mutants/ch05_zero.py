"""Mutants for chapter 5."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 5.1 worksheet
    Mutant("5.1", "the weights are sharded from stage 2 on", "if stage >= 3:", "if stage >= 2:"),
    Mutant(
        "5.1",
        "the optimizer's float32 copy of the weights is not sharded",
        "optimizer /= ranks",
        "optimizer = (optimizer - optimizer % 8) / ranks + optimizer % 8",
    ),
    Mutant("5.1", "stage 3 shards only the weights", "if stage >= 1:", "if 1 <= stage < 3:"),
    Mutant(
        "5.1",
        "rounded to whole bytes",
        "return weights + gradients + optimizer",
        "return round(weights + gradients + optimizer)",
    ),
    Mutant(
        "5.1",
        "the largest model grows with the ranks in every stage",
        "int(device_bytes / model_state_bytes(stage, ranks, recipe))",
        "int(ranks * device_bytes / model_state_bytes(0, ranks, recipe))",
    ),
    Mutant("5.1", "one rank too many", "<= device_bytes:", "< device_bytes - 1:"),
    Mutant("5.1", "returns the last number of ranks where none is enough", "return 0", "return ranks"),
    Mutant("5.1", "tries 2,000 ranks at most", "range(1, 10_001)", "range(1, 2_001)", kind="edge"),
    Mutant(
        "5.1",
        "at least one parameter",
        "return int(device_bytes / model_state_bytes(stage, ranks, recipe))",
        "return max(1, int(device_bytes / model_state_bytes(stage, ranks, recipe)))",
        kind="edge",
    ),
    # 5.2 shard_slice
    Mutant("5.2", "rounded down: no rank owns the last elements", "-(-elements // ranks)", "elements // ranks"),
    Mutant(
        "5.2",
        "truncates the last shard",
        "slice(rank * length, (rank + 1) * length)",
        "slice(rank * length, min((rank + 1) * length, elements))",
    ),
    Mutant(
        "5.2",
        "ranks beyond the end have nothing",
        "slice(rank * length, (rank + 1) * length)",
        "slice(min(rank * length, elements), min((rank + 1) * length, max(elements, length)))",
    ),
    Mutant(
        "5.2",
        "the first shards are one element longer",
        WHOLE,
        """
        each, more = divmod(elements, ranks)
        start = rank * each + min(rank, more)
        return slice(start, start + each + (rank < more))
        """,
    ),
    Mutant("5.2", "always some padding", "-(-elements // ranks)", "elements // ranks + 1"),
    Mutant("5.2", "at least one element", "-(-elements // ranks)", "max(1, -(-elements // ranks))"),
    Mutant("5.2", "overlaps by one", "(rank + 1) * length)", "(rank + 1) * length + 1)"),
    Mutant("5.2", "in floats", "-(-elements // ranks)", "float(np.ceil(elements / ranks))"),
    Mutant(
        "5.2",
        "strided: elements dealt out in turn",
        "slice(rank * length, (rank + 1) * length)",
        "slice(rank, elements, ranks)",
    ),
    Mutant(
        "5.2",
        "the library's own",
        WHOLE,
        "from minidist.parallel.tools import units; return units.shard_slice(elements, rank, ranks)",
    ),
    Mutant(
        "5.2",
        "rounded up as a float, which has 53 bits",
        "-(-elements // ranks)",
        "int(np.ceil(elements / ranks))",
        kind="edge",
    ),
    # 5.3 ZeroStage1
    Mutant(
        "5.3",
        "averages, although the division happens elsewhere",
        "reduce_scatter_tensor(total, gradients, ReduceOp.SUM",
        "reduce_scatter_tensor(total, gradients, ReduceOp.AVG",
    ),
    Mutant(
        "5.3",
        "skips the reduce-scatter: each rank keeps its own gradients",
        "reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)",
        "total[:] = gradients[unit.mine]",
    ),
    Mutant("5.3", "replicas sum nothing", "all_reduce(total, ReduceOp.SUM, self.replicas)", "pass"),
    Mutant(
        "5.3",
        "replicas average",
        "all_reduce(total, ReduceOp.SUM, self.replicas)",
        "all_reduce(total, ReduceOp.AVG, self.replicas)",
    ),
    Mutant(
        "5.3",
        "sums over ranks that own other shards",
        "all_reduce(total, ReduceOp.SUM, self.replicas)",
        "all_reduce(total, ReduceOp.SUM, self.shards)",
    ),
    Mutant(
        "5.3", "the second sum of a step overwrites the first", "unit.grad_shard += total", "unit.grad_shard[:] = total"
    ),
    Mutant("5.3", "replaces the shard by another array", "unit.grad_shard += total", "unit.grad_shard = total"),
    Mutant("5.3", "the optimizer sees no gradients", "unit.show_gradients()", "pass"),
    Mutant(
        "5.3",
        "summed in float32",
        """
        total = np.empty(unit.shard_size, unit.reduce_dtype)
        reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)
        """,
        """
        total = np.empty(unit.shard_size, np.float32)
        gradients = gradients.astype(np.float32)
        reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)
        """,
    ),
    Mutant(
        "5.3",
        "slices the shard out of an all-reduce: twice the bytes",
        "reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)",
        "all_reduce(gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm); total[:] = gradients[unit.mine]",
    ),
    Mutant(
        "5.3",
        "replicas all-reduce the full unit",
        """
        reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)
        all_reduce(total, ReduceOp.SUM, self.replicas)
        """,
        """
        all_reduce(gradients, ReduceOp.SUM, self.replicas)
        reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)
        """,
    ),
    Mutant(
        "5.3",
        "the algorithm is not passed on",
        "reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)",
        "reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards)",
    ),
    Mutant(
        "5.3",
        "keeps the gradients of all ranks",
        "gradients = unit.take_gradients()  # (padded_size,)",
        "gradients = unit.kept = unit.take_gradients()",
    ),
    Mutant(
        "5.3",
        "a shard shifted by one element",
        "reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)",
        "reduce_scatter_tensor(total, np.roll(gradients, 1), ReduceOp.SUM, self.shards, algorithm=self.algorithm)",
    ),
    Mutant(
        "5.3",
        "does not gather the root",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        """if unit is not self.root:
                all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)""",
    ),
    Mutant(
        "5.3",
        "does not gather one block: stale weights",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        """if unit is not self.blocks[1]:
                all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)""",
    ),
    Mutant(
        "5.3",
        "gathers into a new array and keeps the old one",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        """flat = np.empty_like(unit.full)
            all_gather_into_tensor(flat, unit.shard, self.shards, algorithm=self.algorithm)
            unit.show(flat)""",
    ),
    Mutant(
        "5.3",
        "gathers by an all-reduce of shards padded with zeros",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        """mine = unit.shard.copy()
            unit.full[:] = 0
            unit.full[unit.mine] = mine
            all_reduce(unit.full, ReduceOp.SUM, self.shards, algorithm=self.algorithm)""",
    ),
    Mutant(
        "5.3",
        "the library's own reduce",
        """
        gradients = unit.take_gradients()  # (padded_size,)
        total = np.empty(unit.shard_size, unit.reduce_dtype)
        reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)
        all_reduce(total, ReduceOp.SUM, self.replicas)
        unit.grad_shard += total
        unit.show_gradients()
        """,
        """
        from minidist.parallel import zero

        self.reducing = None
        zero.ZeroStage1.wait_for_pending(self)
        zero.ZeroStage1.reduce(self, unit)
        zero.ZeroStage1.wait_for_pending(self)
        """,
    ),
    Mutant(
        "5.3",
        "receives into float64, whatever the reduce_dtype",
        "np.empty(unit.shard_size, unit.reduce_dtype)",
        "np.empty(unit.shard_size)",
        kind="dtype",
    ),
    Mutant(
        "5.3",
        "takes the gradients as float64",
        "gradients = unit.take_gradients()  # (padded_size,)",
        "gradients = unit.take_gradients().view(np.float64)",
        kind="dtype",
    ),
    Mutant(
        "5.3",
        "sends the float32 master in place of the 16-bit shard",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards",
        "all_gather_into_tensor(unit.full, unit.master, self.shards",
        kind="dtype",
    ),
    Mutant(
        "5.3",
        "gathers into a float32 array first",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        """flat = np.empty(unit.padded_size, np.float32)
            all_gather_into_tensor(flat, unit.shard, self.shards, algorithm=self.algorithm)
            unit.full[:] = flat""",
        kind="dtype",
    ),
    Mutant(
        "5.3",
        "keeps an array for sums of this size, of the first model's reduce_dtype",
        "total = np.empty(unit.shard_size, unit.reduce_dtype)",
        """total = np.empty(unit.shard_size, unit.reduce_dtype)
        total = globals().setdefault("TOTALS", {}).setdefault(unit.shard_size, total)""",
        kind="second call",
    ),
    Mutant(
        "5.3",
        "gathers the shards of the first model",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        """shard = globals().setdefault("SHARDS", {}).setdefault(self.units.index(unit), unit.shard)
            all_gather_into_tensor(unit.full, shard, self.shards, algorithm=self.algorithm)""",
        kind="second call",
    ),
    Mutant(
        "5.3",
        "does not wait for the reduce-scatter",
        "reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)",
        "reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, async_op=True, algorithm=self.algorithm)",
        kind="lent",
    ),
    Mutant(
        "5.3",
        "does not wait for the all-gathers",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, async_op=True, algorithm=self.algorithm)",
        kind="lent",
    ),
    Mutant(
        "5.3",
        "waits for all all-gathers but the last",
        """
        for unit in self.units:
            all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)
        """,
        """
        works = [
            all_gather_into_tensor(unit.full, unit.shard, self.shards, async_op=True, algorithm=self.algorithm)
            for unit in self.units
        ]
        for work in works[:-1]:
            work.wait()
        """,
        kind="lent",
    ),
    # 5.4 ZeroStage2
    Mutant("5.4", "does not collect the gradient", "unit.collect(parameter)", "pass"),
    Mutant(
        "5.4",
        "sums every gradient by itself",
        "if not self.awaited[unit]:",
        "if True:",
    ),
    Mutant(
        "5.4",
        "awaits nothing from the second micro-batch on",
        "self.awaited[unit] = set(unit.parameters)",
        "pass",
    ),
    Mutant(
        "5.4",
        "sums all units after backward",
        """
        if not self.awaited[unit]:
            self.complete(unit)
        """,
        """
        if not any(self.awaited.values()):
            for each in self.units:
                self.complete(each)
        """,
    ),
    Mutant(
        "5.4",
        "collects gradients only when the unit is complete",
        """
        unit.collect(parameter)
        self.awaited[unit].discard(parameter)
        if not self.awaited[unit]:
            self.complete(unit)
        """,
        """
        self.awaited[unit].discard(parameter)
        if not self.awaited[unit]:
            for each in unit.parameters:
                unit.collect(each)
            self.complete(unit)
        """,
    ),
    Mutant(
        "5.4",
        "completes a unit at its first parameter",
        "if not self.awaited[unit]:",
        "if parameter is unit.parameters[0]:",
    ),
    Mutant(
        "5.4",
        "every unit counts as a micro-batch",
        """
        if unit is self.root:
            self.done += 1
        """,
        "self.done += 1",
    ),
    Mutant(
        "5.4",
        "does not count micro-batches: adds zeros for all of them",
        """
        while self.done < self.rounds:
            self.idle_round()
        """,
        """
        for _ in range(self.rounds):
            self.idle_round()
        """,
    ),
    Mutant(
        "5.4",
        "no zeros for missing micro-batches",
        """
        while self.done < self.rounds:
            self.idle_round()
        """,
        "pass",
    ),
    Mutant("5.4", "at most one missing micro-batch", "while self.done < self.rounds:", "if self.done < self.rounds:"),
    Mutant(
        "5.4",
        "missing micro-batches start with the root",
        """
        for unit in self.units:
            self.complete(unit)
        """,
        """
        for unit in self.units[::-1]:
            self.complete(unit)
        """,
    ),
    Mutant(
        "5.4",
        "the root takes no part in missing micro-batches",
        """
        for unit in self.units:
            self.complete(unit)
        """,
        """
        for unit in self.blocks[::-1]:
            self.complete(unit)
        self.done += 1
        """,
    ),
    Mutant(
        "5.4",
        "a missing micro-batch repeats the last one's shard",
        """
        for unit in self.units:
            self.complete(unit)
        """,
        """
        for unit in self.units:
            kept = unit.grad_shard.copy()
            self.complete(unit)
            unit.grad_shard += kept
        """,
    ),
    Mutant(
        "5.4",
        "zeros of float64 for a missing micro-batch",
        """
        for unit in self.units:
            self.complete(unit)
        """,
        """
        for unit in self.units:
            unit.grads = np.zeros(unit.padded_size)
            self.complete(unit)
        """,
        kind="dtype",
    ),
    Mutant(
        "5.4",
        "awaits the gradients of the first model",
        """
        self.awaited[unit].discard(parameter)
        if not self.awaited[unit]:
            self.complete(unit)
        """,
        """
        kept = globals().setdefault("AWAITED", {})
        awaited = kept.setdefault(self.units.index(unit), set(unit.parameters))
        awaited.discard(parameter)
        if not awaited:
            awaited.update(unit.parameters)
            self.complete(unit)
        """,
        kind="second call",
    ),
    Mutant(
        "5.4",
        "at most three missing micro-batches",
        "while self.done < self.rounds:",
        "for _ in range(min(3, self.rounds - self.done)):",
        kind="edge",
    ),
    # 5.5 ZeroStage3
    Mutant(
        "5.5",
        "gathers again although it is gathered",
        "if unit.full is None:",
        "if True:",
    ),
    Mutant("5.5", "gathers but does not show", "unit.show(unit.full)", "pass"),
    Mutant(
        "5.5",
        "keeps the weights of the first step forever",
        """
        if unit.full is None:
            unit.full = np.empty(unit.padded_size, unit.shard.dtype)
            all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)
            unit.show(unit.full)
        """,
        """
        if unit.full is None:
            unit.full = np.empty(unit.padded_size, unit.shard.dtype)
            all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)
            if not hasattr(unit, "kept"):
                unit.kept = unit.full
            unit.show(unit.kept)
        """,
    ),
    Mutant(
        "5.5",
        "keeps the gathered array for the next time",
        """
        if unit.full is None:
            unit.full = np.empty(unit.padded_size, unit.shard.dtype)
        """,
        """
        if unit.full is None:
            if not hasattr(unit, "kept"):
                unit.kept = np.empty(unit.padded_size, unit.shard.dtype)
            unit.full = unit.kept
        """,
    ),
    Mutant(
        "5.5",
        "only this rank's shard",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        "unit.full[unit.mine] = unit.shard",
    ),
    Mutant(
        "5.5",
        "gathers the full model before it runs",
        '''
        """Runs before the unit's module."""
        # >>> 5.5
        self.gather(unit)
        ''',
        '''
        """Runs before the unit's module."""
        for each in self.units[::-1]:
            self.gather(each)
        ''',
    ),
    Mutant(
        "5.5",
        "gathers the next block too early",
        '''
        """Runs before the unit's module."""
        # >>> 5.5
        self.gather(unit)
        ''',
        '''
        """Runs before the unit's module."""
        self.gather(unit)
        order = [self.root, *self.blocks]
        if unit is not order[-1]:
            self.gather(order[order.index(unit) + 1])
        ''',
    ),
    Mutant(
        "5.5",
        "does not gather before forward",
        '''
        """Runs before the unit's module."""
        # >>> 5.5
        self.gather(unit)
        ''',
        '''
        """Runs before the unit's module."""
        ''',
    ),
    Mutant("5.5", "never reshards after forward", "if self.reshard_after_forward:", "if False:"),
    Mutant("5.5", "always reshards after forward", "if self.reshard_after_forward:", "if True:"),
    Mutant(
        "5.5",
        "does not reshard the root after forward",
        "if self.reshard_after_forward:",
        "if self.reshard_after_forward and unit is not self.root:",
    ),
    Mutant(
        "5.5",
        "does not gather again for backward",
        '''
        """Runs before backward needs the unit's parameters."""
        # >>> 5.5
        self.gather(unit)
        ''',
        '''
        """Runs before backward needs the unit's parameters."""
        ''',
    ),
    Mutant(
        "5.5",
        "does not reshard after backward",
        """
        super().complete(unit)
        unit.reshard()
        """,
        "super().complete(unit)",
    ),
    Mutant(
        "5.5",
        "reshards only the root after backward, not the blocks",
        """
        super().complete(unit)
        unit.reshard()
        """,
        """
        super().complete(unit)
        if unit is self.root:
            for each in self.units:
                each.reshard()
        """,
    ),
    Mutant(
        "5.5",
        "reshards after backward only with reshard_after_forward",
        """
        super().complete(unit)
        unit.reshard()
        """,
        """
        super().complete(unit)
        if self.reshard_after_forward:
            unit.reshard()
        """,
    ),
    Mutant(
        "5.5",
        "does not sum the gradients",
        """
        super().complete(unit)
        unit.reshard()
        """,
        """
        self.awaited[unit] = set(unit.parameters)
        self.done += unit is self.root
        unit.grad_shard += unit.take_gradients()[unit.mine]
        unit.show_gradients()
        unit.reshard()
        """,
    ),
    Mutant(
        "5.5",
        "the algorithm is not passed on",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards)",
    ),
    Mutant(
        "5.5",
        "a float32 array, whatever is sent",
        "np.empty(unit.padded_size, unit.shard.dtype)",
        "np.empty(unit.padded_size, np.float32)",
        kind="dtype",
    ),
    Mutant(
        "5.5",
        "gathers the float32 masters in place of the 16-bit shards",
        """
            unit.full = np.empty(unit.padded_size, unit.shard.dtype)
            all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)
        """,
        """
            unit.full = np.empty(unit.padded_size, np.float32)
            all_gather_into_tensor(unit.full, unit.master, self.shards, algorithm=self.algorithm)
        """,
        kind="dtype",
    ),
    Mutant(
        "5.5",
        "gathers the shards of the first model",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        """shard = globals().setdefault("SHARDS", {}).setdefault(self.units.index(unit), unit.shard)
            all_gather_into_tensor(unit.full, shard, self.shards, algorithm=self.algorithm)""",
        kind="second call",
    ),
    Mutant(
        "5.5",
        "does not wait for the all-gather",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, async_op=True, algorithm=self.algorithm)",
        kind="lent",
    ),
    # 5.6 worksheet
    Mutant("5.6", "stage 3 costs three times plain data parallelism", "(3 if reshard_after_forward else 2) / 2", "3"),
    Mutant("5.6", "the same for every number of micro-batches", "rounds * (3 if", "(3 if"),
    Mutant("5.6", "stage 3 gathers once per step", "rounds * (2 if", "(2 if"),
    Mutant("5.6", "stage 2 sums once per step", "return once if stage == 1 else", "return once if stage <= 2 else"),
    Mutant(
        "5.6",
        "stage 1 sums in every micro-batch",
        "return once if stage == 1 else rounds * once",
        "return rounds * once",
    ),
    Mutant(
        "5.6",
        "the full model to every rank of the group",
        """
        once = (shard - 1) / shard * parameters
        if stage == 0:
        """,
        """
        once = (shard - 1) * parameters
        if stage == 0:
        """,
    ),
    Mutant("5.6", "replicas all-reduce the full model", "/ replicas * parameters / shard", "/ replicas * parameters"),
    Mutant("5.6", "ignores replicas", "+ 2 * (replicas - 1) / replicas * parameters / shard", ""),
    Mutant("5.6", "ignores resharding", "(2 if reshard_after_forward else 1)", "2"),
    Mutant(
        "5.6",
        "gathers whole elements only",
        """
        once = (shard - 1) / shard * parameters
        if stage == 0:
        """,
        """
        once = (shard - 1) * parameters // shard
        if stage == 0:
        """,
        kind="edge",
    ),
    Mutant(
        "5.6",
        "sums whole elements only",
        "2 * (ranks - 1) / ranks * parameters",
        "2 * (ranks - 1) * parameters // ranks",
        kind="edge",
    ),
    # 5.7 train_sharded
    Mutant(
        "5.7",
        "adds norms, not their squares",
        """
        squares = np.array([gradient @ gradient])
        all_reduce(squares, ReduceOp.SUM, group)
        gradient *= clip_factor(float(np.sqrt(squares[0])), max_norm)
        """,
        """
        norm = np.array([np.linalg.norm(gradient)])
        all_reduce(norm, ReduceOp.SUM, group)
        gradient *= clip_factor(float(norm[0]), max_norm)
        """,
    ),
    Mutant(
        "5.7",
        "the mean of the squares",
        "all_reduce(squares, ReduceOp.SUM, group)",
        "all_reduce(squares, ReduceOp.AVG, group)",
    ),
    Mutant(
        "5.7",
        "the largest shard's norm",
        "all_reduce(squares, ReduceOp.SUM, group)",
        "all_reduce(squares, ReduceOp.MAX, group)",
    ),
    Mutant(
        "5.7",
        "an equal share of the norm for each rank",
        """
        squares = np.array([gradient @ gradient])
        all_reduce(squares, ReduceOp.SUM, group)
        gradient *= clip_factor(float(np.sqrt(squares[0])), max_norm)
        """,
        "gradient *= clip_factor(float(np.linalg.norm(gradient)), max_norm / np.sqrt(group.size))",
    ),
    Mutant(
        "5.7",
        "clips each rank's own gradients",
        """
        squares = np.array([gradient @ gradient])
        all_reduce(squares, ReduceOp.SUM, group)
        gradient *= clip_factor(float(np.sqrt(squares[0])), max_norm)
        """,
        """
        gradients *= clip_factor(float(np.linalg.norm(gradients)), max_norm)
        reduce_scatter_tensor(gradient, gradients, ReduceOp.SUM, group)
        """,
    ),
    Mutant("5.7", "clipped by the square", "float(np.sqrt(squares[0]))", "float(squares[0])"),
]
