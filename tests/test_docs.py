"""What README, docs/ and CONTRIBUTING.md promise, the library's examples as they stand, and what is in the wheel."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import typer

from sira_cli.cli import app
from sira_cli.demo.export import export
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import TEST_SEEDS
from sira_cli.eval import cards
from sira_cli.eval.benchmark import Card
from sira_cli.methods import METHODS
from sira_cli.methods.greedy import Greedy
from sira_cli.models import cpu, presets
from sira_cli.pictures import sources
from sira_cli.pictures.picture import Source
from sira_cli.run.records import Result
from tests.support.eval.benchmarks import Made
from tests.support.eval.writing import lines

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sira_cli"
MANUAL = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
BENCH = sorted(f"docs/bench/{path.name}" for path in (ROOT / "docs/bench").glob("*.md"))
PAGES = (*MANUAL, *BENCH, "custom_generate/README.md")


def blocks(language: str, page: str = "README.md") -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    """To files, and to headings in them."""
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        path, _, heading = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.is_file(), target
        headings = {
            re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
            for line in (file.read_text(encoding="utf-8").splitlines() if heading else ())
            if line.startswith("#")
        }
        assert not heading or heading in headings, target


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_are_understood(page):
    """Each `sira` of a code block is parsed, and not run."""
    for words in re.findall(r"(?:^|&& |from \. )(sira [^#&>\n]+)", "".join(blocks("", page)), re.MULTILINE):
        command, context, rest = typer.main.get_command(app), None, shlex.split(words)
        while rest and "..." not in rest:
            context = command.make_context(rest[0], rest[1:], parent=context)
            rest = [*context._protected_args, *context.args]
            command = command.commands[rest[0]] if rest else command


def test_nothing_says_to_install_a_name_that_is_not_published():
    """Neither messages nor pages: until there is a version on PyPI, that name is anybody's."""
    outside = {"tests", "node_modules", ".venv"}
    kinds = ("*.py", "*.md", "*.txt", "*.toml", "Dockerfile", ".ci/[a-z]*", "*/workflows/*.yml")
    texts = [path for kind in kinds for path in ROOT.rglob(kind) if not outside & {*path.parts}]
    first = r"(?:(?:pipx?|tool) install|add|uvx|--from|--with)(?: +-\S+)* +['\"]?sira\b"
    name = re.compile(first + r"|pipx? install\b.*\bsira[-_]cli(?!/|\.)")  # or as a later package
    told = [(path.name, line) for path in texts for line in path.read_text(encoding="utf-8").splitlines()]
    assert [each for each in told if name.search(each[1])] == []
    for command in (
        "pip install sira-cli",
        "pip install -U 'sira-cli[data]'",
        "uvx sira demo",
        "uv pip install x sira-cli",
    ):
        assert name.search(command)


def test_ci_types_the_two_lines_of_readme():
    """The one for users and the one for those who change the code; `.ci/run` finds them by these patterns."""
    patterns = re.findall(r"grep -E -m 1 '(.+)' README\.md", (ROOT / ".ci/run").read_text(encoding="utf-8"))
    (block,) = (block for block in blocks("") if "pip install" in block)
    found = [re.findall(pattern + r"[^#\n]*", block, re.MULTILINE) for pattern in patterns]
    user, developer = ([line.strip() for line in lines] for lines in found)
    assert user == ["pip install . && sira demo"]
    assert developer == ['pip install -c constraints.txt -e ".[dev]" && pytest -n auto']


