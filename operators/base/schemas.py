"""The columns of every table: questions, answers, scores, ratings and all others, declared once."""

from functools import partial

import pyarrow as pa


def _columns(dtype: pa.DataType, *names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, dtype) for name in names]


texts, floats = partial(_columns, pa.string()), partial(_columns, pa.float64())
ints, longs = partial(_columns, pa.int32()), partial(_columns, pa.int64())

ERROR = pa.struct([("kind", pa.string()), ("message", pa.string()), ("retryable", pa.bool_())])

PROMPTS = pa.schema(
    [("prompt_id", pa.string()), ("text", pa.string()), ("skills", pa.list_(pa.string())), ("suite", pa.string())]
)
"""The benchmark's prompts; `skills` and `suite` may be absent from a source."""

BUILT_PROMPTS = pa.schema([*PROMPTS, ("origin", pa.string())])
"""The prompts of a benchmark that was made (jobs.build_benchmark); `origin` is `read`, or `written` by a model."""

LEFT_OUT = pa.schema(
    [
        *texts("prompt_id", "text"),
        ("skills", pa.list_(pa.string())),
        *texts("origin", "reason", "repeats"),
        ("error", ERROR),
    ]
)
"""The prompts that such a benchmark does not have, each with its `reason`: it is a `near_duplicate`, of the prompt
`repeats`; it was `not_drawn`, or could not be as it has `no_skill`; or it `failed`, with its error: it has no tags, or
was not written and has no text."""

TAGS = pa.schema([*texts("prompt_id", "skill", "sub_skill", "words"), *ints("start", "end"), ("error", ERROR)])
"""What prompts were tagged with: of each tag the words of the prompt, at its characters `start` to `end` (null where
they were not found). A prompt without a tag has one row without a skill, and one that could not be tagged its error."""

PICTURES = pa.schema(
    [
        *texts("image_id", "prompt_id", "prompt"),
        ("image", pa.binary()),
        *floats("cfg"),
        *ints("steps"),
        *texts("size"),
        *longs("seed"),
        *texts("sampler", "checkpoint", "revision"),
        ("error", ERROR),
    ]
)
"""Pictures that were made here (jobs.generate), as a sweep reads them: `image` is encoded, and null where there is an
error. Each has the settings that it was made by (`size` as 1024x768), and what made it."""

QUESTIONS = pa.schema(
    [
        *texts("prompt_id", "prompt", "question_id", "text"),
        ("choices", pa.list_(pa.string())),
        *texts("answer", "kind", "span"),
        *ints("start", "end"),
        ("parents", pa.list_(pa.string())),
        ("keep", pa.bool_()),
        ("error", ERROR),
    ]
)
"""What is asked of every image of a prompt, in the order written; `prompt` is its text.

`question_id` is a hash of text, choices and answer, so that no answer can be taken for that to another question; of a
prompt's second question that is alike it ends in -2. `answer` is the one of `choices` that a faithful image gets.
`kind` is what is asked about (entity, color, ...), `span` the words of the prompt that the question is about, which
stand at its characters `start` to `end` (null where they were not found). `parents` are the question_ids that must hold
for this one to make sense. `keep` is false where the metric's own filter dropped the question, null where it has none.
A prompt whose questions could not be made has one row, with the error and no question_id.
"""

ENTAILMENTS = pa.schema(
    [*texts("prompt_id", "question_id", "hypothesis"), ("p_entail", pa.float32()), ("error", ERROR)]
)
"""One row per question: whether the prompt entails it with its answer, put as the statement `hypothesis`."""

ANSWER = pa.struct(
    [("question_id", pa.string()), ("token_logprobs", pa.list_(pa.list_(pa.float32()))), *texts("reply", "chosen")]
)
"""One question's answer: natural-log probabilities, one list per choice, one number per answer token with its EOS.

Where a metric wants the model's own words instead, `reply` has them and `chosen` the choice that they mean.
"""

_IMAGE_COLUMNS = [("image_id", pa.string()), ("prompt_id", pa.string()), ("generator", pa.string())]

