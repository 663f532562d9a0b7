"""Finding a checkpoint: a folder, the cache, or a hub; models that cannot work, told early, with a way out; and Python
code that a checkpoint brings: without `load.trust_remote_code` none of it runs, and nobody is asked.

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
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from transformers import dynamic_module_utils

from sira_cli import UnsupportedModelError, load
from sira_cli.core import families
from sira_cli.errors import ModelNotFoundError, SiraError, UntestedModelWarning
from sira_cli.models.hub import find_checkpoint, find_config
from sira_cli.models.load import inspect_model
from sira_cli.models.preset import Preset
from tests.support.checkpoints import change, edited
from tests.support.helpers import installed
from tests.support.shards import EXAMPLES
from tests.support.web import answering, reply

COMMIT = "c0ffee" * 6 + "c0ff"
NOBODY = "http://127.0.0.1:9"  # nobody listens there
SCRIPT = """
import sys
from sira_cli.errors import ModelNotFoundError
from sira_cli.models.hub import find_checkpoint, find_config, hub_state
from sira_cli.models.preset import Preset
preset = Preset(model=sys.argv[2], revision=sys.argv[3], download_gb=7.5)
try:
    print(eval(sys.argv[1]))
except ModelNotFoundError as error:
    print("error:", error)
"""
FETCH = "find_checkpoint(preset, on_download=print)"


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

    def answer(path: str) -> list[bytes]:
        path = path.partition("?")[0]
        if "owner/gated" in path:
            return reply(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        if path == "/api/models/owner/model/revision/nowhere":
            return reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if path.startswith("/api/models/owner/model"):
            found = {file.name: file.stat().st_size for file in sorted(files.iterdir())}
            both = [
                {"type": "file", "path": name, "rfilename": name, "size": found[name], "oid": "0"} for name in found
            ]
            listing = both if "/tree/" in path else {"id": "owner/model", "sha": COMMIT, "siblings": both}
            return reply(200, json.dumps(listing).encode(), {"Content-Type": "application/json"})
        if not path.startswith("/owner/model/resolve/"):
            return reply(401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"})
        file = files / path.rsplit("/", 1)[1]
        if not file.is_file():
            return reply(404, headers={"X-Error-Code": "EntryNotFound"})
        tag = f'"{hashlib.sha256(file.read_bytes()).hexdigest()}"'
        return reply(200, file.read_bytes(), {"ETag": tag, "X-Repo-Commit": COMMIT})

    with answering(answer) as server:
        yield server


def ask(tmp_path, endpoint, what=FETCH, model="owner/model", revision="main", offline=0) -> str:
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": str(offline)}
    command = [sys.executable, "-c", SCRIPT, what, model, revision]
    process = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=60, check=True)
    return process.stdout.strip()


def test_a_finished_download_is_found_without_asking_the_hub(hub, tmp_path):
    folder = Path(ask(tmp_path, hub.address, "find_config(preset)"))
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    announced, found = ask(tmp_path, hub.address).splitlines()
    assert announced.startswith("Download(model='owner/model', revision='main', gigabytes=1.3e-08,")
    assert found == f"Checkpoint(folder={folder!r}, commit={COMMIT!r})"
    names = {path.name for path in folder.iterdir()}  # neither pickle nor copy
    assert names == {"config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"}
    hub.asked.clear()
    assert ask(tmp_path, hub.address) == ask(tmp_path, hub.address, revision=COMMIT) == found
    assert not hub.asked
    (folder / "model.safetensors").unlink()  # a torn download
    assert ask(tmp_path, hub.address).startswith("Download")
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_a_model_that_cannot_work_is_known_by_its_config_alone(hub, tmp_path):
    (tmp_path / "served" / "config.json").write_text('{"model_type": "mllama"}')
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
    done = installed("caption", EXAMPLES[0], "-m", "owner/model", env=environment, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1  # not even a download is announced
    assert "MllamaForConditionalGeneration is not supported: it reads the image through" in done.stderr
    fetched = [request.split("?")[0] for request in hub.asked if "GET" in request and "/resolve/" in request]
    assert [path.rsplit("/", 1)[1] for path in fetched] == ["config.json"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "owner/gated"}, "owner/gated is gated: accept its terms"),
        ({"model": "owner/unknown"}, "owner/unknown does not exist on http"),
        ({"revision": "nowhere"}, "owner/model has no revision 'nowhere'"),
    ],
)
def test_what_a_hub_may_refuse(hub, tmp_path, given, message):
    assert message in ask(tmp_path, hub.address, **given)


def test_without_a_network_or_in_offline_mode_two_ways_out_are_named(tmp_path):
    started = time.monotonic()
    message = ask(tmp_path, NOBODY)
    assert time.monotonic() - started < 30  # not a speed test: retries alone would take longer
    assert message.startswith("error: owner/model (about 7.5 GB) is not in the cache and cannot be fetched from http:")
    assert "hf download owner/model" in message
    assert "`preset=` demo" in message  # which the command line shows as --preset demo
    assert "offline mode is on" in ask(tmp_path, NOBODY, offline=1)


def test_the_state_of_the_hub_takes_one_request(hub, tmp_path):
    assert ask(tmp_path, hub.address, "hub_state()") == "reachable"
    assert ask(tmp_path, hub.address, "hub_state()", offline=1) == "offline mode"
    assert hub.asked == ["HEAD /"]
    assert ask(tmp_path, NOBODY, "hub_state()").startswith(f"{NOBODY} cannot be reached (")


def test_the_revision_of_a_folder_changes_with_its_content_only(tmp_path):
    folder, seen = make_folder(tmp_path / "model"), set[str]()
    middle = 10 * b"\0" + 10 * b"\1" + 10 * b"\0"  # some layers changed, in MB
    for name, data in (("model.safetensors", bytes(30)), ("model.safetensors", middle), ("merges.txt", b"a b")):
        (folder / name).write_bytes(b"".join(bytes([each]) * 2**20 for each in data))
        copy = shutil.copytree(folder, tmp_path / f"copy {len(seen)}")
        revisions = {find_checkpoint(Preset(model=str(place))).revision for place in (folder, copy)}
        assert len(revisions) == 1
        seen |= revisions
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
        (folder / file).write_text(json.dumps(content))
    for trusted in ([], ["--set", "trust_remote_code=yes"]):
        code, out, err = sira("caption", photos["coffee"], "-m", folder, *trusted)
        assert code == 2
        assert out == ""
        assert err.count("\n") == 1
        assert all(part in err for part in (str(folder), *said))
    code, out, err = sira("presets", "new", folder)
    assert code == 2
    assert out == ""
    assert said[0] in err


def test_the_structure_is_judged_before_weights_are_read(llava_folder, tmp_path):
    folder = shutil.copytree(llava_folder, tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"no weights")
    for k, message in ((8, "k = 8"), (7, "cannot be loaded")):  # of 8 layers
        with pytest.raises(SiraError, match=message):
            load(folder, k=k)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    with pytest.raises(UnsupportedModelError, match="'qwen2' model, not one for pictures and text"):
        load(folder)


def test_a_family_that_was_not_tested_is_said_once(monkeypatch, llava_folder, photos):
    monkeypatch.setattr(families, "TESTED", families.TESTED - {"llava"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(llava_folder, max_new_tokens=2)
        model.caption(photos["coffee"])
    assert [warning.category for warning in caught].count(UntestedModelWarning) == 1


# --- Python code of a checkpoint

YES = b"y\ny\ny\ny\n"  # to whatever is asked
PROCESSORS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
KINDS = ("Model", "ModelForImageTextToText", "Config", "Processor", "ImageProcessor")
OFFERED = {f"Auto{kind}": "evil.Own" for kind in KINDS} | {"AutoTokenizer": ["evil.Own"] * 2}  # in each file
CODE = """
from pathlib import Path

