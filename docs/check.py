"""Checks the built site: every link and anchor within it leads somewhere, and nothing is loaded from another server.

    python docs/check.py build/site [--browser]

With --browser, all pages are opened in headless Chromium, requests are watched, and a word is searched for.
"""

import argparse
import functools
import http.server
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
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


def browse(site: Path) -> list[str]:
    """Open every page; returns what was asked of other servers, what failed, and whether search finds nothing."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import Browser

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
        chromium.open(home + "index.html?q=vocabulary", 1200, 900)
        for _ in range(100):
            if chromium.run("document.querySelectorAll('.md-search-result__item').length"):
                break
            time.sleep(0.1)
        else:
            found.append("search: finds nothing for 'vocabulary'")
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