_BASIS = ("basis", pa.string())
"""The digest of what a row stands on besides its image: the questions put about it, or its text. A row whose basis or
image is no more what it was has to be computed anew."""
_STANDS_ON = [("image_digest", pa.string()), _BASIS]


def over_images(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    """The schema of a stage's table with a row for each image; the columns are those that the stage measures."""
    return pa.schema([*_IMAGE_COLUMNS, *columns, ("error", ERROR), *_STANDS_ON])


ANSWERS = pa.schema(
    [*_IMAGE_COLUMNS, ("answers", pa.list_(ANSWER)), ("error", ERROR), *_STANDS_ON, ("images", pa.int32())]
)
"""`images` is null for a row of one image; of a row of several it is their number, and `answers` are those about the
first image, then those about the second."""

PRIORS = pa.schema([("prompt_id", pa.string()), ("answers", pa.list_(ANSWER)), ("error", ERROR), _BASIS])
"""As ANSWERS, about a grey image in place of any: one row for each prompt."""

BOX = pa.struct([("label", pa.string()), *((name, pa.float32()) for name in ("score", "x1", "y1", "x2", "y2"))])
"""Something found in an image: its label, how sure that is, and its box in pixels from the upper left corner."""

SEEN = pa.struct([("question_id", pa.string()), ("boxes", pa.list_(pa.list_(BOX))), ("texts", pa.list_(pa.string()))])
"""What was seen of an image for one question: of each of its looks (operators/metrics/modules.py), in their order, the
boxes, null where none were looked for, and the text that was read or answered, null where none was asked for."""

MODULES = pa.schema(
    [*_IMAGE_COLUMNS, ("answers", pa.list_(SEEN)), ("error", ERROR), *_STANDS_ON, ("images", pa.int32())]
)
"""As ANSWERS, of questions that modules answer."""

RATINGS_GIVEN = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))
"""The numbers of a judge's verdict, or of a reward, by what they rate."""

SIMILARITIES = pa.schema(
    [
        *_IMAGE_COLUMNS,
        ("similarity", pa.float32()),
        ("truncated", pa.bool_()),
        ("error", ERROR),
        *_STANDS_ON,
        ("images", pa.list_(pa.float32())),
        ("ratings", RATINGS_GIVEN),
    ]
)
"""`similarity` is as the model gives it, a cosine or a reward; `truncated` tells that the text was longer than the
model's context. `images` is null for a row of one image; of a row of several it is the similarity of each, and
`similarity` their mean. `ratings` is what the reward of a row of one image or video is made of, null where the model
gives one number."""

CAPTIONS = over_images(
    ("captions", pa.list_(pa.struct([("text", pa.string()), ("width", pa.int32()), ("height", pa.int32())])))
)
"""What a captioner says of an image as a whole, with its size in pixels: one for each image of the row."""

REGION = pa.struct([("label", pa.string()), *((side, pa.int32()) for side in ("x1", "y1", "x2", "y2"))])
"""What is seen at a place: its words, and its box in pixels of the image, from its upper left corner."""

REGIONS = over_images(("regions", pa.list_(pa.list_(REGION))))
"""What a captioner says of an image's parts: one list for each image of the row."""

DESCRIPTIONS = over_images(("descriptions", pa.list_(pa.string())))
"""What a language model makes of captions and regions: one for each image of the row."""

VERDICTS = pa.schema(
    [
        *over_images(("verdicts", pa.list_(pa.struct([("ratings", RATINGS_GIVEN), ("rationale", pa.string())])))),
        ("repeats", pa.int32()),
    ]
)
"""How well a judge finds an image, or its description, to fit the prompt, and why: one for each image of the row.

`repeats` is null where the judge is asked once; else there are so many verdicts for each image, null where the reply
cannot be read."""

IMAGE_STATISTICS = over_images(
    ("statistics", pa.list_(pa.struct([(name, pa.float32()) for name in ("edge_density", "entropy", "saturation")])))
)
"""What an image is like whatever its prompt (operators/stages/image_statistics.py): one for each image of the row."""

SOURCE_COMPARISONS = over_images(
    ("comparisons", pa.list_(pa.struct([(name, pa.float32()) for name in ("l1", "l2", "ssim")])))
)
"""How like its source an edited image is (operators/stages/source_comparisons.py): one for each image of the row."""

