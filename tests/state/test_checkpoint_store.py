"""The store: outcomes, limits, lookup, eviction, other processes. States are random bytes; the files are real.

The file is over 400 lines: a row of the table of outcomes a test, all over the same made-up states and clock."""

import fcntl
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import _qwenmtp_testing as core
import pytest

from qwenmtp import _core
from qwenmtp import checkpoint_files as files
from qwenmtp.errors import CheckpointError
from qwenmtp.identity import SessionIdentity
from qwenmtp.store import CheckpointStore, Rejection, StoreLimits, owner_digest

IDENTITY = bytes(range(32))
FREE = 1 << 50


class State:
    """A snapshot of random bytes under given token ids."""

    def __init__(self, oracle, ids, boundaries=(), seed=0):
        self.oracle, self.ids = oracle, list(ids)
        self.head, self.data = oracle.random_state(oracle.TINY, len(self.ids), boundaries=boundaries, seed=seed)
        self.head["ids"] = self.ids
        self.n_tokens = len(self.ids)
        self.file_bytes = len(oracle.encode(oracle.TINY, self.head, self.data))

    def write(self, dir_fd, name, identity, owner):
        head = {**self.head, "identity": identity, "owner": owner}
        core.checkpoint_write(dir_fd, name, self.oracle.TINY, head, self.data)

    def file(self, owner, identity=IDENTITY):
        return self.oracle.encode(self.oracle.TINY, {**self.head, "identity": identity, "owner": owner}, self.data)


class Clock:
    def __init__(self):
        self.now = 1.7e9

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "sessions"


@pytest.fixture
def open_store(root, clock):
    made = []

    def make(identity=IDENTITY, free=FREE, **limits):
        limits = {"min_tokens": 1, **limits}
        store = CheckpointStore(root, identity, limits=StoreLimits(**limits), clock=clock, free_bytes=lambda fd: free)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


@pytest.fixture
def state(oracle):
    return lambda ids, boundaries=(), seed=0: State(oracle, ids, boundaries, seed)


@pytest.fixture
def read(oracle):
    """A reader for `load` that returns (ids, tensors) and needs every byte to be right."""

    def call(file, identity, owner):
        header = file.header(identity, owner)
        file.verify(header)
        return header.ids

    return call


def path_of(root, store, key):
    return root / "v2" / store.identity.hex()[:32] / store.name_of(key)


def test_layout_and_modes(root, open_store, state):
    store = open_store()
    report = store.save("chat", state([1, 2, 3]))
    path = path_of(root, store, "chat")
    assert re.fullmatch(r"[0-9a-f]{32}\.qwmtkv", path.name)
    assert path.name == owner_digest("chat").hex()[:32] + ".qwmtkv"
    assert path.stat().st_size == report.n_bytes
    assert path.stat().st_mode & 0o777 == 0o600
    for folder in (root / "v2", path.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(p.name for p in (root / "v2").iterdir()) == ["000102030405060708090a0b0c0d0e0f", "LOCK"]


def test_a_loose_folder_is_closed(root, open_store):
    (root / "v2").mkdir(parents=True, mode=0o755)
    (root / "v2").chmod(0o755)
    open_store()
    assert (root / "v2").stat().st_mode & 0o777 == 0o700


def test_save_and_load(root, open_store, state, read, clock):
    store = open_store()
    assert store.load("chat", read) is None
    store.save("chat", state([1, 2, 3]))
    written = path_of(root, store, "chat").stat()
    clock.now += 100
    assert store.load("chat", read) == bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])
    used = path_of(root, store, "chat").stat()
    assert (used.st_mtime_ns, used.st_atime_ns) == (written.st_mtime_ns, int(clock.now * 1e9))
    assert store.load(owner_digest("chat"), read) is not None
    assert store.load("other", read) is None
    assert store.remove("chat")
    assert not store.remove("chat")
    assert store.load("chat", read) is None


