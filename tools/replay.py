"""Replay decode fixtures (tools/oracle/decode/README.md) through the C++ sampler and decode loops.

    python tools/replay.py FILE.jsonl[.gz] ...

Every record counts once, whatever its salt; an unknown kind, field or gate fails. Compared: what
tools/oracle/decode/replay.py compares. Prints `N passed, M failed`; exit code 1 on failure.
"""

from __future__ import annotations

import gzip
import json
import math
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

IN_PLACE = Path(__file__).resolve().parent.parent / "python"
if any((IN_PLACE / "qwenmtp").glob("_core*.so")):
    sys.path.insert(0, str(IN_PLACE))
import _qwenmtp_testing as core  # noqa: E402

from qwenmtp.errors import NonFiniteLogits  # noqa: E402
from qwenmtp.settings_legacy import NO_EFFECT  # noqa: E402

Record = dict[str, Any]

# The masses of a support may differ by this much: the reference's float32 exp and log-sum-exp have their own last bits.
MASS_TOLERANCE = 3e-7
SAMPLER_FIELDS = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")
SHOWN_FAILURES = 5

# Gates of the reference that change when it evaluates, never what. Block verification is among them because the
# reference freezes that gate at import: only a record whose `law` says so was made with it.
EVALUATION_GATES = {
    "MTPLX_BATCHED_GREEDY_ACCEPT",
    "MTPLX_BATCH_TARGET_ARRAYS",
    "MTPLX_BATCH_TARGET_DISTS",
    "MTPLX_DEFER_REPAIR_EVAL",
    "MTPLX_GREEDY_DRAFT_CHAIN",
    "MTPLX_LAZY_BONUS_VERIFY",
    "MTPLX_LAZY_MTP_HISTORY_APPEND",
    "MTPLX_LAZY_TARGET_DISTRIBUTIONS",
    "MTPLX_LAZY_VERIFY_LOGITS",
    "MTPLX_OMIT_SPECULATIVE_BONUS",
    "MTPLX_QWEN4_BLOCK_VERIFY",
    *(f"MTPLX_{name}" for name, reason in NO_EFFECT.items() if reason.startswith("obsolete")),
}
REPETITION_GATES = {
    "MIN_TOKENS": 1,
    "MIN_REPEATED_TOKENS": 1,
    "MIN_REPEATS": 2,
    "MIN_BLOCK_TOKENS": 1,
    "MAX_BLOCK_TOKENS": 1,
    "MAX_CYCLE_TOKENS": 0,
    "MIN_CYCLE_COPIES": 2,
    "MIN_CYCLE_SPAN_TOKENS": 1,
}


class Mismatch(Exception):
    """A record that does not replay; says where."""


def expect(name: str, want: object, got: object) -> None:
    if want != got:
        raise Mismatch(f"{name}: want {want} got {got}")


def fields(record: Record, required: str, optional: str = "") -> None:
    """Fails on a missing or unknown field."""
    need = {"id", "kind", "salt", *required.split()}
    missing, unknown = need - set(record), set(record) - need - set(optional.split())
    if missing or unknown:
        raise Mismatch(f"fields missing {sorted(missing)}, unknown {sorted(unknown)}")


def params(config: Record) -> Any:
    expect("sampler fields", sorted(SAMPLER_FIELDS), sorted(config))
    return core.Params(*(config[name] for name in SAMPLER_FIELDS))


def double(text: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(text))[0])


def salt_of(record: Record) -> int:
    return int(record["salt"], 16)


# ---------------------------------------------------------------- sampler --


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


# ------------------------------------------------------------------ loops --


def network(record: Record, model: Record) -> Any:
    config = core.ScriptedConfig()
    config.salt = salt_of(record)
    for name, value in model.items():
        if name == "mtp":
            expect("model.mtp", True, value)
        elif name in ("vocab", "mode", "amp", "script", "draft_script"):
            if value is not None:
                setattr(config, name, value)
        elif name != "eos":
            raise Mismatch(f"unknown field model.{name}")
    expect("model.mode", True, config.mode in ("hash", "ties", "script"))
    if record.get("fail_forward_at") is not None:
        config.fail_after = record["fail_forward_at"]
    return core.ScriptedNetwork(config)


