"""Every part of a job runs once, on one thread, and none of the job before runs among them."""

import _qwenmtp_testing as core
import pytest
from kernels.launch import native


@pytest.mark.parametrize(("parts", "next_parts"), [(2, 5), (5, 2), (3, 3), (1, 200)])
def test_a_late_worker_takes_no_part_of_the_next_job(parts: int, next_parts: int) -> None:
    # Seen as an answer that never ended: the part counted against the next job, which waited for one more for ever.
    late, handed_out = core.pool_late_take(parts, next_parts)
    assert late == -1
    assert handed_out == list(range(next_parts))


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_part_runs_once(threads: int) -> None:
    native.set_threads(threads)
    assert core.pool_wrong_jobs(2000) == 0


def test_the_number_of_threads_changes_between_jobs() -> None:
    for threads in (3, 1, 2, 8, 2):
        native.set_threads(threads)
        assert core.pool_wrong_jobs(20) == 0
