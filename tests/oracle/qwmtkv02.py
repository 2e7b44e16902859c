"""QWMTKV02 from its specification alone: an independent writer and strict reader. Standard library and NumPy only.

Derived from the executable prototype that fixed the format. Two fields that it left at fixed values follow the table
here: flag bit 1 (boundaries present) and the hidden tensor of a boundary record.
"""

import hashlib
import itertools
import json
import os
import stat
import struct
import zlib

import numpy as np

MAGIC = b"QWMTKV02"
PAGE = 16384
PIECE = 4 << 20
PROLOGUE = struct.Struct("<8sHHIQQQIIQQ32s32sQQQqIIII16s32s32s")
ENTRY = struct.Struct("<4sHHQQQ")
TENSOR = struct.Struct("<BBHHBB4IQQIIQ32sQ")
BOUNDARY = struct.Struct("<QIIiI8x")
TAGS = (b"META", b"TOKS", b"TENS", b"CRCS", b"BNDS")
ITEM_BYTES = {8: 8, 9: 2, 10: 2, 11: 4}
NONE = 0xFFFF

TINY = {
    "layers": ["ple", "qsa"],
    "vocab": 512,
    "wide": 40,
    "conv_dim": 40,
    "hv": 4,
    "dv": 16,
    "dk": 16,
    "hkv": 2,
    "head_dim": 32,
    "index_dim": 16,
}
SMALL = {**TINY, "layers": ["gdn", "ple", "gdn", "qsa"] * 2}
RELEASED = {
    "layers": ["qsa" if (i + 1) % 4 == 0 else "ple" if i == 1 else "gdn" for i in range(48)],
    "vocab": 248320,
    "wide": 10240,
    "conv_dim": 10240,
    "hv": 48,
    "dv": 128,
    "dk": 128,
    "hkv": 2,
    "head_dim": 256,
    "index_dim": 128,
}


class Reject(Exception):
    """The reason why a file is refused."""


