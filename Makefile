# Every target makes .venv and installs what it needs; the second time it is quick.
PYTHON ?= python3
BIN := .venv/bin
# A compiler that was not there when aplc was installed: then it is installed again.
UNUSED_COMPILER := $(shell test -f src/aplc/native/_native.so || command -v gcc || command -v clang)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

install: .venv/.core  ## install aplc into .venv
	@echo "installed: $(BIN)/aplc; README.md has the first steps, make demo a whole run"

demo: .venv/.core  ## train words and a network on 24,000 PubMed citations, score them, and tag a few (3 to 6 minutes)
	@rm -rf demo/model
	$(BIN)/aplc data pubmed-mesh --out demo/corpus
	$(BIN)/aplc train demo/corpus --preset tiny --set model.kind=both --out demo/model
	$(BIN)/aplc evaluate demo/model demo/corpus --examples 3

native:  ## compile src/aplc/native in place, as make install does; needs cmake
	cmake -S src/aplc/native -B build/native
	cmake --build build/native

test: .venv/.core  ## run the tests
	@test -n "$$APLC_NATIVE" || $(BIN)/python -c 'import sys; from aplc.native import why_not; sys.exit(why_not() and f"make test: compiled code is not used: {why_not()}; with APLC_NATIVE=0 what takes its place is tested alone")'
	@$(MAKE) --no-print-directory .venv/.test
	$(BIN)/python -m pytest

check: .venv/.check  ## lint, formatting, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: .venv/.docs  ## build the docs as a site, build/site/index.html; no broken link, no request to other servers
	$(BIN)/python docs/settings.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site
	$(BIN)/python docs/check.py build/site --browser

pictures: .venv/.test  ## take the pictures of the docs again, of demo/model; needs Chromium
	$(BIN)/python docs/pictures/take.py demo/model demo/corpus

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

sanitize: .venv/.test  ## twelve thousand random and hostile inputs under AddressSanitizer and UndefinedBehaviorSanitizer; needs gcc
	cmake -S src/aplc/native -B build/sanitize -DSANITIZE=ON -DCMAKE_C_COMPILER=gcc
	cmake --build build/sanitize
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	    $(BIN)/python tests/native/hostile.py --cases 12000 --library build/sanitize/_native.so

wheel: .venv/.release  ## build dist/: the sdist, and from it a wheel for this platform that auditwheel has checked
	rm -rf dist build/wheel
	$(BIN)/python -m build --outdir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl
	cp build/wheel/*.tar.gz dist/

release-check: wheel  ## install sdist and wheel into empty environments outside the clone, and use them; about five minutes
	$(BIN)/python .ci/release_check.py dist

clean:  ## remove the environment and the demo's files
	rm -rf .venv demo build dist src/aplc/native/_native.so

.venv/.core: pyproject.toml constraints.txt $(wildcard src/aplc/native/*.[ch] src/aplc/native/CMakeLists.txt) $(if $(UNUSED_COMPILER),again)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "aplc needs Python 3.11 or later; set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing aplc into .venv"
	@$(PIP) -e .
	@touch $@

again:

.venv/.test: .venv/.core
	@echo "installing what the tests need"
	@$(PIP) -e '.[test]'
	@touch $@

.venv/.docs: .venv/.core
	@echo "installing what the docs need"
	@$(PIP) -e '.[docs]'
	@touch $@

.venv/.release: .venv/.core
	@echo "installing what releases need"
	@$(PIP) -e '.[release]'
	@touch $@

.venv/.check: .venv/.test
	@echo "installing what the checks need"
	@$(PIP) -e '.[check]'
	@touch $@

.PHONY: again help install demo native test check docs pictures bench bench-peers gpu-check sanitize wheel release-check clean
.DEFAULT_GOAL := help
