"""`sira eval`."""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from sira_cli.cli import eval_all
from sira_cli.cli.decoding_options import MethodsOptions
from sira_cli.cli.eval_catalog import add_commands
from sira_cli.cli.eval_options import EvalOptions, check
from sira_cli.cli.eval_run import evaluate
from sira_cli.cli.help import Command, Variadic
from sira_cli.cli.option_groups import with_options
from sira_cli.cli.options import ModelOptions
from sira_cli.errors import DataError, SettingsError
from sira_cli.eval.catalog import CARDS, LENGTHS

POPE_EXAMPLES = """
sira eval pope --questions coco_pope_*.json --images val2014/ --method sira,vcd -o pope/
sira eval pope --questions coco_pope_*.json --answers pope/ --format latex
"""
CHAIR_EXAMPLES = """
sira eval chair --annotations annotations/ --images val2014/ --ids ids.txt -o chair/
sira eval chair --annotations annotations/ --answers captions.jsonl
"""
AMBER_EXAMPLES = """
sira eval amber --data AMBER/data --images AMBER/image --method sira,vcd -o amber/
sira eval amber --data AMBER/data --answers amber/ --task discriminative
"""

app = typer.Typer(
    help="Run and score benchmarks as their official scripts do.", no_args_is_help=True, rich_markup_mode=None
)


Rule = Literal["official", "vcd", "opera", "strict", "repope"]  # how an answer becomes yes or no


TextRule = Literal["lemma", "singular"]  # how a caption becomes words


Language = Literal["auto", "nltk", "fallback"]  # how words are split and lemmatized


Task = Literal["generative", "discriminative", "existence", "attribute", "relation", "all"]  # AMBER's tasks


LanguageOption = Annotated[
    Language,
    typer.Option(help="How captions become words: with NLTK's data (extra `eval`), or an unofficial fallback."),
]
SuffixOption = Annotated[
    str | None,
    typer.Option(help="Text after each yes/no question (default: ' Please answer this question with one word.')."),
]
PromptOption = Annotated[str | None, typer.Option(help="Text that asks for a caption, instead of the benchmark's.")]
NoSuffix = Annotated[bool, typer.Option("--no-suffix", help="Ask the questions unchanged.")]


@app.command("pope", cls=Variadic, epilog=POPE_EXAMPLES, short_help=CARDS["pope"].help)
@with_options(options=EvalOptions, model=ModelOptions, decoding=MethodsOptions)
def pope(
    *,
    questions: Annotated[
        list[Path], typer.Option(metavar="FILE...", help="POPE's question files, one per split.", show_default=False)
    ],
    rule: Annotated[Rule, typer.Option(help="Script whose rule decides what counts as yes or no.")] = "official",
    repope: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE...", help="RePOPE's files: also show figures with its corrected labels."),
    ] = None,
    suffix: SuffixOption = None,
    no_suffix: NoSuffix = False,
    options: EvalOptions,
    model: ModelOptions,
    decoding: MethodsOptions,
) -> None:
    """Yes/no questions about objects (Li et al. 2023): accuracy, F1, precision, recall, FPR, yes-rate.

    --method takes several methods, such as sira,vcd; greedy and greedy+apc are added as controls. Answer files
    hold {"question", "answer"} in the order of the questions, or {"question_id", "text"}, one file per file of
    questions; or they are sira's own.
    """
    given = check(options, model, decoding, questions)
    from sira_cli.eval.pope import Pope

    asked = _suffix(suffix, no_suffix)
    benchmark = Pope(questions, rule=rule, suffix=asked, limit=options.limit, repope=repope or ())
    evaluate(benchmark, given)


@app.command("chair", cls=Variadic, epilog=CHAIR_EXAMPLES, short_help=CARDS["chair"].help)
@with_options(options=EvalOptions, model=ModelOptions, decoding=MethodsOptions)
def chair(
    *,
    annotations: Annotated[
        Path,
        typer.Option(
            metavar="COCO_DIR",
            help="Folder with COCO's instances_*.json and captions_*.json, or a JSON file of each image's objects.",
        ),
    ],
    ids: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Image ids, one per line (default with --answers: all in the answers)."),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help=f"Length limits in tokens (default: {','.join(map(str, LENGTHS))}; or --max-new-tokens N)."),
    ] = None,
    rule: Annotated[
        TextRule, typer.Option(help="How words are compared: as lemmas, or as singulars as in the first script.")
    ] = "lemma",
    language: LanguageOption = "auto",
    prompt: PromptOption = None,
    options: EvalOptions,
    model: ModelOptions,
    decoding: MethodsOptions,
) -> None:
    """Objects in captions that are not in the picture (Rohrbach et al. 2018): CHAIRs, CHAIRi, recall, length.

    --method takes several methods, such as sira,vcd; greedy and greedy+apc are added as controls. Answer files
    hold {"image_id", "caption"}, one file per method; or they are sira's own.
    """
    _check_prompt(prompt, options)
    given = check(options, model, decoding)
    from sira_cli.eval.chair.benchmark import PROMPT, Chair
    from sira_cli.eval.chair.coco import UnknownImageError
    from sira_cli.eval.chair.rows import answered, read_ids

    images = None if ids is None else dict(islice(read_ids(ids).items(), options.limit))
    tokens = () if lengths is None else _lengths(lengths)
    if given.sources:
        tokens, images = answered(given.sources, tokens, images, options.limit)
    else:
        if tokens and decoding.max_new_tokens:
            raise SettingsError("give --lengths or --max-new-tokens, not both")
        tokens = (decoding.max_new_tokens,) if decoding.max_new_tokens else tokens or LENGTHS
    if images is None:
        raise SettingsError("--ids FILE is needed: the images to caption, one id per line")
    try:
        benchmark = Chair.of(
            annotations,
            ids=list(images),
            rule=rule,
            language=language,
            lengths=tokens,
            prompt=PROMPT if prompt is None else prompt,
        )
    except UnknownImageError as error:
        raise DataError(f"{images[error.image]}: {error}") from None
    evaluate(benchmark, given)


