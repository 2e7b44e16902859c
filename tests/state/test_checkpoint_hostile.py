"""Files that must be refused: damaged, cut, forged, of another format, behind unsafe paths. Before a header is accepted
no tensor byte is asked for."""

import os
import struct

import pytest

N = 13
BOUNDARIES = [5, 12]


@pytest.fixture(scope="module")
def good(oracle):
    head, data = oracle.random_state(oracle.TINY, N, boundaries=BOUNDARIES)
    return oracle.encode(oracle.TINY, head, data)


@pytest.fixture
def refused(oracle, folder, good):
    """refused(bytes) -> (outcome, reason, tensor bytes asked for), with the model's geometry, identity and owner."""
    head, _ = oracle.random_state(oracle.TINY, N, boundaries=BOUNDARIES)

    def check(file):
        folder.put("b", bytes(file))
        return folder.rejection("b", oracle.TINY, identity=head["identity"], owner=head["owner"])

    return check


def header_bytes(file):
    return struct.unpack_from("<Q", file, 24)[0]


OUTCOMES = {range(8): "foreign", range(10, 12): "old_version", range(64, 128): "incompatible"}


def test_every_header_byte_flipped(oracle, folder, good):
    head, _ = oracle.random_state(oracle.TINY, N, boundaries=BOUNDARIES)
    folder.put("b", good)
    with (folder.path / "b").open("r+b", buffering=0) as file:
        for at in range(header_bytes(good)):
            os.pwrite(file.fileno(), bytes([good[at] ^ 0x10]), at)
            outcome, _, asked = folder.rejection("b", oracle.TINY, identity=head["identity"], owner=head["owner"])
            os.pwrite(file.fileno(), good[at : at + 1], at)
            want = next((o for r, o in OUTCOMES.items() if at in r), "corrupt")
            assert (outcome, asked) == (want, 0), at
    assert folder.read("b", oracle.TINY)["n_tokens"] == N


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_every_prologue_and_directory_bit(refused, good, bit):
    for at in range(256 + 5 * 32):
        file = bytearray(good)
        file[at] ^= bit
        outcome, _, asked = refused(file)
        assert outcome in {"corrupt", "foreign", "old_version", "incompatible"}
        assert asked == 0


