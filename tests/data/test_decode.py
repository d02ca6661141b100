"""Every odd image file there is, and the rows of real failures that concern photos."""

import csv
import hashlib
import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps, features

from fnpipe.data.coco import read_coco
from fnpipe.data.decode import read_image, read_packed, scan_image
from fnpipe.ops.warp import pack, unpack
from fnpipe.types import DataError


BUILD_DEPENDENT = {"pillow/hopper_webp.tif"}  # libtiff with or without WebP


def pixels(path: Path) -> list[list[int]]:
    """Pixels in rows, RGB."""
    return read_image(path).permute(1, 2, 0).reshape(-1, 3).tolist()


def odd_files(shared_data: Path) -> list[dict[str, str]]:
    with open(shared_data / "odd" / "decode_report.tsv", newline="") as file:
        rows = [*csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    there = [row for row in rows if (shared_data / "odd" / row["file"]).is_file()]
    known = [row for row in there if row["file"] not in BUILD_DEPENDENT]
    return known if features.check("avif") else [r for r in known if ".avif" not in r["file"]]


def upright(row: dict[str, str]) -> tuple[int, int]:
    width, height = map(int, row["pil_size"].strip("()").split(","))
    return (height, width) if row["exif_orientation"] in "5678" else (width, height)


def test_every_odd_file_is_upright_or_a_named_error(
    shared_data: Path, capfd: pytest.CaptureFixture[str]
):
    """Pillow's verdict, file by file, from the table beside the files; nothing goes to stderr."""
    rows = odd_files(shared_data)
    for row in rows:
        path = shared_data / "odd" / row["file"]
        if row["pil_decode"] == "ok":
            _, height, width = read_image(path).shape
            assert (width, height) == upright(row) == scan_image(path)
        else:
            with pytest.raises(DataError) as error:
                read_image(path)
            assert str(error.value).startswith(f"{path}: ")
            assert len(str(error.value)) > len(f"{path}: ")
    assert sum(row["pil_decode"] == "ok" for row in rows) > 240
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow's, read by its own means
def test_every_odd_file_has_the_pixels_that_pillow_shows(shared_data: Path):
    compared = 0
    for row in odd_files(shared_data):
        path = shared_data / "odd" / row["file"]
        if row["pil_decode"] != "ok" or row["pil_mode"].startswith("I"):
            continue
        with Image.open(path) as photo:
            photo.load()
            shown = ImageOps.exif_transpose(photo)
            shown.info.pop("transparency", None)
            assert np.array_equal(read_image(path).permute(1, 2, 0), np.array(shown.convert("RGB")))
        compared += 1
    assert compared > 230


def test_every_odd_file_packs_as_it_reads(shared_data: Path):
    """Decoding straight into place gives the same words, or the same error; so does memory."""
    for row in odd_files(shared_data):
        path = shared_data / "odd" / row["file"]
        for contents in (None, path.read_bytes()):
            try:
                image = read_image(path)
            except DataError as error:
                with pytest.raises(DataError, match=re.escape(str(error))):
                    read_packed(path, contents=contents)
            else:
                words, (width, height) = read_packed(path, contents=contents)
                assert (height, width) == image.shape[1:]
                assert torch.equal(words, pack(image)), path


def test_a_jpeg_in_colour_is_decoded_into_its_place(shared_data: Path, monkeypatch):
    """Without a copy: what Pillow decodes into is what comes out."""
    path = shared_data / "coco" / "train2017" / "000000079841.jpg"
    image = read_image(path)
    monkeypatch.delattr("fnpipe.data.decode.pack")
    words, (width, height) = read_packed(path)
    assert torch.equal(unpack(words, width, height), image)
    with pytest.raises(DataError, match="name 'pack' is not defined"):
        read_packed(shared_data / "odd" / "pillow" / "hopper_orientation_6.jpg")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_orientation_is_undone_in_every_format(tmp_path: Path, suffix: str, orientation: int):
    """A photo of 48 x 16 whose upper left quarter is white, when seen upright."""
    seen = np.zeros((16, 48, 3), dtype=np.uint8)
    seen[:8, :24] = 255
    stored = {
        1: seen,
        2: seen[:, ::-1],
        3: seen[::-1, ::-1],
        4: seen[::-1],
        5: seen.transpose(1, 0, 2),
        6: seen.transpose(1, 0, 2)[::-1],
        7: seen.transpose(1, 0, 2)[::-1, ::-1],
        8: seen.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"webp": {"lossless": True}, "jpg": {"quality": 100}}.get(suffix, {})
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif, **lossless)
    assert scan_image(path) == (48, 16)
    assert torch.equal(read_image(path), torch.from_numpy(seen).permute(2, 0, 1))


