"""Traces: every number recomputed from all logits, the same tokens as `caption`, and files that are read with care."""

from __future__ import annotations

import copy
import json
import shutil
from contextlib import closing
from pathlib import Path

import jsonschema
import pytest
import torch
from safetensors.torch import load_file

from sira_cli import load
from sira_cli.analysis.trace.read import read_traces
from sira_cli.analysis.trace.run import TraceFile, TraceOutput, read_texts, run_traces
from sira_cli.analysis.trace.task import Trace
from sira_cli.errors import SettingsError, SiraError
from sira_cli.look.claims import Verify
from sira_cli.models.preset import Preset
from sira_cli.pictures.find import Shard
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.sources import as_picture, located
from sira_cli.run.events import Started
from tests.support.checkpoints import REPRESENTATIVES
from tests.support.eval.writing import lines as write_lines
from tests.support.eval.writing import read, save
from tests.support.records import caption_record
from tests.support.traces import SCHEMA, make_trace, write_traces

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
PROMPT = "Describe this image."
VIEWS = ("full", "cf", "contrast")
VALID = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
VALID.check_schema(VALID.schema)
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.fixture(scope="module")
def demo():
    return load("demo", max_new_tokens=24)


def all_traced(lvlm, *pictures: Picture, batch_size: int = 1, **options) -> list[list[dict]]:
    task = Trace(lvlm.preset, lvlm.decoder, forced=pictures[0].caption is not None, **options)
    with TraceOutput(task, pictures) as output:
        started, *events = run_traces(task, pictures, lvlm, output, batch_size)
    assert started == Started(len(pictures))
    for event in events:
        assert [line["type"] for line in event.record] == ["run", *["token"] * (len(event.record) - 2), "end"]
        for line in event.record:
            VALID.validate(line)
    return [event.record for event in events]


def asked(path: Path, text: str | None = None, prompt: str = PROMPT) -> Picture:
    return located(str(path)).known(prompt=prompt, caption=text)


def traced(lvlm, path: Path, text: str | None = None, prompt: str = PROMPT, **options) -> list[dict]:
    return all_traced(lvlm, asked(path, text, prompt), **options)[0]


def numbers(lines: list[dict]) -> torch.Tensor:
    """`[steps, 3, 2]` logit and logprob of the chosen tokens."""
    return torch.tensor([[[line[view]["logit"], line[view]["logprob"]] for view in VIEWS] for line in lines[1:-1]])


@pytest.mark.parametrize("family", ["demo", *REPRESENTATIVES])
def test_every_number_follows_from_all_logits(family, checkpoint_of, tmp_path, photos):
    """Recomputed in float64 with numpy's order of operations, not with the code under test."""
    lvlm = load("demo" if family == "demo" else checkpoint_of(family), max_new_tokens=6, alpha=0.7, dtype="float32")
    picture = EXAMPLES[0] if family == "demo" else photos["coffee"]
    lines = traced(lvlm, picture, top_k=3, track=("dog",), full_logits=tmp_path / "all.safetensors")
    file = load_file(tmp_path / "all.safetensors")
    logits = file["logits"].double()
    assert logits.shape == (len(lines) - 2, 3, lines[0]["vocab_size"])
    assert file["token_ids"].tolist() == [line["token_id"] for line in lines[1:-1]]
    torch.testing.assert_close(logits[:, 2], 1.7 * logits[:, 0] - 0.7 * logits[:, 1], atol=1e-5, rtol=1e-6)
    logprobs = logits - logits.exp().sum(dim=-1, keepdim=True).log()
    for step, line in enumerate(lines[1:-1]):
        assert line["token_id"] == int(logits[step, 2].argmax())
        for row in (line, *line["top"], *line["tracked"]):
            token = row["token_id"]
            for number, view in enumerate(VIEWS):
                assert row[view]["logit"] == pytest.approx(float(logits[step, number, token]), abs=1e-6)
                assert row[view]["logprob"] == pytest.approx(float(logprobs[step, number, token]), abs=2e-5)
                assert row[view]["rank"] == 1 + int((logits[step, number] > logits[step, number, token]).sum())
            contrast = 1.7 * row["full"]["logit"] - 0.7 * row["cf"]["logit"]
            assert row["contrast"]["logit"] == pytest.approx(contrast, abs=1e-5, rel=1e-6)
        assert line["delta"] == pytest.approx(line["full"]["logit"] - line["cf"]["logit"], abs=1e-6)
        kl = torch.nn.functional.kl_div(logprobs[step, 1], logprobs[step, 0], reduction="sum", log_target=True)
        assert line["kl"] == pytest.approx(float(kl), abs=1e-5)
        best = {token for view in logits[step] for token in view.topk(3).indices.tolist()}
        assert {row["token_id"] for row in line["top"]} == best
        order = [row["contrast"]["logit"] for row in line["top"]]
        assert order == sorted(order, reverse=True)
    result = lvlm.caption(picture, PROMPT)
    for name in ("text", "output_tokens", "finish_reason"):
        assert lines[-1][name] == getattr(result, name)
    ids = lvlm.prepare([as_picture(str(picture)).open().image], [PROMPT])["input_ids"][0]
    image = lvlm.find_image(ids[None])[0].nonzero().flatten().tolist()
    assert [position for first, last in lines[0]["image_positions"] for position in range(first, last)] == image


