"""Five photos that come with scikit-image, with targets of every kind drawn by hand.

The photos are PNG, so that they decode to the same bytes everywhere: astronaut, chelsea (a cat),
coffee, motorcycle_left, camera. Nothing is downloaded.
"""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from fnpipe.data.coco import read_coco
from fnpipe.data.dataset import Dataset
from fnpipe.types import DataError


ANNOTATIONS = Path(__file__).with_name("annotations.json")


def photos() -> Path:
    """The folder of photos inside scikit-image. Raises DataError where it is not installed."""
    found = find_spec("skimage")
    if found is None or found.origin is None:
        raise DataError("the demo's photos come with scikit-image: pip install scikit-image")
    return Path(found.origin).parent / "data"


def load() -> Dataset:
    """Five photos of ten things: boxes, outlines, face points and oriented boxes, all at once.

    A file is read for one task; here the targets of three are laid side by side. Raises DataError
    where scikit-image or one of its photos is missing.
    """
    outlines, poses, oriented = (
        read_coco(ANNOTATIONS, photos(), task=task, unreadable="raise")
        for task in ("segment", "pose", "obb")
    )
    keypoints, quads = poses.targets.keypoints, oriented.targets.quads
    return replace(
        outlines,
        targets=outlines.targets.replace(keypoints=keypoints, quads=quads),
        keypoint_flip=poses.keypoint_flip,
    )
