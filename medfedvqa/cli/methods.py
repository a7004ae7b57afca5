"""`medfedvqa methods`: shows all methods, or one with its options."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from medfedvqa.cli.options import JsonOption, method_words
from medfedvqa.cli.terminal import Terminal, plain, sentence


def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method, to list its options.", autocompletion=method_words)
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Print which methods run privately and on shares, as Markdown.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the methods; with NAME, a method's options with types, defaults and sources."""
    from medfedvqa.cli.privacy_matrix import markdown_matrix
    from medfedvqa.core import method_names

    if matrix:
        typer.echo(markdown_matrix(), nl=False)
    elif name is None:
        every = [_summary(each) for each in method_names(training=False)]
        typer.echo(json.dumps({"methods": every}, indent=2)) if as_json else _show_all(every)
    else:
        description = _description(name)
        typer.echo(json.dumps(description, indent=2)) if as_json else _show_method(description)


def _summary(name: str) -> dict[str, Any]:
    from medfedvqa.cli.privacy_matrix import refusal
    from medfedvqa.core import method_type

    summary = " ".join((method_type(name).__doc__ or "").strip().split("\n\n")[0].split())
    return {
        "name": name,
        "summary": summary,
        "private": refusal(name, "differential privacy") is None,
        "on_shares": refusal(name, "secure aggregation") is None,
    }


def _description(name: str) -> dict[str, Any]:
    """The method's summary, its source, and every option. Raises `ConfigError` for an unknown method."""
    import inspect

    from medfedvqa.core import method_type
    from medfedvqa.library.training_job import check_method

    check_method(name)
    kind = method_type(name)
    schema = kind.config_type.model_json_schema()
    source = (inspect.getdoc(inspect.getmodule(kind)) or "").split("\n\n")[0]
    options = [
        {
            "name": option,
            "type": type_words(field, schema.get("$defs", {})),
            "default": field.get("default"),
            "meaning": field.get("description", ""),
        }
        for option, field in schema["properties"].items()
    ]
    return {**_summary(name), "source": " ".join(source.split()), "options": options}


def type_words(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """The type of a field of a JSON schema, in words: `integer, 1 to 100`, or the choices."""
    if "$ref" in field:
        return type_words(definitions[field["$ref"].rpartition("/")[2]], definitions)
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if "const" in field:
        return str(field["const"])
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(type_words(part, definitions) for part in field["anyOf"]))
    kind = str(field.get("type", "value"))
    if kind == "array":
        return f"list of {type_words(field.get('items', {}), definitions)}"
    words = {"string": "text", "boolean": "true | false"}.get(kind, kind)
    return words + _bounds(field)


def _bounds(field: Mapping[str, Any]) -> str:
    low = field.get("minimum", field.get("exclusiveMinimum"))
    high = field.get("maximum", field.get("exclusiveMaximum"))
    least = f"above {low:g}" if "exclusiveMinimum" in field else f"{low:g}" if low is not None else ""
    most = f"below {high:g}" if "exclusiveMaximum" in field else f"{high:g}" if high is not None else ""
    if least and most:
        return f", {least} to {most}"
    return f", from {least}" if least else f", to {most}" if most else ""


def _show_all(every: list[dict[str, Any]]) -> None:
    table = Table("method", "what it does", "private", "on shares", box=box.SIMPLE_HEAD)
    marks = {True: "yes", False: "no"}
    for method in every:
        columns = plain(method["name"]), sentence(method["summary"])
        table.add_row(*columns, marks[method["private"]], marks[method["on_shares"]])
    console = Terminal()
    console.print(table)
    console.print("`medfedvqa methods NAME` lists a method's options.")


def _show_method(description: Mapping[str, Any]) -> None:
    console = Terminal()
    console.print(f"[bold]{plain(description['name'])}[/]: {sentence(description['summary'])}", highlight=False)
    console.print(f"Source: {sentence(description['source'])}", highlight=False)
    table = Table("option", "type", "default", "meaning", box=box.SIMPLE_HEAD)
    for column, least in zip(table.columns, (10, 10, 7, 20), strict=True):
        column.overflow, column.min_width = "fold", least
    for option in description["options"]:
        default = plain(json.dumps(option["default"]))
        table.add_row(plain(option["name"]), plain(option["type"]), default, sentence(option["meaning"]))
    console.print(table)
    console.print(f"Set one by -O NAME=VALUE, as in: medfedvqa run {plain(description['name'])} -O rounds=3")
