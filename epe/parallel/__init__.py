"""What the lane means for tensors: rows of a sequence, heads of attention, branches of guidance, planes of features.

The places in a model are data; each mechanism is written once.
"""

from epe.parallel.attention import TeamLimits, team_limits
from epe.parallel.broadcast import Broadcast, Kinds
from epe.parallel.compiling import compile_blocks
from epe.parallel.guidance import Forward, predict_apart, predict_together
from epe.parallel.plan import (
    MODEL,
    CrossAttention,
    DividedLayers,
    InputSplit,
    JointAttention,
    OutputGather,
    ShardPlan,
)
from epe.parallel.sequence import SequenceSharding
from epe.parallel.tensor import ONE_PLANE, Cut, Plane, TensorSharding

__all__ = [
    "MODEL",
    "ONE_PLANE",
    "Broadcast",
    "CrossAttention",
    "Cut",
    "DividedLayers",
    "Forward",
    "InputSplit",
    "JointAttention",
    "Kinds",
    "OutputGather",
    "Plane",
    "SequenceSharding",
    "ShardPlan",
    "TeamLimits",
    "TensorSharding",
    "compile_blocks",
    "predict_apart",
    "predict_together",
    "team_limits",
]
