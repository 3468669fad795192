"""Where FLUX.1 is sharded: picture and text rows from the inputs on, each stream by its own bounds.

Double blocks keep the streams apart but for attention, single blocks join them; keys stand text first in both.
"""

from epe.parallel import MODEL, InputSplit, JointAttention, OutputGather, ShardPlan

TEXT, IMAGE = "text", "image"

PLAN = ShardPlan(
    splits=(
        InputSplit(MODEL, "hidden_states", IMAGE),
        InputSplit(MODEL, "img_ids", IMAGE, dim=0),
        InputSplit(MODEL, "encoder_hidden_states", TEXT),
        InputSplit(MODEL, "txt_ids", TEXT, dim=0),
    ),
    gathers=(OutputGather("proj_out", IMAGE),),
    attention=(
        JointAttention("transformer_blocks.*.attn", (TEXT, IMAGE)),
        JointAttention("single_transformer_blocks.*.attn", (TEXT, IMAGE)),
    ),
    replicable=(TEXT,),
)
