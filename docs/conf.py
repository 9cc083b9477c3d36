"""How the pages become a site: `make docs`. Nothing of Firsthand is imported, nothing fetched."""

import re
from pathlib import Path

from sphinx.application import Sphinx

project = "Firsthand"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4  # links to headings, as code hosts make them
html_theme = "furo"
html_title = project
html_show_copyright = False
html_show_sourcelink = False
# Blocks that show a part of a form (`…`) are no valid JSON or TOML, and are meant so.
suppress_warnings = ["misc.highlighting_failure"]

UPWARDS = re.compile(r"\]\(((?:\.\./)+[\w./-]+\.md)\)")


def links_to_files(app: Sphinx, name: str, source: list[str]) -> None:
    """A page that lies outside `docs/` is no page of the site: a link gives its file."""
    folder = Path(app.srcdir, name).parent

    def link(found: re.Match[str]) -> str:
        inside = (folder / found[1]).resolve().is_relative_to(app.srcdir)
        return found[0] if inside else f"](path:{found[1]})"

    source[0] = UPWARDS.sub(link, source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", links_to_files)
