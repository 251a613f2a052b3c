"""Takes the pictures of the docs: the page of `aplc serve` and the report of `aplc evaluate`, light and dark.

    python docs/pictures/take.py demo/model demo/corpus

Needs Chromium. A text of the test part is tagged, its rarest right label is chosen, and the words that mattered shown.
"""

import argparse
import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1] / "tests"))
from browser import Browser  # noqa: E402

WIDTH = 900
APLC = [sys.executable, "-m", "aplc"]


def wait_for(chromium: Browser, condition: str) -> None:
    for _ in range(600):
        if chromium.run(condition):
            return
        time.sleep(0.05)
    raise SystemExit(f"take.py: still not: {condition}")


def shoot(chromium: Browser, path: Path, height: int, width: int = WIDTH) -> None:
    """The page's first `height` pixels."""
    whole = int(chromium.run("document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": width, "height": min(whole, height), "scale": 1}
    shot = chromium.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    path.write_bytes(base64.b64decode(shot["data"]))
    print(path)


def page(chromium: Browser, address: str, document: dict, rare: list[str], *, dark: bool) -> None:
    """Paste, tag, and choose a label, as a person would."""
    chromium.open(address, WIDTH, 1000, dark=dark)
    chromium.run(f"document.querySelector('#text').value = {json.dumps(document['text'])}")
    chromium.run("document.querySelector('#text').rows = 6")
    chromium.run("document.querySelector('#form').requestSubmit()")
    wait_for(chromium, "document.querySelectorAll('#labels .name').length > 0")
    chromium.run("threshold.value = 0.3; threshold.dispatchEvent(new Event('input', {bubbles: true}))")
    names = chromium.run("[...document.querySelectorAll('#labels .name')].map(e => e.textContent)")
    chosen = next((name for name in rare if name in names), names[0])
    chromium.run(f"document.querySelectorAll('#labels .name')[{names.index(chosen)}].click()")
    wait_for(chromium, "document.querySelectorAll('#words *').length > 5")
    chromium.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    shoot(chromium, FOLDER / ("page-dark.png" if dark else "page.png"), 1300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--about", default="domestic fowls", help="Words of the document to show.")
    arguments = parser.parse_args()

    lines = (arguments.corpus / "test.jsonl").read_text("utf-8").splitlines()
    document = next(json.loads(line) for line in lines if arguments.about in line)
    names = (arguments.model / "labels.txt").read_text("utf-8").splitlines()
    counts = dict(zip(names, np.load(arguments.model / "label_counts.npy").tolist(), strict=True))
    rare = sorted((name for name in document["labels"] if name in counts), key=counts.__getitem__)
    folder = Path(tempfile.mkdtemp(prefix="aplc-pictures-"))
    for name, place in {"pubmed-model": arguments.model, "pubmed-mesh": arguments.corpus}.items():
        (folder / name).symlink_to(place.resolve())  # pictures show names, not where things are here
    command = [*APLC, "serve", "pubmed-model", "--port", "0"]
    serving = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    chromium = Browser()
    try:
        assert serving.stdout
        address = next(word for line in serving.stdout for word in line.split() if word.startswith("http://"))
        for dark in (False, True):
            page(chromium, address.rstrip(",."), document, rare, dark=dark)
        command = [*APLC, "evaluate", "pubmed-model", "pubmed-mesh", "--report", "report.html"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        for dark in (False, True):
            chromium.open((folder / "report.html").as_uri(), 1100, 1000, dark=dark)
            shoot(chromium, FOLDER / ("report-dark.png" if dark else "report.png"), 1100, width=1100)
    finally:
        chromium.close()
        serving.terminate()
        serving.wait(30)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
