"""What commands of analysis refuse before they load a model: in one line, and no file is written or changed."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tests.support.eval.writing import lines, save
from tests.support.records import caption_record
from tests.support.traces import make_trace, write_traces

EXAMPLES = [str(path) for path in sorted(Path(__file__).parents[2].glob("examples/*.png"))[:2]]
REFUSED = [
    ("bench --shape gpt", "no shape named 'gpt'; there are gemma4-26b-a4b"),
    ("bench --shape qwen2.5-vl-3b -p demo", "--shape is a model of its own"),
    ("bench --shape qwen2.5-vl-3b --set quantization=4bit", "only --device, --set k and --set load.dtype"),
    ("bench --max-new-tokens 0", "--max-new-tokens '0': expected whole numbers from 1 on, such as 1,8"),
    ("calibrate ict -m no/model", "give --questions FILE... with --images FOLDER, or --scenes"),
    ("calibrate ict -m no/model --scenes --images captions", "not both"),
    ("calibrate ict -m no/model --questions pope.json --images nowhere", "--images nowhere: is not a folder"),
    ("calibrate vti -m no/model", "give FILE.jsonl with --images FOLDER (-p demo"),
    ("calibrate vti -p demo --images captions", "--images is for FILE.jsonl: name the file"),
    ("calibrate vti pope.json --images nowhere -m no/model", "--images nowhere: is not a folder"),
    ("calibrate support x --controls --labels x.json", "--controls needs no labels"),
    ("calibrate support captions --controls -p demo --objects ask", "needs a list of objects: give --objects FILE"),
    ("calibrate support x --scenes", "--scenes and --limit are for drawn scenes"),
    ("calibrate support x", "give the ground truth: --labels PATH"),
    ("calibrate support --labels x.json", "--labels is for records: also give PATH"),
    ("calibrate support x --answers a.jsonl", "--answers and --objects are for --controls"),
    ("calibrate support --controls", "--controls is for captions, such as `sira caption -o FILE` writes: give PATH"),
    ("calibrate support -m m", "name files of records, which `sira caption --verify flag -o captions.jsonl` writes"),
    ("compare a.jsonl trace.jsonl", "line 1 is not a record of sira caption, sira ask or sira check"),
    ("compare a.jsonl b.jsonl", "have no picture in common"),
    ("compare a.jsonl missing.jsonl", "missing.jsonl: cannot be read: No such file or directory"),
    ("export a.jsonl", "nothing to write"),
    ("export a.jsonl --csv c.txt", "ends in .csv"),
    ("export a.jsonl -o a.jsonl", "is read by this command"),
    ("export a.jsonl --exiftool pope.json", "exists"),
    ("report trace.jsonl -o trace.jsonl --overwrite", "expected a file that ends in .html"),
    ("report trace.jsonl -o .", "is a folder, expected a file"),
    ("sweep -p llava-1.5-7b", "give POPE's question files with --images FOLDER, or --scenes"),
    ("sweep pope.json --images . --scenes", "give question files with their --images, or --scenes, not both"),
    ("sweep pope.json --images . --captions", "--captions is for scenes, whose content is known"),
    ("sweep -p demo --k 1-", "--k '1-': expected all, or numbers and ranges"),
    ("sweep -p demo --alpha 0", "--alpha '0': expected numbers above 0"),
    ("sweep -p demo --plot sweep.gif", "sweep.gif: expected a name that ends in .png, .pdf, .svg"),
    ("trace {0} -p demo --force ' '", "--force: the text is empty"),
    ("trace {0} -p demo --force 'A \udcff.'", "--force: 'A \\udcff.' holds bytes that are not UTF-8"),
    ("trace {0} -p demo -o x.jsonl --output-dir x", "give --output or --output-dir, not both"),
    ("trace {0} {1} -p demo --full-logits x", "--full-logits is for one picture, not 2"),
    ("trace --force-from empty.jsonl -p demo", "line 1: the text to force is empty"),
    ("trace {0} --force-from a.jsonl -p demo", "--force-from names the pictures itself: leave out the paths"),
    ("trace --force-from none.jsonl -p demo", "line 1: expected text or caption, found file_name"),
    ("report gone.jsonl -o page.html", "gone.jsonl: cannot be read: No such file"),
    ("report captions -o page.html", "captions: holds no .jsonl files; `sira trace IMAGE --output-dir"),
    ("report trace.jsonl void.jsonl -o page.html", "void.jsonl: is empty, expected a trace"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    save(folder / "captions/a.txt", "A dog.")
    shutil.copy(EXAMPLES[0], folder / "captions/a.png")
    write_traces(folder / "trace.jsonl", make_trace(text="A cat."))
    for name in "ab":
        lines(folder / f"{name}.jsonl", [caption_record(f"{name}.png")])
    lines(folder / "pope.json", [{"image": "captions/a.png", "text": "A dog?", "label": "yes"}])
    lines(folder / "empty.jsonl", [{"file_name": "a.png", "text": " "}])
    lines(folder / "none.jsonl", [{"file_name": "a.png"}])
    save(folder / "void.jsonl", "")
    return folder


@pytest.mark.parametrize(("command", "message"), REFUSED)
def test_what_is_refused(sira, folder, monkeypatch, command, message):
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    monkeypatch.chdir(folder)
    monkeypatch.setattr("sira_cli.run.lvlm.load", None)
    before = files()
    code, out, err = sira(*shlex.split(command.format(*EXAMPLES)))
    assert code == 2, err
    assert out == "", err
    assert message in err, err
    assert err.count("\n") == 1, err
    assert files() == before
