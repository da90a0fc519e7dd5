#!/usr/bin/env python3
"""What docs/*.md name as a test is there: files below tests/, and functions of tests by their names."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = "unit|integration|fuzz|sim|interop|net|vm|python|clients|bench"
sources = [p for p in (ROOT / "tests").rglob("*") if p.suffix in (".c", ".py", ".sh", ".h")]
words = {p.stem for p in sources}.union(*(re.findall(r"\w+", p.read_text()) for p in sources))
missing = []
named = 0
for page in sorted((ROOT / "docs").glob("*.md")):
    for text in re.findall(r"`([^`\n]+)`", page.read_text()):
        path = re.fullmatch(rf"(?:tests/)?((?:{FOLDERS})/(?:[\w-]+/)*test_\w+\.(?:c|py|sh))", text)
        if path:
            found = (ROOT / "tests" / path.group(1)).is_file()
        elif re.fullmatch(r"test_\w+", text) or (page.name == "faults.md" and re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+){2,}", text)):
            found = text in words
        else:
            continue
        named += 1
        if not found:
            missing.append(f"{page.name}: {text}")
print(f"{named} names", *missing, sep="\n")
sys.exit(1 if missing or named < 100 else 0)
