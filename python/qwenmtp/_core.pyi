"""The engine of qwenmtp. Private: import qwenmtp instead."""

from collections.abc import Mapping, Sequence
import enum
from typing import Annotated, Final

import numpy
from numpy.typing import NDArray


mlx_version: str = '0.32.4'

def open_trace(path: str) -> None:
    """Starts a Perfetto trace of this process, or joins the running one."""

def close_trace() -> None:
    """Undoes one open_trace."""

def device() -> str:
    """Where MLX computes by default: cpu or gpu."""

def set_memory_limit(n_bytes: int) -> None:
    """Bytes beyond which MLX waits for memory to be freed; of the process."""

def ngram_tables(geometry: dict, layout: str, files: Sequence[str], tensors: Sequence[tuple[str, str, Sequence[int], int, int]], quant: Mapping[str, tuple[int, int]]) -> list[tuple[NgramConfig, PleTableSpec]]:
    """(NgramConfig, PleTableSpec) of each n-gram layer of a checkpoint."""

class LoadProgress:
    """Bytes that a load has read."""

    def __init__(self) -> None: ...

    @property
    def bytes(self) -> int:
        """So far."""

class Model:
    """A loaded checkpoint; immutable, shared by its sessions."""

    def __init__(self, geometry: dict, layout: str, files: Sequence[str], tensors: Sequence[tuple[str, str, Sequence[int], int, int]], quant: Mapping[str, tuple[int, int]], float32: bool, progress: LoadProgress | None = None, ple: PleOptions | None = None) -> None:
        """Read and check every tensor. Raises ModelFormatError, IoError."""

    @property
    def has_mtp(self) -> bool:
        """Whether the checkpoint carries an MTP head."""

    def expect(self, before: Sequence[int], ids: Sequence[int]) -> None:
        """Starts reading the n-gram rows of ids that will follow `before`."""

    def prewarm(self, n_bytes: int) -> None:
        """
        Reads so much of each table in the background, for the system's page cache.
        """

    @property
    def ple_stats(self) -> list:
        """Counters of the n-gram stagers, one for each n-gram layer."""

    @property
    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes read, by stored form ("BF16", "4-bit", ...)."""

class NgramConfig:
    def __init__(self, *, vocab: int, ngram_size: int, heads_per_ngram: int, multipliers: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], eos: int) -> None: ...

    def check(self, table_rows: int) -> None: ...

def ngram_rows(config: NgramConfig, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', writable=False)], history: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', writable=False)]) -> object:
    """Table rows [n, heads] of ids; history is the ids before, eos padded."""

def ngram_multipliers(seed: int, vocab: int, ngram_size: int, ple_index: int) -> list[int]: ...

def ngram_heads(base: int, n_heads: int, ple_index: int) -> tuple[list[int], list[int]]:
    """(sizes, offsets) of the hash heads."""

class RowType(enum.Enum):
    float32 = 0

    bfloat16 = 1

    bfloat16_fused = 2

class Coding(enum.Enum):
    bf16 = 0

    f32 = 1

    affine = 2

    fp8 = 3

class RowFormat:
    def __init__(self, *, dim: int, coding: Coding, bits: int = 0, group_size: int = 0, fp8_scale: float = 1.0) -> None: ...

    @property
    def record_bytes(self) -> int: ...

class PlePlane:
    def __init__(self, path: str, offset: int) -> None: ...

class PleShard:
    def __init__(self, rows: int, planes: Sequence[PlePlane]) -> None: ...

class PleTableSpec:
    def __init__(self, format: RowFormat, shards: Sequence[PleShard], *, row_file: str = '', checksums: bool = False) -> None: ...

    def with_row_file(self, row_file: str, *, checksums: bool) -> PleTableSpec: ...

class PleOptions:
    def __init__(self, *, n_threads: int = 8, hot_bytes: int = 268435456, read_ahead: bool = True, staging: bool = True, row_file: str = '', checksums: bool = False, resident_budget: int | None = None) -> None:
        """How a model reads its n-gram table."""

class PleTable:
    @staticmethod
    def open(spec: PleTableSpec) -> PleTable: ...

    @property
    def rows(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    def gather(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', writable=False)], type: RowType) -> object:
        """Values [n, dim]: float32, or the bits of bf16 as uint16."""

class PleRowFileWriter:
    def __init__(self, source: PleTable, path: str) -> None: ...

    @property
    def rows_done(self) -> int: ...

    def step(self, n_rows: int) -> None: ...

    def commit(self) -> None: ...

def ple_first_difference(a: PleTable, b: PleTable, first: int, n: int) -> int:
    """First of n rows that differs between the tables, or -1."""

def bare_reads(path: str, offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', writable=False)], n_bytes: int, n_threads: int) -> None:
    """Reads n_bytes at every offset with threads that do nothing else."""

class PleStager:
    def __init__(self, config: NgramConfig, spec: PleTableSpec, *, n_threads: int = 8, hot_bytes: int = 268435456, resident_budget: int | None = None) -> None:
        """With a budget in bytes the table is read into memory as a whole."""

    def embed(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', writable=False)], history: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', writable=False)], type: RowType) -> object:
        """Values [n, heads * dim] of ids [n]; history is the ids before."""

    def request(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', writable=False)], history: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', writable=False)]) -> None:
        """Starts reading what embed will want; never waits."""

    def cancel(self) -> None:
        """Drops what was requested."""

    def clear_hot(self) -> None:
        """Forgets the hot rows."""

    def stats(self) -> dict: ...

class State:
    """What a model remembers of one sequence of ids."""

    def __init__(self, model: Model, speculate: bool) -> None:
        """Empty; with an MTP history if it will speculate."""

    @property
    def ids(self) -> list[int]:
        """Every id the state holds."""

    def __len__(self) -> int: ...

    @property
    def history_len(self) -> int:
        """Rows of the MTP history."""

    @property
    def speculates(self) -> bool:
        """Whether it has an MTP history."""

    def fork(self) -> State:
        """A copy; shares its arrays until one of both moves on."""

    @property
    def boundaries(self) -> list[int]:
        """Lengths that rewind() can go back to, ascending."""

    def keep_boundaries(self, lengths: Sequence[int]) -> None:
        """Forgets all others."""

    def rewind(self, length: int) -> None:
        """Back to a boundary: no logits, hidden row where there is a history."""

    @property
    def n_bytes(self) -> int:
        """Of all buffers it holds, boundaries and spare rows included."""

    def check(self) -> None:
        """Raises for a broken invariant."""

    def first_difference(self, other: State) -> str | None:
        """The first differing value, or None when all bits are equal."""

    def tensors(self) -> list[tuple[str, str, list[int], bytes]]:
        """
        (name, dtype, shape, bytes) of every tensor, in the order of a checkpoint.
        """

def traffic(model: Model, state: State, ids: Sequence[int], draft: bool = False) -> dict[str, tuple[int, int]]:
    """
    Nodes and bytes moved by node name, of a forward of ids behind a state, which stays as it is; with draft of the head's draft behind it.
    """

def launches(geometry: dict, files: Sequence[str], tensors: Sequence[tuple[str, str, Sequence[int], int, int]], width: tuple[int, int], depth: int) -> dict[str, dict[str, int]]:
    """
    An accelerator's launches by step and node name, for a pack of this geometry without its weights; tensors: of its n-gram table, and one of the draft head.
    """

class Decoder:
    """One request: pull prefill, then steps, then finish."""

    def __init__(self, model: Model, state: State, prompt: Sequence[int], options: dict) -> None:
        """prompt: every id of the context; the state holds a prefix of it."""

    def prefill(self) -> int:
        """One chunk; returns the tokens now held."""

    def step(self) -> dict:
        """One round: {ids, logprobs, drafted, accepted}."""

    def advance(self) -> dict:
        """Up to the next batch of a round."""

    def cancel(self) -> None:
        """From any thread; takes effect at the next phase."""

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt is in."""

    @property
    def done(self) -> bool:
        """Whether no step is left."""

    @property
    def tokens(self) -> list[int]:
        """Every emitted id, stop tokens included."""

    @property
    def finish_reason(self) -> str:
        """stop, length, cancelled, deadline, or none while running."""

    @property
    def stop_origin(self) -> str:
        """Where a stop came from."""

    @property
    def draw_trace(self) -> str:
        """One letter per draw: c a token, u an acceptance."""

    @property
    def statistics(self) -> dict:
        """Counters and seconds (decode.md 9)."""

    def finish(self) -> str:
        """Commit the state. Returns why it was put back instead, or ''."""

    def abandon(self) -> None:
        """Put the state back to before the request."""

