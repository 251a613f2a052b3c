"""Checks the built site: every link and anchor within it leads somewhere, and nothing is loaded from another server.

    python docs/check.py build/site [--browser]

With --browser, all pages are opened in headless Chromium, requests are watched, and a word is searched for: its page
must be found, and nothing for a word that no page has. Where there is no Chromium, that is said.
"""

import argparse
import functools
import http.server
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
if TYPE_CHECKING:
    from browser import Browser
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
"""Tags that make a browser fetch something, and where they name it."""


class Page(HTMLParser):
    """What a page points at, what it loads, and what can be pointed at in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and LOADS[tag] in given and given.get("rel") != "canonical":
            self.loads.append(given[LOADS[tag]])


def problems(site: Path) -> list[str]:
    """One line for each link that leads nowhere, and for each thing that is loaded from elsewhere."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links start at the root of wherever the site will be
            continue
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    found.append(f"{path}: loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{path}: {link} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{path}: {link} has no such heading")
    return found


def search(chromium: "Browser", address: str) -> list[str]:
    """The pages that the site's own search shows, once it has answered."""
    chromium.open(address, 1200, 900)
    for _ in range(600):
        if "matching" in str(chromium.run("document.querySelector('.md-search-result__meta').textContent")):
            break
        time.sleep(0.1)
    return list(chromium.run("[...document.querySelectorAll('.md-search-result__link')].map(a => a.pathname)"))


def browse(site: Path) -> list[str]:
    """Open every page; returns what was asked of other servers, what failed, and whether search finds nothing."""
    from browser import Browser, find

    if not find():
        print("no Chromium: pages were not opened, search was not tried")
        return []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    chromium, found = Browser(), []
    try:
        for path in sorted(site.rglob("*.html")):
            chromium.open(home + str(path.relative_to(site)), 1200, 900)
            chromium.run("1")
            urls = [event["request"]["url"] for event in chromium.of("Network.requestWillBeSent")]
            found += [f"{path}: asks for {url}" for url in urls if not url.startswith((home, "data:", "blob:"))]
            found += [f"{path}: {entry['entry']['text']}" for entry in chromium.of("Log.entryAdded")]
        for word, wanted in {"vocabulary": "vocabulary.html", "xyzzyx": None}.items():
            pages = search(chromium, f"{home}index.html?q={word}")
            if not any(wanted in page for page in pages) if wanted else pages:
                found.append(f"search: {word!r} finds {pages or 'nothing'}")
    finally:
        chromium.close()
        server.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--browser", action="store_true")
    arguments = parser.parse_args()
    site = arguments.site.resolve()
    found = problems(site) + (browse(site) if arguments.browser else [])
    print("\n".join(found) or f"{site / 'index.html'}: every link leads somewhere, nothing is loaded from elsewhere")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
