"""Documents use the field's words: a reader of another first language finds each in a dictionary,
or in the papers and manuals of this field.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents import GUIDE, ROOT, blocks, prose

DIALECT = {
    r"told|tells|said": "reported, sent, set",
    r"stands|stood|likely to stand": "accepted",
    r"in (any )?company|(any|its|their) company|in a crowd|crowds?": "batch-invariant",
    r"hearts?": "core",
    r"beginnings?": "prefix",
    r"rooms?": "KV range; sub-package",
    r"mirrors?": "copy",
    r"punctual\w*": "in time",
    r"barred": "suppressed",
    r"leash|zombies?": "parent; a lost worker",
    r"whoever": "who, the caller",
    r"behind (a|the) (token|node|text)|behind \d+ tokens": "after",
    r"goes on behind|on behind it": "continues after",
    r"pupil|teacher": "draft model, target",
}
PAGES = [*GUIDE, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
SCHEMAS = sorted((ROOT / "protos" / "tandem" / "v1").glob("*.proto"))


def words(path: Path) -> str:
    """What people read of a file: no code of a page, only comments of a schema, no module names."""
    if path.suffix == ".proto":
        return "\n".join(re.findall(r"//(.*)", path.read_text(encoding="utf-8")))
    text = prose(path)
    if path.name == "ARCHITECTURE.md":
        text = re.sub(r"^\| `.*\|$", "", text, flags=re.MULTILINE)  # its tables of modules
    pictures = [block.text for block in blocks(path) if block.kind in ("text", "mermaid")]
    return "\n".join([re.sub(r"`[^`]+`", "", text), *pictures])


@pytest.mark.parametrize("path", [*PAGES, *SCHEMAS], ids=lambda path: path.name)
def test_documents_use_the_words_of_the_field(path: Path) -> None:
    found = {
        word[0]: instead
        for pattern, instead in DIALECT.items()
        for word in re.finditer(rf"\b({pattern})\b", words(path), re.IGNORECASE)
    }
    assert found == {}, "word: what to write instead"
