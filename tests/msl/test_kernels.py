"""Every kernel against its float64 oracle, on checked threads, three schedules."""

import numpy as np
import pytest
from msl.families import ALL
from msl.harness.case import Case
from msl.harness.cpu import SCHEDULES


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.id)
def test_kernel(case: Case) -> None:
    """No finding, the oracle's values, and the same bits under every schedule and CUDA's grid."""
    inputs = case.inputs()
    first = case.run(inputs)
    case.check(first, inputs)
    if "released" in case.shape:
        return
    launches = [(schedule, False) for schedule in SCHEDULES if schedule != "ascending"] + [("random", True)]
    for schedule, cuda_grid in launches:
        again = case.run(inputs, schedule, cuda_grid)
        assert not again.findings, again.findings
        for a, b in zip(first.outputs, again.outputs, strict=True):
            np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))
