"""Clips in requests, as vLLM's clients send them, by the official client."""

from __future__ import annotations

import base64
import sys

import openai
import pytest

from sira_cli import load
from sira_cli.models.loading.preset_parts import Prompts
from sira_cli.serve.jobs import prompt_of
from sira_cli.serve.protocol import ChatRequest
from tests.serve.conftest import running
from tests.serve.helpers import PICTURES, PROMPT, ask, data_uri
from tests.support.clips import write_animation, write_clip


def said(url: str, field: str = "video_url", prompt: str = PROMPT) -> list[dict]:
    return [{"role": "user", "content": [{"type": field, field: {"url": url}}, {"type": "text", "text": prompt}]}]


def uri(data: bytes, kind: str = "video/mp4") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("clips") / "a.mp4")


def test_a_clip_gets_the_text_of_the_command_line(clip):
    lvlm = load("demo", max_new_tokens=12, frames=2)
    animation = write_animation(clip.with_suffix(".gif"))
    with running(lvlm) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        for path in (clip, animation):
            answer = ask(client, said(uri(path.read_bytes())))
            alone = lvlm.caption(path, PROMPT)
            assert answer.choices[0].message.content == alone.text
            assert answer.usage.prompt_tokens == alone.prompt_tokens


@pytest.mark.parametrize(
    ("field", "caption", "prompt"),
    [
        ("video_url", {}, "Please describe this video in detail."),
        ("image_url", {}, "Please describe this image in detail."),
        ("video_url", {"caption": "What is there?"}, "What is there?"),
    ],
)
def test_the_usual_prompt_names_a_video(field, caption, prompt):
    content = [{"type": field, field: {"url": "data:,"}}]
    assert (
        prompt_of(ChatRequest.read({"messages": [{"role": "user", "content": content}]}), Prompts(**caption)) == prompt
    )


@pytest.mark.parametrize(
    ("field", "url", "reason"),
    [
        ("video_url", lambda clip: data_uri(PICTURES[0]), "video_url: is a picture: send it as image_url"),
        ("image_url", lambda clip: uri(clip), "image_url: is a clip: send it as video_url"),
        ("video_url", lambda clip: uri(clip)[:200], "the clip: is damaged"),
        ("video_url", lambda clip: "http://127.0.0.1/a.mp4", "video_url: expected data:video/...;base64,...; got"),
        ("video_url", lambda clip: "", "video_url: expected the clip's URL"),
        ("video_url", lambda clip: "data:video/jpeg;base64,AAAA,BBBB", "video_url: is not base64"),
    ],
    ids=["picture", "clip as picture", "damaged", "URL", "nothing", "frames of vLLM"],
)
def test_what_is_no_clip_is_refused(client, clip, field, url, reason):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, said(url(clip.read_bytes()), field))
    assert reason in str(caught.value)


def test_without_pyav_the_remedy_is_named(client, clip, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(openai.BadRequestError, match=r"this server reads no clips: pip install 'sira-cli\[video\]'"):
        ask(client, said(uri(clip.read_bytes())))
