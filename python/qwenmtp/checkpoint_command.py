"""`qwenmtp checkpoint`: looks at QWMTKV02 files and stores, without any model."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from qwenmtp.checkpoint_files import CheckpointInfo, inspect, ls, prune, store_root, verify
from qwenmtp.errors import InvalidRequest
from qwenmtp.settings import Settings
from qwenmtp.terminal import human_bytes, table


def default_root() -> Path:
    """The store's root as this process would use it."""
    return store_root(Settings.from_env().checkpoint.dir)


def add_arguments(p: argparse.ArgumentParser) -> None:
    """Adds the command's own arguments."""
    p.add_argument("action", choices=("inspect", "verify", "ls", "prune"), help="header; all bytes; a store; clean up")
    p.add_argument("paths", nargs="*", metavar="PATH", help="files to look at, or the store's root")
    p.add_argument("--max-bytes", type=int, metavar="N", help="prune: keep the last used N bytes")
    p.add_argument("--older-than", type=float, metavar="DAYS", help="prune: what was not used for so long")
    p.add_argument("--dry-run", action="store_true", help="prune: only say what would go")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when a file was refused. Raises InvalidRequest for a missing argument."""
    if args.action in ("inspect", "verify"):
        if not args.paths:
            raise InvalidRequest(f"[checkpoint] {args.action} needs a file")
        look = inspect if args.action == "inspect" else verify
        found = [look(path) for path in args.paths]
    else:
        roots = [Path(p) for p in args.paths] or [default_root()]
        if args.action == "ls":
            found = [info for root in roots for info in ls(root)]
        elif args.max_bytes is None and args.older_than is None:
            raise InvalidRequest("[checkpoint] prune needs --max-bytes or --older-than")
        else:
            age = None if args.older_than is None else args.older_than * 86400
            found = [
                info
                for root in roots
                for info in prune(root, quota_bytes=args.max_bytes, older_than_s=age, dry_run=args.dry_run)
            ]
    if args.json:
        print(json.dumps({"files": [info.to_json() for info in found]}))
    else:
        print(_shown(found))
    refused = args.action in ("inspect", "verify") and not all(info.ok for info in found)
    return 1 if refused else 0


def _shown(found: Sequence[CheckpointInfo]) -> str:
    if not found:
        return "no checkpoints"
    rows = [
        (
            info.path,
            info.outcome if info.ok else f"{info.outcome}: {info.reason}",
            info.mode,
            info.n_tokens,
            len(info.boundaries),
            human_bytes(info.file_bytes),
            _age(info.accessed_ns),
        )
        for info in found
    ]
    return table(rows, ("file", "outcome", "mode", "tokens", "boundaries", "size", "last used"))


def _age(ns: int) -> str:
    if not ns:
        return ""
    seconds = max(0.0, time.time() - ns / 1e9)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"
