# Everything runs from `.venv` in this folder. TORCH may name another build, e.g. TORCH="torch --index-url ...".
TORCH ?= torch==2.13.0
BIN := .venv/bin
# One pytest process per processor; the tests of a file stay in one process and share their fixtures.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses logical --dist loadfile --no-loadscope-reorder
TEST_ARGS ?=
MODEL_ARGS ?=
ENGINE_ARGS ?=
CLIENT_API := protos/client_api.binpb

.PHONY: setup tools arm demo recordings test test-all clients real-model lint docs dashboards stubs client-api bench bench-engine bench-gpu results acceptance train

setup: .venv/ready ## make .venv with everything for development

.venv/ready: pyproject.toml setup.py constraints.txt $(wildcard engine/forward/cpu/*.cpp engine/forward/cpu/*.h)
	python3 -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[all,dev]"
	touch $@

tools: ## Prometheus, Alertmanager and nftables for the tests, where apt and root are there; without them those tests skip
	{ command -v promtool && command -v prometheus-alertmanager && command -v nft; } >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
	  { apt-get update -qq && apt-get install -qq --no-install-recommends prometheus prometheus-alertmanager nftables; } || true

arm: .venv/arm/ready ## an emulated ARM machine for the tests, where apt and root are there

.venv/arm/ready: .venv/ready
	command -v mmdebstrap qemu-aarch64 aarch64-linux-gnu-g++ >/dev/null || \
	  { apt-get update -qq && apt-get install -qq --no-install-recommends mmdebstrap arch-test qemu-user g++-aarch64-linux-gnu; }
	$(BIN)/python -m tests.arm

demo: setup ## start everything, generate four stories with and without drafts, print both speeds, stop everything
	$(BIN)/python -m examples.demo

recordings: setup ## record the demo, tandem top and the status page as pictures for the documents
	$(BIN)/python -m examples.record

test: setup ## the tests that decide whether a change is right
	$(PYTEST) -m "not long" --ignore tests/real $(TEST_ARGS)

test-all: setup tools ## the tests of `make test`, the long ones, and the real model where it can be had
	$(MAKE) arm || echo "there is no ARM machine to emulate: its tests skip"
	$(MAKE) real-model || echo "SmolLM2 could not be had: tests/real skip"
	$(PYTEST) -rs $(TEST_ARGS)

clients: setup real-model ## the usual tasks of clients that other people wrote, at the HTTP port, each client installed apart
	TANDEM_CLIENTS=1 $(BIN)/python -m pytest -n 0 -rs tests/real/test_clients.py $(TEST_ARGS)

real-model: models/smollm2/config.json ## SmolLM2-135M-Instruct, as a directory and as a GGUF file

models/smollm2/config.json: .venv/ready
	$(BIN)/python -m tandem.models.smollm2

lint: setup ## check style, types, imports, stubs and schemas
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tandem.protos.generate --check
	$(BIN)/python deploy/grafana/generate.py --check
	$(BIN)/python deploy/prometheus/generate.py --check
	npx --yes @bufbuild/buf@1.75.0 lint
	npx --yes @bufbuild/buf@1.75.0 breaking --against $(CLIENT_API)

docs: setup ## make the documentation site in build/site; warnings and dead links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

client-api: ## renew the schema that clients depend on from the client API, when a version is released
	npx --yes @bufbuild/buf@1.75.0 build --path protos/tandem/v1/orchestrator.proto --exclude-source-info -o $(CLIENT_API)

stubs: setup ## make the gRPC stubs from the schemas
	$(BIN)/python -m tandem.protos.generate

dashboards: setup ## make the Grafana dashboards from their description, and the rules for Kubernetes from Prometheus' own
	$(BIN)/python deploy/grafana/generate.py
	$(BIN)/python deploy/prometheus/generate.py

bench: setup ## measure generate(), assisted generate(), llama.cpp and Tandem side by side
	$(BIN)/python -m tandem.benchmarks.throughput $(MODEL_ARGS)

bench-engine: setup ## measure step times of the engine, beside llama.cpp and transformers
	$(BIN)/python -m tandem.benchmarks.engine $(ENGINE_ARGS)

bench-gpu: ## measure step times on a CUDA device; without .venv, with the machine's own packages
	PYTHONPATH=src $(or $(wildcard $(BIN)/python),python3) -m tandem.benchmarks.gpu $(ENGINE_ARGS)

results: setup ## write the figures in RESULTS.md and README.md from the JSON files in benchmarks/results
	$(BIN)/python -m tandem.benchmarks.page

acceptance: setup ## measure tokens per round of the pair, with chains and trees
	$(BIN)/python -m tandem.benchmarks.acceptance $(MODEL_ARGS)

train: setup ## train the embedded pair: make train CORPORA=folder
	nice $(BIN)/python -m tandem.models.training.train $(CORPORA) --out models/embedded
