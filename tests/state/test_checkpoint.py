"""The codec against the independent one: round trips both ways, memory layouts, the writer's faults."""

import random
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import _qwenmtp_testing as core
import pytest

from qwenmtp.errors import CheckpointError, InvalidRequest

N_TOKENS = [1, 4, 5, 511, 512, 513, 2100]
HEAD = [
    "mode",
    "n_tokens",
    "history_len",
    "position_base",
    "boundaries",
    "created_ns",
    "identity",
    "owner",
    "writer_id",
    "ids",
]
FINISH = ["stop", "length", "tool_calls"]


def boundaries_of(n, count):
    return sorted({max(1, n * (i + 1) // count) for i in range(count)})


def assert_read(got, head, data):
    assert {k: got[k] for k in HEAD} == {k: head[k] for k in HEAD}
    assert got["meta"] == head["meta"].encode()
    assert got["finish"] == FINISH[head["finish"]]
    assert got["data"] == data


@pytest.mark.parametrize("n", N_TOKENS)
@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("mode", ["ar", "mtp"])
def test_round_trip_both_ways(oracle, folder, mode, count, n):
    head, data = oracle.random_state(oracle.SMALL, n, mode=mode, boundaries=boundaries_of(n, count), seed=n)
    size = core.checkpoint_write(folder.fd, "a", oracle.SMALL, head, data)
    file = (folder.path / "a").read_bytes()
    assert len(file) == size
    assert file == oracle.encode(oracle.SMALL, head, data)
    assert oracle.decode(folder.path / "a", oracle.SMALL, head["identity"], head["owner"]) == (head, data)
    assert_read(folder.read("a", oracle.SMALL, identity=head["identity"], owner=head["owner"]), head, data)
    assert folder.names() == ["a"]
    assert (folder.path / "a").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("dtype", [9, 10, 11])
@pytest.mark.parametrize("pool", [3, 4])
@pytest.mark.parametrize("n", [1, 4, 7, 513])
def test_reads_without_a_model(oracle, folder, n, pool, dtype):
    geometry = {**oracle.SMALL, "dtype": dtype, "pool": pool}
    head, data = oracle.random_state(geometry, n, boundaries=[n])
    folder.put("a", oracle.encode(geometry, head, data))
    assert_read(folder.read("a"), head, data)


def test_history_with_a_live_reset(oracle, folder):
    head, data = oracle.random_state(oracle.TINY, 100, base=60)
    core.checkpoint_write(folder.fd, "a", oracle.TINY, head, data)
    assert_read(folder.read("a", oracle.TINY), head, data)


def test_tensor_hashes_are_written_and_checked(oracle, folder):
    head, data = oracle.random_state(oracle.TINY, 9, boundaries=[4])
    core.checkpoint_write(folder.fd, "a", oracle.TINY, head, data, tensor_hashes=True)
    file = (folder.path / "a").read_bytes()
    assert file == oracle.encode(oracle.TINY, head, data, hashes=True)
    assert_read(folder.read("a", oracle.TINY), head, data)
    offset, _ = oracle.section(file, b"TENS")
    forged = bytearray(file)
    forged[offset + 56] ^= 1
    folder.put("b", oracle.redigest(forged))
    assert folder.rejection("b", oracle.TINY)[:2] == ("corrupt", "payload_hash")


@pytest.mark.parametrize("spare", [1, 3, 256])
def test_slabs_with_spare_rows_hold_the_same_state(oracle, folder, spare):
    head, data = oracle.random_state(oracle.TINY, 13, boundaries=[5])
    core.checkpoint_write(folder.fd, "a", oracle.TINY, head, data, spare=spare)
    assert (folder.path / "a").read_bytes() == oracle.encode(oracle.TINY, head, data)
    assert_read(folder.read("a", oracle.TINY, spare=spare), head, data)


def test_tensors_of_many_pieces(oracle, folder):
    geometry = {**oracle.TINY, "head_dim": 512, "hv": 40, "dv": 160, "dk": 256}
    head, data = oracle.random_state(geometry, 9001)
    assert max(len(d) for d in data) > 2 * oracle.PIECE
    core.checkpoint_write(folder.fd, "a", geometry, head, data, spare=7)
    assert (folder.path / "a").read_bytes() == oracle.encode(geometry, head, data)
    assert_read(folder.read("a", geometry, spare=5), head, data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ids", [512] * 9),
        ("ids", [1] * 8),
        ("history_len", 7),
        ("position_base", 1),
        ("boundaries", [0]),
        ("boundaries", [10]),
        ("boundaries", [3, 3]),
        ("meta", "x" * 65537),
    ],
)
def test_writer_refuses_an_unlawful_head(oracle, folder, field, value):
    head, _ = oracle.random_state(oracle.TINY, 9)
    head[field] = value
    data = [bytes(oracle.n_bytes(row)) for row in oracle.schema(oracle.TINY, head)]
    with pytest.raises(InvalidRequest):
        core.checkpoint_write(folder.fd, "a", oracle.TINY, head, data)
    assert folder.names() == []


def test_writer_refuses_a_wrong_number_of_tensors(oracle, folder):
    head, data = oracle.random_state(oracle.TINY, 9)
    with pytest.raises(InvalidRequest):
        core.checkpoint_write(folder.fd, "a", oracle.TINY, head, data[:-1])
    assert folder.names() == []


@pytest.fixture
def old_file(oracle, folder):
    """A saved state, and the bytes it must still have after a fault."""
    head, data = oracle.random_state(oracle.TINY, 9, boundaries=[4], seed=1)
    core.checkpoint_write(folder.fd, "a", oracle.TINY, head, data)
    return (folder.path / "a").read_bytes()


STEPS = ["created", "reserved", "piece", "header", "synced", "renamed", "folder_synced"]


def test_writer_passes_its_steps_in_order(oracle, folder):
    head, data = oracle.random_state(oracle.TINY, 9)
    steps = []
    core.checkpoint_write(folder.fd, "a", oracle.TINY, head, data, after=steps.append, durability="full")
    assert list(dict.fromkeys(steps)) == STEPS
    assert steps.count("piece") == len(data)


@pytest.mark.parametrize("step", STEPS[:4])
def test_cancelled_writer_leaves_the_old_file(oracle, folder, old_file, step):
    head, data = oracle.random_state(oracle.TINY, 20, seed=2)
    with pytest.raises(CheckpointError) as caught:
        core.checkpoint_write(folder.fd, "a", oracle.TINY, head, data, cancel_at=step)
    assert caught.value.outcome == "cancelled"
    assert folder.names() == ["a"]
    assert (folder.path / "a").read_bytes() == old_file


@pytest.mark.parametrize("step", STEPS[:5])
def test_failing_writer_leaves_the_old_file(oracle, folder, old_file, step):
    head, data = oracle.random_state(oracle.TINY, 20, seed=2)

    def fail(reached):
        if reached == step:
            raise OSError("injected")

    with pytest.raises(OSError, match="injected"):
        core.checkpoint_write(folder.fd, "a", oracle.TINY, head, data, after=fail)
    assert folder.names() == ["a"]
    assert (folder.path / "a").read_bytes() == old_file


def test_full_disk_leaves_the_old_file(oracle, folder, old_file):
    head, data = oracle.random_state(oracle.TINY, 20, seed=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CheckpointError) as caught:
            core.checkpoint_write(folder.fd, "a", oracle.TINY, head, data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.outcome == "busy"
    assert caught.value.retryable
    assert caught.value.details == {"reason": "no_space"}
    assert folder.names() == ["a"]
    assert (folder.path / "a").read_bytes() == old_file


KILLED = """
import importlib.util, os, sys
sys.path.insert(0, {python!r})
import _qwenmtp_testing as core
spec = importlib.util.spec_from_file_location("qwmtkv02", {oracle!r})
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)
fd = os.open({folder!r}, os.O_RDONLY)
head, data = oracle.random_state(oracle.TINY, {n}, seed={seed})
"""


def start(oracle, folder, body, n=20, seed=2):
    python = str(Path(core.__file__).parent)
    text = KILLED.format(python=python, oracle=oracle.__file__, folder=str(folder.path), n=n, seed=seed) + body
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)


def clean(folder):
    """Removes what a killed writer left; returns the names that were there."""
    names = folder.names()
    for name in names:
        if name.startswith(".tmp-"):
            (folder.path / name).unlink()
    return names


@pytest.mark.parametrize("step", STEPS)
def test_kill_behind_every_writer_step(oracle, folder, old_file, step):
    head, data = oracle.random_state(oracle.TINY, 20, seed=2)
    at = {"created": 0, "reserved": 1, "piece": 5}.get(step, 2 + len(data) + STEPS.index(step) - 3)
    child = start(oracle, folder, f"core.checkpoint_write(fd, 'a', oracle.TINY, head, data, kill_at={at})")
    with child:
        assert child.wait() == -signal.SIGKILL
    names = clean(folder)
    renamed = step in {"renamed", "folder_synced"}
    assert len(names) == (1 if renamed else 2)
    want = oracle.encode(oracle.TINY, head, data) if renamed else old_file
    assert (folder.path / "a").read_bytes() == want


def check_kills(oracle, folder, n_kills, rng):
    """Kills a process that saves two states in turn; the file is always one of them, whole."""
    files = []
    for n, seed in ((20, 2), (33, 3)):
        head, data = oracle.random_state(oracle.TINY, n, seed=seed)
        files.append(oracle.encode(oracle.TINY, head, data))
    folder.put("a", files[0])
    body = """
second = oracle.random_state(oracle.TINY, 33, seed=3)
print("ready", flush=True)
while True:
    core.checkpoint_write(fd, "a", oracle.TINY, *second)
    core.checkpoint_write(fd, "a", oracle.TINY, head, data)
"""
    for _ in range(n_kills):
        with start(oracle, folder, body) as child:
            assert child.stdout.readline() == "ready\n"
            timer = threading.Timer(rng.uniform(0, 0.02), child.kill)
            timer.start()
            assert child.wait() == -signal.SIGKILL
            timer.join()
        assert (folder.path / "a").read_bytes() in files
        assert [n for n in clean(folder) if not n.startswith(".tmp-")] == ["a"]


def test_kill_at_random_moments(oracle, folder):
    check_kills(oracle, folder, 5, random.Random(6))


@pytest.mark.slow
def test_kill_at_200_random_moments(oracle, folder):
    check_kills(oracle, folder, 200, random.Random(7))


def test_two_processes_saving_one_owner(oracle, folder):
    body = "for _ in range(60):\n    core.checkpoint_write(fd, 'a', oracle.TINY, head, data)\n"
    children = [start(oracle, folder, body, n=n, seed=n) for n in (20, 33)]
    wanted = [oracle.encode(oracle.TINY, *oracle.random_state(oracle.TINY, n, seed=n)) for n in (20, 33)]
    seen = set()
    while any(child.poll() is None for child in children):
        if (folder.path / "a").exists():
            seen.add((folder.path / "a").read_bytes())
    for child in children:
        with child:
            assert child.wait() == 0
    assert seen <= set(wanted)
    assert (folder.path / "a").read_bytes() in wanted
    assert folder.names() == ["a"]
