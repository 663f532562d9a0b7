"""Finding a checkpoint: a folder, the cache, or a hub; and models that cannot work, told early, with a way out.

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
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sira_cli import UnsupportedModelError, attach, load
from sira_cli.core import families
from sira_cli.errors import ModelNotFoundError, SettingsError, SiraError, UntestedModelWarning
from sira_cli.models.hub import find_checkpoint, find_config
from sira_cli.models.preset import Preset
from tests.support.helpers import installed

COMMIT = "c0ffee" * 6 + "c0ff"
NOBODY = "http://127.0.0.1:9"  # nobody listens there
SCRIPT = """
import sys
from sira_cli.errors import ModelNotFoundError
from sira_cli.models.hub import find_checkpoint, find_config, hub_state
from sira_cli.models.preset import Preset
if sys.argv[1] != "state":
    preset = Preset(model=sys.argv[2], revision=sys.argv[3], download_gb=7.5)
try:
    if sys.argv[1] == "state":
        print(hub_state())
    elif sys.argv[1] == "config":
        print(find_config(preset))
    else:
        found = find_checkpoint(preset, on_download=lambda d: print("fetching", d))
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

    def answer(path: str) -> tuple[int, dict[str, str], bytes]:
        if "owner/gated" in path:
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}, b"{}"
        if path == "/api/models/owner/model/revision/nowhere":
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        if path.startswith("/api/models/owner/model"):
            found = {file.name: file.stat().st_size for file in sorted(files.iterdir())}
            siblings = [{"rfilename": name, "size": size} for name, size in found.items()]
            listing: Any = {"id": "owner/model", "modelId": "owner/model", "sha": COMMIT, "siblings": siblings}
            if "/tree/" in path:
                listing = [{"type": "file", "path": name, "size": size, "oid": "0"} for name, size in found.items()]
            return 200, {"Content-Type": "application/json"}, json.dumps(listing).encode()
        if not path.startswith("/owner/model/resolve/"):
            return 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"}, b"{}"
        file = files / path.rsplit("/", 1)[1]
        if not file.is_file():
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        content = file.read_bytes()
        return 200, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}, content

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            requests.append(f"{self.command} {self.path}")
            status, headers, content = answer(self.path.split("?")[0])
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 # as the server calls it

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    server.server_close()


def ask(tmp_path, endpoint, model, revision="main", what="checkpoint", **variables):
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0", **variables}
    command = [sys.executable, "-c", SCRIPT, what, model, revision]
    environment = {**os.environ, **environment}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return process.stdout.strip()


def test_a_download_is_announced_completed_and_then_found_in_the_cache_without_asking(hub, tmp_path):
    endpoint, requests = hub
    folder = Path(ask(tmp_path, endpoint, "owner/model", what="config"))
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    announced, found = ask(tmp_path, endpoint, "owner/model").splitlines()
    assert "Download(model='owner/model', revision='main', gigabytes=1.3e-08," in announced
    assert found.split() == [str(folder), COMMIT]
    names = {path.name for path in folder.iterdir()}  # neither pickle nor copy
    assert names == {"config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"}
    requests.clear()
    assert ask(tmp_path, endpoint, "owner/model") == ask(tmp_path, endpoint, "owner/model", COMMIT) == found
    assert not requests
    (folder / "model.safetensors").unlink()  # a torn download
    assert "fetching" in ask(tmp_path, endpoint, "owner/model")
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_a_model_that_cannot_work_is_known_by_its_config_alone(hub, tmp_path):
    endpoint, requests = hub
    (tmp_path / "served" / "config.json").write_text('{"model_type": "mllama"}')
    picture = Path(__file__).parents[2] / "examples" / "scene-2900000.png"
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
    done = installed("caption", picture, "-m", "owner/model", env=environment, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)  # not even a download is announced
    assert "MllamaForConditionalGeneration is not supported: it reads the image through" in done.stderr
    fetched = [request.split("?")[0] for request in requests if "GET" in request and "/resolve/" in request]
    assert [path.rsplit("/", 1)[1] for path in fetched] == ["config.json"]


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


def test_without_a_network_or_in_offline_mode_two_ways_out_are_named(tmp_path):
    started = time.monotonic()
    message = ask(tmp_path, NOBODY, "owner/model")
    assert time.monotonic() - started < 30  # not a speed test: retries alone would take longer
    assert message.startswith("error: owner/model (about 7.5 GB) is not in the cache and cannot be fetched from http:")
    assert "hf download owner/model" in message
    assert "`preset=` demo" in message  # which the command line shows as --preset demo
    assert "offline mode is on" in ask(tmp_path, NOBODY, "owner/model", HF_HUB_OFFLINE="1")
    with pytest.raises(ModelNotFoundError, match="offline mode is on"):
        find_checkpoint(Preset(model="owner/model-that-is-not-cached"), offline=True)


def test_the_state_of_the_hub_takes_one_request(hub, tmp_path):
    endpoint, requests = hub
    assert ask(tmp_path, endpoint, "", what="state") == "reachable"
    assert ask(tmp_path, endpoint, "", what="state", HF_HUB_OFFLINE="1") == "offline mode"
    assert requests == ["HEAD /"]
    assert ask(tmp_path, NOBODY, "", what="state").startswith(f"{NOBODY} cannot be reached (")


