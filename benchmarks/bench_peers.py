"""This engine beside mlx-vlm 0.7.10, MTPLX 2.12.2 and transformers: the same checkpoint, prompts and run.

    python benchmarks/bench_peers.py CHECKPOINT --envs DIR [--tokens N] [--repeats N] [--csv FILE] [--json]

DIR holds the environments torch, mtplx and vlm of tools/oracle/README.md; this engine runs in the command's own python.
Each engine is a process that waits for its turn: greedy decoding behind a prompt of 40 tokens, timed from the first to
the last token, and 512 prompt tokens to the first token. Engines take turns within every repetition. Ends with 1 if the
best form of this engine decodes below 10 times, or reads below 4 times, the best peer in its best form, or if float32
answers differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # behind an installed one
from qwenmtp.bench.timing import BenchResult, Roofline, environment, result, write_csv
from qwenmtp.terminal import table
from qwenmtp.text_files import read_text_files
from qwenmtp.tokenizer import Tokenizer

OWN = "qwenmtp"
ENGINES = {
    OWN: ("own.py", None),
    "transformers": ("hf.py", "torch"),
    "mlx-vlm": ("vlm.py", "vlm"),
    "MTPLX": ("mtplx.py", "mtplx"),
}
PROMPT = (
    "import argparse\nimport os\nimport sys\n\n\nclass Queue:\n"
    "    def __init__(self, items=()):\n        self.items = list(items)\n\n"
)
SHORT, LONG = 40, 512
TARGETS = {"decode": 10.0, "prefill": 4.0}


class Engine:
    """A worker process and the form it has open."""

    def __init__(self, name: str, envs: Path, checkpoint: Path, work: Path):
        script, env = ENGINES[name]
        python = sys.executable if env is None else str(envs / env / "bin" / "python")
        command = [python, str(Path(__file__).resolve().parent / "peers" / script), str(checkpoint), str(work)]
        variables = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self.name = name
        self._log = (work / f"{name}.log").open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=variables
        )
        about = self.ask(do="forms")
        self.version, self.forms = about["version"], about["forms"]

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            raise self._failed("ended early") from None
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer

    def _failed(self, why: str) -> SystemExit:
        self._log.flush()
        return SystemExit(f"{self.name}: {why}\n{Path(self._log.name).read_text()[-2000:]}")

    def close(self) -> None:
        self._process.communicate()
        self._log.close()


def prompts(checkpoint: Path) -> tuple[list[int], list[int]]:
    ids = Tokenizer(read_text_files(checkpoint)).encode(PROMPT)
    repeated = (ids * (LONG // len(ids) + 1))[:LONG]
    return repeated[:SHORT], repeated


def measure(engines: list[Engine], args: argparse.Namespace) -> tuple[list[BenchResult], dict[str, list[int]]]:
    """Every engine's i-th form is open while the i-th round runs; its repetitions alternate between the engines."""
    short, long = prompts(args.checkpoint)
    results: list[BenchResult] = []
    answers: dict[str, list[int]] = {}
    for i in range(max(len(e.forms) for e in engines)):
        ready = [e for e in engines if i < len(e.forms)]
        for engine in ready:
            engine.ask(do="open", form=engine.forms[i])
        decode: dict[str, list[float]] = {e.name: [] for e in ready}
        prefill: dict[str, list[float]] = {e.name: [] for e in ready}
        for repetition in range(args.repeats + 1):
            for engine in ready:
                said = engine.ask(do="decode", ids=short, n=args.tokens)
                read = engine.ask(do="prefill", ids=long)
                answers[f"{engine.name} {engine.forms[i]}"] = said["ids"]
                if repetition:  # the first one warms up
                    decode[engine.name].append(said["decode"])
                    prefill[engine.name].append(read["prefill"])
        for engine in ready:
            form = engine.forms[i]
            shape = {"decode": f"{args.tokens} tokens behind {SHORT}", "prefill": f"{LONG} tokens"}
            for what, seconds, work in (("decode", decode, args.tokens - 1), ("prefill", prefill, LONG)):
                extra = {"engine": engine.name, "form": form, "version": engine.version, "what": what}
                name = f"{engine.name}, {form}, {what}"
                results.append(
                    result(name, seconds[engine.name], shape=shape[what], work=work, unit="tok", extra=extra)
                )
    return results, answers


def best(results: list[BenchResult], what: str, own: bool) -> BenchResult:
    """The fastest form; a peer counts by its fastest repetition, this engine by its median."""
    rows = [r for r in results if r.extra["what"] == what and (r.extra["engine"] == OWN) == own]
    return max(rows, key=lambda r: r.rate if own else r.work / r.best)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--envs", type=Path, required=True, help="folder of the reference environments")
    parser.add_argument("--engines", default=",".join(ENGINES), help="a part of %(default)s")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        engines = [Engine(name, args.envs, args.checkpoint, Path(work)) for name in args.engines.split(",")]
        results, answers = measure(engines, args)
        for engine in engines:
            engine.close()
    if args.csv:
        write_csv(args.csv, results, " ".join(sys.argv))
    dense = {name: ids for name, ids in answers.items() if name.endswith(("float32",)) and "bit" not in name}
    differ = sorted(name for name, ids in dense.items() if ids != dense[next(iter(dense))])
    ratios = {}
    if len(engines) > 1 and OWN in args.engines.split(","):
        ratios = {
            w: best(results, w, True).rate / (p.work / p.best) for w in TARGETS for p in [best(results, w, False)]
        }
    report = {
        "results": [r.to_json() for r in results],
        "ratios": ratios,
        "differ": differ,
        "environment": environment(),
    }
    if args.json:
        print(json.dumps(report))
    else:
        show(results, ratios, differ)
    return 1 if differ or any(ratios[w] < t for w, t in TARGETS.items() if w in ratios) else 0


def show(results: list[BenchResult], ratios: dict[str, float], differ: list[str]) -> None:
    rows = [
        (
            r.extra["engine"],
            r.extra["form"],
            r.extra["what"],
            round(r.rate, 1),
            round(r.work / r.best, 1),
            f"{1e3 * r.median:.0f} ms",
        )
        for r in sorted(results, key=lambda r: (r.extra["what"], -r.rate))
    ]
    print(table(rows, ("engine", "form", "", "tok/s median", "best", "median")))
    for version in dict.fromkeys(f"{r.extra['engine']} {r.extra['version']}" for r in results):
        print(version)
    for what, ratio in ratios.items():
        peer = best(results, what, False)
        name = f"{peer.extra['engine']} ({peer.extra['form']})"
        print(f"{what}: {ratio:.1f} times the best of {name}, target {TARGETS[what]:g}")
    print("float32 answers are equal" if not differ else f"other float32 answers: {', '.join(differ)}")
    roof = Roofline()
    roof.measure()
    print(f"one thread reads {roof.bandwidth[1] / 1e9:.1f} GB/s in this run")


if __name__ == "__main__":
    sys.exit(main())
