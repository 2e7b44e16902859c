"""Everything that can change a bit of a state, as one digest. Reads model files, never the environment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from qwenmtp._build import MLX_VERSION
from qwenmtp.weights import ModelFiles

# Weight files are hashed whole up to this size together; beyond it their headers, sizes and times stand for them.
WHOLE_BYTES = 1 << 30
HEADER_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionIdentity:
    """Everything that can change a bit of a state; states of different identities never meet."""

    model: str  # digest of config and shards
    mtp_head: str
    tokenizer: str
    compute_dtype: str
    kv_dtype: str
    mode: str  # "ar" or "mtp"
    depth: int | str | None  # None where depths share their states
    lanes: tuple[str, ...] = ()  # lanes that are on and change bits, sorted
    history_policy: str = "committed"
    cache_scope: str = ""  # the caller's: template, tools, tenant
    format_major: int = 2

    def digest(self) -> bytes:
        """SHA-256 of the fields as canonical JSON."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).digest()


class ModelDigests:
    """Digests of one model folder, each computed when it is first asked for.

    Args:
        files: The model.
    """

    def __init__(self, files: ModelFiles):
        self._files = files

    @cached_property
    def model(self) -> str:
        """Of config.json and every weight file."""
        return self._of(self._files.files)

    @cached_property
    def mtp_head(self) -> str:
        """Of the files that hold the draft head, and the names of its tensors."""
        files = self._files
        own = [(name, file) for name, _, _, file, _ in files.tensors if name.startswith("mtp.")]
        names = ",".join(sorted(name for name, _ in own))
        return self._of((files.files[i] for i in sorted({file for _, file in own})), names)

    @cached_property
    def tokenizer(self) -> str:
        """Of the files that turn text into ids."""
        digest = hashlib.sha256()
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            path = self._files.path / name
            _add(digest, name.encode(), path.read_bytes() if path.exists() else b"")
        return digest.hexdigest()

    def _of(self, paths: Iterable[str], extra: str = "") -> str:
        digest = hashlib.sha256(json.dumps(self._files.config, sort_keys=True).encode() + extra.encode())
        whole = self._files.n_bytes <= WHOLE_BYTES
        for path in map(Path, paths):
            stat = path.stat()
            with path.open("rb") as file:
                if whole:
                    _add(digest, path.name.encode(), hashlib.file_digest(file, "sha256").digest())
                else:
                    n_header = min(int.from_bytes(file.read(8), "little"), HEADER_BYTES)
                    stamp = f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode()
                    _add(digest, stamp, file.read(n_header))
        return digest.hexdigest()


def session_identity(
    digests: ModelDigests,
    *,
    dtype: str,
    mode: str,
    depth: int | str | None,
    history_policy: str,
    device: str,
    lanes: Iterable[str] = (),
    cache_scope: str = "",
) -> SessionIdentity:
    """The identity of a session on a model.

    Args:
        digests: Of the model.
        dtype: Compute type of activations and state.
        mode: `ar` or `mtp`.
        depth: Drafts a round; None where depths share their states, and for `ar`.
        history_policy: Rows that the draft head keeps.
        device: The back end that computes.
        lanes: Settings that are on and may change bits.
        cache_scope: The caller's own.
    """
    return SessionIdentity(
        model=digests.model,
        mtp_head=digests.mtp_head if mode == "mtp" else "",
        tokenizer=digests.tokenizer,
        compute_dtype=dtype,
        kv_dtype=dtype,
        mode=mode,
        depth=depth if mode == "mtp" else None,
        lanes=tuple(sorted({*lanes, f"device={device}", f"mlx={MLX_VERSION}"})),
        history_policy=history_policy if mode == "mtp" else "",
        cache_scope=cache_scope,
    )


def _add(digest: hashlib._Hash, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
