"""What the replay tools share: a record, its comparison, the test extension."""

from __future__ import annotations

import struct
from typing import Any

import _qwenmtp_testing as core

Record = dict[str, Any]

SAMPLER_FIELDS = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")


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
