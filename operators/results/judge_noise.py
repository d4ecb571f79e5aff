"""The noise of a judge, estimated from several answers about the same image."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa


def measure_noise_by_generator(metric: str, scores: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield a row (schema JUDGE_NOISE) for each generator in a metric's scores (columns generator, score and asks).

    The column `asks` contains the scores of the judge's repeated answers about the same image. The noise is estimated
    by a one-way analysis of variance. `deviation` is the standard deviation of answers about the same image. `share` is
    the fraction of the observed variance of the scores that is noise: 1 - ICC(1, k), where ICC(1, k) is the
    reliability of a mean of k answers (Shrout and Fleiss 1979, Intraclass correlations).
    """
    scored = scores.filter(scores.column("asks").is_valid()).to_pandas()
    for generator, of_generator in scored.groupby("generator", sort=False):
        asks = np.stack(of_generator["asks"].to_list()).astype(np.float64)
        read = np.isfinite(asks)
        counts, means = read.sum(axis=1), np.nanmean(asks, axis=1)
        freedom = int((counts - 1).sum())
        squares = float(np.nansum((asks - means[:, None]) ** 2))
        within = squares / freedom if freedom else np.nan
        seen = float(of_generator["score"].var())
        share = min(within * float((1 / counts).mean()) / seen, 1.0) if seen > 0 else np.nan
        yield {
            "metric": metric,
            "generator": str(generator),
            "repeats": asks.shape[1],
            "images": len(asks),
            "unread": int((~read).sum()),
            "deviation": float(np.sqrt(within)) if freedom else None,
            "share": share if np.isfinite(share) else None,
        }
