"""The options of a run over pictures, as one group of groups."""

from __future__ import annotations

from dataclasses import dataclass, field

from sira_cli.cli.options.common import EngineOptions, GroupOptions, ModelOptions, OutputOptions
from sira_cli.cli.options.decoding import MethodsOptions, TextOptions
from sira_cli.cli.options.schemas import SchemaOptions
from sira_cli.cli.options.verifying import VerifyOptions


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Everything that `caption` and `ask` take, in the order of their help; each leaves out one group."""

    model: ModelOptions
    decoding: MethodsOptions
    text: TextOptions
    schema: SchemaOptions
    verify: VerifyOptions = field(default_factory=VerifyOptions)
    selection: GroupOptions
    engine: EngineOptions
    output: OutputOptions
