"""The documentation site: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

import pbwn  # noqa: E402

project = "pbwn"
author = "The pbwn developers"
copyright = "the pbwn developers"
release = version = pbwn.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
default_role = "code"
html_math_renderer = "mathml"
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|nn|Optimizer|collections|typing|os|lightning|transformers)\b.*"),  # described elsewhere
    (
        "py:.*",
        r"(Constraint|Backend|Radius|pbwn\.selection\.(rules|weights\.Choice))\b.*",
    ),  # names for types that their users see spelled out
]

autodoc_member_order = "bysource"
autodoc_typehints = "description"

html_theme = "furo"
html_title = "pbwn"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sphinx = False
