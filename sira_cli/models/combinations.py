"""What cannot be combined: one table of pairs of a run's features, asked before a model is loaded.

Tasks, benchmarks, engines and a model under a method call `check`, with what they know of a run.

Features, by their names in the table:

    words, choices, verify, guide, best       what a run does with texts; `guide` and `best` are modes of `verify`
    no_caption                                its task is not `caption`
    schema, lists                             texts follow a schema; it has lists
    streams                                   logits of both streams are shown, as by `sira trace`
    engine                                    an engine other than this process
    sampling, beams, think                    settings of decoding
    repetition, loading                       a setting against repetition; one of how the model is loaded
    text_changes                              a setting that changes finished texts, such as a prefix
    bundled                                   the bundled model
    own_search, no_beams                      the method has a search of its own; it lacks an ability
    one_stream, no_sampling                   it lacks an ability; messages name the methods that have it, and this one,
                                              which has not: "sira, not opera"
    other_method                              vLLM does not run it
    schema_and_think, schema_and_rule         a schema with reasoning; with a method that is a rule over logits
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS
from sira_cli.methods.base import Ability, Method
from sira_cli.methods.logits_only import LogitsOnly
from sira_cli.models.preset import Preset
from sira_cli.models.presets import BUNDLED
from sira_cli.models.schema import Schema

VLLM_METHODS = [
    name for name, method in METHODS.items() if name in ("sira", "greedy") or isinstance(method, LogitsOnly)
]


class Feature(NamedTuple):
    """A feature that a run may have."""

    name: str  # in `CONFLICTS`
    present: bool
    shown: str  # in messages


class Conflict(NamedTuple):
    """Two features, whose order means nothing, and the message that refuses them.

    In the message `{NAME}` stands for how a feature is shown, `{format}` for what a schema makes (JSON or tags), and
    `{vllm_methods}` for the methods that vLLM runs.
    """

    one: str
    other: str
    message: str


# The first row whose two features a run has gives the message.
CONFLICTS = (
    Conflict("sampling", "no_sampling", "{sampling} needs method {no_sampling}: set temperature to 0"),
    Conflict("beams", "own_search", "{own_search} has a search of its own: leave out {beams}"),
    Conflict("streams", "one_stream", "{streams} needs method {one_stream}"),
    Conflict("words", "one_stream", "{words} needs method {one_stream}"),
    Conflict("choices", "one_stream", "{choices} needs method {one_stream}"),
    Conflict("streams", "beams", "{streams} follows one text: leave out {beams}"),
    Conflict("words", "beams", "{words} follows one text: leave out {beams}"),
    Conflict("no_beams", "beams", "{no_beams} follows one text per picture: leave out {beams}"),
    Conflict("schema", "beams", "{schema} follows one text per picture: leave out {beams}"),
    Conflict("engine", "beams", "{engine} follows one text per picture: leave out {beams}"),
    Conflict("choices", "think", "{choices} are scored without any reasoning before them: leave out {think}"),
    Conflict("choices", "text_changes", "{choices} prints one of the given answers: leave out {text_changes}"),
    Conflict("choices", "words", "{words} scores words of a text, but {choices} writes none: leave out one of them"),
    Conflict("choices", "verify", "{verify} checks texts, but {choices} writes none: leave out one of them"),
    Conflict("choices", "schema", "{schema} is for decoded texts, but {choices} decodes none: leave out one of them"),
    Conflict(
        "guide", "own_search", "{guide} continues after single tokens, but {own_search} cannot: use `verify=` flag"
    ),
    Conflict("guide", "beams", "{guide} follows one text per picture: leave out {beams}, or use `verify=` flag"),
    Conflict("guide", "words", "{words} scores a text as it was decoded, but {guide} changes it: use `verify=` flag"),
    Conflict("guide", "no_caption", "{guide} writes captions, and this run's task is {no_caption}: use `verify=` flag"),
    Conflict("guide", "schema", "{guide} writes sentences, and {schema} asks for values: use `verify=` flag"),
    Conflict(
        "guide", "streams", "{streams} follows a text as it was decoded, but {guide} changes it: use `verify=` flag"
    ),
    Conflict("best", "no_sampling", "{best} draws captions to choose from, which needs method {no_sampling}"),
    Conflict("best", "beams", "{best} follows one text per sample: leave out {beams}, or use `verify=` flag"),
    Conflict(
        "best", "words", "{words} scores one text as it was decoded, but {best} decodes several: use `verify=` flag"
    ),
    Conflict(
        "best", "no_caption", "{best} chooses among captions, and this run's task is {no_caption}: use `verify=` flag"
    ),
    Conflict("best", "streams", "{streams} follows one text, but {best} decodes several: use `verify=` flag"),
    Conflict("schema", "words", "{words} scores words of a text, but {schema} makes {format}: leave out one of them"),
    Conflict("schema", "own_search", "{schema} rules out tokens one by one, but {own_search} has its own search"),
    Conflict("schema", "text_changes", "{schema} makes {format}, which nothing changes: leave out {text_changes}"),
    Conflict("engine", "other_method", "{engine} decodes with {vllm_methods} only: leave it out for {other_method}"),
    Conflict(
        "engine", "guide", "{engine} writes texts in one go, which {guide} cannot: use `verify=` flag, or leave it out"
    ),
    Conflict("engine", "repetition", "{engine} has no {repetition}: leave one of them out"),
    Conflict("engine", "loading", "{engine} loads models itself, without {loading}: leave one of them out"),
    Conflict(
        "engine",
        "schema_and_think",
        "with {schema}, {engine} rules tokens out from the first one on, also in {schema_and_think}: leave out one of "
        "the three",
    ),
    Conflict(
        "engine",
        "schema_and_rule",
        "with {schema}, {engine} rules tokens out before the rule of {schema_and_rule}: leave out one of the three",
    ),
    Conflict("lists", "bundled", "{lists}: {bundled} makes no list but of tags: use another preset (sira doctor)"),
)


def check(
    preset: Preset,
    method: Method,
    *,
    task: str = "caption",
    words: bool = False,
    choices: Sequence[str] = (),
    verify: str | None = None,
    schema: Schema | None = None,
    streams: str = "",
    engine: str = "",
) -> None:
    """Check that the features of a run can be combined.

    Args:
        preset: the settings in force.
        method: the decoding method.
        task: the kind of the run's task: `caption`, `ask` or `check`.
        words: whether words are scored.
        choices: the given answers, of which one is printed.
        verify: mode of the second look: `flag`, `guide` or `best`.
        schema: the schema that texts follow.
        streams: what shows the logits of both streams, by its name in messages; empty: nothing does.
        engine: name of an engine other than this process; empty: none.

    Raises:
        SettingsError: two of the features cannot be combined.
    """
    tags = schema is not None and schema.as_tags
    as_schema = "`tags=`" if tags else "`schema=`"
    features = (
        *_of_method(method, schema),
        *_of_preset(preset, schema),
        Feature("no_caption", task != "caption", task),
        Feature("words", words, "`words=`"),
        Feature("choices", bool(choices), "`choices=`"),
        Feature("verify", verify is not None, "`verify=`"),
        Feature("guide", verify == "guide", "`verify=` guide"),
        Feature("best", verify == "best", "`verify=` best"),
        Feature("schema", schema is not None, as_schema),
        Feature("lists", schema is not None and schema.has_lists, "`schema=`"),
        Feature("streams", bool(streams), streams),
        Feature("engine", bool(engine), f"`engine=` {engine}"),
    )
    # Two settings may be the same feature, as a repetition's are: then the last one is shown.
    shown = {feature.name: feature.shown for feature in features if feature.present}
    for conflict in CONFLICTS:
        if conflict.one in shown and conflict.other in shown:
            made = "tags" if tags else "JSON"
            message = conflict.message.format(**shown, format=made, vllm_methods=", ".join(VLLM_METHODS))
            raise SettingsError(message)


def _of_method(method: Method, schema: Schema | None) -> Iterator[Feature]:
    """Yield the method's own search, and the abilities that it lacks."""
    shown = f"method {method.name}"
    abilities = method.abilities
    yield Feature("own_search", method.own_search, shown)
    yield Feature("no_beams", Ability.BEAMS not in abilities, shown)
    yield Feature("one_stream", Ability.TRACES not in abilities, _instead_of(method, Ability.TRACES))
    yield Feature("no_sampling", Ability.SAMPLING not in abilities, _instead_of(method, Ability.SAMPLING))
    yield Feature("other_method", method.name not in VLLM_METHODS, shown)
    yield Feature("schema_and_rule", isinstance(method, LogitsOnly) and schema is not None, shown)


