"""Where Wan is sharded: video rows through all blocks.

Text stays whole on every rank: it is read by cross-attention alone, whose queries are the rank's own rows.
"""

from epe.parallel import (
    CrossAttention,
    DividedLayers,
    InputSplit,
    JointAttention,
    OutputGather,
    ShardPlan,
)

VIDEO = "video"

PLAN = ShardPlan(
    splits=(
        InputSplit("blocks.0", "hidden_states", VIDEO),
        InputSplit("blocks.*", "rotary_emb", VIDEO, item=0),
        InputSplit("blocks.*", "rotary_emb", VIDEO, item=1),
    ),
    gathers=(OutputGather("proj_out", VIDEO),),
    attention=(
        JointAttention("blocks.*.attn1", (VIDEO,), kind="self"),
        CrossAttention("blocks.*.attn2", VIDEO),
    ),
)

LAYERS = (
    *(
        DividedLayers(
            f"blocks.*.{attention}",
            columns=("to_q", "to_k", "to_v"),
            rows=("to_out.0",),
            norms=("norm_q", "norm_k"),
            heads="heads",
        )
        for attention in ("attn1", "attn2")
    ),
    DividedLayers("blocks.*.ffn", columns=("net.0.proj",), rows=("net.2",)),
)
