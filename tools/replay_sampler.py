"""Records of the sampler and the generator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qwenmtp.errors import NonFiniteLogits
from replay_record import Mismatch, Record, core, double, expect, fields, params, salt_of

# The masses of a support may differ by this much: the reference's float32 exp and log-sum-exp have their own last bits.
MASS_TOLERANCE = 3e-7


def logits_row(record: Record, spec: Record, case: int) -> np.ndarray:
    """float32 values of README's logits rule."""
    known = {"rule", "case", "row_cases", "vocab", "scale", "dtype"}
    expect("logits fields", set(), set(spec) - known)
    expect("logits rule", True, spec["rule"] in ("hash", "ties"))
    return core.logits_row(salt_of(record), case, spec["rule"] == "ties", spec["vocab"], spec.get("scale", 1.0))


def typed(row: np.ndarray, dtype: str) -> np.ndarray:
    """The row in its own dtype; bf16 as bits."""
    if dtype == "float16":
        return row.astype(np.float16).view(np.uint16)
    if dtype == "bfloat16":
        bits = row.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    expect("dtype", "float32", dtype)
    return row


def compare_support(record: Record, dist: Any) -> None:
    if record["support_ids"] is None:
        return
    mass = np.array(dist.mass)
    ids = np.array(dist.ids) if dist.ids else np.flatnonzero(mass > 0)
    mass = mass if dist.ids else mass[ids]
    expect("support", record["support_ids"], ids.tolist())
    want = np.array([double(x) for x in record["support_probs_hex"]])
    if np.max(np.abs(want - mass)) > MASS_TOLERANCE:
        raise Mismatch(f"masses off by {np.max(np.abs(want - mass))}")


def replay_row(record: Record) -> None:
    """Kinds target, draft_fixed, draft_relaxed: twelve draws from one row."""
    common = "logits sampler seed tokens draws final_state min_cdf_margin support_ids support_probs_hex"
    is_target = record["kind"] == "target"
    fields(record, common + (" token_counts overlay distribution support_size" if is_target else " need_distribution"))
    spec, config = record["logits"], record["sampler"]
    row = typed(logits_row(record, spec, spec["case"]), spec["dtype"])
    reader = core.Reader(params(config), record["kind"] == "draft_relaxed")
    draws = core.Draws(record["seed"])
    counts = {int(k): n for k, n in (record.get("token_counts") or {}).items()} or None
    overlay = [(int(k), x) for k, x in (record.get("overlay") or {}).items()]
    tokens, dist = [], None
    for _ in record["tokens"]:
        if config["temperature"] <= 0:
            read = reader.best if is_target else reader.argmax
            tokens.append(read(row, spec["dtype"], *((counts, overlay) if is_target else ())))
        else:
            dist = reader.distribution(row, spec["dtype"], counts, overlay)
            tokens.append(draws.token(dist))
    expect("tokens", record["tokens"], tokens)
    expect("draws", record["draws"], len(draws.trace))
    expect("generator state", record["final_state"], f"{draws.state:032x}")
    if dist is not None:
        compare_support(record, dist)


def replay_batched(record: Record) -> None:
    fields(record, "logits sampler seed tokens draws rows_sampled max_abs_diff_to_serial")
    spec = record["logits"]
    reader, draws = core.Reader(params(record["sampler"])), core.Draws(record["seed"])
    rows = [typed(logits_row(record, spec, case), spec["dtype"]) for case in spec["row_cases"]]
    dists = [reader.distribution(row, spec["dtype"], once=True) for row in rows]
    expect("tokens", record["tokens"], [draws.token(dists[r]) for r in record["rows_sampled"]])
    expect("draws", record["draws"], len(draws.trace))


