"""csrc/kernels/spec.cpp reads metal/ as tests/msl/harness/spec.py does."""

import pytest
from kernels.launch import testing
from msl.families import ALL
from msl.harness.case import Case
from msl.harness.spec import METAL, Kernel, evaluate

KERNELS = list({c.kernel.name: c.kernel for c in ALL}.values())


def plan(case: Case, shapes: list[tuple[int, ...]], dtypes: list[str]):
    inputs = [(list(s), d) for s, d in zip(shapes, dtypes, strict=True)]
    return testing.kernel_plan(case.kernel.name, list(case.template.items()), inputs)


def described(case: Case) -> tuple[list[tuple[int, ...]], list[str]]:
    arrays = case.inputs()
    return [a.shape for a in arrays], [a.dtype.name for a in arrays]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_text(kernel: Kernel) -> None:
    source, metal, cuda = testing.kernel_text(kernel.name)
    assert source == kernel.source
    assert metal == kernel.header
    wrapped = f"\nnamespace mlx::core::cu {{\n{kernel.header}\n}}  // namespace mlx::core::cu\n"
    assert cuda == (METAL / "cuda.h").read_text() + wrapped


@pytest.mark.parametrize("case", [c for c in ALL if "released" not in c.shape], ids=lambda c: c.id)
def test_plan(case: Case) -> None:
    shapes, dtypes = described(case)
    outputs, grid, group = plan(case, shapes, dtypes)
    sizes = case.kernel.bind(case.template, shapes)
    assert (tuple(grid), tuple(group)) == case.kernel.geometry(sizes)
    want = [([evaluate(d, sizes) for d in a.dims], case.kernel.dtype(a, case.template)) for a in case.kernel.outputs]
    assert [(list(s), d) for s, d in outputs] == want


def test_a_launch_that_is_not_the_spec_is_refused() -> None:
    case = next(c for c in ALL if c.kernel.name == "gdn_step")
    shapes, dtypes = described(case)
    with pytest.raises(Exception, match="shape of state"):
        plan(case, [*shapes[:5], (1, 2, 3), shapes[6]], dtypes)
    with pytest.raises(Exception, match="dtype of n_rows"):
        plan(case, shapes, [*dtypes[:6], "float32"])
    with pytest.raises(Exception, match="number of inputs"):
        plan(case, shapes[:-1], dtypes[:-1])
    with pytest.raises(Exception, match="template arguments"):
        testing.kernel_plan("gdn_step", [("T", "float32")], [])
    with pytest.raises(Exception, match="no kernel gdn_stop"):
        testing.kernel_text("gdn_stop")
