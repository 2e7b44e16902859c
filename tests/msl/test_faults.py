"""The harness reports every fault seeded into our own kernels."""

from dataclasses import replace

import pytest
from msl.families import ALL
from msl.harness.case import Case
from msl.harness.cpu import SCHEDULES
from msl.harness.faults import Fault, seeded

SMALL = [c for c in ALL if c.shape.startswith("ragged")]
ONE_EACH = list({c.kernel.name: c for c in reversed(SMALL)}.values())
# A function that kernels share is mutated in one of them.
FAULTS = list({(f.place, f.what): f for c in ONE_EACH for f in seeded(c.kernel)}.values())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.id)
def test_seeded_fault(fault: Fault) -> None:
    """Some case and schedule finds it; a different result alone does not count."""
    for case in (c for c in SMALL if c.kernel.name == fault.kernel.name):
        inputs, mutant = case.inputs(), replace(case, kernel=fault.kernel)
        if any(mutant.run(inputs, schedule).findings for schedule in SCHEDULES):
            return
    pytest.fail("no finding")


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
