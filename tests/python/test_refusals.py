"""Requests that nothing else in the tests makes: each is refused with its code and its reason."""

import sys
from pathlib import Path

import pytest

from qwenmtp import InvalidRequest, Model
from qwenmtp.bench import plot


def test_an_empty_timeline_is_not_saved(demo: Model, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="an empty timeline") as caught:
        demo.session().save(tmp_path / "chat.qwmtkv")
    assert caught.value.code == "invalid_request"
    assert list(tmp_path.iterdir()) == []


def test_a_session_without_a_name_needs_a_path(demo: Model) -> None:
    session = demo.session(mode="ar")
    for _ in session.generate([1, 2], max_tokens=1):
        pass
    with pytest.raises(InvalidRequest, match="expected a path") as caught:
        session.save()
    assert (caught.value.code, caught.value.details) == ("invalid_request", {"field": "id"})


def test_a_session_without_a_name_has_nothing_to_resume(demo: Model) -> None:
    with pytest.raises(InvalidRequest, match="without a name") as caught:
        demo.session().resume()
    assert (caught.value.code, caught.value.details) == ("invalid_request", {"field": "id"})


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("matplotlib", "matplotlib.figure"):  # the second may have been imported before
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidRequest, match=r"pip install qwenmtp\[bench\]") as caught:
        plot.lines(tmp_path / "plot.png", "title", "x", "y", {"a": [(1, 2)]})
    assert caught.value.code == "invalid_request"
