"""What a prompt may take over, and where boundaries are: the worked values of sessions.md 1.5 and 1.8."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwenmtp.reuse import BoundaryPolicy, RestorePoint, ReusePolicy, as_ids, common_prefix

REFERENCE = ReusePolicy(near_min=64, block_min=512)
STORED = [64, 576, 640, 704, 768, 832, 896, 899]


@pytest.mark.parametrize(
    ("common", "n_prompt", "want"),
    [
        (900, 900, RestorePoint(900, "exact")),
        (900, 950, RestorePoint(900, "exact")),
        (895, 907, RestorePoint(832, "boundary")),
        (836, 848, RestorePoint(832, "boundary")),
        (830, 842, RestorePoint(768, "boundary")),
        (520, 532, RestorePoint(64, "boundary")),
        (500, 512, None),
        (860, 860, RestorePoint(832, "boundary")),
        (896, 896, RestorePoint(832, "boundary")),  # a boundary has no logits: one token must follow it
        (896, 897, RestorePoint(896, "boundary")),
        (0, 10, None),
    ],
)
def test_worked_values_of_the_reference(common: int, n_prompt: int, want: RestorePoint | None) -> None:
    assert REFERENCE.restore_point(common, 900, STORED, n_prompt) == want


def test_each_rule_and_its_switch() -> None:
    def at(common: int, n_prompt: int = 2000, **policy: int | bool) -> int:
        point = ReusePolicy(**{"near_min": 64, "block_min": 512, **policy}).restore_point(common, 900, [60], n_prompt)
        return point.length if point else 0

    assert at(892) == at(892, block_prefix=False) == 60
    assert at(891, block_prefix=False) == 0
    assert at(891, block_prefix=False, gap=9) == 60
    assert at(892, block_prefix=False, near_min=893) == 60  # min(893, 900 - 8)
    assert at(892, near_prefix=False) == 60
    assert at(892, near_prefix=False, block_prefix=False) == 0
    assert at(511) == 0
    assert at(511, block_min=511) == 60
    assert at(59, block_min=1) == 0
    small = ReusePolicy(near_min=64, block_prefix=False)
    assert small.restore_point(3, 10, [2], 9) == RestorePoint(2, "boundary")
    assert small.restore_point(1, 10, [1], 9) is None  # fewer than all but the gap


def test_a_state_without_logits_needs_a_token_behind_it() -> None:
    policy = ReusePolicy()
    assert policy.restore_point(7, 7, [], 7, has_logits=False) is None
    assert policy.restore_point(7, 7, [5, 7], 7, has_logits=False) == RestorePoint(5, "boundary")
    assert policy.restore_point(7, 7, [], 8, has_logits=False) == RestorePoint(7, "exact")


@given(st.data())
def test_never_past_the_common_prefix_nor_without_a_row_to_answer_from(data: st.DataObject) -> None:
    n_stored, n_prompt = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60))
    common = data.draw(st.integers(0, min(n_stored, n_prompt)))
    boundaries = sorted(data.draw(st.sets(st.integers(1, n_stored))))
    has_logits = data.draw(st.booleans())
    point = ReusePolicy().restore_point(common, n_stored, boundaries, n_prompt, has_logits=has_logits)
    usable = [b for b in boundaries if b <= min(common, n_prompt - 1)]
    whole = common == n_stored and (has_logits or common < n_prompt)
    assert (point and point.length) == (common if whole else usable[-1] if usable else None)


TABLE = {
    512: ([447, 511], [447, 511]),
    4096: ([2048, 4031, 4095], [2048, 4031, 4095]),
    16384: (
        [2048, 4096, 6144, 8192, 10240, 12288, 14336, 16319, 16383],
        [2048, 6144, 8192, 10240, 12288, 14336, 16319, 16383],
    ),
    32768: (17, [2048, 8192, 16384, 24576, 28672, 30720, 32703, 32767]),
    100_000: (50, [2048, 32768, 49152, 65536, 81920, 98304, 99935, 99999]),
}


@pytest.mark.parametrize("n", TABLE)
def test_captured_and_kept_positions_of_the_reference(n: int) -> None:
    captured, kept = TABLE[n]
    policy = BoundaryPolicy(budget=8)
    found = policy.captured(0, n)
    assert (len(found) if isinstance(captured, int) else found) == captured
    assert policy.planned(0, n) == policy.kept(found, n) == kept
    assert policy.kept(kept, n) == kept


def test_the_reference_s_small_chunks() -> None:
    policy = BoundaryPolicy(budget=8, chunk=64)
    assert policy.captured(0, 900) == [*range(64, 900, 64), 899]
    assert policy.planned(0, 900) == STORED


def test_smaller_budgets_keep_what_matters_most() -> None:
    kept = [BoundaryPolicy(budget).planned(0, 32768) for budget in range(6)]
    assert kept == [
        [],
        [32703],
        [32703, 32767],
        [2048, 32703, 32767],
        [2048, 16384, 32703, 32767],
        [2048, 16384, 24576, 32703, 32767],
    ]


def test_rungs_stand_at_growing_distances_inside_a_wide_chunk() -> None:
    policy = BoundaryPolicy(8, chunk=16384)
    assert policy.captured(0, 10001) == [6928, 8976, 9936, 10000]
    assert BoundaryPolicy(8, chunk=16384, interval=0).captured(0, 10001) == [10000]
    assert BoundaryPolicy(8, backoff=0).captured(0, 2000) == [1999]
    assert BoundaryPolicy(8, rung=100).captured(0, 1001) == [700, 900, 936, 1000]
    assert BoundaryPolicy(8, interval=600).captured(0, 512) == [511]


def test_a_warm_turn_keeps_its_restored_prefix_and_what_it_knew() -> None:
    policy = BoundaryPolicy()
    assert policy.captured(700, 1000) == [700]  # one fused forward
    assert policy.planned(700, 1000, [447, 511]) == [447, 511, 700]
    assert policy.captured(700, 1300) == [700, 1235, 1299]
    assert policy.planned(700, 1300, [447, 511]) == [447, 700, 1235, 1299]
    assert policy.captured(700, 700) == [700]
    assert policy.captured(0, 1) == []
    assert policy.captured(0, 2) == [1]


@given(st.integers(0, 300), st.integers(1, 300), st.integers(0, 64), st.integers(0, 8))
def test_every_boundary_lies_in_the_body(held: int, more: int, chunk: int, budget: int) -> None:
    n = held + more
    policy = BoundaryPolicy(budget, chunk, fused_suffix=20, interval=16, backoff=4, rung=8)
    captured = policy.captured(held, n)
    assert captured == sorted(set(captured))
    assert all(max(held, 1) <= b < max(n, 2) for b in captured)
    kept = policy.planned(held, n)
    assert set(kept) <= set(captured)
    assert len(kept) == min(budget, len(captured))


def test_common_prefixes() -> None:
    assert common_prefix(as_ids([1, 2, 3]), as_ids([1, 2, 4])) == 2
    assert common_prefix(as_ids([1, 2]), as_ids([1, 2, 4])) == 2
    assert common_prefix(as_ids([]), as_ids([1])) == 0
    assert common_prefix(as_ids([5]), np.asarray([4], np.int64)) == 0