def test_a_failing_reader_keeps_the_file(open_store, state, root):
    store = open_store()
    store.save("chat", state([1, 2, 3]))

    def read(file, identity, owner):
        raise CheckpointError("cancelled", "cancelled", details={"reason": "cancelled"})

    with pytest.raises(CheckpointError):
        store.load("chat", read)
    assert path_of(root, store, "chat").exists()
    assert store.rejections[-1].removed is False


def rotten(oracle, good, what):
    """A file that load must answer with the outcome `what`."""
    if what == "old_version":
        return b"QWMTKV01" + good[8:]
    if what == "foreign":
        return b"DS4RKV01" + good[8:]
    if what == "incompatible":
        file = bytearray(good)
        file[64] ^= 1
        return oracle.redigest(file)
    file = bytearray(good)
    file[oracle.extents(good)[-1][0]] ^= 1
    return bytes(file)


OUTCOMES = [("old_version", True), ("corrupt", True), ("incompatible", True), ("foreign", False)]


@pytest.mark.parametrize(("outcome", "removed"), OUTCOMES)
def test_outcomes_of_a_load(oracle, root, open_store, state, read, outcome, removed):
    store = open_store()
    s = state([1, 2, 3])
    store.save("chat", s)
    path = path_of(root, store, "chat")
    path.write_bytes(rotten(oracle, s.file(owner_digest("chat")), outcome))
    before, asked = path.stat(), _core.checkpoint_allocated_bytes()
    with pytest.raises(CheckpointError) as caught:
        store.load("chat", read)
    assert caught.value.outcome == outcome
    assert _core.checkpoint_allocated_bytes() == asked
    assert path.exists() is not removed
    assert store.rejections[-1] == Rejection(path.name, outcome, caught.value.details["reason"], removed)
    if not removed:
        after = path.stat()
        assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    store.save("chat", s)
    assert path.read_bytes() == s.file(owner_digest("chat"))
    assert store.load("chat", read) is not None


@pytest.mark.parametrize("damage", ["symlink", "hard link", "writable"])
def test_unsafe_paths_are_left_alone(root, open_store, state, read, damage, tmp_path):
    store = open_store()
    store.save("chat", state([1, 2, 3]))
    path = path_of(root, store, "chat")
    if damage == "symlink":
        path.rename(tmp_path / "real")
        path.symlink_to(tmp_path / "real")
    elif damage == "hard link":
        (tmp_path / "second").hardlink_to(path)
    else:
        path.chmod(0o666)
    with pytest.raises(CheckpointError) as caught:
        store.load("chat", read)
    assert caught.value.outcome == "unsafe_path"
    assert path.is_symlink() or path.exists()
    assert store.find([1, 2, 3]) is None
    store.save("chat", state([7, 8]))
    assert not path.is_symlink()
    assert store.load("chat", read) is not None


def test_a_file_that_was_replaced_meanwhile_is_not_removed(oracle, root, open_store, state):
    store = open_store()
    good = state([1, 2, 3])
    path = path_of(root, store, "chat")
    path.write_bytes(b"QWMTKV01")
    path.chmod(0o600)

    def read(file, identity, owner):
        open_store().save("chat", good)  # another process wins the race
        return file.header(identity, owner)

    with pytest.raises(CheckpointError) as caught:
        store.load("chat", read)
    assert caught.value.outcome == "old_version"
    assert path.read_bytes() == good.file(owner_digest("chat"))
    assert store.rejections[-1].removed is False


def test_a_file_under_the_name_of_another_owner(root, open_store, state, read):
    store = open_store()
    store.save("a", state([1, 2, 3]))
    path_of(root, store, "a").rename(path_of(root, store, "b"))
    assert store.find([1, 2, 3]) is None
    assert store.rejections[-1].outcome == "incompatible"
    assert not path_of(root, store, "b").exists()


