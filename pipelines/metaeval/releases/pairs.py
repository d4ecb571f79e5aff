"""Reads pairs: people's choices between two images, and pairings of two captions with two similar images."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import require_object
from plumbline.pipelines.metaeval.releases.release import (
    PairingSample,
    Release,
    make_pairing_release,
    record_unique_key,
    released,
)
from plumbline.pipelines.metaeval.releases.sheets import (
    find_first_file,
    is_folder,
    list_files,
    name_row,
    read_json,
    read_list,
    read_sheet,
    require_text,
)

WINOGROUND_COLUMNS = ("id", "caption_0", "caption_1")
WINOGROUND_TAG_COLUMNS = ("collapsed_tag", "tag", "secondary_tag")
PREDICATES_COLUMN = "num_main_preds"
HARD_TAG_FILES = ("why_winoground_hard.json", "new_tag_assignments.json")
NO_TAG = "No Tag"  # tag that the released code gives to samples that are hard for none of these reasons


def read_winoground(place: Place) -> Release:
    """Read Winoground: 400 samples of two captions that contain the same words, with an image for each.

    A sample has four pairings; its tags are also the skills of its captions.

    Source: facebook/winoground, examples.jsonl (`image_0` is a file name) or the dataset's Parquet (`image_0` is the
    image): id, image_0, image_1, caption_0, caption_1, tag, secondary_tag, num_main_preds, collapsed_tag; t2v_metrics'
    metadata.csv with the same columns is read too. Only the ids and tags are read; the caption columns distinguish the
    file from other tables that have an id. Results are broken down by `collapsed_tag` (Object, Relation or Both), the
    finer tags and the number of main predicates.

    If why_winoground_hard.json (t2v_metrics) or new_tag_assignments.json (ajd12342/why-winoground-hard, the original
    release) is in the same folder, its tags are added: `{id: [tag, ...]}`, such as Unusual Image; samples with an empty
    list are tagged No Tag (Diwan et al. 2022, Why is Winoground Hard?).
    """
    sheet = read_sheet(place, ("id", *WINOGROUND_TAG_COLUMNS, PREDICATES_COLUMN)).require(
        WINOGROUND_COLUMNS, "check that this is facebook/winoground's file"
    )
    ids, notes = sheet.ids("id"), []
    reasons: dict[str, list[str]] = {}
    if file := find_first_file(place.parent, HARD_TAG_FILES):
        assigned = read_json(file)
        if not isinstance(assigned, dict):
            raise SourceError(
                f"{file.url}: expected an object that maps samples to their tags, found {type(assigned).__name__}"
            )
        for row, (sample_id, tags) in enumerate(assigned.items()):
            if not isinstance(tags, list) or not all(isinstance(tag, str) and tag for tag in tags):
                where = name_row(file.url, row, sample_id)
                raise SourceError(f"{where}: expected a list of non-empty strings, found {tags!r}; correct the tags")
            reasons[sample_id] = tags or [NO_TAG]
        if unknown := len(reasons.keys() - set(ids)):
            notes.append(f"{unknown} samples of {file.name} are not in {place.name}")
        if reasons and (untagged := len(set(ids) - reasons.keys())):
            notes.append(f"{untagged} samples of {place.name} are not in {file.name}")
    predicates = [f"{number} Main Pred" if number else None for number in sheet.texts(PREDICATES_COLUMN)]
    samples = []
    for row, (sample_id, *names) in enumerate(
        zip(ids, *map(sheet.texts, WINOGROUND_TAG_COLUMNS), predicates, strict=True)
    ):
        tags = dict.fromkeys(filter(None, (*names, *reasons.get(sample_id, ()))))
        samples.append(PairingSample(sample_id, list(tags), sheet.where(row)))
    return replace(make_pairing_release(samples), notes=notes)


EQBEN_PAIR_FIELDS = ("image0", "image1", "caption0", "caption1")
EQBEN_PAIRINGS = ("c0i0", "c0i1", "c1i0", "c1i1")
NamedRecords = Sequence[tuple[str, Mapping[str, Any]]]  # records, each with its file and row


def read_eqben(place: Place) -> Release:
    """Read EqBen: samples of two similar captions with two similar images, from videos and renderers.

    A sample has four pairings. Its tag, and the skill of its captions, is the subset of the benchmark to which it
    belongs. Samples in the first format are named by their index in the list, from 0; samples in the second, by
    `<dataset>/<sample_cnt>`.

    Source: Wangt-CN/EqBen and the mini subset of linzhiqiu/t2v_metrics. Two formats, both a JSON list:
    - all_select.json (the mini subset, 280 samples) and the 10% subset: `{"image0", "image1", "caption0", "caption1"}`,
      and an image's path begins with its subset of the benchmark (eqbensd, eqbenkubric_cnt, eqbengebc, eqbenag,
      eqbenyoucook2);
    - ann_json_finegrained_random.json, which has labels: `{"image", "caption", "private_info": {"dataset",
      "sample_cnt", "name"}}`, one record per pairing, in random order; the name `c0i1` means caption 0 with image 1.
    """
    records = read_list(place, "samples")
    return make_pairing_release(
        _read_labelled_samples(records) if "private_info" in records[0][1] else _read_plain_samples(records)
    )


def _read_plain_samples(records: NamedRecords) -> list[PairingSample]:
    samples = []
    for row, (where, record) in enumerate(records):
        if missing := [name for name in EQBEN_PAIR_FIELDS if not record.get(name)]:
            fields = ", ".join(record) or "nothing"
            raise SourceError(
                f"{where}: expected the fields {', '.join(missing)}, found {fields}; "
                "check that this is EqBen's annotation"
            )
        part, slash, _ = require_text(record, "image0", where).partition("/")
        samples.append(PairingSample(str(row), [part] if slash else [], where))
    return samples


def _read_labelled_samples(records: NamedRecords) -> list[PairingSample]:
    samples: dict[str, PairingSample] = {}
    rows_by_pairing: dict[tuple[str, str], str] = {}
    for where, record in records:
        label = require_object(record.get("private_info"), f"{where}, private_info")
        dataset, name = require_text(label, "dataset", where), require_text(label, "name", where)
        sample = PairingSample(f"{dataset}/{require_text(label, 'sample_cnt', where)}", [dataset], where)
        if name not in EQBEN_PAIRINGS:
            raise SourceError(
                f"{where}: expected one of the names {', '.join(EQBEN_PAIRINGS)}, found {name!r}; "
                "check that this is EqBen's annotation"
            )
        record_unique_key(
            rows_by_pairing, (sample.sample_id, name), where, f"pairing {name} of this sample occurs twice"
        )
        samples.setdefault(sample.sample_id, sample)
    for sample_id, sample in samples.items():
        if missing := [name for name in EQBEN_PAIRINGS if (sample_id, name) not in rows_by_pairing]:
            raise SourceError(
                f"{sample.where}: sample {sample_id!r} lacks the pairing(s) {', '.join(missing)}; the file may be "
                "truncated: download it again"
            )
    return list(samples.values())


PICK_A_PIC_COLUMNS = ("caption", "image_0_uid", "image_1_uid", "label_0", "label_1")
PICK_A_PIC_JSON_FIELDS = (
    "caption",
    "image_0",
    "image_1",
    "label_0",
    "label_1",
)  # fields of test_captions.json
OPTIONAL_COLUMNS = ("has_label", "model_0", "model_1", "user_id", "ranking_id")
CHECK_PICK_A_PIC_REMEDY = (
    "check that this is a file of yuvalkirstain/pickapic_v1 or _v2, or t2v_metrics' test_captions.json"
)
CHOICES_BY_LABELS = {(1.0, 0.0): "a", (0.0, 1.0): "b", (0.5, 0.5): "unsure"}
CHOICE_KEY_COLUMNS = ("image_a", "image_b", "rater", "ranking_id")  # without a ranking_id, a rater may choose again


def read_pick_a_pic(place: Place) -> Release:
    """Read Pick-a-Pic: people's choices between two images generated from a prompt that they wrote themselves.

    `place` is a Parquet file, or a folder whose Parquet files are all read. Image 0 is `a`, and a tie is `unsure`.

    Source: yuvalkirstain/pickapic_v1 and pickapic_v2, data/test_unique-*.parquet (500 choices) or test-*.parquet, and
    their `_no_images` copies: caption, image_0_uid, image_1_uid, label_0 and label_1 (1 and 0, 0 and 1, or .5 each for
    a tie), has_label, model_0, model_1, user_id, ranking_id and others. The columns jpg_0 and jpg_1 are not read. A
    caption's id is its text. If `has_label` is false, the rater did not choose, and `preferred` is null.

    The copy of the 500 choices in linzhiqiu/t2v_metrics, test_captions.json, can be read too: a JSON list of `{"id",
    "caption", "image_0", "image_1", "label_0", "label_1"}`, where `image_0` is a file name, and `id` is the index in
    the list, from 0.
    """
    files = list_files(place, ".parquet") if is_folder(place) else [place]
    if not files:
        raise SourceError(f"{place.url}: expected Parquet files in this folder, found none; check the path")
    choices = [choice for file in files for choice in _read_choices(file)]
    counts = {
        f"of {len(choices)} pairs have no label": sum(choice["preferred"] is None for choice in choices),
        "choices repeat an earlier ranking, images and rater: all are kept": (
            len(choices) - len({tuple(choice[name] for name in CHOICE_KEY_COLUMNS) for choice in choices})
        ),
    }
    return released(preferences=choices, notes=[f"{count} {what}" for what, count in counts.items() if count])


def _read_choices(file: Place) -> Iterator[dict[str, Any]]:
    is_json = file.path.lower().endswith(".json")
    names = PICK_A_PIC_JSON_FIELDS if is_json else PICK_A_PIC_COLUMNS
    needed = [*names, "id"] if is_json else names
    sheet = read_sheet(file, [*needed, *OPTIONAL_COLUMNS]).require(needed, CHECK_PICK_A_PIC_REMEDY)
    for row, number in enumerate(sheet.texts("id") if is_json else ()):
        if number != str(row):
            raise SourceError(f"{sheet.where(row)}: expected the id {row}, found {number!r}; use the complete file")
    caption, first, second, *label_names = names
    labels = zip(*(sheet.numbers(name).to_pylist() for name in label_names), strict=True)
    preferred: list[str | None] = []
    for row, (has_label, label) in enumerate(zip(sheet.texts("has_label"), labels, strict=True)):
        if (has_label or "").lower() in ("false", "0"):
            preferred.append(None)
        elif label in CHOICES_BY_LABELS:
            preferred.append(CHOICES_BY_LABELS[label])
        else:
            raise SourceError(
                f"{sheet.where(row)}: expected label_0 and label_1 to be 1 and 0, 0 and 1, or .5 and .5, found "
                f"{label[0]} and {label[1]}; correct them, or set has_label to false"
            )
    columns = {
        "prompt_id": sheet.ids(caption),
        "image_a": sheet.ids(first),
        "image_b": sheet.ids(second),
        "generator_a": sheet.texts("model_0"),
        "generator_b": sheet.texts("model_1"),
        "rater": sheet.texts("user_id"),
        "preferred": preferred,
        "ranking_id": sheet.texts("ranking_id"),
    }
    yield from (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
