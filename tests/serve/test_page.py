"""Guards the page in a real browser: paste, tag, slide, click, copy; and no text or label can run as code."""

import json
import threading
import time
from dataclasses import replace

import pytest

from aplc.data.labels import LabelSet
from aplc.serve.app import Service, make_app
from aplc.serve.server import Server, listen
from aplc.store.folder import load_tagger

NASTY = "<img src=x onerror=window.hacked=1>"
TEXT = f"violin sonata {NASTY} 😀 orchestra concert opera"


@pytest.fixture(scope="module")
def address(trained):
    """A server in a thread; one of its model's labels is HTML."""
    tagger = load_tagger(trained)
    names = tuple(NASTY if name == "music, classical" else name for name in tagger.labels.names)
    renamed = replace(tagger, labels=LabelSet(names, tagger.labels.counts), calibration=None)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = Server(make_app(Service(renamed, "topics")))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


def wait_for(chromium, condition):
    for _ in range(300):
        if chromium.run(condition):
            return
        time.sleep(0.02)
    raise AssertionError(f"still not: {condition}")


def press(chromium, key, **event):
    for kind in ("keyDown", "keyUp"):
        chromium.call("Input.dispatchKeyEvent", type=kind, key=key, **event)


def labels(chromium):
    return chromium.run("[...document.querySelectorAll('#labels .name')].map(e => e.textContent)")


def quiet(chromium, address):
    """Nothing in the console, no injected code, no request to another server."""
    assert chromium.of("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []
    assert chromium.run("typeof window.hacked") == "undefined"
    requests = [event["request"]["url"] for event in chromium.of("Network.requestWillBeSent")]
    assert all(url.startswith((f"{address}/", "data:")) for url in requests), requests


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_paste_tag_slide_click_copy(chromium, address, width, dark):
    chromium.open(f"{address}/", width, 900, dark=dark)
    wait_for(chromium, "document.title.includes('topics')")
    chromium.run("document.getElementById('text').focus()")
    chromium.call("Input.insertText", text=TEXT)  # as a paste does
    press(chromium, "Enter", code="Enter", windowsVirtualKeyCode=13, modifiers=2)  # Ctrl
    wait_for(chromium, "!document.getElementById('results').hidden")
    few = labels(chromium)
    assert few[0] == NASTY
    bar = "document.querySelector('#labels .bar i').getBoundingClientRect().width"
    whole = "document.querySelector('#labels .bar').getBoundingClientRect().width"
    shown = float(chromium.run("document.querySelector('#labels .p').textContent").split()[0])
    assert 100 * chromium.run(bar) / chromium.run(whole) == pytest.approx(shown, abs=2)
    assert chromium.run("document.querySelector('#labels .cluster').textContent") in ("head", "tail 1")

    chromium.run("document.getElementById('threshold').focus()")
    press(chromium, "Home", code="Home", windowsVirtualKeyCode=36)
    assert len(labels(chromium)) == 6
    press(chromium, "End", code="End", windowsVirtualKeyCode=35)
    assert labels(chromium) == []
    press(chromium, "Home", code="Home", windowsVirtualKeyCode=36)
    assert labels(chromium)[: len(few)] == few

    chromium.run("document.querySelector('#labels button').click()")
    wait_for(chromium, "!document.getElementById('explanation').hidden")
    assert chromium.run("document.getElementById('words').textContent") == TEXT
    assert NASTY in chromium.run("document.getElementById('explained').textContent")
    assert chromium.run("document.querySelector('#labels button').getAttribute('aria-pressed')") == "true"
    strongest = (
        "[...document.querySelectorAll('#words .for')]"
        ".sort((a, b) => parseFloat(b.title) - parseFloat(a.title)).map(e => e.textContent)"
    )
    assert chromium.run(strongest)[0] in TEXT.split()

    chromium.run(
        "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); };"
        "document.getElementById('copy').click()"
    )
    wait_for(chromium, "document.getElementById('status').textContent === 'Copied.'")
    copied = json.loads(chromium.run("window.copied"))
    assert copied["text"] == TEXT
    assert [tag["label"] for tag in copied["tags"]] == labels(chromium)
    assert chromium.run("document.documentElement.scrollWidth") <= width
    quiet(chromium, address)


def test_empty_text_and_refusals_show_a_message(chromium, address):
    chromium.open(f"{address}/", 1280, 900)
    chromium.run("document.getElementById('tag').click()")
    assert "Paste a text" in chromium.run("document.getElementById('status').textContent")
    assert chromium.run("document.activeElement.id") == "text"
    chromium.run("document.getElementById('text').value = 'a\\u0000b'; document.getElementById('tag').click()")
    wait_for(chromium, "document.getElementById('status').textContent.includes('null character')")
    assert chromium.run("document.getElementById('results').hidden")


def test_every_control_is_reached_by_keyboard(chromium, address):
    chromium.open(f"{address}/", 1280, 900)
    chromium.run("document.getElementById('text').value = 'violin'; document.getElementById('tag').click()")
    wait_for(chromium, "document.querySelectorAll('#labels button').length > 0")
    chromium.run("document.getElementById('text').focus()")
    assert chromium.run("document.getElementById('corrections').hidden")  # this server takes none
    reached = []
    for _ in range(4):
        press(chromium, "Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(chromium.run("document.activeElement.id || document.activeElement.parentElement.tagName"))
    assert reached == ["tag", "copy", "threshold", "LI"]
    press(chromium, "Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    wait_for(chromium, "document.getElementById('explanation').hidden === false")


def test_api_page_shows_every_path(chromium, address):
    chromium.open(f"{address}/docs", 390, 900)
    wait_for(chromium, "document.querySelectorAll('section').length > 0")
    shown = chromium.run("document.body.innerText")
    assert all(path in shown for path in ("/tag", "/explain", "/labels", "/health", "/metrics", "top_k", "429"))
    assert chromium.run("document.documentElement.scrollWidth") <= 390
    quiet(chromium, address)
