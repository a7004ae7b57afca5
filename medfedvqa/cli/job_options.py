"""The options of a job on the command line, made from the fields of `JobChoices`. This module is fast to import."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, Literal

import typer
from annotated_types import Ge

from medfedvqa.federation.job_choices import JobChoices

Choices = Mapping[str, Any]
NO_CHOICES: Choices = {}
_KINDS: Mapping[str, Any] = {"secagg": Literal["masks", "crypten"] | None, "committee": str | None}
"""The types of options whose fields accept several types; if not given, they leave the field's default."""
_METAVARS = {"committee": "N|NAME,NAME,.."}


def with_job_options(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each field of a job, in place of its parameter `choices`.

    The command gets the values in `choices`, by the names of the fields. `defaults`: its own ones, where they differ.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            choices = {name: given.pop(name) for name in JobChoices.model_fields}
            choices["secagg"] = choices["secagg"] or False
            if committee := choices["committee"]:
                choices["committee"] = int(committee) if committee.isdecimal() else committee.split(",")
            command(choices=choices, **given)

        parameters = dict(inspect.signature(command).parameters)
        options = [_option(name, defaults) for name in JobChoices.model_fields]
        whole = [each for name, own in parameters.items() for each in (options if name == "choices" else [own])]
        called.__annotations__ = {each.name: each.annotation for each in whole}
        vars(called)["__signature__"] = inspect.Signature(whole)
        return called

    return decorated


def _option(name: str, defaults: Mapping[str, Any]) -> inspect.Parameter:
    field = JobChoices.model_fields[name]
    help = f"{(field.description or '')[:1].upper()}{(field.description or '')[1:]}."
    least: Any = next((bound.ge for bound in field.metadata if isinstance(bound, Ge)), None)
    option = typer.Option(help=help, min=least, metavar=_METAVARS.get(name))
    kind, default = _KINDS.get(name, field.annotation), None if name in _KINDS else field.default
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=defaults.get(name, default),
        annotation=Annotated[kind, option],
    )
