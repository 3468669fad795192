"""The only vocabulary that crosses actors; every message is a frozen, tagged struct."""

from epe.messages.caching import (
    KEPT,
    ActiveStrategy,
    FreeCache,
    MagCache,
    MeanCache,
    NoCache,
    Pab,
    Reuse,
    Strategy,
    StrategyName,
    TaylorSeer,
    TeaCache,
)
from epe.messages.events import (
    Admitted,
    Departed,
    Event,
    LaneAtWork,
    LayoutChanged,
    Live,
    Palette,
    Predict,
    Predicted,
    Preview,
    Turned,
    WidthCost,
)
from epe.messages.leases import Abandon, Drop, Fetch, Keep, Lane, Lease, Split, Stage, Stop, Transfer
from epe.messages.operation import Action, Operate, RestartRanks, RestartStatus
from epe.messages.reports import (
    Checkpoint,
    Checkpointed,
    Decoded,
    DeviceUse,
    Encoded,
    Failure,
    FailureKind,
    GraphCounts,
    LeaseDone,
    LeaseFailed,
    Offered,
    RankReady,
    Received,
    SharedArray,
    StateHeader,
)
from epe.messages.requests import OutputFormat, Request
from epe.messages.service import (
    Accepted,
    Account,
    Again,
    Artifact,
    CacheAccount,
    Cancel,
    CostsStatus,
    Drain,
    Ended,
    Inspect,
    LaneVisit,
    PolicyStatus,
    Progress,
    RankStatus,
    Rejected,
    Status,
    Submit,
)
from epe.messages.system import Down, Watch

# Everything that may travel between processes; the decoder of a link knows no other type.
WireMessage = (
    Lease
    | Abandon
    | Drop
    | Fetch
    | Stop
    | RankReady
    | LeaseDone
    | LeaseFailed
    | StateHeader
    | Checkpoint
    | Checkpointed
    | Received
    | Decoded
    | Offered
    | Encoded
    | Submit
    | Accepted
    | Rejected
    | Cancel
    | Drain
    | Inspect
    | Operate
    | RestartRanks
    | Status
    | Progress
    | Account
    | Ended
    | Artifact
    | LayoutChanged
    | Predict
    | Predicted
    | Palette
    | Watch
    | Down
)

__all__ = [
    "KEPT",
    "Abandon",
    "Accepted",
    "Account",
    "Action",
    "ActiveStrategy",
    "Admitted",
    "Again",
    "Artifact",
    "CacheAccount",
    "Cancel",
    "Checkpoint",
    "Checkpointed",
    "CostsStatus",
    "Decoded",
    "Departed",
    "DeviceUse",
    "Down",
    "Drain",
    "Drop",
    "Encoded",
    "Ended",
    "Event",
    "Failure",
    "FailureKind",
    "Fetch",
    "FreeCache",
    "GraphCounts",
    "Inspect",
    "Keep",
    "Lane",
    "LaneAtWork",
    "LaneVisit",
    "LayoutChanged",
    "Lease",
    "LeaseDone",
    "LeaseFailed",
    "Live",
    "MagCache",
    "MeanCache",
    "NoCache",
    "Offered",
    "Operate",
    "OutputFormat",
    "Pab",
    "Palette",
    "PolicyStatus",
    "Predict",
    "Predicted",
    "Preview",
    "Progress",
    "RankReady",
    "RankStatus",
    "Received",
    "Rejected",
    "Request",
    "RestartRanks",
    "RestartStatus",
    "Reuse",
    "SharedArray",
    "Split",
    "Stage",
    "StateHeader",
    "Status",
    "Stop",
    "Strategy",
    "StrategyName",
    "Submit",
    "TaylorSeer",
    "TeaCache",
    "Transfer",
    "Turned",
    "Watch",
    "WidthCost",
    "WireMessage",
]