FUNCTION_VALUES = over_images(("values", pa.list_(pa.struct([("value", pa.float64())]))))
"""Values that a function of the user returned (operators/stages/function_values.py): one for each image of the row."""

SCORES = pa.schema(
    [
        *_IMAGE_COLUMNS,
        ("metric", pa.string()),
        ("score", pa.float64()),
        ("n_questions", pa.int32()),
        ("truncated", pa.bool_()),
        ("error", ERROR),
    ]
)
"""One row per image and metric; `score` is null exactly where `error` is not.

`n_questions` counts those that entered the score."""

ELEMENT = pa.struct(
    [
        *texts("question_id", "text", "span"),
        *ints("start", "end"),
        *texts("wanted", "given"),
        ("score", pa.float64()),
    ]
)
"""One question's part in a score: the answer wanted and given, and its score in [0, 1], null where it was left out."""

ELEMENT_SCORES = pa.schema(
    [
        *SCORES,
        ("elements", pa.list_(ELEMENT)),
        _BASIS,
        ("ratings", RATINGS_GIVEN),
        ("rationale", pa.string()),
        ("asks", pa.list_(pa.float64())),
    ]
)
"""Scores as the cells keep them: with the score of every element of the prompt (null for metrics that ask only once),
with the ratings and the reasons of a judge (null for metrics that have none), and with the score by each ask of a judge
that is asked several times, null where the reply cannot be read (null for all others)."""

JUDGE_NOISE = pa.schema(
    [*texts("metric", "generator"), *longs("repeats", "images", "unread"), *floats("deviation", "share")]
)
"""What a judge that is asked several times about each image says each time: `unread` counts replies that could not be
read, `deviation` is the standard deviation within an image, `share` how much of the variance of the generator's scores,
which are means of the asks, is that noise (null where scores do not vary)."""

ERRORS = pa.schema(
    [
        *_IMAGE_COLUMNS,
        *texts("metric", "kind", "message"),
        ("retryable", pa.bool_()),
        ("file", pa.string()),
        ("row", pa.int64()),
    ]
)
"""The view of a run's failures that a person opens first; `image_id` is null where no image could be read.

`file` and `row` are the Parquet file of the image and its row, from 0; the image's own file, if an ingest left it where
it was; or the table and the line, from 1, of a row that an ingest rejected. They are null if the row is in no file."""

FAILURES = pa.schema([*ERRORS, ("rows", pa.int64())])
"""The first of the rows that failed in one way, as ERRORS has it, and how many they are (failures.py)."""

SUMMARY = pa.schema(
    [
        *texts("generator", "metric", "skill"),
        *floats("mean", "low", "high", "sem"),
        *longs("n", "n_null"),
        ("coverage", pa.float64()),
    ]
)
"""`n` counts scored rows, `n_null` rows without a score; `low` to `high` is the mean's 95% interval, bootstrapped over
prompts (null where there are fewer than two), `sem` its standard error with all rows taken as independent."""

USUAL_SCORES = pa.schema([*texts("metric", "generator"), ("n", pa.int64()), ("values", pa.list_(pa.float64()))])
"""Scores that stand for the `n` scores of a metric and generator, evenly by rank, or all of them
(operators/results/usual_scores.py)."""

RATINGS = pa.schema([*_IMAGE_COLUMNS, *texts("rater", "template"), ("rating", pa.float64())])
"""One person's rating of one image; null where the person was unsure. `template` is what was asked (likert, wl,
...)."""

PARTS = pa.schema([*_IMAGE_COLUMNS, *texts("rater", "template", "part"), ("rating", pa.float64())])
"""One person's answer about a part of one image, such as a word of its prompt or a question; null if the person was
unsure. `part` is empty if the answer is about the image as a whole."""

TASKS = pa.schema(
    [
        *texts("task_id", "template", "prompt_id", "prompt"),
        *((name, pa.list_(pa.string())) for name in ("skills", "image_ids", "generators", "words")),
        ("questions", pa.list_(pa.struct(texts("question_id", "text")))),
        ("gold", pa.string()),
        ("places", pa.list_(pa.struct([("shard", pa.string()), ("row", pa.int64())]))),
    ]
)
"""What the raters of a study are asked (jobs.rate): a row per page.

`image_ids`, `generators` and `places` have one entry, or two where images are compared; `words` are those of the
prompt where these are rated. `gold` is the right answer as JSON, null where none is known."""