def test_orientation_behind_the_pixels_of_a_png_is_found(tmp_path: Path):
    path = tmp_path / "a.png"
    Image.new("RGB", (6, 4)).save(path)
    exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    chunk = b"eXIf" + exif
    data = path.read_bytes()
    late = struct.pack(">I", len(exif)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    path.write_bytes(data[:-12] + late + data[-12:])
    assert scan_image(path) == (4, 6)
    assert read_image(path).shape == (3, 6, 4)


def test_broken_exif_is_upright_and_silent(tmp_path: Path):
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0"  # 65,535 entries, half of one there
    Image.new("RGB", (6, 4)).save(tmp_path / "a.jpg", exif=exif)
    assert scan_image(tmp_path / "a.jpg") == (6, 4)


def test_pixels_lie_interleaved(tmp_path: Path):
    Image.new("RGB", (6, 4)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").permute(1, 2, 0).is_contiguous()


def test_transparency_is_dropped_and_a_palette_looked_up(tmp_path: Path):
    clear = Image.new("RGBA", (1, 1), (10, 20, 30, 0))
    clear.save(tmp_path / "a.png")
    palette = Image.new("P", (2, 1))
    palette.putpalette([1, 2, 3, 4, 5, 6])
    palette.putdata([0, 1])
    palette.save(tmp_path / "p.png", transparency=b"\x00\x80")
    Image.new("LA", (1, 1), (7, 0)).save(tmp_path / "la.png")
    assert pixels(tmp_path / "a.png") == [[10, 20, 30]]
    assert pixels(tmp_path / "p.png") == [[1, 2, 3], [4, 5, 6]]
    assert pixels(tmp_path / "la.png") == [[7, 7, 7]]


def test_32_bit_samples_are_refused(tmp_path: Path):
    Image.new("F", (2, 2)).save(tmp_path / "a.tif")
    for read in (read_image, read_packed, scan_image):
        with pytest.raises(DataError, match=r"a\.tif: samples are 32 bits deep \(mode F\); wanted"):
            read(tmp_path / "a.tif")


def test_twelve_bit_samples_lose_their_low_four(shared_data: Path):
    path = shared_data / "odd" / "pillow" / "12bit.cropped.tif"
    with Image.open(path) as photo:
        high = np.array(photo) >> 4
    assert np.array_equal(read_image(path)[0], high)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"none\.jpg: No such file or directory"):
        read_image(tmp_path / "none.jpg")
    with pytest.raises(DataError, match="Is a directory"):
        scan_image(tmp_path)


def test_case_1_orientation_turns_size_pixels_and_labels_alike(tmp_path: Path, load_yolo):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "images").mkdir()
    Image.new("RGB", (100, 40)).save(tmp_path / "images" / "0.jpg", exif=exif)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "0.txt").write_text("0 0.5 0.25 0.2 0.1")
    data = load_yolo()
    assert data.sizes.tolist() == [[40, 100]]
    assert data[0].image.shape == (3, 100, 40)
    assert data.targets.boxes.tolist() == [[16, 20, 24, 30]]


