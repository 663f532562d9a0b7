"""Groups of options: dataclasses of annotated fields.

`@with_options()` gives a command the fields of its groups as options, under the group's title in the help, and hands it
one object per group instead of twenty arguments.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, cast, get_args, get_type_hints


def with_options(*without: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the fields of each group among its parameters as options, after its own.

    A group may consist of groups; those named in `without` are left out, and have their default.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        every = own.parameters.items()
        groups: dict[str, Any] = {name: each.annotation for name, each in every if is_dataclass(each.annotation)}
        parameters = [parameter for name, parameter in every if name not in groups]
        parameters += [option for group in groups.values() for option in _options(group, without)]

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            for name, group in groups.items():
                values[name] = _filled(group, values, without)
            return command(**values)

        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _options(group: type[Any], without: Sequence[str]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from () if field.name in without else _options(cast(type, hint), without)
            continue
        titled, kind = _titled(hint, group.title), inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(field.name, kind, default=field.default, annotation=titled)


def _filled(group: type[Any], values: dict[str, Any], without: Sequence[str]) -> Any:
    """Return a group with its values, which are taken out of `values`."""
    hints = get_type_hints(group)
    return group(
        **{
            field.name: _filled(hints[field.name], values, without)
            if is_dataclass(hints[field.name])
            else values.pop(field.name)
            for field in fields(group)
            if field.name not in without
        }
    )


def _titled(hint: Any, title: str) -> Any:
    """Return an annotated option under a title in the help, unless it names its own."""
    kind, option = get_args(hint)
    option = copy.copy(option)
    option.rich_help_panel = getattr(option, "rich_help_panel", None) or title
    return Annotated[kind, option]
