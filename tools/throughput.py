"""Measure pictures per second when texts differ in length: `python -m tools.throughput -p demo -o FILE.json`.

Batches wait for their longest text, refilled slots do not. All decode the same pictures, in turn, to the same lengths.
Pictures are prepared before the clock runs, as a run prepares them ahead in threads.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import torch
from PIL import Image
from transformers import StoppingCriteria, StoppingCriteriaList

from sira_cli import load
from sira_cli.analysis.bench.figures import Spread, TimedOn
from sira_cli.analysis.bench.measure import pictures
from sira_cli.analysis.bench.random_models import load_shape
from sira_cli.cli.terminal.output import new_table, save_report, table_console
from sira_cli.demo.questions import validation_pictures
from sira_cli.errors import SiraError
from sira_cli.methods import find
from sira_cli.models.answering.end_tokens import EndTokens
from sira_cli.models.answering.refilling import RefilledSlots
from sira_cli.models.loading.compiled import CompiledSteps
from sira_cli.models.loading.presets import BUNDLED
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.many.slots import GROUPS

MEAN, DEVIATION, SHORTEST = 120, 45, 8  # tokens of a drawn text: long captions are about so long

WARM_UP = 3  # tokens


@dataclass(frozen=True)
class Contestant:
    """A way to decode many pictures.

    Attributes:
        method: the decoder; `greedy` in static batches is transformers' own `generate`, without any hook.
        refilled: whether the next pictures take the places of texts that have ended.
        compiled: whether decoding steps are compiled.
    """

    method: str
    refilled: bool
    compiled: bool = False

    def __str__(self) -> str:
        way = "refilled slots" if self.refilled else "static batches"
        return f"{'compiled ' if self.compiled else ''}{self.method}, {way}"


CONTESTANTS = tuple(Contestant(method, refilled) for method in ("sira", "greedy") for refilled in (False, True))
COMPILED = tuple(Contestant(each.method, each.refilled, compiled=True) for each in CONTESTANTS)


@dataclass(frozen=True)
class ThroughputRow:
    """The measurements of one contestant.

    Attributes:
        name: of the contestant.
        pictures_per_second: over the rounds.
        by_static: speed relative to static batches of SIRA in the same round.
        by_greedy: speed relative to static batches of greedy in the same round.
    """

    name: str
    pictures_per_second: Spread
    by_static: Spread
    by_greedy: Spread


@dataclass(frozen=True)
class ThroughputReport(TimedOn):
    """The measurements, with model and device.

    Attributes:
        pictures, batch_size, runs: numbers of pictures, of pictures at once, of measured rounds.
        lengths: tokens of each text, in the order of the pictures; `drawn`: they are not the model's own.
        rows: of the contestants.
    """

    schema = "sira.throughput/1"

    pictures: int
    batch_size: int
    runs: int
    lengths: tuple[int, ...]
    drawn: bool
    rows: tuple[ThroughputRow, ...]


def drawn_lengths(count: int, longest: int) -> list[int]:
    """Draw typical lengths of captions, the same in every run; scaled down if `longest` is too small for them."""
    draw, scale = random.Random(0), min(1.0, longest / (MEAN + 2 * DEVIATION))
    return [min(max(round(scale * draw.gauss(MEAN, DEVIATION)), SHORTEST), longest) for _ in range(count)]


def own_lengths(lvlm: Lvlm, images: Sequence[Image.Image], batch_size: int) -> list[int]:
    """Return the lengths in tokens of a model's own texts."""
    slots: RefilledSlots[int] = RefilledSlots(lvlm)
    found = [0] * len(images)
    for number, image in enumerate(images):
        while slots.under_way >= batch_size:
            _note(slots, found)
        slots.add([number], lvlm.prepare([image], [lvlm.preset.prompts.caption]), [0])
    while slots.under_way:
        _note(slots, found)
    return found


def _note(slots: RefilledSlots[int], found: list[int]) -> None:
    for ended in slots.advance():
        found[ended.item] = ended.answer.output_tokens


