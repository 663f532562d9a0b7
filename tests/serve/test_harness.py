"""Requests of harnesses: a benchmark through lmms-eval's adapter, with the figures of `sira eval`; VLMEvalKit's."""

from __future__ import annotations

import base64
import functools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import httpx2 as httpx
import openai
from PIL import Image

from sira_cli.demo.export import export
from sira_cli.demo.questions import Questions, held_out
from sira_cli.demo.scenes import TEST_SEEDS
from sira_cli.eval.evaluation import Evaluation, methods_of
from sira_cli.eval.pope import Pope
from tests.serve.helpers import PICTURES

CONFIGURATION = re.search(
    r"^```json\n(.*?)^```$", (Path(__file__).parents[2] / "docs/benchmarks.md").read_text(), re.MULTILINE | re.DOTALL
)
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


def test_vlmevalkit_with_the_documented_configuration(address, lvlm):
    """What its class GPT4V sends (vlmeval/api/gpt.py and smp/vlm.py at e8e78f05), with `n` as older ones, and takes."""
    (configured,) = json.loads(CONFIGURATION[1])["model"].values()
    assert (configured["class"], configured["img_size"]) == ("GPT4V", -1)
    assert configured["key"].startswith("sk-")
    data = BytesIO()
    Image.open(PICTURES[0]).convert("RGB").save(data, format="JPEG")
    picture = f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
    url = {"url": picture, "detail": configured["img_detail"]}
    question = "Is there a dog in the image?" + SUFFIX
    content = [{"type": "image_url", "image_url": url}, {"type": "text", "text": question}]
    for older in ({}, {"n": 1}):
        payload = {
            "model": "demo",  # the server's, as llava-1.5-7b is there
            "messages": [{"role": "user", "content": content}],
            **older,
            "temperature": configured["temperature"],
            "max_tokens": configured["max_tokens"],
        }
        answer = httpx.post(
            address + configured["api_base"].partition(":8000")[2],
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {configured['key']}"},
            content=json.dumps(payload),
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"].strip() == lvlm.ask(data.getvalue(), question).text
    refused = httpx.post(f"{address}/v1/chat/completions", json=payload | {"max_tokens": 2048}, timeout=60)
    assert (refused.status_code, "max_tokens" in refused.text) == (400, True)  # VLMEvalKit's own default
