# Everything that these targets need beyond Python 3.11-3.13 and make is installed by them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TOOLS  := build/tools
# The folder of the data sets, if one is named; else the usual place, if a set is there; else the demo draws its data.
DATA   := $(or $(MEDFEDVQA_DATA),$(patsubst %/,%,$(firstword $(dir $(wildcard ../shared/data/slake ../shared/data/vqa-rad)))))

# An environment of another Python is made anew: what it holds would not be found.
WANTED := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null)
FOUND  := $(shell sed -n 's/^version = \([0-9]*\.[0-9]*\).*/\1/p' $(VENV)/pyvenv.cfg 2> /dev/null)
KNOWN  := 3.11 3.12 3.13
ifneq ($(FOUND),$(or $(filter $(KNOWN),$(WANTED)),$(filter $(KNOWN),$(FOUND))))
.PHONY: $(VENV)/ready
endif

# Federations start processes by the hundred: each would compile all sources anew where the shell says to keep no bytecode.
export PYTHONDONTWRITEBYTECODE :=

# The tests come in three tiers; tests/README.md says what each holds.
# A file's tests stay in one process, which makes their fixtures once; federations, which take longest, do not come last.
# They write thousands of small files to the disk and wait for it: memory is faster, on a machine that has enough of it.
TMP    := $(shell df --output=avail -BG /dev/shm 2> /dev/null | awk 'NR == 2 && $$1 + 0 >= 11 { print "/dev/shm" }')
PYTEST := $(if $(TMP),TMPDIR=$(TMP)) $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all test-release mutants prose tiers test-flare lint wheel-test verify-wheel-test docs generated sbom hashes release-check clean

demo: $(VENV)/ready
	$(BIN)/medfedvqa demo $(if $(DATA),--data-root "$(DATA)")

# Every claim once: ten minutes on two cores. While two processes wait for federations, a third one works.
test: $(VENV)/ready
	$(MAKE) --jobs=2 lint wheel-test
	$(PYTEST) -n 3 -m "not slow and not release"

# The whole matrix: also the slow tests, and the property tests with all their examples.
test-all: test
	$(PYTEST) -n 3 -m "(slow or hypothesis or sampled) and not release" --hypothesis-profile=full

# Before a release, after `make test-all`: repetitions, kills and long runs, the verifier as a stranger installs it, and
# whether tests notice small changes of the code.
test-release: $(VENV)/ready verify-wheel-test
	MEDFEDVQA_ALL_PATIENTS=1 $(PYTEST) -n 2 -m release --hypothesis-profile=full
	$(MAKE) mutants

# Draws 200 small changes of audits, privacy and vault, and asks for each whether a test notices: half an hour.
mutants: $(VENV)/ready
	$(BIN)/python tests/mutants.py --count 200

# Lists turns of phrase that read as translated, with what to write instead; a test holds the list empty.
prose: $(VENV)/ready
	@$(BIN)/python tests/test_prose.py

# Counts by tier, and the claims that `make test` leaves to the other tiers.
tiers: $(VENV)/ready
	@$(BIN)/python tests/list_tiers.py

# The tests of all that reaches into FLARE, with another version of it: `make test-flare VERSION=2.9.1rc5`. That version
# goes into an environment of its own, which takes everything else from the usual one. No tier holds it.
FLARE_ENV   := build/flare-$(VERSION)
FLARE_TESTS := $(addprefix tests/federation/test_,patches.py hardening.py server_guard.py job_schema.py flare_streams.py \
	flare_egress.py flare_hostile.py flare_hostile_jobs.py flare_server_guard.py)

test-flare: $(VENV)/ready
	@test -n "$(VERSION)" || { echo "say which version of NVIDIA FLARE: make test-flare VERSION=2.9.1rc5"; exit 1; }
	$(BIN)/python -m venv $(FLARE_ENV)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> $$($(FLARE_ENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/usual.pth
	$(FLARE_ENV)/bin/python -m pip install --quiet --disable-pip-version-check nvflare==$(VERSION)
	$(FLARE_ENV)/bin/python -c "import nvflare; assert nvflare.__version__ == '$(VERSION)', nvflare.__version__"
	PYTHONPATH=$(CURDIR) OMP_NUM_THREADS=1 $(FLARE_ENV)/bin/python -m pytest $(FLARE_TESTS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

wheel-test: $(VENV)/ready
	$(BIN)/python tests/wheel.py

# Part of `test-release` only: it installs the verifier's dependencies from the package index.
verify-wheel-test: $(VENV)/ready
	$(BIN)/python tests/verify_wheel.py

docs: $(VENV)/ready
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --doctree-dir build/doctrees docs site

# What follows from the registered methods: pages, lists, the privacy matrix, job folders.
generated: $(VENV)/ready
	$(BIN)/python docs/generated.py
	$(BIN)/python docs/quoted_figures.py

# Bills of materials (CycloneDX): of the development environment, and of what a verifier installs. Their generator reads
# the version in a copy of pyproject.toml, since it follows no `dynamic` version.
sbom: $(VENV)/ready $(TOOLS)/ready
	mkdir -p build dist
	sed "s/^dynamic = .*/version = \"$$(sed -n 's/^VERSION = "\(.*\)"/\1/p' medfedvqa/version.py)\"/" pyproject.toml \
	    > build/pyproject.toml
	$(TOOLS)/bin/cyclonedx-py environment --pyproject build/pyproject.toml --output-file dist/medfedvqa.cdx.json $(BIN)/python
	$(TOOLS)/bin/cyclonedx-py requirements --pyproject build/pyproject.toml --output-file dist/medfedvqa-verify.cdx.json \
	    requirements-verify.lock

# Whether a release can be tagged: version, changelog, citation, clean tree, distributions, bills of materials.
release-check: $(VENV)/ready
	$(BIN)/python .ci/release.py source
	$(MAKE) sbom
	$(BIN)/python .ci/release.py files --out dist

# The locked requirements with the hashes of their files; the whole list is long and is not committed.
hashes: $(TOOLS)/ready
	printf '%s\n' '# What a verifier installs, with the hashes of every file on the package index, for Python 3.11 to 3.13 on any system.' \
	    '# Renew: make hashes' > requirements-verify.lock
	$(TOOLS)/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-annotate \
	    --no-header --quiet >> requirements-verify.lock
	mkdir -p dist
	$(TOOLS)/bin/uv pip compile requirements.lock --no-deps --python-version 3.11.5 --generate-hashes --no-annotate \
	    --quiet --output-file dist/requirements.hashed.lock > /dev/null

$(TOOLS)/ready:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet --disable-pip-version-check uv==0.13.9 cyclonedx-bom==7.5.0
	touch $@

$(VENV)/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2> /dev/null || { \
	    echo "Error: $(PYTHON) is not Python 3.11, 3.12 or 3.13: name one that is, as in: make PYTHON=python3.11"; exit 1; }
	@echo "Installing into $(VENV) with Python $(WANTED): about 3.2 GB are downloaded (2.5 GB of them CUDA, which PyPI's"
	@echo "torch needs on Linux also where there is no GPU), 7 GB of disk; 5 to 10 minutes, once. After its line 'Installing"
	@echo "collected packages' pip unpacks all of it for some minutes without another line."
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --disable-pip-version-check --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -c "import torch, torchvision, open_clip"
	touch $@

clean:
	rm -rf $(VENV) dist build site