Path({marker!r}).touch()


class Own:
    model_type = "evil"
"""


def make_foreign(part: str, folder: Path) -> None:
    """Let a part of a checkpoint need the code that comes with it."""
    if part == "model":
        change(folder / "config.json", model_type="evil")
    if part in ("model", "processor"):
        for name in PROCESSORS:
            change(folder / name, processor_class=None if part == "model" else "EvilProcessor")
    if part == "image processor":
        change(folder / "preprocessor_config.json", image_processor_type="EvilImageProcessor")
    if part == "tokenizer":
        change(folder / "tokenizer_config.json", tokenizer_class="EvilTokenizer")
    if part == "text model":  # of a type that transformers has the configuration of, and no model
        own = json.loads((folder / "config.json").read_text())["text_config"]
        own |= {"model_type": "kosmos_2_text_model", "auto_map": {"AutoModel": f"{folder}--evil.Own"}}
        change(folder / "config.json", text_config=own)
    if part == "audio":  # every processor may have a model that hears
        (folder / "other").mkdir()
        change(folder / "other" / "config.json", model_type="evil", auto_map=OFFERED)
        shutil.copy(folder / "evil.py", folder / "other")
        audio = {"audio_tokenizer_class": "AutoModel", "audio_tokenizer_name_or_path": str(folder / "other")}
        change(folder / "processor_config.json", audio_tokenizer=audio)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What the checkpoint's code makes when it runs."""
    return tmp_path / "code has run"


