"""What `mkdocs build` adds to the pages in docs: generated reference pages, and pages from the repository's root.

* reference/cli.md and reference/settings.md are made from the command line's own dataclasses and the methods' own
  settings, so they cannot be out of date.
* CONTRIBUTING.md, CHANGELOG.md, CODE_OF_CONDUCT.md, RELEASING.md, SECURITY.md and results/ become pages of the site.
  Links are written for people who read the files in the repository; here they are turned into links between pages.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]

MOUNTED = ("CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "RELEASING.md", "SECURITY.md")
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)]*)?(\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and those from the repository's root."""
    sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src")]  # mkdocs forgets what is added while hooks load
    import reference_pages

    files.append(File.generated(config, "reference/cli.md", content=reference_pages.cli_page()))
    files.append(File.generated(config, "reference/settings.md", content=reference_pages.settings_page()))
    results = [path for path in sorted((ROOT / "results").rglob("*")) if path.is_file() and "quick" not in str(path)]
    for path in [*(ROOT / name for name in MOUNTED), *results]:
        if path.exists():
            relative = path.relative_to(ROOT).as_posix()
            files.append(File(relative, str(ROOT), config["site_dir"], config["use_directory_urls"]))
    for page in files.documentation_pages():
        if page.src_uri.startswith(("gallery/", "results/")) or page.src_uri in MOUNTED:
            page.inclusion = type(page.inclusion).NOT_IN_NAV  # reached from pages that are
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return a page with links between files of the repository turned into links between pages."""
    here = page.file.src_uri
    in_docs = not (here in MOUNTED or here.startswith("results/"))
    folder = posixpath.dirname(f"docs/{here}" if in_docs else here)

    def turned(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match.groups()
        if re.match(r"[a-z]+:", target):
            return match.group(0)
        at = posixpath.normpath(posixpath.join(folder, target.rstrip("/")))
        if (ROOT / at).is_dir():
            index = "README.md" if (ROOT / at / "README.md").exists() else "index.md"
            at = f"{at}/{index}"
        uri = at.removeprefix("docs/")
        return f"{opening}{posixpath.relpath(uri, posixpath.dirname(here) or '.')}{anchor or ''}{closing}"

    return LINK.sub(turned, markdown)