def throughput(
    lvlm: Lvlm,
    images: Sequence[Image.Image],
    *,
    batch_size: int,
    runs: int,
    drawn: bool,
    compile: bool = False,  # noqa: A002 (as in `load`)
    on_turn: Callable[[], None] = lambda: None,
) -> ThroughputReport:
    """Time every contestant on the same pictures: A B C D A B C D ..., after a round that only warms up.

    Args:
        lvlm: the model under SIRA.
        images: all pictures, RGB.
        batch_size: pictures at once.
        runs: measured rounds.
        drawn: draw the lengths of texts; else lengths of the model's own texts.
        compile: also time compiled steps.
        on_turn: called after each contestant's turn.

    Raises:
        SiraError: a contestant's texts do not have their lengths, or steps cannot be compiled here.
    """
    longest = lvlm.preset.generation.max_new_tokens
    images = list(images)
    lengths = drawn_lengths(len(images), longest) if drawn else own_lengths(lvlm, images, batch_size)
    small = max(1, batch_size // GROUPS)
    contestants = CONTESTANTS + COMPILED * compile
    seconds: dict[Contestant, list[float]] = {contestant: [] for contestant in contestants}
    lvlms = {contestant: _endless(lvlm, contestant, max(lengths)) for contestant in contestants}
    batches = {size: _prepared(lvlm, images, size) for size in {batch_size, small}}
    for number in range(runs + 1):
        wanted = lengths if number else [min(WARM_UP, length) for length in lengths]
        for contestant in contestants:
            decode, size = (_refilled, small) if contestant.refilled else (_static, batch_size)
            started = time.perf_counter()
            found = decode(lvlms[contestant], batches[size], wanted, batch_size)
            if number:
                seconds[contestant].append(time.perf_counter() - started)
            if found != wanted:
                raise SiraError(f"{contestant}: the texts have {sum(found)} tokens, expected {sum(wanted)}")
            on_turn()
    sira, greedy = Contestant("sira", False), Contestant("greedy", False)
    rows = tuple(
        ThroughputRow(
            str(contestant),
            Spread.of([len(images) / each for each in own]),
            _speed(own, seconds[sira]),
            _speed(own, seconds[greedy]),
        )
        for contestant, own in seconds.items()
    )
    return ThroughputReport(
        **ThroughputReport.fields_of(lvlm),
        pictures=len(images),
        batch_size=batch_size,
        runs=runs,
        lengths=tuple(lengths),
        drawn=drawn,
        rows=rows,
    )


def _speed(own: Sequence[float], other: Sequence[float]) -> Spread:
    return Spread.of([theirs / mine for mine, theirs in zip(own, other, strict=True)])


def _endless(lvlm: Lvlm, contestant: Contestant, longest: int) -> Lvlm:
    """Return a contestant's model whose texts do not end before `longest` tokens."""
    preset = lvlm.preset.with_settings(max_new_tokens=longest)
    endless = lvlm.under(find(contestant.method), preset, CompiledSteps(lvlm.model) if contestant.compiled else None)
    endless.ends = EndTokens((), lvlm.ends.padding)
    return endless


def _prepared(lvlm: Lvlm, images: Sequence[Image.Image], size: int) -> list[Any]:
    parts = [images[start : start + size] for start in range(0, len(images), size)]
    return [lvlm.prepare(part, [lvlm.preset.prompts.caption] * len(part)) for part in parts]


def _static(lvlm: Lvlm, batches: Sequence[Any], lengths: Sequence[int], batch_size: int) -> list[int]:
    """Decode batch after batch, and return the lengths of the texts."""
    found: list[int] = []
    for inputs in batches:
        wanted = lengths[len(found) : len(found) + len(inputs["input_ids"])]
        no_token = lvlm.model.config.get_text_config(decoder=True).vocab_size  # so that nothing else ends a text
        end = _AtLength(wanted)
        lvlm.decode(
            lvlm.to_device(copy.copy(inputs)),
            max(wanted),
            room=lvlm.preset.generation.max_new_tokens,
            do_sample=False,
            pad_token_id=lvlm.ends.padding or 0,
            eos_token_id=no_token,
            stopping_criteria=StoppingCriteriaList([end]),
        )
        found += end.found
    return found


def _refilled(lvlm: Lvlm, groups: Sequence[Any], lengths: Sequence[int], batch_size: int) -> list[int]:
    """Decode in slots that are refilled, and return the lengths of the texts."""
    slots: RefilledSlots[int] = RefilledSlots(lvlm, rows=batch_size)
    found, first = [0] * len(lengths), 0
    for inputs in groups:
        items = range(first, first + len(inputs["input_ids"]))
        first = items.stop
        while slots.under_way + len(items) > batch_size:
            _note(slots, found)
        slots.add(items, copy.copy(inputs), [0] * len(items), [lengths[item] for item in items])
    while slots.under_way:
        _note(slots, found)
    return found


class _AtLength(StoppingCriteria):
    """Ends each of B texts at its own length."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths, self._steps = torch.tensor(lengths), 0
        self.found = [0] * len(lengths)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any) -> torch.Tensor:
        """Called by `generate` after each token; return `[B]`, whether each text ends."""
        self._steps += 1
        done = self._lengths <= self._steps  # [B]
        self.found = torch.where(self._lengths.eq(self._steps), self._steps, torch.tensor(self.found)).tolist()
        return done.to(input_ids.device)


def print_throughput(report: ThroughputReport) -> None:
    """Print a table of the contestants."""
    out = table_console()
    lengths = report.lengths
    out.print(
        f"{report.model}, {report.dtype}; {report.device}; torch {report.torch}, transformers {report.transformers}\n"
        f"SIRA: K = {report.k} of {report.layers} layers, alpha = {report.alpha:g}; "
        f"{report.runs} round{'s' * (report.runs > 1)}, in turn\n"
        f"{report.pictures} pictures, {report.batch_size} at once; texts of {min(lengths)} to {max(lengths)} tokens, "
        f"mean {mean(lengths):.0f}, standard deviation {pstdev(lengths):.0f}"
        f"{', drawn' if report.drawn else ', as the model writes them'}"
    )
    table = new_table("", figures=("pictures/s", "to SIRA, static", "to greedy, static"))
    for row in report.rows:
        speed = f"{row.pictures_per_second.median:.2f}"
        table.add_row(row.name, speed, _ratio(row.by_static), _ratio(row.by_greedy))
    out.print(table)


def _ratio(spread: Spread) -> str:
    ends = "" if spread.low == spread.high else f" ({spread.low:.2f}..{spread.high:.2f})"
    return f"x{spread.median:.2f}{ends}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.throughput", description=(__doc__ or "").partition(":")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("-p", "--preset", help="a preset, or a checkpoint's folder")
    which.add_argument("--shape", help="random weights in a real model's shape")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pictures", type=int, default=128, help="their number (default: %(default)s)")
    parser.add_argument("-b", "--batch-size", type=int, default=16, help="pictures at once (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="rounds, after one that warms up (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, help="the length limit (default: the preset's)")
    parser.add_argument("--image-tokens", type=int, default=600, help="of noise pictures (default: %(default)s)")
    parser.add_argument("--drawn", action="store_true", help="draw lengths for the bundled model too")
    parser.add_argument("--compile", action="store_true", help="also measure compiled steps")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    given = parser.parse_args()
    report = measured(given)
    if given.output is not None:
        save_report(report, given.output)
    print_throughput(report)


def measured(given: argparse.Namespace) -> ThroughputReport:
    """Measure. The bundled model sees validation scenes and writes texts of its own lengths; others see noise."""
    settings = {"device": given.device, "max_new_tokens": given.max_new_tokens}
    if given.shape is not None:
        lvlm = load_shape(given.shape, find("sira"), packed=not given.compile, **settings)
    else:
        lvlm = load(given.preset, compile=given.compile, **settings)
    bundled = lvlm.preset.model == BUNDLED
    if bundled:
        images = [scene.open().stills[0] for scene in islice(validation_pictures(), given.pictures)]
    else:
        images = pictures(lvlm.processor, given.image_tokens, given.pictures)
    return throughput(
        lvlm,
        images,
        batch_size=given.batch_size,
        runs=given.runs,
        drawn=given.drawn or not bundled,
        compile=given.compile,
    )


if __name__ == "__main__":
    main()
