"""Who may include whom: style.md section 3."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Each C++ room and the rooms it may include.
ROOMS = {
    "base": set(),
    "sampling": {"base"},
    "kernels": {"base"},
    "ple": {"base"},
    "state": {"base"},
    "model": {"base", "kernels", "ple", "state"},
    "decode": {"base", "kernels", "ple", "state", "model", "sampling"},
    "bindings": {"base", "kernels", "ple", "state", "model", "sampling", "decode"},
}

# Rooms that know no tensors.
NO_MLX = {"sampling", "ple"}

CORE_IMPORTERS = {"sampling", "engine", "store", "checkpoint_files", "archive", "timeline", "sessions", "table"}

# Python modules from low to high; a module may import only from lower ranks or its own.
PYTHON_RANK = {
    name: rank
    for rank, names in enumerate(
        (
            {
                "_build",
                "_version",
                "errors",
                "settings",
                "settings_legacy",
                "settings_table",
                "settings_values",
                "text_files",
            },
            {"sampling", "request", "tokenizer", "chat", "safetensors_io", "geometry", "tensors", "reuse", "writer"},
            {"convert", "weights", "plan", "inventory", "table"},
            {"engine", "store", "checkpoint_files", "identity", "bank"},
            {"archive"},
            {"timeline", "turns"},
            {"sessions"},
            {"model"},
            {"terminal"},
            {"verify", "bench"},
            {"server"},
            {"checkpoint_command", "completion", "memory_commands", "cli", "commands", "__main__"},
        )
    )
    for name in names
}


def cpp_files() -> list[Path]:
    return sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".h", ".cpp"})


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#include\s+[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", cpp_files(), ids=lambda p: str(p.relative_to(ROOT / "csrc")))
def test_cpp_room_includes_only_rooms_below(path: Path) -> None:
    room = path.relative_to(ROOT / "csrc").parts[0]
    for name in includes(path):
        top = name.split("/")[0]
        if top in ROOMS:
            assert top == room or top in ROOMS[room], f"{path}: {room} includes {name}"
        if room in NO_MLX:
            assert not name.startswith("mlx/"), f"{path}: {room} includes {name}"


def test_every_folder_of_csrc_is_a_known_room() -> None:
    assert {p.name for p in (ROOT / "csrc").iterdir() if p.is_dir()} <= set(ROOMS)


def package_imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("qwenmtp.")}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "qwenmtp":
                found |= {a.name for a in node.names}
            elif node.module.startswith("qwenmtp."):
                found.add(node.module.split(".")[1])
    return found


def python_modules() -> list[tuple[str, Path]]:
    package = ROOT / "python" / "qwenmtp"
    files = [p for p in package.rglob("*.py") if p.name != "__init__.py" or p.parent != package]
    return sorted((p.relative_to(package).parts[0].removesuffix(".py"), p) for p in files)


@pytest.mark.parametrize(("module", "path"), python_modules(), ids=lambda v: v if isinstance(v, str) else v.name)
def test_python_imports_point_down(module: str, path: Path) -> None:
    assert module in PYTHON_RANK, f"{path}: give {module} a rank"
    for name in package_imports(path):
        if name == "_core":
            assert module in CORE_IMPORTERS, f"{path} imports _core"
        elif name in PYTHON_RANK:
            assert name == module or PYTHON_RANK[name] <= PYTHON_RANK[module], f"{path} imports {name}"


def test_only_settings_reads_the_environment() -> None:
    for module, path in python_modules():
        if module != "settings":
            assert "os.environ" not in path.read_text(), path
            assert "getenv" not in path.read_text(), path
    for path in cpp_files():
        assert "getenv" not in path.read_text(), path


def test_bindings_let_no_mlx_array_cross() -> None:
    for path in (ROOT / "csrc" / "bindings").iterdir():
        assert "nanobind/nb_array" not in path.read_text(), path
        assert 'import_("mlx' not in path.read_text(), path


def test_long_files_give_their_reason() -> None:
    long = []
    for folder in ("csrc", "metal", "python"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in {".h", ".cpp", ".py", ".metal"}:
                continue
            lines = path.read_text().splitlines()
            if len(lines) > 400:
                long.append(path)
                assert "over 400 lines" in "\n".join(lines[:12]), f"{path}: {len(lines)} lines without a reason"
    assert len(long) <= 3, long
