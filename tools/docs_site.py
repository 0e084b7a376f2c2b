"""Builds the site of the documentation, with warnings as errors: `python tools/docs_site.py site`.

The pages of docs/ are written to a folder first, with the generated parts in them, and the builder of sites
sees that folder only: it needs no plugin of ours, and another can take its place. The site stands alone: a
link to a file outside of docs/ leads to a page that shows the file.
"""

from __future__ import annotations

import html
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from docs_reference import PARTS

REPOSITORY = Path(__file__).parents[1]
_LINK = re.compile(r"(?<=\]\()(?P<target>(?!\w+:)[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
_GENERATED = re.compile(r"^<!-- generated: (.+) -->$", re.MULTILINE)
_NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$", re.MULTILINE)
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}


def build(site: Path) -> int:
    """Build the site into a folder; the exit status is the builder's."""
    with tempfile.TemporaryDirectory(prefix="tamis-docs-") as folder:
        source = Path(folder)
        shutil.copy(REPOSITORY / "mkdocs.yml", source)
        write_pages(source / "docs")
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        status = subprocess.run(command, cwd=source).returncode
        if status == 0:
            shutil.rmtree(site, ignore_errors=True)
            shutil.copytree(source / "site", site)
        return status


def write_pages(folder: Path) -> None:
    """docs/ with the generated parts, and the files of the repository that it leads to, and these lead to."""
    shutil.copytree(REPOSITORY / "docs", folder, ignore=shutil.ignore_patterns("*.md"))
    waiting = [path.relative_to(REPOSITORY) for path in sorted((REPOSITORY / "docs").rglob("*.md"))]
    known = set(waiting)
    while waiting:
        path = waiting.pop()
        text = content(path)
        for match in _LINK.finditer(text):
            leads = target(path, match["target"])
            if leads is not None and leads not in known and not leads.is_relative_to("docs"):
                known.add(leads)
                waiting.append(leads)
        page = folder / page_of(path)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_LINK.sub(partial(_relative, path), text), encoding="utf-8")


def content(path: Path) -> str:
    """A file of the repository as Markdown: a page with its generated parts, a folder as links to its files,
    other text as code."""
    found = REPOSITORY / path
    if found.is_dir():
        entries = sorted(each.name for each in found.iterdir() if each.is_file() and each.name[0] not in "._")
        return f"# {path}\n\n" + "".join(f"- [{name}]({path.name}/{name})\n" for name in entries)
    text = found.read_text(encoding="utf-8")
    if path.suffix != ".md":
        return f"# {path}\n\n````{_LANGUAGES.get(path.suffix, 'text')}\n{text}````\n"
    text = _GENERATED.sub(lambda match: PARTS[match[1]](), text)
    return _NOT_RUN.sub(lambda match: _said(match[1]), text)


def _said(why: str) -> str:
    """What the tests do not run, where a reader sees it."""
    return f'<p class="not-run">Not run by the tests: {html.escape(why)}.</p>\n'


def target(path: Path, link: str) -> Path | None:
    """The file of the repository that a link in another leads to, if there is one.

    >>> target(Path("docs/models.md"), "../src/tamis/core/plan.py")
    PosixPath('src/tamis/core/plan.py')
    """
    leads = Path(posixpath.normpath(path.parent / link))
    return leads if (REPOSITORY / leads).exists() and leads.parts[0] != ".." else None


def page_of(path: Path) -> str:
    """Where a file is in the site's folder.

    >>> page_of(Path("docs/faq.md")), page_of(Path("src/tamis/core/plan.py"))
    ('faq.md', 'files/src/tamis/core/plan.py.md')
    """
    if path.is_relative_to("docs"):
        return path.relative_to("docs").as_posix()
    return f"files/{path.with_suffix('').as_posix() if path.suffix == '.md' else path.as_posix()}.md"


def _relative(path: Path, match: re.Match[str]) -> str:
    leads = target(path, match["target"])
    if leads is None:
        return match[0]  # the builder will say so
    start = posixpath.dirname(page_of(path)) or "."
    return posixpath.relpath(page_of(leads), start) + (match["anchor"] or "")


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1] if len(sys.argv) > 1 else "site")))
