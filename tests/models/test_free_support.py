"""`verify=` free: support from numbers of decoding, against the same computed from the logits of `sira trace`."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from sira_cli import load
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.errors import NotCalibratedError, SettingsError
from sira_cli.methods.calibrated import Calibration, Origin
from sira_cli.models import calibrations
from sira_cli.models.free_support import KIND, NUMBERS, Weights, streams_of
from sira_cli.models.second_look import Verify
from sira_cli.runs.check_run import CheckRun
from sira_cli.runs.run import check_request, run_pictures

FIRST = VALIDATION_SEEDS[500_000]
VALUES = {"greedy": [-1.4, 0.5, 0.04, 0.3, -3.0, 0.6, 4.0], "sira": [-0.7, 0.2, 0.1, -0.05, -1.0, 0.3, 2.0]}
LINE = 0.71


@pytest.fixture(scope="module")
def lvlms():
    greedy = load("demo", method="greedy", max_new_tokens=60)
    return {"greedy": greedy, "sira": load("demo", method="sira", max_new_tokens=60)}


@pytest.fixture(autouse=True)
def weights(home, lvlms):
    """Weights that are known, for the bundled model."""
    tensors = {}
    for method, values in VALUES.items():
        tensors |= Weights(torch.tensor(values, dtype=torch.float64), LINE).tensors(method)
    lvlm = lvlms["greedy"]
    origin = Origin(KIND, "m", lvlm.revision, {"streams": dict.fromkeys(VALUES, streams_of(lvlm))}, "0")
    path = calibrations.place(KIND, "m", lvlm.revision)
    Calibration(origin, tensors).write(path)
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    for seed in range(FIRST, FIRST + 3):
        render(held_out(seed))[0].save(folder / f"{seed}.png")
    return folder


@pytest.mark.parametrize("method", ["greedy", "sira"])
def test_support_is_the_score_of_what_a_trace_holds(sira, lvlms, pictures, tmp_path, method):
    """In numpy, from the logits of both streams and the text alone."""
    picture, logits = pictures / f"{FIRST}.png", tmp_path / "logits.safetensors"
    command = ["trace", picture, "-p", "demo", "--method", method, "--max-new-tokens", 60, "--full-logits", logits]
    assert sira(*command, "-o", tmp_path / "trace.jsonl")[0] == 0
    steps = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    text = steps[-1]["text"]
    held = load_file(logits)
    full, cf = held["logits"][:, 0].astype(float), held["logits"][:, 1].astype(float)
    tokens = held["token_ids"]

    def logprobs(z):
        return z - np.logaddexp.reduce(z, axis=1, keepdims=True)

    entropies = [-(np.exp(logprobs(z)) * logprobs(z)).sum(1) for z in (full, cf)]
    rows = np.arange(len(tokens))
    contrast = logprobs(1.5 * full - 0.5 * cf)[rows, tokens]
    delta = full[rows, tokens] - cf[rows, tokens]
    pieces = ["" if line["special"] else line["token"] for line in steps if line["type"] == "token"]
    ends = np.cumsum([len(piece) for piece in pieces])
    margin = len("".join(pieces)) - len("".join(pieces).lstrip())
    result = lvlms[method].caption(picture, verify="free")
    assert result.text == text
    assert len(result.objects) > 2
    for claim in result.objects:
        start = claim["spans"][0][0] + margin
        first = next(step for step in rows if ends[step] > start)
        last = first + 1
        while last < len(tokens) and not pieces[last].startswith(" "):  # the word goes on, or a full stop follows
            last += 1
        numbers = [
            *(entropy[first] for entropy in entropies),
            contrast[first:last].sum(),
            delta[first:last].sum(),
            claim["spans"][0][0] / len(text),
            float(len(claim["spans"]) > 1),
        ]
        assert len(numbers) == len(NUMBERS)
        score = np.dot(numbers, VALUES[method][:-1]) + VALUES[method][-1]
        assert claim["support"] == pytest.approx(1 / (1 + np.exp(-score)), abs=1e-4)
        assert claim["neither"] == 0.0


def test_records_are_those_without_it_but_for_what_is_named(lvlms, pictures):
    lvlm = lvlms["sira"]
    picture = pictures / f"{FIRST + 1}.png"
    plain, free, flagged = (lvlm.caption(picture, verify=mode) for mode in (None, "free", "flag"))
    assert (free.text, free.key) == (plain.text, plain.key)
    assert plain.objects is None
    assert [(one["thing"], one["spans"]) for one in free.objects] == [
        (one["thing"], one["spans"]) for one in flagged.objects
    ]
    assert [set(one) for one in free.objects] == [set(one) for one in flagged.objects]
    assert {**free.verify, "weights": ""} == {
        "mode": "free",
        "words": "chair+amber/1",
        "min_support": LINE,
        "weights": "",
    }
    own = lvlm.caption(picture, verify=Verify(0.2, mode="free"))
    assert own.verify["min_support"] == 0.2


def test_batches_give_what_single_pictures_give(lvlms, pictures):
    found = {}
    for size in (1, 3):
        events = run_pictures(lvlms["greedy"], pictures, verify="free", batch_size=size)
        found[size] = {event.record.file_name: event.record for event in events if hasattr(event, "record")}
    assert len(found[1]) == 3
    for name, one in found[1].items():
        other = found[3][name]
        assert (one.text, one.key, one.verify) == (other.text, other.key, other.verify)
        for claim, same in zip(one.objects, other.objects, strict=True):
            assert claim["support"] == pytest.approx(same["support"], abs=1e-4)


def test_only_what_was_decoded_is_scored(lvlms, pictures):
    """A prefix moves the spans, and what it names has no numbers."""
    lvlm, picture = lvlms["greedy"], pictures / f"{FIRST}.png"
    prefix = "Photo of a kangaroo: "
    plain = lvlm.caption(picture, verify="free")
    moved = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(prefix=prefix)).caption(picture, verify="free")
    assert moved.text == prefix + plain.text
    assert [(each["thing"], each["support"]) for each in moved.objects] == [
        (each["thing"], each["support"]) for each in plain.objects
    ]
    assert moved.objects[0]["spans"][0][0] == plain.objects[0]["spans"][0][0] + len(prefix)


def test_without_weights_the_message_says_how_they_are_made(lvlms, pictures, weights, monkeypatch):
    picture = pictures / f"{FIRST}.png"
    lvlm = lvlms["sira"]
    other = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(alpha=1.0))
    with pytest.raises(NotCalibratedError, match=r"fitted with other settings .* `sira calibrate free -m bundled"):
        other.caption(picture, verify="free")
    monkeypatch.setattr(calibrations, "SHIPPED", weights)
    weights.unlink()
    with pytest.raises(NotCalibratedError, match=r"weights for bundled under sira, .*`sira calibrate free -m bundled"):
        lvlms["sira"].caption(picture, verify="free")


def test_the_bundled_model_has_weights(lvlms, weights, pictures):
    weights.unlink()
    for lvlm in lvlms.values():
        verify = lvlm.caption(pictures / f"{FIRST}.png", verify="free").verify
        assert 0.3 < verify["min_support"] < 0.9
        assert verify["weights"].startswith("sha256:")


def test_what_it_does_not_go_with(lvlms):
    greedy = lvlms["greedy"]
    free = Verify(mode="free")
    with pytest.raises(SettingsError, match=r"`verify=` free needs method .*sira.* not vcd: .*`verify=` flag"):
        check_request(greedy.preset.method("vcd"), 1, verify=free)
    with pytest.raises(SettingsError, match=r"not `num_beams=`"):
        check_request(greedy.decoder, 2, verify=free)
    with pytest.raises(SettingsError, match=r"`compile=`"):
        check_request(greedy.decoder, 1, verify=free, compiled=True)
    with pytest.raises(SettingsError, match=r"`choices=` writes none"):
        check_request(greedy.decoder, 1, verify=free, choices=["yes", "no"])
    with pytest.raises(SettingsError, match="these exist already"):
        CheckRun(greedy, "check", "", verify=free)
    retrying = greedy.under(greedy.decoder, greedy.preset.with_settings(on_loop="retry"))
    with pytest.raises(SettingsError, match="`on_loop=` retry"):
        retrying.caption(render(held_out(FIRST))[0], verify="free")
    with pytest.raises(SettingsError, match="flag, rewrite, free"):
        replace(free, mode="cheap")
