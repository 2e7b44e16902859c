"""Makes packs from released checkpoints: `convert`, its report and its recipes. Refuses to overwrite anything."""

from qwenmtp.convert.pack import ConvertReport, convert
from qwenmtp.convert.recipe import BUILT_IN, Recipe, Width, load_recipe

__all__ = ["BUILT_IN", "ConvertReport", "Recipe", "Width", "convert", "load_recipe"]
