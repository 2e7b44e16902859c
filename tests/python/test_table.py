"""Row files of the demo pack, made and verified through the functions behind `qwenmtp table`."""

import shutil
from pathlib import Path

import pytest

from qwenmtp import table
from qwenmtp.errors import IoError, ModelFormatError, PleReadError

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO, tmp_path / "demo"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_interleave_then_verify(pack: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = table.interleave(pack, progress=lambda done, total: seen.append((done, total)))
    assert made.path == str(pack / "ngram-table.rows")
    assert made.rows == 81_024
    assert seen[0] == (0, made.rows)
    assert seen[-1] == (made.rows, made.rows)
    checked = table.verify(pack)
    assert checked == made
    assert checked.first_difference is None
    assert set(checked.to_json()) == {"path", "rows", "n_bytes", "first_difference"}


def test_another_place(pack: Path, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere.rows"
    made = table.interleave(pack, out)
    assert made.path == str(out)
    assert not (pack / "ngram-table.rows").exists()
    assert table.verify(pack, out).first_difference is None


def test_damage_is_found(pack: Path) -> None:
    made = table.interleave(pack)
    flip(Path(made.path), made.n_bytes // 2)
    with pytest.raises(PleReadError, match="checksum"):
        table.verify(pack)


def test_a_changed_table_is_found(pack: Path) -> None:
    """A row outside the sample of open: only verify compares them all."""
    made = table.interleave(pack)
    source = pack / "ngram-table.safetensors"
    start = 8 + int.from_bytes(source.read_bytes()[:8], "little")
    row_bytes = (source.stat().st_size - start) // made.rows
    weight_bytes = row_bytes - 4  # one group: a scale and a bias of two bytes each
    flip(source, start + weight_bytes * 1000 + 3)
    assert table.verify(pack).first_difference == 1000


def test_the_row_file_of_another_folder_is_refused(pack: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(DEMO, tmp_path / "other"))
    source = other / "ngram-table.safetensors"
    flip(source, source.stat().st_size - 1)
    table.interleave(other)
    with pytest.raises(ModelFormatError, match="differs"):
        table.verify(pack, other / "ngram-table.rows")


def test_what_is_not_there(pack: Path, tmp_path: Path) -> None:
    with pytest.raises(IoError):
        table.verify(pack)
    with pytest.raises(IoError):
        table.interleave(pack, tmp_path / "nowhere" / "rows")
    with pytest.raises(ModelFormatError):
        table.interleave(tmp_path / "nowhere")
