"""Where Wan is sharded: video rows through all blocks.

Text stays whole on every rank: it is read by cross-attention alone, whose queries are the rank's own rows.
"""

from epe.parallel import CrossAttention, InputSplit, JointAttention, OutputGather, ShardPlan

VIDEO = "video"

PLAN = ShardPlan(
    splits=(
        InputSplit("blocks.0", "hidden_states", VIDEO),
        InputSplit("blocks.*", "rotary_emb", VIDEO, item=0),
        InputSplit("blocks.*", "rotary_emb", VIDEO, item=1),
    ),
    gathers=(OutputGather("proj_out", VIDEO),),
    attention=(
        JointAttention("blocks.*.attn1", (VIDEO,)),
        CrossAttention("blocks.*.attn2", VIDEO),
    ),
)
