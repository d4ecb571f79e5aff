"""EqBen: samples of two captions and two images that differ little, from videos and renderers.

Source: Wangt-CN/EqBen and the mini subset of linzhiqiu/t2v_metrics. Two layouts, both a JSON list:
- all_select.json (the mini subset, 280 samples) and the 10% subset: `{"image0", "image1", "caption0", "caption1"}`, an
  image's path beginning with its part of the benchmark (eqbensd, eqbenkubric_cnt, eqbengebc, eqbenag, eqbenyoucook2);
- ann_json_finegrained_random.json with its labels: `{"image", "caption", "private_info": {"dataset", "sample_cnt",
  "name"}}`, one record for each pairing, in random order, where the name `c0i1` is caption 0 with image 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from operators.errors import SourceError
from pipelines.judging.releases.pairings import Sample, pairings_table, prompt_ids
from pipelines.judging.releases.release import Release
from pipelines.judging.releases.tables import as_list, as_text, read_json
from pipelines.storage import Location
from pipelines.tables import as_object

PAIR = ("image0", "image1", "caption0", "caption1")
NAMES = ("c0i0", "c0i1", "c1i0", "c1i1")


def read(location: Location) -> Release:
    """The four pairings of each sample, tagged by its part of the benchmark, which is its captions' skill too.

    A sample of the first layout is named by its place in the list, from 0; of the second, `<dataset>/<sample_cnt>`.
    """
    found = as_list(read_json(location), "samples", location.url)
    records = [(f"{location.url}, row {row}", one) for row, one in enumerate(found)]
    checked = [(where, as_object(one, where)) for where, one in records]
    labelled = "private_info" in checked[0][1]
    samples = _of_labelled(checked) if labelled else [_of_pair(row, *one) for row, one in enumerate(checked)]
    skills = {prompt: [sample.tag] for sample in samples if sample.tag for prompt in prompt_ids(sample.sample_id)}
    return Release(pairings=pairings_table(samples), skills=skills)


def _of_pair(row: int, where: str, record: Mapping[str, Any]) -> Sample:
    if missing := [name for name in PAIR if not record.get(name)]:
        found = ", ".join(record) or "nothing"
        raise SourceError(f"{where}: expected {', '.join(missing)}, found {found}; is this EqBen's annotation?")
    part, slash, _ = as_text(record, "image0", where).partition("/")
    return Sample(str(row), part if slash else None, where)


def _of_labelled(records: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Sample]:
    samples: dict[str, Sample] = {}
    pairings: dict[str, dict[str, str]] = {}
    for where, record in records:
        label = as_object(record.get("private_info"), f"{where}, private_info")
        dataset = as_text(label, "dataset", where)
        sample = Sample(f"{dataset}/{as_text(label, 'sample_cnt', where)}", dataset, where)
        samples.setdefault(sample.sample_id, sample)
        _add(pairings.setdefault(sample.sample_id, {}), as_text(label, "name", where), where)
    for sample_id, sample in samples.items():
        _check_four(pairings[sample_id], sample)
    return list(samples.values())


def _add(seen: dict[str, str], name: str, where: str) -> None:
    if name not in NAMES:
        raise SourceError(
            f"{where}: expected a name of {', '.join(NAMES)}, found {name!r}; is this EqBen's annotation?"
        )
    if name in seen:
        raise SourceError(f"{where}: pairing {name} of this sample stands twice (first {seen[name]}); remove one")
    seen[name] = where


def _check_four(seen: Mapping[str, str], sample: Sample) -> None:
    if missing := [name for name in NAMES if name not in seen]:
        raise SourceError(
            f"{sample.where}: sample {sample.sample_id!r} lacks the pairing(s) {', '.join(missing)}; the file may be "
            "truncated: download it again"
        )