def gate_options(env: dict[str, str]) -> Record:
    """The options that the reference's environment gates stand for."""
    options: Record = {}
    on = {"1", "true", "yes", "on"}
    for name, value in env.items():
        stop = name.removeprefix("MTPLX_REPETITION_STOP_")
        if name == "MTPLX_FAMILY_CAPTURE_COMMIT":
            options["lane"] = "capture_commit" if value.lower() in on else "reforward"
        elif name == "MTPLX_CONTEXT_COPY":
            options["context_copy"] = value.lower() not in {"0", "false", "off"}
        elif name == "MTPLX_MTP_HISTORY_LIVE_RESET_THRESHOLD":
            options["history_reset_rows"] = int(value)
        elif name == "MTPLX_ASYNC_AR":
            options["async"] = value.lower() in on
        elif name == "MTPLX_REPETITION_STREAM_HOLDBACK":
            options["repetition_holdback"] = value
        elif stop in REPETITION_GATES:
            options[f"repetition_{stop.lower()}"] = max(REPETITION_GATES[stop], int(value))
        elif name not in EVALUATION_GATES:
            raise Mismatch(f"unknown gate {name}")
    return options


def stop_ids(record: Record) -> list[int]:
    if record["stop"] is not None:
        return list(record["stop"])
    eos = record["model"].get("eos")
    return [] if eos is None else [eos]


def run(record: Record, net: Any, *, speculate: bool) -> Record:
    """The reference's result object, as far as it is compared."""
    sampler = [record["sampler"][name] for name in SAMPLER_FIELDS]
    draft = record.get("draft_sampler")
    history = record.get("history", "committed")
    expect("history", True, history in ("committed", "last_window", "cycle"))
    expect("law", True, record.get("law") in (None, "block"))
    stops = stop_ids(record)
    options = {
        "lane": "reforward",
        **gate_options(record.get("env", {})),
        "target": tuple(sampler),
        "draft": None if draft is None else tuple(draft[name] for name in SAMPLER_FIELDS),
        "seed": record["seed"],
        "max_tokens": record["max_tokens"],
        "stops": stops,
        "speculate": speculate,
        "depth": record.get("depth", 1),
        "history": "cycle" if history == "cycle" else "committed",
        "block_verify": record.get("law") == "block",
        "final_commit": record.get("capture", True),
        "repetition_stop": record.get("repetition_stop", False),
        "prefill_chunk": 0,
    }
    decoder = core.ScriptedDecoder(net, options, record["prompt"])
    result: Record = {"callbacks": [], "raises": None}
    try:
        while not decoder.done:
            batch = decoder.advance()["ids"]
            if batch:
                result["callbacks"].append(batch)
            if record.get("raise_in_callback") is not None and len(result["callbacks"]) >= record["raise_in_callback"]:
                result["raises"] = "StopNow"
                break
    except RuntimeError as error:
        result["raises"] = type(error).__name__
    result["draw_trace"] = decoder.trace
    if result["raises"]:
        result["calls"] = net.log
        return result
    final = decoder.finish()
    tokens = decoder.tokens
    text = list(tokens)
    while text and text[-1] in stops:
        text.pop()
    result |= {
        "calls": net.log,
        "tokens": tokens,
        "text": ",".join(map(str, text)),
        "finish_reason": decoder.finish_reason,
        "stop_origin": decoder.stop_origin if decoder.finish_reason == "stop" else None,
        "stats": decoder.statistics,
        "final": None,
    }
    if final["present"]:
        committed = speculate and history != "cycle"
        result["final"] = {
            "trunk_tokens": net.tokens,
            "trunk_len": len(net.tokens),
            "history": net.history if committed else None,
            "history_len": len(net.history) if committed else None,
            "safe_to_commit": final["safe"],
            "generated_token_ids": tokens,
            "finish_reason": decoder.finish_reason,
            "policy": history if speculate else "cycle",
            "logits_are_row_after_trunk": final["logits_are_row_after_trunk"],
            "hidden_is_row_after_trunk": final["hidden_is_row_after_trunk"],
        }
    return result


MTP_COUNTERS = (
    "verify_calls",
    "accepted_drafts",
    "rejected_drafts",
    "drafted_tokens",
    "bonus_tokens",
    "correction_tokens",
    "deferred_correction_repairs",
    "context_copy_probes",
    "context_copy_rounds",
    "context_copy_drafted_tokens",
    "context_copy_accepted_tokens",
    "context_copy_accepted_blocks",
    "context_copy_suspensions",
    "mtp_history_live_resets",
    "context_copy_backoff_tokens",
    "context_copy_suspended",
)


