"""Invalid training configurations are rejected with a one-line message."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.plugins.training.jobs.train import main
from plumbline.plugins.training.training_config import FinetuneConfig, StageConfig
from tests.commands import load_job_config


def test_the_kind_of_training_is_chosen_by_name() -> None:
    with pytest.raises(ConfigError, match="'training' is required; choose one: training=captions, training=finetune"):
        load_job_config("train")
    stage = load_job_config("train", "training=captions", "data=data", "output=out")
    assert isinstance(stage, StageConfig) and stage.trained == ("mm_projector",) and stage.pace.rate == 1e-2
    assert isinstance(load_job_config("train", "training=finetune", "output=out"), FinetuneConfig)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("training=captions", "output=out"), "config key 'data' is required"),
        (("training=finetune", "output=out", "epochs=3"), "unknown config key 'epochs'; did you mean pace.epochs"),
        (("training=finetune", "output=out", "pace.batch=many"), "config key 'pace.batch': .* got 'many'"),
        (("training=finetune", "output=out", "pace.batch=3"), "pace.batch: expected a multiple of the 2 workers"),
        (("training=finetune", "output=out", "pace.rate=0"), "pace.rate: expected more than 0, got 0"),
        (("training=finetune", "output=out", "held_out=1"), "held_out: expected a probability between 0 and 1, got 1"),
        (("training=finetune", "output=out", "blend=0"), "blend: expected a fraction above 0 and at most 1, got 0"),
        (("training=finetune", "output=out", "protocol.tasks=[graphs]"), "it has no ratings of single images"),
        (("training=finetune", "output=out", "trained=[]"), "trained: expected mm_projector, language_model or both"),
        (("training=finetune", "output=out", "trained=[vision_tower]"), "config key 'trained.0'"),
        (
            ("training=finetune", "output=out", "model=clip_shapes"),
            "expected clip_flant5 or vlm, because only these can be trained, got 'clip'",
        ),
        (
            ("training=finetune", "output=out", "model=llava_1_5_7b"),
            "expected clip_flant5, because only this family is finetuned on ratings, got 'vlm'",
        ),
        (
            ("training=questions", "output=out", "data=data", "model.family=vlm", "model.checkpoint=x", "sharded=true"),
            "sharded: the weights of a LLaVA model cannot be sharded; set sharded=false",
        ),
    ],
)
def test_invalid_options_are_refused_with_their_key(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_job_config("train", *overrides)


def test_tables_that_lack_a_column_are_refused_before_any_model_loads(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [b""], "text": ["a circle"]}), tmp_path / "0.parquet")
    stage = load_job_config("train", "training=captions", f"data={tmp_path}", f"output={tmp_path}/out")
    with pytest.raises(SourceError, match=r"0\.parquet.*caption.*columns\.caption"):
        main(stage)  # type: ignore[arg-type]
    (tmp_path / "empty").mkdir()
    empty = load_job_config("train", "training=captions", f"data={tmp_path}/empty", f"output={tmp_path}/out")
    with pytest.raises(ConfigError, match="expected Parquet files"):
        main(empty)  # type: ignore[arg-type]
