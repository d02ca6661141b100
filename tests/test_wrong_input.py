"""What a user sees who passes the wrong thing, without a type checker and the tests' hooks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fnpipe.recipes import defaults


SET_UP = """
import json, sys
from pathlib import Path
import numpy as np, torch
from PIL import Image as pillow
from torchvision.transforms import v2
import fnpipe as fp
from fnpipe import preview, recipes
from fnpipe.adapters.foreign import albumentations, foreign, torchvision_v2
from fnpipe.adapters.huggingface import finish_of, to_detr
from fnpipe.adapters.torchvision import from_tv_tensors, to_detection, to_tv_tensors
from fnpipe.adapters.ultralytics import TrainLoader, to_ultralytics

folder = Path(sys.argv[1])
document = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "leaf"}]}
for i in range(4):
    pillow.new("RGB", (40, 30)).save(folder / f"{i}.png")
    document["images"].append({"id": i, "file_name": f"{i}.png", "width": 40, "height": 30})
    box = {"id": i, "image_id": i, "category_id": 1, "bbox": [5, 5, 20, 10], "iscrowd": 0}
    document["annotations"].append(box)
(folder / "a.json").write_text(json.dumps(document))
data = fp.read_coco(folder / "a.json", folder)
train = recipes.yolo(32)
key = fp.key(seed=0, epoch=0, sample=0)
later = fp.schedule({0: 3})

def load(data=data, train=train, batch_size=2, seed=0, **options):
    return fp.Loader(data, train, batch_size=batch_size, seed=seed, **options)

said = {}
for wrong in json.load(sys.stdin):
    try:
        eval(wrong)
        said[wrong] = "nothing"
    except Exception as error:
        said[wrong] = f"{type(error).__name__}: {error}"
