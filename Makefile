# Every target makes .venv and installs what it needs; the second time it is quick.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

install: .venv/.core  ## install aplc into .venv

demo: .venv/.core  ## train words and a network on 24,000 PubMed citations, score them, and tag a few (about 6 minutes)
	@rm -rf demo/model
	$(BIN)/aplc data pubmed-mesh --out demo/corpus
	$(BIN)/aplc train demo/corpus --preset tiny --set model.kind=both --out demo/model
	$(BIN)/aplc evaluate demo/model demo/corpus --examples 3

test: .venv/.test  ## run the tests
	$(BIN)/python -m pytest

check: .venv/.check  ## lint, formatting, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: .venv/.test  ## measure the output layer, the encoder and pretraining against their peers
	$(BIN)/python bench/clusters.py
	$(BIN)/python bench/encoder.py
	$(BIN)/python bench/pretraining.py

bench-peers: .venv/.core  ## other libraries and us on PubMed-MeSH with abstracts: about half an hour; can be stopped and rerun
	@test -f demo/abstracts/train.jsonl || $(BIN)/aplc data pubmed-mesh --abstracts-only --out demo/abstracts
	$(BIN)/python bench/peers.py demo/abstracts --out demo/peers $(PEERS)

gpu-check: .venv/.core  ## what runs on a GPU, beside the CPU: ten minutes, and a report to send back (docs/gpu.md)
	@test -f demo/abstracts/train.jsonl || $(BIN)/aplc data pubmed-mesh --abstracts-only --out demo/abstracts
	$(BIN)/python bench/gpu_check.py demo/abstracts $(GPU_CHECK)

clean:  ## remove the environment and the demo's files
	rm -rf .venv demo

.venv/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "aplc needs Python 3.11 or later; set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing aplc into .venv"
	@$(PIP) -e .
	@touch $@

.venv/.test: .venv/.core
	@echo "installing what the tests need"
	@$(PIP) -e '.[test]'
	@touch $@

.venv/.check: .venv/.test
	@echo "installing what the checks need"
	@$(PIP) -e '.[check]'
	@touch $@

.PHONY: help install demo test check bench bench-peers gpu-check clean
.DEFAULT_GOAL := help
