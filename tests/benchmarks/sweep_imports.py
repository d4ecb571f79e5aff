"""Imports the modules that a sweep on Ray imports.

python -m tests.benchmarks.sweep_imports
"""

import plumbline.jobs.sweep
import plumbline.pipelines.running.runner  # noqa: F401
