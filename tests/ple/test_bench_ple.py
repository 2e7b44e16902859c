"""`qwenmtp bench ple` on a tiny table: every contender in every case, targets in the summary, nothing left behind."""

import json

import numpy as np

from qwenmtp import table
from qwenmtp.bench import ple, ple_contenders
from qwenmtp.cli import main


def test_every_contender_is_measured_in_every_case(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ple, "N_WINDOWS", 3)
    argv = ["bench", "ple", "--gb", "0.01", "--chunks", "1", "--repeats", "2", "--dir", str(tmp_path), "--json"]
    assert main(argv) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    seen = {(c["name"], c["shape"]) for c in results["cases"]}
    ours = [c for c in ple_contenders.CONTENDERS if not c.startswith("MTPLX")]
    rows = [f"{n} rows {kind}" for n in (16, 32, 64, 32768) for kind in ("cold", "cached")]
    assert {(name, case) for name in ours for case in rows} <= seen
    assert {case for name, case in seen if name.startswith("stager")} > set(rows)
    cold = next(c for c in results["cases"] if c["shape"] == "32768 rows cold")
    assert (cold["repeats"], cold["work"], cold["unit"]) == (2, 32768, "rows")
    assert set(results) == {"cases", "cold_share_of_bare_reads", "wait_p99_us", "hidden_by_read_ahead"}
    assert list(tmp_path.iterdir()) == []


def test_the_contenders_gather_the_same_rows(tmp_path):
    """The row ids of the bare reads and of the reference are those that the stager makes of the same token ids."""
    path = tmp_path / ple_contenders.PLANAR
    ple.write_table(path, 100_000)
    n_rows, offsets = ple_contenders.planes_of(path)
    assert n_rows == 100_000
    assert offsets[-1] + 10 * n_rows == path.stat().st_size
    ple.write_work(tmp_path / ple_contenders.WORK, n_rows, 1)
    work = np.load(tmp_path / ple_contenders.WORK)
    spec = ple_contenders.planar_spec(path)
    stager = table.PleStager(table.synthetic_ngram(n_rows, ple_contenders.VOCAB, ple_contenders.EOS), spec)
    values = stager.embed(work["window4.ids"][0], ple_contenders.PAST, table.RowType.float32)
    plain = table.PleTable.open(spec).gather(work["window4.rows"][0], table.RowType.float32)
    np.testing.assert_array_equal(values.reshape(plain.shape), plain)
    assert np.isfinite(values).all()