@pytest.mark.parametrize("forced", [None, "There is a dog and a zebra, and the dog is old."])
def test_a_second_look_is_that_of_check(demo, forced):
    plain = traced(demo, EXAMPLES[0], forced)
    looked = traced(demo, EXAMPLES[0], forced, verify=Verify(min_support=0.25))
    end, check = looked[-1], demo.check(EXAMPLES[0], looked[-1]["text"])
    for one, claim in zip(end["objects"], check.objects, strict=True):
        assert (one["thing"], one["spans"]) == (claim.thing, [list(span) for span in claim.spans])
        assert one["support"] == pytest.approx(claim.support)
    assert len(check.objects) >= 2
    assert end["verify"] == {**Verify().settings(demo.preset), "min_support": 0.25}
    same = {name: value for name, value in end.items() if name not in ("objects", "verify")}
    assert same | {"duration_ms": 0} == plain[-1] | {"duration_ms": 0}
    assert looked[:-1] == plain[:-1]


@pytest.mark.parametrize("method", ["sira", "greedy"])
def test_a_forced_text_has_the_numbers_of_the_generated_one(method):
    lvlm = load("demo", max_new_tokens=24, method=method)
    for example in EXAMPLES[:2]:
        generated = traced(lvlm, example)
        text = generated[-1]["text"]
        forced = traced(lvlm, example, text)
        tokens = len(forced) - 2
        torch.testing.assert_close(numbers(forced), numbers(generated)[:tokens], atol=1e-4, rtol=0)
        assert tokens >= 20
        assert forced[-1]["text"] == text
        assert forced[-1]["finish_reason"] == "forced"
        assert forced[0]["forced"] is True
        assert text == lvlm.caption(example, PROMPT).text
        assert generated[0]["alpha"] == (0.5 if method == "sira" else 0)
    sampled = load("demo", max_new_tokens=16, temperature=1.0, seed=3, method=method)
    assert traced(sampled, EXAMPLES[1])[-1]["text"] == sampled.caption(EXAMPLES[1], PROMPT).text


def test_texts_scored_together_are_scored_as_alone(demo):
    texts = ["There is a cat.", "The image shows a farm with two cows on the left.", "Nothing"]
    pictures = [asked(example, text) for example, text in zip(EXAMPLES, texts, strict=False)]
    for picture, lines in zip(pictures, all_traced(demo, *pictures, batch_size=3), strict=True):
        torch.testing.assert_close(numbers(lines), numbers(all_traced(demo, picture)[0]), atol=1e-4, rtol=0)
        assert lines[-1]["text"] == picture.caption


def test_tokens_are_their_bytes_and_words_their_tokens(demo, llava_folder, photos):
    text = "Ein Café · 猫 🐈!  Two\nlines, well-known"
    lines = traced(demo, EXAMPLES[0], text)
    tokens = lines[1:-1]
    assert bytes(byte for line in tokens for byte in line["bytes"]).decode().strip() == text
    assert any("�" in line["token"] for line in tokens)  # of a character that is several tokens
    words = lines[-1]["words"]
    for written in ([word["word"] for word in words], [text[word["start"] : word["end"]] for word in words]):
        assert written == text.split()
    for word in words:
        mine = tokens[slice(*word["steps"])]
        assert word["word"] in bytes(byte for line in mine for byte in line["bytes"]).decode("utf-8", "replace")
        assert word["delta"] == pytest.approx(sum(line["delta"] for line in mine), abs=1e-4)
        product = torch.tensor([line["contrast"]["logprob"] for line in mine]).sum().exp()
        assert word["grounding"] == pytest.approx(float(product), abs=1e-4)
    lines = traced(load(llava_folder), photos["coffee"], text := "a photo of the cup")  # of SentencePiece
    assert ([word["word"] for word in lines[-1]["words"]], lines[-1]["text"]) == (text.split(), text)
    assert "".join(line["token"] for line in lines[1:-1]).strip() == text


