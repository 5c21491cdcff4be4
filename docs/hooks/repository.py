"""Adds the documents outside `docs/`, and all files that documents link to, to the documentation
site.

Documents link to each other by their paths in the repository. These links are rewritten to pages of
the site. A link to a file that does not exist is left unchanged, so that MkDocs reports it.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCUMENTS = {  # maps a path in the repository to a page of the site
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "results.md",
    "engine/README.md": "engine.md",
    "examples/README.md": "examples.md",
    "examples/node/README.md": "node.md",
    "models/README.md": "models.md",
}
BAR = r"\|"
PATHS = {page: path for path, page in DOCUMENTS.items()}
PIPED = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")  # inline code with an escaped `|`, as in table cells
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".proto": "protobuf"}


def page_of(target: str) -> str:
    """Return the site's page for a path in the repository."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return DOCUMENTS.get(target, f"source/{target}.md")


def target_of(path: str, link: str) -> str:
    """Return the path in the repository to which a link in the document `path` leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def linked(path: str) -> Iterator[str]:
    """Yield the paths of existing files to which the document `path` links."""
    text = FENCE.sub("", (ROOT / path).read_text(encoding="utf-8"))
    for _, link, _ in LINK.findall(text):
        target = target_of(path, link)
        if "://" not in link and (ROOT / target).is_file():
            yield target


def source_page(target: str) -> str:
    """Return a page that shows a source file. The page is excluded from the site's search."""
    language = LANGUAGES.get(Path(target).suffix, "text")
    text = (ROOT / target).read_text(encoding="utf-8")
    head = f"---\nsearch:\n  exclude: true\n---\n# {target}\n"
    return f"{head}\n``````{language}\n{text}\n``````\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages for documents and source files outside `docs/` to the site."""
    documents = [*DOCUMENTS, *(f"docs/{each.src_uri}" for each in files.documentation_pages())]
    for path, page in DOCUMENTS.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for target in {target for path in documents for target in linked(path)}:
        page = page_of(target)
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=source_page(target)))
    return files


def with_bars(found: re.Match[str]) -> str:
    r"""Return inline code that contains `\|` as HTML, because Python-Markdown would show the
    backslash.
    """
    return f"<code>{html.escape(found[1].replace(BAR, '|')).replace('|', '&#124;')}</code>"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite a document's links to repository files as links to pages of the site."""
    here = page.file.src_uri
    if here.startswith(("source/", "reference/grpc")):
        return markdown
    path = PATHS.get(here, f"docs/{here}")

    def rewritten(found: re.Match[str]) -> str:
        target = target_of(path, found[2])
        if "://" in found[2] or not (ROOT / target).is_file():
            return found[0]
        return found[1] + posixpath.relpath(page_of(target), posixpath.dirname(here)) + found[3]

    def shown(text: str) -> str:
        return PIPED.sub(with_bars, LINK.sub(rewritten, text))

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [shown(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, shown(markdown[end:])])
