"""The figures of methods side by side, with intervals, differences to the first method, paired tests, and the paper's.

POPE's precision, recall, FPR and yes-rate in the paper add nothing to accuracy and F1: every row has the values that
the printed accuracy and F1 imply for equally many yes- and no-questions (recall = F1 (1 - accuracy) / (1 - F1)). Rows
that do not compare with greedy decoding of their model have a mark.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sira_cli.errors import SettingsError
from sira_cli.eval.answers import Answers, FailedAnswer
from sira_cli.eval.benchmark import MEAN, Benchmark
from sira_cli.eval.published import Expected, as_lines, expected
from sira_cli.eval.statistics import Counts, Figure, McNemarTest, MethodFigures, common, compare_pairs
from sira_cli.models import presets
from sira_cli.run.records import Report, Table

INTERVALS = "pictures: Wilson's, of the effective number of answers; differences by MOVER"
FEW = 30  # pictures
GREEDY = "greedy"  # the method, and its label where it neither samples nor searches with beams
ONLY_SHOWN = ("p", "pictures")  # fields of a row that JSON has not: `tests` has p
IF_PRINTED = ("paper_mark", "published")  # fields of a row that are left out without figures of others
PAPER = Path(__file__).parent / "paper.yaml"
MARK = "is"  # the key of a row's mark in the paper's figures
AUTHORS = "by its authors"


@dataclass(frozen=True)
class MethodRow:
    """One method in one group."""

    part: str
    group: str  # a split, a length, a dimension; or a mean over groups, see `Benchmark.means`
    method: str
    answered: int  # number of asks that count
    failed: int  # asks left out, because this or another method failed on their pictures: all have the same pictures
    counts: Counts  # sums over pictures, the terms of the figures' ratios; empty for a mean
    figures: dict[str, Figure]  # percentages, except `words`, `length`, `seconds`, with 95 % intervals over pictures
    differences: dict[str, Figure]  # paired, to the first method's figures; empty for the first, or without its answers
    paper: dict[str, float] | None = None  # the paper's figures, if they were asked for and exist
    label: str = ""  # the method's name in tables; it marks sampled answers
    paper_mark: str = ""  # set if the paper's figures do not compare with greedy decoding of the model: see `notes`
    published: dict[str, float] | None = None  # those that the model's authors print, if the paper's were asked for
    p: float | None = None  # p value of McNemar's test against the first method; None if they were not compared
    pictures: int = FEW  # their number; below FEW, tables show bounds instead of ±


@dataclass(frozen=True)
class EvalReport(Report):
    """The measured figures, and the settings that decided them."""

    schema = "sira.eval/1"

    benchmark: str
    stand_ins: dict[str, str]  # by part, why its figures differ from those of a published script
    facts: dict[str, Any]  # the rule, language data and their versions, files
    settings: dict[str, dict[str, Any]]  # of each method, as far as known; others are compared with the first
    not_run: dict[str, str]  # methods whose answers are taken from another one, because they cannot differ
    paper: str  # the model whose figures in the paper are shown for comparison, if any
    rows: tuple[MethodRow, ...]
    tests: tuple[McNemarTest, ...]
    failures: tuple[FailedAnswer, ...]
    notes: dict[str, str] = field(default_factory=dict)  # explanations of the marks in the rows, and sources
    intervals: str = INTERVALS  # how they were made
    expected: tuple[Expected, ...] = ()  # greedy decoding's figures next to those that others publish

    optional = ("expected",)

    @classmethod
    def of(cls, benchmark: Benchmark, answers: Sequence[Answers], paper: str = "", model: str = "") -> EvalReport:
        """Make the report of some answers.

        Args:
            benchmark: what was asked.
            answers: those of each method; others are compared with the first.
            paper: the paper's model whose figures are shown.
            model: the preset or model that answered, if the answers do not record it.
        """
        rows: list[MethodRow] = []
        tests: list[McNemarTest] = []
        first, labels = answers[0].name, {one.name: label(one.name, one.settings) for one in answers}
        for part in benchmark.parts:
            here = [one for one in answers if part.name in one.texts]
            timed = all(part.name in one.seconds for one in here)
            tallies = {
                one.name: benchmark.score(part, one.texts[part.name], one.seconds[part.name] if timed else {})
                for one in here
            }
            everything = benchmark.score(part, {ask.id: "" for ask in part.asks})
            pictures = {ask.id: ask.picture for ask in part.asks}
            counted, compared = {}, {}
            for group in part.groups:
                own = counted[group] = common({name: tally[group] for name, tally in tallies.items()}, pictures)
                exact = functools.partial(benchmark.figures, group)
                smooth = functools.partial(benchmark.figures, group, smooth=True)
                compared[group] = MethodFigures.of(own, exact, benchmark.denominators(group), smooth)
                tests += compare_pairs(group, own, compared[group].estimates)
            p = {(test.group, test.second): test.p for test in tests if test.first == first}
            means = {mean: over for mean, over in benchmark.means(part).items() if len(over) > 1}
            compared |= {mean: MethodFigures.mean([compared[group] for group in over]) for mean, over in means.items()}
            for group, figures in compared.items():
                over = means.get(group, (group,))
                asked = sum(len(everything[each].right) for each in over)
                for name in figures.estimates:
                    answered = sum(len(counted[each][name].right) for each in over)
                    rows.append(
                        MethodRow(
                            *(part.name, group, name, answered, asked - answered),
                            counts={} if group in means else counted[group][name].total(),
                            figures=figures.figures(name),
                            differences=figures.differences(name, first),
                            label=labels[name],
                            p=p.get((group, name)),
                            pictures=len(figures.pictures),
                            **printed(paper, benchmark.name, group, name),
                        )
                    )
        stand_ins = benchmark.stand_ins()
        marks = {row.paper_mark for row in rows} | {AUTHORS for row in rows if row.published}
        return cls(
            benchmark=benchmark.name,
            stand_ins=stand_ins,
            facts=benchmark.facts(),
            settings={one.name: one.settings for one in answers},
            not_run={one.name: one.taken_from for one in answers if one.taken_from},
            paper=paper,
            notes={mark: text for mark, text in results()["notes"].items() if mark in marks},
            rows=tuple(rows),
            tests=tuple(tests),
            failures=tuple(failure for one in answers for failure in one.failures),
            expected=tuple(
                each
                for row in rows
                if row.label == GREEDY and row.part not in stand_ins
                for each in expected(model or _model_of(answers), benchmark.name, row.group, row.figures)
            ),
        )

    @property
    def labels(self) -> dict[str, str]:
        """The methods' names in tables, the first method's first."""
        return {name: name for name in self.settings} | {row.method: row.label for row in self.rows}

    def digits(self, figure: str) -> str:
        """Return the format of a figure, with as many decimals as in the paper: `.1f`."""
        return f".{2 if figure == 'seconds' else decimals(self.benchmark, figure)}f"

    def table(self) -> Iterator[Table | str]:
        """Yield tables, one per set of figures, and the lines below them."""
        tables: dict[tuple[str, ...], list[MethodRow]] = {}
        for row in self.rows:
            tables.setdefault(tuple(row.figures), []).append(row)
        for names, rows in tables.items():
            groups = itertools.groupby(rows, key=operator.attrgetter("group"))
            sections = [[[group], *(line for row in own for line in self._lines(row, names))] for group, own in groups]
            yield Table([""], [*names, *["p"] * bool(self.tests)], sections, tight=True)
            for part in dict.fromkeys(row.part for row in rows if row.part in self.stand_ins):
                yield f"{part}: NOT the official figures: {self.stand_ins[part]}"
        yield from self.remarks()

    def _lines(self, row: MethodRow, names: Sequence[str]) -> Iterator[list[str]]:
        """Yield the lines of a method in a group: its figures, the differences, the paper's."""
        p = "" if row.p is None else f"{row.p:.3f}" if row.p >= 0.001 else "<0.001"
        lines: list[tuple[str, Mapping[str, Any] | None, str]] = [
            (f"  {row.label}", row.figures, ""),
            (f"    - {next(iter(self.labels.values()))}", {} if row.method in self.not_run else row.differences, "+"),
            (f"    {', '.join(filter(None, ['in the paper', row.paper_mark]))}", row.paper, ""),
            (f"    {AUTHORS}", row.published, ""),
        ]
        few = row.pictures < FEW
        for head, values, sign in lines:
            if values:
                specs = {name: sign + self.digits(name) for name in names}
                given = {
                    name: each.bounds if few and isinstance(each, Figure) else each.__format__
                    for name, each in values.items()
                }
                cells = [given[name](spec) if name in given else "" for name, spec in specs.items()]
                yield [head, *cells, *[p if values is row.figures else ""] * bool(self.tests)]

    def remarks(self) -> list[str]:
        """Return the lines below the tables: what decides the figures, and the marks in labels and the paper's rows."""
        few = any(row.pictures < FEW for row in self.rows)
        bounds = f"; (low..high): its bounds, below {FEW} pictures" if few else ""
        timed = any("seconds" in row.figures for row in self.rows)
        plain = "words, length and seconds" if timed else "words and length"
        lines = [f"in percent but for {plain}, ± half a 95 % interval over {self.intervals}{bounds}"]
        if self.tests:
            which = f"on which answers only one of {next(iter(self.labels.values()))} and the method is right"
            lines.append(f"p: McNemar's exact test, {which}, taken as independent")
        lines += self.marks()
        equal = "not run, because without sampling its answers equal those of"
        lines += [f"{name}: {equal} {other}" for name, other in self.not_run.items()]
        if self.paper:
            groups = results()["models"].get(self.paper, {}).get(self.benchmark, {})
            printed_rows = [row for row in self.rows if row.paper]
            known = {name for names in groups.values() for name in names} | {row.method for row in printed_rows}
            has = {*groups, MEAN} | {row.group for row in printed_rows}
            without = dict.fromkeys(row.method for row in self.rows if row.method not in known)
            remark = f"; no figures for {', '.join(without)}" if without else ""
            others = dict.fromkeys(row.group for row in self.rows if row.group not in has) if groups else {}
            remark += f"; no figures for {', '.join(others)}, only for {', '.join(groups)}" if others else ""
            lines.append(f"in the paper: {self.paper}{remark}")
        lines += self.expectations()
        facts = ", ".join(f"{name}: {value}" for name, value in self.facts.items() if isinstance(value, str))
        return [*lines, facts] if facts else lines

    def expectations(self) -> list[str]:
        """Return a line for each figure of greedy decoding that others publish for the model."""
        return as_lines(self.expected, self.digits)

    def marks(self) -> list[str]:
        """Return the explanations of the marks in labels and the paper's rows."""
        sampled = any(settings.get("temperature") for settings in self.settings.values())
        lines = ["T: answers are sampled at this temperature; greedy decoding with it is called sampling"] * sampled
        return lines + [f"{mark}: {text}" for mark, text in self.notes.items()]

    def to_json(self) -> str:
        """Return one JSON object, `sira.eval/1`."""
        fields = [asdict(row).items() for row in self.rows]
        rows = [{k: v for k, v in row if k not in ONLY_SHOWN and (v or k not in IF_PRINTED)} for row in fields]
        return self.as_json({"official": not self.stand_ins}, notes=self.notes or None, rows=rows)