def test_tracked_words(demo):
    lines = traced(demo, EXAMPLES[0], "There is a traffic light, and a dog.", track=("dog", "traffic light"))
    dog, light = (entry["token_ids"] for entry in lines[0]["tracked"])
    assert len(light) > len(dog)
    tokens = lines[1:-1]
    assert all([row["token_id"] for row in line["tracked"]] == [dog[0], light[0]] for line in tokens)
    found = {entry["word"]: entry for entry in lines[-1]["tracked"]}
    for word, ids in (("dog", dog), ("traffic light", light)):
        own = tokens[found[word]["step"] :][: len(ids)]
        assert [line["token_id"] for line in own] == ids
        for view in VIEWS:
            assert found[word][view] == pytest.approx(sum(line[view]["logprob"] for line in own), abs=1e-5)


def test_words_of_records_are_those_of_the_trace(demo, sira, tmp_path):
    command = ("caption", *EXAMPLES[:3], "--preset", "demo", "--max-new-tokens", 24, "--prompt", PROMPT, "--words")
    sira(*command, "-o", tmp_path / "a.jsonl", "-b", 2)
    for record, example in zip(read(tmp_path / "a.jsonl"), EXAMPLES, strict=False):
        end = traced(demo, example)[-1]
        assert record["text"] == end["text"]
        for mine, theirs in zip(record["words"], end["words"], strict=True):
            near = {"delta": 1e-3, "grounding": 1e-4}
            assert mine == theirs | {name: pytest.approx(theirs[name], abs=most) for name, most in near.items()}
    assert "words" not in demo.caption(EXAMPLES[0]).to_record()


def test_choices_have_the_probabilities_of_forced_answers(demo, sira, tmp_path):
    question, output = "Is there a cat in the image?", tmp_path / "answers.jsonl"
    command = ("ask", *EXAMPLES[:3], question, "--preset", "demo", "--choices")
    assert sira(*command, "Yes,No, two cats", "-o", output)[0] == 0
    for record, example in zip(read(output), EXAMPLES, strict=False):
        sums = {}
        for choice in record["choices"]:
            logprobs = numbers(traced(demo, example, choice["choice"], question))[..., 1].sum(dim=0)  # [3]
            assert list(choice["logprob"].values()) == pytest.approx(logprobs.tolist(), abs=1e-4)
            sums[choice["choice"]] = choice["logprob"]["contrast"]
        assert record["text"] == max(sums, key=sums.get) == demo.ask(example, question).text.rstrip(".")
        for view in VIEWS:
            assert sum(choice["probability"][view] for choice in record["choices"]) == pytest.approx(1, abs=1e-5)
    assert [sira(*command, choices)[0] for choices in ("Yes", "Yes,No, Yes")] == [2, 2]
    assert "the question is empty" in sira("ask", EXAMPLES[0], " ", "--preset", "demo")[2]


def test_the_command_writes_one_file_or_a_tree_and_tries_what_failed_again(sira, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in/sub").mkdir(parents=True)
    save(Path("in/bad.png"), "no picture")
    shutil.copy(EXAMPLES[0], "in/a.png")
    shutil.copy(EXAMPLES[1], "in/sub/b.png")
    command, bad = ("trace", "in", "-r", "--preset", "demo", "--max-new-tokens", 4), "in/bad.png: is not a picture"
    code, out, err = sira(*command)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["type"] for line in lines] == ["run", *["token"] * 4, "end", "end", "run", *["token"] * 4, "end"]
    assert code == 3
    assert lines[6]["status"] == "error"
    assert bad in lines[6]["error"]
    assert "1 of 3 pictures failed" in err
    VALID.validate(lines[6])

    for _ in range(2):  # what failed is tried again
        code, _, err = sira(*command, "-o", "all.jsonl")
        assert code == 3
        assert bad in err
        assert len(read(Path("all.jsonl"))) == len(lines)
        assert sira(*command, "--output-dir", "traces")[0] == 3
    files = sorted(path.relative_to("traces").as_posix() for path in Path("traces").rglob("*") if path.is_file())
    assert files == ["a.trace.jsonl", "sub/b.trace.jsonl"]
    run = read(Path("traces/sub/b.trace.jsonl"))[0]
    assert Path("traces/sub", run["file_name"]).resolve() == Path("in/sub/b.png").resolve()
    Path("in/bad.png").unlink()  # what is left is done, so that no model is needed
    assert sira("trace", "in", "-r", "-m", "no/such-model", "--offline", "--output-dir", "traces") == (0, "", "")