def test_find_prefers_what_saves_most(open_store, state):
    store = open_store()
    store.save("short", state([1, 2, 3]))
    store.save("long", state([1, 2, 3, 4, 5, 6, 7, 8], boundaries=[2, 6]))
    store.save("middle", state([1, 2, 8, 8, 8], boundaries=[1]))
    store.save("other", state([9, 9, 9, 9, 9, 9, 9, 9, 9]))

    def found(ids):
        m = store.find(ids)
        return m and (m.entry.n_tokens, m.restore_at, m.boundary, m.common)

    assert found([1, 2, 3, 4, 5, 6, 7, 8]) == (8, 8, None, 8)
    assert found([1, 2, 3, 4, 5, 6, 7, 8, 9]) == (8, 8, None, 8)
    assert found([1, 2, 3, 4, 5, 6, 7, 7]) == (8, 6, 1, 7)
    assert found([1, 2, 3, 4, 5, 6]) == (3, 3, None, 3)  # a boundary at the end of the prompt has no logits
    assert found([1, 2, 3, 4, 5, 7]) == (3, 3, None, 3)
    assert found([1, 2, 4]) == (8, 2, 0, 2)
    assert found([1, 3]) == (5, 1, 0, 1)
    assert found([2]) is None
    assert found([9] * 8) is None
    assert found([]) is None


def test_find_sees_other_processes_and_forgets_what_is_gone(oracle, root, open_store, state):
    store, other = open_store(), open_store()
    assert store.find([1, 2, 3]) is None
    other.save("chat", state([1, 2, 3]))
    assert store.find([1, 2, 3]).restore_at == 3
    other.save("chat", state([1, 2, 3, 4]))
    assert store.find([1, 2, 3, 4]).restore_at == 4
    path = path_of(root, store, "chat")
    path.write_bytes(b"QWMTKV01" + path.read_bytes()[8:])
    assert store.find([1, 2, 3, 4]) is None
    assert not path.exists()
    assert store.rejections[-1].outcome == "old_version"
    assert store.entries() == []
    assert (store._index, store._ids) == ({}, {})


@pytest.mark.parametrize(("outcome", "removed"), OUTCOMES)
def test_outcomes_of_a_lookup(oracle, root, open_store, state, outcome, removed):
    store = open_store()
    path = path_of(root, store, "chat")
    path.write_bytes(rotten(oracle, state([1, 2, 3]).file(owner_digest("chat")), outcome))
    path.chmod(0o600)
    found = store.find([1, 2, 3])
    if outcome == "corrupt":  # only its tensors are: that shows when they are read
        assert found.restore_at == 3
        return
    assert found is None
    assert path.exists() is not removed
    assert store.rejections[-1].outcome == outcome


def test_a_header_that_rots_is_found_by_find(oracle, root, open_store, state):
    store = open_store()
    store.save("chat", state([1, 2, 3]))
    path = path_of(root, store, "chat")
    file = bytearray(path.read_bytes())
    file[oracle.section(file, b"TOKS")[0]] ^= 1
    path.write_bytes(file)
    assert store.find([1, 2, 3]) is None
    assert store.rejections[-1] == Rejection(path.name, "corrupt", "header_digest", True)


def test_identities_do_not_meet(open_store, state, read):
    a, b = open_store(IDENTITY), open_store(bytes(32))
    a.save("chat", state([1, 2, 3]))
    assert b.load("chat", read) is None
    assert b.find([1, 2, 3]) is None


def test_identity_covers_every_field():
    base = SessionIdentity(
        model="m", mtp_head="h", tokenizer="t", compute_dtype="bfloat16", kv_dtype="bfloat16", mode="mtp", depth=3
    )
    others = [
        {"model": "n"},
        {"mtp_head": "i"},
        {"tokenizer": "u"},
        {"compute_dtype": "float32"},
        {"kv_dtype": "float32"},
        {"mode": "ar"},
        {"depth": 2},
        {"depth": "auto"},
        {"depth": None},
        {"lanes": ("qsa_gather",)},
        {"history_policy": "last_window"},
        {"cache_scope": "tenant"},
        {"format_major": 3},
    ]
    digests = {base.digest(), *(replace(base, **change).digest() for change in others)}
    assert len(digests) == len(others) + 1
    assert replace(base).digest() == base.digest()


