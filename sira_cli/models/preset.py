"""A preset: a model and everything that decides its answers, checked.

Unknown keys, wrong types and out-of-range values are errors that name the key and the nearest valid name."""

from __future__ import annotations

import difflib
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, ValidationError, model_validator

from sira_cli.core.config import SiraConfig
from sira_cli.core.image_tokens import ImageTokens
from sira_cli.errors import SettingsError
from sira_cli.methods import find as find_method
from sira_cli.methods.base import Method
from sira_cli.methods.settings import Setting
from sira_cli.models.deciding import Decides, Strict
from sira_cli.models.texts import TextSettings
from sira_cli.parsing import from_json
from sira_cli.pictures.names import is_utf8


def _must(message: str, fits: Callable[[Any], bool]) -> AfterValidator:
    def check(value: Any) -> Any:
        if not fits(value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


class SiraSettings(Strict):
    """K and the strengths; `SiraConfig` documents and checks them."""

    k: int | None = Field(default=None, ge=1)
    k_fraction: float | None = Field(default=None, gt=0, lt=1)
    alpha: float = Field(default=0.5, ge=0, lt=1e9)
    beta: float | None = Field(default=None, gt=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> SiraSettings:
        SiraConfig(**self.model_dump())
        return self


def _asks_about_an_object(text: str) -> bool:
    return "{thing}" in text or "{name}" in text


class Prompts(Strict):
    """Prompts for the model. Keys of records hold the text that a picture's prompt has become."""

    caption: Annotated[str, Decides.NEVER] = Field(default="Please describe this image in detail.", min_length=1)
    ask: Annotated[
        str,
        Decides.NEVER,
        _must("must contain {question}", lambda text: "{question}" in text),
    ] = "{question}"
    verify: Annotated[  # {thing} stands for an object with its English article, {name} for one without
        str,
        Decides.NEVER,
        _must("must contain {thing}, or {name} without an article", _asks_about_an_object),
    ] = "Is there {thing} in the image?"
    system: str = ""  # the system message instead of the chat template's own; empty: the template's own, if it has one

    def asking(self, question: str) -> str:
        """Return the prompt for a question."""
        if not question.strip():
            raise SettingsError("the question is empty: give one, such as 'Is there a cat?'")
        check_text("the question", question)
        return self.ask.replace("{question}", question)


class Generation(Strict):
    """Decoding settings, as in transformers, on the method's logits; temperature 0 is greedy."""

    max_new_tokens: Annotated[int, Decides.ALWAYS] = Field(default=512, ge=1)
    temperature: Annotated[float, Decides.ALWAYS] = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_p: Annotated[float, Decides.ALWAYS] = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)  # 0 is off, and so it is for the next
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: Annotated[int, Decides.ALWAYS] = Field(default=0, ge=0, lt=2**63)
    num_beams: Annotated[int, Decides.ALWAYS] = Field(default=1, ge=1)
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    no_repeat_ngram_size: Annotated[int, _must("must be 0 (off) or at least 2", (1).__ne__)] = Field(default=0, ge=0)
    think: bool = False  # ask the model to reason before it answers; for chat templates with a switch


_Words = Annotated[str, _must("expected words between commas", lambda text: all(map(str.strip, text.split(","))))]


class VerifySettings(Strict):
    """The second look at the objects that a text names: the least support, and the words of the two answers."""

    min_support: float = Field(default=0.5, ge=0, le=1)  # yes and no equally likely: a choice, not measured
    yes: _Words = "Yes, yes, YES"
    no: _Words = "No, no, NO, Not, not"

    @property
    def answers(self) -> tuple[list[str], list[str]]:
        """The spellings of yes, and those of no."""
        yes, no = ([part.strip() for part in words.split(",")] for words in (self.yes, self.no))
        return yes, no


class BestSettings(Strict):
    """Several captions of a picture, of which one is chosen."""

    captions: int = Field(default=5, ge=1, le=50)  # the method's own, and samples
    heat: float = Field(default=0.7, gt=0, allow_inf_nan=False)  # temperature of the samples


class GuideSettings(BestSettings):
    """Captions that are decoded after the second look at what several captions name."""

    threshold: float | None = Field(default=None, ge=0, le=1)  # instead of `verify.min_support`
    # `beta` of SIRA where it has none: names are ruled out, and a contrast would pick any other word.
    cut_off: float = Field(default=0.2, gt=0, le=1)


class Load(Strict):
    """How weights are loaded."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    attn_implementation: Literal["auto", "sdpa", "eager"] = "auto"
    # Of the decoder layers, by bitsandbytes; keys of records hold it without its section.
    quantization: Annotated[Literal["8bit", "4bit"] | None, Decides.NEVER] = None
    # Run the checkpoint's own Python code, without asking; otherwise none of it runs.
    trust_remote_code: Annotated[bool, Decides.NEVER] = False

    @property
    def attention(self) -> str | None:
        """The attention for transformers; None: sdpa if the model has it, else eager."""
        return None if self.attn_implementation == "auto" else self.attn_implementation


class ImageSettings(Strict):
    """How pictures are resized for the model; settings that are None keep the checkpoint's value."""

    # Of the resized picture, which decides its tokens (Qwen-VL).
    max_pixels: Annotated[int | None, Decides.ALWAYS] = Field(default=None, ge=1)
    min_pixels: int | None = Field(default=None, ge=1)
    max_tiles: int | None = Field(default=None, ge=1)  # of a picture (InternVL)
    longest_edge: int | None = Field(default=None, ge=1)  # in pixels (SmolVLM, Idefics3, Pixtral)
    pan_and_scan: bool | None = None  # also show crops of wide and tall pictures (Gemma 3)
    pad_to_square: bool | None = None  # with the processor's mean colour, so that nothing is cropped (LLaVA-1.5)

    def given(self) -> dict[str, Any]:
        """Return the settings that are not None."""
        return self.model_dump(mode="json", exclude_none=True)


def check_text(what: str, text: str) -> None:
    """Check that a text is valid UTF-8. A command line may contain any bytes."""
    if not is_utf8(text):
        raise SettingsError(f"{what}: {text!r:.200} holds bytes that are not UTF-8: write it in UTF-8")


def _check_methods(given: dict[str, dict[str, JsonValue]]) -> dict[str, dict[str, JsonValue]]:
    for name, settings in given.items():
        method = find_method(name)
        for key in settings:
            if key in method.from_preset:
                raise SettingsError(f"{key} of method {name} belongs in `sira`")
        method.with_values(**settings)
    return given


_Methods = Annotated[dict[str, dict[str, JsonValue]], AfterValidator(_check_methods)]


class Preset(Strict):
    """A model and everything that decides its answers."""

    name: Annotated[str, Decides.NEVER] = ""
    description: Annotated[str, Decides.NEVER] = ""
    family: Annotated[str, Decides.NEVER] = ""  # heading of the preset in `sira presets list`
    model: Annotated[str, Decides.ALWAYS] = Field(min_length=1)
    revision: Annotated[str, Decides.ALWAYS] = "main"
    download_gb: Annotated[float | None, Decides.NEVER] = Field(default=None, gt=0)  # of the weights, for messages
    sira: Annotated[SiraSettings, Decides.ALWAYS] = SiraSettings()
    # Settings of methods other than `sira` that differ from their defaults, by method and name (`Method.decisive`).
    methods: Annotated[_Methods, Decides.NEVER] = Field(default={})
    image_tokens: Annotated[ImageTokens, Decides.ALWAYS] = ImageTokens()
    prompts: Prompts = Prompts()
    generation: Generation = Generation()
    load: Annotated[Load, Decides.ALWAYS] = Load()
    image: ImageSettings = ImageSettings()
    text: TextSettings = TextSettings()  # changes to captions and answers, but not to answers of benchmarks
    # A second look: records hold its settings in one (`Verify.settings`).
    verify: Annotated[VerifySettings, Decides.NEVER] = VerifySettings()
    guide: Annotated[GuideSettings, Decides.NEVER] = GuideSettings()
    best: Annotated[BestSettings, Decides.NEVER] = BestSettings()

    def method(self, name: str | Method) -> Method:
        """Return a method with this preset's settings for it; one that is given with its settings stays."""
        return find_method(name).with_values(**(self.methods.get(name, {}) if isinstance(name, str) else {}))

    @property
    def sira_config(self) -> SiraConfig:
        """The settings for the fork."""
        return SiraConfig(**self.sira.model_dump(), image_tokens=self.image_tokens)

    def decisive(self, usual: Decides = Decides.IF_SET) -> dict[str, Any]:
        """Return the settings that decide a text under SIRA, besides the prompt and the quantization, as JSON."""
        decisive = super().decisive(usual)
        prompts: dict[str, Any] = decisive.pop("prompts", {})  # the system message, which keys hold without its section
        return decisive | prompts

    def later(self) -> dict[str, Any]:
        """Return the settings that records hold only if they are set, by their names there; None for the others."""
        return self.generation.optional() | self.prompts.optional()

    def without_text(self) -> Preset:
        """Return the same preset without changes to the model's texts."""
        return self.model_copy(update={"text": TextSettings()})

    def with_settings(self, /, **settings: Any) -> Preset:
        """Return the same preset with values replaced, such as `generation.top_p` or `top_p`; None keeps a value."""
        return self.with_values(**{name: value for name, value in settings.items() if value is not None})

    def with_values(self, /, **settings: Any) -> Preset:
        """Like `with_settings`, but None is a value like any other: `beta=None` switches beta off."""
        values = self.model_dump(mode="json")
        names = {full_key(name): name for name in settings}
        for key, name in names.items():
            value = settings[name]
            if isinstance(value, str):
                check_text(name, value)
            section, _, last = key.rpartition(".")
            (values[section] if section else values)[last] = value
            other = {"sira.k": "k_fraction", "sira.k_fraction": "k"}.get(key)
            if other and value is not None and f"sira.{other}" not in names:
                values["sira"][other] = None
        return validate(values, "settings", names)


_schema = functools.cache(Preset.model_json_schema)


def _schema_at(place: Sequence[Any]) -> Mapping[str, Any]:
    """Return the part of the schema of presets for a key, or for what contains keys."""
    node: dict[str, Any] = _schema()
    for part in place:
        node = node.get("items") or node.get("properties", {}).get(part, {})
        references = (option["$ref"] for option in (node, *node.get("anyOf", ())) if "$ref" in option)
        if reference := next(references, None):
            node = _schema()["$defs"][reference.rsplit("/", 1)[1]]
    return node


@functools.cache
def keys() -> Mapping[str, Mapping[str, Any]]:
    """Return the keys of a preset that change a run, as `generation.top_p`, with their parts of its schema."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, node in _schema()["properties"].items():
        if name in ("name", "description", "family", "model", "download_gb", "methods"):
            continue  # no run changes these
        parts = _schema_at([name]).get("properties")
        if parts is None:
            found[name] = node
            continue
        for part, schema in parts.items():
            found[f"{name}.{part}"] = schema
    return found


def full_key(name: str) -> str:
    """Return the key of this name: the key itself, or the only one with this last part."""
    name = {"prompt": "prompts.caption"}.get(name, name)
    if name in keys():
        return name
    found = [key for key in keys() if key.rpartition(".")[2] == name]
    if len(found) > 1:
        raise SettingsError(f"{name!r} stands for {' and '.join(found)}: give one of these keys")
    if not found:
        known = [*keys(), *(key.rpartition(".")[2] for key in keys())]
        raise SettingsError(f"no setting named {name!r}{nearest(name, known)}")
    return found[0]


_TRUTH = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


def read_value(key: str, text: str) -> Any:
    """Parse the value of a key, written as on a command line or in YAML; `Preset.with_values` checks it."""
    node = keys()[key]
    kinds = {each.get("type") for each in node.get("anyOf", (node,))}
    if kinds == {"string"} and "enum" not in node:
        return text
    if text == "none" and "null" in kinds:
        return None
    if text in _TRUTH and "boolean" in kinds:
        return _TRUTH[text]
    try:
        return from_json(text)
    except ValueError:
        return text


def validate(values: dict[str, Any], source: str, names: Mapping[str, str] = MappingProxyType({})) -> Preset:
    """Return the preset of these values; `source` names their origin in messages, and `names` parameters, by key."""
    try:
        # As JSON, where strict types still let a list fill a tuple.
        return Preset.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        problems = error.errors()
        for problem in problems:
            name = names.get(_key_of(problem))
            if name is not None:
                shown = _shown(problem["input"])
                raise SettingsError(f"`{name}=` {shown:.100}: {_expected(problem)}") from error
        raise SettingsError(f"{source}: {'; '.join(map(_explain, problems))}") from error


def _key_of(problem: Any) -> str:
    return ".".join(map(str, problem["loc"]))


def _shown(value: Any) -> str:
    """Return a value as it is typed."""
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False).strip('"')


def _explain(problem: Any) -> str:
    key = _key_of(problem)
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        *parents, name = problem["loc"]
        return f"unknown key `{key}`{nearest(str(name), _schema_at(parents).get('properties', {}))}"
    if problem["type"] == "missing":
        return f"`{key}` is missing"
    shown = "" if isinstance(problem["input"], dict) else f", got {problem['input']!r}"
    return f"`{key}`: {_expected(problem)}{shown}"


def _expected(problem: Any) -> str:
    if problem["type"] == "value_error":  # one of ours
        return str(problem["ctx"]["error"])
    return f"expected {_in_words(_schema_at(problem['loc']))}"


def values_of(key: str) -> str:
    """Return the valid values of a key in words: `a number from 0`."""
    return _in_words(keys()[key])


_WORDS = {"boolean": "true or false", "array": "a list", "null": "none", "object": "keys with values"}


def _in_words(node: Mapping[str, Any]) -> str:
    if "anyOf" in node:
        return ", or ".join(map(_in_words, node["anyOf"]))
    kind = node.get("type", "object")
    if kind in _WORDS:
        return _WORDS[kind]
    if kind == "string":
        return Setting(str, "", choices=tuple(node.get("enum", ()))).values
    above = node.get("exclusiveMinimum")
    low = node.get("minimum", above)
    high = node.get("maximum", node.get("exclusiveMaximum", 1e9))
    setting = Setting(
        int if kind == "integer" else float,
        "",
        low=-math.inf if low is None else low,
        high=high if high < 1e9 else math.inf,  # a larger limit stands for none
        above_low=above is not None,
    )
    return setting.values


def nearest(name: str, known: Any) -> str:
    """Return a remark for an error, of at most a line: the nearest known name, or all known names."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if close:
        return f"; did you mean `{close[0]}`?"
    valid = ", ".join(sorted(set(known)))
    return f" (valid: {valid})" if 0 < len(valid) <= 100 else ""
