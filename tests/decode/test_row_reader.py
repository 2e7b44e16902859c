"""csrc/decode/row_reader.cpp: a row read by its candidates gives what the whole row gives, bit for bit."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import _qwenmtp_testing as core
import numpy as np
import pytest

from qwenmtp import _core
from qwenmtp.errors import NonFiniteLogits

Array = np.ndarray
SIZE = 3000


def rows() -> dict[str, Array]:
    rng = np.random.default_rng(11)
    normal = (rng.standard_normal((40, SIZE)) * 3).astype(np.float32)
    out = {f"normal {i}": row for i, row in enumerate(normal)}
    out |= {f"flat {i}": row * np.float32(0.01) for i, row in enumerate(normal[:10])}
    out |= {f"tied {i}": np.round(row) + np.float32(0.3) for i, row in enumerate(normal[:10])}
    out["all equal"] = np.full(SIZE, 1.25, np.float32)
    out["all zero"] = np.zeros(SIZE, np.float32)
    out["both zeros"] = np.where(rng.random(SIZE) < 0.5, -0.0, 0.0).astype(np.float32)
    out["up"] = np.arange(SIZE, dtype=np.float32) / 100 - 5
    out["down"] = out["up"][::-1].copy()
    for ties in (2, 19, 20, 21, 31, 32, 33, 79, 80, 81, 2000):
        tied = np.minimum(normal[0], np.float32(2))
        tied[rng.permutation(SIZE)[:ties]] = 7.5
        out[f"{ties} tied at the top"] = tied
        out[f"{ties} tied at the cutoff"] = np.where(np.arange(SIZE) == SIZE // 2, np.float32(9), tied)
    for left in (0, 1, 5, 20, 100):
        masked = np.full(SIZE, -np.inf, np.float32)
        masked[rng.permutation(SIZE)[:left]] = normal[1, :left]
        out[f"{left} unmasked"] = masked
    for at, value in product((0, 511, 2999), (np.nan, np.inf)):
        bad = normal[2].copy()
        bad[at] = value
        out[f"{value} at {at}"] = bad
    out["all nan"] = np.full(SIZE, np.nan, np.float32)
    tiny = normal[3] * np.float32(1e-39)
    out["subnormal"] = tiny
    out["subnormal below one"] = np.where(np.arange(SIZE) == 77, np.float32(1), tiny)
    out["huge"] = normal[4] * np.float32(1e37)
    return out


ROWS = rows()
TARGETS = [*product((0.6, 1.0, 1e-14), (0.95, 1.0, 0.3), (1, 2, 20, 21, 200, 700, 0)), (0.6, 0.95, SIZE + 1)]


def stored(row: Array, dtype: str) -> Array:
    with np.errstate(over="ignore"):
        if dtype == "float16":
            return row[None].astype(np.float16)
    return row[None] if dtype == "float32" else (row[None].view(np.uint32) >> 16).astype(np.uint16)


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except NonFiniteLogits as error:
        return str(error)


def both(read: Callable[[bool], Any]) -> Any:
    whole, by_candidates = outcome(lambda: read(False)), outcome(lambda: read(True))
    assert by_candidates == whole
    return whole


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ROWS)
def test_same_distributions_draws_and_generator(name: str, dtype: str) -> None:
    row = stored(ROWS[name], dtype)

    def sampled(target: tuple[float, float, int], relaxed: bool, once: bool, on_device: bool) -> Any:
        params = core.Params(*target, 0.0, 0.0)
        dist = core.RowReader(params, on_device, relaxed).distribution(core.HostRows(row), 0, once=once)
        draws = core.Draws(5)
        picks = [draws.token(dist) for _ in range(3)]
        return dist.ids, dist.mass, picks, draws.state

    for target in TARGETS if dtype == "float32" else TARGETS[:9]:
        for relaxed, once in ((False, False), (False, True), (True, False)):
            both(partial(sampled, target, relaxed, once))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ROWS)
def test_same_greedy_tokens(name: str, dtype: str) -> None:
    row, params = stored(ROWS[name], dtype), core.Params(0.0, 0.95, 20, 0.0, 0.0)
    both(lambda on: core.RowReader(params, on, False).best(core.HostRows(row), 0))
    both(lambda on: core.RowReader(params, on, False).argmax(core.HostRows(row), 0))


class Launches:
    """Stands for an accelerator: answers every launch of `sample` with the body's result, ids moved by one."""

    def __init__(self, logits: Array) -> None:
        self.logits = logits
        self.names: list[tuple[str, int, int]] = []

    def __call__(self, name: str, template: list[Any], inputs: list[Array]) -> list[Array]:
        sizes = dict(template)
        self.names.append((name, sizes["M"], len(inputs[0])))
        if name == "sample_chunks":
            self.scale = float(inputs[1][0])
            n, v, m, chunk = len(inputs[0]), sizes["V"], sizes["M"], sizes["CHUNK"]
            of = (n, -(-v // chunk))
            out = [np.zeros((*of, m), np.float32), np.zeros((*of, m), np.int32), np.zeros(of, np.float32)]
            return [*out, np.zeros(of, np.int32), np.zeros((n, -(-v // 512), 2), np.float32)]
        core.text_backend(None)
        top, ids, ties, total = core.kernels.sample(self.logits, self.scale, sizes["M"]).run()
        core.text_backend(self)
        return [top, ids + 1, ties, total]


def test_only_the_candidates_are_read_in_one_launch_for_all_rows() -> None:
    x = np.stack([ROWS[f"normal {i}"] for i in range(3)])
    backend = Launches(x)
    core.text_backend(backend)
    try:
        rows = core.HostRows(x)
        read = core.RowReader(core.Params(0.6, 0.95, 20, 0.0, 0.0), True, False)
        got = [read.distribution(rows, r) for r in range(3)]
        assert backend.names == [("sample_chunks", 32, 3), ("sample_row", 32, 3)]
        best = core.RowReader(core.Params(0.0, 0.95, 20, 0.0, 0.0), True, False)
        tokens = [best.best(rows, 1), best.argmax(rows, 2)]
        assert backend.names[2:] == [("sample_chunks", 1, 3), ("sample_row", 1, 3)]
        penalised = core.RowReader(core.Params(0.6, 0.95, 20, 0.5, 0.0), True, False)
        penalised.distribution(rows, 0, counts={3: 1})
        for top_k in (0, 513):
            core.RowReader(core.Params(0.6, 0.95, top_k, 0.0, 0.0), True, False).distribution(rows, 0)
        assert len(backend.names) == 4
    finally:
        core.text_backend(None)
    whole = core.RowReader(core.Params(0.6, 0.95, 20, 0.0, 0.0), False, False)
    want = [whole.distribution(core.HostRows(x), r) for r in range(3)]
    assert [[i - 1 for i in d.ids] for d in got] == [d.ids for d in want]
    assert [d.mass for d in got] == [d.mass for d in want]
    assert tokens == [int(x[1].argmax()) + 1, int(x[2].argmax()) + 1]


def test_two_temperatures_over_the_same_rows() -> None:
    x = ROWS["normal 0"][None]
    rows = core.HostRows(x)
    for temperature in (0.6, 0.9, 0.6):
        params = core.Params(temperature, 0.95, 20, 0.0, 0.0)
        got = core.RowReader(params, True, False).distribution(rows, 0)
        assert got.mass == core.RowReader(params, False, False).distribution(core.HostRows(x), 0).mass


@pytest.mark.parametrize("target", [(0.0, 0.95, 20, 0.0, 0.0), (0.6, 0.95, 20, 0.0, 0.0), (1.0, 1.0, 5, 0.0, 0.0)])
@pytest.mark.parametrize("options", [{"speculate": False}, {"depth": 3}, {"depth": 2, "block_verify": True}])
def test_the_demo_model_answers_alike(demo: Any, target: tuple[float, ...], options: dict[str, Any]) -> None:
    answers = []
    for on_device in (False, True):
        state = _core.State(demo, options.get("speculate", True))
        request = {"seed": 3, "target": target, "max_tokens": 24, "device_candidates": on_device, **options}
        decoder = _core.Decoder(demo, state, [699, 579, 207, 12, 40], request)
        while not decoder.done:
            decoder.step()
        assert decoder.finish() == ""
        answers.append((decoder.tokens, decoder.draw_trace, state.ids))
    assert answers[0] == answers[1]
