"""HTML and SVG built from elements: whatever is not markup is escaped, so no text of a study can become any.

And the frame around every page: one style sheet, named by its hash in the page's policy, and the body.
"""

import base64
import hashlib
import html
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template

import nearmetal
from nearmetal.errors import visible

_VOID = frozenset({"br", "col", "hr", "input", "link", "meta"})
Attribute = str | int | float | bool | None


class Markup(str):
    """Text that is markup already; only `element` and `together` make it."""

    __slots__ = ()


NOTHING = Markup("")


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
    return Markup("".join(child if isinstance(child, Markup) else escaped(child) for child in children))


def escaped(text: str) -> str:
    """Return text in which nothing is markup, and nothing commands a terminal that shows the page's source."""
    return html.escape(visible(text))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    name = "viewBox" if name == "viewbox" else name
    if value is True:
        return f" {name}"
    return f' {name}="{escaped(pixels(value) if isinstance(value, float) else str(value))}"'


def pixels(value: float) -> str:
    """Return a length with one decimal, without a trailing zero."""
    return f"{value:.1f}".removesuffix(".0")


# ---- a page


@dataclass(frozen=True, slots=True)
class PageFrame:
    """What a page is part of: what stands above it, and what it may do but show itself; of a file by itself nothing.

    `may` is the rest of its Content-Security-Policy after `default-src 'none'` and the style sheet's hash.
    """

    above: Markup = NOTHING
    may: str = "form-action 'none'"


def page(
    title: str,
    *body: Markup,
    version: str = nearmetal.__version__,
    frame: PageFrame | None = None,
    head: str = "",
    skip: str = "verdicts",
) -> str:
    """Return a whole page as text; write it as UTF-8.

    Without a `frame` it is a file by itself. `head` is markup for its head, `skip` the id of its first section. The
    policy names the one style sheet: nothing that data might smuggle in can style or run.
    """
    around = frame or PageFrame()
    return Template(_static("page.html")).substitute(
        title=escaped(f"{title} - nearmetal"),
        version=escaped(version),
        style=_static("page.css"),
        policy=policy(around.may),
        head=head,
        skip=skip,
        body=together(around.above, *body),
    )


@cache
def policy(may: str) -> str:
    """Return the Content-Security-Policy of a page."""
    digest = base64.b64encode(hashlib.sha256(_static("page.css").encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; {may}"


@cache
def _static(name: str) -> str:
    return (resources.files("nearmetal.report") / "static" / name).read_text(encoding="utf-8")


def header(eyebrow: str, title: str, *children: Markup, meta: str = "", labels: Iterable[str] = ()) -> Markup:
    """Return what a page begins with; `labels` say what its figures are good for, shown wherever they are."""
    about = [element("p", meta, class_="meta")] if meta else []
    lead = element("strong", "Where these figures come from: ")
    sources = [element("p", lead, f"{label}.", class_="honest") for label in labels]
    return element("header", element("p", eyebrow, class_="eyebrow"), element("h1", title), *about, *sources, *children)


def section(title: str, *children: Markup, **attributes: Attribute) -> Markup:
    """Return a section below its heading."""
    return element("section", element("h2", title), *children, **attributes)


def fold(title: str, *children: Markup, **attributes: Attribute) -> Markup:
    """Return what is shown when its title is opened."""
    return element("details", element("summary", title), *children, **attributes)


def listed(items: Iterable[str], title: Markup = NOTHING) -> Markup:
    """Return items as a list below its title; nothing where there is none."""
    entries = [element("li", one) for one in items]
    return together(title, element("ul", *entries)) if entries else NOTHING


def scrolling(table: Markup, label: str) -> Markup:
    """Return a table in a region that scrolls, also by keyboard, where it is too wide."""
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)