def test_a_file_of_traces_goes_on_where_a_run_stopped(sira, tmp_path, monkeypatch):
    def content() -> list[dict]:
        return [line | {"duration_ms": 0} for line in read(file)]

    file = tmp_path / "all.jsonl"
    command = ("trace", *EXAMPLES[:3], "--preset", "demo", "--max-new-tokens", 3, "-o", file)
    assert sira(*command)[0] == 0
    whole, lines, expected = file.read_bytes(), file.read_bytes().splitlines(keepends=True), content()
    for left in (whole[:-9], b"".join(lines[:7]), b"".join(lines[:5]) + lines[5][:50], lines[0][:20]):
        file.write_bytes(left)
        assert sira(*command)[0] == 0
        assert content() == expected
    failure = lines[9].replace(b'"status": "ok"', b'"status": "error"')  # as of a text whose reasoning did not end
    file.write_bytes(b"".join([*lines[:9], failure, *lines[10:]]))  # the second one is tried again
    assert sira(*command)[0] == 0
    assert content() == [*expected[:5], *expected[10:], *expected[5:10]]
    monkeypatch.setattr("sira_cli.run.lvlm.load", None)
    code, _, err = sira(*command)
    assert code == 0
    assert "all traces are there already" in err
    for option in (["--alpha", 0.25], ["--track", "dog"], ["--verify", "flag"], ["--system", "Be brief."]):
        code, _, err = sira(*command, *option)
        assert code == 2, err
        assert f"{option[0][2:]} is" in err, err
    file.write_bytes(whole + b"something else\n")
    code, _, err = sira(*command)
    assert code == 2
    assert f"line {len(lines) + 1} is not one of a trace" in err


def test_the_newest_record_of_a_picture_is_forced(tmp_path):
    """Of one that failed in the end, none is; rows of other tools are all forced."""
    records = [
        caption_record(name, text=text) for name, text in (("a.png", "Old."), ("b.png", "B."), ("a.png", "New."))
    ]
    path = write_lines(tmp_path / "of-sira.jsonl", [*records, caption_record("b.png", status="error", text="")])
    assert [(picture.location, picture.caption) for picture in read_texts(path)] == [(str(tmp_path / "a.png"), "New.")]
    rows = [{"file_name": "a.png", "text": text} for text in ("One.", "Two.")]
    path = write_lines(tmp_path / "of-others.jsonl", rows)
    assert [picture.caption for picture in read_texts(path)] == ["One.", "Two."]


@pytest.mark.parametrize(
    "setting",
    [{"min_p": 0.5}, {"top_k": 5}, {"repetition_penalty": 1.5}, {"think": True}, {"image.max_pixels": 100}],
    ids=str,
)
@pytest.mark.parametrize("first", [True, False])
def test_a_file_of_traces_has_one_value_of_each_setting(tmp_path, setting, first):
    """Also of one that only one of two runs has."""
    plain = Preset(model="owner/model")
    presets = [plain.with_values(**setting), plain]
    there, now = (Trace(preset, preset.method("sira")) for preset in (presets if first else reversed(presets)))
    run = {name: value for name, value in there.settings().items() if value is not None and name != "track"}
    path = write_traces(tmp_path / "trace.jsonl", make_trace(text="A cat.", beta=None, **run))
    with closing(TraceFile(path)) as file:
        file.check(there.settings())
        with pytest.raises(SettingsError, match=r"holds records of another configuration: \w+ is"):
            file.check(now.settings())


def test_shards_of_traces_are_parts_of_the_whole(sira, tmp_path):
    def traced_in(*shard: str) -> list[str]:
        file = tmp_path / f"{len(shard) and shard[1].replace('/', '-')}.jsonl"
        assert sira("trace", *EXAMPLES[:5], "-p", "demo", "--max-new-tokens", 1, "-o", file, *shard)[0] == 0
        return [line["file_name"] for line in read(file) if line["type"] == "run"]

    first, second, whole = traced_in("--shard", "1/2"), traced_in("--shard", "2/2"), traced_in()
    assert min(len(first), len(second)) > 0
    assert sorted(first + second) == sorted(whole)


