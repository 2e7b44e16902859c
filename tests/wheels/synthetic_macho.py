"""Writes small Mach-O files from the format's description, independent of the reader under test."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

MAGIC, DYLIB = 0xFEEDFACF, 6
LOAD_DYLIB, RPATH, SYMTAB, BUILD_VERSION, SIGNATURE, EXPORTS = 0xC, 0x8000001C, 2, 0x32, 0x1D, 0x80000033


def image(
    *,
    cpu: int = 0x0100000C,
    minos: tuple[int, int] = (14, 0),
    libraries: Sequence[str] = (),
    rpaths: Sequence[str] = (),
    imports: Mapping[str, str | None] | None = None,
    exports: Sequence[str] = (),
    signed: bool = True,
) -> bytes:
    """A file with these load commands; an import bound to None is looked up in every image."""
    texts = b"\0"
    symbols = b""
    for name, library in {"_own": "", **(imports or {})}.items():
        at, texts = len(texts), texts + name.encode() + b"\0"
        if name == "_own":  # defined here, external
            symbols += struct.pack("<IBBHQ", at, 0x0F, 1, 0, 0x1000)
        else:
            ordinal = 254 if library is None else libraries.index(library) + 1
            symbols += struct.pack("<IBBHQ", at, 0x01, 0, ordinal << 8, 0)
    trie = export_trie(exports)
    fixed = [struct.pack("<6I", BUILD_VERSION, 24, 1, minos[0] << 16 | minos[1] << 8, 0, 0)]
    fixed += [_with_text(LOAD_DYLIB, 24, struct.pack("<3I", 0, 0, 0), name) for name in libraries]
    fixed += [_with_text(RPATH, 12, b"", path) for path in rpaths]
    size = sum(map(len, fixed)) + 24 + 16 + 16
    at = 32 + size
    commands = [
        *fixed,
        struct.pack("<6I", SYMTAB, 24, at, len(symbols) // 16, at + len(symbols), len(texts)),
        struct.pack("<4I", EXPORTS, 16, at + len(symbols) + len(texts), len(trie)),
        struct.pack("<4I", SIGNATURE, 16, at + len(symbols) + len(texts) + len(trie), 4 if signed else 0),
    ]
    header = struct.pack("<8I", MAGIC, cpu, 0, DYLIB, len(commands), size, 0, 0)
    return header + b"".join(commands) + symbols + texts + trie + b"sign"


def _with_text(command: int, offset: int, fields: bytes, text: str) -> bytes:
    body = struct.pack("<I", offset) + fields + text.encode() + b"\0"
    body += b"\0" * (-len(body) % 8)
    return struct.pack("<2I", command, 8 + len(body)) + body


def export_trie(names: Sequence[str]) -> bytes:
    """Edges of one character at the root, of the rest below: names may share their first character."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name[0], []).append(name[1:])
    out = bytearray(_node(groups))
    for first, rests in groups.items():
        _point(out, 0, first, len(out))
        middle = len(out)
        out += _node(rests)
        for rest in rests:
            _point(out, middle, rest, len(out))
            out += b"\x02\x00\x00\x00"  # payload: no flags, address 0; no children
    return bytes(out)


def _node(edges: Sequence[str] | Mapping[str, object]) -> bytes:
    return b"\0" + bytes([len(edges)]) + b"".join(edge.encode() + b"\0\x80\x80\x00" for edge in edges)


def _point(out: bytearray, node: int, edge: str, child: int) -> None:
    """Fill the three-byte number behind an edge."""
    at = out.index(edge.encode() + b"\0\x80\x80\x00", node) + len(edge) + 1
    out[at : at + 3] = bytes([child & 0x7F | 0x80, child >> 7 & 0x7F | 0x80, child >> 14])
