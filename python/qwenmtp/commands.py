"""The commands: their arguments, what they run, what they print."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from qwenmtp import checkpoint_command, completion, memory_commands
from qwenmtp.bench import command as bench_command
from qwenmtp.convert import command as convert_command
from qwenmtp.errors import InvalidRequest, IoError
from qwenmtp.inventory import inventory
from qwenmtp.model import Model, load
from qwenmtp.sampling import SamplingParams
from qwenmtp.sessions import Session
from qwenmtp.settings import Settings
from qwenmtp.terminal import ProgressLine, human_bytes, painted, table
from qwenmtp.verify import Check, verify
from qwenmtp.weights import open_model_files

DEMO = "models/demo"


@dataclass(frozen=True)
class Command:
    """One subcommand."""

    name: str
    summary: str
    examples: tuple[str, ...]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 1,2,3") from None


def _depth(text: str) -> int | str:
    if text == "auto":
        return text
    if text.isdigit() and 1 <= int(text) <= 5:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}, expected 1..5 or auto")


def _generate_arguments(p: argparse.ArgumentParser) -> None:
    prompt = p.add_mutually_exclusive_group(required=True)
    prompt.add_argument("prompt", nargs="?", metavar="PROMPT", help="text to continue")
    prompt.add_argument("--ids", type=_ids, metavar="1,2,3", help="token ids to continue")
    prompt.add_argument("--file", metavar="F", help="UTF-8 file to continue; - is standard input")
    p.add_argument("--model", default=DEMO, metavar="M", help="model folder (default: %(default)s)")
    p.add_argument("--chat", action="store_true", help="the prompt is a user's message")
    p.add_argument("--max-tokens", type=int, default=256, metavar="N", help="longest answer (default: %(default)s)")
    p.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    p.add_argument("--top-p", type=float, metavar="P", help="keep the likeliest tokens up to this mass")
    p.add_argument("--top-k", type=int, metavar="K", help="keep so many of the likeliest tokens; 0 keeps all")
    p.add_argument("--presence-penalty", type=float, metavar="X", help="taken from tokens already in the answer")
    p.add_argument("--frequency-penalty", type=float, metavar="X", help="taken once for each time a token occurs")
    p.add_argument("--seed", type=int, metavar="S", help="the same seed gives the same tokens")
    speed = p.add_mutually_exclusive_group()
    speed.add_argument("--depth", type=_depth, default=3, metavar="D", help="drafts a round: 1..5 or auto (default: 3)")
    speed.add_argument("--ar", action="store_true", help="no drafts: one token a forward")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), help="compute type (default: by device)")
    p.add_argument(
        "--stop", action="append", default=[], metavar="S", help="text that ends the answer; may be repeated"
    )
    p.add_argument("--ignore-stop", action="store_true", help="go on through stop tokens")
    p.add_argument(
        "--session", metavar="NAME", help="go on with the conversation stored under this name, and store it again"
    )


def _prompt(args: argparse.Namespace) -> str | list[int]:
    if args.ids is not None:
        return list(args.ids)
    if args.file is None:
        return str(args.prompt)
    try:
        raw = sys.stdin.buffer.read() if args.file == "-" else Path(args.file).read_bytes()
        return raw.decode("utf-8")
    except OSError as error:
        raise IoError(f"[generate] {args.file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise IoError(
            f"[generate] {args.file} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
        ) from None


def _opened(path: str, **overrides: Any) -> tuple[Model, float]:
    """The model and the seconds its load took."""
    started = time.perf_counter()
    with ProgressLine("loading") as line:
        model = load(path, on_progress=line, **{k: v for k, v in overrides.items() if v is not None})
    return model, time.perf_counter() - started


@contextmanager
def _interrupt_cancels(session: Session) -> Iterator[None]:
    """Within, the first Ctrl-C ends the answer at its next token; a second one interrupts at once."""

    def cancel(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        session.cancel()

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _continued(session: Session, model: Model, prompt: str | list[int], *, chat: bool) -> list[int]:
    """The stored ids and, behind them, the prompt's; nothing but the prompt where nothing usable is stored."""
    behind = session.resume()
    if chat:
        text = model.chat_template.render([{"role": "user", "content": prompt}])
        prompt = "\n" + text if behind else text
    return session.ids + (model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)


