"""The frame of a clip that a token hangs on: equal to a step-by-step reference, and shown by the report."""

from __future__ import annotations

import json

import pytest
import torch

from sira_cli.analysis.page.page import render
from sira_cli.analysis.page.pictures import find_picture
from sira_cli.analysis.trace.frames import frame_deltas
from sira_cli.analysis.trace.read import read_traces
from sira_cli.core.config import SiraConfig
from sira_cli.core.reference import counterfactual, extend
from tests.analysis.test_page import Page
from tests.analysis.test_trace import VALID
from tests.support.clips import write_clip
from tests.support.decoding import case_of, frames_of

TOKENS = [7, 19, 7, 40]


@torch.no_grad()
@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "InternVL", "Gemma 4 E"])
def test_late_layers_in_which_a_frame_is_masked(name):
    case = case_of(name)
    frame = frames_of(case.inputs)["frame"]
    found = frame_deltas(case.model, SiraConfig(k=3), case.inputs, TOKENS, frame)
    inputs, expected = dict(case.inputs), []
    for token in TOKENS:
        full = case.model(**inputs, use_cache=False).logits[0, -1].float()
        grown = inputs["input_ids"].shape[1] - frame.shape[1]
        hidden = [torch.nn.functional.pad(frame == number, (0, grown)) for number in range(int(frame.max()) + 1)]
        expected.append([float(full[token] - counterfactual(case.model, inputs, each, 3)[token]) for each in hidden])
        inputs = extend(inputs, token, case.grown)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), atol=2e-4, rtol=1e-4)
    assert torch.tensor(found).abs().max() > 1e-3


def test_a_clip_in_the_trace_and_the_report(sira, tmp_path):
    clip = write_clip(tmp_path / "a.mp4")
    trace = tmp_path / "trace.jsonl"
    run = ("trace", clip, "-p", "demo", "--force", "There is a cat.", "--frames", 3, "--start", 1, "-o", trace)
    assert sira(*run)[0] == 0
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        VALID.validate(line)
    assert lines[0]["frames"] == [1.0, 1.4, 1.9]
    deltas = lines[-1]["frame_deltas"]
    assert [len(row) for row in deltas] == [3] * lines[-1]["output_tokens"]
    (read,) = read_traces(trace)
    shown = find_picture(read).group
    assert [each.name for each in shown] == ["a.mp4"] * 3
    page = Page(render([read]))
    assert page.count("img") == 3
    word = max(lines[-1]["words"], key=lambda word: word["word"] == "cat.")
    sums = torch.tensor(deltas)[slice(*word["steps"])].sum(dim=0)
    assert f"{lines[0]['frames'][int(sums.argmax())]:.1f} s" in page.text
