"""Tag a large corpus with Spark: the model is opened once for each partition, and takes batch after batch.

    python examples/spark_batch.py demo/model demo/corpus/test.jsonl tags --workers 2 --top-k 5

reads JSON Lines with a "text" (or Parquet), and writes the same rows with "labels" and "probabilities" as Parquet files
to the folder `tags`. On a cluster, submit it with `spark-submit`; `--workers` is then left to the cluster, and the
model folder must be where every worker finds it.

Run for real on 2026-11-18 with PySpark 4.3.0 and Java 17: see examples/README.md for what was typed and what came out.
"""

import argparse
import os
import sys
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DoubleType, StringType, StructField, StructType


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("input")
    parser.add_argument("out")
    parser.add_argument("--workers", type=int, help="on this machine; leave it out under spark-submit")
    parser.add_argument("--top-k", type=int, default=5)
    parser.add_argument("--threshold", type=float, default=0.0)
    options = parser.parse_args()
    model, top_k, threshold = os.path.abspath(options.model), options.top_k, options.threshold

    # One thread for each worker: threads of several models on the same cores would only wait for each other.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("aplc")
    spark = (builder.master(f"local[{options.workers}]") if options.workers else builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.read.parquet(options.input) if options.input.endswith(".parquet") else spark.read.json(options.input)
    rows = rows.drop("labels").repartition(4 * spark.sparkContext.defaultParallelism)

    def tag(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        from aplc import Tagger

        tagger = Tagger.from_pretrained(model)
        for batch in batches:
            tags = tagger.predict(batch["text"].tolist(), top_k, threshold=threshold)
            yield batch.assign(
                labels=[[label for label, _ in best] for best in tags],
                probabilities=[[p for _, p in best] for best in tags],
            )

    added = [StructField("labels", ArrayType(StringType())), StructField("probabilities", ArrayType(DoubleType()))]
    rows.mapInPandas(tag, StructType([*rows.schema.fields, *added])).write.mode("overwrite").parquet(options.out)
    done = spark.read.parquet(options.out)
    print(f"tagged {done.count():,} documents: {options.out}")
    print(done.select("id", "labels", "probabilities").first().asDict())
    spark.stop()


if __name__ == "__main__":
    main()
