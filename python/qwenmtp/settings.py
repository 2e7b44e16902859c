"""Settings of a model, resolved once from every source, with where each came from. Only this reads the environment."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from qwenmtp.errors import ConfigError
from qwenmtp.settings_legacy import CLASSES, LEGACY, NO_EFFECT, NOTHING
from qwenmtp.settings_table import (
    FIELDS,
    GROUPS,
    CheckpointSettings,
    DecodeSettings,
    GdnSettings,
    MemorySettings,
    ModelSettings,
    PleSettings,
    PrefillSettings,
    SessionSettings,
    Spec,
    TraceSettings,
    VerifySettings,
)
from qwenmtp.text_files import read_pack

Mode = Literal["mtp", "ar"]
Pack = Mapping[str, Any] | str | Path | None
Source = Literal["keyword", "QWENMTP_*", "MTPLX_*", "pack", "policy", "default"]

_OWN, _LEGACY = "QWENMTP_", "MTPLX_"
_KILLERS = ("keyword", "QWENMTP_*", "MTPLX_*")
_BY_ENV = {_OWN + spec.env: spec for spec in FIELDS.values()}
# A keyword is the variable's name in lower case; the dotted name, or its dot as `_`, is the same field.
_BY_KEYWORD = {
    key: spec for spec in FIELDS.values() for key in (spec.name, spec.name.replace(".", "_"), spec.env.lower())
}
# What the released Flash-Next geometry is recognised by.
_FLASH_NEXT = {
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "hc_count": 4,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 640,
    "ple_embed_dim": 2560,
    "vocab_size": 248_320,
}


def colour_wanted() -> bool:
    """Whether a terminal may be coloured: not with NO_COLOR set to anything, nor on a dumb one."""
    return not os.environ.get("NO_COLOR") and not dumb_terminal()


def dumb_terminal() -> bool:
    """Whether the terminal says that it cannot move its cursor."""
    return os.environ.get("TERM") == "dumb"


@dataclass(frozen=True, slots=True)
class Statement:
    """What one source says about a field: its value, the variable or keyword, and the text as given (None: a value)."""

    source: Source
    name: str
    raw: str | None
    value: Any


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a field's value came from, and which statements it overruled, strongest source first."""

    stated: Statement
    overruled: tuple[Statement, ...]

    @property
    def value(self) -> Any:
        """The value in effect."""
        return self.stated.value

    @property
    def source(self) -> Source:
        """The source that counted."""
        return self.stated.source

    @property
    def conflict(self) -> bool:
        """Whether a weaker source asked for another value."""
        return any(other.value != self.value for other in self.overruled)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, frozen. Made by `resolve` or `from_env`, never by hand.

    Attributes:
        mode: What the settings were resolved for, `mtp` or `ar`.
        provenance: Of every field, by dotted name.
        no_effect: Variables that are set and change nothing, with their text.
    """

    model: ModelSettings
    gdn: GdnSettings
    verify: VerifySettings
    decode: DecodeSettings
    prefill: PrefillSettings
    ple: PleSettings
    session: SessionSettings
    checkpoint: CheckpointSettings
    memory: MemorySettings
    trace: TraceSettings
    mode: Mode
    provenance: Mapping[str, Provenance]
    no_effect: Mapping[str, str]

    @classmethod
    def resolve(
        cls,
        env: Mapping[str, str],
        mode: Mode = "mtp",
        pack: Pack = None,
        **overrides: Any,
    ) -> Settings:
        """Resolves every field: keyword, QWENMTP_*, MTPLX_*, pack, policy, default; the first that speaks counts.

        An explicit off of `gdn.compile` from one of the first three wins whatever the others say.

        Args:
            env: Environment variables.
            mode: `mtp` or `ar`.
            pack: The model's folder, or what `read_pack` reads there: config.json and, as `mtplx_runtime`, the pack's
                mtplx_runtime.json, whose `runtime_env_overrides` are its wishes.
            **overrides: Fields by the lower-case name of their variable (`dtype`, `ple_threads`), or by dotted name.

        Raises:
            ConfigError: Unknown QWENMTP_* name or keyword, or a value that is not accepted.
            ModelFormatError: A file of the pack is damaged.
        """
        if mode not in get_args(Mode):
            raise ConfigError(f"[settings] mode {mode!r}, expected mtp or ar", details={"name": "mode"})
        if isinstance(pack, str | Path):
            pack = read_pack(pack)
        statements = [
            *_from_keywords(overrides),
            *_from_own(env),
            *_from_legacy(env, "MTPLX_*"),
            *_from_legacy(_pack_overrides(pack), "pack"),
            *_from_policy(pack),
        ]
        no_effect = {_LEGACY + name: env[_LEGACY + name] for name in NO_EFFECT if _LEGACY + name in env}
        return cls._settled(statements, mode, no_effect)

    @classmethod
    def from_env(cls, mode: Mode = "mtp", pack: Pack = None, **overrides: Any) -> Settings:
        """`resolve` with this process's environment."""
        return cls.resolve(os.environ, mode, pack, **overrides)

    def override(self, **overrides: Any) -> Settings:
        """The same sources with further keywords, which count before the earlier ones."""
        said = [
            (name, statement)
            for name, p in self.provenance.items()
            for statement in (p.stated, *p.overruled)
            if statement.source != "default"
        ]
        return self._settled([*_from_keywords(overrides), *said], self.mode, self.no_effect)

    @classmethod
    def _settled(
        cls, statements: Iterable[tuple[str, Statement]], mode: Mode, no_effect: Mapping[str, str]
    ) -> Settings:
        said: dict[str, list[Statement]] = {name: [] for name in FIELDS}
        for name, statement in statements:
            said[name].append(statement)
        provenance = {name: _winner(FIELDS[name], ordered) for name, ordered in said.items()}
        groups = {
            group: kind(**{f.name: provenance[f"{group}.{f.name}"].value for f in dataclasses.fields(kind)})
            for group, kind in GROUPS.items()
        }
        return cls(
            **groups, mode=mode, provenance=MappingProxyType(provenance), no_effect=MappingProxyType(dict(no_effect))
        )

    def as_json(self) -> dict[str, Any]:
        """All fields with value, default and source, and every variable without effect with its reason."""

        def said(statement: Statement) -> dict[str, Any]:
            return {"source": statement.source, "name": statement.name, "raw": statement.raw, "value": statement.value}

        return {
            "mode": self.mode,
            "fields": {
                name: {
                    **said(p.stated),
                    "default": FIELDS[name].default,
                    "env": _OWN + FIELDS[name].env,
                    "overruled": [said(other) for other in p.overruled],
                }
                for name, p in self.provenance.items()
            },
            "no_effect": {
                _LEGACY + name: {"set": self.no_effect.get(_LEGACY + name), "reason": reason}
                for name, reason in NO_EFFECT.items()
            },
        }


