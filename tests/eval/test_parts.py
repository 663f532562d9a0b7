"""A part of answers from elsewhere, other prompts, and answers that are reduced."""

from __future__ import annotations

import json

import pytest

from sira_cli.eval.amber import opened
from sira_cli.eval.benchmark import Asking
from sira_cli.eval.chair import Chair
from sira_cli.eval.pope import Pope
from tests.support.eval.amber_data import ANSWERED, SAID, benchmark, write
from tests.support.eval.coco_data import CAPTIONS
from tests.support.eval.helpers import rows, values


@pytest.fixture
def questions(tmp_path):
    rows = [{"question_id": n + 7, "image": f"{n}.jpg", "text": f"Is it {n}?", "label": "yes"} for n in range(4)]
    path = tmp_path / "coco_pope_random.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("given", [2, 3, 4])
def test_the_first_questions_of_pope(questions, tmp_path, by_id, given):
    """Answers may go on behind the limit, and may end there."""
    said = [{"question_id": n + 7, "text": f"Yes {n}"} if by_id else {"answer": f"Yes {n}"} for n in range(given)]
    (tmp_path / "a.json").write_text(json.dumps(said))
    found = Pope([questions], limit=2).read([tmp_path / "a.json"])
    assert found == {"pope": {"coco random/7": "Yes 0", "coco random/8": "Yes 1"}}


def test_the_first_pictures_of_chair_and_amber(sira, coco, data, tmp_path):
    captions = [{"image_id": int(id_), "caption": text} for id_, text in CAPTIONS.items()]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in captions))
    answers = ("--answers", tmp_path / "c.jsonl", "--option", "language=fallback", "--json")
    run = ("eval", "chair", coco, *answers)
    for limit in (1, 2):
        (row,) = json.loads(sira(*run, "--limit", limit)[1])["rows"]
        assert row["answered"] == limit
    write(tmp_path / "said.json", [{"id": int(id_), "response": text} for id_, text in (SAID | ANSWERED).items()])
    run = ("eval", "amber", data, "--answers", tmp_path / "said.json", "--option", "language=fallback")
    found = rows(json.loads(sira(*run, "--option", "similarity=exact", "--limit", 1, "--json")[1]))
    assert [found[group, "said"]["answered"] for group in ("generative", "discriminative")] == [1, 3]  # about a.jpg


def test_the_table_says_how_many_captions_an_image_has(sira, coco, tmp_path):
    rows = [{"image_id": int(id_), "caption": text} for id_, text in CAPTIONS.items()]
    for name, times in (("one", 1), ("three", 3)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * times))
    run = ("eval", "chair", coco, "--option", "language=fallback", "--answers")
    _, out, _ = sira(*run, tmp_path / "one.jsonl", tmp_path / "three.jsonl")
    assert "three: 3 captions per image, all counted; p is for the first" in out
    assert "one: " not in out
    first, second = json.loads(sira(*run, tmp_path / "one.jsonl", tmp_path / "three.jsonl", "--json")[1])["rows"]
    values = [{name: figure["value"] for name, figure in row["figures"].items()} for row in (first, second)]
    assert values[0] == values[1]  # the same captions three times
    assert (first["answered"], second["answered"], second["counts"]["captions"]) == (3, 3, 9)


