"""Where Z-Image is sharded: picture rows through the noise refiner, picture and text rows through the layers.

The context refiner stays whole on every rank: captions are short.
"""

from epe.parallel import InputSplit, JointAttention, OutputGather, ShardPlan

PLAN = ShardPlan(
    splits=(
        InputSplit("noise_refiner.0", "x", stream="image"),
        InputSplit("noise_refiner.*", "freqs_cis", stream="image"),
        InputSplit("layers.0", "x", stream="image and text"),
        InputSplit("layers.*", "freqs_cis", stream="image and text"),
    ),
    gathers=(
        OutputGather("noise_refiner.-1", stream="image"),
        OutputGather("all_final_layer.*", stream="image and text"),
    ),
    attention=(
        JointAttention("noise_refiner.*.attention", streams=("image",)),
        JointAttention("layers.*.attention", streams=("image and text",)),
    ),
)
