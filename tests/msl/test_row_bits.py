"""Row r of an n-row launch has the bits of the 1-row launch, in every family."""

from collections.abc import Sequence

import numpy as np
import pytest
from msl.families import embed, gdn, hyper, moe, ple, qsa, rows, sample
from msl.harness import backend
from msl.harness.case import Array, Case


def same_bits(a: Array, b: Array) -> None:
    assert a.shape == b.shape
    np.testing.assert_array_equal(np.ascontiguousarray(a).view(np.uint8), np.ascontiguousarray(b).view(np.uint8))


def launch(case: Case, inputs: Sequence[Array]) -> list[Array]:
    result = backend.run(case.kernel, case.template, inputs)
    assert not result.findings, result.findings
    return result.outputs


def launch_row(case: Case, inputs: Sequence[Array]) -> list[Array]:
    result = backend.run(case.kernel, case.template | {"ROWS": 1}, inputs)
    assert not result.findings, result.findings
    return result.outputs


def several(cases: Sequence[Case], *names: str) -> list[Case]:
    """The cases of these kernels with more than one row, the released shapes left out."""
    many = (c for c in cases if c.kernel.name in names and "released" not in c.shape)
    return [c for c in many if c.template.get("ROWS", 2) != 1 and "1rows" not in c.shape]


PLAIN = several(rows.CASES, *(f"rows{what}_{kind}" for what in ("", "_glu") for kind in ("affine", "dense")))
MIX = several(rows.CASES, "rows_mix_affine", "rows_mix_dense")
GATHER = several(rows.CASES, *(f"rows_gather{glu}_{kind}" for glu in ("", "_glu") for kind in ("affine", "dense")))


@pytest.mark.parametrize("case", PLAIN, ids=lambda c: c.id)
def test_matrix(case: Case) -> None:
    x, *w = case.inputs()
    (y,) = launch(case, [x, *w])
    for r in range(len(x)):
        same_bits(launch_row(case, [x[r : r + 1], *w])[0][0], y[r])


@pytest.mark.parametrize("case", MIX, ids=lambda c: c.id)
def test_mix(case: Case) -> None:
    low, z, *w = case.inputs()
    u, g = launch(case, case.inputs())
    for r in range(len(low)):
        for got, want in zip(launch_row(case, [low[r : r + 1], z[r : r + 1], *w]), (u, g), strict=True):
            same_bits(got[0], want[r])


@pytest.mark.parametrize("case", GATHER, ids=lambda c: c.id)
def test_gathered_matrix(case: Case) -> None:
    x, expert, _, *rest = case.inputs()
    (y,) = launch(case, case.inputs())
    k = expert.shape[1]
    is_glu = "glu" in case.kernel.name
    for r in range(len(expert)):
        mine = slice(r, r + 1) if is_glu else slice(r * k, (r + 1) * k)
        order = np.argsort(expert[r], kind="stable").astype(np.int32)
        tail = rest if is_glu else [rest[0][r : r + 1], *rest[1:]]
        (row,) = launch_row(case, [x[mine], expert[r : r + 1], order, *tail])
        same_bits(row, y[r * k : (r + 1) * k])


@pytest.mark.parametrize("case", several(gdn.CASES, "gdn_inputs"), ids=lambda c: c.id)
def test_gdn_inputs(case: Case) -> None:
    proj, prev, keep, tail, *rest = case.inputs()
    *outputs, _ = launch(case, case.inputs())
    for r in range(len(proj)):
        *row, tail = launch(case, [proj[r : r + 1], prev, keep, tail, *rest])
        prev, keep = proj[r : r + 1], np.array([1], np.int32)
        for got, want in zip(row, outputs, strict=True):
            same_bits(got[0], want[r])


@pytest.mark.parametrize("case", several(gdn.CASES, "gdn_step"), ids=lambda c: c.id)
def test_gdn_step(case: Case) -> None:
    *values, state, _ = case.inputs()
    y, last = launch(case, case.inputs())
    for r in range(len(values[0])):
        row, state = launch(case, [*(a[r : r + 1] for a in values), state, np.array([1], np.int32)])
        same_bits(row[0], y[r])
    same_bits(state, last)


