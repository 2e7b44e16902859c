"""The schema against the independent one, and the released sizes."""

import _qwenmtp_testing as core
import pytest

GROUPS = {1: "trunk", 2: "mtp", 3: "final", 4: "boundary"}
ROLES = ["gdn_conv", "gdn_ssm", "ple_conv", "ple_ids", "keys", "values", "raw", "pooled", "logits", "hidden"]
DTYPES = {8: "int64", 9: "float16", 10: "bfloat16", 11: "float32"}


def shape(n, history=None, mode="mtp", boundaries=()):
    if history is None:
        history = n - 1 if mode == "mtp" else 0
    return {"n_tokens": n, "history_len": history, "mode": mode, "boundaries": list(boundaries)}


@pytest.mark.parametrize("mode", ["ar", "mtp"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 511, 512, 513, 2100])
@pytest.mark.parametrize("n_boundaries", [0, 1, 3])
@pytest.mark.parametrize("dtype", [9, 10, 11])
def test_equals_the_independent_schema(oracle, mode, n, n_boundaries, dtype):
    geometry = {**oracle.SMALL, "dtype": dtype}
    s = shape(n, mode=mode, boundaries=range(1, min(n, n_boundaries) + 1))
    got = [(*t[:6], t[7]) for t in core.checkpoint_schema(geometry, s)]
    want = [
        (GROUPS[g], ROLES[r - 1], layer, None if b == 0xFFFF else b, DTYPES[d], dims, oracle.n_bytes(row))
        for row in oracle.schema(geometry, s)
        for g, r, layer, b, d, dims, _ in [row]
    ]
    assert got == want


@pytest.mark.parametrize(
    ("n", "boundaries", "tensors", "payload"),
    [
        (4, [], 127, 116_280_080),
        (4, [3], 202, 231_942_944),
        (512, [], 128, 131_918_352),
        (4096, [], 128, 242_248_208),
        (32768, [], 128, 1_124_887_056),
        (131072, [131071], 203, 4_266_740_256),
        (262144, [], 128, 8_185_997_840),
    ],
)
def test_released_geometry_has_the_published_sizes(oracle, n, boundaries, tensors, payload):
    specs = core.checkpoint_schema(oracle.RELEASED, shape(n, boundaries=boundaries))
    assert len(specs) == tensors
    assert sum(t[7] for t in specs) == payload
