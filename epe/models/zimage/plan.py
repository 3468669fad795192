"""Where Z-Image is sharded: picture rows through the noise refiner, picture and text rows through the layers.

The context refiner stays whole on every rank: captions are short.
"""

from epe.parallel import DividedLayers, InputSplit, JointAttention, OutputGather, ShardPlan

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
        JointAttention("noise_refiner.*.attention", streams=("image",), kind="self"),
        JointAttention("layers.*.attention", streams=("image and text",)),
    ),
)

_BLOCKS = ("noise_refiner.*", "context_refiner.*", "layers.*")

# What is left whole on every plane, modulation above all, is 2 of 100 weights.
LAYERS = (
    *(
        DividedLayers(
            f"{block}.attention", columns=("to_q", "to_k", "to_v"), rows=("to_out.0",), heads="heads"
        )
        for block in _BLOCKS
    ),
    *(DividedLayers(f"{block}.feed_forward", columns=("w1", "w3"), rows=("w2",)) for block in _BLOCKS),
)
