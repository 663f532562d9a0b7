"""Keys of records, and what is compared with an earlier run, as literal values: runs that were begun go on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from types import MappingProxyType

import pytest

from sira_cli.analysis.questions import Question, QuestionSet
from sira_cli.analysis.sweep import decisive
from sira_cli.analysis.trace.task import Trace
from sira_cli.eval.answers import settings_in
from sira_cli.eval.evaluation import deciding
from sira_cli.look.claims import Verify
from sira_cli.methods import METHODS
from sira_cli.models.preset import Preset
from sira_cli.models.schema import Schema
from sira_cli.run.check import Check
from sira_cli.run.records import configuration_of
from sira_cli.run.task import Ask, Caption, PictureTask

PLAIN = Preset(name="mine", model="owner/model")
SETTINGS = MappingProxyType(
    {
        "plain": {},
        "described": {"revision": "abc"},
        "prompts": {"prompts.caption": "Say.", "prompts.ask": "{question} Say.", "prompts.verify": "{name}?"},
        "system": {"prompts.system": "Be brief."},
        "fork": {"k": 3, "alpha": 1},
        "beta": {"sira.beta": 0.1},
        "greedy length": {"max_new_tokens": 7},
        "beams": {"num_beams": 3, "top_p": 0.9},
        "sampled": {"temperature": 0.7, "seed": 3, "top_k": 5, "min_p": 0.1},
        "penalties": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "think": True},
        "loading": {"dtype": "float16", "attn_implementation": "eager", "quantization": "8bit"},
        "code": {"trust_remote_code": True},
        "image": {"max_pixels": 100, "min_pixels": 9, "pan_and_scan": True},
        "tiles": {"max_tiles": 2, "longest_edge": 99, "pad_to_square": False},
        "text": {"prefix": "ohwx, ", "suffix": ".", "max_sentences": 2, "complete_sentences": True},
        "lines": {"lines": "keep"},
        "looks": {"verify.min_support": 0.3, "guide.threshold": 0.2, "guide.captions": 3, "best.heat": 1.5},
        "answers": {"verify.yes": "Oui", "guide.cut_off": 0.3},
    }
)
ASKED = MappingProxyType(
    {
        "flag": {"verify": Verify()},
        "guide": {"verify": Verify(mode="guide")},
        "best": {"verify": Verify(min_support=0.2, mode="best")},
        "words": {"words": True},
        "schema": {"schema": "tags"},
    }
)
REVISIONS = MappingProxyType({"revision": ("abc",), "server": ("abc", "http://host/v1/")})
QUESTIONS = QuestionSet(("random",), (Question("a.png", "Is there a cat?", True, ("random",)),), lambda name: None)


def short(value) -> str:
    """The beginning of a hash of JSON, whose order counts."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def key_of(task) -> str:
    return task.key("a.png", "5" * 64, task.prompt)[:12]


