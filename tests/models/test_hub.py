"""Finding a checkpoint: a folder, the cache, or a hub.

No hub can be reached here, so one is played by a small HTTP server on this machine: the real client
talks to it through HF_ENDPOINT, in processes of their own because it reads that at import.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sira_cli.errors import ModelNotFoundError
from sira_cli.models.hub import find_checkpoint, find_config

COMMIT = "c0ffee" * 6 + "c0ff"
SCRIPT = """
import sys
from sira_cli.errors import ModelNotFoundError
from sira_cli.models.hub import find_checkpoint, find_config, hub_state
try:
    if sys.argv[1] == "state":
        print(hub_state())
    elif sys.argv[1] == "config":
        print(find_config(sys.argv[2], sys.argv[3]))
    else:
        found = find_checkpoint(sys.argv[2], sys.argv[3], expected_gb=7.5, on_download=lambda d: print("fetching", d))
        print(found.folder, found.revision)
except ModelNotFoundError as error:
    print("error:", error)
"""


def make_folder(folder: Path) -> Path:
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "preprocessor_config.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def hub(tmp_path):
    """Serves `owner/model`; `owner/gated` asks for terms, all else is unknown."""
    files = make_folder(tmp_path / "served")
    (files / "pytorch_model.bin").write_bytes(b"a pickle")
    (files / "consolidated.safetensors").write_bytes(b"the weights once more, in another format")
    requests: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def answer(self, body):
            requests.append(f"{self.command} {self.path}")
            path = self.path.split("?")[0]
            if "owner/gated" in path:
                return self.send(403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}, b"{}", body)
            if path == "/api/models/owner/model/revision/nowhere":
                return self.send(404, {"X-Error-Code": "RevisionNotFound"}, b"{}", body)
            if path.startswith("/api/models/owner/model"):
                siblings = [{"rfilename": p.name, "size": p.stat().st_size} for p in sorted(files.iterdir())]
                listing = {"id": "owner/model", "modelId": "owner/model", "sha": COMMIT, "siblings": siblings}
                if "/tree/" in path:
                    listing = [
                        {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": "0"} for p in files.iterdir()
                    ]
                return self.send(200, {"Content-Type": "application/json"}, json.dumps(listing).encode(), body)
            if path.startswith("/owner/model/resolve/"):
                file = files / path.rsplit("/", 1)[1]
                if file.is_file():
                    content = file.read_bytes()
                    etag = hashlib.sha256(content).hexdigest()
                    return self.send(200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, content, body)
                return self.send(404, {"X-Error-Code": "EntryNotFound"}, b"", body)
            return self.send(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"}, b"{}", body)

        def send(self, status, headers, content, body):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    server.server_close()


def ask(tmp_path, endpoint, model, revision="main", what="checkpoint", **environment):
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, what, model, revision],
        env={
            **os.environ,
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_OFFLINE": "0",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return process.stdout.strip()


def test_a_download_is_announced_then_found_in_the_cache_without_asking(hub, tmp_path):
    endpoint, requests = hub
    announced, found = ask(tmp_path, endpoint, "owner/model").splitlines()
    assert "Download(model='owner/model', revision='main', gigabytes=1.3e-08," in announced
    folder, revision = found.split()
    assert revision == COMMIT
    names = {path.name for path in Path(folder).iterdir()}  # neither pickle nor copy
    assert names == {"config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"}
    requests.clear()
    assert ask(tmp_path, endpoint, "owner/model") == found
    assert ask(tmp_path, endpoint, "owner/model", COMMIT) == found
    assert not requests


def test_a_torn_download_is_completed(hub, tmp_path):
    endpoint, _ = hub
    folder = Path(ask(tmp_path, endpoint, "owner/model", what="config"))
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    folder = Path(ask(tmp_path, endpoint, "owner/model").splitlines()[-1].split()[0])
    (folder / "model.safetensors").unlink()
    assert "fetching" in ask(tmp_path, endpoint, "owner/model")
    assert (folder / "model.safetensors").read_bytes() == b"weights"


REFUSED = [
    ({"model_type": "mllama"}, [], "MllamaForConditionalGeneration is not supported: it reads the image through"),
    ({"model_type": "llava"}, ["--k", "33"], "k = 33"),  # of 32 layers, which are there on the meta device only
    ({"model_type": "qwen2"}, [], "'qwen2' model, not one for pictures and text"),
    ({"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}, [], "own Python code"),
    (
        {"model_type": "molmo", "auto_map": {"AutoConfig": "a.B"}},
        ["--set", "trust_remote_code=yes"],
        "owner/model cannot be",
    ),
]


def test_models_that_cannot_work_are_known_by_their_configs_alone(hub, tmp_path):
    """In one process: it takes seconds to start."""
    endpoint, requests = hub
    script = """
