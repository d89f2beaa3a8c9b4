# make demo  – environment, index, compile, evaluate, export, one question
# make test  – environment, all tests, those with the embedded LM too
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test env

demo: .venv/installed-local
	$(BIN)/python -m retrievers build trainsets/sample/corpus --index runs/index
	$(BIN)/python optimize.py --index runs/index --max-demos 2 --limit 12 --eval-limit 10 --out runs/export
	$(BIN)/python -m programs ask "Which lot did the bad relays of INC-778832 come from?" --index runs/index --program runs/export --show-hops

test: .venv/installed-dev
	$(BIN)/python -m pytest -m "not llm and not spark"
	$(BIN)/python -m pytest -m "llm or spark" -n 0

env: .venv/installed-dev

# The markers are written last, so an interrupted install is done again.
.venv/installed-local: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --progress-bar off -e '.[local]'
	touch $@

.venv/installed-dev: pyproject.toml .venv/installed-local
	$(BIN)/python -m pip install --progress-bar off -e '.[local,dev]'
	touch $@
