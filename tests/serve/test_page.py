"""What the page at `/` is made of, without a browser: files and headers, settings, reports."""

from __future__ import annotations

import builtins
import html
import json
import re
from pathlib import Path

import httpx
import pytest

from sira_cli.analysis.page.page import policy_sources, render
from sira_cli.analysis.trace.read import BadTraceError, read_traces, traces_of
from sira_cli.methods import METHODS
from sira_cli.models.answering.end_tokens import EndTokens
from sira_cli.pictures.opening import decode_picture
from sira_cli.pictures.picture import OpenedPicture
from sira_cli.serve import page
from sira_cli.serve.limits import Limits
from tests.serve.conftest import running
from tests.serve.test_serve import PICTURES, PROMPT, open_rgb, said
from tests.support.traces import failed, make_trace

BOTH = {"messages": said(), "traces": [{"method": "sira"}, {"method": "greedy"}]}
DATA = re.compile(r'<script type="application/json" class="data">(.*?)</script>', re.DOTALL)


def reported(address: str, body: object = BOTH, **more: object) -> httpx.Response:
    return httpx.post(f"{address}/report", json=body, timeout=120, **more)


# --- files and headers


def apart(answer: httpx.Response) -> bool:
    """Whether no cache keeps a file, and other sites cannot use it or learn of it."""
    headers = ("cache-control", "x-content-type-options", "referrer-policy", "cross-origin-resource-policy")
    return [answer.headers.get(name) for name in headers] == ["no-store", "nosniff", "no-referrer", "same-origin"]


def test_every_file_of_the_page_is_served_and_kept_by_no_cache(address):
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
    files = [path for path in Path(page.__file__).parent.iterdir() if path.suffix in kinds]
    assert len(files) >= 6
    for path in files:
        answer = httpx.get(address + ("/" if path.suffix == ".html" else f"/page/{path.name}"))
        assert answer.headers["content-type"].partition(";")[0] == kinds[path.suffix]
        assert answer.text.endswith(path.read_text(encoding="utf-8"))
        assert apart(answer)
    for name in ("element.js", "texts.js"):
        shared = httpx.get(f"{address}/page/{name}")
        assert (shared.status_code, shared.headers["content-type"].partition(";")[0]) == (200, "text/javascript")
        assert apart(shared)


def test_the_policy_allows_the_page_itself_and_reports_and_nothing_else(address):
    parts = httpx.get(address).headers["content-security-policy"].split("; ")
    policy = {name: set(sources) for name, *sources in map(str.split, parts)}
    assert policy == {
        "default-src": {"'none'"},
        "script-src": {"'self'", policy_sources()["script-src"]},
        "style-src": {"'self'", policy_sources()["style-src"]},
        "img-src": {"data:", "blob:"},
        "connect-src": {"'self'"},
        "base-uri": {"'none'"},
        "form-action": {"'none'"},
        "frame-ancestors": {"'none'"},
        "require-trusted-types-for": {"'script'"},
    }
    report = html.unescape(render(traces_of(json.dumps(line).encode() for line in make_trace(text="A cat."))))
    for source in policy_sources().values():
        assert f"-src {source};" in report  # what it allows itself


def test_without_its_key_a_server_shows_the_page_and_says_nothing(lvlm):
    with running(lvlm, api_key="secret") as address:
        assert lvlm.preset.name not in httpx.get(address).text
        assert httpx.get(f"{address}/settings").status_code == 401
        assert reported(address).status_code == 401
        key = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{address}/settings", headers=key).json()["model"] == lvlm.preset.name


# --- settings


def test_the_settings_are_those_in_force(lvlm):
    preset = lvlm.preset.with_settings(k=3, alpha=1.5)
    with running(lvlm.under(preset.method("vcd"), preset), limits=Limits(tokens=7, pixels=8, data=9)) as address:
        found = httpx.get(f"{address}/settings").json()
    assert (found["method"], found["layers"], found["prompt"]) == ("vcd", lvlm.layers, preset.prompts.caption)
    assert found["limits"] == {"bytes": 9, "pixels": 8, "tokens": 7}
    methods = {method["name"]: method for method in found["methods"]}
    assert list(methods) == list(METHODS)
    assert [name for name, method in methods.items() if method["scores_words"]] == ["sira", "greedy"]
    values = {setting["name"]: setting for setting in methods["sira"]["settings"]}
    assert {name: setting["value"] for name, setting in values.items()} == {"k": 3, "alpha": 1.5, "beta": None}
    assert (values["k"]["low"], values["k"]["high"]) == (1, lvlm.layers - 1)
    names = {setting["name"] for method in methods.values() for setting in method["settings"]}
    assert "noise_step" in names
    assert "calibration" not in names  # it names a file


@pytest.mark.parametrize("name", ["sira", "vcd", "opera"])
def test_a_request_with_all_settings_as_they_are_is_one_without_them(address, name):
    """So that what the page leaves out because nobody changed it is what it shows."""
    found = httpx.get(f"{address}/settings").json()["methods"]
    settings = {one["name"]: one["value"] for method in found if method["name"] == name for one in method["settings"]}
    texts = [
        httpx.post(
            f"{address}/v1/chat/completions", json={"messages": said(), "sira": {"method": name, **given}}, timeout=120
        ).json()["choices"][0]["message"]["content"]
        for given in ({}, settings)
    ]
    assert texts[0] == texts[1] != ""


