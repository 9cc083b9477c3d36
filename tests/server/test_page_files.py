"""What the page is made of: which files, how large, and with which policy.

Owns: proof of `page_files.py` and `routes/page.py`. Read next: `page/test_access.py`.
"""

from __future__ import annotations

import re
from importlib import resources

from firsthand.server.page_files import FILES, FREE_PATHS, INDEX
from firsthand.server.routes.page import read_file
from tests.server.conftest import Client

MAX_BYTES = 150_000  # of what runs and what is read: nobody is to save at explaining it
COMMENT = re.compile(rb"^ */[*/].*\n", re.MULTILINE)
OF_THE_INTERFACE = {"docs.html", "docs.js"}


def test_the_page_is_small_and_all_of_it_is_served(ask: Client) -> None:
    folder = resources.files("firsthand.server").joinpath("page")
    names = {one.name for one in folder.iterdir()} - OF_THE_INTERFACE
    assert names == {INDEX, *FILES}
    assert sum(len(COMMENT.sub(b"", read_file(name))) for name in names) <= MAX_BYTES
    for path in sorted(FREE_PATHS):
        reply = ask("GET", path)
        assert reply.status_code == 200
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        tag = reply.headers["etag"]
        assert ask("GET", path, headers={"if-none-match": tag}).status_code == 304
    assert ask("GET", "/page/docs.js").status_code == 404