def test_a_run_of_traces_has_a_report_and_a_summary(sira, tmp_path):
    shutil.copy(EXAMPLES[0], tmp_path)
    save(tmp_path / "bad.png", "no picture")
    err = sira("trace", tmp_path, "-p", "demo", "--max-new-tokens", 2, "-o", tmp_path / "all.jsonl")[2]
    report = json.loads((tmp_path / "all.run.json").read_text())
    assert report["pictures"] == {"all": 2, "ok": 1, "error": 1, "ok before": 0, "error before": 0}
    assert report["state"] == "finished"
    assert report["settings"]["max_new_tokens"] == 2
    assert report["device"] == "cpu"
    assert report["tokens_per_second"] == pytest.approx(2 / report["seconds"], rel=0.02)
    assert "1 of 2 pictures traced" in err


def test_texts_to_score_are_chosen_by_shard_and_limit(tmp_path):
    records = [{"file_name": f"{number}.png", "text": "A cat."} for number in range(8)]
    file = write_lines(tmp_path / "captions.jsonl", records)
    everything = [picture.location for picture in read_texts(file)]
    parts = [[picture.location for picture in read_texts(file, Shard(number, 3))] for number in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(everything)
    assert [picture.location for picture in read_texts(file, limit=2)] == everything[:2]


@pytest.mark.parametrize(
    ("option", "named"), [(["photos"], "the paths"), (["--together"], "--together"), (["-r"], "--recursive")]
)
def test_what_a_file_of_texts_decides_itself_is_refused(sira, tmp_path, option, named):
    file = write_lines(tmp_path / "captions.jsonl", [{"file_name": str(EXAMPLES[0]), "text": "A cat."}])
    code, _, err = sira("trace", *option, "--force-from", file, "-p", "demo")
    assert code == 2
    assert f"--force-from names the pictures itself: leave out {named}" in err


def test_captions_are_scored_and_told_apart(sira, tmp_path):
    file = tmp_path / "all.jsonl"
    for text in ("There is a cat.", "There is a dog.", "There is a cat."):
        assert sira("trace", EXAMPLES[0], "--preset", "demo", "--force", text, "-o", file)[0] == 0
    assert [trace.end.text for trace in read_traces(file)] == ["There is a cat.", "There is a dog."]
    records = [
        {"file_name": str(EXAMPLES[0]), "text": "There is a cat.", "prompt": "What is this?"},
        {"file_name": str(EXAMPLES[1]), "status": "error", "text": ""},
        {"file_name": str(EXAMPLES[2]), "caption": "A farm with cows."},
    ]
    file = write_lines(tmp_path / "captions.jsonl", records)
    code, out, _ = sira("trace", "--force-from", file, "--preset", "demo", "-b", 4)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    prompts = [line["prompt"] for line in lines if line["type"] == "run"]
    assert prompts == ["What is this?", "Please describe this image in detail."]
    assert [line["text"] for line in lines if line["type"] == "end"] == ["There is a cat.", "A farm with cows."]


# --- files are read with care

BASE = make_trace(text="A cat.")


def changed(line: int, key: str, to: object) -> list[dict]:
    trace = copy.deepcopy(BASE)
    trace[line][key] = to
    return trace


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (changed(0, "schema", "sira.trace/2"), "line 1: schema of the run line: Input should be 'sira.trace/1'"),
        (changed(2, "delta", float("nan")), "line 3: delta of the token line: Input should be a finite number"),
        (changed(2, "step", 5), "line 3: step 5, expected step 1: lines are missing"),
        (BASE[1:], "line 1: a token line before any run line"),
        (BASE[-1:], "line 1: an end line before any run line"),
        ([*BASE[:-3], BASE[-1]], "line 4: words up to step 2, but there are 2 tokens"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, trace, message):
    path = write_traces(tmp_path / "trace.jsonl", trace)
    with pytest.raises(SiraError) as error:
        read_traces(path)
    assert str(error.value).startswith(f"{path}, {message}")
    assert "\n" not in str(error.value)


def test_bytes_that_are_cut_off_broken_or_from_another_editor(tmp_path):
    path = write_traces(tmp_path / "trace.jsonl", BASE)
    whole, lines = path.read_bytes(), path.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[:-40])
    (trace,) = read_traces(path)
    assert (trace.status, len(trace.tokens)) == ("interrupted", 4)
    path.write_bytes(b"\xef\xbb\xbf" + whole.replace(b"\n", b"\r\n\r\n"))
    assert len(read_traces(path)) == 1
    path.write_bytes(b"".join([*lines[:2], lines[2][:50] + b"\n", *lines[3:]]))  # in the middle: no interruption
    with pytest.raises(SiraError, match="line 3: is not JSON"):
        read_traces(path)
