"""What cannot be combined: one table of features of a run, asked before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS
from sira_cli.methods.base import Ability, Method
from sira_cli.methods.logits_only import LogitsOnly
from sira_cli.models.preset import Preset
from sira_cli.models.schema import Schema

VLLM_METHODS = [
    name for name, method in METHODS.items() if name in ("sira", "greedy") or isinstance(method, LogitsOnly)
]
_REPETITION = ("repetition_penalty", "no_repeat_ngram_size")


class Row(NamedTuple):
    """Two features, and the message that refuses them; `{feature}` stands for its name in `check`."""

    one: str
    other: str
    message: str


ROWS = (
    Row("sampling", "draws_nothing", "{sampling} needs method {draws_nothing}: set temperature to 0"),
    Row("beams", "own_search", "{own_search} has a search of its own: leave out {beams}"),
    *(Row(one, "one_stream", f"{{{one}}} needs method {{one_stream}}") for one in ("streams", "words", "choices")),
    *(Row(one, "beams", f"{{{one}}} follows one text: leave out {{beams}}") for one in ("streams", "words")),
    *(
        Row(one, "beams", f"{{{one}}} follows one text per picture: leave out {{beams}}")
        for one in ("no_beams", "schema", "engine")
    ),
    Row("choices", "think", "{choices} are scored without any reasoning before them: leave out {think}"),
    Row("choices", "changes", "{choices} prints one of the given answers: leave out {changes}"),
    Row("choices", "words", "{words} scores words of a text, but {choices} writes none: leave out one of them"),
    Row("choices", "verify", "{verify} checks texts, but {choices} writes none: leave out one of them"),
    Row("choices", "schema", "{schema} is for decoded texts, but {choices} decodes none: leave out one of them"),
    Row("guide", "own_search", "{guide} continues after single tokens, but {own_search} cannot: use `verify=` flag"),
    Row("guide", "beams", "{guide} follows one text per picture: leave out {beams}, or use `verify=` flag"),
    Row("guide", "words", "{words} scores a text as it was decoded, but {guide} changes it: use `verify=` flag"),
    Row("guide", "no_caption", "{guide} writes captions, and this run's task is {no_caption}: use `verify=` flag"),
    Row("guide", "schema", "{guide} writes sentences, and {schema} asks for values: use `verify=` flag"),
    Row("best", "draws_nothing", "{best} draws captions to choose from, which needs method {draws_nothing}"),
    Row("best", "beams", "{best} follows one text per sample: leave out {beams}, or use `verify=` flag"),
    Row("best", "words", "{words} scores one text as it was decoded, but {best} decodes several: use `verify=` flag"),
    Row("best", "no_caption", "{best} chooses among captions, and this run's task is {no_caption}: use `verify=` flag"),
    Row("schema", "words", "{words} scores words of a text, but {schema} makes {made}: leave out one of them"),
    Row("schema", "no_rows", "{schema} rules out tokens one by one, but {no_rows} has its own search"),
    Row("schema", "changes", "{schema} makes {made}, which nothing changes: leave out {changes}"),
    Row("engine", "other_method", "{engine} decodes with {vllm_methods} only: leave it out for {other_method}"),
    Row(
        "engine", "guide", "{engine} writes texts in one go, which {guide} cannot: use `verify=` flag, or leave it out"
    ),
    Row("engine", "words", "{engine} shows the contrast only, and {words} needs both streams: {leave_out}"),
    Row("engine", "repetition", "{engine} has no {repetition}: {leave_out}"),
    Row("engine", "loading", "{engine} loads models itself, without {loading}: {leave_out}"),
    Row("engine", "thoughts", "{engine} rules tokens out from the first one on, also in {thoughts}: {leave_out}"),
    Row("engine", "ruled", "{engine} rules tokens out before the rule of {ruled}: {leave_out}"),
    Row("lists", "demo", "{lists}: the bundled model makes no list but of tags: use another preset (sira doctor)"),
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
    """Check that the features of a run can be combined; `verify`: the mode of the second look."""
    generation, named = preset.generation, f"method {method.name}"
    tags = schema is not None and schema.as_tags
    changes = [f"`{name}=`" for name in preset.text.given() if not (tags and name in ("prefix", "suffix"))]
    features = {  # with their names in messages; empty: absent
        "sampling": "sampling" * (generation.temperature > 0),
        "beams": "`num_beams=`" * (generation.num_beams > 1),
        "think": "`think=`" * bool(generation.think),
        "changes": next(iter(changes), ""),
        "own_search": named * method.own_search,
        "no_beams": named * (Ability.BEAMS not in method.abilities),
        "no_rows": named * (method.own_search or Ability.BATCHES not in method.abilities),
        "one_stream": _lacking(method, Ability.TRACES),
        "draws_nothing": _lacking(method, Ability.SAMPLING),
        "no_caption": task * (task != "caption"),
        "words": "`words=`" * words,
        "choices": "`choices=`" * bool(choices),
        "verify": "`verify=`" * bool(verify),
        "guide": "`verify=` guide" * (verify == "guide"),
        "best": "`verify=` best" if verify == "best" else "",
        "schema": ("`tags=`" if tags else "`schema=`") * (schema is not None),
        "lists": "`schema=`" * (schema is not None and schema.has_lists),
        "demo": preset.name * (preset.name == "demo"),
        "streams": streams,
        "engine": f"`engine=` {engine}" * bool(engine),
        "other_method": named * (method.name not in VLLM_METHODS),
        "repetition": next((f"`{name}=`" for name in _REPETITION if name in preset.later()), ""),
        "loading": next((f"`{name}=`" for name in ("quantization", "attention") if getattr(preset.load, name)), ""),
        "thoughts": "`think=`" * bool(generation.think and schema is not None),
        "ruled": named * (isinstance(method, LogitsOnly) and schema is not None),
    }
    for row in ROWS:
        if features[row.one] and features[row.other]:
            made, leave_out = "tags" if tags else "JSON", "leave one of them out"
            names = ", ".join(VLLM_METHODS)
            raise SettingsError(row.message.format(**features, made=made, leave_out=leave_out, vllm_methods=names))


def _lacking(method: Method, ability: Ability) -> str:
    """Return the methods with an ability, and this one; empty if it has it."""
    able = " or ".join(name for name, other in METHODS.items() if ability in other.abilities)
    return "" if ability in method.abilities else f"{able}, not {method.name}"