def _generate(args: argparse.Namespace) -> int:
    prompt = _prompt(args)
    if args.chat and not isinstance(prompt, str):
        raise InvalidRequest("[generate] --chat takes text, not --ids")
    params = SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        seed=args.seed,
    )
    model, load_seconds = _opened(args.model, dtype=args.dtype)
    with model:
        session = model.session(args.session, mode="ar" if args.ar else "mtp", depth=args.depth)
        if args.session is not None:
            prompt = _continued(session, model, prompt, chat=args.chat)
        with _interrupt_cancels(session), ProgressLine("reading") as line:
            options: dict[str, Any] = {
                "max_tokens": args.max_tokens,
                "stop": args.stop,
                "ignore_stop": args.ignore_stop,
                "on_progress": line,
            }
            if args.chat and isinstance(prompt, str):
                rounds = session.chat([{"role": "user", "content": prompt}], params, **options)
            else:
                rounds = session.generate(prompt, params, **options)
            for r in rounds:
                line.clear()
                if not args.json:
                    sys.stdout.write(r.text)
                    sys.stdout.flush()
        turn = session.last_turn
        assert turn is not None
        if args.session is not None and turn.final["committed"]:
            session.save()
    if args.json:
        answer = turn.to_json()
        answer["timing"]["load"] = load_seconds
        print(json.dumps(answer))
    else:
        seconds = turn.timing["decode"]
        speed = len(turn.ids) / seconds if seconds > 0 else 0.0
        print(
            f"\n[{turn.usage['prompt']} prompt tokens in {turn.timing['prefill']:.2f} s, {len(turn.ids)} generated at "
            f"{speed:.1f} tok/s, finish {turn.finish}, loaded in {load_seconds:.2f} s]",
            file=sys.stderr,
        )
    return 130 if turn.finish == "cancelled" else 0


def _info_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL", help="model folder")


def _info(args: argparse.Namespace) -> int:
    files = open_model_files(args.model)
    found = inventory(files)
    per_token = {part: sum(c.per_token for c in classes.values()) for part, classes in found.items()}
    report = {
        "path": str(files.path),
        "layout": files.layout,
        "file_bytes": files.n_bytes,
        "bytes_per_token": {part: round(n) for part, n in per_token.items()},
        "classes": {part: {n: c.to_json() for n, c in classes.items()} for part, classes in found.items()},
        "geometry": files.geometry,
    }
    if args.json:
        print(json.dumps(report))
        return 0
    g = files.geometry
    attention = sum(g["full_attention"])
    print(f"{files.path}: {files.layout} layout, {human_bytes(files.n_bytes)}")
    print(
        f"{len(g['full_attention'])} layers ({attention} attention), hidden {g['hidden_size']} x {g['hc_count']}, "
        f"{g['n_experts']} experts top-{g['top_k']}, vocabulary {g['vocab_size']}, context {g['max_position']}"
    )
    rows = [
        (
            f"MTP {name}" if part == "mtp" else name,
            ", ".join(c.to_json()["widths"]),
            human_bytes(c.n_bytes),
            human_bytes(c.per_token),
        )
        for part, classes in found.items()
        for name, c in sorted(classes.items(), key=lambda item: -item[1].n_bytes)
    ]
    print(table(rows, ("class", "stored as", "in files", "per token")))
    print(f"weights read per token: {human_bytes(per_token['trunk'])}, per draft: {human_bytes(per_token['mtp'])}")
    return 0


def _convert(args: argparse.Namespace) -> int:
    with ProgressLine("converting") as line:
        report = convert_command.run(args, lambda done, total, _file: line(done, total))
    print(json.dumps(report.to_json()) if args.json else report)
    return 0


def _settings_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("--model", metavar="M", help="model folder whose pack wishes count too")


