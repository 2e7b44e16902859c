"""States of a real small model: saved, read back, and continued like the ones that were never saved."""

import os
import subprocess
import sys
from pathlib import Path

import _qwenmtp_testing as core
import pytest

from qwenmtp import _core
from qwenmtp.errors import CheckpointError, InvalidRequest
from qwenmtp.weights import open_model_files

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "model"
IDENTITY, OWNER = bytes(range(32)), bytes(32)
MODES = ["ar", "mtp"]


def open_model(name="small", float32=True):
    m = open_model_files(GOLDEN / name)
    return _core.Model(m.geometry, m.layout, m.files, m.tensors, m.quant, float32)


@pytest.fixture(scope="module")
def model():
    return open_model()


def prompt_of(n):
    return [(7 * i * i + 3 * i) % 61 + 1 for i in range(n)]


def turn(model, state, ids, max_tokens, boundaries=()):
    """Extends a state to ids and a few tokens; returns the tokens and the kinds of draws."""
    sampler = (0.6, 0.95, 20, 0.0, 0.0)
    options = {
        "target": sampler,
        "draft": sampler,
        "seed": 5,
        "max_tokens": max_tokens,
        "speculate": state.speculates,
        "depth": 3,
        "prefill_chunk": 256,
        "boundaries": list(boundaries),
    }
    decoder = _core.Decoder(model, state, ids, options)
    while not decoder.done:
        decoder.step()
    assert decoder.finish() == ""
    return decoder.tokens, decoder.draw_trace


def grown(model, mode, *lengths):
    """A state after each of the lengths, on one timeline; the last token of each was drawn. Each is a boundary of the
    later ones."""
    state, passed = _core.State(model, mode == "mtp"), []
    for n in lengths:
        ids = state.ids + prompt_of(max(1, n - 1))[len(state) :]
        turn(model, state, ids, n - len(ids), lengths)
        assert len(state) == n
        assert state.boundaries == [len(earlier) for earlier in passed]
        passed.append(state.fork())
    return passed


def save(folder, model, state, name="a", **keywords):
    image = _core.StateImage(model, state, "length", "{}")
    image.write(folder.fd, name, IDENTITY, OWNER, **keywords)
    assert (folder.path / name).stat().st_size == image.file_bytes
    assert image.n_tokens == len(state)


def load(folder, model, name="a", **keywords):
    return _core.load_state(model, _core.CheckpointFile(folder.fd, name), IDENTITY, OWNER, **keywords)


def content(folder, name):
    """All that a file says, but when and by whom it was written."""
    read = folder.read(name)
    return {k: v for k, v in read.items() if k not in {"created_ns", "writer_id"}}


def assert_goes_on_alike(model, a, b):
    suffix = [9, 8, 7]
    assert turn(model, a, a.ids + suffix, 8) == turn(model, b, b.ids + suffix, 8)
    assert a.first_difference(b) is None


