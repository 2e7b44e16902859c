"""`stats["gdn_compiled"]` says why GDN layers are not compiled."""

import pytest

from qwenmtp import Model, SamplingParams


def told(model: Model, **settings: str) -> str:
    session = model.session(mode="ar", **settings)
    for _ in session.generate([1, 2, 3], SamplingParams(temperature=0), max_tokens=1):
        pass
    return str(session.last_turn.stats["gdn_compiled"])


@pytest.mark.parametrize("wish", ["auto", "on"])
def test_what_the_device_decides(demo: Model, wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(demo, gdn_compile=wish) == "cpu back end"
    monkeypatch.setattr(demo._engine, "device", "gpu")
    assert told(demo, gdn_compile=wish) == "no dispatch saved"


def test_an_explicit_off_is_told_first(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(demo, gdn_compile="off") == "off"
    monkeypatch.setattr(demo._engine, "device", "gpu")
    assert told(demo, gdn_compile="off") == "off"