def test_first_middle_and_last_byte_of_every_extent(oracle, refused, good):
    for offset, size in oracle.extents(good):
        for at in {offset, offset + size // 2, offset + size - 1}:
            file = bytearray(good)
            file[at] ^= 1
            assert refused(file)[:2] == ("corrupt", "payload_crc"), at


def test_first_middle_and_last_byte_of_every_padding_gap(oracle, refused, good):
    extents = oracle.extents(good)
    ends = [offset for offset, _ in extents[1:]] + [len(good)]
    for (offset, size), end in zip(extents, ends, strict=True):
        start = offset + size
        for at in {start, (start + end) // 2, end - 1}:
            file = bytearray(good)
            file[at] = 1
            assert refused(file)[:2] == ("corrupt", "padding"), at


def test_truncations_and_trailing_bytes(refused, good):
    end = header_bytes(good)
    cuts = [0, 1, 7, 8, 100, 255, 256, 300, end - 1, end, end + 1, len(good) - 16384, len(good) - 1]
    for cut in cuts:
        outcome, reason, asked = refused(good[:cut])
        assert (outcome, asked) == ("corrupt", 0), cut
        assert reason == ("short" if cut < 256 else "file_size"), cut
    for tail in (b"\0", b"x", bytes(16384)):
        assert refused(good + tail) == ("corrupt", "file_size", 0)


def test_other_formats(refused, good):
    assert refused(b"QWMTKV01" + good[8:]) == ("old_version", "magic", 0)
    assert refused(b"QWMTKV01") == ("old_version", "magic", 0)
    assert refused(b"DS4RKV01" + good[8:]) == ("foreign", "magic", 0)
    assert refused(b"DS4RKV01") == ("foreign", "magic", 0)


def test_other_model_and_other_session(oracle, folder, good):
    head, _ = oracle.random_state(oracle.TINY, N, boundaries=BOUNDARIES)
    folder.put("b", good)
    assert folder.rejection("b", oracle.TINY, identity=bytes(32)) == ("incompatible", "identity", 0)
    expect = {"identity": head["identity"], "owner": bytes(32)}
    assert folder.rejection("b", oracle.TINY, **expect) == ("incompatible", "owner", 0)


@pytest.mark.parametrize(
    "field", ["layers", "vocab", "wide", "conv_dim", "hv", "dv", "dk", "hkv", "head_dim", "index_dim"]
)
def test_state_of_another_geometry(oracle, folder, good, field):
    other = {**oracle.TINY, "vocab": 1024}
    other[field] = ["ple", "gdn", "qsa"] if field == "layers" else 2 * oracle.TINY[field]
    folder.put("b", good)
    outcome, reason, asked = folder.rejection("b", other)
    assert (outcome, asked) == ("corrupt", 0)
    assert reason in {"tensor_record", "tensor_count"}


def forgeries(oracle, good):
    """(name, patches) of headers that a forger gives a fitting digest; a patch is (format, offset, value)."""
    tens, bnds, toks = (oracle.section(good, tag)[0] for tag in (b"TENS", b"BNDS", b"TOKS"))
    crcs = oracle.section(good, b"CRCS")[0]
    yield "huge_dim", [("<I", tens + 8, 0xFFFFFFFF)]
    yield "zero_dim", [("<I", tens + 12, 0)]
    yield "wrapping_dims", [("<I", tens + 96 + 8 + 4 * k, 0x10000) for k in range(4)]
    yield "overlap", [("<Q", tens + 96 + 24, header_bytes(good))]
    yield "offset_past_end", [("<Q", tens + 24, 1 << 63)]
    yield "huge_size", [("<Q", tens + 32, 1 << 62)]
    yield "dtype", [("B", tens + 6, 7)]
    yield "other_dtype", [("B", tens + 6, 9)]
    yield "group", [("B", tens, 5)]
    yield "role", [("B", tens + 1, 0)]
    yield "layer", [("<H", tens + 2, 0xFFFF)]
    yield "tensor_reserved", [("<Q", tens + 88, 1)]
    yield "hash_without_flag", [("B", tens + 56, 1)]
    yield "valid_rows", [("<Q", tens + 48, 1)]
    yield "first_crc", [("<I", tens + 40, 1)]
    yield "huge_n", [("<Q", at, 1 << 40) for at in (56, 128, 136)]
    yield "n_plus_one", [("<Q", at, N + 1) for at in (56, 128, 136)]
    yield "n_zero", [("<Q", at, 0) for at in (56, 128, 136)]
    yield "epoch", [("<Q", 56, N - 1)]
    yield "trunk_one_short", [("<Q", 136, N - 1)]
    yield "tensor_count", [("<I", 160, 1 << 31)]
    yield "tensor_count_less", [("<I", 160, 3)]
    yield "boundary_count", [("<I", 164, 33)]
    yield "no_boundaries", [("<I", 164, 0), ("<I", 40, 1)]
    yield "section_count", [("<I", 44, 6)]
    yield "history", [("<Q", 144, N)]
    yield "history_short", [("<Q", 144, 2)]
    yield "negative_base", [("<q", 152, -1), ("<Q", 144, N)]
    yield "base", [("<q", 152, 1)]
    yield "mode_ar", [("<I", 172, 0), ("<I", 40, 2)]
    yield "mode", [("<I", 172, 2)]
    yield "finish", [("<I", 168, 3)]
    yield "unknown_flag", [("<I", 40, 11)]
    yield "hash_flag", [("<I", 40, 7)]
    yield "boundary_past_n", [("<Q", bnds + 32, N + 1)]
    yield "boundary_zero", [("<Q", bnds, 0)]
    yield "boundary_order", [("<Q", bnds, 12), ("<Q", bnds + 32, 5)]
    yield "boundary_first", [("<I", bnds + 8, 0)]
    yield "boundary_tensors", [("<I", bnds + 12, 1)]
    yield "boundary_hidden", [("<i", bnds + 16, -1)]
    yield "boundary_reserved", [("<Q", bnds + 24, 1)]
    yield "section_overlap", [("<Q", 256 + 32 + 8, 256 + 160)]
    yield "section_misaligned", [("<Q", 256 + 8, 256 + 160 + 1)]
    yield "section_past_end", [("<Q", 256 + 4 * 32 + 8, 1 << 40)]
    yield "section_wraps", [("<Q", 256 + 4 * 32 + 16, (1 << 64) - 64)]
    yield "section_tag", [("<4s", 256, b"METB")]
    yield "section_twice", [("<4s", 256 + 32, b"META")]
    yield "section_version", [("<H", 256 + 4, 2)]
    yield "section_flags", [("<H", 256 + 6, 2)]
    yield "section_reserved", [("<Q", 256 + 24, 1)]
    yield "meta_too_long", [("<Q", 256 + 16, 65537)]
    yield "token_id", [("<I", toks, 512)]
    yield "crc_short", [("<Q", 256 + 3 * 32 + 16, 4)]
    yield "reserved", [("<B", 255, 1)]
    yield "prologue_bytes", [("<I", 12, 512)]
    yield "payload_bytes", [("<Q", 32, 1)]
    yield "header_over_8_mib", [("<Q", 24, 16 << 20)]
    yield "header_zero", [("<Q", 24, 0)]
    yield "header_unaligned", [("<Q", 24, 16385)]
    yield "crc_value", [("<I", crcs, 0)]


def test_forged_headers(oracle, folder, good):
    head, _ = oracle.random_state(oracle.TINY, N, boundaries=BOUNDARIES)
    for name, patches in forgeries(oracle, good):
        file = bytearray(good)
        for fmt, at, value in patches:
            struct.pack_into(fmt, file, at, value)
        lawful_header = 16384 <= header_bytes(file) <= len(file)
        folder.put("b", oracle.redigest(file) if lawful_header else bytes(file))
        for geometry in (oracle.TINY, None):
            # Without a model the table itself says the dtype of the conv rows; with hashes flagged, zeros are hashes.
            outcome, reason, asked = folder.rejection("b", geometry, identity=head["identity"], owner=head["owner"])
            assert outcome == "corrupt", name
            late = {"crc_value": "payload_crc", "hash_flag": "payload_hash"}.get(name)
            assert (reason == late) if late else (asked == 0), (name, reason)


def test_later_minor_is_an_unknown_version(oracle, folder, good):
    file = bytearray(good)
    file[10] = 1
    folder.put("b", oracle.redigest(file))
    assert folder.rejection("b", oracle.TINY) == ("old_version", "minor", 0)


def test_context_and_memory_limits(oracle, folder, good):
    payload = sum(size for _, size in oracle.extents(good))
    folder.put("b", good)
    assert folder.rejection("b", oracle.TINY, max_context=N - 1) == ("corrupt", "lengths", 0)
    assert folder.rejection("b", oracle.TINY, max_payload=payload - 1) == ("busy", "memory_budget", 0)
    assert folder.read("b", oracle.TINY, max_context=N, max_payload=payload)["n_tokens"] == N


def test_cancelled_reader(folder, oracle, good):
    folder.put("b", good)
    assert folder.rejection("b", oracle.TINY, cancelled=True)[:2] == ("cancelled", "cancelled")


def test_paths_that_are_not_private_files(oracle, folder, good):
    folder.put("a", good)
    (folder.path / "link").symlink_to(folder.path / "a")
    os.mkfifo(folder.path / "fifo", 0o600)
    (folder.path / "folder").mkdir()
    assert folder.rejection("link") == ("unsafe_path", "symlink", 0)
    assert folder.rejection("fifo") == ("unsafe_path", "not_regular", 0)
    assert folder.rejection("folder") == ("unsafe_path", "not_regular", 0)
    assert folder.rejection("nothing") == ("busy", "absent", 0)
    (folder.path / "hard").hardlink_to(folder.path / "a")
    assert folder.rejection("a") == ("unsafe_path", "linked", 0)
    (folder.path / "hard").unlink()
    for mode in (0o666, 0o620, 0o602):
        (folder.path / "a").chmod(mode)
        assert folder.rejection("a") == ("unsafe_path", "writable_by_others", 0)
    (folder.path / "a").chmod(0o644)
    assert folder.read("a")["n_tokens"] == N


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give a file away")
def test_file_of_another_user(folder, good):
    folder.put("a", good)
    os.chown(folder.path / "a", 12345, -1)
    assert folder.rejection("a") == ("unsafe_path", "foreign_owner", 0)


def test_reading_leaves_the_access_time(oracle, folder, good):
    folder.put("a", good)
    os.utime(folder.path / "a", ns=(10**18, 10**18))
    folder.read("a", oracle.TINY)
    assert (folder.path / "a").stat().st_atime_ns == 10**18