def test_the_revision_of_a_folder_changes_with_its_content_only(tmp_path):
    folder = make_folder(tmp_path / "model")
    weights = bytearray(30 << 20)
    (folder / "model.safetensors").write_bytes(weights)
    seen = {find_checkpoint(Preset(model=str(folder))).revision}
    shutil.copytree(folder, tmp_path / "copy")
    assert {find_checkpoint(Preset(model=str(tmp_path / "copy"))).revision} == seen
    weights[10 << 20 : 20 << 20] = b"\1" * (10 << 20)  # some layers in the middle
    (folder / "model.safetensors").write_bytes(weights)
    seen.add(find_checkpoint(Preset(model=str(folder))).revision)
    (folder / "merges.txt").write_text("a b")
    seen.add(find_checkpoint(Preset(model=str(folder))).revision)
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
    assert find_checkpoint(Preset(model=str(folder))).folder == find_config(Preset(model=str(folder))) == folder
    if missing == "model-2.safetensors":
        index = {"weight_map": {"a": "model-1.safetensors", "b": missing}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        for shard in ("model-1.safetensors", missing):
            (folder / shard).touch()
    (folder / missing).unlink()
    with pytest.raises(ModelNotFoundError, match=message):
        find_checkpoint(Preset(model=str(folder)))


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere", "~/nowhere-at-all"])
def test_a_missing_folder(model):
    with pytest.raises(ModelNotFoundError, match=f"model folder {model} does not exist"):
        find_checkpoint(Preset(model=model))


ADAPTER = {"base_model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "peft_type": "LORA", "r": 8}
QUANTIZED = {"group_size": 64, "bits": 4}
MLX = {"model_type": "qwen2_5_vl", "quantization": QUANTIZED, "quantization_config": QUANTIZED}
INTERNVL = {"auto_map": {"AutoModel": "modeling.InternVLChatModel"}, "model_type": "internvl_chat"}
LLAVA = {"model_type": "llava", "mm_vision_tower": "openai/clip"}
LORA = "adapter (LoRA) of Qwen/Qwen2.5-VL-7B-Instruct"
# By name of the folder: its other files, its config.json, and what the message has to say.
FOLDERS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "adapter": ({"adapter_config.json": ADAPTER, "adapter_model.safetensors": 1}, {}, [LORA, "`merge_and_unload()`"]),
    "gguf": ({"Qwen2.5-VL-7B-Q4_K_M.gguf": 1, "mmproj-F16.gguf": 1}, {}, ["GGUF", "the original model"]),
    "mlx": ({"model.safetensors": 1}, MLX, ["MLX", "the original model"]),
    "InternVL3-8B": ({"model.safetensors": 1}, INTERNVL, ["InternVL3-8B-hf"]),
    "Phi-3.5-vision": ({"model.safetensors": 1}, {"model_type": "phi3_v"}, ["own Python code"]),
    "llava-v1.5-7b": ({"pytorch_model-1-of-2.bin": 1}, LLAVA, ["https://hf.co/llava-hf"]),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_form_that_is_not_for_us(tmp_path, sira, photos, name):
    files, config, said = FOLDERS[name]
    folder = tmp_path / name
    folder.mkdir()
    for file, content in {**files, **({"config.json": config} if config else {})}.items():
        if file.endswith(".safetensors"):
            save_file({"x": torch.zeros(1)}, folder / file)
        else:
            (folder / file).write_text(json.dumps(content))
    for trusted in ([], ["--set", "trust_remote_code=yes"]):
        code, out, err = sira("caption", photos["coffee"], "-m", folder, *trusted)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert all(part in err for part in (str(folder), *said))
    code, out, err = sira("presets", "new", folder)
    assert (code, out, said[0] in err) == (2, "", True)


@pytest.fixture
def folder(tmp_path, llava_folder):
    """A copy of a checkpoint that works."""
    shutil.copytree(llava_folder, tmp_path / "model")
    return tmp_path / "model"


def test_the_structure_is_judged_before_weights_are_read(folder):
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(SettingsError, match="k = 8"):
        load(folder, k=8)  # of 8: at most 7
    with pytest.raises(SiraError, match="cannot be loaded"):
        load(folder, k=7)
    for kind, message in (("mllama", "cross-attention"), ("qwen2", "'qwen2' model, not one for pictures and text")):
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(UnsupportedModelError, match=message):
            load(folder)


def test_a_family_that_was_not_tested_is_said_once(monkeypatch, llava_folder, photos):
    monkeypatch.setattr(families, "TESTED", families.TESTED - {"llava"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(llava_folder, max_new_tokens=2)
        model.caption(photos["coffee"])
    assert [warning.category for warning in caught].count(UntestedModelWarning) == 1


def test_the_model_inside_peft_s_is_the_one_to_attach(llava):
    class PeftModel(torch.nn.Module):
        """As peft wraps a model."""

        def get_base_model(self) -> torch.nn.Module:
            return llava.model

    with pytest.raises(UnsupportedModelError, match=r"attach `model\.get_base_model\(\)`"), attach(PeftModel()):
        pass
