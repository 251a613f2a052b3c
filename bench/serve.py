"""What `aplc serve` does under load. Every answer is checked against its text.

    python bench/serve.py batching MODEL CORPUS     64 clients, against calling the model one text at a time
    python bench/serve.py workers MODEL CORPUS      the same clients on one worker and on two
    python bench/serve.py replace MODEL CORPUS      the model is replaced ten times under load, once by a broken one
    python bench/serve.py kill MODEL CORPUS         20 times a worker or the whole server is killed as corrections come
    python bench/serve.py memory                    of one, two and four workers, for made-up models of 1 GB

Options: --seconds 60, --clients 64, --kills 20. Clients run on the same cores as the server, which counts against it.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from aplc import Tagger
from aplc.data.corpus import Corpus
from aplc.data.formats import read_documents
from aplc.data.labels import LabelSet
from aplc.store.folder import load_tagger, save_tagger
from load import JSON, Correcting, call, resident_memory, run_load, serving, stored, workers_of

HEADERS = {**JSON, "Authorization": "Bearer bench"}
TOKEN = {"APLC_TOKEN": "bench"}


def one_at_a_time(tagger, texts, seconds):
    """Texts a second when each is a call of its own, and CPU seconds for one."""
    n, start, cpu = 0, time.monotonic(), time.process_time()
    while time.monotonic() - start < seconds:
        tagger.predict(texts[n % len(texts)])
        n += 1
    return n / (time.monotonic() - start), (time.process_time() - cpu) / n


def cpu_seconds(pid):
    """CPU seconds of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shared_memory(pids):
    """Bytes that these processes take together: memory that several share counts once (Linux)."""
    sizes = [
        re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE) for pid in pids
    ]
    return sum(1024 * int(size.group(1)) for size in sizes)


def described(load):
    return f"answers: {load.answered:,}, wrong {len(load.wrong)}, lost {len(load.lost)}, status {dict(load.statuses)}"


def batching(options, texts):
    tagger = Tagger.from_pretrained(options.model)
    expected = tagger.predict(texts, top_k=20)
    alone, alone_cpu = one_at_a_time(tagger, texts, options.seconds / 6)
    memory = []
    with serving(options.model) as (process, port):

        def watch():
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
    print(described(load))
    print(f"server's memory: {measured[0] / 1e6:.0f} MB after a sixth, {measured[-1] / 1e6:.0f} MB at the end")
    print(f"SIGTERM under load: {described(stop)}; exit code {code}")


def workers(options, texts):
    expected = Tagger.from_pretrained(options.model).predict(texts, top_k=20)
    rates, sizes = [], []
    for n in (1, 2):
        with serving(options.model, "--workers", str(n)) as (process, port):
            run_load(port, texts, expected, clients=options.clients, seconds=2)  # warm up
            pids = workers_of(process) or [process.pid]
            before = [cpu_seconds(pid) for pid in pids]
            load = run_load(port, texts, expected, clients=options.clients, seconds=options.seconds)
            used = [cpu_seconds(pid) - start for pid, start in zip(pids, before, strict=True)]
            rates.append(load.answered / load.seconds)
            sizes.append(shared_memory(pids))
            stop = run_load(port, texts, expected, clients=options.clients, seconds=4, stop_pid=process.pid)
            code = process.wait(60)
        print(f"{n} workers: {rates[-1]:.0f} requests/s; {sizes[-1] / 1e9:.2f} GB; {described(load)}")
        print(
            f"  CPU seconds: {', '.join(f'{one:.1f}' for one in used)}, {1000 * sum(used) / load.answered:.2f} ms each"
        )
        print(f"  SIGTERM under load: {described(stop)}; exit code {code}")
    print(f"two workers against one: {rates[1] / rates[0]:.2f} times as many requests a second")
    print(f"their memory: {sizes[1] / sizes[0]:.2f} times that of one")


def put(place, model):
    """Put a model where the server looks, in one step."""
    link = place.with_name("link")
    link.symlink_to(model.resolve())
    os.replace(link, place)


