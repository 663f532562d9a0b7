"""`sira eval chair` and `sira eval amber` on drawn scenes, from pictures to figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sira_cli import methods
from tests.support.eval.helpers import SCENES, rows, values
from tests.support.eval.writing import save


def test_chair(sira, scenes, loaded, lvlm, tmp_path):
    coco = scenes / "coco"
    run = ("eval", "chair", coco, "-o", tmp_path, "--details", tmp_path / "d.jsonl", "--json")
    run += ("--option", "language=fallback")
    code, out, _ = sira(*run, "--images", scenes / "images", "-p", "demo", "-b", 4, "--option", "lengths=12,64")
    report = json.loads(out)
    assert code == 0
    assert not report["official"]
    assert list(report["stand_ins"]) == ["12", "64"]
    found = rows(report)
    assert list(found) == [
        (f"{length} tokens", method) for length in (12, 64) for method in ("greedy", "greedy+apc", "sira")
    ]
    texts = [json.loads(line) for line in (tmp_path / "sira-12.jsonl").read_text().splitlines()]
    assert [row["output_tokens"] for row in texts] == SCENES * [12]
    assert {row["prompt"] for row in texts} == {"Please describe this image in detail."}
    single = lvlm.under(methods.find("sira"), lvlm.preset.with_settings(max_new_tokens=12))
    image = scenes / "images" / Path(texts[0]["file_name"]).name
    assert single.caption(image, "Please describe this image in detail.").text == texts[0]["text"]
    details = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    for (group, method), row in found.items():
        of = [one for one in details if (one["method"], one["part"]) == (method, group.removesuffix(" tokens"))]
        wrong = [bool(one["mscoco_hallucinated_words"]) for one in of]
        assert row["figures"]["CHAIRs"]["value"] == pytest.approx(100 * sum(wrong) / SCENES)
        assert row["answered"] == SCENES
    loaded.clear()
    code, out, _ = sira(*run, "--answers", tmp_path)
    assert values(json.loads(out)) == values(report)
    _, out, _ = sira(*run, "--answers", tmp_path, "--option", "lengths=64")
    assert values(json.loads(out)) == {key: value for key, value in values(report).items() if key[0] == "64 tokens"}
    assert loaded.total() == 0
    # Methods of one length each, and captions of unknown length beside them, are scored as they are.
    files = [f"short={tmp_path}/sira-12.jsonl", f"long={tmp_path}/sira-64.jsonl"]
    elsewhere = [{"image_id": int(row["id"]), "caption": row["text"]} for row in texts]
    (tmp_path / "elsewhere.jsonl").write_text("".join(json.dumps(row) + "\n" for row in elsewhere))
    code, _, err = sira(*run, "--answers", tmp_path / "elsewhere.jsonl", "--option", "lengths=12,64")
    assert (code, "only captions of sira eval chair have several lengths" in err) == (2, True)
    _, out, _ = sira(*run, "--answers", *files, tmp_path / "elsewhere.jsonl")
    scored = values(json.loads(out))
    for method, group in (("short", "12 tokens"), ("long", "64 tokens"), ("elsewhere", "12 tokens")):
        for figure in ("CHAIRs", "CHAIRi", "recall", "length"):
            assert scored["captions", method, figure] == values(report)[group, "sira", figure]
    code, _, err = sira(*run, "--answers", tmp_path, tmp_path / "elsewhere.jsonl")
    assert (code, "some files hold captions of several lengths" in err) == (2, True)
    (tmp_path / "unknown.jsonl").write_text('{"image_id": 987654321, "caption": "A dog."}\n')
    code, _, err = sira(*run, "--answers", tmp_path / "unknown.jsonl")
    assert (code, "unknown.jsonl: line 1: image 987654321 is not in " in err) == (2, True)
    _, out, _ = sira(
        *run, "--answers", tmp_path / "elsewhere.jsonl", "--option", "lengths=64", "--paper", "-p", "llava-1.5-7b"
    )
    assert [row["group"] for row in json.loads(out)["rows"]] == ["64 tokens"]


def test_captions_of_sira_caption(sira, scenes, loaded, tmp_path, monkeypatch, lvlm):
    """CHAIR and AMBER know them by their pictures."""
    monkeypatch.setattr("sira_cli.cli.loading.load_model", lambda preset, *others: lvlm)
    assert sira("caption", scenes / "images", "-p", "demo", "-b", 4, "-o", tmp_path / "c.jsonl", "-q")[0] == 0
    records = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    texts = {Path(record["file_name"]).name: record["text"] for record in records}
    details = ("--answers", tmp_path / "c.jsonl", "--option", "language=fallback", "--details", tmp_path / "d.jsonl")
    ids = f"ids={scenes / 'coco' / 'ids.txt'}"
    assert sira("eval", "chair", scenes / "coco", "--option", ids, *details)[0] == 0
    found = [json.loads(line)["caption"] for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert sorted(found) == sorted(texts.values())
    assert sira("eval", "amber", scenes / "amber", "--option", "similarity=exact", *details)[0] == 0
    details = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert {row["image"]: row["response"] for row in details} == texts


def test_answers_of_another_benchmark(sira, scenes, pope, tmp_path):
    pope("-o", tmp_path, "--limit", 2, "--no-controls", splits=("random",))
    for command in (
        ("eval", "amber", scenes / "amber", "--option", "similarity=exact", "--option", "language=fallback"),
        ("eval", "chair", scenes / "coco", "--option", "language=fallback"),
    ):
        code, out, err = sira(*command, "--answers", tmp_path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "sira-pope.jsonl" in err


def test_amber(sira, scenes, loaded, tmp_path):
    run = ("eval", "amber", scenes / "amber", "--option", "similarity=exact", "--option", "language=fallback", "--json")
    code, out, _ = sira(
        *(*run, "--images", scenes / "images", "-p", "demo", "-b", 8, "-o", tmp_path),
        *("--details", tmp_path / "details.jsonl", "--no-controls"),
    )
    report = json.loads(out)
    assert code == 0
    assert list(report["stand_ins"]) == ["generative"]
    groups = ["generative", "discriminative", "existence", "attribute", "state", "number", "action", "relation"]
    assert list(dict.fromkeys(group for group, _ in rows(report))) == groups
    truth = {row["id"]: row for row in json.loads((scenes / "amber" / "annotations.json").read_text())}
    said: dict[str, list[dict]] = {"generative": [], "discriminative": []}
    for line in (tmp_path / "details.jsonl").read_text().splitlines():
        row = json.loads(line)
        said[row["part"]].append({"id": int(row["id"]), "response": row["response"]})
    right = [{"yes": "Yes", "no": "No"}[truth[row["id"]]["truth"]] == row["response"] for row in said["discriminative"]]
    assert values(report)["discriminative", "sira", "accuracy"] == pytest.approx(
        100 * sum(right) / len(right), abs=0.06
    )
    elsewhere = [f"sira={save(tmp_path / f'{part}.json', answers)}" for part, answers in said.items()]
    _, out, _ = sira(*run, "--answers", *elsewhere)
    assert values(json.loads(out)) == values(report)
    parts = {
        "generative": ["generative"],
        "discriminative": groups[1:],
        "existence": ["existence"],
        "attribute": ["attribute", "state", "number", "action"],
        "relation": ["relation"],
    }
    for task, groups in parts.items():
        _, out, _ = sira(*run, "--option", f"task={task}", "--answers", *elsewhere)
        expected = {key: value for key, value in values(report).items() if key[0] in groups}
        assert list(dict.fromkeys(group for group, _ in rows(json.loads(out)))) == groups
        assert values(json.loads(out)) == expected
    questions = ("--option", "task=discriminative", "--option", "similarity=spacy", "--json", "--answers", elsewhere[1])
    code, out, _ = sira("eval", "amber", scenes / "amber", *questions)
    assert (code, json.loads(out)["official"]) == (0, True)  # questions need no vectors


def test_amber_with_a_second_look(sira, scenes, loaded, lvlm, tmp_path):
    """The captions are those of `Lvlm.caption`; questions are asked once, under the method itself."""
    run = ("eval", "amber", scenes / "amber", "--option", "similarity=exact", "--option", "language=fallback", "--json")
    asking = ("--images", scenes / "images", "-p", "demo", "--limit", 2, "--no-controls")
    code, out, _ = sira(*run, *asking, "-o", tmp_path, "--method", "greedy", "--verify", "guide")
    found = values(json.loads(out))
    assert code == 0
    assert {method for group, method, _ in found if group == "generative"} == {"greedy", "greedy+guide"}
    assert {method for group, method, _ in found if group == "discriminative"} == {"greedy"}
    greedy = lvlm.under(methods.find("greedy"), lvlm.preset)
    for line in (tmp_path / "greedy+guide-generative.jsonl").read_text().splitlines():
        record = json.loads(line)
        image = scenes / "images" / Path(record["file_name"]).name
        alone = greedy.caption(image, record["prompt"], verify="guide")
        assert (record["text"], record["forbidden"]) == (alone.text, alone.forbidden)
    _, out, _ = sira(*run, "--limit", 2, "--no-controls", "--answers", tmp_path)
    assert values(json.loads(out)) == found
    code, _, err = sira("eval", "pope", scenes / "pope" / "scenes_pope_random.json", *asking, "--verify", "guide")
    assert (code, "pope only asks questions" in err) == (2, True)
