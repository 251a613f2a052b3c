"""Guards the report: it is complete, text of the corpus can't run as code, and it works in a real browser."""

import re
from html.parser import HTMLParser

import pytest

from aplc.config import Config
from aplc.evaluate.report import render_report, write_report
from evaluations import make_evaluation

NASTY = "<script>window.hacked = 1</script>"
NAMES = [
    NASTY,
    '"><img src=x onerror="window.hacked=2">',
    "a $dollar and ${braces}",
    "Ünïcode, 日本語",
    "x" * 300,
    *(f"label {i}" for i in range(60)),
]
PICTURES = {"zipf", "bands", "examples", "reliability"}


@pytest.fixture(scope="module")
def evaluation():
    texts = [f"A text with {NASTY} inside.", "word " * 400, "y" * 3000]
    return make_evaluation(NAMES, texts=texts, config=Config.from_preset("tiny").to_dict())


@pytest.fixture(scope="module")
def page(evaluation):
    return render_report(evaluation, model=f"runs/{NASTY}", corpus="corpus & sons", part="test")


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.ids = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in ("meta", "link", "br", "img", "path", "use"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        if tag not in ("path", "use"):
            assert self.open.pop() == tag


def test_page_is_complete(page, evaluation):
    for words in ("P@1", "PSP@5", "micro-F1", "macro-F1", "coverage", "ECE", "torso", "tail 1", "Found best"):
        assert words in page
    for words in (
        "Found worst",
        "Most confused",
        "doc-",
        "may be missing",
        "train.lr_clusters",
        "torch",
        "fingerprint",
    ):
        assert words in page
    assert all(f'id="{name}-' in page for name in PICTURES)
    interval = evaluation.intervals["P@1"]
    assert f"{100 * interval.low:.1f} to {100 * interval.high:.1f}" in page


def test_page_is_well_formed_and_loads_nothing(page):
    tags = Tags(page)
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))
    assert not {"script", "img", "iframe", "object", "embed", "form"} & {tag for tag, _ in tags.tags}
    for tag, attributes in tags.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "xlink:href"):
                assert value.startswith(("#", "data:")), (tag, name, value)
    assert not re.search(r"@import|url\((?!#)", page)


def test_policy_forbids_scripts_and_requests(page):
    (policy,) = [a["content"] for tag, a in Tags(page).tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script" not in policy


def test_names_and_texts_are_escaped(page):
    assert "<script" not in page
    assert "&lt;script&gt;window.hacked = 1&lt;/script&gt;" in page
    assert "<img" not in page
    assert "a $dollar and ${braces}" in page


def test_same_evaluation_gives_the_same_page(evaluation, page):
    assert render_report(evaluation, model=f"runs/{NASTY}", corpus="corpus & sons", part="test") == page


@pytest.mark.parametrize("names", [["only"], ["one", "two"]])
def test_tiny_label_sets_work(names, tmp_path):
    write_report(tmp_path / "r.html", make_evaluation(names, n=2), model="m", corpus="c", part="test")
    assert "only" in (tmp_path / "r.html").read_text() or len(names) > 1


def test_chromium_would_notice_requests_and_errors(chromium, tmp_path):
    (tmp_path / "bad.html").write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("no")</script>')
    chromium.open((tmp_path / "bad.html").as_uri(), 390, 900)
    assert len(chromium.of("Network.requestWillBeSent")) == 2
    assert chromium.of("Runtime.consoleAPICalled")


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, False), (1280, True)])
def test_page_in_chromium(chromium, evaluation, tmp_path, width, dark):
    path = tmp_path / "report.html"
    write_report(path, evaluation, model=f"runs/{NASTY}", corpus="corpus", part="test")
    chromium.open(path.as_uri(), width, 900, dark=dark)

    assert chromium.of("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []
    requests = [r["request"]["url"] for r in chromium.of("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    assert chromium.run("typeof window.hacked") == "undefined"
    assert NASTY in chromium.run("document.body.innerText")

    pictures = chromium.run(
        "[...document.querySelectorAll('figure svg')].map(s => [s.getBoundingClientRect().width,"
        " s.getBoundingClientRect().height, s.querySelectorAll('path').length, s.querySelectorAll('text').length])"
    )
    assert len(pictures) == len(PICTURES)
    for drawn_width, height, paths, texts in pictures:
        assert drawn_width > 300
        assert height > 150
        assert paths > 5
        assert texts > 5
    # The page itself never scrolls sideways, wide tables do so in their boxes, and text is large enough to read.
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert chromium.run("document.querySelectorAll('.scroll').length") >= 8
    smallest = (
        "Math.min(...[...document.querySelectorAll('figure svg text')].map(t => t.getBoundingClientRect().height))"
    )
    assert chromium.run(smallest) >= 8
    red = int(re.search(r"\d+", chromium.run("getComputedStyle(document.body).backgroundColor")).group())
    assert (red < 64) == dark
