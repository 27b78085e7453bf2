"""Training steps made in worker processes, passed through shared memory, copied to the device ahead of time.

Workers are forked before CUDA is initialised and write numpy arrays into slots of anonymous shared memory (no torch
tensors through queues, no /dev/shm limit). Micro-batches come in the groups of `spec_group`; every group has slots of
its own, so a slow group cannot be crowded out.
"""

from __future__ import annotations

import importlib
import mmap
import multiprocessing
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import torch

from training.model_config import AUDIO_TOKEN, CELL, IMAGE_TOKEN, PADDING, UNTAUGHT
from training.pages.values import MissingAssets

Step = dict[str, np.ndarray]
SEQUENCE_MULTIPLE = 64  # sequences are padded to it: attention kernels want aligned masks
TARGET_MULTIPLE = 4096  # targets are padded to it: few distinct sizes for the memory allocator and for graphs
STALL_SECONDS = 180.0


def spec_group(spec) -> str:
    """Name under which a spec's losses are logged: `page`, `pages`, `audio`, `spoken` (audio with pages) or `text`."""
    if spec.frames:
        return "spoken" if spec.pages else "audio"
    return "text" if not spec.pages else "page" if spec.pages == 1 else "pages"


def step_seed(*key: int) -> int:
    """A 31-bit seed from a key such as (run seed, run number, worker, counter)."""
    return int(np.random.SeedSequence(key).generate_state(1)[0] >> 1)


def slot_bytes(spec) -> int:
    """Room for one step of `spec`, generously: shared pages never written cost nothing."""
    pixels = spec.sequences * spec.pages * spec.height * spec.width
    mel = spec.sequences * max(spec.clips, 1) * spec.frames * 128 * 2
    tokens = spec.sequences * (spec.seq_len + getattr(spec, "teacher_len", 0))
    return int(1.1 * pixels) + mel + tokens * 16 + (1 << 20)


