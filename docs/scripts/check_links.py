"""Check every link of the built site: pages, anchors, pictures. `--external` asks the web for the others, too.

python docs/scripts/check_links.py build/site [--external]
"""

from __future__ import annotations

import sys
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlparse

BASE = "https://site.invalid/"  # stands for the root of the site


class Page(HTMLParser):
    """Collects the links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag links to and what it is called."""
        for name, value in attrs:
            if value and name == "id":
                self.anchors.add(value)
            if value and name in ("href", "src") and not value.startswith(("data:", "javascript:", "mailto:")):
                self.links.append(value)


def main(words: list[str]) -> int:
    """Check the site; print what is broken and return the exit code."""
    root = Path(words[0])
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in root.rglob("*.html")}
    broken, external, count = [], set(), 0
    for path, page in pages.items():
        here = urljoin(BASE, path.relative_to(root).as_posix())
        for link in page.links:
            target, anchor = urldefrag(urljoin(here, link))
            if not target.startswith(BASE):
                external.add(target)
                continue
            count += 1
            file = root / unquote(urlparse(target).path.lstrip("/"))
            file = file / "index.html" if file.is_dir() else file
            if path.name == "404.html" and not file.exists():
                continue  # its links are absolute for wherever the site will be
            if not file.exists():
                broken.append(f"{path.relative_to(root)}: {link}")
            elif anchor and file in pages and unquote(anchor) not in pages[file].anchors:
                broken.append(f"{path.relative_to(root)}: {link} (no such anchor)")
    if "--external" in words:
        broken += [url for url in sorted(external) if not _answers(url)]
    print("\n".join(broken) if broken else f"{count:,} links of {len(pages)} pages lead somewhere")
    return int(bool(broken))


def _answers(url: str) -> bool:
    """Return whether an address answers."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "link check"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return bool(answer.status < 400)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