def _model_of(answers: Sequence[Answers]) -> str:
    """Return the paper's model that the records of greedy decoding name; empty: another, or none."""
    named = next((one.settings for one in answers if one.name == GREEDY), {})
    return known_model([str(named.get(key)) for key in ("preset", "model")])


def label(name: str, settings: Mapping[str, Any]) -> str:
    """Return a method's name in tables: with a temperature above 0, greedy decoding is sampling."""
    values = (settings.get(key) for key in ("temperature", "top_p", "num_beams"))
    temperature, top_p, beams = (value if isinstance(value, int | float) else 0 for value in values)
    parts = [re.sub(r"^greedy(?=$|\+)", "sampling", name) if temperature else name]
    parts += [f"T={temperature:g}"] * bool(temperature) + [f"top-p={top_p:g}"] * bool(temperature and 0 < top_p < 1)
    return ", ".join([*parts, f"{beams:g} beams"] if beams > 1 else parts)


# The paper's figures.


@functools.cache
def results() -> dict[str, dict[str, Any]]:
    """Return the figures, by model, benchmark, group, method and name; and `notes`, the meaning of every mark."""
    content: dict[str, dict[str, Any]] = yaml.safe_load(PAPER.read_text(encoding="utf-8"))
    return content


def printed(preset_or_model: str, benchmark: str, group: str, method: str) -> dict[str, Any]:
    """Return the fields `paper`, `paper_mark` and `published` of a row of a report; figures are None if unknown."""
    model = paper_models().get(preset_or_model, preset_or_model)
    paper, published = (
        dict(results()[table].get(model, {}).get(benchmark, {}).get(group, {}).get(method, {}))
        for table in ("models", "published")
    )
    mark = paper.pop(MARK, "")
    return {"paper": paper or None, "paper_mark": mark, "published": published or None}


@functools.cache
def decimals(benchmark: str, figure: str) -> int:
    """Return the number of decimals of a figure in the paper: two for the POPE figures it reports, else one."""
    groups = [group for model in results()["models"].values() for group in model.get(benchmark, {}).values()]
    values = [row[figure] for group in groups for row in group.values() if figure in row]
    return 2 if any(round(value, 1) != value for value in values) else 1


@functools.cache
def paper_models() -> dict[str, str]:
    """Return the paper's models: the name of each one's preset, by its Hugging Face id."""
    return {presets.read(presets.SHIPPED / f"{name}.yaml").model: name for name in results()["models"]}


def known_model(names: Sequence[str]) -> str:
    """Return the paper's model for one of some names, a preset's name or a Hugging Face id; empty: none has it."""
    models = paper_models()
    known = [models.get(name, name) for name in names]
    return next((model for model in known if model in models.values()), "")


def find_model(names: Sequence[str]) -> str:
    """Return the paper's model for one of some names: a preset's name or a Hugging Face id."""
    if model := known_model(names):
        return model
    known = ", ".join(paper_models().values())
    raise SettingsError(f"`paper=`: the paper has no figures for {names[0] or names[1]}, only for {known} (-p)")