def test_case_4_cmyk_of_adobe_is_red(tmp_path: Path):
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    red = torch.tensor([255, 0, 0]).view(3, 1, 1)
    assert (read_image(tmp_path / "a.jpg").int() - red).abs().max() <= 2


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_case_5_sixteen_bits_by_the_high_byte(tmp_path: Path, suffix: str):
    deep = np.array([[0, 255, 256, 32768, 65535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / f"a.{suffix}")
    assert read_image(tmp_path / f"a.{suffix}").tolist() == [[[0, 0, 1, 128, 255]]] * 3


def test_case_5_sixteen_bits_of_a_pgm(tmp_path: Path):
    samples = struct.pack(">5H", 0, 255, 256, 32768, 65535)
    (tmp_path / "a.pgm").write_bytes(b"P5 5 1 65535\n" + samples)
    assert read_image(tmp_path / "a.pgm")[1].tolist() == [[0, 0, 1, 128, 255]]


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_case_7_a_truncated_photo_is_found_at_scan(
    tmp_path: Path, save_photo: Callable[..., Path], suffix: str, capfd: pytest.CaptureFixture[str]
):
    whole = save_photo(tmp_path / f"whole.{suffix}", 256, 256)
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 6 // 10])
    assert scan_image(whole) == (256, 256)
    for read in (scan_image, read_image):
        with pytest.raises(DataError, match=rf"cut\.{suffix}: .*truncated"):
            read(cut)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("format", ["BMP", "GIF", "TIFF"])
def test_case_7_other_formats_cut_short_are_found_at_scan_too(tmp_path: Path, format: str):
    path = tmp_path / "a"
    Image.effect_noise((40, 30), 90).save(path, format=format)
    assert scan_image(path) == (40, 30)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="image file is truncated"):
        scan_image(path)


def test_case_7_a_gif_cut_behind_a_byte_like_its_end_is_found_at_scan(tmp_path: Path):
    """Its last byte is a semicolon, as one in 256 of its pixels' bytes is."""
    path = tmp_path / "a.gif"
    noise = np.random.default_rng(0).integers(0, 256, (60, 80), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b";", 0, -200) + 1])
    with pytest.raises(DataError, match="image file is truncated"):
        scan_image(path)


def test_case_7_bytes_behind_the_end_are_no_harm(tmp_path: Path, save_photo: Callable[..., Path]):
    path = save_photo(tmp_path / "a.jpg", 16, 16)
    path.write_bytes(path.read_bytes() + bytes(1000))
    assert scan_image(path) == (16, 16)


