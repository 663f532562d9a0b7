"""A label is never scored as the model's answer: every reader of files, every benchmark, the layouts of other tools."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook

from sira_cli.data.rows import read_rows, read_table
from sira_cli.demo import export_closed, export_open
from sira_cli.demo.export import file_name
from sira_cli.errors import DataError
from sira_cli.eval.base import Benchmark
from sira_cli.eval.card import Asking
from sira_cli.eval.catalog import CARDS
from sira_cli.eval.chair.benchmark import Chair
from sira_cli.eval.pope import Pope
from tests.support.eval import amber_data
from tests.support.eval.coco_data import IMAGES, write_coco
from tests.support.eval.drawn import SCENES
from tests.support.eval.writing import lines, save

Row = dict[str, Any]
READERS = ("json", "jsonl", "csv", "tsv", "xlsx")
OWN = {"pope": "answer", "phd": "answer", "chair": "caption"}  # where the benchmark's own format has the answer
MODELS = {"text", "answer", "response", "caption", "model_answer", "model_response", "model_prediction"}
FILES: dict[str, Callable[[], dict[str, str]]] = {
    "dash-b": lambda: export_closed.dash_b(SCENES, file_name)[0],
    "naturalbench": lambda: export_closed.naturalbench(SCENES, file_name),
    "hallusionbench": lambda: export_open.hallusion(SCENES, file_name),
    "phd": lambda: export_open.phd(SCENES)[0],
    "mme": lambda: export_closed.mme(SCENES, file_name)[0],
    "mmhal": lambda: export_open.mmhal(SCENES, file_name),
    "haloquest": lambda: export_open.haloquest(SCENES, file_name),
}


def amber(folder: Path, part: str) -> Benchmark:
    return amber_data.benchmark(amber_data.lay_out(folder), parts=(part,))


def pope(folder: Path) -> Benchmark:
    asked = [{"image": f"{n}.jpg", "text": f"Is there a {n}?", "label": "yes"} for n in range(4)]
    return Pope([lines(folder / "coco_pope_random.json", asked)])


def made(name: str, folder: Path) -> Benchmark:
    for path, content in FILES[name]().items():
        save(folder / path, content)
    read = CARDS[name].read
    assert read is not None
    return read(folder, Asking())


BENCHMARKS: dict[str, Callable[[Path], Benchmark]] = {
    "pope": pope,
    "chair": lambda folder: Chair.of(write_coco(folder), ids=list(IMAGES), language="fallback"),
    **{part: lambda folder, part=part: amber(folder, part) for part in ("generative", "discriminative")},
    **{name: lambda folder, name=name: made(name, folder) for name in FILES},
}


@pytest.fixture(scope="module", params=BENCHMARKS)
def asked(request, tmp_path_factory) -> tuple[str, Benchmark, list[Row]]:
    """A benchmark, and what its own files of answers say about each question besides the answer."""
    folder = tmp_path_factory.mktemp(request.param)
    benchmark = BENCHMARKS[request.param](folder / "data")
    (part,) = benchmark.parts
    if request.param == "mme":  # its official rows have no names
        subsets = [ask.picture.split("/") for ask in part.asks]
        pairs = zip(subsets, benchmark.questions, strict=True)
        return "mme", benchmark, [{"question_id": "/".join(p), "prompt": question.text} for p, question in pairs]
    folder = save(folder / "official" / "a", "").parent
    (path,) = benchmark.export({part.name: {ask.id: "No" for ask in part.asks}}, folder)
    rows = read_table(path)[1] if path.suffix == ".csv" else read_rows(path)
    return request.param, benchmark, [{k: str(v) for k, v in row.items() if k and k not in MODELS} for _, row in rows]


def write(path: Path, head: list[str], rows: list[list[Any]]) -> Path:
    """Write a table; a row may have fewer cells than the head, and in tables also more."""
    if path.suffix == ".xlsx":
        book = Workbook(write_only=True)
        sheet = book.create_sheet()
        for row in (head, *rows):
            sheet.append(row)
        book.save(path)
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([head, *rows])
    else:
        objects = [dict(zip(head, row, strict=False)) for row in rows]
        return save(path, objects) if path.suffix == ".json" else lines(path, objects)
    return path


BOTH = [  # the label's column, the model's
    ("answer", "prediction"),
    ("answer", "response"),
    ("answer", "output"),
    ("answer", "model_answer"),
    ("caption", "text"),
    ("answer", "llava-1.5-7b"),  # only by the name of the model
]
LABELS = ["label", "gt_answer", "Answer", "target", "truth"]


@pytest.mark.parametrize("reader", READERS)
def test_a_label_is_never_the_answer(asked, reader: str, tmp_path: Path):
    name, benchmark, about = asked
    path = tmp_path / f"a.{reader}"

    def read(columns: list[str], *cells: Any, last: tuple[Any, ...] = (), order: int = 1) -> dict[str, str]:
        """Texts by question, of rows with these columns; `last` in the last row."""
        head = [*about[0], *columns][::order]
        rows = [[*row.values(), *(last if last and row is about[-1] else cells)][::order] for row in about]
        return benchmark.read([write(path, head, rows)])[benchmark.parts[0].name]

    def refused(columns: list[str], *cells: Any, naming: tuple[str, ...] = (), **more: Any) -> None:
        with pytest.raises(DataError) as error:
            read(columns, *cells, **more)
        assert all(each in str(error.value) for each in naming), error.value

    for label, model in BOTH:
        for order in (1, -1):
            if label == OWN.get(name) or model.startswith("llava"):
                naming = (
                    ": row " if reader != "jsonl" else "line 1",
                    label,
                    model if label == OWN.get(name) else "",
                )
                refused([label, model], "Yes", "No", order=order, naming=naming)
            else:
                assert {*read([label, model], "Yes", "No", order=order).values()} == {"No"}
    for label in LABELS:
        if label not in about[0]:
            refused([label], "Yes")
    # Tables that harnesses ask from. Benchmarks with a judge take a row without an answer for a verdict.
    judged = name in ("mmhal", "haloquest")
    taken = () if judged else ("expected the model's answer in text", ": answer is taken for the label")
    refused(["index", "answer"], 7, "Yes", naming=taken)
    refused(["category", "answer"], "x", "Yes")
    # Right until the last row, which is cut off.
    if reader != "xlsx":  # there an empty cell is an empty answer
        refused(["index", "answer", "prediction"], 7, "No", "No", last=(7, "Yes"))
    refused(["answer", "response"], "No", "No", last=("Yes",))
    refused(["text", "output"], "No", "No", last=("Yes",))
    if reader not in ("json", "jsonl"):
        refused(["text", "text"], "Yes", "No", naming=("two columns have the same name",))
        refused(["text"], "No", last=("Well", " no"), naming=(f"row {len(about) + 1}", "cells, expected"))
    if reader in ("csv", "tsv"):
        refused(["text", "note"], "No", "", last=("No",), naming=(f"row {len(about) + 1} has", "is the file cut off?"))
    assert {*read(["text"], "No").values()} == {"No"}
    assert {*read(["text"], "=No").values()} == {"=No"}  # no formula


def test_columns_with_the_same_texts_are_one(tmp_path: Path):
    benchmark = pope(tmp_path)
    rows = [{"answer": f"No {n}", "text": f"No {n}", "llava": f"No {n}"} for n in range(4)]
    assert [*benchmark.read([lines(tmp_path / "a.jsonl", rows)])["pope"].values()] == [f"No {n}" for n in range(4)]
    rows[2]["answer"] = "Yes"
    message = r"line 3: answer \('Yes'\) and text \('No 2'\) could both be the model's answer: remove one"
    with pytest.raises(DataError, match=message):
        benchmark.read([lines(tmp_path / "a.jsonl", rows)])