class NullDecoder:
    """A request without a model, for benchmarks."""

    def __init__(self, rows: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)], prompt: Sequence[int], options: dict) -> None:
        """rows [n, V]: logits in turn; float32, or uint16 holding bfloat16."""

    def prefill(self) -> int:
        """One chunk; returns the tokens now held."""

    def step(self) -> dict:
        """One round: {ids, logprobs, drafted, accepted}."""

    def advance(self) -> dict:
        """Up to the next batch of a round."""

    def cancel(self) -> None:
        """From any thread; takes effect at the next phase."""

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt is in."""

    @property
    def done(self) -> bool:
        """Whether no step is left."""

    @property
    def tokens(self) -> list[int]:
        """Every emitted id, stop tokens included."""

    @property
    def finish_reason(self) -> str:
        """stop, length, cancelled, deadline, or none while running."""

    @property
    def stop_origin(self) -> str:
        """Where a stop came from."""

    @property
    def draw_trace(self) -> str:
        """One letter per draw: c a token, u an acceptance."""

    @property
    def statistics(self) -> dict:
        """Counters and seconds (decode.md 9)."""

class CheckpointHeader:
    @property
    def ids(self) -> bytes:
        """N little-endian uint32."""

    @property
    def boundaries(self) -> list[int]: ...

    @property
    def meta(self) -> bytes: ...

    @property
    def tensors(self) -> list:
        """
        One tuple a tensor: group, role, layer, boundary, dtype, shape, offset, bytes.
        """

class CheckpointFile:
    def __init__(self, dir_fd: int, name: str) -> None: ...

    @property
    def inode(self) -> int: ...

    @property
    def n_bytes(self) -> int: ...

    def prologue(self, identity: bytes | None = None, owner: bytes | None = None) -> dict:
        """Reads 256 bytes and checks them."""

    def header(self, identity: bytes | None = None, owner: bytes | None = None) -> CheckpointHeader:
        """Reads the header and checks it against the geometry it implies."""

    def verify(self, header: CheckpointHeader) -> None:
        """Reads every tensor and checks CRCs, hashes and padding."""

class CancelFlag:
    def __init__(self) -> None: ...

    def set(self) -> None: ...

class StateImage:
    """A state at one moment, ready to be written."""

    def __init__(self, model: Model, state: State, finish: str, meta: str) -> None:
        """With all boundaries of the state; meta: JSON."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def file_bytes(self) -> int: ...

    def write(self, dir_fd: int, name: str, identity: bytes, owner: bytes, durability: str = 'barrier', cancel: CancelFlag | None = None) -> None:
        """From any thread; the session may go on meanwhile."""

def load_state(model: Model, file: CheckpointFile, identity: bytes | None = None, owner: bytes | None = None, *, max_context: int = 2097152, max_payload: int = 1099511627776, spare_rows: int = 0, boundary: int | None = None, cancel: CancelFlag | None = None) -> State:
    """A State of the file's mode; with boundary the one at that record."""

class SyntheticCheckpoint:
    """A state of the released geometry made of random bytes, for benchmarks."""

    def __init__(self, n_tokens: int) -> None: ...

    @property
    def payload_bytes(self) -> int: ...

    crc_path: Final[str] = ...
    """(arg: object, /) -> str"""

    def write(self, dir_fd: int, name: str) -> int: ...

    @staticmethod
    def read(dir_fd: int, name: str) -> None:
        """Into fresh memory, checked and freed."""

    def crc(self) -> int: ...

    def header_hash(self) -> bytes: ...

def checkpoint_allocated_bytes() -> int:
    """Tensor bytes for which readers of this process asked for memory."""

def is_local(fd: int) -> bool:
    """Whether an open file lies on a file system of this machine."""
