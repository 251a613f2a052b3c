"""Tag a large corpus with Ray Data: a few actors, each with the model loaded once, taking partition after partition.

    python examples/ray_batch.py demo/model demo/corpus/test.jsonl tags --actors 2 --top-k 5

reads JSON Lines with a "text" (or Parquet), and writes the same rows with "labels" and "probabilities" as Parquet files
to the folder `tags`. On a cluster, start Ray there and nothing changes here.

Run for real on 2026-11-16 with Ray 2.60.0 and aplc 0.1.0 on PubMed-MeSH's test part: see examples/README.md for what
was typed and what came out.
"""

import argparse
import os

import numpy as np
import ray


class Tag:
    """One actor: `Tagger.predict` on a partition's batch."""

    def __init__(self, model: str, top_k: int, threshold: float) -> None:
        from aplc import Tagger

        self.tagger, self.top_k, self.threshold = Tagger.from_pretrained(model), top_k, threshold

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray | list]:
        tags = self.tagger.predict(batch["text"].tolist(), self.top_k, threshold=self.threshold)
        return {
            **batch,
            "labels": [[label for label, _ in best] for best in tags],
            "probabilities": [[p for _, p in best] for best in tags],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("input")
    parser.add_argument("out")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--top-k", type=int, default=5)
    parser.add_argument("--threshold", type=float, default=0.0)
    options = parser.parse_args()

    # An actor per core, one thread each: threads of several models on the same cores would only wait for each other.
    ray.init(runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}}, logging_level="WARNING")
    read = ray.data.read_parquet if options.input.endswith(".parquet") else ray.data.read_json
    rows = read(options.input, **({} if read is ray.data.read_parquet else {"lines": True}))
    rows = rows.repartition(4 * options.actors).map_batches(
        Tag,
        fn_constructor_args=(os.path.abspath(options.model), options.top_k, options.threshold),
        batch_size=512,
        compute=ray.data.ActorPoolStrategy(size=options.actors),
        num_cpus=0.5,  # on a machine with as many cores as actors, reading and writing need a place, too
    )
    rows.write_parquet(options.out)
    done = ray.data.read_parquet(options.out)
    print(f"tagged {done.count():,} documents: {options.out}")
    print(done.take(1)[0])


if __name__ == "__main__":
    main()
