"""What the lane means for tensors: rows of a sequence, heads of attention, branches of guidance.

The places in a model are data; each mechanism is written once.
"""

from epe.parallel.attention import max_team
from epe.parallel.guidance import predict_apart, predict_together
from epe.parallel.plan import MODEL, CrossAttention, InputSplit, JointAttention, OutputGather, ShardPlan
from epe.parallel.sequence import SequenceSharding

__all__ = [
    "MODEL",
    "CrossAttention",
    "InputSplit",
    "JointAttention",
    "OutputGather",
    "SequenceSharding",
    "ShardPlan",
    "max_team",
    "predict_apart",
    "predict_together",
]