# Keys of a caption under sira, greedy and vcd, and a hash of what the report of sira's run has.
CAPTIONS = {
    "plain": ["78c6c8ca3e9f", "45dba9dad792", "4e60c7f79c72", "d5d356234c96"],
    "described": ["4418d1d6cd34", "2afbe58b03ae", "f6a1e7e82823", "42a5f5f65239"],
    "prompts": ["78c6c8ca3e9f", "45dba9dad792", "4e60c7f79c72", "d5d356234c96"],
    "system": ["ab237a74f808", "2a21b69c5446", "2bb24a82ce97", "19dbfe069356"],
    "fork": ["44dac1766432", "8df2403372c7", "4e60c7f79c72", "9a9562f18108"],
    "beta": ["1c2b45872c45", "b7ab777a8f82", "4e60c7f79c72", "af8aec0e8413"],
    "greedy length": ["d18123723e6d", "32c5e1c94771", "29c32a466437", "b2e39a4b3773"],
    "beams": ["82527416f075", "64b2c8689342", "87022ca05c2c", "75c6db1344e7"],
    "sampled": ["c7247428f405", "cfa4e27d96c9", "00bcb414cdf4", "eb26cb99b659"],
    "penalties": ["57eacc3f18ff", "3ecb8ee583eb", "feb78e53b7d3", "a8d7eb5c9296"],
    "loading": ["56311327e8ff", "1923eb5fceea", "b2fc463fe804", "b35e5425dfc1"],
    "code": ["78c6c8ca3e9f", "45dba9dad792", "4e60c7f79c72", "d5d356234c96"],
    "image": ["296b91e81c6a", "30b6f38583b2", "793c7364d3fc", "6039754d7e02"],
    "tiles": ["f2ec0ff0cf7d", "ded3e8a54648", "c41a0551546b", "f9c3b0bf7513"],
    "text": ["98b0690f7719", "7324c44238e0", "3f972a72b117", "027760765fbc"],
    "lines": ["78c6c8ca3e9f", "45dba9dad792", "4e60c7f79c72", "d5d356234c96"],
    "looks": ["78c6c8ca3e9f", "45dba9dad792", "4e60c7f79c72", "d5d356234c96"],
    "answers": ["78c6c8ca3e9f", "45dba9dad792", "4e60c7f79c72", "d5d356234c96"],
}
METHOD_KEYS = {  # of a caption and of an answer
    "sira": ["78c6c8ca3e9f", "7ba442891c66"],
    "greedy": ["45dba9dad792", "c66d8a7b4625"],
    "greedy+apc": ["af697da55200", "545d3e4e338d"],
    "text-only": ["51bfef4797b0", "1051917a4617"],
    "vcd": ["4e60c7f79c72", "6c51e462f3b3"],
    "icd": ["14bdc610d6f0", "0d3d583386b6"],
    "m3id": ["98232ffe8678", "6825ef5a8168"],
    "flb": ["1355f89ebb61", "b20b6ae5e27a"],
    "resdec": ["67c573b27b81", "a9303423eaa6"],
    "pai": ["00c82b2e1721", "f15fee1d824d"],
    "vaf": ["2e05300e870d", "d9f4c5d5b31c"],
    "vista": ["d1a3f3a61f34", "946d2a003266"],
    "sid": ["0c1a1438d6f5", "8d1f83525582"],
    "dola": ["97b84dc28413", "e322e2e7eab8"],
    "deco": ["ea1112520e63", "9a3b89da3757"],
    "opera": ["2c45f6d3d93b", "58e3f84c3c24"],
    "ict": ["f2afc21b3bec", "9a465589f5aa"],
    "maskcd": ["f94d2de53b5c", "f254a52bdc51"],
    "vti": ["549c458c2921", "6567b894f2e2"],
    "sira+flb": ["9478d2f56c6e", "3489835a32f1"],
    "sira+resdec": ["a067cdb2186d", "3bada23e8f73"],
}
TASKS = {
    "flag": ["9a666658ad6b", "fc50067a60db"],
    "guide": ["36c73f8fece1", "dfc1a1f54ffe"],
    "best": ["4aa6eb4066c0", "6de4a0e01cbf"],
    "words": ["9a666658ad6b", "e01f657d68ab"],
    "schema": ["30a3768f3a88", "80d9d744afbd"],
    "revision": ["439d669df299", "be15bf6a19cd"],
    "server": ["ebf29f2708d5", "be15bf6a19cd"],
}
CHECKS = {
    "plain": ["144a686ba19a", "8d0f610c6aa3"],
    "prompts": ["59ef9bf65fc2", "8646598ead05"],
    "sampled": ["fbdc01b933e5", "7fbc9ea99439"],
    "image": ["6cf60ef3c224", "0aea03a909fc"],
    "text": ["144a686ba19a", "8d0f610c6aa3"],
    "looks": ["0355dc93771a", "b42815a186f6"],
    "answers": ["1039d27adae7", "086691f68399"],
}
EVALUATIONS = {
    ("plain", "sira"): [None, 1.0, 1, None, "float32", "5f02e9aadb8695e6"],
    ("beta", "sira"): [0.1, 1.0, 1, None, "float32", "1f8289593c647051"],
    ("beta", "greedy"): [None, 1.0, 1, None, "float32", "1f8289593c647051"],
    ("plain", "vcd"): [0.1, 1.0, 1, None, "float32", "750aa9fadfb0c894"],
    ("greedy length", "sira"): [None, 1.0, 1, None, "float32", "5f02e9aadb8695e6"],
    ("beams", "greedy"): [None, 0.9, 3, None, "float32", "a1fe9546bad1fff9"],
    ("sampled", "sira"): [None, 1.0, 1, None, "float32", "a6d3607ac2e9563e"],
    ("image", "sira+flb"): [0.1, 1.0, 1, None, "float32", "9faa58f14c87f24f"],
    ("loading", "dola"): [None, 1.0, 1, None, "float32", "f4046fb2f2843605"],
}
SWEEPS = {
    "plain": ["2e0ff752b731", "18a694e34184"],
    "prompts": ["b1e9f31cbb26", "c54765e6dd12"],
    "system": ["02d93c0e8d4a", "f05e96d4be1c"],
    "fork": ["2e0ff752b731", "18a694e34184"],
    "beta": ["8f8e021ab722", "51cd4055d955"],
    "penalties": ["2e0ff752b731", "67e24c344875"],
    "image": ["ac19803df196", "c4ab7e8596ea"],
}
TRACES = {
    "plain": {},
    "fork": {"alpha": 1.0, "k": 3},
    "beta": {"beta": 0.1},
    "sampled": {"temperature": 0.7, "seed": 3, "sampling_top_k": 5, "min_p": 0.1},
    "penalties": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "think": True},
    "system": {"system": "Be brief."},
}
# Of a trace with a preset's own settings, and what others change or add.
PLAIN_TRACE = {"model": "owner/model", "method": "sira", "beta": None, "top_k": 10, "alpha": 0.5, "track": ["dog"]}
PLAIN_TRACE |= {"verify": False, "max_new_tokens": 512, "temperature": 0.0, "top_p": 1.0, "seed": 0}
# Fields of a record: those that every record has and a file has one value of; those of a benchmark come after them.
ALWAYS = (
    *("schema", "prompt", "preset", "model", "revision", "method", "k", "layers", "alpha", "max_new_tokens"),
    *("temperature", "seed"),
)
IF_SET = (
    *("method_settings", "system", "top_k", "min_p", "repetition_penalty", "no_repeat_ngram_size", "think"),
    *("json_schema", "text_settings", "verify"),
)
BENCHMARK = ("beta", "top_p", "num_beams", "quantization", "dtype", "settings")
PARTS = ("schema", "prompt", "max_new_tokens")  # in which the parts of a benchmark may differ


