"""The tests of every kernel and of its row bits again, on a CUDA device, and the released shapes in both model types.

pytest -m cuda tests/msl/test_cuda.py
"""

import pytest
from msl import test_kernels
from msl.families import ALL, gdn, hyper, moe, ple, qsa, rows, sample
from msl.harness import backend
from msl.harness.case import Case
from msl.test_row_bits import *  # noqa: F403  its tests run here too

pytestmark = pytest.mark.cuda

TYPES = ("bfloat16", "float32")
ROWS = (1, 4, 8)


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    from msl.harness import cuda

    monkeypatch.setattr(backend, "run", cuda.run)


def released(t: str, n: int) -> list[Case]:
    g = "released"
    return [
        rows.plain_case(g, t, n, 2560, 16480, 4, 64, outs=4),
        rows.plain_case(g, t, n, 6144, 2560, 8, 64),
        rows.plain_case(g, t, n, 10240, 328, 0, n_silu=320, div=4, split=4),
        rows.mix_case(g, t, n, 4, 2560, 320, 0),
        rows.plain_case(g, t, n, 2560, 1024, 4, 32),
        rows.glu_case(g, t, n, 2560, 640, 8),
        rows.gather_case(g, t, True, n, 10, 2560, 640, 4, 32),
        rows.gather_case(g, t, False, n, 10, 640, 2560, 4, 64),
        gdn.inputs_case(g, t, n, 4, 3),
        gdn.step_case(g, t, n),
        gdn.norm_case(g, t, n),
        gdn.verify_case(g, t, n, 4, 2),
        hyper.norm_case(g, t, n),
        hyper.write_case(g, t, n),
        moe.route_case(g, t, n, 512, 10),
        moe.combine_case(g, t, n, 2560, 10),
        ple.gate_case(g, t, n),
        ple.conv_case(g, t, n),
        qsa.heads_case(g, t, n),
        qsa.pool_case(g, t, n),
        qsa.scores_case(g, t, n, 32768, 131000),
        qsa.attend_case(g, t, n, 2100),
        qsa.combine_case(g, t, n, 30),
        qsa.keys_case(g, t, n),
        sample.chunks_case(g, t, n, 248320, 32, 4096),
    ]


CASES = [*ALL, *(c for t in TYPES for n in ROWS for c in released(t, n))]
for n in ROWS:
    CASES += [qsa.top_case("released", n, 32768, 131000), sample.row_case("released", n, 248320, 32, 4096)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_kernel(case: Case) -> None:
    test_kernels.test_kernel(case)
