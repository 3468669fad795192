"""The only vocabulary that crosses actors; every message is a frozen, tagged struct."""

from epe.messages.leases import Drop, Fetch, Lane, Lease, Split, Stage, Stop, Transfer
from epe.messages.reports import (
    Decoded,
    Encoded,
    Failure,
    FailureKind,
    LeaseDone,
    LeaseFailed,
    RankReady,
    StateHeader,
)
from epe.messages.requests import OutputFormat, Request
from epe.messages.service import (
    Accepted,
    Account,
    Artifact,
    Cancel,
    CostsStatus,
    Drain,
    Ended,
    Inspect,
    LaneVisit,
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
    | Drop
    | Fetch
    | Stop
    | RankReady
    | LeaseDone
    | LeaseFailed
    | StateHeader
    | Decoded
    | Encoded
    | Submit
    | Accepted
    | Rejected
    | Cancel
    | Drain
    | Inspect
    | Status
    | Progress
    | Account
    | Ended
    | Artifact
    | Watch
    | Down
)

__all__ = [
    "Accepted",
    "Account",
    "Artifact",
    "Cancel",
    "CostsStatus",
    "Decoded",
    "Down",
    "Drain",
    "Drop",
    "Encoded",
    "Ended",
    "Failure",
    "FailureKind",
    "Fetch",
    "Inspect",
    "Lane",
    "LaneVisit",
    "Lease",
    "LeaseDone",
    "LeaseFailed",
    "OutputFormat",
    "Progress",
    "RankReady",
    "RankStatus",
    "Rejected",
    "Request",
    "Split",
    "Stage",
    "StateHeader",
    "Status",
    "Stop",
    "Submit",
    "Transfer",
    "Watch",
    "WireMessage",
]
