"""Traces for tests: a made-up language model, but real arithmetic, line by line as the schema wants it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np

from sira_cli.pictures.opening import picture_size

SCHEMA = Path(__file__).parents[2] / "sira_cli/analysis/trace/trace.schema.json"
END = "<|im_end|>"
HOSTILE = "</script><img src=x onerror=alert(1)>"
CAPTION = (
    "The image shows a tabby cat lying on a soft grey blanket beside a window. Its green eyes are half closed, and "
    "its white whiskers catch the afternoon light. Behind the cat there is a wooden bookshelf with several books, a "
    "small potted plant and a photograph in a frame.\n\nA person is standing in the background, and a cup of coffee "
    "rests on the table. The scene feels calm, warm and quietly domestic."
)
DELTAS = {"tabby": 5.2, "cat": 4.1, "blanket": 3.0, "green": 3.4, "person": -1.7, "background": -0.9, "coffee": -1.2}
KNOWN = {"prompt": "Describe this image in detail.", "preset": "qwen2.5-vl-7b", "model": "Qwen/Qwen2.5-VL-7B-Instruct"}
KNOWN |= {"revision": "cc594898137f460bfe9f0759e9844b3ce807cfb5", "method": "sira", "k": 14, "layers": 28, "alpha": 0.5}
KNOWN |= {"beta": None, "max_new_tokens": 512, "temperature": 0.0, "top_p": 1.0, "seed": 0, "forced": False}
KNOWN |= {"prompt_tokens": 391, "image_tokens": 361, "image_positions": [[15, 376]], "dtype": "bfloat16"}
KNOWN |= {"device": "cuda:0 (NVIDIA H100 80GB HBM3)"}
KNOWN |= {"versions": {"sira": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0", "python": "3.11.2"}}
VIEWS = ("full", "cf", "contrast")
SEEN = 14.0  # the usual logit of a likely token


def make_trace(
    picture: Path | None = None,
    *,
    text: str = CAPTION,
    deltas: dict[str, float] = DELTAS,
    others: tuple[str, ...] = (),
    tracked: tuple[str, ...] = (),
    top_k: int = 10,
    folder: Path | None = None,
    seed: int = 0,
    **run: object,
) -> list[dict]:
    """A whole trace: the run line, a line per token, the end line."""
    rng, tokens = np.random.default_rng(seed), [*_tokenize(text), END]
    spaced = [f" {word}" for word in tracked]
    vocabulary = [*dict.fromkeys([*tokens, *others, *spaced, *map(" word{}".format, range(40))])]
    size = len(vocabulary)
    settings = _run_line(picture, folder) | {"top_k": top_k, "vocab_size": size} | run
    settings["tracked"] = [{"word": word[1:], "token_ids": [vocabulary.index(word)]} for word in spaced]
    alpha, lines = settings["alpha"], list[dict]()
    for step, token in enumerate(tokens):
        chosen = vocabulary.index(token)
        full = rng.normal(SEEN - 9, 3, size)
        cf = full + rng.normal(0, 0.4, size)
        full[chosen] = SEEN + rng.normal(0, 1)
        cf[chosen] = full[chosen] - deltas.get(token.strip(), abs(rng.normal(0.3, 0.5))) - rng.normal(0, 0.1)
        views = dict(zip(VIEWS, np.stack([full, cf, (1 + alpha) * full - alpha * cf]), strict=True))
        rows = [
            _candidate(index, word.encode("utf-8", "surrogateescape"), views) for index, word in enumerate(vocabulary)
        ]
        best = {int(index) for logits in views.values() for index in np.argsort(-logits)[:top_k]}
        top = sorted((rows[index] for index in best), key=lambda row: -row["contrast"]["logit"])
        kl = sum(math.exp(row["full"]["logprob"]) * (row["full"]["logprob"] - row["cf"]["logprob"]) for row in rows)
        line = {"type": "token", "step": step, **rows[chosen], "special": token == END, "kl": max(0.0, kl), "top": top}
        line["delta"] = line["full"]["logit"] - line["cf"]["logit"]
        line["tracked"] = [{"word": word[1:], **rows[vocabulary.index(word)]} for word in spaced]
        lines.append(line)
    return [settings, *lines, _end_line(text, tokens, lines, tracked)]


def _candidate(index: int, data: bytes, views: dict[str, np.ndarray]) -> dict:
    row = {"token_id": index, "token": data.decode("utf-8", "replace"), "bytes": [*data]}
    for view, logits in views.items():
        logprob = min(0.0, float(logits[index] - np.logaddexp.reduce(logits)))
        row[view] = {"logit": float(logits[index]), "logprob": logprob, "rank": 1 + int((logits > logits[index]).sum())}
    return row


def looked_at(trace: list[dict], threshold: float = 0.5, **support: float) -> list[dict]:
    """The trace with a second look: things, words of the text, and their support."""
    objects = []
    for thing, value in support.items():
        spans = [list(match.span()) for match in re.finditer(rf"\b{thing}\b", trace[-1]["text"])]
        objects.append({"thing": thing, "spans": spans, "support": value, "neither": 0.01})
    verify = {"mode": "flag", "words": "test", "question": "Is there {thing} in the image?", "min_support": threshold}
    return [*trace[:-1], {**trace[-1], "objects": objects, "verify": verify}]


def write_traces(path: Path, *traces: list[dict]) -> Path:
    """One file of several traces."""
    path.write_text("".join(json.dumps(line) + "\n" for trace in traces for line in trace), encoding="utf-8")
    return path


def failed(error: str) -> list[dict]:
    """A trace of an error before there was a run."""
    nothing = {"text": "", "output_tokens": 0, "duration_ms": 12.5, "words": [], "tracked": []}
    return [{"type": "end", "status": "error", "error": error, "finish_reason": "error", **nothing}]


def hostile() -> list[dict]:
    """A failed trace with a script in all its texts."""
    run = dict.fromkeys(("prompt", "model", "revision", "preset", "method", "file_name", "device"), HOSTILE)
    trace = make_trace(text=f"A cat {HOSTILE}", others=(HOSTILE, f" {HOSTILE}"), tracked=(HOSTILE,), **run)
    trace[-1] |= {"status": "error", "error": HOSTILE, "words": [{**trace[-1]["words"][0], "word": HOSTILE}]}
    return trace


def _tokenize(text: str) -> list[str]:
    """Words with the space before them; what is longer than 8 letters in two; bytes of emoji one by one."""
    tokens = []
    for word in re.findall(r" ?[^\s,.]+|\s|[,.]", text):
        if re.search("[\U0001f300-\U0001faff]", word):
            tokens += [bytes([byte]).decode("utf-8", "surrogateescape") for byte in word.encode()]
        else:
            tokens += [word] if len(word) < 10 or "<" in word else [word[:6], word[6:]]
    return tokens


def _run_line(picture: Path | None, folder: Path | None) -> dict:
    path = picture or Path("/nowhere/cat.png")
    data = path.read_bytes() if picture else b""
    width, height = picture_size(str(path), data) if picture else (640, 480)
    name, sha256 = str(path.relative_to(folder) if folder else path.name), hashlib.sha256(data).hexdigest()
    image = {"path": str(path), "sha256": sha256, "width": width, "height": height}
    return {"type": "run", "schema": "sira.trace/1", "task": "caption", "file_name": name, "image": image, **KNOWN}


def _end_line(text: str, tokens: list[str], lines: list[dict], tracked: tuple[str, ...]) -> dict:
    step_of = [step for step, token in enumerate(tokens[:-1]) for _ in token.encode("utf-8", "surrogateescape")]
    words = []
    for match in re.finditer(r"\S+", text):
        first, last = (len(text[:at].encode()) for at in match.span())
        steps = [step_of[first], step_of[last - 1] + 1]
        own = lines[slice(*steps)]
        word = {"word": match.group(), "start": match.start(), "end": match.end(), "steps": steps}
        grounding = math.exp(sum(line["contrast"]["logprob"] for line in own))
        words.append({**word, "delta": sum(line["delta"] for line in own), "grounding": grounding})
    uses = [
        {"word": word, "step": step, **{view: lines[step][view]["logprob"] for view in VIEWS}}
        for word in tracked
        for step, token in enumerate(tokens)
        if token == f" {word}"
    ]
    end = {"type": "end", "status": "ok", "error": "", "text": text, "finish_reason": "stop", "words": words}
    return {**end, "output_tokens": len(tokens), "duration_ms": 2417.3, "tracked": uses}
