"""``calibrate``: prompts in, calibration file out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch

from kvmm.calibration import Calibration, SiteSamples, model_fingerprint, site_name
from kvmm.calibration.choose import GRADIENT, QUERY, ImportanceChoice, held_out, without_gradients
from kvmm.calibration.collect import TEMPERATURE, Collector
from kvmm.calibration.refine import Prompt, refine
from kvmm.codecs import codec_class, codec_names
from kvmm.codecs.calibquant import TAU, TAU_GRID, TAU_SEARCHED, CalibQuant, tau_name
from kvmm.errors import KVMMError
from kvmm.media import load_audio, load_image, load_media
from kvmm.models.caches import DYNAMIC
from kvmm.models.documents import Document, answer_tokens
from kvmm.models.forced_text import ForcedText
from kvmm.models.prompting import encode_question
from kvmm.policy import KVPolicy, KVSpec, spec

ANSWER_TOKENS = 300  # of an answer that calibration looks at; a transcription may be longer
TAU_EXAMPLES = 12  # over which CalibQuant's grid is searched
TEXT_TOKENS = 2048  # a piece of a text, whose last quarter is predicted; long, since keys turn with their position


@dataclass(frozen=True)
class Example:
    """One prompt: a question about images or a recording with its answer, or a piece of text.

    Attributes:
        question: asked after the media, or the text itself.
        images: paths or PIL images.
        audio: a path, float32 samples at 16 kHz, or None.
        answer: None lets the model answer.
        text: whether ``question`` is a text to read on.
    """

    question: str
    images: tuple[Any, ...] = ()
    audio: Any = None
    answer: str | None = None
    text: bool = False


def examples_of_lines(lines: Sequence[Mapping[str, Any]]) -> list[Example]:
    """Examples of the questions of a JSON-lines file, as :func:`kvmm.analysis.drift.prompts.read_lines` reads them."""
    return [
        Example(line["question"], tuple(line["images"]), line["audio"], (line["answers"] or (None,))[0])
        for line in lines
    ]


def examples_of_text(processor: Any, text: str) -> list[Example]:
    """Pieces of a text, each of :data:`TEXT_TOKENS` tokens.

    Raises:
        KVMMError: if it is shorter than one piece.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    ids = tokenizer(text)["input_ids"]
    starts = range(0, len(ids) - TEXT_TOKENS + 1, TEXT_TOKENS)
    if not starts:
        raise KVMMError(f"The text has {len(ids)} tokens; calibration needs {TEXT_TOKENS} or more.")
    return [Example(tokenizer.decode(ids[s : s + TEXT_TOKENS]), text=True) for s in starts]


def examples_of_samples(samples: Iterable[tuple[Sequence[Path], str]]) -> list[Example]:
    """Examples of files with a question, which the model answers: ``(files, question)``."""
    found = []
    for files, question in samples:
        media = [medium for file in files for medium in load_media(file)]
        images = tuple(medium.data for medium in media if medium.kind == "image")
        audio = next((medium.data for medium in media if medium.kind == "audio"), None)
        found.append(Example(question, images, audio))
    return found


def calibrate(
    model: Any,
    processor: Any,
    examples: Sequence[Example],
    *,
    gradients: bool | None = None,
    name: str = "",
    data: str = "",
    seed: int = 0,
    refine_steps: int = 0,
) -> Iterator[int | tuple[int, float] | Calibration]:
    """Fit every codec that can be fitted to a model.

    Args:
        model, processor: as ``load_model`` returns them.
        examples: in an order that keeps those about the same files together; reading a document is shared.
        gradients: weigh errors by the loss they cause (one backward pass an example); else by queries and weights. None
            takes what is better on a fifth of the documents when fitted to the others
            (:class:`kvmm.calibration.choose.ImportanceChoice`); gradients where there are fewer than five.
        name: of the model, for messages.
        data: of the data, for the record.
        seed: of all that is drawn.
        refine_steps: of :func:`kvmm.calibration.refine.refine` after the fit, an example each.

    Yields:
        The number of examples read, after each; the number of steps and the divergence, after each step; last the
        :class:`Calibration`.

    Raises:
        KVMMError: without examples, or for media the model does not take.
    """
    if not examples:
        raise KVMMError("Calibration needs at least one example.")
    collector = Collector(model, gradients=gradients is not False, seed=seed)
    last = held_out([document_of(example) for example in examples]) if gradients is None else []
    first = [at for at in range(len(examples)) if at not in set(last)]
    read: list[tuple[Example, torch.Tensor]] = []
    importance, divergence = QUERY if gradients is False else GRADIENT, {}
    with ImportanceChoice(model) as choice:
        for number, (example, prompt) in enumerate(
            read_prompts(model, processor, [examples[at] for at in first + last])
        ):
            if number == len(first) and read:
                choice.fit(collector.samples())
            inputs, answer, document = prompt
            if len(answer) > 1:  # an answer that only ends says nothing
                if choice.policies:
                    choice.add(inputs, answer, document)
                collector.add(inputs, answer, document)
                read.append((example, answer))
            yield number + 1
        if choice.divergence:
            importance, divergence = choice.best, choice.divergence
    samples = collector.samples()
    samples = without_gradients(samples) if importance == QUERY else samples
    metadata = {
        "model": name,
        "data": data,
        "examples": collector.prompts,
        "importance": importance,
        "importance_kl": divergence,
        "temperature": TEMPERATURE,
        "seed": seed,
        TAU: search_tau(model, processor, examples),
        "versions": {package: version(package) for package in ("torch", "transformers")},
    }
    found = Calibration(model_fingerprint(model), fit_codecs(samples, device=model.device), metadata)
    if not refine_steps:
        yield found
        return
    order = torch.randint(len(read), (refine_steps,), generator=torch.Generator().manual_seed(seed)).tolist()

    def prompt(step: int) -> Prompt:
        example, answer = read[order[step]]
        inputs, _, length = _encoded(model, processor, example)
        with torch.no_grad():
            return inputs, answer, Document(model, inputs, length)

    yield from refine(model, prompt, found, samples, steps=refine_steps)