@app.command("amber", cls=Variadic, epilog=AMBER_EXAMPLES, short_help=CARDS["amber"].help)
@with_options(options=EvalOptions, model=ModelOptions, decoding=MethodsOptions)
def amber(
    *,
    data: Annotated[Path, typer.Option(metavar="AMBER_DIR", help="AMBER's folder `data`, or its repository.")],
    task: Annotated[
        Task, typer.Option(help="Captions, yes/no questions, one dimension of the questions, or all.")
    ] = "all",
    similarity: Annotated[
        str,
        typer.Option(
            help="How words compare: spacy (en_core_web_lg), exact, a spaCy pipeline, or a .json file of numbers."
        ),
    ] = "spacy",
    language: LanguageOption = "auto",
    ids: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ids of AMBER's queries, one per line: take only these.")
    ] = None,
    prompt: PromptOption = None,
    suffix: SuffixOption = None,
    no_suffix: NoSuffix = False,
    reduce: Annotated[
        bool,
        typer.Option("--reduce", help="Normalise answers from other tools: `Yes.` counts as Yes."),
    ] = False,
    options: EvalOptions,
    model: ModelOptions,
    decoding: MethodsOptions,
) -> None:
    """Captions and yes/no questions (Wang et al. 2023): CHAIR, Cover, Hal, Cog; accuracy, precision, recall, F1.

    --method takes several methods, such as sira,vcd; greedy and greedy+apc are added as controls. Answer files
    hold {"id", "response"}, one file per method; or they are sira's own.
    """
    _check_prompt(prompt, options)
    given = check(options, model, decoding)
    if prompt is not None and task not in ("generative", "all"):
        raise SettingsError("--prompt asks for captions: leave it out, or --task")
    if reduce and all(source.own for source in given.sources):
        raise SettingsError("--reduce is for answers from other tools: sira's own are read that way: leave it out")
    from sira_cli.eval.amber.benchmark import PARTS, Amber
    from sira_cli.eval.amber.data import read_numbers
    from sira_cli.eval.amber.similarity import find_similarity
    from sira_cli.eval.found import first_pictures
    from sira_cli.language.language import find_language

    captions = task in ("generative", "all")  # questions need neither nouns nor vectors
    questions = task != "generative"
    benchmark = Amber.of(
        data,
        language=find_language(language if captions else "fallback", ["nouns"]),
        similarity=find_similarity(similarity if captions else "exact"),
        parts=PARTS[not captions : 1 + questions],
        suffix=_suffix(suffix, no_suffix),
        prompt=prompt,
        reduced=reduce,
    )
    if ids is not None:
        benchmark = benchmark.picked(read_numbers(ids))
    if task in ("existence", "attribute", "relation"):
        benchmark = benchmark.only(task)
    if options.limit is not None:
        benchmark = dataclasses.replace(
            benchmark, parts=tuple(first_pictures(part, options.limit) for part in benchmark.parts)
        )
    evaluate(benchmark, given)


def _check_prompt(prompt: str | None, options: EvalOptions) -> None:
    if prompt is not None and options.answers:
        raise SettingsError("--prompt is for runs: leave it out, or give --images instead of --answers")
    if prompt is not None and not prompt.strip():
        raise SettingsError("--prompt is empty: give a text, or leave it out")


def _suffix(suffix: str | None, none: bool) -> str:
    from sira_cli.eval.base import ONE_WORD

    if none and suffix is not None:
        raise SettingsError("give --suffix or --no-suffix, not both")
    return "" if none else ONE_WORD if suffix is None else suffix


def _lengths(text: str) -> tuple[int, ...]:
    lengths = tuple(dict.fromkeys(int(part) if part.strip().isdecimal() else 0 for part in text.split(",")))
    if not all(lengths):
        raise SettingsError(f"--lengths {text}: expected numbers of tokens, such as 64,512")
    return lengths


add_commands(app)
app.command("all", cls=Command, epilog=eval_all.EXAMPLES, short_help="Every benchmark that a folder holds.")(
    eval_all.eval_all
)