def _settings(args: argparse.Namespace) -> int:
    pack = open_model_files(args.model).path if args.model else None
    settings = Settings.from_env(pack=pack).as_json()
    if args.json:
        print(json.dumps(settings))
        return 0
    rows = [(n, f["value"], f["source"], f["name"] or "") for n, f in settings["fields"].items()]
    print(table([[str(c) for c in row] for row in rows], ("field", "value", "source", "from")))
    for name, entry in settings["no_effect"].items():
        if entry["set"] is not None:
            print(f"{name}={entry['set']}: no effect, {entry['reason']}")
    return 0


def _verify_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("--model", default=DEMO, metavar="M", help="model folder (default: %(default)s)")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), help="compute type (default: by device)")


def _verify(args: argparse.Namespace) -> int:
    def show(check: Check) -> None:
        if not args.json:
            verdict = painted("ok  ", "green") if check.passed else painted("FAIL", "red")
            print(f"{verdict}  {check.name}  [{check.cases}]  {check.detail}".rstrip(), flush=True)

    model, _ = _opened(args.model, dtype=args.dtype)
    with model:
        report = verify(model, show)
    if args.json:
        print(json.dumps(report.to_json()))
    else:
        failed = [c.name for c in report.checks if not c.passed]
        print(f"{'all checks passed' if report.passed else 'FAILED: ' + failed[0]} in {report.seconds:.1f} s")
    return 0 if report.passed else 1


COMMANDS = (
    Command(
        "generate",
        "Continue a prompt, streaming the text.",
        (
            'qwenmtp generate --model models/demo "def main(argv):"',
            "qwenmtp generate --file prompt.txt --temperature 0 --max-tokens 64 --json",
            'qwenmtp generate --chat "What does os.path.join do?" --seed 7',
            'qwenmtp generate --session notes "and then"',
        ),
        _generate_arguments,
        _generate,
    ),
    Command(
        "info",
        "Geometry, stored widths by class of module, and bytes read per token.",
        ("qwenmtp info models/demo",),
        _info_arguments,
        _info,
    ),
    Command(
        "plan",
        "Memory that a session of so many tokens needs, by part.",
        (
            "qwenmtp plan models/demo --context 32768",
            "qwenmtp plan models/demo --context 8192 --residency auto --memory 24GiB",
        ),
        memory_commands.plan_arguments,
        memory_commands.run_plan,
    ),
    Command(
        "table",
        "The n-gram table as a row file: one read a row instead of three.",
        ("qwenmtp table interleave models/demo --file rows", "qwenmtp table verify models/demo --file rows"),
        memory_commands.table_arguments,
        memory_commands.run_table,
    ),
    Command(
        "convert",
        "Make a pack from a released checkpoint.",
        ("qwenmtp convert path/to/release models/mine --recipe optimized-speed",),
        convert_command.add_arguments,
        _convert,
    ),
    Command(
        "settings",
        "Every setting, its value and where it came from.",
        ("qwenmtp settings", "QWENMTP_PLE_THREADS=4 qwenmtp settings --json"),
        _settings_arguments,
        _settings,
    ),
    Command(
        "verify",
        "Check on this machine that drafting changes no answer, no law and no state.",
        ("qwenmtp verify --model models/demo", "qwenmtp verify --model models/demo --json"),
        _verify_arguments,
        _verify,
    ),
    Command(
        "checkpoint",
        "Look at checkpoint files and stores; works without a model.",
        ("qwenmtp checkpoint inspect chat.qwmtkv", "qwenmtp checkpoint prune ROOT --max-bytes 10000000000 --dry-run"),
        checkpoint_command.add_arguments,
        checkpoint_command.run,
    ),
    Command(
        "bench",
        "Measure this machine, with the roofline of the same run.",
        ("qwenmtp bench decode --model models/demo",),
        bench_command.add_arguments,
        bench_command.run,
    ),
    Command(
        "completion",
        "Completions for bash, zsh or fish.",
        ('eval "$(qwenmtp completion bash)"', "qwenmtp completion fish > ~/.config/fish/completions/qwenmtp.fish"),
        completion.add_arguments,
        completion.run,
    ),
)
