"""A sweep from Python: measure SIRA over K and alpha on yes/no questions, resumable, without a terminal.

sweep = Sweep(from_files(["coco_pope_random.json"], "val2014/"), load("llava-1.5-7b"), output="sweep.jsonl")
for event in sweep.events():
    print(event)
print(sweep.report().best)
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from sira_cli.analysis.sweep.cells import ALPHAS, Grid, spread
from sira_cli.analysis.sweep.grid import FirstTokens, GridEvent, answer_questions, write_captions
from sira_cli.analysis.sweep.outcome import SweepReport
from sira_cli.analysis.sweep.questions import QuestionSet
from sira_cli.analysis.sweep.units import Units, decisive
from sira_cli.core.families import find_backbone
from sira_cli.run.batch import BatchSize, check_batch_size
from sira_cli.run.events import FailedPicture, StageStarted
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.runner import Runner


class Sweep:
    """K and alpha over some questions.

    Attributes:
        grid: the settings that are measured.
        failures: pictures that failed, each once.
    """

    def __init__(
        self,
        questions: QuestionSet,
        lvlm: Lvlm,
        *,
        ks: Sequence[int] | None = None,
        every_k: bool = False,
        alphas: Sequence[float] = ALPHAS,
        captions: bool = False,
        batch_size: BatchSize | None = None,
        output: str | Path | None = None,
        units: Units | None = None,
    ) -> None:
        """Prepare a sweep."""
        check_batch_size(batch_size)
        largest = lvlm.layers - find_backbone(lvlm.model).first_boundary
        chosen = tuple(ks) if ks else tuple(range(1, largest + 1)) if every_k else spread(lvlm.layers, largest)
        self.grid = Grid(chosen, tuple(alphas))
        lvlm.check_prompts((each.text, each.picture) for each in questions.questions)
        self._questions, self._lvlm, self._captions, self._batch_size = questions, lvlm, captions, batch_size
        self._own = units is None
        self._units = Units(None if output is None else Path(output)) if units is None else units
        self.failures: list[FailedPicture] = []

    def events(self) -> Generator[StageStarted | GridEvent, None, None]:
        """Measure once, and yield events. A picture that fails is an event once; the others go on.

        At the end the file of `output` is closed.
        """
        try:
            yield from self._events()
        finally:
            if self._own:
                self._units.close()

    def _events(self) -> Generator[StageStarted | GridEvent, None, None]:
        lvlm, questions, units = self._lvlm, self._questions, self._units
        settings = decisive(lvlm.preset, questions, self.grid.alphas, self._captions)
        settings |= {"quantization": lvlm.quantization, "k": list(self.grid.ks)}
        units.begin(settings | {"checkpoint": lvlm.revision, "dtype": str(lvlm.model.dtype)})
        runner = Runner(FirstTokens(lvlm, self.grid), self._batch_size)
        failed: dict[str, FailedPicture] = {}
        yield StageStarted("questions", len(questions.questions))
        for event in answer_questions(lvlm, questions, units, runner):
            if isinstance(event, FailedPicture):
                if event.picture in failed:
                    continue
                failed[event.picture] = event
                self.failures.append(event)
            yield event
        if self._captions:
            yield StageStarted("captions", len(questions.pictures) * len(self.grid.cells()))
            yield from write_captions(lvlm, questions, self.grid, units, self._batch_size)
        units.complete()

    def report(self, score: str = "accuracy") -> SweepReport | None:
        """Return the figures and the best setting, by `accuracy` or `F1`; None if nothing was answered."""
        if not len(self._units):
            return None
        return SweepReport.of(
            self._lvlm,
            self._questions,
            self.grid,
            self._units,
            captions=self._captions,
            score=score,
            failures=self.failures,
        )
