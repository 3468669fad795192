"""What the lane means for tensors: rows of a sequence, branches of guidance.

The places in a model are data; each mechanism is written once.
"""

from epe.parallel.guidance import predict_apart, predict_together
from epe.parallel.plan import InputSplit, OutputGather, ShardPlan
from epe.parallel.sequence import SequenceSharding

__all__ = ["InputSplit", "OutputGather", "SequenceSharding", "ShardPlan", "predict_apart", "predict_together"]
