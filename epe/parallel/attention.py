"""Attention that a lane shares: teams of ranks share the heads, and every team sees the keys and values of the lane.

Teams of one are AGKV: each rank attends with its own query rows to all keys. One team as wide as the lane is Ulysses:
each rank attends with all query rows, for its part of the heads. Teams between are the hybrid of both; it needs no
more exchanges than Ulysses and no more bytes than Ulysses within teams and AGKV between them. Keys stand in global
order [all rows of the first stream, all of the next], so each row of each head has the bits that it has on one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from epe.geometry import row_bounds
from epe.parallel.blocks import Attend, attend_to_all
from epe.parallel.shares import Share
from epe.transport.exchange import Exchange

# The most ranks that share heads; None: as many as can. Of several limits the lanes may choose.
TeamLimit = int | None
TeamLimits = tuple[TeamLimit, ...]


def team_limits(attention_mode: str, ulysses_degree: int | None) -> TeamLimits:
    """What may be chosen from: 1 for `agkv`; for `ulysses` the degree, or None; for `auto` both methods."""
    match attention_mode:
        case "agkv" if ulysses_degree is None:
            return (1,)
        case "ulysses" if ulysses_degree is None or ulysses_degree >= 1:
            return (ulysses_degree,)
        case "auto" if ulysses_degree is None:
            return (1, None)
        case _:
            raise ValueError(f"attention_mode {attention_mode!r} has no ulysses_degree {ulysses_degree}")


def team_size(width: int, *, num_heads: int, limit: TeamLimit) -> int:
    """Ranks that share heads on a lane of `width`: its largest divisor within `limit` and the number of heads."""
    most = min(width, num_heads, limit or width)
    return next(size for size in range(most, 0, -1) if width % size == 0)


def attend_on_lane(
    attend: Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    shares: tuple[Share, ...],
    exchange: Exchange,
    limit: TeamLimit = 1,
) -> torch.Tensor:
    """Attention of this rank's rows to all rows: (batch, rows, heads, head dim) each, as is the result.

    Rows stand as the streams do, one after the other, each with this rank's share of it.
    """
    num_heads, depth = query.shape[2], key.shape[-1] + value.shape[-1]
    team = _Team(shares, exchange, team_size(exchange.width, num_heads=num_heads, limit=limit), num_heads)
    if team.size > 1 and key.shape[2] != num_heads:
        raise ValueError(f"{num_heads} heads of queries and {key.shape[2]} of keys cannot be shared by heads")
    packed = torch.cat((key, value) if team.size == 1 else (key, value, query), dim=-1)
    streams = team.trade(packed.transpose(0, 1), common=depth)
    gathered = torch.cat([part[..., :depth] for parts in streams for part in parts]).transpose(0, 1)
    keys, values = gathered.split((key.shape[-1], value.shape[-1]), dim=-1)
    if team.size > 1:
        queries = [part[..., depth:] for parts in streams for part in team.of_members(parts)]
        query = torch.cat(queries).transpose(0, 1)
    num_rows, has_last = keys.shape[1], exchange.width - 1 in team.members
    attended = attend_to_all(attend, query, keys, values, num_rows=num_rows, has_last=has_last)
    return attended if team.size == 1 else team.hand_back(attended)


@dataclass(frozen=True, slots=True)
class _Team:
    """The ranks that share heads with this one: `size` neighbours of the lane, each with a part of the heads.

    Tensors travel with their rows first: (rows, batch, heads, depth).
    """

    shares: tuple[Share, ...]
    exchange: Exchange
    size: int
    num_heads: int

    @property
    def members(self) -> range:
        """Their positions in the lane."""
        first = self.exchange.position // self.size * self.size
        return range(first, first + self.size)

    def heads(self, position: int) -> slice:
        """The heads that `position` attends for."""
        return slice(*row_bounds(self.num_heads, self.size)[position % self.size])

    def of_members(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """The members' parts of a stream, of which there is one alone if it is replicated."""
        return parts if len(parts) == 1 else [parts[position] for position in self.members]

    def trade(self, own: torch.Tensor, *, common: int) -> list[list[torch.Tensor]]:
        """The parts of each stream, by position, with the heads of this rank.

        The first `common` values of a head go to all ranks that attend for it, the others within the team.
        """
        me, batch, depth = self.exchange.position, own.shape[1], own.shape[-1]
        lane = range(self.exchange.width)
        depths = [depth if position in self.members else common for position in lane]
        held = own.split([share.sizes[me] for share in self.shares])
        sent = self._sent(own, held)
        heads = self.heads(me)
        received = self.exchange.all_to_all(
            [sent[:, :, self.heads(position), : depths[position]] for position in lane],
            [(self._num_sent(p), batch, heads.stop - heads.start, depths[p]) for p in lane],
        )
        arrived = [part.split([s.sent(p) for s in self.shares]) for p, part in enumerate(received)]
        return [
            [held[number][:, :, heads]] if share.replicated else [parts[number] for parts in arrived]
            for number, share in enumerate(self.shares)
        ]

    def _num_sent(self, position: int) -> int:
        return sum(share.sent(position) for share in self.shares)

    def _sent(self, own: torch.Tensor, held: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The rows that the others lack."""
        if not any(share.replicated for share in self.shares):
            return own
        return torch.cat([p for p, share in zip(held, self.shares, strict=True) if not share.replicated])

    def hand_back(self, attended: torch.Tensor) -> torch.Tensor:
        """This rank's rows with all heads, from the team's rows (batch, rows, this rank's heads, head dim)."""
        batch, _, _, depth = attended.shape
        num_rows = sum(share.sizes[self.exchange.position] for share in self.shares)
        outgoing = [attended.new_empty(0)] * self.exchange.width
        shapes: list[tuple[int, ...]] = [(0,)] * self.exchange.width
        for position, rows in zip(self.members, self._rows_of_members(attended), strict=True):
            heads = self.heads(position)
            outgoing[position] = rows
            shapes[position] = (num_rows, batch, heads.stop - heads.start, depth)
        received = self.exchange.all_to_all(outgoing, shapes)
        # Contiguous, since linear layers with bias give other bits over a strided slice of a batch.
        return torch.cat([received[p] for p in self.members], dim=2).transpose(0, 1).contiguous()

    def _rows_of_members(self, attended: torch.Tensor) -> Iterator[torch.Tensor]:
        """From the team's rows, those that each member holds."""
        sizes = [
            [share.num_rows] if share.replicated else [share.sizes[p] for p in self.members]
            for share in self.shares
        ]
        blocks = iter(attended.transpose(0, 1).split([size for stream in sizes for size in stream]))
        streams = [[next(blocks) for _ in stream] for stream in sizes]
        for index in range(self.size):
            yield torch.cat([parts[0] if len(parts) == 1 else parts[index] for parts in streams])