def test_limits_of_saves_nobody_asked_for(open_store, state, clock):
    s = state([1, 2, 3])
    size = s.file_bytes

    def refused(**limits):
        return open_store(**limits).save("chat", s).refused

    assert refused(min_tokens=4) == "too_short"
    assert refused(min_tokens=3) is None
    assert refused(free=size + 99, free_floor_bytes=100) == "disk_floor"
    assert refused(free=size + 100, free_floor_bytes=100, quota_bytes=size) is None
    assert refused(quota_bytes=size - 1) == "quota"
    assert refused(quota_bytes=size) is None

    store = open_store(hourly_write_bytes=2 * size)
    assert [store.save("chat", s).refused for _ in range(3)] == [None, None, "write_budget"]
    clock.now += 3599
    assert store.save("chat", s).refused == "write_budget"
    assert store.save("chat", s, explicit=True).refused is None
    clock.now += 1
    assert store.save("chat", s).refused is None
    assert store.save("chat", s).refused == "write_budget"
    strict = open_store(min_tokens=4, free=0, quota_bytes=0, hourly_write_bytes=0)
    assert strict.save("chat", s, explicit=True).refused is None
    assert strict.find([1, 2, 3]) is not None


def test_automatic_quota(root, open_store, state):
    size = state([1]).file_bytes
    store = open_store(free=0)
    for key in "abc":
        store.save(key, state([1]), explicit=True)
    # A quarter of three files is less than two copies of the largest, which is what fits.
    assert sum(p.stat().st_size for p in root.rglob("*.qwmtkv")) == 2 * size


def test_eviction_is_least_recently_used(root, open_store, state, clock, read):
    size = state([1]).file_bytes
    store = open_store(quota_bytes=3 * size)
    for key in "abc":
        clock.now += 1
        store.save(key, state([1]))
    clock.now += 1
    store.load("a", read)  # a successful restore counts as use
    clock.now += 1
    store.find([1])  # a lookup does not
    store.save("d", state([1]))
    left = {e.name for e in store.entries()}
    assert left == {store.name_of(k) for k in "acd"}
    clock.now += 1
    other = open_store(bytes(32), quota_bytes=3 * size)
    other.save("e", state([1]))
    assert {e.name for e in store.entries()} == {store.name_of(k) for k in "ad"}
    assert [e.name for e in store.entries()] == [store.name_of(k) for k in "ad"]


def test_the_new_file_and_foreign_files_are_never_evicted(root, open_store, state):
    store = open_store(quota_bytes=1)
    foreign = path_of(root, store, "other")
    foreign.write_bytes(b"DS4RKV01" + bytes(100_000))
    foreign.chmod(0o600)
    before = foreign.stat()
    store.save("chat", state([1]), explicit=True)
    assert path_of(root, store, "chat").exists()
    after = foreign.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_quota_steps_aside_for_another_process(root, open_store, state):
    store = open_store(quota_bytes=1)
    with (root / "v2" / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store.save("a", state([1]), explicit=True)
        store.save("b", state([1]), explicit=True)
        assert len(store.entries()) == 2
    store.save("c", state([1]), explicit=True)
    assert len(store.entries()) == 1


def dead_pid():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_temporary_files_of_dead_and_stuck_writers_go_at_start(root, open_store, clock):
    folder = root / "v2" / IDENTITY.hex()[:32]
    folder.mkdir(parents=True)
    clock.now = time.time()
    dead, alive, stuck, stranger = (
        folder / n for n in (f".tmp-{dead_pid()}-0a", f".tmp-{os.getpid()}-0b", f".tmp-{os.getpid()}-0c", ".tmp-x")
    )
    for path in (dead, alive, stuck, stranger):
        path.write_bytes(b"")
    os.utime(stuck, (clock.now - 3601,) * 2)
    open_store()
    assert sorted(folder.iterdir()) == sorted([alive, stranger])


def test_roots_that_are_refused(tmp_path, open_store, root):
    def refusal(path):
        with pytest.raises(CheckpointError) as caught:
            CheckpointStore(path, IDENTITY)
        assert caught.value.outcome == "unsafe_path"
        return caught.value.details["reason"]

    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "file").write_bytes(b"")
    assert refusal(tmp_path / "link") == "not_a_folder"
    assert refusal(tmp_path / "dangling") == "not_a_folder"
    assert refusal(tmp_path / "file") == "not_a_folder"
    if os.geteuid() == 0:
        os.chown(tmp_path / "real", 12345, -1)
        assert refusal(tmp_path / "real") == "foreign_owner"
    root.mkdir()
    (root / "v2").symlink_to(tmp_path / "elsewhere")
    assert refusal(root) == "not_a_folder"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads the descriptors of this process")
