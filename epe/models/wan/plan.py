"""Where Wan is sharded: video rows through all blocks.

Text stays whole on every rank: it is read by cross-attention alone, whose queries are the rank's own rows.
"""

from epe.parallel import InputSplit, JointAttention, OutputGather, ShardPlan

PLAN = ShardPlan(
    splits=(
        InputSplit("blocks.0", "hidden_states", "video"),
        InputSplit("blocks.*", "rotary_emb", "video"),
    ),
    gathers=(OutputGather("proj_out", "video"),),
    attention=(JointAttention("blocks.*.attn1", ("video",)),),
)
