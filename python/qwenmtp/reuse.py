"""Which part of a stored state a prompt can take over, and where states are recorded so that it can. Lengths only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

CELL = 8192  # tokens; every cell of a long prompt may keep one boundary


class RestorePoint(NamedTuple):
    """Tokens that need no forward, and how the stored state gets there: as it is, or rewound to a boundary."""

    length: int
    kind: Literal["exact", "boundary"]


@dataclass(frozen=True, slots=True)
class ReusePolicy:
    """When a state that the prompt leaves is worth rewinding (`session.*` settings); the defaults always do."""

    near_prefix: bool = True
    block_prefix: bool = True
    gap: int = 8
    near_min: int = 1
    block_min: int = 1

    def restore_point(
        self, common: int, n_stored: int, boundaries: Sequence[int], n_prompt: int, *, has_logits: bool = True
    ) -> RestorePoint | None:
        """Where a stored state meets a prompt, never past what they share.

        Args:
            common: Tokens that both begin with.
            n_stored: Tokens of the stored state.
            boundaries: Lengths it can be rewound to, ascending.
            n_prompt: Tokens of the prompt.
            has_logits: Whether the state can answer without a forward.
        """
        if common == n_stored and (has_logits or common < n_prompt):
            return RestorePoint(common, "exact") if common else None
        near = self.near_prefix and n_stored - common <= self.gap and common >= min(self.near_min, n_stored - self.gap)
        if not near and not (self.block_prefix and common >= self.block_min):
            return None
        # a boundary has no logits: at least one token must follow it
        usable = bisect_right(boundaries, min(common, n_prompt - 1))
        return RestorePoint(boundaries[usable - 1], "boundary") if usable else None


def common_prefix(a: Ids, b: Ids) -> int:
    """Tokens that both begin with."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


def as_ids(ids: Sequence[int] | npt.NDArray[Any]) -> Ids:
    """Token ids as the functions here take them."""
    return np.asarray(ids, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class BoundaryPolicy:
    """Where boundaries are recorded while a prompt is read, and which are kept.

    Attributes:
        budget: Boundaries of one state.
        chunk: Tokens of one prefill forward.
        fused_suffix: A suffix up to this length is one forward, without boundaries inside.
        interval: A last chunk of more rows gets boundaries inside; 0 is never.
        backoff: Tokens between the prompt's end and the boundary before it.
        rung: Tokens to the next boundary before that.
    """

    budget: int = 4
    chunk: int = 2048
    fused_suffix: int = 512
    interval: int = 256
    backoff: int = 64
    rung: int = 1024

    def planned(self, held: int, n_prompt: int, known: Iterable[int] = ()) -> list[int]:
        """Boundaries of a state after a prompt was read behind `held` tokens, of which `known` has some already."""
        return self.kept({*known, *self.captured(held, n_prompt)}, n_prompt, held)

    def captured(self, held: int, n_prompt: int) -> list[int]:
        """All lengths where a boundary could be taken: the restored prefix, the ends of chunks, rungs within the last
        chunk at growing distances from its end, and the end of the prompt without its last token."""
        start = [held] if held else []
        end = n_prompt - 1
        if held >= end or (held and n_prompt - held <= self.fused_suffix):
            return start
        chunk = self.chunk or end
        ends = list(range(held + chunk, end, chunk))
        last = ends[-1] if ends else held
        rungs = []
        distance, rows = self.backoff, end - last
        while self.interval and rows > self.interval and 0 < distance <= rows - distance:
            rungs.append(end - distance)
            distance = self.rung if distance < self.rung else 2 * distance + self.rung
        return [*start, *ends, *reversed(rungs), end]

    def kept(self, lengths: Iterable[int], n_prompt: int, held: int = 0) -> list[int]:
        """Those that fit the budget: the newest one `backoff` tokens before the prompt's end, the restored prefix, the
        newest, the first of every cell of 8,192 tokens with the coarsest cells first, then the newest."""
        newest = sorted(set(lengths), reverse=True)
        anchor = [b for b in newest if b <= n_prompt - self.backoff][:1]
        first_of_cell = {b // CELL: b for b in newest}
        cells = sorted(first_of_cell, key=lambda cell: (-_coarseness(cell), -cell))
        order = [*anchor, *(b for b in newest if b == held), *newest[:1], *(first_of_cell[c] for c in cells), *newest]
        return sorted(list(dict.fromkeys(order))[: self.budget])


def _coarseness(cell: int) -> int:
    """The largest power of two that divides the cell's index; the first cell is the coarsest."""
    return cell & -cell if cell else 1 << 62
