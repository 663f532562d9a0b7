"""JSON that others wrote: what its depth may be, and what is said when it is deeper."""

from __future__ import annotations

import ast
import json
import shlex

import pytest

from sira_cli.errors import PictureError
from sira_cli.parsing import DEEPEST, from_json
from sira_cli.pictures.sources import columns_of
from tests.support.shards import EXAMPLES
from tests.test_rooms import PACKAGE

OWN = {"parsing.py", "errors.py", "models/schema.py", "run/ledger.py", "demo/scenes.py", "demo/measure.py"}


def nested(levels, kind="[]"):
    """A text of JSON with so many lists or objects inside each other."""
    first, last = kind
    name = '"a":' if first == "{" else ""
    return (first + name) * (levels - 1) + kind + last * (levels - 1)


@pytest.mark.parametrize("kind", ["[]", "{}"])
def test_json_at_the_limit_is_read_as_by_the_standard_library(kind):
    text = nested(DEEPEST, kind)
    assert from_json(text) == json.loads(text)


@pytest.mark.parametrize("levels", [DEEPEST + 1, 900, 5000])
@pytest.mark.parametrize("kind", ["[]", "{}"])
def test_json_above_the_limit_is_a_value_error(kind, levels):
    with pytest.raises(ValueError, match=f"more than {DEEPEST} values inside each other"):
        from_json(nested(levels, kind))


def test_a_long_list_is_not_deep():
    assert from_json(json.dumps([[1]] * 5000)) == [[1]] * 5000


def test_nothing_else_parses_json_that_others_wrote():
    """Those of `OWN` read what the package brings, wrote and parsed before, or what pip wrote."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.loads", "json.load"):
                found.add(path.relative_to(PACKAGE).as_posix())
    assert found <= OWN


@pytest.mark.parametrize("levels", [300, 900, 5000])
@pytest.mark.parametrize(
    "typed",
    [
        "compare deep.jsonl deep.jsonl",
        "report deep.jsonl -o page.html",
        "export deep.jsonl --csv table.csv",
        "check deep.jsonl -p demo",
        "caption p.png -p demo --schema deep.json",
        "caption p.png -p demo -o deep.jsonl",
        "caption p.png -p demo --set k=@",
        "ask p.png 'Why?' -p demo --schema deep.json",
        "eval pope deep.jsonl -p demo --images .",
        "sweep -p demo --captions -o deep.jsonl",
        "trace p.png -p demo -o deep.jsonl",
        "caption names.csv -p demo",
    ],
)
def test_deep_json_is_refused_in_a_line(sira, tmp_path, monkeypatch, typed, levels):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.png").write_bytes(EXAMPLES[0].read_bytes())
    (tmp_path / "deep.jsonl").write_text('{"file_name": "p.png", "data": ' + nested(levels) + "}\n")
    (tmp_path / "deep.json").write_text(nested(levels, "{}"))
    (tmp_path / "names.csv").write_text("file_names\n" + nested(levels) + "\n")
    code, out, err = sira(*shlex.split(typed.replace("@", nested(levels))))
    assert code == 2, err
    assert out == "", err
    assert err.count("\n") == 1, err
    assert "unexpected" not in err, err


@pytest.mark.parametrize("levels", [300, 900, 5000])
def test_deep_json_next_to_a_picture_fails_that_picture_alone(levels):
    with pytest.raises(PictureError, match=r"^s\.tar/0: its \.json is not a JSON object: it has more than 200 values"):
        columns_of("s.tar/0", {"json": nested(levels, "{}").encode()})
