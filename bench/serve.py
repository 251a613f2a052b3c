"""What micro-batching gains: 64 clients of `aplc serve` for a minute, against calling the model one text at a time.

    python bench/serve.py demo/model demo/corpus [--seconds 60] [--clients 64]

Every answer is checked against its text. Prints requests a second of both, latencies, the server's memory after the
first sixth and at the end, and how many requests were lost when the server was stopped under the same load. Clients
run on the same cores as the server, which counts against it. CPU time is printed, too: it hardly changes when other
programs use the machine.
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
from load import resident_memory, run_load, serving


def one_at_a_time(tagger: Tagger, texts: list[str], seconds: float) -> tuple[float, float]:
    """Texts a second when each is a call of its own, and CPU seconds for one."""
    n, start, cpu = 0, time.monotonic(), time.process_time()
    while time.monotonic() - start < seconds:
        tagger.predict(texts[n % len(texts)])
        n += 1
    return n / (time.monotonic() - start), (time.process_time() - cpu) / n


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    alone, alone_cpu = one_at_a_time(tagger, texts, options.seconds / 6)

    memory: list[int] = []
    with serving(options.model) as (process, port):

        def watch() -> None:
            while process.poll() is None:
                memory.append(resident_memory(process.pid) or 0)
                time.sleep(options.seconds / 60)

        threading.Thread(target=watch, daemon=True).start()
        before = cpu_seconds(process.pid)
        load = run_load(port, texts, expected, clients=options.clients, seconds=options.seconds)
        cpu = (cpu_seconds(process.pid) - before) / load.answered
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
        f"CPU time: {1000 * alone_cpu:.1f} ms a text alone, {1000 * cpu:.1f} ms a request of the server, "
        f"HTTP included: {alone_cpu / cpu:.2f} times as many"
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
