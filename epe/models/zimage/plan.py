"""Where Z-Image is sharded: picture rows through the noise refiner, picture and text rows through the layers.

The context refiner stays whole on every rank: captions are short.
"""

from epe.parallel import InputSplit, OutputGather, ShardPlan

PLAN = ShardPlan(
    splits=(
        InputSplit("noise_refiner.0", "x"),
        InputSplit("noise_refiner.*", "freqs_cis"),
        InputSplit("layers.0", "x"),
        InputSplit("layers.*", "freqs_cis"),
    ),
    gathers=(
        OutputGather("noise_refiner.-1"),
        OutputGather("all_final_layer.*"),
    ),
    attention=("noise_refiner.*.attention", "layers.*.attention"),
)