PREFERENCES = pa.schema(
    [*texts("prompt_id", "image_a", "image_b", "generator_a", "generator_b", "rater", "template", "preferred")]
)
"""One person's choice between two images of a prompt: `a`, `b`, or `unsure`; null where nothing was said.
`template` is what was asked (side_by_side, vote)."""

PAIRINGS = pa.schema(
    [*texts("sample_id"), ("tags", pa.list_(pa.string())), *ints("caption", "image"), *texts("prompt_id", "image_id")]
)
"""Winoground's four pairings of a sample's two captions (0, 1) with its two images (0, 1); caption i fits image i.

`tags` are the sample's; a sample counts for each."""

GRAPH_NODES = pa.schema(
    [
        *texts("graph_id", "subset", "image_id", "node"),
        ("level", pa.int32()),
        *texts("generator", "prompt_source"),
        ("parents", pa.list_(pa.string())),
        ("errors", pa.list_(pa.string())),
    ]
)
"""The images of semantic error graphs (T2IScoreScore): `node` is the set of errors that the image has, `level` their
number; a node may have several images.

`generator` made the image, `prompt_source` is the origin of the graph's prompt. An edge leads from each of `parents` to
the node; `errors` are all errors of the node, as `type: error`. Each of these is null if unknown. Walks
do not use the edges, as in the release."""

GRAPH_CONTENTS = pa.schema([*texts("about", "subset", "name"), ("n", pa.int64()), *floats("share")])
"""Sources of images and prompts of error graphs, and types of their errors (operators/judging/graph_contents.py)."""

WORDS = pa.schema([*_IMAGE_COLUMNS, *texts("rater", "word"), *ints("start", "end"), ("aligned", pa.float64())])
"""Whether one person finds a word of the prompt in the image: 1 or 0, null where the person was unsure.

`start` to `end` are its characters in the prompt."""

WORD_MATCHES = pa.schema(
    [
        ("metric", pa.string()),
        *_IMAGE_COLUMNS,
        ("word", pa.string()),
        *ints("start", "end"),
        *floats("rated", "score"),
        ("n_questions", pa.int32()),
    ]
)
"""A rated word beside what a metric makes of it: `rated` is the mean over the raters who were sure, `score` the lowest
of the questions about it, null where none is."""

GRAPHS = pa.schema(
    [
        *texts("metric", "convention", "graph_id", "subset"),
        *floats("spearman", "kendall", "ordering", "kendall_ordering", "separation", "delta"),
    ]
)
"""What a metric makes of each semantic error graph (operators/judging/graphs.py)."""

GRAPH_IMAGES = pa.schema(
    [*texts("metric", "graph_id", "subset", "node"), ("level", pa.int32()), *texts("image_id"), *floats("score")]
)
"""The score of every image of the error graphs by each metric, as the metric returns it; null without a score."""

GRAPH_MEANS = pa.schema(
    [
        *texts("metric", "graph_id", "subset", "node"),
        ("level", pa.int32()),
        ("n", pa.int64()),
        *floats("mean", "deviation"),
    ]
)
"""The mean and the standard deviation of the `n` scored images of every node by each metric."""

GRAPH_CORRELATIONS = pa.schema(
    [*texts("convention", "measure", "subset", "metric", "other"), *floats("pearson"), ("n", pa.int64())]
)
"""Correlation of two metrics over their scores of error graphs (operators/judging/graph_correlations.py)."""

MEAN_RATINGS = pa.schema([*texts("template", "image_id", "prompt_id", "generator"), *floats("rating", "rating_0_1")])
"""The mean over the sure raters of each image by each template; `rating_0_1` as if the template's scale went from 0 to
1, null if that scale is not known."""

