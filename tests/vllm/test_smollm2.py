"""A real language model writes Gecko's questions about real prompts; the questions are poor, but nothing fails."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CHECKPOINT_FOLDER = ROOT / "build" / "smollm2"
PROMPTS_FILE = Path(os.environ.get("REFERENCE_DATA", "none")) / "genai_bench" / "genai_bench_527_image_ratings.json"


@pytest.mark.vllm
@pytest.mark.skipif(not CHECKPOINT_FOLDER.exists(), reason="needs the checkpoint made by make smollm2")
@pytest.mark.skipif(not PROMPTS_FILE.exists(), reason="needs REFERENCE_DATA")
@pytest.mark.parametrize(("replies", "count"), [("text", 4), ("json", 50)])
def test_smollm2_writes_questions_about_genai_bench_prompts(tmp_path: Path, replies: str, count: int) -> None:
    """Every prompt gets readable questions if a schema is enforced, but not without a schema (docs/questions.md)."""
    chosen = dict(list(json.loads(PROMPTS_FILE.read_text()).items())[:count])
    (tmp_path / "prompts.json").write_text(json.dumps(chosen))
    overrides = [
        "benchmark=genai_bench", f"benchmark.prompts={tmp_path}/prompts.json", "models=shapes", "metric=[gecko]",
        f"models.llm.checkpoint={CHECKPOINT_FOLDER}", "models.llm.engine=vllm", f"metrics.gecko.replies={replies}",
        "metrics.gecko.max_tokens=256", "+models.llm.engine_options.max_model_len=4096", f"store={tmp_path}/store",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "jobs.questions", *overrides], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode in (0, 2), done.stdout + done.stderr
    row = re.search(rf"│ gecko\s+│\s+{count} │ (\d+) \([\d.]+%\) │\s+(\d+) │", done.stdout.replace("  ", " "))
    assert row is not None, done.stdout
    assert replies == "text" or int(row[1]) == count
    assert re.search(r"questions:llm: \d+ calls, \d+ tokens read \(\d+% from the prefix cache\)", done.stdout)
