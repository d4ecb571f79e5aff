"""Which of many prompts are kept, so that rare skills and lengths are not rare (Gecko, appendix B.2)."""

import hashlib
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence


def drawn(
    ids: Sequence[str],
    skills: Sequence[Sequence[str]],
    lengths: Sequence[int],
    count: int,
    edges: Sequence[int],
    seed: int,
) -> list[int]:
    """`count` of the prompts that have skills, in their order; of fewer, all.

    A prompt's weight is 1 / n for the rarest of its skills, which n prompts have, and 1 / m for the m prompts whose
    length falls between the same `edges`. The paper gives under-represented skills higher weights and does not say
    which. Prompts are drawn by these weights without replacement (Efraimidis and Spirakis 2006); what is drawn follows
    from the ids and the seed, whatever the order of the prompts.
    """
    known = [place for place, own in enumerate(skills) if own]
    of_skill = Counter(skill for place in known for skill in set(skills[place]))
    bins = [bisect_left(edges, length) for length in lengths]
    of_bin = Counter(bins[place] for place in known)
    weights = {place: 1 / min(of_skill[skill] for skill in skills[place]) / of_bin[bins[place]] for place in known}
    first = sorted(known, key=lambda place: (-math.log(_uniform(ids[place], seed)) / weights[place], ids[place]))
    return sorted(first[:count])


def _uniform(prompt_id: str, seed: int) -> float:
    """A number in (0, 1] that is the prompt's own."""
    hashed = hashlib.sha256(f"{seed}\0{prompt_id}".encode("utf-8", "replace")).digest()
    return (int.from_bytes(hashed[:7], "big") + 1) / 2**56


def evenness(counts: Sequence[int]) -> float:
    """How even counts are: their entropy as a share of the largest of so many (Pielou 1966); nan of one or none."""
    total = sum(counts)
    if len(counts) < 2 or not total:
        return math.nan
    return -sum(count / total * math.log(count / total) for count in counts if count) / math.log(len(counts))
