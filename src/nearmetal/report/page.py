"""The frame around every HTML page: one style sheet, named by its hash in the page's policy, and the body."""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

import nearmetal

if TYPE_CHECKING:
    from nearmetal.report.markup import Markup

ALONE = "form-action 'none'"
"""What else a page that is a file by itself may do: nothing."""


def page(
    title: str,
    body: Markup,
    *,
    version: str = nearmetal.__version__,
    may: str = ALONE,
    head: str = "",
    skip: str = "verdicts",
) -> str:
    """Return a whole page as text; write it as UTF-8.

    `may` is the rest of its Content-Security-Policy after `default-src 'none'` and the style sheet's hash; `head` is
    markup for its head, `skip` the id of its first section. The policy names the one style sheet: nothing that data
    might smuggle in can style or run.
    """
    return Template(_static("page.html")).substitute(
        title=html.escape(f"{title} - nearmetal"),
        version=html.escape(version),
        style=_static("page.css"),
        policy=policy(may),
        head=head,
        skip=skip,
        body=body,
    )


@cache
def policy(may: str = ALONE) -> str:
    """Return the Content-Security-Policy of a page."""
    digest = base64.b64encode(hashlib.sha256(_static("page.css").encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; {may}"


@cache
def _static(name: str) -> str:
    return (resources.files("nearmetal.report") / "static" / name).read_text(encoding="utf-8")
