"""The command line: parses, runs one command, turns errors into exit codes. Knows no tensors."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from qwenmtp import __version__, commands
from qwenmtp._build import BUILD_TYPE, COMPILER, MLX_VERSION
from qwenmtp.errors import (
    CheckpointError,
    ConfigError,
    InsufficientMemory,
    InvalidRequest,
    IoError,
    ModelFormatError,
    QwenMtpError,
)

EPILOG = "Exit codes: 0 done, 1 a check failed, 2 usage, 3 bad input file, 4 not enough memory, 130 interrupted."

EXIT_CODES: tuple[tuple[type[QwenMtpError], int], ...] = (
    (InsufficientMemory, 4),
    (ModelFormatError, 3),
    (IoError, 3),
    (CheckpointError, 3),
    (InvalidRequest, 2),
    (ConfigError, 2),
)


def parser() -> argparse.ArgumentParser:
    """The whole command line; docs/cli.md is made from it."""
    root = argparse.ArgumentParser(prog="qwenmtp", description=__doc__.splitlines()[0], epilog=EPILOG)
    root.description = "Run Qwen3.8-Flash-Next with its own multi-token prediction."
    build = f"qwenmtp {__version__} (MLX {MLX_VERSION}, {COMPILER}, {BUILD_TYPE})"
    root.add_argument("--version", action="version", version=build)
    sub = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in commands.COMMANDS:
        p = sub.add_parser(
            command.name,
            help=command.summary,
            description=command.summary,
            epilog="examples:\n" + "\n".join(f"  {e}" for e in command.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(p)
        p.add_argument("--json", action="store_true", help="print one JSON object")
        p.set_defaults(run=command.run, root=root)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = parser().parse_args(argv)
    try:
        return int(args.run(args))
    except QwenMtpError as error:
        code = next((c for kind, c in EXIT_CODES if isinstance(error, kind)), 1)
        if args.json:
            print(json.dumps({"error": error.to_json()}))
        print(f"qwenmtp: {error}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        print("qwenmtp: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone; keep the interpreter from complaining at exit
        sys.stderr.close()
        return 1