def replacing(options, texts):
    expected = Tagger.from_pretrained(options.model).predict(texts, top_k=20)
    marked = [[(f"new {label}", p) for label, p in tags] for tags in expected]
    with tempfile.TemporaryDirectory() as folder:
        place, other, broken = (Path(folder) / name for name in ("served", "other", "broken"))
        tagger = load_tagger(options.model)
        names = tuple(f"new {name}" for name in tagger.labels.names)
        save_tagger(replace(tagger, labels=LabelSet(names, tagger.labels.counts)), other)
        shutil.copytree(options.model, broken)
        with (broken / "model.safetensors").open("r+b") as weights:
            weights.truncate(weights.seek(0, 2) // 2)
        put(place, options.model)
        answers = []
        with serving(place, "--workers", "2", env=TOKEN) as (_, port):

            def change():
                for i in range(11):
                    time.sleep(options.seconds / 14)
                    put(place, broken if i == 5 else options.model if i % 2 else other)
                    status, content = call(port, "POST", "/admin/reload", headers=HEADERS)
                    answers.append((status, json.loads(content).get("model_version", "refused")))

            changing = threading.Thread(target=change)
            changing.start()
            sizes = {"clients": options.clients, "seconds": options.seconds}
            load = run_load(port, texts, expected, headers=HEADERS, or_else=marked, **sizes)
            changing.join()
    print(f"{described(load)}; every answer was of one model or the other: {not load.wrong}")
    print(f"replacements: {answers}")


def killing(options, _):
    rng = random.Random(1)
    confirmed, restarts = set(), []
    with tempfile.TemporaryDirectory() as folder:
        feedback = Path(folder) / "feedback.jsonl"
        choices = ("--workers", "2", "--feedback", str(feedback), "--max-feedback", "10000000")
        left = [i % 2 == 0 for i in range(options.kills)]  # whether the whole server is killed
        rng.shuffle(left)
        while left:
            with serving(options.model, *choices) as (process, port):
                restarts.append(len(stored(feedback)) if feedback.exists() else 0)
                whole = False
                while left and not whole:
                    correcting = Correcting(port, name=f"{len(left)}-")
                    time.sleep(rng.uniform(0.3, 2))
                    whole, victims = left.pop(), workers_of(process)
                    if whole:
                        process.kill()
                    for pid in victims if whole else victims[:1]:
                        os.kill(pid, signal.SIGKILL)
                    time.sleep(0.5)
                    confirmed |= correcting.end()
        found = stored(feedback)
        torn = feedback.with_name("feedback.jsonl.torn").exists()
    print(f"{options.kills} kills, {len(restarts)} starts; lines found at each start: {restarts}")
    print(f"confirmed {len(confirmed):,}, in the file {len(found):,}, lost {len(confirmed - found)}")
    print(f"torn lines moved aside: {torn}")


def memory(_, __):
    from big_models import made_up_texts, make_network, make_words

    for what, make in (("words", make_words), ("network", make_network)):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            make(model)
            size = sum(file.stat().st_size for file in model.iterdir())
            for n in (1, 2, 4):
                with serving(model, "--workers", str(n)) as (process, port):
                    for text in made_up_texts(40):
                        call(port, "POST", "/tag", json.dumps({"text": text}))
                    pids = workers_of(process) or [process.pid]
                    together = shared_memory(pids)
                    apart = sum(resident_memory(pid) for pid in pids)
                print(
                    f"{what}, {size / 1e9:.2f} GB, {n} workers: {together / 1e9:.2f} GB (each alone: {apart / 1e9:.2f})"
                )


MODES = {"batching": batching, "workers": workers, "replace": replacing, "kill": killing, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    texts = []
    if options.mode != "memory":
        if options.corpus is None:
            parser.error("give a model folder and a corpus")
        documents = read_documents(Corpus.open(options.corpus).file("test"))
        texts = [document.text for document in islice(documents, 1000) if document.text.strip()]
    MODES[options.mode](options, texts)


if __name__ == "__main__":
    main()
