"""Mutants of chapter 14. Many are numbers that circulate."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 14.1 model states
    Mutant("14.1", "as many heads of keys as of queries", "model.width // model.heads * model.kv_heads", "model.width"),
    Mutant("14.1", "an MLP of two matrices", "3 * model.width * model.hidden", "2 * model.width * model.hidden"),
    Mutant("14.1", "12 h h, as for a GPT", "return matrices + 2 * model.width", "return 12 * model.width**2"),
    Mutant("14.1", "matrices alone", "return matrices + 2 * model.width", "return matrices"),
    Mutant(
        "14.1", "a norm of weights and biases", "return matrices + 2 * model.width", "return matrices + 4 * model.width"
    ),
    Mutant("14.1", "a tied head", "+ 2 * model.vocab * model.width", "+ model.vocab * model.width"),
    Mutant("14.1", "no last norm", "model.vocab * model.width + model.width", "model.vocab * model.width"),
    Mutant("14.1", "layers alone", " + 2 * model.vocab * model.width + model.width", ""),
    Mutant(
        "14.1", "norms are split too", "(layer_parameters(model) - norms) / tp + norms", "layer_parameters(model) / tp"
    ),
    Mutant("14.1", "every stage has every layer", "model.layers // pp * layer", "model.layers * layer"),
    Mutant(
        "14.1",
        "tensor parallelism splits layers alone",
        "if stage == 0:\n    found += model.vocab * model.width / tp",
        "if stage == 0:\n    found += model.vocab * model.width",
    ),
    Mutant("14.1", "no embedding", "if stage == 0:", "if stage < 0:"),
    Mutant("14.1", "the head is on the first stage", "if stage == pp - 1:", "if stage == 0:"),
    Mutant(
        "14.1", "one stage has either embedding or head", "if stage == pp - 1:", "elif stage == pp - 1:", kind="edge"
    ),
    Mutant(
        "14.1",
        "an even share of everything",
        "most = max(stage_parameters(model, layout.tp, layout.pp, stage) for stage in range(layout.pp))",
        "most = model_parameters(model) / (layout.tp * layout.pp)",
    ),
    Mutant("14.1", "the first stage is the fullest", "for stage in range(layout.pp))", "for stage in (0,))"),
    Mutant("14.1", "ZeRO 1 shards gradients too", "for stage in (3, 2, 1)]", "for stage in (3, 1, 1)]"),
    Mutant("14.1", "ZeRO 3 keeps parameters", "for stage in (3, 2, 1)]", "for stage in (4, 2, 1)]"),
    Mutant("14.1", "ZeRO 0 shards", "zero < stage", "zero < stage - 1"),
    Mutant("14.1", "8 bytes of optimizer: no master weights", "12 * held[2]", "8 * held[2]"),
    Mutant("14.1", "gradients of 2 bytes", "gradient * held[1]", "2 * held[1]"),
    Mutant("14.1", "shards over all GPUs", "state_bytes(most, layout.dp,", "state_bytes(most, layout.gpus,"),
    # 14.2 activations
    Mutant("14.2", "without tensor parallelism", "model.context / layout.tp  # every", "model.context  # every"),
    Mutant("14.2", "one sequence", "layout.micro_batch * model.context / layout.tp", "model.context / layout.tp"),
    Mutant("14.2", "full recomputation keeps nothing", "return 2 * tokens * model.width", "return 0.0"),
    Mutant(
        "14.2",
        "full recomputation keeps what both norms read",
        "return 2 * tokens * model.width",
        "return 4 * tokens * model.width",
    ),
    Mutant("14.2", "keys as wide as queries", "model.width // model.heads * model.kv_heads", "model.width"),
    Mutant("14.2", "no values", "2 * tokens * (6 * model.width + 2 * keys)", "2 * tokens * (6 * model.width + keys)"),
    Mutant("14.2", "the statistic in 2 bytes", "4 * tokens * model.heads", "2 * tokens * model.heads"),
    Mutant(
        "14.2",
        "34 s b h",
        'return kept if layout.recompute == "mlp" else kept + 2 * tokens * 3 * model.hidden',
        "return 34 * tokens * model.width",
    ),
    Mutant("14.2", "two arrays of hidden units", "2 * tokens * 3 * model.hidden", "2 * tokens * 2 * model.hidden"),
    Mutant("14.2", "mlp keeps everything", 'kept if layout.recompute == "mlp" else', ""),
    Mutant("14.2", "all micro-batches, as in GPipe", "min(micro_batches, layout.pp - stage)", "micro_batches"),
    Mutant(
        "14.2", "every rank holds as many", "min(micro_batches, layout.pp - stage)", "min(micro_batches, layout.pp)"
    ),
    Mutant("14.2", "more than there are", "min(micro_batches, layout.pp - stage)", "layout.pp - stage", kind="edge"),
    Mutant("14.2", "interleaved like 1F1B", "if layout.virtual == 1:", "if True:"),
    Mutant("14.2", "1F1B like interleaved", "if layout.virtual == 1:", "if False:"),
    Mutant("14.2", "one chunk less", "warm_up + 1)", "warm_up)"),
    Mutant(
        "14.2", "no more than micro-batches", "min(micro_batches * layout.virtual,", "min(micro_batches,", kind="edge"
    ),
    Mutant("14.2", "a round too many", "(layout.virtual - 1) * layout.pp", "layout.virtual * layout.pp"),
    Mutant(
        "14.2",
        "micro-batches of all replicas",
        "batch // (layout.dp * layout.micro_batch)",
        "batch // layout.micro_batch",
    ),
    Mutant(
        "14.2", "sequences in place of micro-batches", "batch // (layout.dp * layout.micro_batch)", "batch // layout.dp"
    ),
    Mutant(
        "14.2",
        "all layers of the rank for each chunk",
        "model.layers // (layout.pp * layout.virtual)",
        "model.layers // layout.pp",
    ),
    Mutant(
        "14.2", "forgets the pipeline", "model.layers // (layout.pp * layout.virtual)", "model.layers // layout.virtual"
    ),
    Mutant("14.2", "no logits", "if stage == layout.pp - 1:", "if False:"),
    Mutant(
        "14.2",
        "logits of all in flight",
        "found += 4 *",
        "found += chunks_in_flight(layout, stage, micro_batches) * 4 *",
        kind="edge",
    ),
    Mutant("14.2", "logits in 16 bits", "found += 4 *", "found += 2 *"),
    Mutant("14.2", "logits on every rank of tensor parallelism", "model.vocab / layout.tp", "model.vocab"),
    # 14.3 FLOPs
    Mutant(
        "14.3",
        "2 FLOPs for every parameter",
        "matrices = model.layers * (layer_parameters(model) - 2 * model.width) + model.width * model.vocab",
        "matrices = model_parameters(model)",
    ),
    Mutant("14.3", "no head", "- 2 * model.width) + model.width * model.vocab", "- 2 * model.width)"),
    Mutant("14.3", "norms multiply", "(layer_parameters(model) - 2 * model.width)", "layer_parameters(model)"),
    Mutant(
        "14.3",
        "2 N alone: no attention",
        "return 2 * matrices + (pairs / 2 if causal else pairs)",
        "return 2 * matrices",
    ),
    Mutant(
        "14.3",
        "attention of one layer",
        "4 * model.layers * model.width * model.context",
        "4 * model.width * model.context",
    ),
    Mutant(
        "14.3",
        "keys without values",
        "4 * model.layers * model.width * model.context",
        "2 * model.layers * model.width * model.context",
    ),
    Mutant(
        "14.3",
        "heads of keys count, not of queries",
        "4 * model.layers * model.width * model.context",
        "4 * model.layers * model.width // model.heads * model.kv_heads * model.context",
    ),
    Mutant("14.3", "the mask the wrong way round", "pairs / 2 if causal else pairs", "pairs if causal else pairs / 2"),
    Mutant("14.3", "a quarter", "pairs / 2 if causal", "pairs / 4 if causal"),
    Mutant(
        "14.3",
        "full recomputation repeats the head",
        "forward_flops(model, causal) - 2 * model.width * model.vocab",
        "forward_flops(model, causal)",
    ),
    Mutant("14.3", "mlp repeats down too", "2 * 2 * model.width * model.hidden", "3 * 2 * model.width * model.hidden"),
    Mutant("14.3", "of one layer", "model.hidden * model.layers if", "model.hidden if"),
    Mutant("14.3", "forward alone", "flops = 3 * forward_flops", "flops = forward_flops"),
    Mutant("14.3", "backward takes as long as forward", "flops = 3 * forward_flops", "flops = 2 * forward_flops"),
    Mutant("14.3", "MFU counts nothing again, nor does HFU", " + recomputed_flops(model, causal, recompute)", ""),
    Mutant(
        "14.3",
        "one GPU",
        "tokens_per_second * flops / (cluster.gpus * cluster.flops)",
        "tokens_per_second * flops / cluster.flops",
    ),
    Mutant(
        "14.3",
        "the wrong way round",
        "mfu * forward_flops(model, not causal) / forward_flops(model, causal)",
        "mfu * forward_flops(model, causal) / forward_flops(model, not causal)",
    ),
    Mutant(
        "14.3",
        "half",
        "return mfu * forward_flops(model, not causal) / forward_flops(model, causal)",
        "return mfu * 2 if causal else mfu / 2",
    ),
    Mutant(
        "14.3",
        "6 N D",
        "return 3 * forward_flops(model, causal) * tokens",
        "return 6 * model_parameters(model) * tokens",
    ),
    Mutant("14.3", "at the peak", "(mfu * cluster.gpus * cluster.flops)", "(cluster.gpus * cluster.flops)"),
    Mutant("14.3", "hours", "/ 86400", "/ 3600"),
    # 14.4 what a step waits for
    Mutant("14.4", "the whole node", "max(1, min(size, node // stride))", "node"),
    Mutant("14.4", "the stride does not matter", "max(1, min(size, node // stride))", "min(size, node)"),
    Mutant("14.4", "more than there are", "max(1, min(size, node // stride))", "max(1, node // stride)"),
    Mutant(
        "14.4", "no rank on its own node", "max(1, min(size, node // stride))", "min(size, node // stride)", kind="edge"
    ),
    Mutant("14.4", "one network card", "min(cluster.fast, near * cluster.slow)", "cluster.slow"),
    Mutant(
        "14.4",
        "all cards of the node",
        "min(cluster.fast, near * cluster.slow)",
        "min(cluster.fast, cluster.node * cluster.slow)",
    ),
    Mutant("14.4", "faster than NVLink", "min(cluster.fast, near * cluster.slow)", "near * cluster.slow"),
    Mutant("14.4", "always inside", "if near == size:", "if True:"),
    Mutant("14.4", "never inside", "if near == size:", "if size == 1:"),
    Mutant("14.4", "a card limited by the link it has not", "cluster.slow if near == 1 else", "", kind="edge"),
    Mutant(
        "14.4",
        "one byte an element",
        "2 * layout.micro_batch * model.context * model.width",
        "layout.micro_batch * model.context * model.width",
    ),
    Mutant("14.4", "a shard", "(layout.tp - 1) / layout.tp * array", "(layout.tp - 1) / layout.tp * array / layout.tp"),
    Mutant("14.4", "forward alone", '{"none": 8, "mlp": 9, "full": 12}', '{"none": 4, "mlp": 5, "full": 8}'),
    Mutant("14.4", "all-reduces count once", '{"none": 8, "mlp": 9, "full": 12}', '{"none": 4, "mlp": 4.5, "full": 6}'),
    Mutant(
        "14.4", "recomputation sends nothing", '{"none": 8, "mlp": 9, "full": 12}', '{"none": 8, "mlp": 8, "full": 8}'
    ),
    Mutant("14.4", "all layers", "model.layers // layout.pp * count", "model.layers * count"),
    Mutant(
        "14.4",
        "over the whole step",
        "model.layers // layout.pp * count * once",
        "model.layers // layout.pp * count * once * layout.dp",
    ),
    Mutant(
        "14.4",
        "data-parallel ranks are neighbours",
        "ring_bandwidth(layout.dp, layout.tp, cluster)",
        "ring_bandwidth(layout.dp, 1, cluster)",
    ),
    Mutant(
        "14.4",
        "gradients of 2 bytes",
        "scatter, gather = 4 * seconds, 2 * seconds",
        "scatter, gather = 2 * seconds, 2 * seconds",
    ),
    Mutant("14.4", "an all-reduce counts once", "max(0.0, 2 * scatter - backward)", "max(0.0, scatter - backward)"),
    Mutant("14.4", "nothing hides", "return max(0.0, 2 * scatter - backward)", "return 2 * scatter"),
    Mutant("14.4", "everything hides", "return max(0.0, 2 * scatter - backward)", "return 0.0"),
    Mutant("14.4", "below zero", "return max(0.0, 2 * scatter - backward)", "return 2 * scatter - backward"),
    Mutant(
        "14.4",
        "ZeRO 1 hides in the sum",
        "max(0.0, scatter - backward) + max(0.0, gather - forward)",
        "max(0.0, scatter + gather - backward - forward)",
    ),
    Mutant("14.4", "ZeRO 3 once a step", "return micro_batches * (max", "return (max"),
    Mutant("14.4", "ZeRO 3 gathers once", "gather + scatter - backward", "scatter - backward"),
    Mutant("14.4", "the whole bubble", "(layout.pp - 1) / layout.virtual) * slot", "(layout.pp - 1)) * slot"),
    Mutant("14.4", "no bubble", "(micro_batches + (layout.pp - 1) / layout.virtual) * slot", "micro_batches * slot"),
    Mutant("14.4", "a bubble of pp", "(layout.pp - 1) / layout.virtual", "layout.pp / layout.virtual"),
    Mutant("14.4", "exposed in every micro-batch", "* slot + exposed", "* slot + micro_batches * exposed"),
    # 14.5 search
    Mutant("14.5", "tensor parallelism leaves the node", "min(cluster.node, model.kv_heads) + 1", "model.kv_heads + 1"),
    Mutant(
        "14.5",
        "not up to the node",
        "min(cluster.node, model.kv_heads) + 1",
        "min(cluster.node, model.kv_heads)",
        kind="edge",
    ),
    Mutant("14.5", "uneven heads", "model.kv_heads % tp or ", ""),
    Mutant("14.5", "queries' heads", "model.kv_heads % tp or ", "model.heads % tp or "),
    Mutant("14.5", "uneven layers", "model.layers % pp or cluster", "cluster"),
    Mutant(
        "14.5",
        "not all GPUs",
        "model.layers % pp or cluster.gpus % (tp * pp)",
        "model.layers % pp or tp * pp > cluster.gpus",
    ),
    Mutant("14.5", "uneven batches", "if batch % dp:", "if dp > batch:"),
    Mutant("14.5", "ZeRO without replicas", "[0] if dp == 1 else [0, 1] if pp > 1", "[0, 1] if pp > 1"),
    Mutant("14.5", "ZeRO 3 with a pipeline", "[0, 1] if pp > 1 else [0, 1, 3]", "[0, 1, 3]"),
    Mutant("14.5", "no ZeRO 3", "[0, 1] if pp > 1 else [0, 1, 3]", "[0, 1]"),
    Mutant("14.5", "ZeRO 2 too", "else [0, 1, 3]", "else [0, 1, 2, 3]"),
    Mutant("14.5", "micro-batches of one sequence", "range(1, batch // dp + 1)", "range(1, 2)"),
    Mutant("14.5", "not the whole batch", "range(1, batch // dp + 1)", "range(1, batch // dp)", kind="edge"),
    Mutant("14.5", "uneven micro-batches", "if batch // dp % n == 0)", "if n)"),
    Mutant("14.5", "chunks without a pipeline", "whole_rounds = pp > 1 and batch", "whole_rounds = batch"),
    Mutant(
        "14.5",
        "interleaved in any rounds",
        "whole_rounds = pp > 1 and batch // (dp * micro_batch) % pp == 0",
        "whole_rounds = pp > 1",
    ),
    Mutant("14.5", "no interleaved schedule", "chunks if whole_rounds else [1]", "[1]"),
    Mutant(
        "14.5",
        "chunks of one layer at least, but even",
        "model.layers % (pp * v) == 0]",
        "model.layers // pp % 2 == 0 or v == 1]",
    ),
    Mutant(
        "14.5",
        "the interleaved schedule alone where it is legal",
        "chunks if whole_rounds else [1]",
        "chunks[1:] or [1] if whole_rounds else [1]",
    ),
    Mutant("14.5", "no partial recomputation", '("none", "mlp", "full")', '("none", "full")'),
    Mutant(
        "14.5",
        "twice",
        "found.append(Layout(dp, tp, pp, virtual, zero, recompute, micro_batch))",
        "found += 2 * [Layout(dp, tp, pp, virtual, zero, recompute, micro_batch)]",
    ),
    Mutant(
        "14.5",
        "tuples",
        "found.append(Layout(dp, tp, pp, virtual, zero, recompute, micro_batch))",
        "found.append((dp, tp, pp, virtual, zero, recompute, micro_batch))",
    ),
    Mutant(
        "14.5",
        "all of them are planned",
        """
        if len(known) == top and least > known[-1][0]:
            break
        """,
        "",
    ),
    Mutant("14.5", "stops at the bound of the first", "least > known[-1][0]:", "least > known[0][0]:"),
    Mutant(
        "14.5",
        "in the order of the list",
        "for one in layouts if memory(one) <= limit), key=lambda p: p[0]):",
        "for one in layouts if memory(one) <= limit), key=lambda p: 0):",
    ),
    Mutant(
        "14.5",
        "the lowest bounds, and no seconds",
        "known = sorted([*known, (seconds(layout), layout)], key=lambda pair: pair[0])[:top]",
        "known = [*known, (seconds(layout), layout)]",
    ),
    Mutant("14.5", "what does not fit is planned too", "if memory(one) <= limit)", ")"),
    Mutant("14.5", "a free byte", "if memory(one) <= limit)", "if memory(one) < limit)", kind="edge"),
    Mutant(
        "14.5",
        "the slowest first",
        "return [layout for _, layout in known]",
        "return [layout for _, layout in known[::-1]]",
    ),
    Mutant("14.5", "one only", "return [layout for _, layout in known]", "return [layout for _, layout in known[:1]]"),
    Mutant("14.5", "seconds twice", "(seconds(layout), layout)]", "(max(seconds(layout), seconds(layout)), layout)]"),
    Mutant(
        "14.5",
        "sorts what it was lent",
        "known: list[tuple[float, Layout]] = []  # the best so far",
        "known: list[tuple[float, Layout]] = []\n    layouts.sort(key=bound)",
        kind="lent",
    ),
    # 14.6 the proposal
    Mutant(
        "14.6",
        "the pipeline multiplies the batch",
        """
        sequences = layout.micro_batch * accumulation * layout.dp
        mine = model_parameters(model) / (layout.tp * layout.pp)
        """,
        """
        sequences = layout.micro_batch * accumulation * layout.dp * layout.pp
        mine = model_parameters(model) / (layout.tp * layout.pp)
        """,
    ),
    Mutant(
        "14.6",
        "tensor parallelism multiplies the batch",
        """
        sequences = layout.micro_batch * accumulation * layout.dp
        mine = model_parameters(model) / (layout.tp * layout.pp)
        """,
        """
        sequences = layout.micro_batch * accumulation * layout.dp * layout.tp
        mine = model_parameters(model) / (layout.tp * layout.pp)
        """,
    ),
    Mutant("14.6", "the memory of a model without a pipeline", "/ (layout.tp * layout.pp)", "/ layout.tp"),
    Mutant("14.6", "parameters over all GPUs", "/ (layout.tp * layout.pp)", "/ layout.gpus"),
    Mutant("14.6", "accumulation shrinks gradients", "gradients = 4 * mine\n", "gradients = 4 * mine / accumulation\n"),
    Mutant(
        "14.6",
        "ZeRO 1 shards gradients",
        "gradients = 4 * mine\n",
        "gradients = 4 * mine / (layout.dp if layout.zero else 1)\n",
    ),
    Mutant("14.6", "gradients of 2 bytes", "gradients = 4 * mine\n", "gradients = 2 * mine\n"),
    Mutant("14.6", "accumulation keeps all activations", "in_flight = layout.pp\n", "in_flight = accumulation\n"),
    Mutant("14.6", "one micro-batch in flight", "in_flight = layout.pp\n", "in_flight = 1\n"),
    # 14.7 cost
    Mutant("14.7", "one GPU's failures", "mtbf = gpu_mtbf / gpus", "mtbf = gpu_mtbf"),
    Mutant("14.7", "more GPUs, fewer failures", "mtbf = gpu_mtbf / gpus", "mtbf = gpu_mtbf * gpus"),
    Mutant("14.7", "sqrt(delta M)", "sqrt(2 * save * mtbf)", "sqrt(save * mtbf)"),
    Mutant(
        "14.7",
        "first order",
        "return interval / mtbf * exp(-restart / mtbf) / expm1((interval + save) / mtbf)",
        "return 1 - save / interval - (interval / 2 + restart) / mtbf",
    ),
    Mutant("14.7", "a restart takes no time", "exp(-restart / mtbf)", "1.0"),
    Mutant("14.7", "a save takes no time", "expm1((interval + save) / mtbf)", "expm1(interval / mtbf)"),
    Mutant("14.7", "failures help", "tokens / (tokens_per_second * share)", "tokens * share / tokens_per_second"),
    Mutant("14.7", "without failures", "tokens / (tokens_per_second * share)", "tokens / tokens_per_second"),
    Mutant("14.7", "failures of one GPU", "seconds * gpus / gpu_mtbf", "seconds / gpu_mtbf"),
    Mutant("14.7", "seconds cost", "seconds / 3600 * gpus * price", "seconds * gpus * price"),
    Mutant("14.7", "one GPU is paid for", "seconds / 3600 * gpus * price", "seconds / 3600 * price"),
    Mutant("14.7", "days cost", "seconds / 3600 * gpus * price", "seconds / 86400 * gpus * price"),
    Mutant("14.7", "any number of GPUs", "range(node, most + 1, node)", "range(1, most + 1)"),
    Mutant("14.7", "not the last node", "range(node, most + 1, node)", "range(node, most, node)", kind="edge"),
    Mutant("14.7", "as fast as one", "run_seconds(tokens, gpus * speed, share)", "run_seconds(tokens, speed, share)"),
    Mutant(
        "14.7", "nothing fails", "run_seconds(tokens, gpus * speed, share)", "run_seconds(tokens, gpus * speed, 1.0)"
    ),
    Mutant(
        "14.7",
        "all there are",
        'raise ValueError(f"no number of up to {most} GPUs ends within {days:g} days")',
        "return most",
    ),
    Mutant(
        "14.7",
        "the loss of the first node",
        "share = useful_share(gpu_mtbf, gpus, save, restart)",
        "share = useful_share(gpu_mtbf, node, save, restart)",
    ),
    # 14.8 scaling laws
    Mutant(
        "14.8",
        "20 tokens for each parameter",
        "parameters = balance * product ** (law.beta / (law.alpha + law.beta))",
        "parameters = (product / 20) ** 0.5",
    ),
    Mutant("14.8", "C = N D", "product = flops / 6", "product = flops"),
    Mutant(
        "14.8",
        "the exponents the wrong way round",
        "product ** (law.beta / (law.alpha + law.beta))",
        "product ** (law.alpha / (law.alpha + law.beta))",
    ),
    Mutant(
        "14.8",
        "the balance upside down",
        "(law.alpha * law.A / (law.beta * law.B))",
        "(law.beta * law.B / (law.alpha * law.A))",
    ),
    Mutant(
        "14.8", "equal terms in place of equal slopes", "(law.alpha * law.A / (law.beta * law.B))", "(law.A / law.B)"
    ),
    Mutant(
        "14.8",
        "tokens of the whole budget",
        "return parameters, product / parameters",
        "return parameters, flops / parameters",
    ),
    Mutant(
        "14.8",
        "E is reached",
        "rest = loss - law.E - law.A / parameters**law.alpha",
        "rest = loss - law.A / parameters**law.alpha",
    ),
    Mutant("14.8", "an infinite model", "rest = loss - law.E - law.A / parameters**law.alpha", "rest = loss - law.E"),
    Mutant("14.8", "any loss is reached", "if rest > 0 else inf", "if rest > 0 else 0.0", kind="edge"),
    Mutant("14.8", "the exponent", "** (1 / law.beta) if", "** law.beta if"),
    Mutant(
        "14.8",
        "nobody uses it",
        "6 * tokens_to_reach(law, loss, size) + 2 * served",
        "6 * tokens_to_reach(law, loss, size)",
    ),
    Mutant("14.8", "6 N for each token served", "+ 2 * served)", "+ 6 * served)"),
    Mutant("14.8", "tokens alone", "return size * (6 *", "return (6 *"),
    Mutant("14.8", "three digits", "while high - low > 1e-9:", "while high - low > 1e-2:"),
    Mutant("14.8", "models of up to twice the smallest", "smallest + 40", "smallest + 0.7", kind="edge"),
    Mutant(
        "14.8",
        "the compute-optimal size of its own budget",
        "size, enough = cheapest(law, law.loss(parameters, tokens))",
        "size, enough = best_size(law, 6 * parameters * tokens)",
    ),
    Mutant("14.8", "over the tokens", "return parameters * tokens / (size * enough)", "return tokens / enough"),
    Mutant(
        "14.8",
        "with those who use it",
        "cheapest(law, law.loss(parameters, tokens))",
        "cheapest(law, law.loss(parameters, tokens), tokens)",
    ),
    # 14.9 large batches
    Mutant(
        "14.9",
        "noise of the small batch alone",
        "noise = (small_square - large_square) / (1 / small - 1 / large)",
        "noise = small_square * small",
    ),
    Mutant(
        "14.9",
        "the large batch has no noise",
        "signal = (large * large_square - small * small_square) / (large - small)",
        "signal = large_square",
    ),
    Mutant("14.9", "for a batch, not a sample", "/ (1 / small - 1 / large)", ""),
    Mutant("14.9", "upside down", "return noise / signal", "return signal / noise if noise else 0.0"),
    Mutant("14.9", "the square root", "return noise / signal", "return (noise / signal) ** 0.5"),
    Mutant("14.9", "the large run has the fewest steps", "least = (b * fewer - a * steps) / (b - a)", "least = fewer"),
    Mutant("14.9", "steps, not samples", "examples = (steps - least) * a", "examples = steps - least"),
    Mutant("14.9", "samples of the small run", "examples = (steps - least) * a", "examples = steps * a"),
    Mutant(
        "14.9",
        "the two the wrong way round",
        "return least, examples, examples / least",
        "return least, examples, least / examples",
    ),
    Mutant(
        "14.9",
        "linear, not in steps",
        "start + samples * steps // ramp * increment",
        "start + samples * (final - start) // ramp",
    ),
    Mutant(
        "14.9",
        "one stage late",
        "samples * steps // ramp * increment",
        "max(0, samples - 1) * steps // ramp * increment",
        kind="edge",
    ),
    Mutant(
        "14.9",
        "beyond the final batch",
        "min(final, start + samples * steps // ramp * increment)",
        "start + samples * steps // ramp * increment",
    ),
    Mutant(
        "14.9",
        "the final batch is a stage of its own",
        "steps = (final - start) // increment\n",
        "steps = (final - start) // increment + 1\n",
    ),
    Mutant("14.9", "from zero", "min(final, start + samples", "min(final, samples"),
    Mutant(
        "14.9",
        "stages of whole samples",
        "samples * steps // ramp * increment",
        "samples // max(1, ramp // steps) * increment",
        kind="edge",
    ),
    Mutant("14.9", "no ramp", "while seen < samples and seen < ramp:", "while False:"),
    Mutant(
        "14.9", "an unfinished step does not count", "-(-(samples - seen) // final)", "max(0, samples - seen) // final"
    ),
    Mutant(
        "14.9",
        "the whole ramp, however few samples",
        "while seen < samples and seen < ramp:",
        "while seen < ramp:",
        kind="edge",
    ),
    # 14.10 trust ratios
    Mutant(
        "14.10",
        "a ratio for each shard",
        "totals = all_sum(np.array(squares, np.int64))",
        "totals = np.array(squares, np.int64)",
    ),
    Mutant(
        "14.10",
        "a scale for each shard",
        "largest = all_max(np.array(tops, np.float64))",
        "largest = np.array(tops, np.float64)",
    ),
    Mutant(
        "14.10",
        "norms of shards are added",
        """
        norms = [sqrt(int(total)) / scale for total, scale in zip(totals, scales, strict=True)]
        """,
        """
        mine = [int(1e6 * sqrt(one) / scale) for one, scale in zip(squares, scales, strict=True)]
        norms = all_sum(np.array(mine)) / 1e6
        """,
    ),
    Mutant(
        "14.10",
        "float sums",
        WHOLE,
        """
        names = list(sizes)
        found = np.zeros((2, len(names)))
        for row, arrays in zip(found, (weights, updates), strict=True):
            for name, array in arrays.items():
                row[names.index(name)] = np.sum(array.astype(np.float64) ** 2)
        scale = 2.0 ** (40 - np.ceil(np.log2(np.maximum(all_max(found.ravel()), 1e-300))))
        squares = all_sum((found.ravel() * scale).astype(np.int64)) / scale
        norms = np.sqrt(squares).tolist()
        pairs = zip(names, norms[: len(names)], norms[len(names) :], strict=True)
        return {name: weight / update if weight and update else 1.0 for name, weight, update in pairs}
        """,
    ),
    Mutant(
        "14.10",
        "elements of the shard",
        "grid_scale(float(top), count) if top",
        "grid_scale(float(top), max(1, array.size if array is not None else 1)) if top",
    ),
    Mutant(
        "14.10",
        "in the order of the shards",
        "for name, count in sizes.items()]",
        "for name, count in ((name, sizes[name]) for name in [*arrays, *(n for n in sizes if n not in arrays)])]",
    ),
    Mutant("14.10", "every rank has every name", "(arrays.get(name), count)", "(arrays[name], count)", kind="edge"),
    Mutant("14.10", "no shard is empty", "array if array is not None and array.size else None", "array", kind="edge"),
    Mutant("14.10", "ratios of squares", "sqrt(int(total)) / scale for", "int(total) / scale**2 for"),
    Mutant("14.10", "upside down", "weight / update if weight and update", "update / weight if weight and update"),
    Mutant(
        "14.10",
        "0 for weights that are 0",
        "weight / update if weight and update else 1.0",
        "weight / update if update else 1.0",
        kind="edge",
    ),
    Mutant(
        "14.10",
        "an update of 0",
        "weight / update if weight and update else 1.0",
        "weight / (update + 1e-6) if weight else 1.0",
        kind="edge",
    ),
    Mutant("14.10", "the scale is forgotten", "sqrt(int(total)) / scale for", "sqrt(int(total)) for"),
    Mutant("14.10", "NumPy's numbers", "sqrt(int(total)) / scale for", "np.sqrt(total) / scale for", kind="dtype"),
    Mutant(
        "14.10",
        "in float32",
        "int(squares_on_grid(array, scale))",
        "int(squares_on_grid(array.astype(np.float32), scale))",
        kind="dtype",
    ),
    Mutant(
        "14.10",
        "one ratio for the model",
        "weight / update if weight and update else 1.0",
        "sqrt(sum(n * n for n in norms[: len(sizes)])) / sqrt(sum(n * n for n in norms[len(sizes) :]))",
    ),
    Mutant(
        "14.10",
        "a message for each matrix",
        "totals = all_sum(np.array(squares, np.int64))",
        "totals = [all_sum(np.array([square], np.int64))[0] for square in squares]",
    ),
    Mutant(
        "14.10",
        "works in place",
        "int(squares_on_grid(array, scale))",
        "int(squares_on_grid(np.multiply(array, 1.5, out=array) / 1.5, scale))",
        kind="lent",
    ),
]
