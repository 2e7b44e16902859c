"""The harness reports every fault seeded into our own kernels."""

from dataclasses import replace

import numpy as np
import pytest
from msl.families import ALL
from msl.harness.case import Case
from msl.harness.cpu import SCHEDULES
from msl.harness.faults import Fault, seeded

SMALL = [c for c in ALL if c.shape.startswith("ragged")]
ONE_EACH = list({c.kernel.name: c for c in reversed(SMALL)}.values())
FAULTS = [f for c in ONE_EACH for f in seeded(c.kernel)]
# Order that exists only between atomics is no data race; it shows as a wrong result.
KINDS = ("race", "divergent", "oob", "deadlock", "barrier", "uninit", "simd", "unwritten")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.id)
def test_seeded_fault(fault: Fault) -> None:
    reports = []
    for case in (c for c in SMALL if c.kernel.name == fault.kernel.name):
        inputs, mutant = case.inputs(), replace(case, kernel=fault.kernel)
        right = case.run(inputs)
        for schedule in SCHEDULES:
            result = mutant.run(inputs, schedule)
            reports += [f.kind for f in result.findings]
            same = zip(result.outputs, right.outputs, strict=True)
            if not all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in same):
                reports.append("wrong result")
            if any(r.startswith(KINDS) for r in reports):
                return
    assert reports == ["wrong result"] * len(reports), reports
    assert reports
    assert "atomic" in fault.kernel.text


@pytest.mark.parametrize("case", ONE_EACH, ids=lambda c: c.id)
def test_short_buffer(case: Case) -> None:
    """Every array is used, and one that ends an element before its last use is out of bounds."""
    inputs = case.inputs()
    for i, used in enumerate(case.run(inputs).used):
        argument = [*case.kernel.inputs, *case.kernel.outputs][i]
        assert used, argument.name
        if used > 1:
            found = [f.kind for f in case.run(inputs, cut=(i, used - 1)).findings]
            assert found == ["oob-device"], (argument.name, found)