@pytest.mark.parametrize("name", SETTINGS)
def test_the_key_of_a_caption_by_the_settings_of_its_preset(name):
    preset = PLAIN.with_values(**SETTINGS[name])
    tasks = [Caption(preset, preset.method(method), "Say.") for method in ("sira", "greedy", "vcd")]
    assert [*map(key_of, tasks), short(tasks[0].settings())] == CAPTIONS[name]


@pytest.mark.parametrize("name", METHODS)
def test_the_keys_of_a_caption_and_of_an_answer_by_method(name):
    assert [key_of(task(PLAIN, METHODS[name], "Say.")) for task in (Caption, Ask)] == METHOD_KEYS[name]


@pytest.mark.parametrize("name", TASKS)
def test_the_key_of_a_caption_by_what_is_asked_for(name):
    preset = PLAIN.with_values(**SETTINGS["looks"])
    task = Caption.of(preset, preset.method("sira"), **ASKED.get(name, {})).at(*REVISIONS.get(name, ("",)))
    assert [key_of(task), short(task.settings())] == TASKS[name]


def test_each_field_of_a_task_says_what_it_decides():
    """A field that is added to a task needs its line here: in keys, in the settings of a run, or in neither."""
    changed = {
        "key and settings": {
            "preset": PLAIN.with_settings(seed=1),
            "method": METHODS["vcd"],
            "prompt": "Write.",
            "verify": Verify(mode="best"),
            "schema": Schema.of("tags"),
        },
        "settings": {"words": True, "choices": ("Yes", "No")},
        "key": {"revision": "abc", "server": "http://host"},
        "nothing": {"needs_text": True, "fills": True, "together": 2},
    }
    task = Caption(PLAIN, METHODS["sira"], "Say.")
    found: dict[str, dict] = {name: {} for name in changed}
    for name, value in {name: value for part in changed.values() for name, value in part.items()}.items():
        other = replace(task, **{name: value})
        decided = {"key": key_of(other) != key_of(task), "settings": other.settings() != task.settings()}
        found[" and ".join(part for part, differs in decided.items() if differs) or "nothing"][name] = value
    assert found == changed
    assert {name for part in changed.values() for name in part} == {each.name for each in fields(PictureTask)}


def test_the_key_of_an_answer_among_choices():
    task = Ask.of(PLAIN, METHODS["sira"], "Is there a cat?", choices=("Yes", "No"))
    assert [key_of(task), short(task.settings())] == ["ac3acb6ef1d7", "14533ebf06d7"]


@pytest.mark.parametrize("name", CHECKS)
def test_the_key_of_a_check(name):
    task = Check.under(PLAIN.with_values(**SETTINGS[name]))
    assert [key_of(task), short(task.settings())] == CHECKS[name]


@pytest.mark.parametrize(("name", "method"), EVALUATIONS)
def test_what_decides_the_answers_to_a_benchmark(demo, name, method):
    preset = PLAIN.with_values(**{"k": 3, **SETTINGS[name], "quantization": None})
    assert [*deciding(demo.under(method, preset)).values()] == EVALUATIONS[name, method]


@pytest.mark.parametrize("name", SWEEPS)
def test_what_decides_a_sweep(name):
    preset = PLAIN.with_values(**SETTINGS[name])
    found = [short(decisive(preset, QUESTIONS, (0.5,), captions)) for captions in (False, True)]
    assert found == SWEEPS[name]


@pytest.mark.parametrize("name", TRACES)
def test_the_settings_of_traces(name):
    preset = PLAIN.with_values(**SETTINGS[name])
    settings = Trace(preset, preset.method("sira"), track=("dog",)).settings()
    expected = PLAIN_TRACE | TRACES[name]
    assert settings == dict.fromkeys(settings) | expected  # what is off is None


def test_the_fields_that_are_equal_in_a_file_of_records():
    record = dict.fromkeys(ALWAYS, 1)
    assert [*configuration_of(record).items()] == [*record.items(), *((name, None) for name in IF_SET)]
    assert configuration_of(record | {"words": [], "think": True}) == dict.fromkeys(IF_SET) | record | {"think": True}


def test_the_fields_that_are_equal_in_the_records_of_a_benchmark():
    expected = [*(name for name in ALWAYS if name not in PARTS), *BENCHMARK]
    assert [*settings_in(dict.fromkeys(ALWAYS, 1)).items()] == [
        (name, None if name in BENCHMARK else 1) for name in expected
    ]
    assert [*settings_in({"method_settings": {"beta": 1}, "think": True, "words": []})][-2:] == [
        "method_settings",
        "think",
    ]