def replay_accept(record: Record) -> None:
    fields(
        record,
        "target_logits draft_logits target_sampler draft_sampler seed steps draws trace final_state min_cdf_margin",
    )
    spec, other = record["target_logits"], record["draft_logits"]
    expect("draft_logits fields", {"target_plus", "rule", "case"}, set(other))
    base = logits_row(record, spec, spec["case"])
    moved = base + np.float32(other["target_plus"]) * logits_row(record, {**spec, "rule": other["rule"]}, other["case"])
    reader = core.Reader(params(record["draft_sampler"]))
    p = core.Reader(params(record["target_sampler"])).distribution(base)
    greedy = record["draft_sampler"]["temperature"] <= 0
    q = core.Distribution([reader.argmax(moved, "float32")], [1.0]) if greedy else reader.distribution(moved)
    draws = core.Draws(record["seed"])
    for step in record["steps"]:
        token = q.ids[0] if greedy else draws.token(q)
        ok = draws.accept(core.acceptance_probability(p, q, token))
        emitted = token if ok else draws.token(core.residual(p, q))
        expect("step", [step[0], step[3], step[4]], [token, int(ok), emitted])
    expect("trace", record["trace"], draws.trace)
    expect("draws", record["draws"], len(draws.trace))
    expect("generator state", record["final_state"], f"{draws.state:032x}")


def replay_block(record: Record) -> None:
    fields(record, "logits sampler seed block accepted correction trace final_state")
    reader, draws = core.Reader(params(record["sampler"])), core.Draws(record["seed"])
    accepted, correction = 0, None
    for case, token in zip(record["logits"]["row_cases"], record["block"], strict=True):
        p = reader.distribution(logits_row(record, record["logits"], case))
        if not draws.accept(p[token]):
            correction = draws.token(core.residual(p, core.Distribution([token], [1.0])))
            break
        accepted += 1
    expect("accepted", record["accepted"], accepted)
    expect("correction", record["correction"], correction)
    expect("trace", record["trace"], draws.trace)
    expect("generator state", record["final_state"], f"{draws.state:032x}")


def replay_edge(record: Record) -> None:
    fields(record, "seed ids probs_hex first_uniform_hex token draft_token draft_is_point_mass accepted emitted")
    p = core.Distribution(record["ids"], [double(x) for x in record["probs_hex"]])
    q = core.Distribution([record["draft_token"]], [1.0])
    expect("token", record["token"], core.Draws(record["seed"]).token(p))
    draws = core.Draws(record["seed"])
    ok = draws.accept(core.acceptance_probability(p, q, record["draft_token"]))
    emitted = record["draft_token"] if ok else draws.token(core.residual(p, q))
    expect("accepted", (record["accepted"], record["emitted"]), (ok, emitted))


def replay_non_finite(record: Record) -> None:
    fields(record, "values temperature top_k outcome")
    row = np.array([float(x) for x in record["values"]], dtype=np.float32)
    reader = core.Reader(core.Params(record["temperature"], 0.95, record["top_k"], 0.0, 0.0))
    want = record["outcome"]
    try:
        greedy = record["temperature"] <= 0
        token = reader.best(row) if greedy else core.Draws(0).token(reader.distribution(row))
        expect("outcome", want, {"token": token})
    except NonFiniteLogits as error:
        expect("raises", want.get("raises"), "NonFiniteLogitsError")
        census = f"nan={want['nan']}, inf={want['inf']}, vocab={len(row)}"
        expect("census", True, census in str(error))


def replay_pcg64(record: Record) -> None:
    need = {"kind", "seed", "state", "inc", "random_f64_be_hex"}
    expect("fields", need, set(record) - {"id", "salt"})
    draws = core.Draws(int(record["seed"]))
    expect("state", record["state"], f"{draws.state:032x}")
    expect("inc", record["inc"], f"{draws.inc:032x}")
    for text in record["random_f64_be_hex"]:
        u = double(text)
        # Accepted at exactly u and rejected one step below: the draw is u.
        probe = core.Draws(int(record["seed"]))
        for _ in draws.trace:
            probe.accept(1.0)
        expect("below", False, probe.accept(math.nextafter(u, -1.0)))
        expect("at", True, draws.accept(u))


def replay_keyed(record: Record) -> None:
    """The retired sampler: the index-th key of the chain, and its token."""
    fields(record, "seed index key logits sampler token")
    spec = record["logits"]
    row = logits_row(record, spec, spec["case"])
    sampler = core.KeyedSampler(int(record["seed"]) & 0x7FFFFFFF, params(record["sampler"]))
    tokens = [sampler.token(row, spec["dtype"]) for _ in range(record["index"] + 1)]
    expect("key", record["key"], list(sampler.last_key))
    expect("token", record["token"], tokens[-1])
