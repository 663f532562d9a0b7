"""Groups of options: dataclasses of annotated fields.

`with_options(Group)` gives a command the group's fields as options, under the group's title in the help, and hands it
one object instead of twenty arguments.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_args, get_type_hints


def with_options(**groups: type[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the fields of each group as options; it receives one object per group, by these names."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        parameters = [parameter for name, parameter in own.parameters.items() if name not in groups]
        for group in groups.values():
            hints = get_type_hints(group, include_extras=True)
            parameters += [
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=_titled(hints[field.name], group.title),
                )
                for field in fields(group)
            ]

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            for name, group in groups.items():
                values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
            return command(**values)

        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _titled(hint: Any, title: str) -> Any:
    """Return an annotated option under a title in the help, unless it names its own."""
    kind, option = get_args(hint)
    option = copy.copy(option)
    option.rich_help_panel = getattr(option, "rich_help_panel", None) or title
    return Annotated[kind, option]