def variables() -> dict[str, str]:
    """The QWENMTP_* and MTPLX_* variables of this process."""
    return {name: text for name, text in os.environ.items() if name.startswith((_OWN, _LEGACY))}


def _winner(spec: Spec, said: list[Statement]) -> Provenance:
    """The first statement, or the first explicit off of a kill switch; the rest is overruled."""
    first = said[0] if said else Statement("default", "", None, spec.default)
    if spec.kill:
        sources = (*_KILLERS, first.source)
        first = next((s for s in said if s.value == "off" and s.source in sources), first)
    return Provenance(first, tuple(s for s in said if s is not first))


def _from_keywords(overrides: Mapping[str, Any]) -> list[tuple[str, Statement]]:
    out = []
    for key, value in overrides.items():
        spec = _BY_KEYWORD.get(key)
        if spec is None:
            raise _unknown("keyword", key, _BY_KEYWORD)
        try:
            checked = spec.kind.of_value(value)
        except ValueError:
            raise _refusal(key, value, spec) from None
        out.append((spec.name, Statement("keyword", key, None, checked)))
    return out


def _from_own(env: Mapping[str, str]) -> list[tuple[str, Statement]]:
    out = []
    for name in sorted(name for name in env if name.startswith(_OWN)):
        spec = _BY_ENV.get(name)
        if spec is None:
            raise _unknown("variable", name, _BY_ENV)
        text = env[name].strip()
        if not text:
            continue
        try:
            value = spec.kind.of_text(text)
        except ValueError:
            raise _refusal(name, env[name], spec) from None
        out.append((spec.name, Statement("QWENMTP_*", name, env[name], value)))
    return out


def _from_legacy(env: Mapping[str, str], source: Source) -> list[tuple[str, Statement]]:
    out = []
    for row in LEGACY.values():
        name = _LEGACY + row.name
        if name not in env:
            continue
        try:
            value = row.read(env[name])
        except ValueError:
            accepted = None if row.letter == "own" else CLASSES[row.letter]
            shown = f"{name} of the pack" if source == "pack" else name
            raise _refusal(shown, env[name], FIELDS[row.field], accepted) from None
        if value is not NOTHING:
            out.append((row.field, Statement(source, name, env[name], value)))
    return out


def _pack_overrides(pack: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Environment texts that a pack asks for."""
    runtime = (pack or {}).get("mtplx_runtime") or {}
    wishes = runtime.get("runtime_env_overrides") or {}
    if not isinstance(wishes, Mapping):
        raise ConfigError(
            "[settings] runtime_env_overrides of mtplx_runtime.json is no object", details={"name": "pack"}
        )
    return {str(name): str(int(value) if isinstance(value, bool) else value) for name, value in wishes.items()}


def _from_policy(pack: Mapping[str, Any] | None) -> list[tuple[str, Statement]]:
    """What the reference's server sets for the released Flash-Next geometry where our default differs."""
    text = (pack or {}).get("text_config") or pack or {}
    if any(text.get(key) != value for key, value in _FLASH_NEXT.items()):
        return []
    return [("decode.relaxed_draft_ties", Statement("policy", "flash-next", None, True))]


def _refusal(name: str, value: object, spec: Spec, accepted: str | None = None) -> ConfigError:
    accepted = accepted or spec.kind.accepted
    return ConfigError(
        f"[settings] {name} is {value!r}, expected {accepted}",
        details={"name": name, "field": spec.name, "value": repr(value), "accepted": accepted},
    )


def _unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return ConfigError(
        f"[settings] unknown {what} {name}, did you mean {close[0]}? `qwenmtp settings` lists all",
        details={"name": name, "suggestion": close[0]},
    )
