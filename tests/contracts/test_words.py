"""Documents and code use the field's words: a reader of another first language finds each in a
dictionary, or in the papers and manuals of this field.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
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
CODE_DIALECT = DIALECT | {
    r"told|tells|retold|say|says|said|saying": "reported, sent, set; what it is",
    r"hear|hears|heard|saw": "received, observed",
    r"standing|stands|stood": "accepted",
    r"doubts?": "probability",
    r"elsewhere|whoever|anew": "where it is, the caller, again",
    r"alike|twins?": "the same",
    r"apart": "difference, separate",
    r"ladders?|waking|patience": "sizes, wake-up, wait",
    r"mirror(s|ed)?": "copy",
    r"desert(s|ed)?": "cancel",
    r"offers?": "step input",
}
FOLDERS = ("client", "protos", "engine", "drafter_service", "verifier_service", "orchestrator")
ALLOWED: dict[str, set[str]] = {}  # file: words that are right there
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


def code_words(path: Path) -> str:
    """Comments, texts and names of a source file, a name as the words that it is made of."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return split_names(source)
    kinds = (tokenize.NAME, tokenize.COMMENT, tokenize.STRING)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(split_names(token.string) for token in tokens if token.type in kinds)


def split_names(text: str) -> str:
    """`FooBar` and `foo_bar` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text)


def sources() -> list[Path]:
    """The source files of the folders that are checked."""
    found = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.*")))
    files = [path for path in found if path.suffix in (".py", ".cpp", ".h")]
    return [path for path in files if "_pb2" not in path.name]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_code_uses_the_words_of_the_field(path: Path) -> None:
    found = {
        word[0]: instead
        for pattern, instead in CODE_DIALECT.items()
        for word in re.finditer(rf"\b({pattern})\b", code_words(path), re.IGNORECASE)
    }
    allowed = ALLOWED.get(str(path.relative_to(ROOT)), set())
    assert {word: found[word] for word in found if word.lower() not in allowed} == {}


def test_no_two_modules_have_a_class_of_the_same_name() -> None:
    """A name means one thing wherever it is read."""
    modules = defaultdict[str, list[str]](list)
    for path in sources():
        for node in (
            ast.parse(path.read_text(encoding="utf-8")).body if path.suffix == ".py" else ()
        ):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}
