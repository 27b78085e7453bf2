"""Every picture a user may send, good and bad. The bad ones end in one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from kvmm.decoding import images
from kvmm.media import load_audio, load_image, load_media, load_pdf
from tests.media.files import encode, make_pdf, photo, png_header, refused


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_image_formats_by_content_under_any_name(tmp_path: Path, form: str):
    path = tmp_path / "anything.dat"
    path.write_bytes(encode(photo(), form))
    (item,) = load_media(path)
    assert (item.kind, item.name, item.page) == ("image", "anything.dat", None)
    assert item.data.mode == "RGB" and item.data.size == (64, 48)


def test_image_from_bytes_and_from_pillow():
    image = photo()
    assert np.array_equal(load_image(encode(image, "PNG")), image)
    assert np.array_equal(load_image(image), image)


def test_exif_rotation_is_applied():
    image = Image.new("RGB", (40, 20), "white")
    ImageDraw.Draw(image).rectangle([0, 0, 9, 19], fill="red")  # red on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate 90 degrees clockwise
    upright = load_image(encode(image, "PNG", exif=exif))
    assert upright.size == (20, 40)
    assert upright.getpixel((10, 2)) == (255, 0, 0) and upright.getpixel((10, 30)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_becomes_white(mode: str):
    image = Image.new("RGBA", (30, 30), (0, 0, 0, 0))
    ImageDraw.Draw(image).rectangle([10, 10, 19, 19], fill=(0, 0, 0, 255))
    image = image.convert(mode)
    out = load_image(encode(image, "PNG"))
    assert out.getpixel((2, 2)) == (255, 255, 255) and out.getpixel((15, 15)) == (0, 0, 0)


def test_first_frame_of_an_animation():
    frames = [Image.new("RGB", (20, 20), color) for color in ("red", "blue")]
    for form in ("GIF", "PNG", "WEBP", "TIFF"):
        lossless = {"lossless": True} if form == "WEBP" else {}
        out = load_image(encode(frames[0], form, save_all=True, append_images=frames[1:], **lossless))
        assert out.getpixel((5, 5)) == (255, 0, 0), form


@pytest.mark.parametrize(
    "mode, value, grey", [("1", 1, 255), ("L", 99, 99), ("I;16", 99 * 257, 99), ("CMYK", None, 255)]
)
def test_other_pixel_modes(mode: str, value, grey: int):
    image = Image.new(mode, (20, 20), value if value is not None else (0, 0, 0, 0))
    out = load_image(encode(image, "TIFF"))
    assert out.mode == "RGB" and out.getpixel((3, 3)) == (grey,) * 3


def test_truncated_images():
    for form in ("PNG", "JPEG", "GIF", "WEBP", "TIFF"):
        data = encode(photo((200, 200)), form)
        refused(load_image, data[: len(data) // 2], match="damaged or cut off")
    refused(load_media, encode(photo(), "PNG")[:20], match="damaged or cut off")


def test_limits_of_images(monkeypatch):
    refused(load_image, png_header(40_000, 300), match="40000 x 300 pixels and a side may have 20000")
    refused(load_image, png_header(19_000, 19_000), match="unpacks to more than|may have 100,000,000")
    refused(load_image, png_header(12_000, 12_000), match="may have 100,000,000")
    refused(load_image, png_header(10_000, 20), match="too narrow a strip")
    refused(load_image, Image.new("L", (10_000, 20)), match="too narrow a strip")
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", 1000)
    refused(load_image, encode(photo(), "BMP"), match="make it smaller")


def test_large_but_allowed_image_warns_nobody(recwarn):
    data = encode(Image.new("1", (9_600, 9_600), 1), "PNG")  # above Pillow's own warning threshold
    assert load_image(data, max_pixels=None).size == (9_600, 9_600)
    assert load_image(data).size == (4_096, 4_096) and load_image(data, max_pixels=10**6).size == (1_000, 1_000)
    (item,) = load_media(data)
    assert item.data.size == (4_096, 4_096) and item.data.getpixel((9, 9)) == (255, 255, 255)
    assert not [w for w in recwarn if issubclass(w.category, Image.DecompressionBombWarning)]


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "CMYK", "1", "I;16", "F"])
@pytest.mark.parametrize("max_pixels", [None, 50_000])
def test_strips_make_the_whole_image(monkeypatch, mode: str, max_pixels: int | None):
    rng = np.random.default_rng(0)
    if mode in ("I;16", "F"):
        image = Image.fromarray(rng.integers(0, 65536, (701, 433), dtype=np.uint16)).convert(mode)
    else:
        image = Image.fromarray(rng.integers(0, 256, (701, 433, 4), dtype=np.uint8)).convert(mode)
    whole = images._converter(image)(image).convert("RGB")
    monkeypatch.setattr(images, "_STRIP_PIXELS", 20_000)  # 46 rows
    found = load_image(image, max_pixels=max_pixels)
    assert found.size == ((433, 701) if max_pixels is None else (175, 284))
    expected = np.asarray(whole.resize(found.size, Image.Resampling.LANCZOS), np.int16)
    assert np.abs(np.asarray(found, np.int16) - expected).max() <= (0 if max_pixels is None else 1)


def test_an_image_of_the_caller_stays_as_it_is(tmp_path: Path):
    photo((640, 480)).save(tmp_path / "photo.jpg")
    frames = [Image.new("RGB", (40, 30), color) for color in ("red", "blue")]
    frames[0].save(tmp_path / "two.gif", save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / "photo.jpg") as image, Image.open(tmp_path / "photo.jpg") as untouched:
        assert load_image(image, max_pixels=10_000).size == (115, 86)
        assert image.size == (640, 480) and np.array_equal(image, untouched)
        # a file of ours is decoded at a smaller size, which costs a little sharpness and a fraction of the time
        assert load_image(tmp_path / "photo.jpg", max_pixels=10_000).size == (115, 86)
    with Image.open(tmp_path / "two.gif") as image:
        image.seek(1)
        assert load_image(image).getpixel((1, 1)) == (255, 0, 0), "the first frame"
        assert image.tell() == 1 and image.convert("RGB").getpixel((1, 1))[2] > 250


def test_a_text_file_named_png(tmp_path: Path):
    path = tmp_path / "picture.png"
    path.write_text("This is no picture.\n")
    refused(load_image, path, match=r"picture\.png is a text file, not an image")
    refused(load_media, path, match=r"picture\.png is a text file")


def test_other_kinds_where_an_image_is_wanted(tmp_path: Path):
    path = tmp_path / "invoice.png"
    path.write_bytes(make_pdf())
    refused(load_image, path, match="is a PDF, not an image")
    refused(load_pdf, encode(photo(), "PNG"), match="is an image, not a PDF")
    refused(load_audio, encode(photo(), "PNG"), match="is an image, not a recording")
    refused(load_media, bytes(range(256)) * 10, match="unknown format")


def test_files_that_cannot_be_read(tmp_path: Path):
    (tmp_path / "empty.png").touch()
    for load in (load_image, load_pdf, load_audio, load_media):
        refused(load, tmp_path / "missing.png", match="There is no file")
        refused(load, tmp_path, match="is a folder")
        refused(load, tmp_path / "empty.png", match="empty file")
        refused(load, b"", match="empty file")
        refused(load, "bad\0name.png", match="cannot be opened")