def test_case_7_a_jpeg_with_wrong_bits_is_silent(
    shared_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """libjpeg guesses what was there; it must not tell stderr, once an epoch."""
    data = bytearray((shared_data / "coco/train2017/000000079841.jpg").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8] = bytes(8)
    (tmp_path / "a.jpg").write_bytes(data)
    read_image(tmp_path / "a.jpg")
    assert capfd.readouterr().err == ""


def test_case_9_reading_changes_no_file(tmp_path: Path, shared_data: Path, load_coco):
    folder = tmp_path / "photos"
    folder.mkdir()
    names = ["hopper_orientation_6.jpg", "truncated_jpeg.jpg", "hopper_bad_exif.jpg", "hopper.jpg"]
    for name in names:
        shutil.copy(shared_data / "odd" / "pillow" / name, folder)
    with open(folder / "hopper.jpg", "ab") as file:
        file.write(b"trailing")
    images = [{"id": i, "file_name": f"photos/{name}"} for i, name in enumerate(names)]

    def state() -> dict[str, tuple[str, int]]:
        files = [path for path in sorted(folder.iterdir())]
        return {
            path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
            for path in files
        }

    before = state()
    data = load_coco(images=images)
    for _ in range(2):
        for sample in (data[i] for i in range(len(data))):
            assert sample.image.dtype == torch.uint8
    assert len(data) == 3
    assert state() == before


def test_case_10_an_empty_file_is_reported_and_no_neighbour_read_twice(
    tmp_path: Path, save_photo: Callable[..., Path], load_coco
):
    names = ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    for name in names:
        save_photo(tmp_path / name, 8, 8)
    (tmp_path / "1.jpg").write_bytes(b"")
    images = [{"id": i, "file_name": name} for i, name in enumerate(names)]
    data = load_coco(images=images)
    assert [data.path(i).name for i in range(len(data))] == ["0.jpg", "2.jpg", "3.jpg"]
    assert data.report.counts == {"photo dropped": 1}
    assert data.report.lines == (f"photo dropped: {tmp_path / '1.jpg'}: the file is empty",)
    with pytest.raises(DataError, match=r"1\.jpg: the file is empty"):
        load_coco(images=images, unreadable="raise")


def test_case_11_pillows_limit_is_not_ours(
    tmp_path: Path, save_photo: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    path = save_photo(tmp_path / "a.png", 64, 64)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert read_image(path).shape == (3, 64, 64)
    with pytest.raises(
        DataError, match=r"a\.png: 64 x 64 is more than pixel_limit=4000 pixels; pass a larger"
    ):
        scan_image(path, pixel_limit=4000)
    save_photo(tmp_path / "a.tif", 64, 64)
    with pytest.raises(
        DataError, match=r"limit of 2000 pixels.* Raise PIL\.Image\.MAX_IMAGE_PIXELS"
    ):
        read_image(tmp_path / "a.tif")


def test_case_13_names_are_bytes(tmp_path: Path, save_photo: Callable[..., Path], load_coco):
    composed, decomposed = "写真 é.jpg", "写真 e\u0301.jpg"
    folder = "données/집 1"
    save_photo(tmp_path / folder / composed, 8, 8)
    save_photo(tmp_path / folder / decomposed, 9, 9)
    images = [
        {"id": i, "file_name": f"{folder}/{name}"} for i, name in enumerate((composed, decomposed))
    ]
    data = load_coco(images=images)
    assert data.sizes.tolist() == [[8, 8], [9, 9]]
    assert [os.fsencode(data.path(i).name) for i in (0, 1)] == [
        os.fsencode(name) for name in (composed, decomposed)
    ]
    assert data[1].image.shape == (3, 9, 9)


def test_case_16_contents_decide_not_the_suffix(tmp_path: Path, shared_data: Path):
    odd = shared_data / "odd" / "pillow"
    progressive = tmp_path / "progressive.JPG"
    with Image.open(odd / "hopper.png") as photo:
        photo.save(progressive, format="JPEG", progressive=True)
        buffer = BytesIO()
        photo.save(buffer, format="JPEG", progressive=True)
    for source, name in (
        (odd / "frozenpond.mpo", "a.JPG"),
        (odd / "hopper.png", "x.jpg"),
        (odd / "hopper.jpg", "y.png"),
        (odd / "iss634.webp", "animated.jpg"),
        (progressive, "z.bmp"),
    ):
        shutil.copy(source, tmp_path / name)
        assert torch.equal(read_image(tmp_path / name), read_image(source))
    with Image.open(odd / "iss634.webp") as photo:
        first = np.array(photo.convert("RGB"))
    assert np.array_equal(read_image(tmp_path / "animated.jpg").permute(1, 2, 0), first)


def test_a_folder_of_photos_that_cannot_be_read_is_an_error(tmp_path: Path, load_coco):
    with pytest.raises(DataError, match="none of 1 photos can be read; photo dropped: "):
        load_coco(images=[{"id": 1, "file_name": "none.jpg"}])


def test_scan_decode_looks_at_every_pixel(tmp_path: Path, shared_data: Path):
    """Only decoding shows that this file, whole to its last byte, is broken."""
    images = [{"id": i, "file_name": f"{name}0g01.png"} for i, name in enumerate(("xdtn", "basn"))]
    annotations = tmp_path / "a.json"
    annotations.write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    folder = shared_data / "odd" / "png_pngsuite"
    assert len(read_coco(annotations, folder)) == 2
    data = read_coco(annotations, folder, scan="decode")
    assert data.report.lines == (
        f"photo dropped: {folder / 'xdtn0g01.png'}: cannot load this image",
    )