@pytest.mark.parametrize("n", [1, 4, 5, 511, 512, 513, 2100])
@pytest.mark.parametrize("n_boundaries", [0, 1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_round_trip_and_the_next_turn(model, folder, mode, n_boundaries, n):
    *_, state = grown(model, mode, *sorted({max(1, n * k // 4) for k in range(1, n_boundaries + 1)} | {n}))
    save(folder, model, state)
    loaded = load(folder, model)
    loaded.check()
    assert loaded.ids == state.ids
    assert loaded.first_difference(state) is None
    assert loaded.boundaries == state.boundaries
    save(folder, model, loaded, "again")
    assert content(folder, "again") == content(folder, "a")
    assert_goes_on_alike(model, loaded, state)


@pytest.mark.parametrize("mode", MODES)
def test_half_precision(folder, mode):
    model = open_model(float32=False)
    (state,) = grown(model, mode, 70)
    save(folder, model, state)
    assert {t[4] for t in folder.read("a")["tensors"]} == {"bfloat16", "float32", "int64"}
    loaded = load(folder, model)
    assert loaded.first_difference(state) is None
    assert_goes_on_alike(model, loaded, state)


CHILD = """
import sys
sys.path[:0] = {path!r}
import os, test_checkpoint_state as t
from types import SimpleNamespace
from pathlib import Path
model = t.open_model()
folder = SimpleNamespace(path=Path({folder!r}), fd=os.open({folder!r}, os.O_RDONLY))
state = t.load(folder, model)
print(t.turn(model, state, state.ids + [9, 8, 7], 8))
t.save(folder, model, state, name="b")
"""


@pytest.mark.parametrize("mode", MODES)
def test_another_process_goes_on_alike(model, folder, mode):
    (state,) = grown(model, mode, 13)
    save(folder, model, state)
    path = [str(Path(__file__).parent), str(Path(core.__file__).parent)]
    text = CHILD.format(path=path, folder=str(folder.path))
    out = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True).stdout
    assert out == f"{turn(model, state, [*state.ids, 9, 8, 7], 8)}\n"
    assert load(folder, model, "b").first_difference(state) is None


@pytest.mark.parametrize("mode", MODES)
def test_a_boundary_record_is_the_state_that_was_there(model, folder, mode):
    *earlier, state = grown(model, mode, 3, 20, 33, 40)
    save(folder, model, state)
    for i, there in enumerate(earlier):
        rewound = state.fork()
        rewound.rewind(len(there))
        for back in (load(folder, model, boundary=i), rewound):
            back.check()
            assert back.ids == there.ids
            assert back.boundaries == [len(b) for b in earlier[: i + 1]]
            # All else is equal; the record has no logits.
            missing = "final.hidden" if mode == "mtp" else "final.logits"
            assert back.first_difference(there) == f"{missing}: in one state only"
            assert_goes_on_alike(model, back, there.fork())
    with pytest.raises(InvalidRequest):
        load(folder, model, boundary=3)
    with pytest.raises(InvalidRequest, match="no boundary at 21"):
        state.rewind(21)


@pytest.mark.parametrize("mode", MODES)
def test_an_image_keeps_its_moment(model, folder, mode):
    (state,) = grown(model, mode, 13)
    image = _core.StateImage(model, state, "stop", "{}")
    before = state.fork()
    turn(model, state, [*state.ids, 1, 2], 5)
    image.write(folder.fd, "a", IDENTITY, OWNER)
    assert load(folder, model).first_difference(before) is None


@pytest.mark.parametrize("spare_rows", [1, 243, 244, 1000])
def test_room_for_the_coming_turn_changes_nothing(model, folder, spare_rows):
    (state,) = grown(model, "mtp", 13)
    save(folder, model, state)
    loaded = load(folder, model, spare_rows=spare_rows)
    assert loaded.first_difference(state) is None
    for a in (loaded, state):
        turn(model, a, a.ids + prompt_of(600), 4)
    assert loaded.first_difference(state) is None


def test_forged_ids_break_the_invariants(oracle, model, folder):
    (state,) = grown(model, "mtp", 13)
    save(folder, model, state)
    file = bytearray((folder.path / "a").read_bytes())
    offset, size = oracle.section(file, b"TOKS")
    file[offset + size - 4] ^= 1
    folder.put("a", oracle.redigest(file))
    with pytest.raises(CheckpointError) as caught:
        load(folder, model)
    assert (caught.value.outcome, caught.value.details["reason"]) == ("corrupt", "invariant")


def test_limits_and_foreign_states(model, folder):
    (state,) = grown(model, "mtp", 13)
    save(folder, model, state)

    def refusal(model=model, **keywords):
        asked = _core.checkpoint_allocated_bytes()
        with pytest.raises(CheckpointError) as caught:
            load(folder, model, **keywords)
        assert _core.checkpoint_allocated_bytes() == asked
        return caught.value.outcome, caught.value.details["reason"]

    assert refusal(max_context=12) == ("corrupt", "lengths")
    assert refusal(max_payload=1000) == ("busy", "memory_budget")
    assert refusal(open_model("odd")) in {("corrupt", "tensor_record"), ("corrupt", "tensor_count")}
    assert refusal(open_model(float32=False)) == ("corrupt", "tensor_record")


def test_cancel(model, folder):
    (state,) = grown(model, "ar", 13)
    flag = _core.CancelFlag()
    save(folder, model, state, cancel=flag)
    flag.set()
    for call in (lambda: save(folder, model, state, cancel=flag), lambda: load(folder, model, cancel=flag)):
        with pytest.raises(CheckpointError) as caught:
            call()
        assert caught.value.outcome == "cancelled"
    assert folder.names() == ["a"]
    assert load(folder, model).first_difference(state) is None


def test_images_that_are_refused(model):
    _, state = grown(model, "mtp", 5, 13)
    rewound = state.fork()
    rewound.rewind(5)
    for refused, finish in ((_core.State(model, True), "stop"), (rewound, "stop"), (state, "cancelled")):
        with pytest.raises(InvalidRequest):
            _core.StateImage(model, refused, finish, "{}")


SUFFIX = [9, 8, 7]
N_TOKENS = [1, 4, 5, 511, 512, 513, 2100]


def read_in(model, state, ids, boundaries=(), chunk=256):
    """Extends a state to ids, nothing drawn."""
    sampler = (0.0, 1.0, 1, 0.0, 0.0)
    options = {"target": sampler, "speculate": state.speculates, "boundaries": list(boundaries), "prefill_chunk": chunk}
    decoder = _core.Decoder(model, state, ids, options)
    while not decoder.done:
        decoder.step()
    assert decoder.finish() == ""


def first_primary(model, depth, temperature, *, stops):
    """A turn that its first token ends: the limit is one, or that token stops it."""
    state = _core.State(model, True)
    sampler = (temperature, 0.95, 20, 0.0, 0.0)
    options = {"target": sampler, "draft": sampler, "seed": 0, "max_tokens": 1, "speculate": True, "depth": depth}
    if stops:
        (token,) = first_primary(model, depth, temperature, stops=False).ids[3:]
        options |= {"max_tokens": 9, "stops": [token]}
    decoder = _core.Decoder(model, state, [9, 11, 10], options)
    while not decoder.done:
        decoder.step()
    assert decoder.finish() == ""
    assert (len(state), state.history_len) == (4, 3)
    return state


MANY = """
import sys
sys.path[:0] = {path!r}
import os, test_checkpoint_state as t
from types import SimpleNamespace
from pathlib import Path
model = t.open_model()
folder = SimpleNamespace(path=Path({folder!r}), fd=os.open({folder!r}, os.O_RDONLY))
for name in sorted(os.listdir({folder!r})):
    state = t.load(folder, model, name)
    t.save(folder, model, state, name + ".again")
    t.read_in(model, state, state.ids + t.SUFFIX)
    t.save(folder, model, state, name + ".more")
"""


def test_another_process_reads_every_byte_and_goes_on_like_a_teacher(model, folder):
    """Saved, the process gone, reopened: the file's content again, and a suffix behind it equals one-token forwards."""
    teachers = {}
    for mode in MODES:
        teacher = _core.State(model, mode == "mtp")
        for n in N_TOKENS:
            read_in(model, teacher, prompt_of(n), chunk=1 if n < 600 else 16)
            ahead = teacher.fork()
            read_in(model, ahead, [*ahead.ids, *SUFFIX], chunk=1)
            for count in (0, 1, 3):
                boundaries = sorted({max(1, n * k // 4) for k in range(1, count + 1)} - {n})
                state = _core.State(model, mode == "mtp")
                read_in(model, state, prompt_of(n), boundaries)
                assert state.boundaries == boundaries
                save(folder, model, state, f"{mode}-{n}-{count}")
                teachers[f"{mode}-{n}-{count}"] = teacher.fork(), ahead
    for depth in (1, 2, 3):
        for temperature in (0.0, 0.6):
            for stops in (False, True):
                state = first_primary(model, depth, temperature, stops=stops)
                name = f"primary-{depth}-{temperature}-{stops}"
                save(folder, model, state, name)
                teacher = _core.State(model, True)
                read_in(model, teacher, state.ids, chunk=1)
                ahead = teacher.fork()
                read_in(model, ahead, [*ahead.ids, *SUFFIX], chunk=1)
                teachers[name] = teacher, ahead
    path = [str(Path(__file__).parent), str(Path(core.__file__).parent)]
    subprocess.run([sys.executable, "-c", MANY.format(path=path, folder=str(folder.path))], check=True)
    assert len(teachers) == 2 * 3 * len(N_TOKENS) + 12
    for name, (teacher, ahead) in teachers.items():
        assert content(folder, name + ".again") == content(folder, name), name
        assert load(folder, model, name).first_difference(teacher) is None, name
        assert load(folder, model, name + ".more").first_difference(ahead) is None, name


def test_a_file_that_changes_while_it_is_read_is_refused(model, folder):
    (state,) = grown(model, "mtp", 9)
    save(folder, model, state)
    file = _core.CheckpointFile(folder.fd, "a")
    header = file.header()
    file.verify(header)
    os.utime(folder.path / "a", (1, 1))  # as a writer would leave it
    for read in (lambda: file.verify(header), lambda: _core.load_state(model, file, IDENTITY, OWNER)):
        with pytest.raises(CheckpointError) as caught:
            read()
        assert (caught.value.outcome, caught.value.details["reason"]) == ("corrupt", "changed")
