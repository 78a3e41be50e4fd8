"""A figure inside the page: colours that follow the page's theme, its fonts, and names that no other figure has."""

from __future__ import annotations

import re
from html import escape

from markupsafe import Markup

from pbwn_repro.report.drawing.figure import Drawing
from pbwn_repro.report.drawing.palette import tones


def inline(drawing: Drawing, *, narrow: bool) -> Markup:
    """The figure as an element of the page."""
    prefix = f"{drawing.name}-{'narrow' if narrow else 'wide'}"
    text = drawing.svg(narrow=narrow)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*;? ?|stroke-linejoin: round;? ?", "", text)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{prefix}-", text)
    text = re.sub(r"\s*\n\s*", " ", text)
    # A hundredth of a point cannot be seen. Text is left alone: 0.001 is a number there.
    text = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda place: re.sub(r"(\.\d\d)\d+", r"\1", place[0]), text)
    for tone in tones():
        text = text.replace(tone.light, f"var(--{tone.name})")
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None, "matplotlib names the size of every figure"
    opening = f'<svg {box[0]} role="img" aria-label="{escape(drawing.description)}">'
    return Markup(re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1))
