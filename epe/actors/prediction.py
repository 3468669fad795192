"""What requests would cost, and when they would end, if they came now: nothing of it stays in the books."""

from __future__ import annotations

from collections.abc import Sequence

from epe.actors.admission import workload_of
from epe.actors.leasing import Leasing
from epe.messages import Accepted, Predicted, Request, Stage, WidthCost
from epe.planning.work import cost_key


def predict(leasing: Leasing, requests: Sequence[Request], *, now_s: float) -> Predicted:
    """The requests have ids that are not in the books; they are of one size."""
    admitted, accepted = [], []
    try:
        for request in requests:
            admitted.append(leasing.admit(request, now_s=now_s, for_client=True))
            accepted.append(_accepted(leasing, request, now_s=now_s))
    finally:
        for trajectory in admitted:
            del leasing.trajectories[trajectory.request.id]
    workload, costs = workload_of(leasing.settings.family, requests[0]), leasing.costs
    encode_s, decode_s, finish_s = (
        costs.seconds(cost_key(workload, stage, 1)) for stage in (Stage.ENCODE, Stage.DECODE, Stage.FINISH)
    )
    widths = leasing.settings.widths
    denoise_s = {
        width: requests[0].num_computed(0, requests[0].num_steps)
        * costs.seconds(cost_key(workload, Stage.DENOISE, width))
        for width in workload.widths(widths, limit=widths[-1])
    }
    num_planes = leasing.settings.num_planes
    return Predicted(
        accepted=tuple(accepted),
        encode_s=encode_s,
        decode_s=decode_s,
        finish_s=finish_s,
        widths=tuple(
            WidthCost(width=width, denoise_s=seconds, rank_s=seconds * width * num_planes)
            for width, seconds in denoise_s.items()
        ),
    )


def _accepted(leasing: Leasing, request: Request, *, now_s: float) -> Accepted:
    predicted_s = leasing.predicted_s(request.id, now_s=now_s)
    late = request.deadline_s is not None and predicted_s > request.deadline_s
    basis = leasing.basis(request.id)
    return Accepted(request_id=request.id, predicted_s=predicted_s, predicted_from=basis, late=late)