@pytest.mark.parametrize("case", several(gdn.CASES, "gdn_verify_rows"), ids=lambda c: c.id)
def test_gdn_verify_rows(case: Case) -> None:
    """Also: committing keep rows of a window leaves the state of decoding them one by one."""
    q, k, v, g, beta, proj, norm_w, eps, state, *before, keep, n_rows = case.inputs()
    weights_and_rows = case.inputs()[:8]
    out, base = launch(case, case.inputs())
    one = np.array([1], np.int32)
    window = [k, v, g, beta]
    for r in range(len(q)):
        mine = slice(r, r + 1)
        inputs = [*(a[mine] for a in (q, k, v, g, beta, proj)), norm_w, eps, state, *before, keep, one]
        row, state = launch(case, inputs)
        same_bits(row[0], out[r])
        before, keep = [a[mine] for a in window], one
        # What the next window commits of this one, had r rows been kept: the same state.
        _, committed = launch(case, [*weights_and_rows, base, *window, np.array([r], np.int32), n_rows])
        same_bits(committed, state)


EVERY = [c for f in (embed, hyper, moe, ple, gdn, qsa, sample) for c in f.CASES]
WHOLE = ("hyper_norm", "hyper_write", "ple_gate", "moe_combine", "gdn_norm", "qsa_combine")
WHOLE += ("embed_affine", "embed_dense", "sample_chunks", "sample_row")


@pytest.mark.parametrize("case", several(EVERY, *WHOLE), ids=lambda c: c.id)
def test_rows_alone(case: Case) -> None:
    """Kernels whose rows share nothing but weights."""
    inputs, outputs = case.inputs(), launch(case, case.inputs())
    n = len(outputs[0])
    dims = [a.dims[0] for a in case.kernel.inputs]
    for r in range(n):
        mine = {"rows": slice(r, r + 1)}
        if "K" in case.template:
            mine["rows*K"] = slice(r * case.template["K"], (r + 1) * case.template["K"])
        row = launch(case, [a[mine.get(d, slice(None))] for a, d in zip(inputs, dims, strict=True)])
        for got, want in zip(row, outputs, strict=True):
            same_bits(got[0], want[r])


@pytest.mark.parametrize("case", several(moe.CASES, "moe_route"), ids=lambda c: c.id)
def test_moe_route(case: Case) -> None:
    logits, _ = case.inputs()
    expert, weight, order = launch(case, case.inputs())
    for r in range(len(logits)):
        ids, w, mine = launch(case, [logits[r : r + 1], np.array([1], np.int32)])
        same_bits(ids[0], expert[r])
        same_bits(w[0], weight[r])
        k = len(mine)
        same_bits(mine, order[order // k == r] - r * k)


@pytest.mark.parametrize("case", several(ple.CASES, "ple_conv"), ids=lambda c: c.id)
def test_ple_conv(case: Case) -> None:
    gated, normed, _, tail, w = case.inputs()
    out, last = launch(case, case.inputs())
    for r in range(len(gated)):
        mine = slice(r, r + 1)
        row, tail = launch(case, [gated[mine], normed[mine], np.array([1], np.int32), tail, w])
        same_bits(row[0], out[r])
    same_bits(tail, last)


POSITIONED = ("qsa_scores", "qsa_top_blocks", "qsa_attend")


@pytest.mark.parametrize("case", several(qsa.CASES, *POSITIONED), ids=lambda c: c.id)
def test_rows_at_a_position(case: Case) -> None:
    """Row r of a window at p is the only row of a window at p + r."""
    inputs, outputs = case.inputs(), launch(case, case.inputs())
    for r in range(len(outputs[0])):
        mine = []
        for argument, a in zip(case.kernel.inputs, inputs, strict=True):
            if argument.name == "position":
                mine.append(a + np.int32(r))
            elif argument.name == "n_rows":
                mine.append(np.array([1], np.int32))
            else:
                mine.append(a[r : r + 1] if argument.dims[0] == "rows" else a)
        for got, want in zip(launch(case, mine), outputs, strict=True):
            same_bits(got[0], want[r])


@pytest.mark.parametrize("case", several(qsa.CASES, "qsa_heads"), ids=lambda c: c.id)
def test_qsa_heads(case: Case) -> None:
    *inputs, eps, _ = case.inputs()
    q, k, v, iq, raw = launch(case, case.inputs())
    norms = {2, 3, 4}
    for r in range(len(q)):
        mine = [a if i in norms else a[r : r + 1] for i, a in enumerate(inputs)]
        row = launch(case, [*mine, eps, np.array([1], np.int32)])
        for got, want in zip(
            row, (q[r : r + 1], k[:, r : r + 1], v[:, r : r + 1], iq[r : r + 1], raw[r : r + 1]), strict=True
        ):
            same_bits(got, want)
