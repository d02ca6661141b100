"""The pixel format of image processors and the labels of DETR's kin."""

import pytest
import torch

import fnpipe as fp
from fnpipe.adapters.huggingface import finish_of, to_detr
from fnpipe.types import ArgumentError


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PROCESSOR = {
    "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": list(MEAN), "image_std": list(STD),
}  # fmt: skip


def test_numbers_are_a_processors(batch: fp.Batch, data: fp.Dataset):
    """Against ``(code / 255 - mean) / std`` in float64: no more than 1e-6 apart."""
    images = fp.make_batch(data, fp.pipe(finish_of(PROCESSOR)), [0, 1, 2], seed=0).images
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (MEAN, STD))
    exact = (batch.images.double() / 255 - mean) / std
    assert float((images.double() - exact).abs().max()) < 1e-6


def test_without_normalising_it_is_0_to_1():
    assert finish_of({"do_normalize": False}) == fp.finish()


def test_another_rescaling_is_refused():
    with pytest.raises(
        ArgumentError, match=r"^processor: rescale_factor wanted 1/255, came 0.0078"
    ):
        finish_of(PROCESSOR | {"rescale_factor": 1 / 127.5})


def test_a_real_processor_gives_these_pixels(batch: fp.Batch, data: fp.Dataset):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("transformers.models.detr.image_processing_detr")
    processor = transformers.DetrImageProcessor(do_resize=False, do_pad=False)
    theirs = processor(list(batch.images), return_tensors="pt")["pixel_values"]
    ours = fp.make_batch(data, fp.pipe(finish_of(processor)), [0, 1, 2], seed=0).images
    assert float((ours - theirs).abs().max()) < 2e-6


def test_labels_are_a_dict_an_image(batch: fp.Batch):
    table = to_detr(batch)
    assert table["pixel_values"].shape == (3, 3, 24, 32)
    assert bool((table["pixel_mask"] == 1).all())
    assert [len(one["class_labels"]) for one in table["labels"]] == [2, 0, 1]
    last = table["labels"][2]
    assert last["boxes"][0].tolist() == pytest.approx([12 / 32, 10 / 24, 0.5, 0.5])
    assert last["area"].tolist() == [16 * 12]
    assert last["image_id"].tolist() == [2]
    assert last["size"].tolist() == [24, 32]
