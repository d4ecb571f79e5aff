"""Generation settings are read from columns, formatted, counted and compared between two sets of images.

All expected values were worked out by hand.
"""

import math

import pyarrow as pa
import pytest

from plumbline.operators.images.generation_settings import (
    MAX_COUNTED_VALUES,
    SettingCounts,
    add_settings,
    compare_settings,
    count_settings,
    describe_changed_settings,
    describe_differences,
    find_setting_columns,
    format_value,
    list_setting_columns,
    make_setting_notes,
    read_settings,
)


def test_usual_columns_are_found_by_their_names() -> None:
    columns = ["prompt_id", "guidance_scale", "num_inference_steps", "width", "height", "seed", "scheduler"]
    assert find_setting_columns(columns, list_setting_columns()) == {
        "cfg": ("guidance_scale",),
        "steps": ("num_inference_steps",),
        "size": ("width", "height"),
        "seed": ("seed",),
        "sampler": ("scheduler",),
    }
    assert find_setting_columns(["image", "width"], list_setting_columns()) == {}
    both = ["cfg_scale", "cfg", "size", "width", "height"]
    assert find_setting_columns(both, list_setting_columns()) == {"cfg": ("cfg",), "size": ("size",)}


def test_known_columns_are_renamed_to_standard_settings_and_others_keep_their_names() -> None:
    assert list_setting_columns(["guidance_scale", "lora"]) == {"cfg": (("guidance_scale",),), "lora": (("lora",),)}
    assert list_setting_columns(["height", "width"]) == {"size": (("width", "height"),)}
    assert list_setting_columns({"cfg": "my_cfg"}) == {"cfg": (("my_cfg",),)}
    assert list_setting_columns([]) == {}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("cfg", 7.5, "7.5"),
        ("cfg", "7.50", "7.5"),
        ("cfg", 4.0, "4"),
        ("cfg", "4", "4"),
        ("cfg", "1e400", "1e400"),
        ("cfg", math.nan, None),
        ("cfg", None, None),
        ("cfg", b"7.5", None),
        ("seed", 18446744073709551615, "18446744073709551615"),
        ("sampler", " DPM++  2M\n", "DPM++ 2M"),
        ("sampler", "x" * 5000, "x" * 80),
        ("lora", True, "true"),
        ("size", "1024 x 768", "1024x768"),
        ("size", [512, 512], "512x512"),
        ("size", "(640, 480)", "640x480"),
        ("size", 1024, "1024x1024"),
        ("size", 1024.0, "1024x1024"),
        ("size", 2_000_000, None),
        ("size", "large", None),
        ("size", 0, None),
        pytest.param("size", [512, "512" + " " * 1_000_000 + "px"], None, id="size of many spaces"),
    ],
)
def test_equal_values_become_the_same_text(name: str, value: object, text: str | None) -> None:
    assert format_value(name, value) == text


def test_settings_come_from_a_rows_columns_or_else_from_the_ingest() -> None:
    table = pa.table(
        {
            "guidance_scale": pa.array([4, None, None], pa.int64()),
            "width": pa.array([512, 512, None], pa.int64()),
            "height": pa.array([256, None, None], pa.int64()),
            "settings": pa.array([{"cfg": "9"}, {"cfg": "9.0"}, None], pa.struct([("cfg", pa.string())])),
        }
    )
    ways = list_setting_columns(["guidance_scale", "width", "height", "steps"])
    assert read_settings(table, ways).to_pylist() == [
        {"cfg": "4", "steps": None, "size": "512x256"},
        {"cfg": "9", "steps": None, "size": None},
        None,
    ]
    assert read_settings(table.slice(0, 0), ways).to_pylist() == [], "as for a file that has no rows within the limit"


def test_values_are_counted_and_many_values_are_only_counted_in_total() -> None:
    seeds = pa.array([str(seed) for seed in range(MAX_COUNTED_VALUES + 1)])
    cfg = pa.array(["4"] * 10 + [None] * (len(seeds) - 10), pa.string())
    counted = count_settings(pa.StructArray.from_arrays([cfg, seeds], ["cfg", "seed"]))
    assert counted == {"cfg": {"4": 10}, "seed": MAX_COUNTED_VALUES + 1}
    more = {"cfg": {"4": 1, "7.5": 2}, "steps": {"20": 3}, "seed": {"1": 3}}
    assert add_settings(counted, more) == {
        "cfg": {"4": 11, "7.5": 2},
        "seed": MAX_COUNTED_VALUES + 4,
        "steps": {"20": 3},
    }
    halves = [{"cfg": {f"{value}": 1 for value in part}} for part in (range(10), range(5, MAX_COUNTED_VALUES + 1))]
    assert add_settings(*halves) == {"cfg": 10 + MAX_COUNTED_VALUES + 1 - 5}


def describe(ours: SettingCounts, theirs: SettingCounts) -> str:
    return describe_differences(compare_settings(ours, theirs))


def test_a_setting_counts_as_different_if_it_differs_for_at_least_5_percent_of_images() -> None:
    whole = {"cfg": {"4": 100}, "seed": {"1": 100}, "steps": {"20": 100}}
    assert describe(whole, {"cfg": {"7.5": 50}, "seed": {"2": 50}, "steps": {"20": 50}}) == "cfg 4 against 7.5"
    assert describe(whole, {"cfg": {"4": 96, "7.5": 4}}) == ""
    assert describe(whole, {"cfg": {"4": 95, "7.5": 5}}) == "cfg 4 against 4 (95%) and 7.5 (5%)"
    assert describe(whole, {"cfg": 500}) == f"cfg 4 against more than {MAX_COUNTED_VALUES} values"
    assert describe({"cfg": 40}, {"cfg": 500}) == ""


def test_a_setting_that_one_side_lacks_is_not_a_difference() -> None:
    assert compare_settings({"cfg": {"4": 1}}, {"steps": {"20": 1}}) == []
    assert describe({}, {"cfg": {"4": 1}}) == ""


def test_differences_between_runs_and_mixed_settings_are_described_in_words() -> None:
    found = compare_settings({"cfg": {"4": 8}, "steps": {"20": 8}}, {"cfg": {"7.5": 8}, "steps": {"50": 8}})
    assert (
        describe_differences([difference.swap_sides() for difference in found])
        == "cfg 7.5 against 4 and steps 50 against 20"
    )
    before, after = (
        {"run_id": "R", "settings": {"ember": {"cfg": {cfg: 8}, "steps": {steps: 8}}}}
        for cfg, steps in (("7.5", "50"), ("4", "20"))
    )
    assert describe_changed_settings(before, after, "ember") == "cfg 4 here, 7.5 in R and steps 20 here, 50 in R"
    assert describe_changed_settings(before, after, "flint") == describe_changed_settings({}, after, "ember") == ""
    several = {"cfg": {"4": 1, "7.5": 1}, "steps": {"20": 2}, "seed": {"1": 1, "2": 1}}
    run = {"settings": {"ember": several}}
    assert make_setting_notes(run, ["ember", "flint"]) == [
        "The images of ember were made with several settings: cfg 4 (50%) and 7.5 (50%).",
        "No settings are known for flint.",
    ]
    assert make_setting_notes({}, ["ember"]) == []
