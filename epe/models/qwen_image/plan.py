"""Where Qwen-Image is sharded: picture and text rows through all blocks, each stream by its own bounds.

The streams meet in attention alone, text first; the text is dropped after the last block.
"""

from epe.parallel import InputSplit, JointAttention, OutputGather, ShardPlan

TEXT, IMAGE = "text", "image"

PLAN = ShardPlan(
    splits=(
        InputSplit("transformer_blocks.0", "hidden_states", IMAGE),
        InputSplit("transformer_blocks.0", "encoder_hidden_states", TEXT),
        InputSplit("transformer_blocks.*", "image_rotary_emb", IMAGE, dim=0, item=0),
        InputSplit("transformer_blocks.*", "image_rotary_emb", TEXT, dim=0, item=1),
    ),
    gathers=(OutputGather("proj_out", IMAGE),),
    attention=(JointAttention("transformer_blocks.*.attn", (TEXT, IMAGE)),),
    replicable=(TEXT,),
)
