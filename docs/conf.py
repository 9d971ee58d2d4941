# SPDX-License-Identifier: MIT
"""How ./lab docs makes HTML of these pages. For reference/ see reference_support.py."""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

project = "cqnotify"
author = "the authors of cqnotify"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "reference_support"]
html_theme = "furo"
html_title = "cqnotify"
html_show_copyright = False
html_copy_source = False
html_static_path = ["pages.css"]
html_css_files = ["pages.css"]
exclude_patterns = ["conf.py", "reference_support.py"]
root_doc = "index"

myst_heading_anchors = 4

default_role = "py:obj"  # in docstrings `name` is code, and a link where there is such a name
suppress_warnings = ["ref.python"]  # of a parameter that is called as attributes of some classes
autodoc_default_options = {
    "members": True,
    "inherited-members": "tuple, dict, int, OSError, BaseException, Protocol",  # but not of these
}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["opentelemetry", "prometheus_client"]
add_module_names = False
python_maximum_signature_line_length = 88
pygments_style = "friendly"

# No button at the output of a program, and none of a prompt or of output in what is copied.
copybutton_selector = "div[class*=highlight-]:not(.highlight-text) > div.highlight pre"
copybutton_exclude = ".linenos, .gp, .go"


def plain_outside(app: Sphinx, docname: str, source: list[str]) -> None:
    """Make text of links to files that are not among these pages: they have no address here."""
    outside = re.escape("../" * (docname.count("/") + 1))
    source[0] = re.sub(rf"\[([^\]]*)\]\({outside}[^)]*\)", r"\1", source[0])


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """The table of contents is what the index and the reference link to, below their headings. So
    these pages need no directives, and read well as they are."""
    if docname not in (root_doc, "reference"):
        return
    for section in source[0].split("\n## ")[1:]:
        caption, _, rest = section.partition("\n")
        names = re.findall(r"^- \[.*?\]\(([\w/-]+)\.md\)", rest, re.M)
        lines = [f"```{{toctree}}\n:hidden:\n:caption: {caption}\n", *names, "```"]
        source[0] += "\n" + "\n".join(lines) + "\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", plain_outside)
    app.connect("source-read", add_contents)