def test_no_descriptor_is_left_open(open_store, state, read):
    store = open_store()
    store.save("chat", state([1]))
    n = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        store.save("chat", state([1]))
        store.load("chat", read)
        store.find([1])
        store.load("nothing", read)
    assert len(list(Path("/proc/self/fd").iterdir())) == n


def test_inspect_and_verify(oracle, root, open_store, state):
    store = open_store()
    s = state([1, 2, 3, 4], boundaries=[2])
    store.save("chat", s)
    path = path_of(root, store, "chat")
    info = files.inspect(path)
    assert info == files.verify(path)
    want = {
        "path": str(path),
        "outcome": "ok",
        "mode": "mtp",
        "n_tokens": 4,
        "history_len": 3,
        "boundaries": (2,),
        "identity": IDENTITY.hex(),
        "owner": owner_digest("chat").hex(),
        "n_tensors": len(s.data),
        "file_bytes": path.stat().st_size,
        "meta": {"seed": 0},
    }
    assert want.items() <= info.to_json().items()
    damaged = bytearray(path.read_bytes())
    damaged[oracle.extents(damaged)[-1][0]] ^= 1
    path.write_bytes(damaged)
    assert files.inspect(path).ok
    assert (files.verify(path).outcome, files.verify(path).reason) == ("corrupt", "payload_crc")
    assert path.exists()
    assert files.inspect(root / "no" / "file").reason == "absent"
    assert files.inspect(root / "none").outcome == "busy"


def test_meta_that_is_no_json_is_shown_as_text(oracle, folder):
    head, data = oracle.random_state(oracle.TINY, 3)
    folder.put("a", oracle.encode(oracle.TINY, {**head, "meta": "["}, data))
    assert files.inspect(folder.path / "a").meta == "["
    folder.put("a", oracle.encode(oracle.TINY, {**head, "meta": "[" * 60_000}, data))
    assert files.inspect(folder.path / "a").meta == "[" * 60_000


def test_ls_and_prune(root, open_store, state, clock):
    assert files.ls(root) == []
    assert files.prune(root, quota_bytes=0) == []
    store = open_store()
    clock.now = time.time() - 100
    for key in "abc":
        store.save(key, state([1]))
        clock.now += 40
    names = [store.name_of(k) for k in "abc"]
    bad = path_of(root, store, "bad")
    bad.write_bytes(b"QWMTKV01")
    os.utime(bad, (1, 1))
    size = path_of(root, store, "a").stat().st_size

    def shown(infos):
        return [Path(i.path).name for i in infos]

    assert shown(files.ls(root)) == [*names[::-1], bad.name]
    assert files.ls(root)[-1].outcome == "old_version"
    assert shown(files.prune(root, older_than_s=90, dry_run=True)) == [bad.name, names[0]]
    assert len(files.ls(root)) == 4
    assert shown(files.prune(root, older_than_s=90)) == [bad.name, names[0]]
    assert shown(files.prune(root, quota_bytes=size)) == [names[1]]
    assert shown(files.ls(root)) == [names[2]]
    assert shown(files.prune(root, quota_bytes=0)) == [names[2]]
