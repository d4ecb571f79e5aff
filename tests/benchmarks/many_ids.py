"""Measures the memory and time for the ids that an ingest remembers, and prints them as JSON.

python -m tests.benchmarks.many_ids COUNT
"""

import json
import sys
import time
from pathlib import Path

from plumbline.pipelines.ingest import draft_placement

if __name__ == "__main__":
    draft_placement.MAX_CACHE_KIB = 4 * 1024
    ledger, count = draft_placement.Ledger(), int(sys.argv[1])
    began = time.perf_counter()
    for number in range(count):
        prompt = number % 50_000
        ledger.add("sdxl", f"folder/image-{number:09d}.png", f"prompt-{prompt}", f"a text of some length {prompt}")
    microseconds = (time.perf_counter() - began) / count * 1e6
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    print(json.dumps({"resident": resident, "microseconds": microseconds}))
