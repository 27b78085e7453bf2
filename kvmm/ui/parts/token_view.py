"""One token of a prompt, shown where it comes from: its patch on the page, its word, its second of the recording."""

from __future__ import annotations

import base64
import html
import io
import wave

import numpy as np
from PIL import Image

from kvmm.analysis import NormReport
from kvmm.analysis.norms.token_location import (
    audio_moment,
    image_index,
    image_patch,
    marked_page,
    patch_crop,
    text_word,
    video_patch,
)
from kvmm.analysis.plots import MODALITY_COLORS
from kvmm.errors import KVMMError
from kvmm.media import SAMPLE_RATE, Media, load_video
from kvmm.modality import MODALITY_NAMES
from kvmm.ui.chat.session import Session

_AROUND = 0.5  # seconds played before and after an audio token


def token_html(session: Session, report: NormReport, kind: str, row: int, position: int) -> str:
    """Token ``position``: its modality, its location in the input, and its norm in row ``row``.

    Raises:
        KVMMError: there is no such token.
    """
    count = report.modality.size
    if not 0 <= position < count:
        raise KVMMError(f"There is no token {position}: this prompt has {count}, counted from 0.")
    name = MODALITY_NAMES[report.modality[position]]
    norms = report.by_token(kind)[row]
    norm, median = float(norms[position]), float(np.median(norms))
    head = (
        f'<div class="hint" id="token-line"><span class="dot" style="background:{MODALITY_COLORS[name]}"></span>'
        f"<b>Token {position}</b>, {name}. {kind.capitalize()} norm in layer {report.layers[row]}: <b>{norm:.2f}</b>, "
        f"{norm / max(median, 1e-12):.2f}× the median.</div>"
    )
    where = {"text": _text, "image": _image, "video": _video, "audio": _audio}.get(name)
    return f'<div class="token-view">{head}{where(session, report, position) if where else ""}</div>'


def _text(session: Session, report: NormReport, position: int) -> str:
    if not report.tokens:
        return ""
    word = text_word(report.modality, position, report.tokens)
    return f'<p class="context">{_plain(word.before)}<mark>{_plain(word.word)}</mark>{_plain(word.after)}</p>'


def _plain(text: str) -> str:
    return html.escape(text).replace("\n", "⏎ ")


def _image(session: Session, report: NormReport, position: int) -> str:
    images = _media(session, "image")
    grids = session.report("grids", lambda: _grids(session, "image_grid_thw"))
    if grids is None:
        index, box = image_index(report.modality, position), None
    else:
        patch = image_patch(report.modality, position, *grids)
        index, box = patch.image, patch.box
    if index >= len(images):
        return ""
    item = images[index]
    if box is None:
        picture = item.data.copy()
        picture.thumbnail((560, 560))
        return f'<div class="places">{_img(picture, _name(item))}</div><div class="hint">{_name(item)}</div>'
    place = f"{_name(item)}: row {patch.row + 1} of {patch.rows}, column {patch.column + 1} of {patch.columns}"
    return _places(item.data, box, place)


def _places(picture: Image.Image, box: tuple[float, float, float, float], place: str) -> str:
    return (
        f'<div class="places">{_img(patch_crop(picture, box), "the patch", "patch")}'
        f'{_img(marked_page(picture, box), place, "page")}</div><div class="hint" id="token-place">{place}</div>'
    )


def _grids(session: Session, name: str) -> tuple[list[list[int]], int] | None:
    grid = session.prompt_inputs().get(name)
    merge = getattr(getattr(session.processor, "image_processor", None), "merge_size", 2)
    return None if grid is None else (grid.tolist(), int(merge))


def _video(session: Session, report: NormReport, position: int) -> str:
    """The patch on its frame; without grids (a model that pools frames) the names of the videos."""
    videos = _media(session, "video")
    grids = session.report("video grids", lambda: _grids(session, "video_grid_thw"))
    if grids is None:
        return f'<div class="hint">{", ".join(map(_name, videos))}</div>'
    patch = video_patch(report.modality, position, *grids)
    if patch.image >= len(videos):
        return ""
    item = videos[patch.image]
    place = (
        f"{_name(item)}: frame {patch.frame + 1} of {patch.frames}, row {patch.row + 1} of {patch.rows}, "
        f"column {patch.column + 1} of {patch.columns}"
    )
    frames = load_video(item.data, **item.sampling).pixels
    frame = frames[min(int((patch.frame + 0.5) / patch.frames * len(frames)), len(frames) - 1)]
    return _places(Image.fromarray(frame), patch.box, place)


def _audio(session: Session, report: NormReport, position: int) -> str:
    recordings = _media(session, "audio")
    try:
        moment = audio_moment(report.modality, position, [len(item.data) / SAMPLE_RATE for item in recordings])
    except KVMMError:
        return ""
    item = recordings[moment.recording]
    length = len(item.data) / SAMPLE_RATE
    left, width = 100 * moment.start / length, max(100 * (moment.end - moment.start) / length, 0.6)
    first = max(0, int((moment.start - _AROUND) * SAMPLE_RATE))
    heard = item.data[first : int((moment.end + _AROUND) * SAMPLE_RATE)]
    return (
        f'<div class="moment"><i style="left:{left:.2f}%;width:{width:.2f}%"></i></div>'
        f'<div class="hint" id="token-place">{_name(item)}: {moment.start:.2f} to {moment.end:.2f} s of {length:.1f} s'
        f'</div><audio controls preload="none" src="{_wav(heard)}"></audio>'
    )


def _media(session: Session, kind: str) -> list[Media]:
    return [item for item in session.talk.media if item.kind == kind]


def _name(item: Media) -> str:
    return html.escape(item.name if item.page is None else f"{item.name}, page {item.page}")


def _img(picture: Image.Image, text: str, name: str = "") -> str:
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    data = base64.b64encode(stream.getvalue()).decode()
    return f'<img class="{name}" alt="{text}" src="data:image/png;base64,{data}">'


def _wav(samples: np.ndarray) -> str:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return f"data:audio/wav;base64,{base64.b64encode(stream.getvalue()).decode()}"


# A click on a row's button, or on a point of a figure with tokens on its horizontal axis, chooses a token.
def click_script(*figures: str) -> str:
    """JavaScript of an HTML component that triggers ``select`` with a token as index."""
    places = ", ".join(f"#{name} .js-plotly-plot" for name in figures)
    return """
element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-token]");
  if (button) trigger("select", { index: Number(button.dataset.token), value: button.dataset.token });
});
const listen = () => document.querySelectorAll("PLACES").forEach((plot) => {
  if (!plot.on || plot.kvmmEvents === plot._ev) return;
  plot.kvmmEvents = plot._ev;
  plot.on("plotly_click", (event) => {
    const token = Math.round(event.points[0].x);
    trigger("select", { index: token, value: String(token) });
  });
});
document.addEventListener("pointerover", listen);
""".replace("PLACES", places)


__all__ = ["click_script", "token_html"]
