# Everything a developer or CI runs. Each target works as the very first command in a fresh clone, as root on Debian 12 or 13.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Most of a test of a lab is waiting, so there are more of them at once than cores. A file's tests stay together, and the
# files in order: the long ones come first.
ABREAST := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: setup native check test test-other test-newest soak demo bench test-fresh proto clean

setup: $(VENV)/.done native

$(VENV)/.done: pyproject.toml constraints.txt scripts/setup
	scripts/setup $(VENV)
	touch $@

# The small C programs: the hook client, what Slurm loads for jobs that run elsewhere, and the lab's simulated NVML.
native: $(VENV)/.done
	$(MAKE) -s -C slurm_plugin/hooks/client
	$(MAKE) -s -C slurm_plugin/spank
	$(MAKE) -s -C slurm_plugin/lab/nvml

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	scripts/proto --check
	scripts/lua --check

# Everything on this machine's Slurm, then what Slurm's version can change on the other generation's (Debian 12 or 13).
test: setup
	$(PYTEST) $(ABREAST) -m "not soak"
	scripts/test-other

test-other: setup
	scripts/test-other

# The same on Debian's newest: tells, and does not fail.
test-newest:
	scripts/test-other --report sid

soak: setup
	$(PYTEST) --hypothesis-profile=new

demo: setup
	$(BIN)/python -m slurm_plugin.lab.demo
	$(BIN)/python -m federation.lab.demo

bench: setup
	$(BIN)/python -m benchmarks

test-fresh:
	scripts/test-fresh bookworm trixie

proto: setup
	scripts/proto

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	$(MAKE) -s -C slurm_plugin/hooks/client clean
	$(MAKE) -s -C slurm_plugin/spank clean
	$(MAKE) -s -C slurm_plugin/lab/nvml clean
