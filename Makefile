# The two commands to start with are `make run` and `make check`; both install what is missing, build and go.

PRESETS ?= release
TRACE   ?= data/traces/conversation_trace.jsonl.gz
REPORT  ?= build/replay.html
RUN     ?= --nodes 3 --concurrency 8

.PHONY: help run check build wheel setup docs format clean

help:
	@echo "make run      build, then replay the FAST'25 conversation trace on a cluster of this machine"
	@echo "make check    build and run all tests (release, address and undefined behaviour, threads)"
	@echo "make build    build the release in build/release"
	@echo "make wheel    build the Python wheel in build/dist"
	@echo "make docs     make docs/options.md from the option tables"
	@echo "make format   clang-format every source file"
	@echo "make clean    remove build/"

setup:
	@tools/setup

build: setup
	@tools/build $(PRESETS)

wheel: setup
	python3 python/build_backend.py build/dist

run: build
	@echo
	build/release/bin/mooncake replay $(TRACE) $(RUN) --html $(REPORT) --json build/replay.json

check: setup
	@tools/setup vm || echo "setup: the tests in a guest will be skipped"
	@tools/check

docs: build
	build/release/bin/mooncake options-markdown > docs/options.md

format:
	clang-format-14 -i $$(git ls-files '*.c' '*.h')

clean:
	rm -rf build
