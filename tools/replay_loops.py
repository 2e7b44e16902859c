"""Records of the decode loops, over a scripted trunk."""

from __future__ import annotations

from typing import Any

from qwenmtp.settings_legacy import NO_EFFECT
from replay_record import SAMPLER_FIELDS, Mismatch, Record, core, expect, fields, salt_of

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
