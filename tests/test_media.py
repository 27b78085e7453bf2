"""Every file a user may send, good and bad. The bad ones end in one line that says what to do.

Each test runs twice: decoding in a process of its own, which is the default, and in this one. Tests that change a limit
of this process decode here alone.
"""

from __future__ import annotations

import contextlib
import io
import struct
import sys
import threading
import types
import zlib
from pathlib import Path

import numpy as np
import pypdfium2
import pytest
import soundfile
from PIL import Image, ImageDraw
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen import canvas

from kvmm import decoding, media, pdf
from kvmm.decoding import images, limits, read
from kvmm.errors import KVMMError
from kvmm.media import load_audio, load_document, load_image, load_media, load_pdf, preview


def pytest_generate_tests(metafunc):
    both = ["here"] if "monkeypatch" in metafunc.fixturenames else ["own process", "here"]
    metafunc.parametrize("where", both, indirect=True)


@pytest.fixture(autouse=True)
def where(request):
    with decoding.in_process() if request.param == "here" else contextlib.nullcontext():
        yield request.param


def refused(call, *args, match: str, **kwargs) -> str:
    """The one-line message of the KVMMError that ``call`` must raise."""
    with pytest.raises(KVMMError, match=match) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 250
    assert message.endswith((".", '".')) and ":" in message, "says what is wrong, then what to do"
    return message