JUDGEMENTS = pa.schema(
    [
        *texts("template", "subset", "generator", "other", "metric", "statistic"),
        *floats("value", "low", "high"),
        *longs("n", "n_prompts", "n_unscored", "n_unrated"),
        ("convention", pa.string()),
    ]
)
"""A statistic of a metric's agreement with people: `value` with its 95% interval, null if undefined, for the reason in
`convention`. `subset` is a skill or `overall`; `generator`, and `other` of two, are empty over all generators."""

COMPARISONS = pa.schema(
    [
        *texts("template", "statistic", "metric_a", "metric_b"),
        *floats("difference", "p_value", "p_holm"),
        ("n", pa.int64()),
        ("test", pa.string()),
    ]
)
"""Whether two metrics agree with people equally well."""

ORDERS = pa.schema(
    [
        *texts("template", "judge", "generator_a", "generator_b", "better"),
        *floats("difference", "p_value", "p_holm"),
        ("n", pa.int64()),
        ("convention", pa.string()),
    ]
)
"""Which of two generators is better, by a metric or by people; `better` is null where the test is not significant, or
where its ranks and the means do not favour the same one.
"""

CORRECTED = pa.schema(
    [
        *texts("template", "metric", "scale", "generator", "other"),
        *floats("corrected", "low", "high", "people", "people_low", "people_high"),
        *floats("predicted", "predicted_low", "predicted_high", "worth"),
        *longs("n_rated", "n_scored"),
        *texts("better", "metric_better", "note"),
    ]
)
"""A generator's mean rating by people over all prompts that a metric scored, its rate of wins, or the share of its
images that people would pass (`scale`: rating, win_rate, passing); with `other`, its difference from another generator,
or its rate of wins against that one (operators/judging/corrected_means.py, corrected_shares.py).

`corrected` is by people and the metric together, with its 95% interval `low` to `high`; `people` of the rated prompts
alone; `predicted` by the metric alone, on people's scale. Each rated prompt amounts to `worth` prompts without the
metric. Where nothing is said, `corrected` is null and `note` has the reason. `better` and `metric_better` are which of
two is clearly better by people with the metric, and by the metric's own scores; the intervals of pairs hold all
together."""

CONTRADICTED = pa.schema(texts("template", "metric", "image_id", "prompt_id", "generator", "why"))
"""The images about which a metric and people differ most (operators/judging/contradicted_images.py), and how."""

CORRELATIONS = pa.schema(
    [*texts("metric", "other", "kind", "generator"), *floats("rho", "low", "high"), ("n", pa.int64())]
)
"""Spearman's rank correlation of a generator's scores with another metric's, or with a property of its prompts."""

QUESTION_STATISTICS = pa.schema(
    [
        ("metric", pa.string()),
        *longs("prompts", "questions"),
        *floats("yes_no", "yes", "first", "repeated", "majority", "chance"),
    ]
)
"""What a metric asks, in shares (operators/diagnosis/questions.py)."""

QUESTION_KINDS = pa.schema(
    [("metric", pa.string()), ("kind", pa.string()), ("questions", pa.int64()), ("share", pa.float64())]
)
"""How often a metric asks about each kind of thing."""

ANSWER_STATISTICS = pa.schema(
    [
        *texts("metric", "denied"),
        ("answers", pa.int64()),
        ("right", pa.float64()),
        ("yes_no", pa.int64()),
        *floats("yes", "wanted"),
        ("choices", pa.int64()),
        ("first", pa.float64()),
    ]
)
"""What was answered to a metric's questions, in shares, with and without what it is denied."""

ABLATION_EFFECTS = pa.schema(
    [
        *texts("metric", "denied"),
        *floats("whole", "left", "difference", "low", "high", "rho", "order"),
        *longs("n", "n_null"),
    ]
)
"""A metric's scores with and without what it is denied."""

DECISIONS = pa.schema(
    [
        *texts("metric", "generator_a", "generator_b", "verdict"),
        ("difference", pa.float64()),
        *longs("n", "n_missing", "decided_after"),
    ]
)
"""What an adaptive sweep decided of two generators: `verdict` is a or b, the better one; alike, where they differ by no
more than the indifference; or undecided. `difference` is of their means a - b over the n prompts seen that both have
scores of; `decided_after` so many prompts, null where undecided."""