def test_every_page_and_every_record_is_named():
    readme, bench = ((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/bench/README.md"))
    assert {page for page in MANUAL if f"]({page})" not in readme} == {"README.md"}
    named = set(re.findall(r"^\| `([\w.-]+)` \|", bench, re.MULTILINE))
    assert named == {path.stem for path in (ROOT / "docs/bench").glob("*.json")}


def test_every_environment_variable_is_in_the_manual():
    """Those that the package reads or sets, and those that it names in messages."""
    read = re.compile(
        r"""environ(?:\.get\(|\.setdefault\(|\[)"([A-Z_]+)"|envvar="([A-Z_]+)"|\b(HF_(?:TOKEN|HUB_OFF\w+))"""
    )
    used = {*cpu.CHOSEN}
    for path in PACKAGE.rglob("*.py"):
        if path.name not in ("lmms_model.py", "on_ray.py", "processes.py"):  # these set some for another program
            used |= {"".join(found) for found in read.findall(path.read_text(encoding="utf-8"))}
    assert {"SIRA_HOME", "SIRA_API_KEY", "HF_TOKEN", "HF_HUB_OFFLINE"} <= used
    assert used <= {*re.findall(r"`([A-Z][A-Z_]+)`", (ROOT / "docs/help.md").read_text(encoding="utf-8"))}


def test_every_key_of_a_record_is_documented():
    told = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/records.md").read_text(encoding="utf-8"), re.MULTILINE)
    keys = re.findall(r"\w+", " ".join(told))
    assert sorted(keys) == sorted(each.name for each in dataclasses.fields(Result))


def test_the_preset_in_the_manual_is_valid(tmp_path):
    (example,) = blocks("yaml", "docs/models.md")
    (tmp_path / "example.yaml").write_text(example, encoding="utf-8")
    preset, shipped = presets.read(tmp_path / "example.yaml"), presets.find("qwen2.5-vl-7b")
    assert (preset.model, preset.sira) == (shipped.model, shipped.sira)


@pytest.mark.slow
def test_the_wheel_works_without_the_checkout(tmp_path, photos):
    """No tools and no tests are in it, but all that the package reads."""
    built, own = tmp_path / "built", tmp_path / "own"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    assert wheel.stat().st_size < 12e6
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(own)
    assert {path.name for path in own.iterdir() if path.suffix != ".dist-info"} == {"sira_cli"}
    script = "import sys; from sira_cli import load; from sira_cli.models import presets\n"
    script += "load('demo').caption(sys.argv[1])\nprint(*sorted(presets.available()))"
    environment = {"PYTHONPATH": str(own), "SIRA_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", script, str(photos["chelsea"])]
    run = subprocess.run(command, cwd=own, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == sorted(path.stem for path in (ROOT / "presets").iterdir())
    read = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert {".txt", ".js", ".html", ".safetensors"} <= {path.suffix for path in read}
    for path in read:
        assert (own / "sira_cli" / path.relative_to(PACKAGE)).read_bytes() == path.read_bytes()
    assert list(own.glob("sira_cli-*.dist-info/licenses/sira_cli/language/chair.LICENSE"))


# docs/library.md.

PICTURES = sorted((ROOT / "examples").glob("*.png"))[:3]
LIBRARY = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", LIBRARY, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with what a checkout has, and what the page says to export."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "examples").mkdir()
    for path in PICTURES:
        shutil.copy(path, folder / "examples")
    export([held_out(TEST_SEEDS[0])], folder / "scenes")
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Run an example; returns the lines that it prints."""
    monkeypatch.chdir(folder)

    def run(title: str) -> list[str]:
        capsys.readouterr()
        exec(compile(EXAMPLES[title], f"library.md, {title}", "exec", dont_inherit=True), {"__name__": "example"})
        return capsys.readouterr().out.splitlines()

    return run


def test_every_section_has_one_example_but_the_errors():
    assert [*EXAMPLES, "Errors"] == re.findall(r"^## (.*)$", LIBRARY, re.MULTILINE)
    assert LIBRARY.count("```python") == len(EXAMPLES)


def test_one_picture(run):
    for title, pattern in {"One picture": r"\S.* stop \w+", "Another method": r".*\."}.items():
        (line,) = run(title)
        assert re.fullmatch(pattern, line), title
    (line,) = run("A text, object by object")
    assert [thing for thing, _ in ast.literal_eval(line)] == ["dog", "tree"]
    assert all(0 < support < 1 for _, support in ast.literal_eval(line))


def test_ones_own_model(llava, capsys):
    names: dict[str, object] = {}
    for title in ("Your own model and code", "Your own model, any method"):
        exec(compile(EXAMPLES[title], "library.md", "exec"), names)
    length = llava.inputs["input_ids"].shape[1]
    ids = names["caption"](llava.model, llava.inputs)
    assert len(capsys.readouterr().out.splitlines()) == ids.shape[1] - length == 64
    assert names["caption_with_vcd"](llava.model, dict(llava.inputs)).shape[1] > length


def test_many_pictures_and_a_folder_that_is_done_once(run, folder):
    assert [line.split()[0] for line in run("Many pictures")] == [f"examples/{path.name}" for path in PICTURES]
    before = None
    for event in ("Finished", "Skipped"):
        assert [line.split("(")[0] for line in run("A folder, resumable")] == ["Started", *len(PICTURES) * [event]]
        records = (folder / "captions.jsonl").read_bytes()
        assert before in (None, records)
        before = records


def test_pope_is_what_the_command_prints(run, sira):
    *events, report = run("POPE")
    assert {line.split("(")[0] for line in events} == {"StageStarted", "Finished"}
    questions = ("scenes/pope/scenes_pope_random.json", "--images", "scenes/images")
    code, out, _ = sira("eval", "pope", *questions, "-p", "demo", "--method", "sira,vcd", "-o", "pope", "--json")
    found, expected = json.loads(report), json.loads(out)
    assert (code, found["rows"]) == (0, expected["rows"])
    assert [row["method"] for row in found["rows"]] == ["greedy", "greedy+apc", "sira", "vcd"]


# CONTRIBUTING.md: something new is one file to write, and one line to change (here: `setitem`).

SCENE = ROOT / "examples" / "scene-2900000.png"
CAPTION = ("-p", "demo", "--max-new-tokens", 8, "--json")


def test_a_benchmark_is_a_file_and_a_card(sira, monkeypatch, tmp_path):
    words = ("made", "Made up", "here", "share", "made.json", "1 kB", "none", "nowhere", '{"id", "said"}')
    monkeypatch.setitem(cards.CARDS, "made", Card(*words, lambda folder, asking: Made(1)))
    assert "made: Made up (here)" in sira("eval")[1]
    (tmp_path / "0.jpg").write_bytes(SCENE.read_bytes())
    model = ("--images", tmp_path, "-p", "demo", "--against", "greedy", "--method", "greedy", "-q")
    said = lines(tmp_path / "said.jsonl", [{"id": "a/0", "said": "1"}, {"id": "b/0", "said": "no"}])
    for options, shares in ((model, [0, 0, 0]), (("--answers", said), [100, 0, 50])):
        code, out, err = sira("eval", "made", tmp_path, "--json", *options)
        assert code == 0, err
        assert [row["figures"]["share"]["value"] for row in json.loads(out)["rows"]] == shares


def test_a_method_is_a_file_and_a_row(sira, monkeypatch):
    monkeypatch.setitem(METHODS, "again", type("Again", (Greedy,), {"name": "again"})())
    code, out, _ = sira("caption", SCENE, *CAPTION, "--method", "again")
    greedy = json.loads(sira("caption", SCENE, *CAPTION, "--method", "greedy")[1])
    assert code == 0
    assert json.loads(out)["text"] == greedy["text"]
    assert json.loads(out)["method"] == "again"
    assert "again" in sira("caption", SCENE, *CAPTION, "--method", "nothing")[2]


def test_a_place_of_pictures_is_a_file_and_a_line(sira, monkeypatch):
    monkeypatch.setitem(sources.SCHEMES, "scene", type("Drawn", (Source,), {"read": lambda self: SCENE.read_bytes()}))
    code, out, _ = sira("caption", "scene://2900000", *CAPTION)
    file = json.loads(sira("caption", SCENE, *CAPTION)[1])
    assert (code, json.loads(out)["text"]) == (0, file["text"])
    assert json.loads(out)["file_name"] == "scene://2900000"