def encode(image: Image.Image, form: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def photo(size=(64, 48)) -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size, with almost no data behind it."""
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))  # noqa: E731
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    )


# -- images ----------------------------------------------------------------------------------------------------------


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


# -- PDF -------------------------------------------------------------------------------------------------------------


def make_pdf(pages: int = 1, size=(595, 842), blank: bool = False, **options) -> bytes:
    out = io.BytesIO()
    document = canvas.Canvas(out, pagesize=size, **options)
    for page in range(1, pages + 1):
        if not blank:
            document.drawString(size[0] / 10, size[1] / 2, f"This is page {page}")
        document.showPage()
    document.save()
    return out.getvalue()


def test_pages_of_a_pdf(tmp_path: Path):
    path = tmp_path / "report.png"  # the name does not matter
    path.write_bytes(make_pdf(3))
    items = load_media(path)
    assert [(item.kind, item.page) for item in items] == [("image", 1), ("image", 2), ("image", 3)]
    assert all(item.data.mode == "RGB" and item.data.size == (1240, 1755) for item in items)  # A4 at 150 dpi
    assert min(items[0].data.convert("L").getextrema()) < 100, "something is drawn"
    assert not np.array_equal(items[0].data, items[1].data)


def test_the_text_layer_stays_with_its_page(monkeypatch):
    pages = load_document(make_pdf(2))
    assert [(page.text, page.text_length) for page in pages] == [("This is page 1", 14), ("This is page 2", 14)]
    monkeypatch.setattr(pdf, "MAX_PAGE_TEXT", 7)
    (page,) = load_document(make_pdf())
    assert page.text == "This is" and page.text_length == 14
    assert load_media(encode(photo(), "PNG"))[0].text == ""


def test_the_text_layer_holds_nothing_that_a_terminal_obeys():
    class Layer:
        text = ""

        def get_textpage(self):
            return self

        def count_chars(self):
            return len(self.text)

        def get_text_range(self, start, count):
            return self.text[start : start + count]

    layer = Layer()
    layer.text = "one\x1b[31mred\x07  \r\nhy\ufffephen\ttwo\r\n\r\n"
    assert pdf._text(layer) == ("one[31mred\nhyphen\ttwo", len(layer.text))
    layer.text = " \x1b \n"
    assert pdf._text(layer) == ("", 0)


def test_a_preview_is_small_and_counts_all_pages():
    pictures, count = preview(make_pdf(9), 4, 300)
    assert len(pictures) == 4 and count == 9 and {max(one.size) for one in pictures} == {300}
    (picture,), count = preview(encode(photo(), "PNG"), 4, 20)
    assert max(picture.size) == 20 and count == 1
    refused(preview, b"%PDF-1.7\n" + b"garbage " * 50, 4, 300, match="is damaged")
    refused(preview, b"words", 4, 300, match="is a text file")


def test_a_poster_is_rendered_at_fewer_dpi():
    (page,) = load_pdf(make_pdf(size=(8000, 4000)))
    assert page.size == (4096, 2048)


def test_a_document_is_read_beside_previews_and_ends_at_stop(monkeypatch):
    read, stop, previews = pdf._read, threading.Event(), []

    def note(document, index, name):
        page = read(document, index, name)
        if index == 1:
            stop.set()
        return page

    def between(*args):
        thread = threading.Thread(target=lambda: previews.append(preview(make_pdf(2), 1, 100)[1]))
        thread.start()
        thread.join(10)
        return False

    stop.is_set = lambda asked=stop.is_set: between() or asked()  # asked between two pages: nobody holds PDFium then
    monkeypatch.setattr(pdf, "_read", note)
    with pytest.raises(KVMMError, match="stopped at page 3 of 5"):
        load_media(make_pdf(5), stop=stop)
    assert previews == [2, 2, 2]


def test_encrypted_pdf():
    locked = make_pdf(encrypt=StandardEncryption("user", "owner", strength=128))
    refused(load_pdf, locked, match="protected by a password")
    # A PDF that only restricts printing opens without a password.
    assert len(load_pdf(make_pdf(encrypt=StandardEncryption("", "owner", canPrint=0, strength=128)))) == 1


def test_pdfs_without_content():
    refused(load_pdf, make_pdf(2, blank=True), match="is empty: nothing is drawn on its 2 pages")
    document = pypdfium2.PdfDocument.new()
    out = io.BytesIO()
    document.save(out)
    refused(load_pdf, out.getvalue(), match="has no pages")


def test_damaged_pdf():
    data = make_pdf(4)
    refused(load_pdf, b"%PDF-1.7\n" + b"garbage " * 50, match="is damaged")
    refused(load_pdf, data[:200], match="is damaged")


def test_too_many_pages(monkeypatch):
    refused(load_pdf, make_pdf(media.MAX_PDF_PAGES + 1), match="has 65 pages and may have 64")
    refused(load_media, make_pdf(3), max_pages=2, match="has 3 pages and may have 2")
    assert len(load_pdf(make_pdf(3), max_pages=3)) == 3
    monkeypatch.setattr(read, "MAX_PDF_BYTES", 100)
    refused(load_pdf, make_pdf(), match="make it smaller")


def test_a_strip_of_a_page():
    refused(load_pdf, make_pdf(size=(14_000, 20)), match="too narrow a strip")


# -- audio -----------------------------------------------------------------------------------------------------------


def sine(rate: int, seconds: float = 1.0, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def wav(samples: np.ndarray, rate: int, form: str = "WAV", **options) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=form, **options)
    return out.getvalue()


def assert_is_the_sine(samples: np.ndarray, tolerance: float = 0.02):
    assert samples.dtype == np.float32 and samples.ndim == 1 and abs(samples.size - 16_000) <= 16
    inner = slice(1000, 15_000)  # resamplers ring at the ends
    assert np.abs(samples[inner] - sine(16_000)[inner]).max() < tolerance


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000])
def test_any_rate_becomes_16_kilohertz(rate: int):
    assert_is_the_sine(load_audio(wav(sine(rate), rate)))


@pytest.mark.parametrize("form, tolerance", [("FLAC", 0.02), ("OGG", 0.05), ("AIFF", 0.02), ("MP3", None)])
def test_audio_formats(tmp_path: Path, form: str, tolerance: float | None):
    path = tmp_path / "recording.bin"
    path.write_bytes(wav(sine(16_000), 16_000, form))
    (item,) = load_media(path)
    assert item.kind == "audio"
    if tolerance is not None:
        assert_is_the_sine(item.data, tolerance)
    else:  # MP3 shifts the samples
        assert abs(item.data.std() - sine(16_000).std()) < 0.02


def aac_in_mp4(samples: np.ndarray, rate: int) -> bytes:
    import av

    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        track = container.add_stream("aac", rate=rate)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="fltp", layout="mono")
        frame.rate = rate
        for packet in [*track.encode(frame), *track.encode(None)]:
            container.mux(packet)
    return out.getvalue()


def test_m4a_from_a_phone():
    samples = load_audio(aac_in_mp4(sine(44_100), 44_100))
    assert abs(samples.size - 16_000) < 2_000 and abs(samples[2000:14_000].std() - sine(16_000).std()) < 0.03


def test_stereo_becomes_mono():
    left, right = sine(16_000), sine(16_000, hertz=880)
    both = load_audio(wav(np.stack([left, right], axis=1), 16_000))
    assert np.abs(both - (left + right) / 2).max() < 1e-3


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.uint8, np.float64])
def test_arrays_of_any_type(kind):
    samples = sine(48_000)
    if kind is np.uint8:
        samples = (samples * 127 + 128).astype(kind)
    elif np.issubdtype(kind, np.integer):
        samples = (samples * np.iinfo(kind).max).astype(kind)
    assert_is_the_sine(load_audio((48_000, samples.astype(kind))))
    assert_is_the_sine(load_audio((48_000, np.stack([samples, samples], axis=1).astype(kind))))
    assert_is_the_sine(load_audio((48_000, np.stack([samples, samples], axis=0).astype(kind))))


def test_silence():
    refused(load_audio, wav(np.zeros(16_000, np.float32), 16_000), match="is silent: check the microphone")
    refused(load_audio, (16_000, np.zeros(16_000, np.int16)), match="is silent")
    assert load_audio((16_000, sine(16_000) * 0.01)).size == 16_000, "quiet is not silent"


def test_three_hours_are_refused_before_decoding(tmp_path: Path, monkeypatch):
    path = tmp_path / "meeting.flac"
    with soundfile.SoundFile(path, "w", 8_000, 1, format="FLAC") as file:
        block = np.zeros(8_000 * 600, np.int16)
        for _ in range(18):
            file.write(block)
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *a, **k: pytest.fail("it was decoded"))
    refused(load_audio, path, match="is 180 minutes long and may be 30")
    refused(load_media, path, match="is 180 minutes long")
    refused(load_audio, (8_000, np.ones(8_000 * 3 * 3600, np.int8)), match="is 180 minutes long")


def test_recordings_that_cannot_be_used():
    refused(load_audio, wav(sine(16_000, 0.01), 16_000), match="shorter than 0.1 seconds")
    refused(load_audio, (16_000, np.zeros(0, np.float32)), match="no samples")
    refused(load_audio, (16_000, np.full(16_000, np.nan, np.float32)), match="not numbers")
    refused(load_audio, (0, sine(16_000)), match="samples a second")
    refused(load_audio, (16_000, np.ones((16_000, 20), np.float32)), match="20 channels")
    refused(load_audio, (16_000, np.array(["a"] * 16_000)), match="give integer or float samples")


def test_damaged_recordings():
    for form in ("FLAC", "OGG"):
        data = bytearray(wav(np.random.default_rng(0).normal(0, 0.2, 32_000).astype(np.float32), 16_000, form))
        refused(load_audio, bytes(data[:120]), match="damaged|no samples|shorter")
    refused(load_audio, b"RIFF\x24\0\0\0WAVEfmt " + b"\0" * 8, match="damaged")
    refused(load_audio, aac_in_mp4(sine(44_100), 44_100)[:300], match="damaged")
    refused(load_audio, b"ID3" + bytes(500), match="damaged")


# -- video -----------------------------------------------------------------------------------------------------------


def mp4(frames: int = 8, form: str = "mp4") -> bytes:
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=form) as container:
        track = container.add_stream("mpeg4", rate=4)
        track.width, track.height, track.pix_fmt = 64, 64, "yuv420p"
        for index in range(frames):
            picture = np.full((64, 64, 3), 30 * index % 256, np.uint8)
            for packet in track.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in track.encode(None):
            container.mux(packet)
    return out.getvalue()


def test_video_is_recognised_and_names_what_it_needs(tmp_path: Path, monkeypatch):
    path = tmp_path / "clip.bin"
    path.write_bytes(mp4())
    (item,) = load_media(path)
    assert (item.kind, item.data) == ("video", str(path))
    refused(load_media, mp4(), match="save it and give its path")
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", None)  # as when torchvision is missing
    refused(media.load_video, path, match=r'pip install "kvmm\[video\]"')


@pytest.mark.parametrize("form", ["mp4", "matroska"])  # which says how many frames it has, and which does not
def test_a_video_of_too_many_pixels_is_refused_before_its_reader_sees_it(tmp_path: Path, monkeypatch, form):
    path = tmp_path / "clip.mp4"
    path.write_bytes(mp4(8, form))
    monkeypatch.setattr(limits, "VIDEO_PIXELS", 8 * 64 * 64)
    assert load_media(path)[0].kind == "video"
    monkeypatch.setattr(limits, "VIDEO_PIXELS", 8 * 64 * 64 - 1)
    refused(load_media, path, match=r"clip.mp4 has 8 frames or more, of 4,096 pixels each, and a video may have")


def test_a_damaged_video_is_refused_and_a_short_one_is_not(tmp_path: Path):
    path, whole = tmp_path / "clip.mkv", mp4(40, "matroska")
    path.write_bytes(whole[: len(whole) * 3 // 4])
    assert load_media(path)[0].kind == "video"
    start = whole.index(b"\x1f\x43\xb6\x75")  # the first cluster: the frames
    path.write_bytes(whole[:start])
    refused(load_media, path, match="damaged or cut off|no frames that can be decoded")


def test_video_goes_through_qwen_vl_utils(tmp_path: Path, monkeypatch):
    asked = []
    fake = types.SimpleNamespace(fetch_video=lambda request: asked.append(request) or "frames")
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", fake)
    assert media.load_video(tmp_path / "clip.mp4") == "frames"
    assert asked == [{"type": "video", "video": str(tmp_path / "clip.mp4")}]
    fake.fetch_video = lambda request: 1 / 0
    refused(media.load_video, tmp_path / "clip.mp4", match="cannot be decoded as a video")