class Ring:
    """Slots of shared memory with a queue of free ones and one of filled ones."""

    def __init__(self, slots: int, size: int) -> None:
        self.size, self.memory = size, mmap.mmap(-1, slots * size)
        self.free, self.ready = multiprocessing.Queue(), multiprocessing.Queue()
        self.slots = slots

    def open(self) -> None:
        """Makes all slots free; call after forking, since it starts a thread."""
        for slot in range(self.slots):
            self.free.put(slot)

    def view(self, slot: int, offset: int, shape: Sequence[int], dtype: str) -> np.ndarray:
        return np.ndarray(shape, dtype, buffer=self.memory, offset=slot * self.size + offset)

    def fill(self, slot: int, spec_index: int, step: Step) -> None:
        """Copies a step into a slot and announces it."""
        layout, offset = [], 0
        for name, array in step.items():
            if offset + array.nbytes > self.size:
                raise ValueError(f"step of spec {spec_index} does not fit its slot of {self.size} bytes")
            self.view(slot, offset, array.shape, array.dtype.str)[...] = array
            layout.append((name, offset, array.shape, array.dtype.str))
            offset += -(-array.nbytes // 64) * 64
        self.ready.put((slot, spec_index, layout))

    def take(self, timeout: float) -> tuple[int, int, Step]:
        """Next filled slot: (slot, spec index, views into it). Raises `queue.Empty`."""
        slot, spec_index, layout = self.ready.get(timeout=timeout)
        return slot, spec_index, {name: self.view(slot, offset, shape, dtype) for name, offset, shape, dtype in layout}


def pad_sequences(out: Step, step: Step, prefix: str) -> np.ndarray:
    """Pads ids, positions and segments of `step` into `out`; returns the padded weights."""
    padding = -step[f"{prefix}ids"].shape[1] % SEQUENCE_MULTIPLE
    weight = step[f"{prefix}weight"]
    if padding:
        widths = ((0, 0), (0, padding))
        out[f"{prefix}ids"] = np.pad(step[f"{prefix}ids"], widths)
        out[f"{prefix}pos"] = np.pad(step[f"{prefix}pos"], ((0, 0), *widths))
        out[f"{prefix}seg"] = np.pad(step[f"{prefix}seg"], widths, constant_values=PADDING)
        weight = np.pad(weight, widths)
    return weight


def targets_of(weight: np.ndarray, seg: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the tokens that predict a target: the one before it; the first of a branch has none."""
    return np.nonzero((weight[:, 1:] > 0) & (seg[:, 1:] == seg[:, :-1]))


def index_step(step: Step, branches: bool = False) -> Step:
    """Adds what the model needs as flat indices, so that nothing on the device has to be counted.

    Args:
        step: `ids`, `pos`, `seg`, `weight` and optionally `pages`, `shade`, `chars`, `mel`, as
            `training.dataset.make_step` returns them, and the same with the prefix `teacher_` for the first four.
        branches: also number the answer branches (`target_branch`, -1 elsewhere), for exact match.

    Raises:
        ValueError: placeholders and media do not match.
    """
    out = {name: array for name, array in step.items() if name not in ("weight", "teacher_weight") and array.size}
    weight = pad_sequences(out, step, "")
    ids, seg = out["ids"], out["seg"]
    for name, token, count in (
        ("image_index", IMAGE_TOKEN, out["pages"].size // CELL**2 if "pages" in out else 0),
        ("audio_index", AUDIO_TOKEN, out["mel"].shape[0] * out["mel"].shape[1] // 4 if "mel" in out else 0),
    ):
        index = np.flatnonzero(ids == token)
        if len(index) != count:
            raise ValueError(f"{len(index)} placeholders of id {token} for {count} media tokens")
        if count:
            out[name] = index
    row, column = targets_of(weight, seg)
    count = max(-(-len(row) // TARGET_MULTIPLE), 1) * TARGET_MULTIPLE
    pad = lambda a, fill, dtype: np.concatenate([a, np.full(count - len(a), fill, a.dtype)]).astype(dtype)  # noqa: E731
    out["target_index"] = pad(row * ids.shape[1] + column, 0, np.int64)
    out["target_ids"] = pad(ids[row, column + 1], 0, np.int64)
    out["target_weight"] = pad(weight[row, column + 1], 0, np.float32)
    if "teacher_ids" in step:
        known = pad_sequences(out, step, "teacher_")
        at = targets_of(known, out["teacher_seg"])
        if len(at[0]) != len(row):
            raise ValueError(f"{len(at[0])} targets of the teacher for {len(row)} of the student")
        out["teacher_index"] = pad(at[0] * out["teacher_ids"].shape[1] + at[1], 0, np.int64)
        out["teacher_weight"] = pad(known[at[0], at[1] + 1] != UNTAUGHT, 0, np.float32)
    if branches:
        answer = out["target_weight"][: len(row)] >= 2
        number = np.full(len(row), -1)
        number[answer] = np.unique(row[answer] * 256 + seg[row[answer], column[answer] + 1], return_inverse=True)[1]
        out["target_branch"] = pad(number, -1, np.int64)
    return out


def to_device(step: Step, device: torch.device) -> dict[str, torch.Tensor]:
    """Copies arrays through pinned memory; on CUDA the copies are asynchronous on the current stream."""
    batch = {}
    for name, array in step.items():
        source = torch.from_numpy(array)
        if device.type == "cuda":
            pinned = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            batch[name] = pinned.copy_(source).to(device, non_blocking=True)
        else:
            batch[name] = source.clone()
    return batch


def run_worker(
    index: int, workers: int, rings: dict, specs, make_step: Callable, seed_key: tuple[int, ...], parent: int
) -> None:
    """Worker process: first its share of the held-out steps, then training steps until the parent is gone."""
    torch.set_num_threads(1)
    for spec_index in range(index, len(specs), workers):
        try:  # the seed depends on the spec only, so every run of a chain is measured on the same steps
            step = make_step(step_seed(0, spec_index), specs[spec_index][0], held=True)
            rings["held"].fill(rings["held"].free.get(), spec_index, step)
        except Exception:
            print(
                f"worker {index}: held-out step of spec {specs[spec_index][0].name} failed\n{traceback.format_exc()}",
                flush=True,
            )
    shares = {}
    for i, (spec, probability) in enumerate(specs):
        shares.setdefault(ring_name(spec), []).append((i, probability))
    names = sorted(shares)
    totals = np.array([sum(p for _, p in shares[n]) for n in names])
    credit, counter, failures = np.zeros(len(names)), 0, 0
    while os.getppid() == parent:
        # The group furthest behind its share goes first; if its ring is full, another one may go ahead.
        slot = None
        for g in np.argsort(counter * totals / totals.sum() - credit)[::-1]:
            try:
                slot = rings[names[g]].free.get(timeout=0.02)
                break
            except queue.Empty:
                continue
        if slot is None:
            continue
        seed = step_seed(*seed_key, index, counter)
        counter += 1
        credit[g] += 1
        indices, probabilities = zip(*shares[names[g]], strict=True)
        spec_index = int(np.random.default_rng(seed).choice(indices, p=np.array(probabilities) / sum(probabilities)))
        try:
            rings[names[g]].fill(slot, spec_index, make_step(seed, specs[spec_index][0]))
        except Exception:  # one bad draw must not end a run; it is shown, and a worker that only fails stops
            rings[names[g]].free.put(slot)
            failures += 1
            print(
                f"worker {index}: spec {specs[spec_index][0].name} seed {seed} failed\n{traceback.format_exc()}",
                flush=True,
            )
            if failures > 5 and failures > counter // 4:
                return


def ring_name(spec) -> str:
    """Steps with audio and steps without have rings of their own: every update is made of both."""
    return "audio" if spec.frames else "page"


def prepared_dataset(name: str) -> ModuleType:
    """The module of that name with `SPECS` and `make_step`, which has read what it needs if it has a `prepare`.

    Raises:
        SystemExit: with one line, where fonts or texts are missing.
    """
    dataset = importlib.import_module(name)
    try:
        getattr(dataset, "prepare", lambda: None)()
    except MissingAssets as error:
        sys.exit(str(error))
    return dataset


class Loader:
    """Starts the workers and hands out batches on the device.

    Args:
        specs: list of (spec, probability). make_step: `make_step(seed, spec, held=False) -> dict of arrays`.
        workers: processes. slots: slots a ring. seed_key: (run seed, run number).

    Create it before CUDA is initialised; then call `start(device)`.
    """

    def __init__(self, specs, make_step: Callable, workers: int, slots: int, seed_key: tuple[int, ...]) -> None:
        context = multiprocessing.get_context("fork")
        self.specs = specs
        names = sorted({ring_name(s) for s, _ in specs})
        total = sum(p for _, p in specs)
        self.shares = {n: sum(p for s, p in specs if ring_name(s) == n) / total for n in names}
        size = {n: max(slot_bytes(s) for s, _ in specs if ring_name(s) == n) for n in names}
        self.rings = {n: Ring(slots, size[n]) for n in names}
        self.rings["held"] = Ring(len(specs), max(size.values()))
        arguments = (workers, self.rings, specs, make_step, seed_key, os.getpid())
        self.processes = [context.Process(target=run_worker, args=(i, *arguments), daemon=True) for i in range(workers)]
        for process in self.processes:
            process.start()
        for ring in self.rings.values():
            ring.open()
        self.waited = 0.0
        self._given = dict.fromkeys(names, 0)
        self._failure: BaseException | None = None

    def start(self, device: torch.device, ahead: int = 4) -> None:
        """Starts the thread that copies batches to `device`, `ahead` of their use."""
        self.device, self._batches = device, queue.Queue(ahead)
        threading.Thread(target=self._prefetch, daemon=True).start()

    def _next_step(self) -> tuple[str, int, int, Step]:
        """The group furthest behind its share, whatever the workers happened to finish first."""
        count = sum(self._given.values())
        name = max(self._given, key=lambda n: (count + 1) * self.shares[n] - self._given[n])
        slot, spec_index, views = self.rings[name].take(STALL_SECONDS)
        self._given[name] += 1
        return name, slot, spec_index, views

    def _prefetch(self) -> None:
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        try:
            while True:
                name, slot, spec_index, views = self._next_step()
                try:
                    step = index_step(views)
                except ValueError as error:
                    print(f"skipped a step of spec {self.specs[spec_index][0].name}: {error}", flush=True)
                    self._given[name] -= 1
                    self.rings[name].free.put(slot)
                    continue
                event = None
                if stream is None:
                    batch = to_device(step, self.device)
                else:
                    with torch.cuda.stream(stream):
                        batch = to_device(step, self.device)
                        event = stream.record_event()
                del views, step
                self.rings[name].free.put(slot)
                self._batches.put((self.specs[spec_index][0], batch, event))
        except BaseException as error:
            self._failure = error

    def next(self) -> tuple[object, dict[str, torch.Tensor]]:
        """Next (spec, batch on the device). Raises RuntimeError when the workers have stopped delivering."""
        started = time.perf_counter()
        while True:
            try:
                spec, batch, event = self._batches.get(timeout=1.0)
                break
            except queue.Empty:
                if self._failure is not None or not any(p.is_alive() for p in self.processes):
                    raise RuntimeError(
                        "the data workers stopped delivering; see their messages above"
                    ) from self._failure
        self.waited += time.perf_counter() - started
        if event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(event)
            for tensor in batch.values():
                tensor.record_stream(current)
        return spec, batch

    def held_out(self, timeout: float = 30.0) -> list[tuple[object, Step]]:
        """One indexed held-out step a spec, on the host; leaves out what is not there after `timeout` idle seconds."""
        steps = {}
        for _ in self.specs:
            try:
                _, spec_index, views = self.rings["held"].take(timeout)
            except queue.Empty:
                break
            steps[spec_index] = {k: np.array(v) for k, v in index_step(views, branches=True).items()}
        return [(self.specs[i][0], steps[i]) for i in sorted(steps)]

    def close(self) -> None:
        """Kills the workers; they hold nothing that needs tidying."""
        for process in self.processes:
            process.kill()