json.dump(said, sys.stdout)
"""
NO_DATA = "ArgumentError: data wanted a data set, as fnpipe.read_coco gives one, came "
NO_PIPE = "ArgumentError: pipeline wanted fnpipe.pipe(...), or a schedule or buckets of them, came "
ONE = "TypeError: a data set is indexed by one photo, came "
OTHER = (
    "ArgumentError: sample has other targets or another size than data[0], whose are taken: "
    "sample.replace(data=None) stands alone"
)
PLANES = "ArgumentError: <lambda> wanted to return r, g, b, float32 planes of their shape, came "
HSV = (
    "ArgumentError: adjust_hsv wanted image Float32[Tensor, '*batch 3 h w'], turns Float32[Tensor, "
    "'*batch'], saturation Float32[Tensor, '*batch'], value Float32[Tensor, '*batch']; came "
)
MOVES = "ArgumentError: torchvision_v2: "
AUDIT = "ArgumentError: audit wanted a function and an example of its arguments, came "
NO_RING = "wants outlines, and data has none: its reader's task='segment' reads them"
NO_BATCH = "ArgumentError: batch wanted fnpipe.Batch, one of a loader's, came "
NO_DRAW = "wanted a distribution, as fnpipe.uniform(low, high) is one, came "
MASK = "of a mask take mask.nonzero().flatten()"
SIZE = "size wanted pixels, one number or (height, width), each >= 1, came "
WRONG = {
    "load(workers=-1)": "ArgumentError: workers wanted an integer >= 0, came -1",
    "load(workers='2')": "ArgumentError: workers wanted an integer >= 0, came '2'",
    "load(workers=1.5)": "ArgumentError: workers wanted an integer >= 0, came 1.5",
    "load(prefetch=0)": "ArgumentError: prefetch wanted an integer >= 1, came 0",
    "load(memory='1GB')": "ArgumentError: memory wanted an integer >= 1, came '1GB'",
    "load(timeout=-1)": "ArgumentError: timeout wanted seconds > 0, came -1",
    "load(timeout='x')": "ArgumentError: timeout wanted seconds > 0, came 'x'",
    "load(start_method='thread')": "ArgumentError: start_method wanted one of fork, spawn, "
    "forkserver, came 'thread'",
    "load(limit='a')": "ArgumentError: limit wanted an integer >= 1, came 'a'",
    "load(batch_size='2')": "ArgumentError: batch_size wanted an integer >= 1, came '2'",
    "load(rank='0', world_size=2)": "ArgumentError: rank, world_size wanted 0 <= rank < "
    "world_size, came '0', 2",
    "load(seed='a')": "ArgumentError: seed: wanted a 64-bit integer, came 'a'",
    "load(seed=1.5)": "ArgumentError: seed: wanted a 64-bit integer, came 1.5",
    "load(seed=None)": "ArgumentError: seed: wanted a 64-bit integer, came None",
    "load(device='gpu')": "ArgumentError: device wanted 'cpu' or 'cuda', came 'gpu'",
    "load(device=None)": "ArgumentError: device wanted 'cpu' or 'cuda', came None",
    "load(pool='ram')": "ArgumentError: pool wanted fnpipe.pool(data, kind), came 'ram'",
    "load(train='yolo')": NO_PIPE + "'yolo'",
    "load(train=fp.flip())": NO_PIPE + "flip()",
    "load(train=fp.schedule({0: None}))": NO_PIPE + "None",
    "load(data='train2017')": NO_DATA + "'train2017'",
    "load(data=[1, 2])": NO_DATA + "[1, 2]",
    "load(train=fp.pipe(train, fp.masks()))": "ArgumentError: masks() " + NO_RING,
    "load(train=recipes.yolo(32, copy_paste=0.5))": "ArgumentError: copy_paste(p=0.5) " + NO_RING,
    "fp.pool('x', 'ram')": NO_DATA + "'x'",
    "fp.pool(data, 'ram', workers=-1)": "ArgumentError: workers wanted an integer >= 0, came -1",
    "fp.bill(None)": NO_DATA + "None",
    "fp.prepare('x', longest=3)": NO_DATA + "'x'",
    "fp.prepare(data, longest='x')": "ArgumentError: longest wanted at least 1 pixel, came 'x'",
    "fp.make_batch('x', train, [0], seed=0)": NO_DATA + "'x'",
    "fp.make_batch(data, 'yolo', [0], seed=0)": "ArgumentError: pipeline wanted fnpipe.pipe(...), "
    "came 'yolo'",
    "fp.make_batch(data, later, [0], seed=0)": "ArgumentError: pipeline wanted fnpipe.pipe(...), "
    "came schedule({0: 3}); its .at(epoch) is one",
    "fp.make_batch(data, train, [0.5], seed=0)": "ArgumentError: ids wanted integers, came [0.5]",
    "fp.make_batch(data, train, 'a', seed=0)": "ArgumentError: ids wanted integers, came 'a'",
    "fp.make_batch(data, train, [], seed=0)": "ArgumentError: ids wanted samples in [0, 4), "
    "came []",
    "train(key, data)": "ArgumentError: a pipeline wanted (fnpipe.key(...), data[i]), came Key, "
    "Dataset",
    "train(0, data[0])": "ArgumentError: a pipeline wanted (fnpipe.key(...), data[i]), came int, "
    "Sample",
    "data[4]": "IndexError: photo 4: there are 4",
    "data[0:2]": ONE + "slice(0, 2, None); a part of it is data.subset(...)",
    "data['a']": ONE + "'a'; a part of it is data.subset(...)",
    "data.path(4)": "IndexError: photo 4: there are 4",
    "data.read(4)": "IndexError: photo 4: there are 4",
    "data.subset([0, 9])": "IndexError: photo 9: there are 4",
    "train(key, data[0].replace(image=data[0].image / 255))": "ArgumentError: sample.image wanted "
    "uint8[3, h, w], 8-bit codes, came float32[3, 30, 40]",
    "train(key, data[0].replace(image='a.png'))": "ArgumentError: sample.image wanted uint8[3, h, "
    "w], 8-bit codes, came str",
    "train(key, data[0].replace(targets=None))": "ArgumentError: sample.targets wanted "
    "fnpipe.Targets, came NoneType",
    "train(key, data[0].replace(targets=fp.Targets.empty()))": OTHER,
    "train(key, data[0].replace(image=data[0].image[:, 1:]))": OTHER,
    "fp.pipe(fp.uniform(0.0, 1.0))": "ArgumentError: pipe: wanted stages, came uniform(0.0, 1.0); "
    "a function of three planes becomes one by fnpipe.pointwise(fn).drawn(...)",
    "fp.pipe([fp.flip()])": "ArgumentError: pipe: wanted stages, came [flip()]; pipe(*stages) "
    "takes them one by one",
    "fp.pipe(fp.schedule({0: fp.flip()}), fp.masks())": "ArgumentError: pipe: wanted stages, came "
    "schedule({0: flip()}); given.map(lambda each: pipe(each, ...)) adds to each of its pipelines",
    "load(shuffle='no')": "ArgumentError: shuffle wanted True or False, came 'no'",
    "load(drop_last=None)": "ArgumentError: drop_last wanted True or False, came None",
    "load(ahead=0)": "ArgumentError: ahead wanted True or False, came 0",
    "load().set_epoch(-1)": "ArgumentError: epoch wanted an integer >= 0, came -1",
    "load().set_epoch('1')": "ArgumentError: epoch wanted an integer >= 0, came '1'",
    "load().load_state_dict(None)": "ArgumentError: state wanted what state_dict() gave, came None",
    "fp.finish(channels_last='false')": "ArgumentError: finish: channels_last wanted True or "
    "False, came 'false'",
    "fp.finish(mean=(123.7, 116.3, 103.5))": "ArgumentError: finish: mean wanted three numbers on "
    "the scale of [0, 1], came (123.7, 116.3, 103.5): codes divided by 255",
    "fp.solarize(0.5)": "ArgumentError: solarize: threshold wanted a code, 0 to 256, came 0.5; "
    "that share of 255 is 127.5",
    "recipes.yolo(32, close_mosaic=-1, epochs=5)": "ArgumentError: close_mosaic wanted an integer "
    ">= 0, came -1",
    "fp.pointwise(lambda r, g, b: (r, g)).drawn()": PLANES + "(float32[16], float32[16])",
    "fp.pointwise(lambda r, g, b: r).drawn()": PLANES + "float32[16]",
    "fp.pointwise(lambda r, g, b: (r, g, b.mean())).drawn()": PLANES + "(float32[16], float32[16], "
    "tensor(0.5000))",
    "fp.pointwise(lambda r, g, b: (r, g, b.byte())).drawn()": PLANES + "(float32[16], float32[16], "
    "uint8[16])",
    "fp.testing.prove(lambda r, g, b: r)": PLANES + "float32[16]",
    "fp.audit(3)": AUDIT + "3 and 0 of them",
    "fp.audit(train)": AUDIT + "pipe(mosaic(32), affine(translate=0.1, scale=0.5), hsv(hue=0 and "
    "0 of them",
    "fp.adjust_hsv(data[0].image, *torch.ones(3))": HSV
    + "uint8[3, 30, 40], "
    + "tensor(1.), tensor(1.), tensor(1.)",
    "fp.adjust_hsv(data[0].image.float(), 0.1, 1.0, 1.0)": HSV
    + "float32[3, 30, 40], 0.1, 1.0, 1.0",
    "fp.split_by_owner(None, torch.zeros(1), 1)": "ArgumentError: values wanted a tensor, came "
    "None: batch.masks is there where a pipeline has fnpipe.masks(...)",
    "from_tv_tensors(data[0].image, None)": "ArgumentError: targets wanted boxes, "
    "tv_tensors.BoundingBoxes, and labels, came None",
    "foreign(v2.GaussianBlur(5))": "ArgumentError: foreign wanted a function of an image, came one "
    "of torchvision: foreign(torchvision_v2(...))",
    "torchvision_v2(v2.Compose([v2.RandomHorizontalFlip()]))": MOVES + "RandomHorizontalFlip moves "
    "pixels, and targets would not follow; stages as fnpipe.flip, fnpipe.affine and fnpipe.crop "
    "move both",
    "torchvision_v2(3)": "ArgumentError: torchvision_v2 wanted a transform, came 3",
    "albumentations(None)": "ArgumentError: albumentations wanted a transform, came None",
    "preview.draw(data[0].image.float() + 255, data[0].targets)": "ArgumentError: image wanted "
    "8-bit codes or floats in [0, 1], came floats up to 255",
    "preview.draw(data[0].image, None)": "ArgumentError: targets wanted fnpipe.Targets, came None",
    "preview.draw(data[0].image, data[0].targets, zoom=0)": "ArgumentError: zoom wanted a number "
    "> 0, came 0",
    "preview.draw(data[0].image.permute(1, 2, 0), data[0].targets)": "ArgumentError: image wanted "
    "[3, h, w], came uint8[30, 40, 3]",
    "preview.save(data[0].image.float(), '/tmp/x.png')": "ArgumentError: image wanted uint8[3, h, "
    "w], came float32[3, 30, 40]",
    "preview.grid(data)": "ArgumentError: batch wanted fnpipe.Batch, one of a loader's, came "
    "Dataset",
    "fp.read_coco(None, folder)": "ArgumentError: annotations wanted a path, came None",
    "fp.read_yolo(None)": "ArgumentError: data wanted a path, came None",
    "fp.read_yolo('a.yaml', labels=3)": "ArgumentError: labels wanted a folder's name, came 3",
    "fp.read_coco(folder / 'a.json', folder, pixel_limit='1')": "ArgumentError: pixel_limit "
    "wanted an integer >= 1, came '1'",
    "fp.key(seed=0, epoch=0, sample=1.5)": "ArgumentError: sample: wanted integers in [0, "
    "4294967296), came 1.5; several are an int64 tensor",
    "fp.key(seed=0, epoch=0, sample=[1, 2])": "ArgumentError: sample: wanted integers in [0, "
    "4294967296), came [1, 2]; several are an int64 tensor",
    "fp.mosaic(1.5)": "ArgumentError: mosaic: " + SIZE + "1.5",
    "fp.mosaic(64, tiles=4.0)": "ArgumentError: mosaic: tiles wanted 4 or 9, came 4.0",
    "fp.erase(p=1.0, side=0.2)": "ArgumentError: erase: side wanted (least, most) shares of the "
    "frame, came 0.2",
    "fp.pointwise(3)": "ArgumentError: pointwise wanted a function of r, g, b and parameters, "
    "came 3",
    "fp.pointwise(lambda r, g, b, p: (r, g, b)).drawn(p=(0, 1))": "ArgumentError: <lambda>.drawn: "
    "p " + NO_DRAW + "(0, 1)",
    "fp.sometimes(0.5, 2.0, 1.0)": "ArgumentError: sometimes: then " + NO_DRAW + "2.0",
    "fp.letterbox(None)": "ArgumentError: letterbox: " + SIZE + "None",
    "train.explain(size=0)": "ArgumentError: explain: " + SIZE + "0",
    "fp.finish(torch.float32, mean=0.5)": "ArgumentError: finish: mean wanted three numbers, "
    "came 0.5",
    "fp.masks(stride='x')": "ArgumentError: masks: stride wanted an integer >= 1, came 'x'",
    "data.subset([0.5])": "ArgumentError: indices wanted integers, came [0.5]",
    "data.subset(torch.tensor([True, False, True, True]))": "ArgumentError: indices wanted "
    "integers, came torch.bool; " + MASK,
    "to_detection(load())": NO_BATCH + "Loader",
    "to_detr(None)": NO_BATCH + "NoneType",
    "to_tv_tensors(None)": NO_BATCH + "NoneType",
    "to_ultralytics([])": NO_BATCH + "list",
    "TrainLoader(load(), 2, task='boxes')": "ArgumentError: task wanted one of detect, segment, "
    "pose, obb, came 'boxes'",
    "TrainLoader([], 2)": "ArgumentError: loader wanted fnpipe.Loader, came []",
    "finish_of(3)": "ArgumentError: processor: wanted image_mean and image_std, came 3",
    "finish_of({'image_mean': [0, 0, 0]})": "ArgumentError: processor: wanted image_mean and "
    "image_std, came image_mean",
    "from_tv_tensors(data[0].image, {'boxes': torch.zeros(1, 4)})": "ArgumentError: targets wanted "
    "boxes, tv_tensors.BoundingBoxes, and labels, came {'boxes': 'Tensor'}",
    "foreign(3)": "ArgumentError: foreign wanted a function of an image, came 3",
    "fp.testing.prove(3)": "ArgumentError: prove wanted a function of r, g, b and parameters, "
    "came 3",
    "recipes.segment(32, degree=3)": "TypeError: segment() got an unexpected keyword argument "
    "'degree'",
    "recipes.from_dict('x')": "ArgumentError: wanted a table of a recipe or of stages, came 'x'",
    "recipes.from_dict({'recipe': ['yolo']})": "ArgumentError: no recipe ['yolo']; the nearest "
    "is 'yolo'",
    "recipes.from_dict({'recipe': 'yolo', 5: 3})": "ArgumentError: yolo: no parameter 5; there are "
    + ", ".join(["recipe", "imgsz", *defaults("yolo")]),
    "recipes.from_dict({'stages': 3})": "ArgumentError: stages wanted a list of tables, came 3",
    "recipes.from_dict({'stages': [3]})": "ArgumentError: a stage wanted the key 'stage', came 3",
    "recipes.from_toml(3)": "ArgumentError: from_toml wanted text or a pathlib.Path, came 3",
    "recipes.from_toml('a.toml')": "ArgumentError: recipe: not TOML: Expected '=' after a key in a "
    "key/value pair (at end of document); a file wants to be a pathlib.Path",
    "recipes.to_dict(later)": "ArgumentError: to_dict wanted a pipeline, came schedule({0: 3})",
    "recipes.to_toml(3)": "ArgumentError: to_dict wanted a pipeline, came 3",
}
RIGHT = (
    "fp.key(seed=np.int64(3), epoch=np.int64(1), sample=np.int64(2))",
    "load(seed=np.int64(3))",
    "load(seed=torch.tensor(3))",
    "fp.pipe(fp.letterbox(32))(key, data[0].replace(image=255 - data[0].image))",
    "fp.pipe(fp.letterbox(32))(key, data[0].replace(data=None, targets=fp.Targets.empty()))",
    "fp.make_batch(data, train, np.arange(2), seed=0)",
    "load(train=fp.pipe(fp.letterbox(32), fp.erase(p=1.0, side=[0.1, 0.2])))",
)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each of them raises, in an interpreter of its own."""
    command = [sys.executable, "-c", SET_UP, str(tmp_path_factory.mktemp("wrong"))]
    asked = json.dumps([*WRONG, *RIGHT])
    done = subprocess.run(
        command, input=asked, capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_message_says_what_was_wanted_and_what_came(said: dict[str, str], wrong: str):
    assert said[wrong] == WRONG[wrong]


@pytest.mark.parametrize("right", RIGHT)
def test_what_means_the_same_is_taken(said: dict[str, str], right: str):
    assert said[right] == "nothing"
