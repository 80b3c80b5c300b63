# make demo, make test: each makes .venv and installs what it needs, if that is not there yet.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml CMakeLists.txt $(shell find src -name '*.py' -o -name '*.pyi' -o -name '*.cpp' -o -name '*.hpp')

.PHONY: demo test lint sanitize bench clean

demo: .venv/installed .venv/group-demo
	$(BIN)/python -m sketchmix.demo

test: .venv/installed .venv/group-test
	$(BIN)/python -m pytest

lint: .venv/installed .venv/group-test .venv/group-lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror src/*.cpp src/core/*.?pp tests/*.cpp

# The core's own tests, built with ASan and UBSan.
sanitize: .venv/group-lint
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DSKETCHMIX_SANITIZE=ON -DSKETCHMIX_WERROR=ON
	$(BIN)/cmake --build build/sanitize
	build/sanitize/core_tests

bench: .venv/installed .venv/group-bench
	for script in benchmarks/[a-z]*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv build

.venv/pip:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	touch $@

.venv/installed: .venv/pip $(SOURCES)
	$(BIN)/python -m pip install --quiet .
	touch $@

.venv/group-%: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --group $*
	touch $@
