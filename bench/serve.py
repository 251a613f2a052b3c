"""What micro-batching is worth: 64 clients of `aplc serve` for a minute, beside calling the model one text at a time.

    python bench/serve.py demo/model demo/corpus [--seconds 60] [--clients 64]

Every answer is checked against its text. Prints requests a second of both, latencies, the server's memory after the
first sixth and at the end, and what became of requests when the server was told to stop under the same load. Clients
run on the same cores as the server, which counts against it. Seconds of computing are printed besides: they say the
same on a machine that others use, too.
"""

import argparse
import os
import statistics
import sys
import threading
import time
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from aplc import Tagger
from aplc.data.corpus import Corpus
from aplc.data.formats import read_documents
from load import run_load, serving


def one_at_a_time(tagger: Tagger, texts: list[str], seconds: float) -> tuple[float, float]:
    """Texts a second when each is a call of its own, and seconds of computing for one."""
    n, start, computing = 0, time.monotonic(), time.process_time()
    while time.monotonic() - start < seconds:
        tagger.predict(texts[n % len(texts)])
        n += 1
    return n / (time.monotonic() - start), (time.process_time() - computing) / n


def computing_time(pid: int) -> float:
    """Seconds of computing of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Memory of a process now (Linux); 0 if it has just ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64)
    options = parser.parse_args()

    corpus = Corpus.open(options.corpus)
    texts = [document.text for document in islice(read_documents(corpus.file("test")), 1000) if document.text.strip()]
    tagger = Tagger.from_pretrained(options.model)
    expected = tagger.predict(texts, top_k=20)
    alone, alone_computing = one_at_a_time(tagger, texts, options.seconds / 6)

    memory: list[int] = []
    with serving(options.model) as (process, port):

        def watch() -> None:
            while process.poll() is None:
                memory.append(resident_bytes(process.pid))
                time.sleep(options.seconds / 60)

        threading.Thread(target=watch, daemon=True).start()
        before = computing_time(process.pid)
        load = run_load(port, texts, expected, clients=options.clients, seconds=options.seconds)
        computing = (computing_time(process.pid) - before) / load.answered
        measured = memory[len(memory) // 6 :]
        stop = run_load(port, texts, expected, clients=options.clients, seconds=4, stop_pid=process.pid)
        code = process.wait(30)

    rate = load.answered / load.seconds
    cuts = statistics.quantiles(load.latencies, n=100)
    print(f"one text at a time: {alone:.0f} texts/s")
    print(
        f"{options.clients} clients for {load.seconds:.0f} s: {rate:.0f} requests/s, {rate / alone:.2f} times as many"
    )
    print(
        f"computing: {1000 * alone_computing:.1f} ms a text alone, {1000 * computing:.1f} ms a request of the server, "
        f"HTTP included: {alone_computing / computing:.2f} times as many"
    )
    print(f"latency: median {1000 * cuts[49]:.0f} ms, 95 % {1000 * cuts[94]:.0f} ms, 99 % {1000 * cuts[98]:.0f} ms")
    print(
        f"answers: {load.answered:,}, wrong {len(load.wrong)}, lost {len(load.lost)}, by status {dict(load.statuses)}"
    )
    print(f"server's memory: {measured[0] / 1e6:.0f} MB after a sixth, {measured[-1] / 1e6:.0f} MB at the end")
    print(
        f"SIGTERM under load: {stop.answered:,} answered, wrong {len(stop.wrong)}, "
        f"lost {len(stop.lost)}; exit code {code}"
    )


if __name__ == "__main__":
    main()
