"""Whole pipelines by the names that trainings already use, and pipelines as tables and TOML.

A recipe is a function that composes stages and nothing else: its result is the pipeline that
:func:`fnpipe.pipe` would have made of them, and its ``repr`` shows them.
"""

from fnpipe.recipes.table import RECIPES as RECIPES
from fnpipe.recipes.table import defaults as defaults
from fnpipe.recipes.table import from_dict as from_dict
from fnpipe.recipes.table import from_toml as from_toml
from fnpipe.recipes.table import to_dict as to_dict
from fnpipe.recipes.table import to_toml as to_toml
from fnpipe.recipes.tasks import Hyper as Hyper
from fnpipe.recipes.tasks import detr as detr
from fnpipe.recipes.tasks import obb as obb
from fnpipe.recipes.tasks import pose as pose
from fnpipe.recipes.tasks import segment as segment
from fnpipe.recipes.tasks import validation as validation
from fnpipe.recipes.tasks import yolo as yolo
