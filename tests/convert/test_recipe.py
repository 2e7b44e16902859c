"""convert: recipes are checked before anything is read."""

import json
from pathlib import Path
from typing import Any

import pytest
from convert.release import EIGHT_BITS_OR_MORE, names

from qwenmtp.convert import BUILT_IN, convert, load_recipe
from qwenmtp.convert.recipe import FLOORS
from qwenmtp.errors import ConfigError


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ([], "object"),
        ({"clases": {}}, "clases"),
        ({"name": ""}, "name"),
        ({"extends": "quick"}, "quick"),
        ({"classes": []}, "classes"),
        ({"classes": {"experts": "bf16"}}, "experts"),
        ({"classes": {"attention": "fp16"}}, "classes.attention"),
        ({"classes": {"attention": {"bits": 4}}}, "classes.attention"),
        ({"classes": {"attention": {"bits": 7, "group_size": 64}}}, "classes.attention.bits"),
        ({"classes": {"attention": {"bits": 4.0, "group_size": 64}}}, "classes.attention.bits"),
        ({"classes": {"attention": {"bits": 4, "group_size": 48}}}, "classes.attention.group_size"),
        *[({"classes": {c: {"bits": 6, "group_size": 64}}}, f"classes.{c}.bits") for c in EIGHT_BITS_OR_MORE],
    ],
)
def test_a_recipe_that_is_not_legal_names_its_key(spec: Any, named: str, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(spec))
    with pytest.raises(ConfigError, match=named):
        convert(tiny, tmp_path / "pack", path)
    assert names(tmp_path) == ["recipe.json"]


def test_an_unknown_recipe_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bare-speed, optimized-speed, optimized-quality"):
        load_recipe("optimised-speed")
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        load_recipe(tmp_path / "recipe.json")


def test_a_recipe_file_changes_only_its_classes(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"extends": "bare-speed", "classes": {"lm_head": {"bits": 6, "group_size": 32}}}))
    recipe = load_recipe(path)
    assert recipe.name == "mine"
    assert {c for c in FLOORS if recipe.widths[c] != BUILT_IN["bare-speed"].widths[c]} == {"lm_head"}
    assert str(recipe.widths["lm_head"]) == "6/g32"
    path.write_text(json.dumps(recipe.to_dict()))
    assert load_recipe(path) == recipe
