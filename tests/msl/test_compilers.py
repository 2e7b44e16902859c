"""Every kernel's text passes the address space lint and compiles for CUDA."""

import pytest
from msl.families import ALL
from msl.harness.case import Case
from msl.harness.lint import lint
from msl.harness.nvrtc import compile_cuda
from msl.harness.text import Input

INSTANTIATIONS = list({(c.kernel.name, *c.template.values()): c for c in ALL}.values())


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.id)
def test_lint(case: Case) -> None:
    inputs = zip(case.kernel.inputs, case.inputs(), strict=True)
    assert not lint(case.kernel, case.template, [Input(a.name, x.dtype.name, x.size, x.ndim) for a, x in inputs])


@pytest.mark.parametrize("case", INSTANTIATIONS, ids=lambda c: c.id)
def test_nvrtc(case: Case) -> None:
    assert not compile_cuda(case.kernel, case.template)
