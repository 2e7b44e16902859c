"""Which class of module gets which width: the built-in recipes, recipe files, and the floors no recipe may go below.

Refuses unknown classes, widths MLX cannot pack, and widths below a class's floor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenmtp.errors import ConfigError

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True)
class Width:
    """Affine codes of `bits` with one scale and bias per `group_size` values of a row."""

    bits: int
    group_size: int

    def __str__(self) -> str:
        return f"{self.bits}/g{self.group_size}"

    def fit(self, n_in: int) -> Width | None:
        """This width for rows of n_in values: the next smaller group that divides them; None when none does."""
        for group in sorted((g for g in GROUP_SIZES if g <= self.group_size), reverse=True):
            if n_in % group == 0:
                return Width(self.bits, group)
        return None


# Class -> fewest bits. Router, residual streams and injections steer everything after them; their errors do not average
# out over experts or columns, so 8 bits is the least. Norms, convolutions, A_log, dt_bias and the hash constants have
# no class: they are never quantised.
FLOORS: Mapping[str, int] = {
    "embed_tokens": 2,
    "lm_head": 2,
    "routed_experts": 2,
    "shared_expert": 2,
    "router": 8,
    "shared_expert_gate": 2,
    "gdn_in": 2,
    "gdn_out": 2,
    "attention": 2,
    "indexer": 2,
    "hyper": 8,
    "ple": 8,
    "table": 2,
    "mtp_routed_experts": 2,
    "mtp_shared_expert": 2,
    "mtp_router": 8,
    "mtp_shared_expert_gate": 2,
    "mtp_attention": 2,
    "mtp_indexer": 2,
    "mtp_hyper": 8,
    "mtp_fc": 8,
}


@dataclass(frozen=True)
class Recipe:
    """A name and a width (None: bf16) for every class of FLOORS."""

    name: str
    widths: Mapping[str, Width | None]

    @property
    def base(self) -> Width:
        """The pack-wide width: the routed experts', who are most of a model."""
        return self.widths["routed_experts"] or next((w for w in self.widths.values() if w), Width(8, 64))

    def to_dict(self) -> dict[str, Any]:
        """The recipe as a recipe file holds it."""
        widths = {c: {"bits": w.bits, "group_size": w.group_size} if w else "bf16" for c, w in self.widths.items()}
        return {"name": self.name, "classes": widths}


def load_recipe(recipe: str | Path | Recipe) -> Recipe:
    """A built-in recipe by name, else a recipe file (docs/packs.md).

    Raises:
        ConfigError: neither; or the file has an unknown key, class or width.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if str(recipe) in BUILT_IN:
        return BUILT_IN[str(recipe)]
    path = Path(recipe)
    if not path.is_file():
        raise ConfigError(f"[convert.recipe] {recipe}: no such file, expected one or {', '.join(BUILT_IN)}")
    try:
        spec = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"[convert.recipe] {path}: not JSON ({error})") from None
    return _parse(spec, path)


def _parse(spec: Any, path: Path) -> Recipe:
    if not isinstance(spec, dict):
        raise ConfigError(f"[convert.recipe] {path}: expected an object with name, extends and classes")
    for key in spec:
        if key not in ("name", "extends", "classes"):
            raise ConfigError(f"[convert.recipe] {path}: unknown key {key}, expected name, extends, classes")
    name, classes = spec.get("name", path.stem), spec.get("classes", {})
    extends = spec.get("extends", "optimized-speed")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"[convert.recipe] {path}: name is {name!r}, expected text")
    if not isinstance(extends, str) or extends not in BUILT_IN:
        raise ConfigError(f"[convert.recipe] {path}: extends is {extends!r}, expected one of {', '.join(BUILT_IN)}")
    if not isinstance(classes, dict):
        raise ConfigError(f"[convert.recipe] {path}: classes is {classes!r}, expected an object of widths by class")
    widths = dict(BUILT_IN[extends].widths)
    for key, value in classes.items():
        if key not in FLOORS:
            raise ConfigError(f"[convert.recipe] {path}: unknown class {key}, expected one of {', '.join(FLOORS)}")
        widths[key] = _width(value, f"[convert.recipe] {path}: classes.{key}", FLOORS[key])
    return Recipe(name, widths)


def _width(value: Any, where: str, floor: int) -> Width | None:
    if value == "bf16":
        return None
    if not isinstance(value, dict) or set(value) != {"bits", "group_size"}:
        raise ConfigError(f'{where} is {value!r}, expected "bf16" or an object with bits and group_size')
    bits, group = value["bits"], value["group_size"]
    if type(bits) is not int or bits not in BITS:
        raise ConfigError(f"{where}.bits is {bits!r}, expected one of {BITS}")
    if type(group) is not int or group not in GROUP_SIZES:
        raise ConfigError(f"{where}.group_size is {group!r}, expected one of {GROUP_SIZES}")
    if bits < floor:
        raise ConfigError(f"{where}.bits is {bits}, below the floor of this class, {floor}")
    return Width(bits, group)


def _built_in(name: str, bulk: Width, rest: Width) -> Recipe:
    """`bulk` is routed experts and GDN inputs, `rest` what every token reads in full."""
    eight = Width(8, 64)
    return Recipe(
        name,
        {
            "embed_tokens": rest,
            "lm_head": rest,
            "routed_experts": bulk,
            "shared_expert": rest,
            "router": eight,
            "shared_expert_gate": rest,
            "gdn_in": bulk,
            "gdn_out": rest,
            "attention": rest,
            "indexer": eight,
            "hyper": None,
            "ple": None,
            "table": Width(4, 32),
            "mtp_routed_experts": bulk,
            "mtp_shared_expert": rest,
            "mtp_router": eight,
            "mtp_shared_expert_gate": rest,
            "mtp_attention": rest,
            "mtp_indexer": eight,
            "mtp_hyper": None,
            "mtp_fc": None,
        },
    )


# The widths of the published packs of these names.
BUILT_IN: Mapping[str, Recipe] = {
    r.name: r
    for r in (
        _built_in("bare-speed", Width(4, 64), Width(4, 64)),
        _built_in("optimized-speed", Width(4, 32), Width(8, 64)),
        _built_in("optimized-quality", Width(8, 64), Width(8, 64)),
    )
}
