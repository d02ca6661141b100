"""fnpipe: training input for detectors as pure functions; the same bytes however they are run."""

import importlib
import typing

from fnpipe.cuts import Parcel as Parcel
from fnpipe.cuts import complete as complete
from fnpipe.cuts import make_batch as make_batch
from fnpipe.data.bill import Bill as Bill
from fnpipe.data.bill import bill as bill
from fnpipe.data.coco import read_coco as read_coco
from fnpipe.data.dataset import Dataset as Dataset
from fnpipe.data.dota import read_dota as read_dota
from fnpipe.data.pool import Pool as Pool
from fnpipe.data.pool import pool as pool
from fnpipe.data.prepare import prepare as prepare
from fnpipe.data.yolo import read_yolo as read_yolo
from fnpipe.keys import Key as Key
from fnpipe.keys import fold_in as fold_in
from fnpipe.keys import key as key
from fnpipe.loader import Loader as Loader
from fnpipe.numerics import audit as audit
from fnpipe.ops.image import adjust_hsv as adjust_hsv
from fnpipe.ops.paint import split_by_owner as split_by_owner
from fnpipe.pipeline import Pipeline as Pipeline
from fnpipe.pipeline import pipe as pipe
from fnpipe.schedules import buckets as buckets
from fnpipe.schedules import schedule as schedule
from fnpipe.stages.color import brightness as brightness
from fnpipe.stages.color import contrast as contrast
from fnpipe.stages.color import grayscale as grayscale
from fnpipe.stages.color import hsv as hsv
from fnpipe.stages.color import pointwise as pointwise
from fnpipe.stages.color import posterize as posterize
from fnpipe.stages.color import solarize as solarize
from fnpipe.stages.color import sometimes as sometimes
from fnpipe.stages.color import uniform as uniform
from fnpipe.stages.erase import erase as erase
from fnpipe.stages.finish import finish as finish
from fnpipe.stages.finish import keep as keep
from fnpipe.stages.geometry import affine as affine
from fnpipe.stages.geometry import crop as crop
from fnpipe.stages.geometry import flip as flip
from fnpipe.stages.geometry import letterbox as letterbox
from fnpipe.stages.geometry import resize as resize
from fnpipe.stages.masks import masks as masks
from fnpipe.stages.mix import cutmix as cutmix
from fnpipe.stages.mix import mixup as mixup
from fnpipe.stages.mosaic import mosaic as mosaic
from fnpipe.stages.paste import copy_paste as copy_paste
from fnpipe.types import ArgumentError as ArgumentError
from fnpipe.types import Batch as Batch
from fnpipe.types import DataError as DataError
from fnpipe.types import LoaderError as LoaderError
from fnpipe.types import NumericsError as NumericsError
from fnpipe.types import Over as Over
from fnpipe.types import Plan as Plan
from fnpipe.types import Rings as Rings
from fnpipe.types import Sample as Sample
from fnpipe.types import Sources as Sources
from fnpipe.types import Targets as Targets


if typing.TYPE_CHECKING:
    from fnpipe import adapters as adapters
    from fnpipe import preview as preview
    from fnpipe import recipes as recipes
    from fnpipe import sheets as sheets
    from fnpipe import testing as testing

_LATER = ("adapters", "preview", "recipes", "sheets", "testing")
"""Parts that are imported where they are first asked for: ``fp.recipes.yolo(640)``."""


def __getattr__(name: str) -> typing.Any:
    if name in _LATER:
        return importlib.import_module(f"fnpipe.{name}")
    raise AttributeError(f"module 'fnpipe' has no attribute {name!r}")
