"""Planted bugs of chapter 5."""

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
    Mutant("5.1", "stage 3 shards the weights alone", "if stage >= 1:", "if 1 <= stage < 3:"),
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
    Mutant("5.1", "the last number of ranks, where none is enough", "return 0", "return ranks"),
    # 5.2 shard_slice
    Mutant("5.2", "rounded down: elements at the end belong to nobody", "-(-elements // ranks)", "elements // ranks"),
    Mutant(
        "5.2",
        "the last shard is cut off",
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
        "the first shards are longer by one",
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
    Mutant("5.2", "dealt out like cards", "slice(rank * length, (rank + 1) * length)", "slice(rank, elements, ranks)"),
    Mutant(
        "5.2",
        "the library's own",
        WHOLE,
        "from minidist.parallel import units; return units.shard_slice(elements, rank, ranks)",
    ),
    # 5.3 ZeroStage1
    Mutant(
        "5.3",
        "averages, which happens elsewhere already",
        "reduce_scatter_tensor(total, gradients, ReduceOp.SUM",
        "reduce_scatter_tensor(total, gradients, ReduceOp.AVG",
    ),
    Mutant(
        "5.3",
        "the reduce-scatter is left out: each rank keeps its own gradients",
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
        "ranks that own other shards sum theirs together",
        "all_reduce(total, ReduceOp.SUM, self.replicas)",
        "all_reduce(total, ReduceOp.SUM, self.shards)",
    ),
    Mutant(
        "5.3", "the second sum of a step overwrites the first", "unit.grad_shard += total", "unit.grad_shard[:] = total"
    ),
    Mutant("5.3", "another array takes the shard's place", "unit.grad_shard += total", "unit.grad_shard = total"),
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
        "an all-reduce, of which the shard is cut out: twice the bytes",
        "reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)",
        "all_reduce(gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm); total[:] = gradients[unit.mine]",
    ),
    Mutant(
        "5.3",
        "replicas all-reduce the whole unit",
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
        "the gradients of all ranks are kept",
        "gradients = unit.take_gradients()  # (padded_size,)",
        "gradients = unit.kept = unit.take_gradients()",
    ),
    Mutant(
        "5.3",
        "the shard below",
        "reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)",
        "reduce_scatter_tensor(total, np.roll(gradients, 1), ReduceOp.SUM, self.shards, algorithm=self.algorithm)",
    ),
    Mutant(
        "5.3",
        "the root is not published",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        """if unit is not self.root:
                all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)""",
    ),
    Mutant(
        "5.3",
        "one block is not published: stale weights",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        """if unit is not self.blocks[1]:
                all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)""",
    ),
    Mutant(
        "5.3",
        "published into a new array, and the old one is kept",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        """flat = np.empty_like(unit.full)
            all_gather_into_tensor(flat, unit.shard, self.shards, algorithm=self.algorithm)
            unit.show(flat)""",
    ),
    Mutant(
        "5.3",
        "published by an all-reduce of shards among zeros",
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
    # 5.4 ZeroStage2
    Mutant("5.4", "the gradient stays outside", "unit.collect(parameter)", "pass"),
    Mutant(
        "5.4",
        "every gradient is summed by itself",
        "if not self.awaited[unit]:",
        "if True:",
    ),
    Mutant(
        "5.4",
        "from the second micro-batch on nothing is awaited",
        "self.awaited[unit] = set(unit.parameters)",
        "pass",
    ),
    Mutant(
        "5.4",
        "all units are summed when backward is over",
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
        "gradients are collected when the unit is complete",
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
        "a unit is complete with its first parameter in order",
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
        "micro-batches are not counted: zeros for all of them",
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
    Mutant("5.4", "one missing micro-batch at most", "while self.done < self.rounds:", "if self.done < self.rounds:"),
    Mutant(
        "5.4",
        "missing micro-batches begin with the root",
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
    # 5.5 ZeroStage3
    Mutant(
        "5.5",
        "gathered again although it is there",
        "if unit.full is None:",
        "if True:",
    ),
    Mutant("5.5", "gathered, and not shown", "unit.show(unit.full)", "pass"),
    Mutant(
        "5.5",
        "the weights of the first step for ever",
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
        "the gathered array is kept for the next time",
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
        "this rank's shard alone",
        "all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)",
        "unit.full[unit.mine] = unit.shard",
    ),
    Mutant(
        "5.5",
        "the whole model is gathered before it runs",
        '''
        """Called before the unit's module runs."""
        # >>> 5.5
        self.gather(unit)
        ''',
        '''
        """Called before the unit's module runs."""
        for each in self.units[::-1]:
            self.gather(each)
        ''',
    ),
    Mutant(
        "5.5",
        "the next block is gathered too early",
        '''
        """Called before the unit's module runs."""
        # >>> 5.5
        self.gather(unit)
        ''',
        '''
        """Called before the unit's module runs."""
        self.gather(unit)
        order = [self.root, *self.blocks]
        if unit is not order[-1]:
            self.gather(order[order.index(unit) + 1])
        ''',
    ),
    Mutant(
        "5.5",
        "not gathered before forward",
        '''
        """Called before the unit's module runs."""
        # >>> 5.5
        self.gather(unit)
        ''',
        '''
        """Called before the unit's module runs."""
        ''',
    ),
    Mutant("5.5", "never given up after forward", "if self.reshard_after_forward:", "if False:"),
    Mutant("5.5", "always given up after forward", "if self.reshard_after_forward:", "if True:"),
    Mutant(
        "5.5",
        "the root is not given up after forward",
        "if self.reshard_after_forward:",
        "if self.reshard_after_forward and unit is not self.root:",
    ),
    Mutant(
        "5.5",
        "not gathered again for backward",
        '''
        """Called before backward needs the unit's parameters."""
        # >>> 5.5
        self.gather(unit)
        ''',
        '''
        """Called before backward needs the unit's parameters."""
        ''',
    ),
    Mutant(
        "5.5",
        "not given up after backward",
        """
        super().complete(unit)
        unit.reshard()
        """,
        "super().complete(unit)",
    ),
    Mutant(
        "5.5",
        "blocks are not given up after backward, the root is",
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
        "given up after backward as after forward: not without resharding",
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
        "the gradients are not summed",
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
    # 5.6 worksheet
    Mutant("5.6", "stage 3 costs three times plain data parallelism", "(3 if reshard_after_forward else 2) / 2", "3"),
    Mutant("5.6", "the same in every number of micro-batches", "rounds * (3 if", "(3 if"),
    Mutant("5.6", "stage 3 gathers once in a step", "rounds * (2 if", "(2 if"),
    Mutant("5.6", "stage 2 sums once in a step", "return once if stage == 1 else", "return once if stage <= 2 else"),
    Mutant(
        "5.6",
        "stage 1 sums in every micro-batch",
        "return once if stage == 1 else rounds * once",
        "return rounds * once",
    ),
    Mutant(
        "5.6",
        "the whole model to every rank of the group",
        """
        once = (shard - 1) / shard * parameters
        if stage == 0:
        """,
        """
        once = (shard - 1) * parameters
        if stage == 0:
        """,
    ),
    Mutant("5.6", "replicas all-reduce the whole model", "/ replicas * parameters / shard", "/ replicas * parameters"),
    Mutant("5.6", "replicas are forgotten", "+ 2 * (replicas - 1) / replicas * parameters / shard", ""),
    Mutant("5.6", "resharding is forgotten", "(2 if reshard_after_forward else 1)", "2"),
    # 5.7 train_sharded
    Mutant(
        "5.7",
        "norms are added up, not their squares",
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
        "a fair share of the norm for each rank",
        """
        squares = np.array([gradient @ gradient])
        all_reduce(squares, ReduceOp.SUM, group)
        gradient *= clip_factor(float(np.sqrt(squares[0])), max_norm)
        """,
        "gradient *= clip_factor(float(np.linalg.norm(gradient)), max_norm / np.sqrt(group.size))",
    ),
    Mutant(
        "5.7",
        "each rank's own gradients are clipped",
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