def _of_preset(preset: Preset, schema: Schema | None) -> Iterator[Feature]:
    """Yield the features that settings switch on."""
    generation = preset.generation
    yield Feature("sampling", generation.temperature > 0, "sampling")
    yield Feature("beams", generation.num_beams > 1, "`num_beams=`")
    yield Feature("think", generation.think, "`think=`")
    yield Feature("schema_and_think", generation.think and schema is not None, "`think=`")
    yield Feature("bundled", preset.model == BUNDLED, "the bundled model")
    changes = list(preset.text.given())
    if schema is not None and schema.as_tags:  # tags become a text, which may have a prefix and a suffix
        changes = [name for name in changes if name not in ("prefix", "suffix")]
    if changes:
        yield Feature("text_changes", True, f"`{changes[0]}=`")
    for name in ("no_repeat_ngram_size", "repetition_penalty"):
        yield Feature("repetition", generation.optional()[name] is not None, f"`{name}=`")
    yield Feature("loading", preset.load.attention is not None, "`attn_implementation=`")
    yield Feature("loading", preset.load.quantization is not None, "`quantization=`")


def _instead_of(method: Method, ability: Ability) -> str:
    """Return how a message names the methods with an ability, and this one, which lacks it: "sira, not opera"."""
    able = " or ".join(name for name, other in METHODS.items() if ability in other.abilities)
    return f"{able}, not {method.name}"
