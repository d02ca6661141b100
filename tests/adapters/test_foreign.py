"""Code of others as a stage: seeded from the key, in the worker, and called what it is."""

import pickle
import random

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fnpipe as fp
from fnpipe.adapters.foreign import albumentations, foreign, seeded, torchvision_v2
from fnpipe.testing import assert_same_bits
from fnpipe.types import ArgumentError


def noise(image):
    """Adds noise from three global generators."""
    more = np.random.randint(0, 40, image.shape) + random.randint(0, 40)
    more = more + int(torch.randint(0, 40, ()))
    return np.clip(image + more, 0, 255).astype(np.uint8)


def halve(image):
    return image // 2


def crop(image):
    return image[:-1]


def invert(image):
    return 255 - image


NOISY = fp.pipe(fp.letterbox(32), foreign(noise), fp.flip(horizontal=0.5))


def test_it_sees_what_the_model_would_see(data: fp.Dataset):
    """After geometry and colour, before dtype: halved codes, then scaled."""
    plain = fp.pipe(fp.resize(16), fp.grayscale())
    before = fp.make_batch(data, plain, [0, 2], seed=3).images
    after = fp.make_batch(data, fp.pipe(plain, foreign(halve), fp.finish()), [0, 2], seed=3)
    assert_same_bits((before // 2).float() * (1 / 255), after.images)
    assert_same_bits(fp.make_batch(data, plain, [0, 2], seed=3).targets, after.targets)


def test_two_in_their_order(data: fp.Dataset):
    plain = fp.make_batch(data, fp.pipe(), [0], seed=0).images
    both = fp.pipe(foreign(invert), foreign(halve, name="half"))
    assert_same_bits((255 - plain) // 2, fp.make_batch(data, both, [0], seed=0).images)


def test_a_sample_depends_on_its_address_alone(data: fp.Dataset):
    """Batch, order and what was drawn before do not matter; seed, epoch and sample do."""
    whole = fp.make_batch(data, NOISY, [0, 1, 2], seed=0).images
    np.random.seed(7)
    assert_same_bits(whole[2:], fp.make_batch(data, NOISY, [2], seed=0).images)
    for seed, epoch in ((1, 0), (0, 1)):
        other = fp.make_batch(data, NOISY, [0, 1, 2], seed=seed, epoch=epoch)
        assert not torch.equal(whole, other.images)
    by_hand, _ = NOISY(fp.key(seed=0, epoch=0, sample=2), data[2])
    assert_same_bits(whole[2], by_hand)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_matter(data: fp.Dataset, workers: int):
    def images(**options):
        loader = fp.Loader(data, NOISY, batch_size=2, seed=0, worker_backend="eager", **options)
        return [batch.images for batch in loader]

    assert_same_bits(images(), images(workers=workers))


def test_global_generators_stay_as_they_were():
    def three() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), float(torch.rand(()))

    def start() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    start()
    expected = three()
    start()
    with seeded(5):
        inside = three()
    assert three() == expected != inside
    with seeded(5):
        assert three() == inside


def test_audit_says_what_it_is():
    stage = foreign(noise)
    (finding,) = fp.audit(stage)
    assert finding.reason == "code of others, which promises no bytes"
    assert "code of others, not portable" in NOISY.explain()


@pytest.mark.parametrize("cut", ["warped", "source", "plan"])
def test_a_cut_that_leaves_pixels_to_the_device_is_refused(data: fp.Dataset, cut: str):
    with pytest.raises(ArgumentError, match=rf"^cut '{cut}': foreign\(.*\) runs in workers alone"):
        fp.Loader(data, NOISY, batch_size=2, seed=0, cut=cut)


def test_an_image_of_another_shape_is_refused(data: fp.Dataset):
    with pytest.raises(
        ArgumentError, match=r"wanted uint8 \(24, 32, 3\), came uint8 \(23, 32, 3\)"
    ):
        fp.make_batch(data, fp.pipe(foreign(crop)), [0], seed=0)


def test_a_stage_is_a_value():
    stage = foreign(noise, name="noise")
    assert pickle.loads(pickle.dumps(stage)) == stage
    assert fp.pipe(stage) == fp.pipe(foreign(noise, name="noise"))


def test_a_torchvision_transform(data: fp.Dataset):
    jitter = foreign(torchvision_v2(v2.ColorJitter(brightness=0.5, hue=0.1)))
    images = [fp.make_batch(data, fp.pipe(jitter), [0], seed=s).images for s in (0, 0, 1)]
    assert_same_bits(images[0], images[1])
    assert not torch.equal(images[0], images[2])


def test_an_albumentations_transform(data: fp.Dataset, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    library = pytest.importorskip("albumentations")
    compose = library.Compose([library.RandomBrightnessContrast(p=1.0), library.GaussNoise(p=1.0)])
    images = [
        fp.make_batch(data, fp.pipe(foreign(albumentations(compose))), [0], seed=s).images
        for s in (0, 0, 1)
    ]
    assert_same_bits(images[0], images[1])
    assert not torch.equal(images[0], images[2])


def test_an_albumentations_transform_is_told_how_it_becomes_a_function():
    library = pytest.importorskip("albumentations")
    with pytest.raises(ArgumentError, match=r"one of albumentations: foreign\(albumentations\("):
        foreign(library.Blur(p=1.0))


@pytest.mark.parametrize("moving", ["HorizontalFlip", "Transpose"])
def test_an_albumentations_transform_that_moves_pixels_is_refused(moving: str):
    library = pytest.importorskip("albumentations")
    with pytest.raises(ArgumentError, match=f"albumentations: {moving} moves pixels"):
        albumentations(library.Compose([library.Blur(), getattr(library, moving)()]))
    albumentations(library.Compose([library.Blur(), library.CoarseDropout()]))
