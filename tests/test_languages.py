"""A page in two languages is one page: what is no language is equal, and links stay in it.

Owns: how pages are compared by headings, code, tables, names and links.
May not know: what a page says. Read next: `tests/test_book.py`, where more is asked of a chapter.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("", "docs/", "docs/book/", "docs/handbook/", "deploy/", "examples/")
PAGES = sorted(
    path for folder in FOLDERS for path in ROOT.glob(f"{folder}*.md") if "zh-CN" not in path.name
)
# Of these the Chinese page is an introduction alone.
INTRODUCED = {ROOT / "docs" / name for name in ("index.md", "metrics.md")}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]+)?\)")
SWITCH = re.compile(r"\[(?:English|中文)\]\(([\w.-]+)\)")


def chinese(path: Path) -> Path:
    return path.with_name(f"{path.stem}.zh-CN.md")


def english(path: Path) -> Path:
    return path.with_name(path.name.replace(".zh-CN", ""))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(path: Path) -> str:
    return FENCE.sub("", text_of(path))


BOTH = [path for path in PAGES if chinese(path).exists()]
ALIKE = [path for path in BOTH if path not in INTRODUCED]


def of(paths: list[Path]) -> pytest.MarkDecorator:
    names = [str(path.relative_to(ROOT)) for path in paths]
    return pytest.mark.parametrize("path", paths, ids=names)


def headings(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^(#+) (.*)$", FENCE.sub("", text), re.MULTILINE)


def shape(text: str) -> list[str]:
    """What each line is that is not empty: a heading, an item, a row, a paragraph."""
    marks = re.compile(r"#+ |- |\d+\. |\||<!-- [\w ]+")
    lines = [line for line in FENCE.sub("(a block)", text).splitlines() if line.strip()]
    return [mark[0] if (mark := marks.match(line)) else "text" for line in lines]


def code(text: str) -> list[tuple[str, str]]:
    """The blocks; comments, which are for the reader, are left out. A picture has none."""
    comment = re.compile(r"(^|[ \t]+)(#|//) .*$", re.MULTILINE)
    return [
        (kind, body if kind == "text" else comment.sub("", body)) for kind, body in blocks(text)
    ]


def blocks(text: str) -> list[tuple[str, str]]:
    return FENCE.findall(text)


def tables(text: str) -> list[list[tuple[int, list[str]]]]:
    """Of each table's rows, how many bars they have, and their figures."""
    found = re.findall(r"(?:^\|.*\n)+", FENCE.sub("", text), re.MULTILINE)
    return [[row_of(row) for row in table.splitlines()] for table in found]


def row_of(row: str) -> tuple[int, list[str]]:
    return len(re.findall(r"(?<!\\)\|", row)), sorted(re.findall(r"\d+(?:[.,]\d+)*", row))


def slug(heading: str) -> str:
    """The anchor that code hosts and the site make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(path: Path) -> list[tuple[str, int | None]]:
    """Where each link goes: the English page's path, and which of its headings."""
    found: set[tuple[str, int | None]] = set()
    for to, anchor in LINK.findall(prose(path)):
        if "://" in to:
            found.add((to + anchor, None))
            continue
        target = (path.parent / to).resolve() if to else path
        number = None
        if anchor:
            names = [slug(heading) for _, heading in headings(text_of(target))]
            assert anchor[1:] in names, f"{path.name} → {to}{anchor}"
            number = names.index(anchor[1:])
        found.add((str(english(target).relative_to(ROOT)), number))
    return sorted(found, key=str)


@of(ALIKE)
def test_both_languages_have_the_same_shape(path: Path) -> None:
    ours, theirs = text_of(path), text_of(chinese(path))
    assert shape(ours) == shape(theirs)
    assert code(ours) == code(theirs)
    assert tables(ours) == tables(theirs)


@of(ALIKE)
def test_both_languages_name_the_same(path: Path) -> None:
    """Options, fields, files, values: whatever stands as code; and where links go."""
    names = [set(re.findall(r"`([^`\n]+)`", prose(page))) for page in (path, chinese(path))]
    assert names[0] == names[1]
    assert links(path) == links(chinese(path))


@of(BOTH)
def test_each_page_leads_to_the_other_and_stays_in_its_language(path: Path) -> None:
    for page, other in ((path, chinese(path)), (chinese(path), path)):
        head = "\n".join(text_of(page).splitlines()[:3])
        assert SWITCH.findall(head) == [other.name], page.name
        for to, _ in LINK.findall(SWITCH.sub("", prose(page))):
            target = (page.parent / to).resolve()
            if "://" in to or target.suffix != ".md" or target == path in INTRODUCED:
                continue
            if page == path:
                assert "zh-CN" not in target.name, f"{page.name} → {to}"
            else:
                assert "zh-CN" in target.name or not chinese(target).exists(), f"{page.name} → {to}"


def test_the_comparison_can_fail() -> None:
    block = "```bash\nrun  # {}\n# {}\n```\n"
    assert code(block.format("so", "it")) == code(block.format("是", "的"))
    assert code(block) != code(block.replace("run", "ran"))
    assert code("```text\na  # b\n```\n") != code("```text\na  # c\n```\n")
    assert shape("# a\n\nb\n") == shape("# c\nd\n") != shape("# c\nd\n\n- e\n")
    assert tables("| a | b |\n|---|---|\n") != tables("| a \\| b |\n|---|---|\n")
    assert (
        tables("| 2 of 3.5 s |\n") == tables("| 3.5 秒中的 2 秒 |\n") != tables("| 2 of 3.6 s |\n")
    )
    assert slug("Files and `batches`, twice") == "files-and-batches-twice"
    assert slug("文件与批处理（两次）") == "文件与批处理两次"