def compare_statistics(record: Record, want: Record, got: Record) -> None:
    repetition = {name: got[name] for name in got if name.startswith("repetition_stop_")}
    repetition["repetition_stop_reason"] = repetition["repetition_stop_reason"] or None
    for name in repetition:
        expect(name, want[name], repetition[name])
    if record["kind"] == "ar":
        expect("verify_calls", want["verify_calls"], got["verify_calls"])
        return
    if record.get("env", {}).get("MTPLX_OMIT_SPECULATIVE_BONUS") == "1":
        got = {**got, "bonus_tokens": 0}
    for name in MTP_COUNTERS:
        expect(name, want[name], got[name])
    for name in ("accepted_by_depth", "drafted_by_depth"):
        expect(name, want[name], got[name][: record["depth"]])


def replay_run(record: Record) -> None:
    speculate = record["kind"] == "mtp"
    optional = "env capture repetition_stop raise_in_callback fail_forward_at"
    if speculate:
        fields(
            record,
            "model prompt max_tokens sampler depth seed stop result",
            optional + " draft_sampler history lane wrong_draft_at_depth law",
        )
    else:
        fields(record, "model prompt max_tokens sampler seed stop result", optional)
    want = record["result"]
    known = "raises callbacks calls draw_trace min_cdf_margin tokens text finish_reason stats final"
    expect("result fields", set(), set(want) - set(known.split()))
    env = record.get("env", {})
    got = run(record, network(record, record["model"]), speculate=speculate)
    expect("raises", want.get("raises"), got["raises"])
    for name in ("callbacks", "draw_trace"):
        expect(name, want[name], got[name])
    if env.get("MTPLX_LAZY_BONUS_VERIFY") != "1":
        expect("calls", want["calls"], got["calls"])
    if "tokens" not in want:
        return
    for name in ("tokens", "text", "finish_reason", "final"):
        expect(name, want[name], got[name])
    compare_statistics(record, want["stats"], got["stats"])
    if speculate:
        origin = got["stop_origin"]
        if env.get("MTPLX_OMIT_SPECULATIVE_BONUS") == "1" and origin == "bonus":
            origin = "primary"
        expect("stop origin", want["stats"]["finish_stop_origin"], origin)


def replay_resume(record: Record) -> None:
    """A suffix behind a prefix that some turn has committed."""
    fields(record, "prefix suffix fused_max calls trunk_tokens history")
    net = network(record, {"vocab": 32, "mode": "hash", "amp": 0.25})
    options = {"target": (1.0, 0.95, 20, 0.0, 0.0), "max_tokens": 0, "fused_suffix": record["fused_max"]}
    first = core.ScriptedDecoder(net, {**options, "prefill_chunk": 0}, record["prefix"])
    first.drain()
    first.finish()
    net.clear_log()
    second = core.ScriptedDecoder(net, options, record["prefix"] + record["suffix"], first)
    second.drain()
    expect("calls", record["calls"], net.log)
    expect("trunk", record["trunk_tokens"], net.tokens)
    expect("history", record["history"], net.history)


KINDS: dict[str, Callable[[Record], None]] = {
    "target": replay_row,
    "draft_fixed": replay_row,
    "draft_relaxed": replay_row,
    "batched_rows": replay_batched,
    "accept_residual": replay_accept,
    "point_mass_block": replay_block,
    "edge": replay_edge,
    "non_finite": replay_non_finite,
    "pcg64": replay_pcg64,
    "keyed": replay_keyed,
    "ar": replay_run,
    "mtp": replay_run,
    "resume": replay_resume,
}


def check(record: Record) -> str | None:
    """None, or why the record does not replay."""
    replay = KINDS.get(record.get("kind", ""))
    if replay is None:
        return f"unknown kind {record.get('kind')}"
    try:
        replay(record)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def read(path: Path) -> Iterator[Record]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    for line in text.splitlines():
        if line.strip():
            yield json.loads(line)


def main(paths: list[str]) -> int:
    passed = failed = 0
    for path in paths:
        shown = 0
        for number, record in enumerate(read(Path(path)), 1):
            reason = check(record)
            passed += reason is None
            failed += reason is not None
            if reason is not None and shown < SHOWN_FAILURES:
                shown += 1
                print(f"{path}:{number} {record.get('id')}: {reason[:600]}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
