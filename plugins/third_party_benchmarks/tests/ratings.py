"""Ratings that a simulated judge returns for the plugin's metrics."""

from plumbline.operators.metrics.wording import prompt_template
from plumbline.plugins.third_party_benchmarks.judges.qwen_image_bench import FACETS, read_dimensions

MARKS = {f"{one.key}: {facet}": 1 for one in read_dimensions(prompt_template(FACETS)) for facet in one.facets}
RATED = {"score": 1, "Style": 1, "Attribute - Color": 0, "alignment": 7, "aesthetics": 4, **MARKS}