@pytest.fixture
def checkpoint(llava_folder: Path, tmp_path: Path, marker: Path, monkeypatch) -> Path:
    """An ordinary LLaVA-1.5 that offers its own code for every part."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = edited(llava_folder, tmp_path / "model", "config.json", *PROCESSORS, auto_map=OFFERED)
    (folder / "evil.py").write_text(CODE.format(marker=str(marker)))
    return folder


def test_the_code_does_run_where_the_user_says_so(checkpoint, marker):
    """Else the other tests would show nothing."""
    make_foreign("model", checkpoint)
    with pytest.raises(SiraError):
        load(checkpoint, trust_remote_code=True)
    assert marker.exists()


def test_an_ordinary_model_works_without_the_code_that_comes_with_it(checkpoint, marker, sira, photos, llava_folder):
    code, out, _ = sira("caption", photos["coffee"], "-m", checkpoint, "--max-new-tokens", 3, stdin=YES)
    assert (code, out) == (0, sira("caption", photos["coffee"], "-m", llava_folder, "--max-new-tokens", 3)[1])
    assert sira("presets", "new", checkpoint, stdin=YES)[0] == 0
    assert not marker.exists()


@pytest.mark.parametrize("part", ["model", "processor", "image processor", "tokenizer", "text model", "audio"])
def test_no_part_runs_its_own_code(checkpoint, marker, sira, photos, part):
    make_foreign(part, checkpoint)
    timeout = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    # A text of one token: a part that can be had without its code may well work.
    code, out, err = sira("caption", photos["coffee"], "-m", checkpoint, "--max-new-tokens", 1, stdin=YES)
    assert "[y/N]" not in out + err
    assert code in (0, 1, 2)
    assert code == 0 or err.count("\n") <= 5
    sira("presets", "new", checkpoint, stdin=YES)
    assert not marker.exists()
    assert timeout == dynamic_module_utils.TIME_OUT_REMOTE_CODE  # of other users of transformers


def test_no_command_runs_it(checkpoint, marker, sira, photos, tmp_path):
    make_foreign("model", checkpoint)
    preset, picture = tmp_path / "evil.yaml", photos["coffee"]
    preset.write_text(json.dumps({"model": str(checkpoint)}))
    commands = [("caption", "-"), ("bench",), ("sweep", "--scenes"), ("serve",), ("calibrate", "maskcd", picture)]
    for command in commands:
        stdin = picture.read_bytes() if "-" in command else YES
        code, out, err = sira(*command, "-m", checkpoint, stdin=stdin)
        assert code == 2, (command, err)
        assert out == "", (command, err)
        assert "own Python code" in err, (command, err)
    for command in ("show", "check"):
        sira("presets", command, preset, stdin=YES)
    with pytest.raises(SiraError, match="own Python code"):
        inspect_model(Preset(model=str(checkpoint)))
    assert not marker.exists()


@pytest.mark.parametrize(
    "command",
    [
        ("ask", "PHOTO", "Why?", "-m", "MODEL", "--max-new-tokens", 1),
        ("trace", "PHOTO", "-m", "MODEL", "--max-new-tokens", 1),
        ("drift", "PHOTO", "-m", "MODEL"),
        ("bench", "-m", "MODEL", "--max-new-tokens", 1, "--runs", 1, "--method", "greedy"),
        ("presets", "check", "-m", "MODEL"),
        ("presets", "check", "PRESET"),
        ("caption", "PHOTO", "-p", "PRESET", "--max-new-tokens", 1),
    ],
)
@pytest.mark.parametrize("part", ["model", "processor"])
def test_no_command_runs_foreign_code(checkpoint, marker, sira, photos, tmp_path, part, command):
    make_foreign(part, checkpoint)
    preset = tmp_path / "mine.yaml"
    preset.write_text(f"model: {checkpoint}\n")
    given = {"PHOTO": photos["coffee"], "MODEL": checkpoint, "PRESET": preset}
    _, out, err = sira(*(given.get(word, word) for word in command), stdin=YES)
    assert "[y/N]" not in out + err
    assert not marker.exists()


def test_a_preset_that_trusts_foreign_code_is_checked_without_it(checkpoint, marker, sira, tmp_path):
    make_foreign("model", checkpoint)
    preset = tmp_path / "mine.yaml"
    preset.write_text(f"model: {checkpoint}\nload: {{trust_remote_code: true}}\n")
    code, out, _ = sira("presets", "check", preset, stdin=YES)
    assert code == 0
    assert "ok (mine" in out
    assert not marker.exists()
