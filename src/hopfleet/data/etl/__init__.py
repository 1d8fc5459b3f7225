"""From raw files to data sets: sources cut into chunks, recipes, splits, and the processes that do the work."""

from __future__ import annotations

from hopfleet.data.etl.first_rows import first_rows
from hopfleet.data.etl.images import Images
from hopfleet.data.etl.labels import Label
from hopfleet.data.etl.listing import Files
from hopfleet.data.etl.preparing import prepare, split
from hopfleet.data.etl.recipe import Recipe, load_recipe
from hopfleet.data.etl.splitting import Split
from hopfleet.data.etl.statistics import Counts, Moments, Quantiles
from hopfleet.data.etl.steps import Category, Date, Number, Text
from hopfleet.data.etl.tables import Query
from hopfleet.data.etl.tabular import Tabular
from hopfleet.data.etl.thesis import ETLSpec

__all__ = [
    "Category",
    "Counts",
    "Date",
    "ETLSpec",
    "Files",
    "Images",
    "Label",
    "Moments",
    "Number",
    "Quantiles",
    "Query",
    "Recipe",
    "Split",
    "Tabular",
    "Text",
    "first_rows",
    "load_recipe",
    "prepare",
    "split",
]
