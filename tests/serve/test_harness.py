"""A benchmark through lmms-eval's adapter for OpenAI's protocol, with the figures of `sira eval`."""

from __future__ import annotations

import base64
import functools
import json
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import openai
from PIL import Image

from sira_cli.demo.export import export
from sira_cli.demo.questions import Questions, held_out
from sira_cli.demo.scenes import TEST_SEEDS
from sira_cli.eval.evaluation import Evaluation, methods_of
from sira_cli.eval.pope import Pope

SUFFIX = " Please answer this question with one word."


def answer(client: openai.OpenAI, question: str, path: Path) -> str:
    """What lmms-eval 0.7.3 sends for a question, and takes of the answer (models/chat/openai.py, protocol.py)."""
    data = BytesIO()
    Image.open(path).convert("RGB").save(data, format="PNG")
    url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    response = client.chat.completions.create(
        messages=[{"role": "user", "content": content}], model="demo", max_tokens=16, temperature=0, top_p=1.0
    )
    return response.choices[0].message.content


def test_pope_through_the_server(client, lvlm, tmp_path, monkeypatch):
    monkeypatch.setattr("sira_cli.demo.export.Questions", functools.partial(Questions, sample=50))
    export([held_out(seed) for seed in TEST_SEEDS[:2]], tmp_path)
    file = tmp_path / "pope/scenes_pope_adversarial.json"
    questions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    pope = Pope([file], suffix=SUFFIX)
    evaluation = Evaluation(pope, tmp_path / "images", methods_of(lvlm.preset, ["sira"], controls=False), batch_size=4)
    list(evaluation.events(lvlm))

    def one(row: dict) -> dict:
        text = answer(client, row["text"] + SUFFIX, tmp_path / "images" / row["image"])
        return {"question_id": row["question_id"], "text": text}

    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(one, questions))
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (split,) = pope.parts[0].groups
    ours = pope.score(pope.parts[0], pope.read([answers])["pope"])[split]
    (expected,) = evaluation.report().rows
    figures = pope.figures(split, ours.total())
    assert {name: expected.figures[name].value for name in figures} == figures
    assert len({row["text"] for row in rows}) > 1