import contextlib, io, json, pathlib, shutil, sys
from sira_cli.cli import main
config, cache, picture, *cases = sys.argv[1:]
for case in map(json.loads, cases):
    pathlib.Path(config).write_text(json.dumps(case["config"]))
    shutil.rmtree(cache, ignore_errors=True)
    sys.argv = ["sira", "caption", picture, "-m", "owner/model", *case["options"]]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
    picture = Path(__file__).parents[2] / "examples" / "scene-2900000.png"
    cases = [json.dumps({"config": config, "options": options}) for config, options, _ in REFUSED]
    config, home = tmp_path / "served" / "config.json", tmp_path / "hf"
    process = subprocess.run(
        [sys.executable, "-c", script, config, home / "hub", picture, *cases],
        env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for line, (_, _, message) in zip(process.stdout.splitlines(), REFUSED, strict=True):
        code, out, err = json.loads(line)
        assert (code, out) == (2, ""), err
        assert message in err
        assert err.count("\n") == 1  # not even a download is announced
    assert process.stderr == ""
    fetched = [request.split("?")[0].rsplit("/", 1)[1] for request in requests if "/resolve/" in request]
    assert {*fetched} == {"config.json"}
    assert sum("GET" in request and "/resolve/" in request for request in requests) == len(REFUSED)


@pytest.mark.parametrize(
    ("model", "revision", "message"),
    [
        ("owner/gated", "main", "owner/gated is gated: accept its terms"),
        ("owner/unknown", "main", "owner/unknown does not exist on http"),
        ("owner/model", "nowhere", "owner/model has no revision 'nowhere'"),
    ],
)
def test_what_a_hub_may_refuse(hub, tmp_path, model, revision, message):
    assert message in ask(tmp_path, hub[0], model, revision)


def test_no_network_is_known_at_once_and_names_two_ways_out(tmp_path):
    started = time.monotonic()
    message = ask(tmp_path, "http://127.0.0.1:9", "owner/model")  # nobody listens there
    assert message.startswith("error: owner/model (about 7.5 GB) is not in the cache and cannot be fetched from http:")
    assert "hf download owner/model" in message
    assert "`preset=` demo" in message  # which the command line shows as --preset demo
    assert time.monotonic() - started < 30  # not a speed test: retries alone would take longer


def test_offline_mode(tmp_path):
    message = ask(tmp_path, "http://127.0.0.1:9", "owner/model", HF_HUB_OFFLINE="1")
    assert "offline mode is on" in message
    with pytest.raises(ModelNotFoundError, match="offline mode is on"):
        find_checkpoint("owner/model-that-is-not-cached", offline=True)


def test_the_revision_of_a_folder_changes_with_its_content_only(tmp_path):
    folder = make_folder(tmp_path / "model")
    weights = bytearray(30 << 20)
    (folder / "model.safetensors").write_bytes(weights)
    seen = {find_checkpoint(str(folder)).revision}
    shutil.copytree(folder, tmp_path / "copy")
    assert {find_checkpoint(str(tmp_path / "copy")).revision} == seen
    weights[10 << 20 : 20 << 20] = b"\1" * (10 << 20)  # some layers in the middle
    (folder / "model.safetensors").write_bytes(weights)
    seen.add(find_checkpoint(str(folder)).revision)
    (folder / "merges.txt").write_text("a b")
    seen.add(find_checkpoint(str(folder)).revision)
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "no config.json; expected a Hugging Face checkpoint"),
        ("model.safetensors", "no safetensors weights, and `sira` loads no pickles"),
        ("tokenizer.json", "no tokenizer"),
        ("preprocessor_config.json", "no image processor"),
        ("model-2.safetensors", r"model-2\.safetensors is missing"),
    ],
)
def test_what_a_folder_lacks_is_named(tmp_path, missing, message):
    folder = make_folder(tmp_path / "model")
    assert find_checkpoint(str(folder)).folder == find_config(str(folder)) == folder
    if missing == "model-2.safetensors":
        index = {"weight_map": {"a": "model-1.safetensors", "b": missing}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        for shard in ("model-1.safetensors", missing):
            (folder / shard).touch()
    (folder / missing).unlink()
    with pytest.raises(ModelNotFoundError, match=message):
        find_checkpoint(str(folder))


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere", "~/nowhere-at-all"])
def test_a_missing_folder(model):
    with pytest.raises(ModelNotFoundError, match=f"model folder {model} does not exist"):
        find_checkpoint(model)


def test_the_state_of_the_hub_takes_one_request(hub, tmp_path):
    endpoint, requests = hub
    assert ask(tmp_path, endpoint, "", what="state") == "reachable"
    assert requests == ["HEAD /"]
    assert ask(tmp_path, endpoint, "", what="state", HF_HUB_OFFLINE="1") == "offline mode"
    assert requests == ["HEAD /"]
    nobody = "http://127.0.0.1:9"
    assert ask(tmp_path, nobody, "", what="state").startswith(f"{nobody} cannot be reached (")
