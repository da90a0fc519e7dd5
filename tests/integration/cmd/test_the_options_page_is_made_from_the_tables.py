#!/usr/bin/env python3
"""docs/options.md is what the programs' option tables say (`make docs` writes it)."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import bin_dir, check, main, run  # noqa: E402

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs/options.md"


def page_is_current(closing, scratch):
    now = run([bin_dir() / "mooncake", "options-markdown"]).stdout.decode()
    check("--eviction_high_watermark_ratio" in now and "mooncake replay" in now, "the tables are not complete")
    check(now == PAGE.read_text(), "docs/options.md is old: run `make docs`")


main(page_is_current)