def document_of(example: Example) -> Any:
    """What tells the document of an example from others."""
    audio = example.audio if isinstance(example.audio, (str, Path)) else id(example.audio)
    return example.question if example.text else (example.images, audio)


def read_prompts(model: Any, processor: Any, examples: Iterable[Example]) -> Iterator[tuple[Example, Prompt]]:
    """Every example with its prompt; neighbours about the same files share the document."""
    known: tuple[Any, Document | None] = (None, None)
    for example in examples:
        inputs, answer, length = _encoded(model, processor, example)
        if known[0] != document_of(example) or known[1] is None:
            with torch.no_grad():
                known = (document_of(example), Document(model, inputs, length))
        if answer is None:
            answer = answer_tokens(model, inputs, known[1].cache(DYNAMIC), ANSWER_TOKENS).cpu()
        yield example, (inputs, answer, known[1])


def search_tau(model: Any, processor: Any, examples: Sequence[Example]) -> dict[str, list[int]]:
    """CalibQuant's logit calibration (section 3.3): the pair of the grid that drifts least.

    Args:
        model, processor, examples: as for :func:`calibrate`; :data:`TAU_EXAMPLES` with media are measured.

    Returns:
        ``{"levels-bits": [tau1, tau2]}`` for every entry of :data:`kvmm.codecs.calibquant.TAU_SEARCHED`; empty without
        media.
    """
    media = [example for example in examples if example.images or example.audio is not None]
    step = max(1, len(media) // TAU_EXAMPLES)
    texts = []
    for example in media[::step][:TAU_EXAMPLES]:
        inputs, answer, length = _encoded(model, processor, example)
        with torch.no_grad():
            document = Document(model, inputs, length)
        if answer is None:
            answer = answer_tokens(model, inputs, document.cache(DYNAMIC), ANSWER_TOKENS).cpu()
        if len(answer) > 1:
            texts.append(ForcedText(document, inputs, answer[None]))
    best = {}
    for levels, bits in TAU_SEARCHED if texts else ():
        drift = {}
        for pair in product(TAU_GRID, repeat=2):
            one = spec(CalibQuant.name, bits, levels=levels, calibration=pair)
            kv = KVSpec(one, replace(one, options=(("levels", levels),)))
            policy = KVPolicy(f"tau {pair}", image=kv, video=kv, audio=kv)
            found = [text.measure(policy).kl for text in texts]
            drift[pair] = sum(float(kl.sum()) for kl in found) / sum(len(kl) for kl in found)
        best[tau_name(levels, bits)] = list(min(drift, key=drift.get))
    return best


def fit_codecs(
    samples: Mapping[tuple[int, str, int], SiteSamples],
    codecs: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """What codecs make of every site: the tensors of a calibration file, on the CPU.

    Args:
        samples: as :meth:`kvmm.calibration.collect.Collector.samples` returns them.
        codecs: default is all that are registered.
        device: fits there; k-means of many codebooks takes seconds a site on one core.
    """
    tensors = {}
    for (layer, side, modality), site in samples.items():
        site = site.to(device)
        for codec in codecs or codec_names():
            for name, tensor in codec_class(codec).fit(site).items():
                tensors[site_name(codec, layer, side, modality) + name] = tensor.cpu()
    return tensors


def _encoded(
    model: Any, processor: Any, example: Example
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None, int | None]:
    """Inputs, the answer's tokens if they are known, and the document's length if the prompt does not say it."""
    tokenizer = getattr(processor, "tokenizer", processor)
    if example.text:
        ids = torch.tensor([tokenizer(example.question)["input_ids"]])
        cut = ids.shape[1] * 3 // 4
        inputs = {"input_ids": ids[:, : cut + 1].to(model.device)}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        return inputs, ids[0, cut + 1 :], cut
    images = [load_image(image) if isinstance(image, (str, Path)) else image for image in example.images]
    audio = load_audio(example.audio) if isinstance(example.audio, (str, Path)) else example.audio
    inputs = encode_question(model, processor, example.question, images, audio)
    if example.answer is None:
        return inputs, None, None
    answer = tokenizer(example.answer, add_special_tokens=False)["input_ids"]
    end = model.generation_config.eos_token_id
    if len(answer) < ANSWER_TOKENS and end is not None:
        answer = [*answer, end if isinstance(end, int) else end[0]]
    return inputs, torch.tensor(answer[:ANSWER_TOKENS]), None