def round_up(n, step=PAGE):
    return -(-n // step) * step


def schema(geometry, shape):
    """Rows (group, role, layer, boundary, dtype, dims, valid rows) in file order."""
    g = {"dtype": 10, "conv_rows": 3, "ple_rows": 9, "ple_context": 2, "pool": 4} | geometry
    act, wide, mtp = g["dtype"], g["wide"], shape["mode"] == "mtp"
    rows = []

    def recurrent(group, boundary):
        for i, kind in enumerate(g["layers"]):
            if kind == "qsa":
                continue
            rows.append((group, 1, i, boundary, act, (1, g["conv_rows"], g["conv_dim"]), 0))
            rows.append((group, 2, i, boundary, 11, (1, g["hv"], g["dv"], g["dk"]), 0))
            if kind == "ple":
                rows.append((group, 3, i, boundary, act, (1, g["ple_rows"], wide), 0))
                rows.append((group, 4, i, boundary, 8, (1, g["ple_context"]), 0))

    def qsa(group, layer, n):
        for role in (5, 6):
            rows.append((group, role, layer, NONE, act, (1, g["hkv"], n, g["head_dim"]), n))
        rows.append((group, 7, layer, NONE, act, (1, n, g["index_dim"]), n))
        if pooled := n // g["pool"]:
            rows.append((group, 8, layer, NONE, act, (1, pooled, g["index_dim"]), pooled))

    recurrent(1, NONE)
    for i, kind in enumerate(g["layers"]):
        if kind == "qsa":
            qsa(1, i, shape["n_tokens"])
    if mtp and shape["history_len"]:
        qsa(2, 0, shape["history_len"])
    rows.append((3, 9, 0, NONE, act, (1, g["vocab"]), 0))
    if mtp:
        rows.append((3, 10, 0, NONE, act, (1, 1, wide), 0))
    for b in range(len(shape["boundaries"])):
        recurrent(4, b)
        if mtp:
            rows.append((4, 10, 0, b, act, (1, 1, wide), 0))
    return rows


def n_bytes(row):
    return ITEM_BYTES[row[4]] * int(np.prod(row[5], dtype=object))


def table(rows, header_bytes):
    """TENS records as tuples without the SHA-256, the number of CRCs, and the end of the file."""
    records, crcs, end = [], 0, header_bytes
    for group, role, layer, boundary, dtype, dims, valid in rows:
        size = n_bytes((0, 0, 0, 0, dtype, dims))
        pieces = -(-size // PIECE)
        four = (*dims, *[1] * (4 - len(dims)))
        records.append((group, role, layer, boundary, dtype, len(dims), *four, end, size, crcs, pieces, valid))
        crcs += pieces
        end = round_up(end + size)
    return records, crcs, end


def random_state(geometry, n, *, mode="mtp", boundaries=(), seed=0, base=0):
    """A head and the tensors of one lawful state with random contents."""
    rng = np.random.default_rng(seed)
    mtp = mode == "mtp"
    head = {
        "mode": mode,
        "n_tokens": n,
        "history_len": n - 1 - base if mtp else 0,
        "position_base": base if mtp else 0,
        "boundaries": list(boundaries),
        "finish": int(rng.integers(3)),
        "created_ns": int(rng.integers(1 << 60)),
        "identity": hashlib.sha256(b"model").digest(),
        "owner": hashlib.sha256(b"session").digest(),
        "writer_id": rng.bytes(16),
        "ids": [int(x) for x in rng.integers(0, geometry["vocab"], n)],
        "meta": json.dumps({"seed": seed}, sort_keys=True, separators=(",", ":")),
    }
    return head, [rng.bytes(n_bytes(row)) for row in schema(geometry, head)]


def encode(geometry, head, data, *, hashes=False):
    """The whole file as bytes."""
    rows = schema(geometry, head)
    meta = head["meta"].encode()
    ids = np.asarray(head["ids"], "<u4").tobytes()
    crcs = [zlib.crc32(d[at : at + PIECE]) for d in data for at in range(0, len(d), PIECE)]
    bounds = b""
    for b, position in enumerate(head["boundaries"]):
        mine = [i for i, row in enumerate(rows) if row[0] == 4 and row[3] == b]
        hidden = next((i for i in mine if rows[i][1] == 10), -1)
        bounds += BOUNDARY.pack(position, mine[0] if mine else 0, len(mine), hidden, 0)
    sections = [meta, ids, bytes(TENSOR.size * len(rows)), np.asarray(crcs, "<u4").tobytes(), bounds]
    end, offsets = 256 + 32 * len(TAGS), []
    for section in sections:
        offsets.append(round_up(end, 64))
        end = offsets[-1] + len(section)
    header_bytes = round_up(end)
    records, _, file_bytes = table(rows, header_bytes)
    digests = [hashlib.sha256(d).digest() if hashes else bytes(32) for d in data]
    sections[2] = b"".join(TENSOR.pack(*r, h, 0) for r, h in zip(records, digests, strict=True))
    out = bytearray(file_bytes)
    for i, (offset, section) in enumerate(zip(offsets, sections, strict=True)):
        out[offset : offset + len(section)] = section
        out[256 + 32 * i : 288 + 32 * i] = ENTRY.pack(TAGS[i], 1, 1, offset, len(section), 0)
    for record, d in zip(records, data, strict=True):
        out[record[10] : record[10] + len(d)] = d
    mtp = head["mode"] == "mtp"
    out[:256] = PROLOGUE.pack(
        MAGIC, 2, 0, 256, file_bytes, header_bytes, file_bytes - header_bytes,
        mtp | 2 * bool(head["boundaries"]) | 4 * hashes, len(TAGS), head["created_ns"], head["n_tokens"],
        head["identity"], head["owner"], head["n_tokens"], head["n_tokens"], head["history_len"],
        head["position_base"], len(rows), len(head["boundaries"]), head["finish"], mtp, head["writer_id"],
        bytes(32), bytes(32),
    )  # fmt: skip
    return redigest(out)


def redigest(file):
    """Gives a changed header a digest that fits, as a forger would."""
    out = bytearray(file)
    header_bytes = struct.unpack_from("<Q", out, 24)[0]
    out[192:224] = bytes(32)
    out[192:224] = hashlib.sha256(out[:header_bytes]).digest()
    return bytes(out)


def section(file, tag):
    """(offset, bytes) of a section."""
    i = TAGS.index(tag)
    _, _, _, offset, size, _ = ENTRY.unpack_from(file, 256 + 32 * i)
    return offset, size


def extents(file):
    """(offset, bytes) of every tensor."""
    offset, size = section(file, b"TENS")
    return [TENSOR.unpack_from(file, offset + at)[10:12] for at in range(0, size, TENSOR.size)]


def decode(path, geometry, identity, owner, max_context=262144):
    """Head and tensors of a file. Raises Reject."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode) or st.st_uid != os.geteuid() or st.st_nlink != 1 or st.st_mode & 0o022:
            raise Reject("path")
        file = os.pread(fd, st.st_size, 0)
    finally:
        os.close(fd)
    if file[:8] != MAGIC:
        raise Reject("magic")
    if len(file) < 256:
        raise Reject("short")
    prologue_fields = PROLOGUE.unpack_from(file)
    (_, major, minor, prologue, total, header, payload, flags, n_sections, created, epoch, ident, own, n, trunk,
     history, base, n_tensors, n_bounds, finish, mode, writer, digest, reserved) = prologue_fields  # fmt: skip
    if (major, minor, prologue, n_sections, reserved) != (2, 0, 256, 5, bytes(32)) or flags & ~7 or mode > 1:
        raise Reject("prologue")
    if total != len(file) or header % PAGE or not PAGE <= header <= 8 << 20 or header + payload != total:
        raise Reject("size")
    if not 1 <= n <= max_context or trunk != n or epoch != n or finish > 2:
        raise Reject("lengths")
    if (history, base) != (0, 0) if mode == 0 else base < 0 or base + history != n - 1:
        raise Reject("history")
    if ident != identity or own != owner:
        raise Reject("digest")
    body = bytearray(file[:header])
    body[192:224] = bytes(32)
    if hashlib.sha256(body).digest() != digest:
        raise Reject("header_digest")
    parts, end = {}, 256 + 32 * 5
    for i, tag in enumerate(TAGS):
        found, version, _, offset, size, zero = ENTRY.unpack_from(body, 256 + 32 * i)
        if found != tag or version != 1 or zero or offset < end or offset % 64 or offset + size > header:
            raise Reject("section")
        parts[tag], end = file[offset : offset + size], offset + size
    ids = np.frombuffer(parts[b"TOKS"], "<u4")
    if len(ids) != n or ids.max() >= geometry["vocab"]:
        raise Reject("ids")
    records = list(BOUNDARY.iter_unpack(parts[b"BNDS"]))
    shape = {
        "mode": ("ar", "mtp")[mode],
        "n_tokens": n,
        "history_len": history,
        "boundaries": [r[0] for r in records],
    }
    if len(records) != n_bounds or flags & 3 != mode | 2 * bool(records):
        raise Reject("flags")
    positions = [0, *shape["boundaries"]]
    if any(b <= a for a, b in itertools.pairwise(positions)) or positions[-1] > n:
        raise Reject("boundaries")
    rows = schema(geometry, shape)
    want, n_crcs, end = table(rows, header)
    got = [TENSOR.unpack_from(parts[b"TENS"], at) for at in range(0, len(parts[b"TENS"]), TENSOR.size)]
    if len(rows) != n_tensors or [r[:15] for r in got] != want or end != total or len(parts[b"CRCS"]) != 4 * n_crcs:
        raise Reject("schema")
    crcs, data, at = np.frombuffer(parts[b"CRCS"], "<u4"), [], header
    for record in got:
        offset, size, first = record[10], record[11], record[12]
        tensor = file[offset : offset + size]
        if any(file[at:offset]) or at > offset:
            raise Reject("padding")
        at = offset + size
        for k in range(record[13]):
            if zlib.crc32(tensor[k * PIECE : (k + 1) * PIECE]) != crcs[first + k]:
                raise Reject("crc")
        if flags & 4 and hashlib.sha256(tensor).digest() != record[15]:
            raise Reject("hash")
        data.append(tensor)
    if any(file[at:]):
        raise Reject("padding")
    head = shape | {
        "position_base": base,
        "finish": finish,
        "created_ns": created,
        "identity": ident,
        "owner": own,
        "writer_id": writer,
        "ids": ids.tolist(),
        "meta": parts[b"META"].decode(),
    }
    return head, data
