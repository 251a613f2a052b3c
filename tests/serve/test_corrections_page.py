"""Guards correcting on the page in a real browser: by keyboard alone, by mouse, at phone width, in both schemes."""

import json
import threading
from dataclasses import replace

import pytest
from test_page import press, quiet, wait_for
from test_server import Running

from aplc.data.vocabulary import Vocabulary
from aplc.serve.app import Service, make_app
from aplc.serve.feedback import FeedbackFile
from aplc.serve.review import ReviewQueue
from aplc.serve.server import Server, listen
from aplc.store.folder import load_tagger
from helpers import write_rows

SCRIPT = "<script>window.hacked=1</script>"
QUEUE = [{"id": "1", "text": "cat dog"}, {"text": f"violin {SCRIPT}"}, {"id": "3", "text": "rain"}]
KEYS = {"ArrowDown": 40, "ArrowUp": 38, "Escape": 27, "Tab": 9, "/": 191, "a": 65, "r": 82, "s": 83}


class Served(Running):
    """A server in a thread, whose labels have names that hold HTML."""

    def __init__(self, tagger, folder, *, review=False, token=None):
        self.feedback = folder / "feedback.jsonl"
        queue = ReviewQueue(write_rows(folder / "queue.jsonl", QUEUE), self.feedback) if review else None
        names = {"animals": {"name": SCRIPT, "names": ["Tiere"]}, "food": {"name": "Fare"}, "rare": {"name": "Scarce"}}
        self.listener = listen("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        service = Service(
            replace(tagger, vocabulary=Vocabulary.of(names)),
            "topics",
            feedback=FeedbackFile(self.feedback),
            review=queue,
        )
        self.server = Server(make_app(service, token=token))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})

    def entries(self):
        return [json.loads(line) for line in self.feedback.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def tagger(trained):
    return load_tagger(trained)


def key(chromium, name):
    text = {"text": name} if len(name) == 1 else {}
    press(chromium, name, code=name, windowsVirtualKeyCode=KEYS[name], **text)


def enter(chromium, *, control=False):
    press(
        chromium,
        "Enter",
        code="Enter",
        windowsVirtualKeyCode=13,
        **({"modifiers": 2} if control else {"text": "\r"}),
    )


def shown(chromium):
    return chromium.run("[...document.querySelectorAll('#labels li')].map(e => e.dataset.label)")


def tab_to(chromium, element):
    """Press Tab until the element with this id has the focus."""
    for _ in range(12):
        key(chromium, "Tab")
        if chromium.run("document.activeElement.id") == element:
            return
    raise AssertionError(f"Tab does not reach {element}")


@pytest.mark.parametrize(("width", "dark"), [(390, True), (390, False), (1280, False)])
def test_by_keyboard_alone(chromium, tagger, tmp_path, width, dark):
    with Served(tagger, tmp_path) as served:
        chromium.open(f"{served.address}/", width, 900, dark=dark)
        wait_for(chromium, "!document.getElementById('corrections').hidden")
        tab_to(chromium, "text")
        chromium.call("Input.insertText", text="cat dog rain snow")
        enter(chromium, control=True)
        wait_for(chromium, "document.querySelectorAll('#labels li').length > 1")
        first, second = shown(chromium)[:2]
        assert {first, second} == {"animals", "météo"}
        assert SCRIPT in chromium.run("[...document.querySelectorAll('#labels .name')].map(e => e.textContent)")
        for _ in range(4):  # button, copy, slider, first label
            key(chromium, "Tab")
        key(chromium, "a")
        key(chromium, "ArrowDown")
        key(chromium, "r")
        pressed = "[...document.querySelectorAll('[aria-pressed=true]')].map(e => e.getAttribute('aria-label'))"
        assert [words.split()[0] for words in chromium.run(pressed)] == ["Accept", "Reject"]
        key(chromium, "/")
        assert chromium.run("document.activeElement.id") == "add"
        chromium.call("Input.insertText", text="scar")
        wait_for(chromium, "document.querySelectorAll('#found .option').length === 1")
        key(chromium, "ArrowDown")
        assert chromium.run("document.getElementById('add').getAttribute('aria-activedescendant')") == "found-0"
        enter(chromium)
        assert chromium.run("document.getElementById('add').value") == ""
        enter(chromium, control=True)
        wait_for(chromium, "document.getElementById('status').textContent === 'Stored.'")
        (entry,) = served.entries()
        judged = entry["accepted"] + entry["added"]
        assert (entry["text"], entry["rejected"], first in judged, "rare" in judged) == (
            "cat dog rain snow",
            [second],
            True,
            True,
        )
        assert chromium.run("document.documentElement.scrollWidth") <= width
        quiet(chromium, served.address)


def test_by_mouse_with_names_that_hold_scripts(chromium, tagger, tmp_path):
    with Served(tagger, tmp_path) as served:
        chromium.open(f"{served.address}/", 1280, 900)
        wait_for(chromium, "!document.getElementById('corrections').hidden")
        chromium.run("document.getElementById('text').value = 'violin'; document.getElementById('tag').click()")
        wait_for(chromium, "document.querySelectorAll('#labels li').length > 0")
        chromium.run("document.getElementById('send').click()")
        wait_for(chromium, "document.getElementById('status').textContent.includes('first')")
        chromium.run("document.querySelector('#labels .rejected').click()")
        chromium.run("document.getElementById('add').focus()")
        chromium.call("Input.insertText", text="tier")
        wait_for(chromium, "document.querySelectorAll('#found .option').length === 1")
        assert chromium.run("document.querySelector('#found .option').textContent") == f"{SCRIPT} · Tiere"
        chromium.run("document.querySelector('#found .option').dispatchEvent(new MouseEvent('mousedown'))")
        chromium.run("document.getElementById('reviewer').value = 'Zoë'; document.getElementById('send').click()")
        wait_for(chromium, "document.getElementById('status').textContent === 'Stored.'")
        (entry,) = served.entries()
        assert entry["rejected"] == ["music, classical"]
        assert entry["accepted"] + entry["added"] == ["animals"]
        assert entry["reviewer"] == "Zoë"
        quiet(chromium, served.address)


def test_queue_is_worked_through_and_continued(chromium, tagger, tmp_path):
    progress = "document.getElementById('progress-text').textContent === '{} of 3 reviewed'"
    with Served(tagger, tmp_path, review=True) as served:
        chromium.open(f"{served.address}/", 390, 900, dark=True)
        wait_for(chromium, "document.getElementById('text').value === 'cat dog'")
        wait_for(chromium, "document.activeElement.className === 'label'")
        key(chromium, "a")
        enter(chromium, control=True)
        wait_for(chromium, progress.format(1))
        wait_for(chromium, f"document.getElementById('text').value === {json.dumps(QUEUE[1]['text'])}")
        wait_for(chromium, "document.activeElement.className === 'label'")
        key(chromium, "s")
        wait_for(chromium, "document.getElementById('text').value === 'rain'")
        assert chromium.run("document.documentElement.scrollWidth") <= 390
        quiet(chromium, served.address)
    with Served(tagger, tmp_path, review=True, token="secret") as served:  # the next day
        chromium.open(f"{served.address}/", 1280, 900)
        wait_for(chromium, "!document.getElementById('token-field').hidden")
        chromium.run("document.getElementById('token').value = 'secret'; document.getElementById('tag').click()")
        for done, text in ((1, QUEUE[1]["text"]), (2, "rain")):
            wait_for(chromium, progress.format(done))
            wait_for(chromium, f"document.getElementById('text').value === {json.dumps(text)}")
            wait_for(chromium, f"!document.getElementById('send').disabled && tagged?.text === {json.dumps(text)}")
            chromium.run("document.getElementById('accept-all').click(); document.getElementById('send').click()")
        wait_for(chromium, "document.getElementById('status').textContent === 'All documents are reviewed.'")
        assert [entry.get("id") for entry in served.entries()] == ["1", None, "3"]
        assert served.entries()[0]["accepted"] == ["animals"]
