"""Many pictures and a prompt about each: read and prepared ahead in threads, decoded in batches, given out in order.

    readers (threads)      bytes, hash, key, size        of the next windows
    preparer (a thread)    samples, image processor      of the next batch
    this thread            the model                     of the current batch

Pictures of similar size, and with it prompts of similar length, are put into one batch, within a window of a few
batches. Where the method allows it, no text waits for the longest one of its batch: the next few pictures take the
place of texts that have ended. Results come in the order of the pictures all the same.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from PIL import Image

from sira_cli.errors import PictureError, PictureSettingsError, SettingsError, SiraError
from sira_cli.models.choices import choose
from sira_cli.models.encoded import EncodedPictures
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.processors import refused
from sira_cli.models.records import Answer, Result
from sira_cli.models.second_look import Verify
from sira_cli.models.verifying import VerifiedAnswers
from sira_cli.pictures.opening import decode_picture, picture_size
from sira_cli.pictures.picture import Picture
from sira_cli.runs.ahead import ahead
from sira_cli.runs.batch_size import AUTO, FIRST, BatchSize, check_batch_size, largest_batch, usual_batch_size
from sira_cli.runs.events import Halved, PictureEvent
from sira_cli.runs.item import Item
from sira_cli.runs.kept import Kept
from sira_cli.runs.memory import out_of_memory, peak_memory
from sira_cli.runs.prompts import filled
from sira_cli.runs.slots import GROUPS, Batch, PictureSlots

READERS = 4
FLUSH = 64  # pictures that an earlier run has done are given out together
DECODED = 2  # pictures whose samples wait for the next question about them
WINDOW = 4  # batches, within which pictures are sorted by size

_log = logging.getLogger(__name__)


class BatchRun:
    """Many pictures, and a prompt about each, on this machine.

    Attributes:
        batch_size: how many pictures are decoded together; halved when memory does not suffice, for the rest of the
            run. Under `auto` it is 1 until the first few pictures are read.
    """

    def __init__(
        self,
        lvlm: Lvlm,
        task: str,
        prompt: str,
        *,
        batch_size: BatchSize | None = None,
        words: bool = False,
        choices: Sequence[str] = (),
        verify: Verify | None = None,
        fills: bool = False,
        done: Callable[[str], str] = lambda name: "",
        old_draws: bool = True,
        on_text: Callable[[Picture, str], None] | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            lvlm: the model.
            task: `caption` or `ask`, for the records.
            prompt: given to the model word by word, for pictures that bring none.
            batch_size: pictures decoded together; `auto`: as many as fit into memory; None: `auto` on a GPU, unless
                `on_text` shows texts as they are decoded, else 1. It is 1 with sampled beams, because a seed must give
                the same text whatever the other pictures are, and for methods without `Ability.BATCHES`.
            words: score the words of each text.
            choices: pick one of these answers, instead of decoding.
            verify: ask about each thing that a text names whether it is in the picture, and perhaps take it out.
            fills: replace the prompt's `{names}` by what is known about each picture.
            done: called with an item's id, returns the key of the work that an earlier run did on it; equal work is
                skipped.
            old_draws: whether sampled texts of sira 0.1, where every picture had the same random numbers, count as
                done.
            on_text: with batches of one, called with pieces of text as they are decoded.

        Raises:
            SettingsError: the prompt holds the model's placeholder for a picture, or `batch_size` is no such number.
        """
        check_batch_size(batch_size)
        lvlm.check_prompt(prompt)
        self._lvlm, self._task, self._prompt, self._done = lvlm, task, prompt, done
        usual = usual_batch_size(lvlm.model.device) if on_text is None else 1
        batch_size = usual if batch_size is None else batch_size
        self._undecided = batch_size == AUTO and lvlm.batches
        self.batch_size = batch_size if isinstance(batch_size, int) and lvlm.batches else 1
        as_decoded = (
            self.batch_size == 1 and not self._undecided and not words and verify is None and lvlm.preset.streams
        )
        self._verified = None if verify is None else VerifiedAnswers(lvlm, verify)
        self._looked = None if self._verified is None else self._verified.settings
        self._on_text = on_text if as_decoded else None
        self._fills = fills
        self._words, self._choices, self._old_draws = words, choices, old_draws
        # Answers to questions are short, and all about as long.
        refills = lvlm.refills and task == "caption" and (self.batch_size > 1 or self._undecided)
        refills = refills and not words and not choices and verify is None
        self._slots = PictureSlots(lvlm, task, self.batch_size) if refills else None
        self._halvings: deque[Halved] = deque()
        self._decoded: Kept[tuple[Image.Image, tuple[str, ...]]] = Kept(DECODED if task == "ask" else 0)
        self._encoded = EncodedPictures() if task == "ask" else None

    def blank(self) -> Result:
        """Return a result without a picture: what all results of this run have in common."""
        return self._lvlm.result(self._task, "", "", self._prompt, self._no_answer(""))

    def _no_answer(self, error: str) -> Answer:
        return Answer(
            error=error,
            words=[] if self._words else None,
            choices=[] if self._choices else None,
            objects=None if self._looked is None else [],
            verify=self._looked,
        )

    def facts(self) -> dict[str, Any]:
        """Return the model as loaded, where it runs, and the memory that it took so far, for the run's report."""
        lvlm = self._lvlm
        return {
            "model": {"revision": lvlm.revision, "k": lvlm.k, "layers": lvlm.layers},
            "device": str(lvlm.model.device),
            "dtype": lvlm.dtype,
            "batch_size": self.batch_size,
            "peak_memory_bytes": peak_memory(),
        }

    def give_up(self, picture: Picture, name: str, message: str) -> PictureEvent:
        """Fail a picture without opening it."""
        item = self._item(picture, name)
        self._settle(item, self._no_answer(f"{picture.shown}: {message}"))
        return item.event()

    def events(self, pictures: Iterable[tuple[Picture, str]]) -> Generator[PictureEvent | Halved, None, None]:
        """Yield what becomes of every picture, in order.

        Args:
            pictures: each with its name in the record.

        Raises:
            SiraError: about the model or the settings: no picture would do better.
        """
        return self.answers(self._item(picture, name) for picture, name in pictures)

    def _item(self, picture: Picture, name: str) -> Item:
        return Item(picture, name, picture.asked(self._prompt), picture.id)

    def answers(self, todo: Iterable[Item]) -> Generator[PictureEvent | Halved, None, None]:
        """Yield what becomes of every item, in order.

        Raises:
            SiraError: as `events`.
        """
        self._readers = ThreadPoolExecutor(READERS, "sira-reader")
        preparer = ThreadPoolExecutor(1, "sira-preparer")
        given_out: deque[Item] = deque()  # in order, waiting for their results
        try:
            read = ahead(self._readers, self._read, _ready(todo), lambda: READERS + self._window)
            batches = self._batches(read, given_out)
            prepared = ahead(preparer, self._prepare, batches, lambda: 2 * self.batch_size // self._together)
            for _ in self._turns(prepared):
                while self._halvings:
                    yield self._halvings.popleft()
                while given_out and given_out[0].settled:
                    yield given_out.popleft().event()
            while given_out:  # skipped, all of them
                yield given_out.popleft().event()
        finally:
            for pool in (self._readers, preparer):
                pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, item: Item) -> Item:
        """Get bytes, key and size. The samples are decoded when their turn comes, so that few are in memory."""
        try:
            item.data = item.picture.read()
            item.sha256 = hashlib.sha256(item.data).hexdigest()
            self._complete_prompt(item)
            if not self._is_done(item):
                item.size = picture_size(item.picture.shown, item.data)
        except Exception as error:
            if not self._is_done(item):
                self._fail(item, error)
        if item.settled:
            item.data = b""
        return item

    def _complete_prompt(self, item: Item) -> None:
        """Fill the prompt; one that is not the run's has not been checked yet."""
        if self._fills:
            item.prompt = filled(item.prompt, item.picture)
        if item.prompt != self._prompt:
            try:
                self._lvlm.check_prompt(item.prompt)
            except SettingsError as error:
                raise PictureSettingsError(str(error)) from None

    def _is_done(self, item: Item) -> bool:
        work = (self._task, item.name, item.sha256, item.prompt, self._looked)
        item.skipped = self._lvlm.keys.fits(self._done(item.id), *work, old_draws=self._old_draws)
        return item.skipped

    @property
    def _together(self) -> int:
        """How many pictures are prepared, and begin, together."""
        return self.batch_size if self._slots is None else max(1, self.batch_size // GROUPS)

    @property
    def _window(self) -> int:
        """How many pictures are sorted by size."""
        return FIRST if self._undecided else WINDOW * self.batch_size

    def _batches(self, read: Iterator[Item], given_out: deque[Item]) -> Iterator[Batch]:
        while True:
            window: list[Item] = []
            for item in read:
                given_out.append(item)
                if not item.settled:
                    window.append(item)
                if len(window) == self._window:
                    break
                if not window and (not item.skipped or len(given_out) >= FLUSH):
                    yield Batch([])  # lets those that need no decoding out
            window.sort(key=lambda item: item.size[0] * item.size[1])  # stable
            if self._undecided and len(window) > 1:
                self._decide(window)
            size = self._together
            for start in range(0, len(window), size):
                yield Batch(window[start : start + size])
            if not window:
                return

    def _decide(self, window: Sequence[Item]) -> None:
        """Choose the batch size by the largest of some pictures; if none of them can be prepared, by later ones."""
        for item in reversed(window):
            try:
                image, _ = decode_picture(item.picture.shown, item.data)
                inputs = self._inputs([(item, image)])
            except Exception as error:
                if _is_final(error):
                    raise
                continue  # its turn to fail comes later
            self.batch_size = self._largest_batch(inputs)
            self._undecided = False
            if self._slots is not None and not len(self._slots):
                self._slots.expect(self.batch_size)
            return

    def _largest_batch(self, inputs: Any) -> int:
        """Return how many pictures fit into memory; `inputs` are those of one."""
        return largest_batch(self._lvlm, inputs, self._task, groups=0 if self._slots is None else GROUPS)

    def _prepare(self, batch: Batch) -> Batch:
        started = time.perf_counter()
        pictures = []
        for item, image in zip(batch.items, self._readers.map(self._samples, batch.items), strict=True):
            if image is not None:
                pictures.append((item, image))
        try:
            batch.inputs = self._inputs(pictures)
        except SiraError:
            raise
        except Exception:  # the processor refused one of them, but which?
            pictures = [(item, image) for item, image in pictures if self._is_accepted(item, image)]
            batch.inputs = self._inputs(pictures)
        batch.items, batch.images = [item for item, _ in pictures], [image for _, image in pictures]
        batch.seconds = time.perf_counter() - started
        return batch

    def _samples(self, item: Item) -> Image.Image | None:
        data, item.data = item.data, b""
        try:
            shown = item.picture.shown
            image, item.warnings = self._decoded.get((shown, item.sha256), lambda: decode_picture(shown, data))
        except Exception as error:
            self._fail(item, error)
            return None
        return image

    def _inputs(self, pictures: list[tuple[Item, Image.Image]]) -> Any:
        if not pictures:
            return None
        items = [item for item, _ in pictures]
        return self._lvlm.prepare(
            [image for _, image in pictures], [item.prompt for item in items], [item.sha256 for item in items]
        )

    def _is_accepted(self, item: Item, image: Image.Image) -> bool:
        try:
            self._inputs([(item, image)])
        except SiraError:
            raise
        except Exception as error:
            self._fail(item, refused(item.picture.shown, error))
            return False
        return True

    def _turns(self, batches: Iterator[Batch]) -> Iterator[None]:
        """Decode batches, and yield whenever pictures may have their results."""
        slots = self._slots
        for batch in batches:
            while slots and len(slots) + len(batch.items) > self.batch_size:
                self._advance(slots)
                yield
            if slots is None or batch.inputs is None or len(batch.items) > self.batch_size:
                self._decode(batch)
            else:
                self._advance(slots, batch)
            yield
        while slots:
            self._advance(slots)
            yield

    def _advance(self, slots: PictureSlots, joining: Batch | None = None) -> None:
        """Let a batch join those under way; without one, decode until a text has ended."""
        try:
            if joining is not None:
                slots.add(joining)
            else:
                for item, answer, milliseconds in slots.advance():
                    self._settle(item, answer, milliseconds)
        except Exception as error:
            if _is_final(error):
                raise
            failure = error
        else:
            return
        self._failed(slots.give_up(), failure)

    def _decode(self, batch: Batch) -> None:
        """Give every item its result. What fails is tried again in halves, down to single pictures."""
        if batch.inputs is None:
            return
        if len(batch.items) > self.batch_size:
            self._decode_halves(batch)
            return
        started = time.perf_counter()
        try:
            with self._features_kept(batch):
                answers = self._answers(batch)
        except Exception as error:
            if _is_final(error):
                raise
            failure = error
        else:
            each = 1000 * (batch.seconds + time.perf_counter() - started) / len(batch.items)
            for item, answer in zip(batch.items, answers, strict=True):
                self._settle(item, answer, each)
            return
        self._failed(batch, failure)

    def _failed(self, batch: Batch, failure: Exception) -> None:
        """Try a batch that failed again in halves; a single picture has failed."""
        if len(batch.items) == 1:
            self._fail(batch.items[0], failure)
            return
        if out_of_memory(failure):
            before, self.batch_size = len(batch.items), len(batch.items) // 2
            self._halvings.append(Halved(before, self.batch_size))
        failure.__traceback__ = None  # it holds on to the memory of the failed try
        batch.inputs = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._decode_halves(batch)

    def _decode_halves(self, batch: Batch) -> None:
        batch.inputs = None
        middle = len(batch.items) // 2
        for part in (slice(None, middle), slice(middle, None)):
            items, images = batch.items[part], batch.images[part]
            inputs = self._inputs(list(zip(items, images, strict=True)))
            self._decode(Batch(items, images, inputs, batch.seconds / 2))

    def _features_kept(self, batch: Batch) -> AbstractContextManager[None]:
        """Encode pictures once, about which there may be several questions."""
        return self._encoded.used_by(self._lvlm.model, len(batch.items)) if self._encoded else nullcontext()

    def _answers(self, batch: Batch) -> list[Answer]:
        if self._choices:
            return choose(self._lvlm, batch.inputs, self._choices)
        on_text = self._on_text
        stream = None if on_text is None else lambda text: on_text(batch.items[0].picture, text)
        seeds = self._lvlm.text_seeds([item.sha256 for item in batch.items], [item.prompt for item in batch.items])
        if self._verified is not None:
            return self._verified.answer(batch.images, batch.inputs, seeds=seeds, words=self._words, task=self._task)
        answers = self._lvlm.answer(batch.inputs, stream, seeds=seeds, words=self._words, task=self._task)
        return [self._lvlm.preset.text.finished(answer) for answer in answers]

    def _fail(self, item: Item, error: Exception) -> None:
        name, message = item.picture.shown, str(error)
        if isinstance(error, PictureSettingsError):
            message = f"{name}: {message}"
        elif not isinstance(error, PictureError):
            message = f"{name}: {type(error).__name__}: {(message.strip().splitlines() or [''])[0]}"
            _log.debug("%s failed", name, exc_info=error)
        self._settle(item, self._no_answer(message))

    def _settle(self, item: Item, answer: Answer, milliseconds: float = 0.0) -> None:
        item.result = self._lvlm.result(
            self._task, item.name, item.sha256, item.prompt, answer, milliseconds, item.warnings
        )


def _is_final(error: Exception) -> bool:
    """Return whether an error is about the model or the settings, so that no picture would do better."""
    return isinstance(error, SiraError) and not isinstance(error, PictureError)


def _ready(items: Iterable[Item]) -> Iterator[Item]:
    """Make each picture ready for `read`; this runs in the main thread."""
    for item in items:
        item.picture.make_ready()
        yield item
