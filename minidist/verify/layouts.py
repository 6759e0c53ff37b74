"""The layouts that ``minidist verify`` tries where none are named. All fit its usual model of two layers."""

from minidist.train.layout import Layout


def _parsed(*texts: str) -> list[Layout]:
    return [Layout.parse(text) for text in texts]


# Every axis, every way to sync gradients, every algorithm, stage, schedule and mode of recomputation at least once.
DEFAULT_LAYOUTS = _parsed(
    "dp=2,sync=naive,algorithm=naive",
    "dp=3,sync=bucketed,bucket_mb=0.01,algorithm=direct",
    "dp=4,algorithm=ring",
    "dp=4,algorithm=two_shot",
    "dp=4,algorithm=halving_doubling",
    "dp=7,algorithm=tree,bucket_mb=0.05",
    "dp=7,algorithm=double_tree",
    "dp=4,node_size=2,algorithm=hierarchical",
    "zero=1,dp=4",
    "zero=2,dp=3",
    "zero=3,dp=2,prefetch=1",
    "zero=3,dp=4,shard=2,reshard_after_forward=0,node_size=2",
    "tp=2",
    "tp=2,sp=1,recompute=selective",
    "pp=2",
    "pp=2,schedule=naive",
    "pp=2,schedule=gpipe",
    "pp=2,schedule=zb-h1,recompute=full",
    "pp=2,schedule=interleaved,dp=2,zero=1",
    "pp=2,dp=2,tp=2,zero=1",
    "cp=2,cp_kind=zigzag,tp=2",
    "cp=2,dp=2,zero=3",
    "dp=2,ep=2",
    "dp=4,ep=2,zero=2,recompute=full",
    "dp=3,compress=topk:1,bucket_mb=0.01",
    "dp=3,sync=server,servers=2",
)

# With --all these too: more ranks, and more settings that meet.
MORE_LAYOUTS = _parsed(
    "dp=2",
    "dp=4",
    "dp=8,bucket_mb=0.02",
    "dp=2,sync=naive",
    "dp=3,sync=bucketed,bucket_mb=0.01",
    "dp=4,algorithm=naive",
    "dp=4,algorithm=tree",
    "dp=4,algorithm=direct",
    "dp=8,node_size=4,algorithm=hierarchical",
    "dp=6,node_size=2",
    "dp=4,node_size=2,zero=2,algorithm=hierarchical",
    "dp=2,tp=2,node_size=2",
    "zero=3,dp=4",
    "tp=4",
    "tp=2,sp=1",
    "dp=2,tp=2",
    "zero=1,dp=2,tp=2,sp=1",
    "zero=2,dp=2,tp=2,sp=1",
    "zero=3,dp=2,tp=2",
    "pp=2,schedule=zb-h1",
    "pp=2,dp=2,zero=1",
    "pp=2,dp=2,zero=1,recompute=full",
    "recompute=full",
    "recompute=selective",
    "cp=2",
    "cp=4",
    "cp=2,cp_kind=all-gather,pp=2",
    "cp=2,cp_kind=ulysses,tp=2,sp=1",
    "dp=4,ep=4",
    "dp=2,ep=2,tp=2,sp=1",
    "dp=2,ep=2,pp=2,schedule=zb-h1",
    "dp=5,ep=5",
    "dp=2,ep=2,cp=2",
    "dp=2,compress=powersgd:64",
    "dp=2,sync=server",
)
