"""Version facts, and the one check that must precede loading the core."""

from importlib import metadata

from qwenmtp._build import MLX_VERSION

try:
    __version__ = metadata.version("qwenmtp")
except metadata.PackageNotFoundError:  # a source tree with modules built in place
    __version__ = "0+source"


def check_mlx() -> None:
    """Refuse an MLX that the core was not built for; libmlx has no stable ABI.

    Raises:
        ImportError: one line with what was found, what is needed and the command that fixes it.
    """
    extra = "[cpu]" if _is_linux() else ""
    fix = f"pip install 'mlx{extra}=={MLX_VERSION}'"
    try:
        found = metadata.version("mlx")
    except metadata.PackageNotFoundError:
        raise ImportError(f"qwenmtp needs mlx {MLX_VERSION}, found none: {fix}") from None
    if found != MLX_VERSION:
        raise ImportError(f"qwenmtp needs mlx {MLX_VERSION}, found {found}: {fix}")
    if _is_linux() and not any(_installed(f"mlx-{b}") for b in ("cpu", "cuda-12", "cuda-13")):
        raise ImportError(f"qwenmtp found mlx {found} without a Linux back end: {fix}")


def _is_linux() -> bool:
    import sys

    return sys.platform == "linux"


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
