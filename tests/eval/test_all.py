"""`sira eval all`: what a folder holds, with one model, on one page."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sira_cli.errors import SettingsError, SiraError
from sira_cli.eval.catalog import CARDS
from sira_cli.eval.found import find_benchmarks, unjudged
from sira_cli.eval.overview import LEFT_OUT
from tests.support.browser import violations, without_axe
from tests.support.eval.helpers import values

EXPORTED = ["pope", "chair", "amber", "dash-b", "naturalbench", "hallusionbench", "phd", "mme"]
SHORT = ("--max-new-tokens", 12)


class Cells(HTMLParser):
    """The texts of a page, one per element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.links += [value for name, value in attrs if name in ("src", "href")]


def test_benchmarks_are_found_with_their_pictures(scenes):
    found = find_benchmarks(scenes)
    assert [one.card.name for one in found] == EXPORTED
    for one in found:
        pictures = {ask.picture for part in one.benchmark.parts for ask in part.asks}
        assert all((one.images / picture).is_file() for picture in pictures)
    (pope,) = (one.benchmark for one in found if one.card.name == "pope")
    assert any("RePOPE" in group for group in pope.parts[0].groups)


def test_a_limit_holds_for_all(scenes):
    whole, limited = find_benchmarks(scenes), find_benchmarks(scenes, limit=1)
    for one, other in zip(limited, whole, strict=True):
        assert 0 < len(one.benchmark.parts[0].asks) < len(other.benchmark.parts[0].asks)


def test_named_ones_are_run_with_their_options(sira, scenes, loaded):
    command = ("eval", "chair,pope", scenes, "-p", "demo", "-b", 16, "--limit", 1, "--no-controls", "--json", *SHORT)
    code, out, err = sira(*command, "--option", "rule=strict", "--option", "chair.rule=singular")
    assert (code, "--option rule=strict: expected lemma, singular" in err) == (2, True)  # both have a rule
    code, out, _ = sira(*command, "--option", "pope.rule=strict", "--option", "language=fallback")
    reports = json.loads(out)["benchmarks"]
    assert (code, [*reports], "rule strict" in str(reports["pope"]["stand_ins"])) == (0, ["chair", "pope"], True)


def test_one_that_is_not_there(sira, scenes):
    code, _, err = sira("eval", "pope", scenes / "coco", "-p", "demo")
    assert (code, "has no folder pope with POPE's files of questions" in err) == (2, True)
    assert "add --images=FOLDER to ask" in err or "add --images FOLDER to ask" in err


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("coco/annotations/", "`ids=` FILE is needed"),
        ("pope/", "pope: holds no .json file"),
        ("dash-b/", "has no dash_benchmark_pos.json"),
        ("mme/", "has no"),
    ],
)
def test_a_benchmark_that_lacks_its_files_is_not_passed_over(tmp_path, made, message):
    (tmp_path / made).mkdir(parents=True)
    with pytest.raises(SiraError, match=message):
        find_benchmarks(tmp_path)


def test_files_of_a_judged_benchmark_are_not_read(tmp_path):
    (tmp_path / "mmhal").mkdir()  # without its template
    with pytest.raises(SettingsError, match=r"holds no benchmark.*those that need a judge are not run"):
        find_benchmarks(tmp_path)
    assert unjudged(tmp_path) == ["mmhal"]
    with pytest.raises(SettingsError, match="mmhal: a judge has to read its answers"):
        find_benchmarks(tmp_path, cards=[CARDS["mmhal"]])


def test_a_benchmark_without_pictures_is_named(scenes, tmp_path):
    shutil.copytree(scenes / "naturalbench", tmp_path / "naturalbench")
    with pytest.raises(SiraError, match=r"none of the pictures of naturalbench is in .*images: put them there"):
        find_benchmarks(tmp_path)


def test_the_page(sira, scenes, loaded, tmp_path):
    run = ("eval", "all", scenes, "-p", "demo", "-b", 16, "--limit", 2, "-o", tmp_path / "out", *SHORT)
    page = tmp_path / "all.html"
    code, out, err = sira(*run, "--html", page)
    assert (code, "holds pope, chair, amber" in err) == (0, True)
    asked = loaded.total()
    code, printed, _ = sira(*run, "--json")
    assert (code, loaded.total()) == (0, asked)  # nothing is asked again
    code, _, err = sira(*run, "--dtype", "bfloat16")
    assert (code, "holds records of another configuration" in err) == (2, True)  # as in the other commands
    record = json.loads(printed)
    assert list(record["benchmarks"]) == EXPORTED
    shown = Cells(page.read_text()).texts
    for name, report in record["benchmarks"].items():
        assert report == json.loads((tmp_path / "out" / name / "report.json").read_text())
        assert {*record["cost"][name]} == {"greedy", "sira"}
        assert all(cost["seconds"] > 0 and cost["tokens"] >= 1 for cost in record["cost"][name].values())
        means = {row["part"] for row in report["rows"] if not row["counts"]}
        main = {row["group"] for row in report["rows"]} & {*CARDS[name].main}
        for row in report["rows"]:
            if (
                row["method"] != "sira"
                or (row["counts"] and row["part"] in means)
                or row["group"] not in (main or {row["group"]})
            ):
                continue
            for figure, found in row["figures"].items():
                digits = 2 if name == "pope" else 1
                cell = f"{found['value']:.{digits}f} ±{(found['high'] - found['low']) / 2:.{digits}f}"
                assert figure in LEFT_OUT or (cell in shown and cell in out)
    assert "NOT the official figures" in out
    assert not Cells(page.read_text()).links  # one file
    own = ("eval", "dash-b", scenes / "dash-b", "--images", scenes / "dash-b", "-p", "demo", "-b", 16)
    report = json.loads(sira(*own, *SHORT, "--limit", 2, "--json")[1])
    assert values(report) == values(record["benchmarks"]["dash-b"])  # the figures are those of its command


@without_axe
def test_axe_finds_nothing(browser, sira, scenes, tmp_path):
    page = tmp_path / "all.html"
    run = ("eval", "pope", scenes, "-p", "demo", "-b", 16, "--limit", 1, "--no-controls", *SHORT)
    assert sira(*run, "--html", page)[0] == 0
    browser.open(page.as_uri())
    assert violations(browser) == []


def test_failed_pictures_are_told(sira, scenes, loaded, tmp_path: Path):
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    (folder / "naturalbench").mkdir()
    (folder / "naturalbench" / "naturalbench.jsonl").write_bytes(
        (scenes / "naturalbench" / "naturalbench.jsonl").read_bytes()
    )
    names = sorted(path.name for path in (scenes / "images").iterdir())
    for name in names[1:]:
        (folder / "images" / name).write_bytes((scenes / "images" / name).read_bytes())
    code, out, _ = sira("eval", "all", folder, "-p", "demo", "-b", 8)
    assert (code, "1 picture failed: left out of all figures" in out) == (3, True)
