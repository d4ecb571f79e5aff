"""Notes: a tracker that only counts."""


def publish(run):
    return f"{len(run.numbers)} numbers of {run.run_id}"
