"""HTML and SVG built from elements: whatever is not markup is escaped, so no text of a study can become any."""

from __future__ import annotations

import html

_VOID = frozenset({"br", "col", "hr", "input", "link", "meta"})


class Markup(str):
    """Text that is markup already; only `element` and `together` make it."""

    __slots__ = ()


Attribute = str | int | float | bool | None


def element(tag: str, /, *children: str, **attributes: Attribute) -> Markup:
    """Return one element; children that are not Markup are escaped, and so is every attribute.

    A trailing underscore of an attribute goes (`class_`), other underscores become dashes (`aria_label`,
    `stroke_width`). True gives a bare attribute, None and False none. Floats are written with one decimal: they are
    pixels.
    """
    opened = "".join([f"<{tag}", *(_attribute(key, value) for key, value in attributes.items()), ">"])
    if tag in _VOID:
        return Markup(opened)
    return Markup(f"{opened}{together(*children)}</{tag}>")


def together(*children: str) -> Markup:
    """Return children one after another, escaping what is not markup."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    name = "viewBox" if name == "viewbox" else name
    if value is True:
        return f" {name}"
    return f' {name}="{html.escape(pixels(value) if isinstance(value, float) else str(value))}"'


def pixels(value: float) -> str:
    """Return a length with one decimal, without a trailing zero."""
    return f"{value:.1f}".removesuffix(".0")
