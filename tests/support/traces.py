"""Traces for tests: a made-up language model, but real arithmetic, line by line as the schema wants it."""

from __future__ import annotations

import hashlib
import json
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
    rng = np.random.default_rng(seed)
    tokens = [*_tokenize(text), END]
    vocabulary = list(
        dict.fromkeys([*tokens, *others, *(f" {word}" for word in tracked), *map(" word{}".format, range(40))])
    )
    settings = _run_line(picture, folder, len(vocabulary), top_k, tracked, vocabulary) | run
    alpha = settings["alpha"]
    lines: list[dict] = []
    for step, token in enumerate(tokens):
        chosen = vocabulary.index(token)
        full = rng.normal(SEEN - 9, 3, len(vocabulary)).astype(np.float32)
        cf = full + rng.normal(0, 0.4, len(vocabulary)).astype(np.float32)
        delta = np.float32(deltas.get(token.strip(), abs(rng.normal(0.3, 0.5))) + rng.normal(0, 0.1))
        full[chosen] = SEEN + rng.normal(0, 1)
        cf[chosen] = full[chosen] - delta
        contrast = (1 + np.float32(alpha)) * full - np.float32(alpha) * cf
        views = {"full": full, "cf": cf, "contrast": contrast}
        logprobs = {view: _log_softmax(logits) for view, logits in views.items()}

        def candidate(index: int, views=views, logprobs=logprobs) -> dict:
            return {
                "token_id": index,
                "token": vocabulary[index].encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
                "bytes": list(vocabulary[index].encode("utf-8", "surrogateescape")),
                **{
                    view: {
                        "logit": float(logits[index]),
                        "logprob": min(0.0, float(logprobs[view][index])),
                        "rank": 1 + int((logits > logits[index]).sum()),
                    }
                    for view, logits in views.items()
                },
            }

        best = {int(index) for logits in views.values() for index in np.argsort(-logits)[:top_k]}
        kl = float((np.exp(logprobs["full"]) * (logprobs["full"] - logprobs["cf"])).sum())
        lines.append(
            {
                "type": "token",
                "step": step,
                **candidate(chosen),
                "special": token == END,
                "delta": float(full[chosen] - cf[chosen]),
                "kl": max(0.0, kl),
                "top": [candidate(index) for index in sorted(best, key=lambda index: -contrast[index])],
                "tracked": [{"word": word, **candidate(vocabulary.index(f" {word}"))} for word in tracked],
            }
        )
    return [settings, *lines, _end_line(text, tokens, lines, tracked)]


def looked_at(trace: list[dict], threshold: float = 0.5, **support: float) -> list[dict]:
    """The trace with a second look: things, words of the text, and their support."""
    text = trace[-1]["text"]
    objects = [
        {
            "thing": thing,
            "spans": [list(match.span()) for match in re.finditer(rf"\b{thing}\b", text)],
            "support": value,
            "neither": 0.01,
        }
        for thing, value in support.items()
    ]
    verify = {"mode": "flag", "words": "test", "question": "Is there {thing} in the image?", "min_support": threshold}
    return [*trace[:-1], {**trace[-1], "objects": objects, "verify": verify}]


def write_traces(path: Path, *traces: list[dict]) -> Path:
    """One file of several traces."""
    path.write_text("".join(json.dumps(line) + "\n" for trace in traces for line in trace), encoding="utf-8")
    return path


def failed(error: str) -> list[dict]:
    """A trace of an error before there was a run."""
    return [
        {
            "type": "end",
            "status": "error",
            "error": error,
            "text": "",
            "finish_reason": "error",
            "output_tokens": 0,
            "duration_ms": 12.5,
            "words": [],
            "tracked": [],
        }
    ]


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


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def _run_line(picture, folder, vocab_size, top_k, tracked, vocabulary) -> dict:
    path = picture or Path("/nowhere/cat.png")
    width, height = picture_size(str(path), path.read_bytes()) if picture else (640, 480)
    return {
        "type": "run",
        "schema": "sira.trace/1",
        "task": "caption",
        "file_name": str(path.relative_to(folder) if folder else path.name),
        "image": {
            "path": str(path),
            "sha256": hashlib.sha256(path.read_bytes() if picture else b"").hexdigest(),
            "width": width,
            "height": height,
        },
        "prompt": "Describe this image in detail.",
        "preset": "qwen2.5-vl-7b",
        "model": "Qwen/Qwen2.5-VL-7B-Instruct",
        "revision": "cc594898137f460bfe9f0759e9844b3ce807cfb5",
        "method": "sira",
        "k": 14,
        "layers": 28,
        "alpha": 0.5,
        "beta": None,
        "max_new_tokens": 512,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 0,
        "forced": False,
        "top_k": top_k,
        "vocab_size": vocab_size,
        "prompt_tokens": 391,
        "image_tokens": 361,
        "image_positions": [[15, 376]],
        "tracked": [{"word": word, "token_ids": [vocabulary.index(f" {word}")]} for word in tracked],
        "device": "cuda:0 (NVIDIA H100 80GB HBM3)",
        "dtype": "bfloat16",
        "versions": {"sira": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0", "python": "3.11.2"},
    }


def _end_line(text: str, tokens: list[str], lines: list[dict], tracked: tuple[str, ...]) -> dict:
    step_of = [step for step, token in enumerate(tokens[:-1]) for _ in token.encode("utf-8", "surrogateescape")]
    words = []
    for match in re.finditer(r"\S+", text):
        first, last = (len(text[:at].encode()) for at in match.span())
        steps = [step_of[first], step_of[last - 1] + 1]
        delta = sum(line["delta"] for line in lines[slice(*steps)])
        words.append(
            {
                "word": match.group(),
                "start": match.start(),
                "end": match.end(),
                "steps": steps,
                "delta": delta,
                "grounding": float(np.exp(sum(line["contrast"]["logprob"] for line in lines[slice(*steps)]))),
            }
        )
    return {
        "type": "end",
        "status": "ok",
        "error": "",
        "text": text,
        "finish_reason": "stop",
        "output_tokens": len(tokens),
        "duration_ms": 2417.3,
        "words": words,
        "tracked": [
            {"word": word, "step": step, **{view: lines[step][view]["logprob"] for view in ("full", "cf", "contrast")}}
            for word in tracked
            for step, token in enumerate(tokens)
            if token == f" {word}"
        ],
    }
