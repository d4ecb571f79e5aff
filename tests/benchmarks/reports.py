"""Writes the reports of several stores one after another, and prints the peak memory after each in MB, as JSON.

python -m tests.benchmarks.reports STORE...
"""

import json
import sys

from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.store.store import Store
from tests.benchmarks.scripted_sweep import read_peak_megabytes

if __name__ == "__main__":
    peaks = [read_peak_megabytes() for url in sys.argv[1:] if write_report(Store(StorageConfig().locate(url)))]
    print(json.dumps(peaks))
