"""The reference's side: `python tools/receipts/reference.py ar|mtp MODEL OUT.jsonl [--dtype bfloat16] [--exits FILE]`.

Runs in MTPLX's own environment (tools/oracle/README.md) and writes one row a case. Refuses to start where the
environment asks for a pipeline, or in a version that would read the flag; then it sets the obsolete flag itself, as one
of the arms.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import itertools
import json
import os
import re
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PINNED = {"mtplx": "2.12.2", "mlx": "0.32.2"}
# The lanes the seed's receipts were taken with.
REQUIRED = {
    "MTPLX_COMPILED_GDN": "1",
    "MTPLX_QWEN4EXP_COMPILE": "1",
    "MTPLX_SUSTAINED_PREFILL": "1",
    "MTPLX_PREFILL_CHUNK_SIZE": "2048",
    "MTPLX_CONTEXT_COPY": "0",
    "MTPLX_FAMILY_CAPTURE_COMMIT": "1",  # the lane that both engines serve by default
}


def refuse_pipelines() -> None:
    """Stops before anything is loaded: what could run the retired pipeline is no reference."""
    asked = [n for n in os.environ if n.startswith("MTPLX_") and "PIPELINE" in n]
    if asked:
        sys.exit(f"reference: {', '.join(asked)} in the environment, expected no pipeline")
    for name, pinned in PINNED.items():
        if version(name) != pinned:
            sys.exit(f"reference: {name} {version(name)}, expected {pinned}")
    spec = importlib.util.find_spec("mtplx")
    for path in (p for folder in spec.submodule_search_locations for p in Path(folder).rglob("*.py")):
        if re.search(r"(environ|getenv|_env_)[^#\n]*AR_PIPELINE", path.read_text(encoding="utf-8")):
            sys.exit(f"reference: {path} reads the pipeline flag, expected a version without it")


refuse_pipelines()
sys.path[:0] = [str(HERE), str(HERE.parent / "oracle" / "decode"), str(HERE.parent / "oracle" / "model")]
import oracle_env  # noqa: E402, F401 - lets mtplx import off macOS, clears MTPLX_*

os.environ.update(REQUIRED)
import mlx.core as mx  # noqa: E402
import mtplx.generation as gen  # noqa: E402
import mtplx_model  # noqa: E402
import numpy as np  # noqa: E402
import states  # noqa: E402
from mtplx.cache_state import snapshot_cache  # noqa: E402
from mtplx.mtp_patch import MTPContract  # noqa: E402
from mtplx.runtime import MTPLXRuntime  # noqa: E402
from mtplx.sampling import SamplerConfig  # noqa: E402
from mtplx.session_bank import SessionBank  # noqa: E402

Row = dict[str, Any]
BANK = {"session_id": "receipt", "session_template_hash": "t", "session_policy_fingerprint": "p"}
NAMES = {"conv": "gdn_conv", "delta": "gdn_ssm", "pleconv": "ple_conv", "ngram": "ple_ids", "k": "keys", "v": "values"}
DTYPES = {mx.float32: "float32", mx.bfloat16: "bfloat16", mx.int64: "int64", mx.int32: "int64"}


class Enough(RuntimeError):
    """The consumer cancels."""


class Ids:
    """A tokenizer without text: the receipts are about ids."""

    eos_token_id = None

    def decode(self, ids: Any) -> str:
        return " ".join(map(str, ids))


def describe(name: str, value: mx.array) -> Row:
    dtype = DTYPES[value.dtype]
    if dtype == "int64":
        array = np.array(value).astype(np.int64)
        return states.describe(name, array, dtype, array.tobytes())
    array = np.array(value.astype(mx.float32))
    bits = array if dtype == "float32" else (array.view(np.uint32) >> 16).astype(np.uint16)
    return states.describe(name, array, dtype, bits.tobytes())


def state_of(model: Any, final: Any, n: int) -> Row:
    """The state as the native receipts name it; the delta-rule matrix is float32 there and here."""
    layers = []
    for i, layer in enumerate(model.layers):
        entry = final.final_trunk_cache[i]
        if layer.is_linear:
            slots = ("conv", "delta", "pleconv", "ngram") if "ple" in layer else ("conv", "delta")
            layers += [(f"trunk.{i}.{NAMES[s]}", entry[j][0]) for j, s in enumerate(slots)]
    for i, layer in enumerate(model.layers):
        if not layer.is_linear:
            layers += attention(f"trunk.{i}", final.final_trunk_cache[i])
    history = final.final_committed_mtp_cache
    if history is not None:
        layers += attention("mtp", history[0])
    layers.append(("final.logits", final.final_logits.reshape(-1)))
    if final.final_hidden is not None:
        layers.append(("final.hidden", final.final_hidden.reshape(-1)))
    length = 0 if history is None else int(history[0].offset)
    return {"N": n, "H": length, "tensors": [describe(name, value) for name, value in layers]}


def attention(prefix: str, cache: Any) -> list[tuple[str, mx.array]]:
    names = ("keys", "values", "raw")  # pooled rows follow from raw
    return [(f"{prefix}.{n}", v[0]) for n, v in zip(names, cache.state, strict=False)]


def open_runtime(path: Path, dtype: mx.Dtype) -> Any:
    model = mtplx_model.load(path, dtype)
    return MTPLXRuntime(model=model, tokenizer=Ids(), model_path=path, mtp_enabled=True, contract=MTPContract())


def sampler(temperature: float) -> Any:
    return SamplerConfig(temperature, states.TOP_P, states.TOP_K)


def row_of(rt: Any, prompt: list[int], out: Any, started: float, **more: Any) -> Row:
    tokens = [int(t) for t in out.tokens]
    final = out.final_state
    return {
        "prompt_ids": prompt,
        "tokens": tokens,
        "finish": out.finish_reason,
        "stop_origin": getattr(out.stats, "finish_stop_origin", None) if out.finish_reason == "stop" else None,
        "usage": {"prompt": len(prompt), "cached": int(out.stats.cached_tokens or 0), "completion": len(tokens)},
        "final": bool(final and final.safe_to_commit),
        "state": state_of(rt.model, final, len(prompt) + len(tokens)),
        "timing": {"kind": "probe", "total_s": round(time.perf_counter() - started, 4)},
        **more,
    }


# ---------------------------------------------------------------- the AR receipt


def ar_turns(rt: Any, emit: Any) -> None:
    """Cold, warm, cancelled after three callbacks, retried; over both flag values and both evaluation modes."""
    prompt, suffix = states.prompt_of(rt.model.args.text_config["vocab_size"])
    matrix = itertools.product((None, "1"), ("sync", "async"), states.TEMPERATURES)
    for flag, evaluation, temperature in matrix:
        for name, value in ((states.FLAG, flag), ("MTPLX_ASYNC_AR", "1" if evaluation == "async" else None)):
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        gen.refresh_env_flags()
        bank = SessionBank()
        shared = {
            "max_tokens": states.TOKENS, "sampler": sampler(temperature), "seed": states.SEED, "session_bank": bank,
            "stop_token_ids": set(), "capture_final_state": True, **BANK,
        }  # fmt: skip
        where = {"mode": "ar", "temperature": temperature, "flag": flag, "eval": evaluation, "residency": "ssd"}

        def turn(name: str, ids: list[int]) -> list[int]:
            started = time.perf_counter()
            out = gen.generate_ar(rt, list(ids), **shared)  # noqa: B023
            emit("ar", f"{name} T={temperature} flag={flag} {evaluation} ssd", row_of(rt, ids, out, started, **where))  # noqa: B023
            final = out.final_state
            held = ids + [int(t) for t in out.tokens]
            if name == "cold":
                bank.put(  # noqa: B023
                    runtime=rt, token_ids=held, cache=final.final_trunk_cache, logits=final.final_logits, hidden=None,
                    session_id="receipt", template_hash="t", policy_fingerprint="p", mtp_history_policy="cycle",
                    hidden_variant="post_norm", snapshot_epoch=len(held),
                )  # fmt: skip
            return held

        held = turn("cold", prompt)
        turn("warm", held + suffix)
        calls = itertools.count(1)

        def stop(_ids: Any) -> None:
            if next(calls) >= states.CANCEL_AFTER:  # noqa: B023
                raise Enough

        try:
            gen.generate_ar(rt, held + suffix, token_callback=stop, **shared)
        except Enough:
            pass
        else:
            sys.exit("reference: the cancelled turn finished")
        turn("retry", held + suffix)


# ---------------------------------------------------------------- the MTP receipt


def mtp_turns(rt: Any, emit: Any) -> None:
    """24 endings, and 12 whose first primary ends the turn; each followed by a warm turn from the bank."""
    prompt, suffix = states.prompt_of(rt.model.args.text_config["vocab_size"])
    for name, depth, temperature, limit, stops in mtp_cases(rt, prompt):
        bank = SessionBank()
        shared = {
            "sampler": sampler(temperature), "speculative_depth": depth, "seed": states.SEED, "session_bank": bank,
            "stop_token_ids": set(stops), "capture_final_state": True, "mtp_history_policy": "committed",
            "verify_strategy": "batched", **BANK,
        }  # fmt: skip
        where = {"mode": "mtp", "depth": depth, "temperature": temperature, "limit": limit, "residency": "ssd"}
        started = time.perf_counter()
        out = gen.generate_mtpk(rt, list(prompt), max_tokens=limit, **shared)
        emit("mtp", name, row_of(rt, prompt, out, started, **where))
        final, held = out.final_state, prompt + [int(t) for t in out.tokens]
        bank.put(
            runtime=rt, token_ids=held, cache=final.final_trunk_cache, logits=final.final_logits,
            hidden=final.final_hidden, hidden_variant="post_norm", session_id="receipt", template_hash="t",
            policy_fingerprint="p", mtp_history_policy="committed",
            mtp_history_snapshot=snapshot_cache(final.final_committed_mtp_cache), snapshot_epoch=len(held),
            mtp_snapshot_epoch=len(held),
        )  # fmt: skip
        started = time.perf_counter()
        out = gen.generate_mtpk(rt, held + suffix, max_tokens=4, **{**shared, "stop_token_ids": set()})
        emit("mtp", f"{name}, warm", row_of(rt, held + suffix, out, started, **where))


def mtp_cases(rt: Any, prompt: list[int]) -> Any:
    """(name, depth, temperature, limit, stop ids); the table of native.mtp_cases."""
    for depth, temperature in itertools.product(states.DEPTHS, states.MTP_TEMPERATURES):
        for limit in states.LIMITS:
            yield f"ending depth {depth} T={temperature} limit {limit}", depth, temperature, limit, ()
        first = gen.generate_mtpk(
            rt, list(prompt), max_tokens=1, sampler=sampler(temperature), speculative_depth=depth, seed=states.SEED,
            stop_token_ids=set(), mtp_history_policy="committed", verify_strategy="batched",
        )  # fmt: skip
        primary = int(first.tokens[0])
        yield f"first primary at the limit, depth {depth} T={temperature}", depth, temperature, 1, ()
        yield f"first primary is a stop, depth {depth} T={temperature}", depth, temperature, 9, (primary,)


def exit_matrix(fixture: Path) -> list[str]:
    """Runs the recorded exits again, in the environment they were recorded in; what came out otherwise."""
    import recorder  # only here: it records through stand-ins

    for name in REQUIRED:
        del os.environ[name]
    wrong = []
    for line in gzip.decompress(fixture.read_bytes()).decode().splitlines():
        record = json.loads(line)
        spec = {k: v for k, v in record.items() if k not in ("id", "kind", "salt", "result", "lane")}
        if recorder.run(record["kind"], spec) != record["result"]:
            wrong.append(record["id"])
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=("ar", "mtp"))
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--exits", type=Path, help="also run these recorded exits again")
    args = parser.parse_args()
    rt = open_runtime(args.model, getattr(mx, args.dtype))
    with args.out.open("w", encoding="utf-8") as file:

        def emit(suite: str, case: str, row: Row) -> None:
            file.write(json.dumps({"suite": suite, "case": case, "engine": "MTPLX " + PINNED["mtplx"], **row}) + "\n")

        (ar_turns if args.suite == "ar" else mtp_turns)(rt, emit)
        if args.exits:
            wrong = exit_matrix(args.exits)
            file.write(json.dumps({"suite": args.suite, "case": "exit matrix", "wrong": wrong}) + "\n")


if __name__ == "__main__":
    main()