# --- reports


def test_a_report_is_that_of_traces_of_the_same_texts(sira, address, tmp_path):
    """As `sira trace` writes them: all numbers of all tokens, and of the second look."""
    options = [one | {"verify": "flag"} for one in BOTH["traces"]]
    answer = reported(address, BOTH | {"title": "Both", "traces": options})
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    command = f"trace {PICTURES[0]} -p demo --max-new-tokens 24 --verify flag --quiet".split()
    traces = []
    for method in ("sira", "greedy"):
        out = tmp_path / f"{method}.jsonl"
        assert sira(*command, "--prompt", PROMPT, "--method", method, "-o", out)[0] == 0
        traces += read_traces(out)
    expected = render(traces, "Both")
    assert [json.loads(data) for data in DATA.findall(answer.text)] == [
        json.loads(data) for data in DATA.findall(expected)
    ]
    own = [line for line in answer.text.splitlines() if "Finished" not in line and "scene-" not in line]
    theirs = [line for line in expected.splitlines() if "Finished" not in line and "scene-" not in line]
    assert len(own) > 300
    assert sum(line not in theirs for line in own) < 10  # names, times


def test_a_report_opens_no_file_but_its_own_parts(address, monkeypatch):
    opened = []
    plain, whole = builtins.open, Path.open
    monkeypatch.setattr(
        builtins, "open", lambda file, *args, **more: (opened.append(file), plain(file, *args, **more))[1]
    )
    monkeypatch.setattr(Path, "open", lambda path, *args, **more: (opened.append(path), whole(path, *args, **more))[1])
    assert reported(address).status_code == 200
    parts = (Path(page.__file__).parents[2] / "analysis", Path(page.__file__).parents[2] / "web")
    assert [path for path in map(Path, opened) if not any(map(path.is_relative_to, parts))] == []


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"traces": [{"method": "vcd"}]}, 400, "needs method sira or greedy, not vcd"),
        ({"traces": [{}, {"method": "ict", "calibration": "/etc/passwd"}]}, 400, "no file is opened for a client"),
        (
            {"messages": [*said(), {"role": "assistant", "content": "A."}, {"role": "user", "content": "B?"}]},
            400,
            "one turn",
        ),
        ({"messages": []}, 400, "messages"),
    ],
)
def test_what_cannot_be_reported_is_refused(address, change, status, words):
    answer = reported(address, BOTH | change)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_a_report_s_request_is_json_and_has_the_limits_of_any_other(lvlm, address):
    plain = httpx.post(f"{address}/report", content=json.dumps(BOTH), headers={"content-type": "text/plain"})
    assert plain.status_code == 415
    with running(lvlm, limits=Limits(pixels=1000)) as small:
        assert reported(small).status_code == 413


def test_a_report_that_nobody_waits_for_frees_the_decoder(lvlm, monkeypatch):
    monkeypatch.setattr(EndTokens, "of", lambda model, tokenizer: EndTokens((), lvlm.ends.padding))
    endless = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(max_new_tokens=10**6))
    with running(endless, limits=Limits(tokens=10**6)) as address:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/report", json=BOTH, timeout=1.0)
        short = {"messages": said(), "max_tokens": 2}
        assert httpx.post(f"{address}/v1/chat/completions", json=short, timeout=60).status_code == 200


def test_the_picture_of_several_traces_is_decoded_once(address, monkeypatch):
    decoded = []
    monkeypatch.setattr(
        "sira_cli.serve.pictures.decode_picture", lambda *each: decoded.append(each) or decode_picture(*each)
    )
    assert reported(address, BOTH | {"max_tokens": 2}).status_code == 200
    assert len(decoded) == 1


def test_traces_need_no_file():
    trace = make_trace(text="A cat.")
    found = traces_of([json.dumps(line).encode() + b"\n" for line in trace + failed("no picture")])
    assert [one.path for one in found] == [None, None]
    assert [one.status for one in found] == ["ok", "error"]
    picture = OpenedPicture("", open_rgb(PICTURES[0]), trace[0]["image"]["sha256"])
    shown = render(found[:1], pictures={picture.sha256: picture})
    assert 'src="data:image/jpeg;base64,' in shown
    assert "<dt>Trace</dt>" not in shown  # which file it is in
    assert "Picture missing" in render(found[:1], pictures={"other": picture})
    with pytest.raises(BadTraceError, match="the trace, line 1"):
        traces_of([b"{}\n"])


def test_a_report_shows_all_pictures_of_a_message(address):
    parts = [said(picture=picture)[0]["content"][0] for picture in PICTURES[:3]]
    asked = [{"role": "user", "content": [*parts, {"type": "text", "text": PROMPT}]}]
    report = reported(address, {"messages": asked, "traces": [{"method": "sira"}]}).text
    assert report.count('<img src="data:') == 3
