"""A metric can read its wording from a folder: a release's checkout, or templates written by the user."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.gpt4v_eval import Gpt4vEvalConfig
from plumbline.operators.metrics.judges.judge import map_ratings
from plumbline.operators.metrics.judges.llmscore import CaptionedImage, LlmScoreConfig
from plumbline.operators.metrics.judges.viescore import VieScoreConfig
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.questions.vpeval import VpevalConfig
from plumbline.operators.metrics.questions.vq2 import Vq2Config
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig
from plumbline.operators.metrics.similarities.sentence_matching import SentenceMatchingConfig
from plumbline.operators.metrics.wording import WordedMetric, read_prompt_template
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.operators.models.calls import Region
from tests.bench_of import plan_bench, write_benchmark
from tests.commands import run_refused
from tests.operators.metrics import made_releases
from tests.operators.metrics.scripted import run
from tests.operators.tiny import CLIP_FLANT5_PROFILE


def fill_in_defaults(metric: Any) -> Any:
    return metric.complete_options(lambda role: CLIP_FLANT5_PROFILE)


@pytest.fixture
def dsg(tmp_path: Path) -> DsgConfig:
    """Return DSG with the wording of a made-up checkout, whose code would exit the process if it were executed."""
    made: DsgConfig = fill_in_defaults(
        DsgConfig(wording=made_releases.write_release(tmp_path / "DSG", made_releases.DSG_FILES), seed=3)
    )
    return made


TUPLES_EXAMPLE = "input: a cup, blue\noutput: 1 | entity - whole (cup)\n2 | attribute - color (cup, blue)"
TUPLES_AS_INPUT = "input: a cup, blue\n1 | entity - whole (cup)\n2 | attribute - color (cup, blue)\noutput: "


def test_dsg_uses_the_released_wording_and_passes_tuples_on_literally(dsg: DsgConfig) -> None:
    said = "1 | entity -  whole (dog)\n3 | global (old, $5)"
    rounds = [[f" {said}\n\ninput: more"], ["1 | Is there a dog?\n3 | Old", "1 | 0\n3 | 0, 1"]]
    questions, asked = run(dsg.write("a  dog {x}"), *rounds)
    assert [request.messages[0].text for requests in asked for request in requests] == [
        f"Say what is there.\n\n{TUPLES_EXAMPLE}\n\ninput: a  dog {{x}}\noutput: ",
        f"Ask.\n\n{TUPLES_AS_INPUT}1 | Is there a cup?\n2 | Is the cup blue?\n\ninput: a  dog {{x}}\n{said}\noutput: ",
        f"Say what needs what.\n\n{TUPLES_AS_INPUT}1 | 0\n2 | 1\n\ninput: a  dog {{x}}\n{said}\noutput: ",
    ]
    assert {(request.max_tokens, request.temperature, request.seed, request.stop) for request in asked[1]} == {
        (500, 0.0, 3, ())
    }
    assert [(one.text, one.kind, one.span, one.parents) for one in questions] == [
        ("Is there a dog?", "entity - whole", "dog", ()), ("Old", "global", "$5", ("1",)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tuples", "questions", "dependencies"),
    [
        ("There is a dog.", "1 | Is there a dog?", "1 | 0"),
        ("1 | entity - whole (dog)", "Of course:\n1 | Is there a dog?", "1 | 0"),
        ("1 | entity - whole (dog)", "1 | Is there a dog?", "1 | none"),
    ],
)
def test_a_reply_that_makes_the_release_fail_is_unreadable_and_requested_once(
    dsg: DsgConfig, tuples: str, questions: str, dependencies: str
) -> None:
    rounds = [[tuples], [questions, dependencies]]
    with pytest.raises(UnreadableReply, match="replies are parsed as in the release"):
        run(dsg.write("a dog"), *(rounds if "|" in tuples else rounds[:1]))


def test_tifa_uses_the_released_wording_and_reads_the_lines_below_the_heading(tmp_path: Path) -> None:
    folder = made_releases.write_release(tmp_path, made_releases.TIFA_FILES)
    metric = fill_in_defaults(TifaConfig(wording=folder, filter=False))
    reply = (
        ": dog\nActivities:\nColors:\nCounting:\nOther attributes:\nQuestions and answers are below:\n"
        "About dog (animal):\nQ: what is it?\nChoices: cat, dog\nA: dog\nA: cat\n"
        "About old (age):\nQ: how old is it?\nChoices: old, young\nA: old"
    )
    (question,), ((request,),) = run(metric.write("a  dog"), [reply])
    assert request.messages[0].text == "\nAsk two questions.\n\nDescription: a  dog\nEntities"
    assert (request.max_tokens, request.temperature, request.stop) == (700, 0.0, ("\n\n", "<|endoftext|>"))
    assert (question.text, question.choices, question.answer, question.kind, question.span, question.start) == (
        "what is it?", ("cat", "dog"), "dog", "animal", "dog", 3,
    )  # fmt: skip
    with pytest.raises(UnreadableReply):
        run(metric.write("a dog"), ["About dog (animal):\nQ: what is it?\nChoices: cat, dog\nA: dog"])


def test_vpeval_uses_the_released_wording_and_reads_programs_by_our_grammar(tmp_path: Path) -> None:
    metric = fill_in_defaults(
        VpevalConfig(wording=made_releases.write_release(tmp_path, made_releases.VPEVAL_FILES), max_tokens=99)
    )
    header = ": dog\nActivities:\nColors:\nCounting:\nText:\nOther attributes:\nQuestions and programs are below:\n"
    program = "About dog (animal):\nobjectEval(image, 'dog')\n\nvqa(image, 'is it old?', 'yes,no', 'yes')"
    questions, ((request,),) = run(metric.write("a  dog"), [header + program])
    assert request.messages[0].text == 'Write. Description: a  dog"\nEntities' and request.stop == ()
    assert (request.temperature, request.max_tokens) == (0.0, 99)
    assert [(one.kind, one.span) for one in questions] == [("object", "dog"), ("vqa", "dog")]
    with pytest.raises(UnreadableReply, match="is not a call of one of the modules"):
        run(metric.write("a dog"), [f"{header}open('x').read()"])


def test_llmscore_uses_the_released_wording_for_rating_and_errors_in_one_request(tmp_path: Path) -> None:
    folder = made_releases.write_release(tmp_path, made_releases.LLMSCORE_FILES)
    metric = fill_in_defaults(LlmScoreConfig(wording=folder, seed=2))
    described, ((request,),) = run(
        metric.describe(CaptionedImage("A dog", [Region("an ear", 1, 2, 3, 4)], 64, 48)), [" So\nit is. "]
    )
    assert (request.messages[0].text, described) == ("All: A dog\nParts: an ear: [1, 2, 3, 4]; \n64X48", "So it is.")
    verdict, ((request,),) = run(metric.judge_description("a  dog", described), ["80\n\n3\nIt fits.\nNo ear."])
    assert request.messages[0].text == "a  dog / So it is.: Rate and count."
    assert (request.temperature, request.seed, request.max_tokens) == (1.0, 2, 512)
    assert map_ratings(verdict.ratings) == {"rating": 80, "errors": 3} and verdict.rationale == "It fits. No ear."
    for reply in ("80", "80\n3\nIt fits.", "X1: 80\n3\na\nb", "101\n3\na\nb", "80\n100\na\nb"):
        with pytest.raises(UnreadableReply):
            run(metric.judge_description("a dog", described), [reply])
    counting = fill_in_defaults(LlmScoreConfig(wording=folder, variant="errors"))
    verdict, _ = run(counting.judge_description("a dog", described), ["80\n14\nIt fits.\nNo ear."])
    assert counting.score_ratings(verdict.ratings) == 14
    ruled = fill_in_defaults(LlmScoreConfig(wording=folder, variant="rule_enhanced"))
    verdict, ((request,),) = run(ruled.judge_description("a dog", described), ["2\n1\n4\n1\nso"])
    assert request.messages[0].text.endswith("Count four.")
    assert ruled.score_ratings(verdict.ratings) == (1 / 2 + 1 / 4) / 2


def test_viescore_uses_the_released_wording_and_gives_up_after_two_tries(tmp_path: Path) -> None:
    metric = fill_in_defaults(
        VieScoreConfig(wording=made_releases.write_release(tmp_path, made_releases.VIESCORE_FILES), seed=5)
    )
    unread, read = ["None.", "[9, 7]"], ['{"score": [8], "reasoning": "It fits."}', "||V^=^V||{score: 6}||V^=^V||"]
    verdict, rounds = run(metric.inspect("a <b>"), unread, read)
    assert [request.messages[0].text for request in rounds[1]] == [
        "Look.\nOne image.\nDoes it show a <b>?", "Look.\nIs it well made?",
    ]  # fmt: skip
    assert [{(one.seed, one.temperature, one.max_tokens) for one in requests} for requests in rounds] == [
        {(5, 1.0, 1400)}, {(6, 1.0, 1400)},
    ]  # fmt: skip
    assert map_ratings(verdict.ratings) == {"semantic_consistency": 8, "naturalness": 6, "artifacts": 6}
    assert verdict.rationale == "It fits."
    with pytest.raises(UnreadableReply):
        run(metric.inspect("a dog"), unread, unread)


HOSTILE_REPLIES = [
    "||V^=^V||[1, 2]||V^=^V||", "||V^=^V||" + '":' * 2000 + "||V^=^V||", '{"score": ' + "[" * 5000 + "}",
    f'{{"score": [{"9" * 400}]}}', '{"score": [NaN]}', '{"score": ["9"]}', '{"score": []}', '{"score": [-1]}', "{}",
    "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("reply", HOSTILE_REPLIES)
def test_any_reply_of_a_judge_affects_at_most_its_own_row(reply: str, tmp_path: Path) -> None:
    metric = fill_in_defaults(
        VieScoreConfig(wording=made_releases.write_release(tmp_path, made_releases.VIESCORE_FILES))
    )
    with pytest.raises(UnreadableReply):
        run(metric.inspect("a dog"), [reply, reply], [reply, reply])


def test_a_judge_is_asked_several_times_if_its_release_samples(tmp_path: Path) -> None:
    drawn = made_releases.write_release(tmp_path / "drawn", made_releases.VIESCORE_FILES)
    assert fill_in_defaults(VieScoreConfig(wording=drawn, repeats=3)).repeats == 3


def test_the_keys_of_a_wording_depend_on_its_texts_and_not_on_its_folder(tmp_path: Path) -> None:
    def make_question_options(name: str, files: Mapping[str, str]) -> Any:
        return fill_in_defaults(
            DsgConfig(wording=made_releases.write_release(tmp_path / name, files))
        ).list_question_options()

    other = {
        **made_releases.DSG_FILES,
        "dsg/query_utils.py": made_releases.DSG_FILES["dsg/query_utils.py"].replace("Ask.", "Ask!"),
    }
    first, same, changed = (
        make_question_options("a", made_releases.DSG_FILES),
        make_question_options("b", made_releases.DSG_FILES),
        make_question_options("c", other),
    )
    assert first == same and len({str(each) for each in (first, changed, DsgConfig().list_question_options())}) == 3
    more = make_question_options("d", {**made_releases.DSG_FILES, "README.md": "Read me."})
    assert more == first


def test_a_users_templates_replace_ours_and_ours_fill_the_gaps(tmp_path: Path) -> None:
    ours = read_prompt_template("dsg_tuples")
    (tmp_path / "dsg_tuples.txt").write_text(ours)
    assert (
        fill_in_defaults(DsgConfig(wording=str(tmp_path))).list_question_options()
        == DsgConfig().list_question_options()
    ), "same wording, same keys"
    (tmp_path / "dsg_tuples.txt").write_text("Split it.\n")
    metric = fill_in_defaults(DsgConfig(wording=str(tmp_path), replies="text", max_tokens=9))
    _, rounds = run(metric.write("a dog"), ["1 | global (x)"], ["1 | is x?", "1 | 0"])
    texts = [request.messages[0].text for requests in rounds for request in requests]
    assert texts[0] == "Split it.\nDescription:\na dog\nTuples:\n" and rounds[0][0].max_tokens == 9
    assert texts[1].startswith(read_prompt_template("dsg_questions"))
    assert metric.list_question_options() != DsgConfig(max_tokens=9).list_question_options()


def test_a_users_template_of_a_judge_is_filled_in_like_ours(tmp_path: Path) -> None:
    (tmp_path / "gpt4v_eval.txt").write_text("Does it fit {prompt}?\n")
    metric = fill_in_defaults(Gpt4vEvalConfig(wording=str(tmp_path)))
    _, ((request,),) = run(metric.inspect("a {prompt}"), ['{"rating": 9, "rationale": ""}'])
    assert request.messages[0].text.startswith("Does it fit a {prompt}?\nReply with one JSON object")
    assert metric.list_verdict_options() != Gpt4vEvalConfig().list_verdict_options()
    (tmp_path / "llmscore_describe.txt").write_text("{caption} {regions} {width} {height}: say it at length.\n")
    described = fill_in_defaults(LlmScoreConfig(wording=str(tmp_path)))
    assert (
        described.list_description_options() != LlmScoreConfig().list_description_options()
        and described.list_verdict_options() == LlmScoreConfig().list_verdict_options()
    )


def test_a_worker_refuses_a_folder_that_was_changed_after_the_plan(dsg: DsgConfig) -> None:
    assert dsg.wording is not None and fill_in_defaults(dsg) == dsg
    sent = pickle.dumps(dsg)
    query = Path(dsg.wording) / "dsg/query_utils.py"
    query.write_text(query.read_text().replace("Say what is there.", "Say all."))
    with pytest.raises(ConfigError, match=r"expected .*: its files have changed"):
        next(pickle.loads(sent).write("a dog"))
    with pytest.raises(ConfigError, match=r"dsg wording: .* start again without wording_digest"):
        fill_in_defaults(dsg)


REFUSED_CHECKOUTS: list[tuple[WordedMetric, Mapping[str, str], str]] = [
    (DsgConfig(), {"README.md": ""}, r"a checkout of j-min/DSG \(dsg/query_utils.py\) or templates \(dsg_tuples.txt, "),
    (Vq2Config(), made_releases.DSG_FILES, r"expected templates \(vq2_spans.txt, .* has none"),
    (TifaConfig(), made_releases.DSG_FILES, r"a checkout of Yushi-Hu/tifa \(tifascore/question_gen.py\)"),
    (DsgConfig(), {"dsg/query_utils.py": made_releases.DSG_FILES["dsg/query_utils.py"]},
     "dsg/data/tifa160-dev-anns.csv is missing; give the root of an unchanged checkout of "
     "https://github.com/j-min/DSG"),
    (TifaConfig(), {"tifascore/question_gen.py": "prompt = 1 +"}, "question_gen.py is not Python"),
    (TifaConfig(), {"tifascore/question_gen.py": "categories = []"}, "assigns nothing to prompt"),
    (TifaConfig(), {"tifascore/question_gen.py": "prompt = open('x').read()"}, "has no text in prompt"),
    (TifaConfig(), {"tifascore/question_gen.py": "prompt = 'x'\ncategories = [y]"}, "has no literal in categories"),
    (LlmScoreConfig(), {**made_releases.LLMSCORE_FILES, "llm_descriptor/visual_descriptor.py": "prompt = f'{x:>9}'"},
     "visual_descriptor.py has no text in prompt"),
    (Gpt4vEvalConfig(), {"gpt4v_eval.txt": "Rate it."}, r"gpt4v_eval.txt lacks \{prompt\}, which is filled in"),
    (SentenceMatchingConfig(), {}, "sends no prompts of its own to a model"),
    (DsgConfig(temperature=1.0), made_releases.DSG_FILES, "dsg temperature: 1.0 is ignored .* set it to 0.0"),
    (DsgConfig(replies="json"), made_releases.DSG_FILES, "dsg replies: json is ignored .* of j-min/DSG"),
]  # fmt: skip


@pytest.mark.parametrize(("metric", "files", "problem"), REFUSED_CHECKOUTS)
def test_an_unusable_wording_is_refused_with_the_expected_file(
    metric: Any, files: Mapping[str, str], problem: str, tmp_path: Path
) -> None:
    folder = made_releases.write_release(tmp_path, files)
    with pytest.raises(ConfigError, match=problem):
        fill_in_defaults(replace(metric, wording=folder))


def test_the_plan_refuses_a_missing_folder_and_metrics_without_wordings(tmp_path: Path) -> None:
    words = ("sweep=shapes", f"store={tmp_path}/store", "cluster=here", "dry_run=true")
    line = run_refused("sweep", *words, "metric=[dsg]", f"metrics.dsg.wording={tmp_path}/none")
    assert "dsg wording: expected a checkout of j-min/DSG" in line and "but " + str(tmp_path / "none") in line
    assert "wording" not in ClipScoreConfig.__dataclass_fields__


def test_a_plan_records_the_folders_content(tmp_path: Path) -> None:
    bench = write_benchmark(tmp_path / "bench")
    made_releases.write_release(tmp_path / "DSG", made_releases.DSG_FILES)
    more = ("metric=[dsg]", f"metrics.dsg.wording={tmp_path}/DSG")
    planned, ours = (plan_bench(bench, tmp_path / "store", *words) for words in (more, more[:1]))
    metric: Any = planned.config.metrics["dsg"]
    assert metric.wording == str(tmp_path / "DSG") and len(metric.wording_digest) == 16
    keys = [plan.plan.recipes["dsg"]["questions"].digest for plan in (planned, ours)]
    assert keys[0] != keys[1]