def test_some_of_ambers_queries(sira, data, tmp_path):
    said = SAID | ANSWERED
    part = {id_: said[id_] for id_ in ("2", "4", "8")}
    write(tmp_path / "said.json", [{"id": int(id_), "response": text} for id_, text in part.items()])
    (tmp_path / "ids.txt").write_text("8\n2\n\n4\n")
    given = {"ids": str(tmp_path / "ids.txt"), "language": "fallback", "similarity": "exact"}
    amber = opened(data, Asking(options=given))
    assert [[ask.id for ask in part.asks] for part in amber.parts] == [["2"], ["4", "8"]]
    assert amber.read([tmp_path / "said.json"]) == {
        "generative": {"2": said["2"]},
        "discriminative": {"4": said["4"], "8": said["8"]},
    }
    run = ("eval", "amber", data, "--answers", tmp_path / "said.json", "--option", "language=fallback")
    run += ("--option", "similarity=exact", "--json")
    code, _, err = sira(*run)
    assert (code, "id 1 is not answered: 2 of the 3 answers of generative are missing" in err) == (2, True)
    code, out, _ = sira(*run, "--option", f"ids={tmp_path / 'ids.txt'}")
    assert (code, rows(json.loads(out))["discriminative", "said"]["answered"]) == (0, 2)
    (tmp_path / "ids.txt").write_text("[2]")
    assert [row["group"] for row in json.loads(sira(*run, "--option", f"ids={tmp_path / 'ids.txt'}")[1])["rows"]] == [
        "generative"
    ]
    for text, message in (
        ("99", "id 99 is not AMBER's: expected 1 to 11"),
        ("", "holds no ids"),
        ("a", "id is not a whole"),
    ):
        (tmp_path / "ids.txt").write_text(text)
        code, _, err = sira(*run, "--option", f"ids={tmp_path / 'ids.txt'}")
        assert (code, message in err, err.count("\n")) == (2, True, 1)


def test_answers_from_elsewhere_are_reduced_as_ours(sira, data, tmp_path):
    """`No.` and `yes` count as No and Yes then; captions stay as they are."""
    amber = benchmark(data)
    assert benchmark(data, reduced=True).facts() == amber.facts() | {
        "reduced": "answers from elsewhere to their first word"
    }
    write(tmp_path / "said.json", [{"id": int(id_), "response": text} for id_, text in (SAID | ANSWERED).items()])
    plain, reduced = (benchmark(data, reduced=reduced).read([tmp_path / "said.json"]) for reduced in (False, True))
    assert plain["generative"] == reduced["generative"] == SAID
    assert plain["discriminative"] == ANSWERED
    assert reduced["discriminative"] == ANSWERED | {"9": "No", "10": "Yes"}
    run = ("eval", "amber", data, "--answers", tmp_path / "said.json", "--option", "task=discriminative", "--json")
    found = [values(json.loads(sira(*run, *more)[1])) for more in ((), ("--option", "reduce=yes"))]
    assert [round(each["discriminative", "said", "neither"], 6) for each in found] == [25, 0]
    code, _, err = sira(*run[:3], "--images", data, "--option", "reduce=yes", "-p", "demo")
    assert (code, err.startswith("sira: --option reduce=yes is for answers from other tools")) == (2, True)


def test_prompts_of_captions(sira, scenes, loaded, tmp_path, coco, data):
    assert {ask.prompt for ask in Chair(coco, ids=[7], language="fallback", prompt="What is it?").parts[0].asks} == {
        "What is it?"
    }
    other, usual = benchmark(data, prompt="What is it?"), benchmark(data)
    assert {ask.prompt for ask in other.parts[0].asks} == {"What is it?"}
    assert other.parts[1] == usual.parts[1]
    files, ids = scenes / "coco", scenes / "coco" / "ids.txt"
    run = ("eval", "chair", files, "--images", scenes / "images", "--option", f"ids={ids}", "-p", "demo")
    run += ("--limit", 1, "--option", "language=fallback", "--max-new-tokens", 4, "--no-controls", "--json")
    run += ("-o", tmp_path)
    report = json.loads(sira(*run, "--option", "prompt=Write a caption for this image.")[1])
    assert report["settings"]["sira"]["prompt"] == {"4": "Write a caption for this image."}
    code, _, err = sira(*run)
    assert (code, "has the prompt 'Write a caption for this image.' in the file" in err) == (2, True)
    code, _, err = sira("eval", "amber", data, "--images", files, "--option", "prompt=x", "--option", "task=relation")
    assert (code, "--option prompt: asks for captions: leave it out, or --option task" in err) == (2, True)
