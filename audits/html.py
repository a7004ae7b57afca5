"""Makes HTML in which all text is escaped."""

from collections.abc import Iterable

from audits.escaping import for_html


class Html(str):
    """Markup made by `tag` and `join`, which escape text; it is not escaped again."""

    __slots__ = ()


Child = str | int | None
_VOID = frozenset(("link", "meta", "input", "img"))


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:
    """One element. Children and values that are not `Html` are escaped, children that are `None` are left out.

    Attribute names lose a last underscore (`class_`), and inner ones become hyphens. `True` gives an attribute without
    a value; `None` and `False` leave it out.
    """
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{join([value])}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{join(children)}</{name}>")


def join(children: Iterable[Child], between: str = "") -> Html:
    """Concatenates children, escaped as by `tag`, with `between` as the separator."""
    shown = (child if isinstance(child, Html) else for_html(str(child)) for child in children if child is not None)
    return Html(for_html(between).join(shown))
