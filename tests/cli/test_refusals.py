"""What cannot work is one line on stderr, with its exit code, before the model is loaded."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tests.support.shards import EXAMPLES, write_tar

SCENE, DEMO = "caption photos/0.png -p demo", "-p demo"
TYPED = (  # of caption: the option, and what is said about it
    *("--alpha high: expected a number from 0", "--alpha -1: expected a number from 0"),
    *("--set alpha=high: expected a number from 0", "--set alpha=-1: expected a number from 0"),
    *("--temperature hot: expected a number from 0", "--top-p 0: expected a number above 0 to 1"),
    "--set generation.top_p=high: expected a number above 0 to 1",
    *("--dtype half: expected auto, float32, bfloat16 or float16", "--verify yes: expected flag, guide or best"),
    *("--limit 0: expected a whole number from 1", "--batch-size x: expected a whole number from 1, or auto"),
    *("--alpha: expected a value", "--shard 9/2: expected I/N with I from 1 to N, such as 1/8"),
    "--set xyz=1: neither a key of presets nor a setting of methods; `sira presets show demo --all` lists them",
)
ROWS = [
    *((f"{SCENE} {each.partition(':')[0]}", 2, f"sira: {each}\n") for each in TYPED),
    ("caption x.png --recursve", 2, "sira: no such option: --recursve; did you mean --recursive?\n"),
    ("captoin", 2, "No such command 'captoin'. Did you mean 'caption'?"),
    ("caption", 2, "Missing argument 'PATH'"),
    *(
        (each, 2, "as by: sira caption PATH -p NAME (sira presets list shows")
        for each in ("list", "pull demo", "run x")
    ),
    ("serve demo", 2, "a preset is named by -p, as in: sira serve -p demo (sira presets list shows their names)"),
    ("bench demo more", 2, "a preset is named by -p, as in: sira bench -p demo (sira presets list"),
    ("presets list x", 2, "sira: Got unexpected extra argument(s) (x)\n"),
    ("ask x.jpg README.md", 2, "sira: the question comes last, but README.md is a file"),
    ("ask photos", 2, "sira: the question comes last, but photos is a folder: add the question in quotes"),
    ("ask 'Why?'", 2, "sira: "),
    ("ask README.md 'A cup?' 'A dog?'", 2, "sira: 'A cup?' is not a picture: give one question at a time"),
    ("ask photos/0.png 'a <image> b' -p demo", 2, "sira: the prompt holds <image>"),
    ("caption a.jpg b.jpg", 2, "sira: a.jpg: no such file, nor any of the other 1"),
    ("caption users.yaml", 2, "sira: users.yaml: is not a picture that Pillow can read; convert it to PNG or JPEG\n"),
    ("caption users.yaml a.jpg", 2, "sira: users.yaml: is not a picture that Pillow can read; convert it to PNG or "),
    ("trace users.yaml", 2, "sira: users.yaml: is not a picture that Pillow can read"),
    ("ask users.yaml Why?", 2, "sira: users.yaml: is not a picture that Pillow can read"),
    ("caption demo photos/0.png", 2, "sira: demo: no such file; the preset is -p demo\n"),
    ("drift demo", 2, "sira: demo: no such file; the preset is -p demo\n"),
    *((f"{each} a.jpg", 2, "sira: a.jpg: no such file\n") for each in ("trace", "drift", "check", "calibrate maskcd")),
    (f"{SCENE} --method vdc", 2, "sira: no method named 'vdc'; did you mean vcd?; available: "),
    ("caption empty", 2, "sira: empty: no pictures in this folder"),
    ("caption ''", 2, "sira: a picture's path is empty"),
    ("caption - -", 2, "sira: '-' (stdin) can be given once"),
    ("caption - -p demo -m x/y", 2, "sira: give --preset or --model, not both"),
    ("caption - -p dema", 2, "sira: no preset named 'dema'; did you mean `demo`?"),
    ("caption - -m ./nowhere", 2, "sira: model folder ./nowhere does not exist"),
    ("caption -", 1, "sira: Qwen/Qwen2.5-VL-7B-Instruct (about 16.6 GB) is not in the cache"),
    ("eval pope --method sira README.md --images photos", 2, "sira: README.md: "),
    ("presets check nowhere.yaml", 2, "sira: nowhere.yaml: cannot be read"),
    # files
    *((f"caption {each}", 2, "there is no user nouser: write ./~nouser/x") for each in ("~nouser/x", "x -m ~nouser/x")),
    *((f"caption x -o {'x' * size}", 2, "is too long for a file's name") for size in (300, 245)),  # .run.json is longer
    ("presets check users.yaml", 2, "sira: ~nouser/x: there is no user nouser: write ./~nouser/x for a folder ~nouser"),
    (f"{SCENE} -o captions.txt", 2, "--output captions.txt: expected a name that ends in .jsonl, or a folder"),
    (f"caption {DEMO} --files-from no.txt", 2, "--files-from no.txt: cannot be read: No such file"),
    (
        f"caption photos/0.png photos/0.txt --sidecar {DEMO}",
        2,
        "0.txt: its text would replace it: choose another extension",
    ),
    (f"{SCENE} --sidecar --caption-extension .png", 2, "caption extension '.png': expected one for text files"),
    # a second look
    (f"{SCENE} --min-support 0.3", 2, "also give --verify"),
    (f"{SCENE} --verify flag --objects none.txt", 2, "none.txt: cannot be read"),
    (f"{SCENE} --verify flag --min-support 2", 2, "--min-support 2: expected a number from 0 to 1"),
    (f"{SCENE} --verify guide --tags", 2, "--verify guide writes sentences, and --tags asks for values"),
    (f"{SCENE} --verify guide --objects ask", 2, "give --objects a list"),
    ("check", 2, "Missing argument 'PATH': a folder of pictures with captions"),
    (f"check x.jsonl -o x.jsonl {DEMO}", 2, "--output x.jsonl: would replace the captions in x.jsonl"),
    (f"check x.jsonl --images nowhere {DEMO}", 2, "no such file; names in a file start from its folder, or from --im"),
    (f"check photos --objects none.txt {DEMO}", 2, "none.txt: cannot be read"),
    (f"check photos -o x.jsonl {DEMO}", 2, "x.jsonl: line 1 is not a record of sira"),
    ("check photos --endpoint http:///v1 -m m", 2, "--endpoint is not an address"),
    ("check photos --endpoint http://x/v1?key=1 -m m", 2, "--endpoint is not an address"),
    ("check photos --endpoint http://x/v1 -m m -b 2", 2, "--batch-size is for a model that is loaded here"),
    ("check photos --endpoint http://x/v1 -m m", 2, "--endpoint needs the package openai, which is not installed"),
    # a Ray cluster
    (f"check photos --engine ray {DEMO}", 2, "--engine ray writes files: give -o FILE"),
    (f"check photos --engine ray:0 {DEMO}", 2, "--engine ray:0: expected local, vllm, ray, or ray:N"),
    (f"{SCENE} --engine ray", 2, "--engine ray reads and writes files: give paths, and -o FILE"),
    (f"caption - --engine ray -o o.jsonl {DEMO}", 2, "--engine ray reads and writes files"),
    (f"{SCENE} --engine ray -o o.jsonl", 2, "pip install 'ray[data]<"),
    # pictures together
    (f"{SCENE} --files-from g.jsonl", 2, "--files-from g.jsonl says itself which pictures"),
    (f"caption --files-from empty.jsonl {DEMO}", 2, "line 1: images is []: expected a list of names"),
    (f"caption --files-from texts.jsonl {DEMO}", 2, "line 1: expected images or image or file_name, found text"),
    (f"caption photos --together --limit 1 {DEMO}", 2, "--limit chooses among pictures, but --together shows all"),
    (f"caption photos --together --sidecar {DEMO}", 2, "is written as a record, not as a text file"),
    (f"caption t.parquet --image-column a.png,b.png --together {DEMO}", 2, "together already: leave out --together"),
    (f"caption s.tar --image-column a.png,b.png --together {DEMO}", 2, "together already: leave out --together"),
    # the server
    ("serve -p demo --limit waiting=1025", 2, "--limit waiting=1025: expected a whole number from 1 to 1024"),
    ("serve -p demo --limit mb=x", 2, "--limit mb=x: expected a whole number"),
    ("serve -p demo --limit rows=3", 2, "--limit rows=3: expected NAME=VALUE with NAME one of waiting,"),
    ("serve -p demo --host 0.0.0.0", 2, "set --api-key"),
    *((f"serve -p demo --api-key {key}", 2, "--api-key: is empty") for key in ("''", "' '")),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("place")
    for folder in ("photos", "empty"):
        (place / folder).mkdir()
    for number in range(2):
        shutil.copy(EXAMPLES[number], place / f"photos/{number}.png")
        (place / f"photos/{number}.txt").write_text("A dog.")
    (place / "README.md").write_text("# A page")
    (place / "users.yaml").write_text("model: ~nouser/x\n")
    (place / "x.jsonl").write_text('{"image": "photos/0.png", "text": "A dog."}\n')
    (place / "g.jsonl").write_text('{"images": ["photos/0.png"]}\n')
    (place / "texts.jsonl").write_text('{"text": "A dog."}\n')
    (place / "empty.jsonl").write_text('{"images": []}\n')
    pair = ["photos/0.png", "photos/1.png"]
    parquet.write_table(pyarrow.table({"a.png": pair, "b.png": pair}), place / "t.parquet")
    write_tar(place / "s.tar", [(f"x.{name}.png", EXAMPLES[0].read_bytes()) for name in "ab"])
    return place


@pytest.mark.parametrize(("typed", "code", "message"), ROWS)
def test_refused(sira, place, monkeypatch, typed, code, message):
    monkeypatch.chdir(place)
    if "<image>" not in typed:  # a placeholder of the model's own
        monkeypatch.setattr("sira_cli.run.lvlm.load", None)
    for name in ("openai", "ray"):
        monkeypatch.setitem(sys.modules, name, None)
    before = sorted(place.rglob("*"))
    got, out, err = sira(*shlex.split(typed))
    assert got == code, err
    assert out == "", err
    assert message in err, err
    assert "Traceback" not in err, err
    assert err.count("\n") == 1 or not message.startswith("sira:")
    assert sorted(place.rglob("*")) == before
