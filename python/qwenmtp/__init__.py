"""Qwen3.8-Flash-Next with its own multi-token prediction, exactly."""

from qwenmtp._version import __version__, check_mlx

check_mlx()

__all__ = ["__version__"]
