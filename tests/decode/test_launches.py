"""How many launches an accelerator issues for the released geometry; no step gets longer unseen."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from qwenmtp import _core
from qwenmtp.bench.dispatches import RELEASED, launches
from qwenmtp.cli import main

LAYERS = {"gdn": 36, "qsa": 12}
# Most of each step, over how full the open block of keys is and how many drafts a round keeps.
COUNTS = {"ar": 998, "draft": 41, "round": 1136, "verify": 998}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, int]]:
    return launches()


def test_a_step_and_a_round_are_as_short_as_committed(found: dict[str, dict[str, int]]) -> None:
    totals = {step: sum(nodes.values()) for step, nodes in found.items()}
    assert totals == COUNTS
    assert totals["ar"] <= 1150
    assert totals["round"] <= 1300


def test_a_window_launches_what_a_row_does(found: dict[str, dict[str, int]]) -> None:
    assert found["verify"] == found["ar"]


def test_every_layer_is_there(found: dict[str, dict[str, int]]) -> None:
    ar, n = found["ar"], sum(LAYERS.values())
    assert ar["gdn_inputs"] == ar["gdn_verify_rows"] == LAYERS["gdn"]
    assert ar["qsa_attend"] == ar["qsa_pool"] == LAYERS["qsa"]  # the costliest step completes a block
    assert ar["SliceUpdate"] == 4 * LAYERS["qsa"]  # keys, values, raw keys, pooled keys
    assert ar["moe_route"] == ar["rows_gather_affine"] == n
    assert ar["hyper_write"] + ar["hyper_norm"] == 2 * n + 1
    # In, out; of an attention layer the indexer too; two reads, router, shared down and gate; PLE's two; mixer, head.
    assert ar["rows_affine"] == 2 * LAYERS["gdn"] + 3 * LAYERS["qsa"] + 5 * n + 2 + 2


def test_a_gdn_layer_is_kernels_of_ours_alone() -> None:
    """So `mx::compile`, which fuses element-wise operators, would save none of its launches (setting gdn.compile)."""
    text = RELEASED["text_config"]
    small, large = (
        launches(RELEASED | {"text_config": text | {"num_hidden_layers": n, "full_attention_interval": n}})
        for n in (4, 8)
    )
    for step in ("ar", "verify", "round"):
        grown = {node for node, n in large[step].items() if n > small[step][node]}
        assert "gdn_verify_rows" in grown
        assert all(node == node.lower() for node in grown)  # operators of MLX are capitalised


def test_layers_add_up() -> None:
    def total(n_layers: int) -> int:
        text = RELEASED["text_config"] | {"num_hidden_layers": n_layers}
        return sum(launches(RELEASED | {"text_config": text})["ar"].values())

    four, eight, twelve = total(4), total(8), total(12)
    assert twelve - eight == eight - four == 3 * 18 + 28


def test_the_command_prints_and_keeps_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "launches.csv"
    assert main(["bench", "dispatches", "--json", "--csv", str(path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["launches"] == COUNTS
    assert report["syncs"] == {"token": 1, "greedy round": 2, "round": 2}
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert sum(int(r["launches"]) for r in rows if r["step"] == "round") == COUNTS["round"]
    assert main(["bench", "dispatches"]) == 0
    out = capsys.readouterr().out
    assert f"{COUNTS['round']}" in out
    assert "waits of the host: 1 a token, 2 a greedy round, 2 a round" in out


def test_forwards_after_a_count_are_the_cpus_again(demo: Any) -> None:
    launches()
    state = _core.State(demo, False)
    assert "rows" in _core.traffic(demo, state, [1, 2])  # evaluates, which a planned node refuses
