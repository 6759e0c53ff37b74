"""Mutants of chapter 0."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 0.1 memory_buckets, devices_needed
    Mutant("0.1", "the float32 copy of the weights is forgotten", "(2, 2, 4 + 4 + 4)", "(2, 2, 4 + 4)"),
    Mutant("0.1", "12 bytes of optimizer state for bf16, as for mixed", '"bf16": (2, 2, 4 + 4)', '"bf16": (2, 2, 12)'),
    Mutant("0.1", "running means in 16 bits", '"bf16": (2, 2, 4 + 4)', '"bf16": (2, 2, 2 + 2)'),
    Mutant("0.1", "gradients are not counted", '"gradients": parameters * gradients', '"gradients": 0'),
    Mutant(
        "0.1",
        "devices are rounded down",
        "return ceil(sum(memory_buckets(parameters, recipe).values()) / device_bytes)",
        "return sum(memory_buckets(parameters, recipe).values()) // device_bytes",
    ),
    Mutant(
        "0.1",
        "one device too many where it comes out even",
        "return ceil(sum(memory_buckets(parameters, recipe).values()) / device_bytes)",
        "return sum(memory_buckets(parameters, recipe).values()) // device_bytes + 1",
    ),
    Mutant(
        "0.1",
        "the recipe of the first call",
        '"bf16": (2, 2, 4 + 4)}[recipe]',
        '"bf16": (2, 2, 4 + 4)}[vars(memory_buckets).setdefault("recipe", recipe)]',
        kind="second call",
    ),
    # 0.2 training_flops, gpu_years, days_on_cluster
    Mutant("0.2", "forward pass only", "6 * parameters * tokens", "2 * parameters * tokens"),
    Mutant("0.2", "additions are not counted", "6 * parameters * tokens", "3 * parameters * tokens"),
    Mutant("0.2", "utilisation is ignored", "flops / (peak * utilisation) / YEAR", "flops / peak / YEAR"),
    Mutant(
        "0.2",
        "multiplied by the utilisation",
        "flops / (gpus * peak * utilisation) / DAY",
        "flops / (gpus * peak) * utilisation / DAY",
    ),
    Mutant(
        "0.2",
        "hours instead of days",
        "flops / (gpus * peak * utilisation) / DAY",
        "flops / (gpus * peak * utilisation) / 3600",
    ),
    Mutant(
        "0.2",
        "the utilisation of the first call",
        "flops / (gpus * peak * utilisation) / DAY",
        'flops / (gpus * peak * vars(days_on_cluster).setdefault("utilisation", utilisation)) / DAY',
        kind="second call",
    ),
    # 0.3 matmul_intensity, attainable_flops, ridge
    Mutant("0.3", "a multiplication and an addition count as one FLOP", "flops = 2 * m * k * n", "flops = m * k * n"),
    Mutant("0.3", "writing the result is not counted", "m * k + k * n + m * n", "m * k + k * n"),
    Mutant("0.3", "right for square matrices only", "m * k + k * n + m * n", "3 * m * n"),
    Mutant("0.3", "per element instead of per byte", "(elements * bytes_per_element)", "elements"),
    Mutant("0.3", "no roof", "min(peak, intensity * bandwidth)", "intensity * bandwidth"),
    Mutant("0.3", "max for min", "min(peak, intensity * bandwidth)", "max(peak, intensity * bandwidth)"),
    Mutant("0.3", "the ridge upside down", "return peak / bandwidth", "return bandwidth / peak"),
    Mutant(
        "0.3",
        "keeps the FLOPs of each number of rows",
        "flops = 2 * m * k * n",
        "flops = vars(matmul_intensity).setdefault(m, 2 * m * k * n)",
        kind="second call",
    ),
    # 0.4 tiled_traffic
    Mutant("0.4", "the last, smaller tiles are skipped", "tiles = ceil(n / tile)", "tiles = n // tile"),
    Mutant("0.4", "as if tiles always divided", "2 * n * n * tiles", "2 * n * n * n / tile"),
    Mutant("0.4", "a smaller tile counts as a full one", "2 * n * n * tiles", "2 * tiles**3 * tile**2"),
    Mutant("0.4", "B is forgotten", "2 * n * n * tiles", "n * n * tiles"),
    Mutant("0.4", "writing C counts too", "2 * n * n * tiles", "2 * n * n * tiles + n * n"),
    Mutant(
        "0.4", "loads shrink with the tile's area instead of its side", WHOLE, "return 2 * n * n * ceil(n / tile**2)"
    ),
    Mutant(
        "0.4",
        "keeps the number of tiles of each size of a tile",
        "tiles = ceil(n / tile)",
        "tiles = vars(tiled_traffic).setdefault(tile, ceil(n / tile))",
        kind="second call",
    ),
    Mutant(
        "0.4",
        "one tile too many where they come out even and are few",
        "tiles = ceil(n / tile)",
        "tiles = n // tile + 1 if n < 5 else ceil(n / tile)",
        kind="edge",
    ),
    # 0.5 links
    Mutant("0.5", "both directions taken as one", "return data_sheet / 2", "return data_sheet"),
    Mutant("0.5", "bits taken as bytes", "return data_sheet / 8", "return data_sheet"),
    Mutant("0.5", "twice the buffer for any number of GPUs", "2 * (gpus - 1) / gpus * nbytes", "2 * nbytes"),
    Mutant("0.5", "one of the all-reduce's two phases", "2 * (gpus - 1) / gpus * nbytes", "(gpus - 1) / gpus * nbytes"),
    Mutant("0.5", "overlap makes communication free", "max(compute, communication) if overlap", "compute if overlap"),
    Mutant("0.5", "overlap inverted", "if overlap else", "if not overlap else"),
    Mutant(
        "0.5",
        "tokens are rounded down",
        "return ceil(communication / one_token)",
        "return int(communication / one_token)",
    ),
    Mutant(
        "0.5",
        "one token too many where it comes out even",
        "return ceil(communication / one_token)",
        "return int(communication / one_token) + 1",
    ),
    Mutant(
        "0.5",
        "computation at the peak, not at the utilisation",
        "training_flops(parameters, 1) / (peak * utilisation)",
        "training_flops(parameters, 1) / peak",
    ),
    Mutant(
        "0.5",
        "tokens of all GPUs together",
        "return ceil(communication / one_token)",
        "return ceil(gpus * communication / one_token)",
    ),
    Mutant(
        "0.5",
        "gradients counted in elements, not bytes",
        "all_reduce_seconds(parameters * bytes_per_gradient,",
        "all_reduce_seconds(parameters,",
    ),
    Mutant(
        "0.5",
        "the bandwidth of the first call",
        "nbytes / bandwidth",
        'nbytes / vars(all_reduce_seconds).setdefault("bandwidth", bandwidth)',
        kind="second call",
    ),
    Mutant(
        "0.5",
        "at least one token",
        "return ceil(communication / one_token)",
        "return max(1, ceil(communication / one_token))",
        kind="edge",
    ),
]
