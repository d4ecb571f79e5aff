"""Confidence level of intervals and significance level of tests, used in all reports."""

from statistics import NormalDist

CONFIDENCE = 0.95
"""Probability that an interval contains the true value."""
CONFIDENCE_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
"""Half-width of such an interval, in standard deviations of a normal distribution (1.96)."""
SIGNIFICANCE = 0.05
"""Probability of a false positive: a test is significant if its corrected p-value is below this level."""
GECKO_SIGNIFICANCE = 0.001
"""Level at which the Gecko paper considers two models different (section 4.2)."""
