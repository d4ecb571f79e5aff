"""Schemas of all tables, such as questions, answers, scores and ratings; each is declared once."""

from functools import partial

import pyarrow as pa


def _make_columns(dtype: pa.DataType, *names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, dtype) for name in names]


texts, text_lists = partial(_make_columns, pa.string()), partial(_make_columns, pa.list_(pa.string()))
ints, longs = partial(_make_columns, pa.int32()), partial(_make_columns, pa.int64())
float32s, floats = partial(_make_columns, pa.float32()), partial(_make_columns, pa.float64())
bools = partial(_make_columns, pa.bool_())

ERROR = pa.struct([*texts("kind", "message"), *bools("retryable")])

PROMPTS = pa.schema([*texts("prompt_id", "text"), *text_lists("skills"), *texts("suite")])
"""The benchmark's prompts; `skills` and `suite` may be absent from a source."""

BUILT_PROMPTS = pa.schema([*PROMPTS, *texts("origin")])
"""Prompts of a benchmark from jobs.build_benchmark; `origin` is `read`, or `written` if a model wrote the prompt."""

LEFT_OUT_PROMPTS = pa.schema(
    [*texts("prompt_id", "text"), *text_lists("skills"), *texts("origin", "reason", "repeats"), ("error", ERROR)]
)
"""Prompts that jobs.build_benchmark left out. `reason` is one of:

- `near_duplicate`: too similar to the prompt `repeats`.
- `not_drawn`: not in the sample of its skill.
- `no_skill`: has no skill to be sampled by.
- `failed`: has no tags, or no text because it could not be written; `error` has the cause."""

TAGS = pa.schema([*texts("prompt_id", "skill", "sub_skill", "words"), *ints("start", "end"), ("error", ERROR)])
"""Tags of prompts, each with the words of the prompt that the tag refers to: characters `start` to `end`, null if not
found.

A prompt without tags has one row without a skill. A prompt that could not be tagged has one row with the error.
"""

QUESTIONS = pa.schema(
    [
        *texts("prompt_id", "prompt", "question_id", "text"),
        *text_lists("choices"),
        *texts("answer", "kind", "span"),
        *ints("start", "end"),
        *text_lists("parents"),
        *bools("keep"),
        ("error", ERROR),
    ]
)
"""Questions about the images of a prompt, in the order they were written; `prompt` is the prompt's text.

`question_id` is a hash of text, choices and answer, so that an answer cannot be matched to another question. If a
prompt has the same question twice, the second id ends in -2. `answer` is the choice that a faithful image gets. `kind`
is the subject (entity, color, ...). `span` is the part of the prompt that the question is about, from character `start`
to `end` (null if it was not found). `parents` are the ids of questions that must be answered correctly for this
question to make sense. `keep` is false if the metric's own filter dropped the question, and null without a filter.
A prompt whose questions could not be written has one row with the error and without a question_id.
"""

ENTAILMENTS = pa.schema([*texts("prompt_id", "question_id", "hypothesis"), *float32s("p_entail"), ("error", ERROR)])
"""Probability that the prompt entails `hypothesis`, which is the question and its answer as a statement. One row per
question.
"""

ANSWER = pa.struct(
    [*texts("question_id"), ("token_logprobs", pa.list_(pa.list_(pa.float32()))), *texts("reply", "chosen")]
)
"""Answer to one question. `token_logprobs` has, for each choice, the natural-log probabilities of its tokens, including
the end-of-sequence token.

If a metric uses the text that the model generates instead, `reply` is that text, and `chosen` is the choice that the
text means.
"""

_IMAGE_COLUMNS = texts("image_id", "prompt_id", "generator")

_INPUT_DIGEST = texts("basis")
"""Digest of all inputs of a row except the image, that is, of the questions about the image or of the text. The row is
computed again if this digest or the image has changed.
"""
_IMAGE_AND_INPUT_DIGESTS = texts("image_digest", "basis")


def make_image_schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    """Return the schema of a table with one row per image; `columns` are added for the stage's results."""
    return pa.schema([*_IMAGE_COLUMNS, *columns, ("error", ERROR), *_IMAGE_AND_INPUT_DIGESTS])


ANSWERS = pa.schema([*make_image_schema(("answers", pa.list_(ANSWER))), *ints("images")])
"""Answers to the questions about a row's images.

`images` is null for a row with one image. For a row with several images it is the number of images, and `answers` has
all answers about the first image, then all about the second, and so on.
"""

PRIORS = pa.schema([*texts("prompt_id"), ("answers", pa.list_(ANSWER)), ("error", ERROR), *_INPUT_DIGEST])
"""Answers as in ANSWERS, but about a grey image instead of the row's image. One row per prompt."""

BOX = pa.struct([*texts("label"), *float32s("score", "x1", "y1", "x2", "y2")])
"""An object detected in an image: label, confidence, and box in pixels from the upper left corner."""

MODULE_OUTPUTS = pa.struct([*texts("question_id"), ("boxes", pa.list_(pa.list_(BOX))), *text_lists("texts")])
"""Outputs of modules for one question about an image: one entry per module call, in order
(operators/metrics/modules.py).

`boxes` is null if the call detects nothing; `texts` is null if the call returns no text.
"""

MODULE_ANSWERS = pa.schema([*make_image_schema(("answers", pa.list_(MODULE_OUTPUTS))), *ints("images")])
"""Answers as in ANSWERS, but computed by modules (operators/metrics/modules.py)."""

NAMED_RATINGS = pa.list_(pa.struct([*texts("name"), *floats("value")]))
"""Numbers in a judge's verdict, or components of a reward, each with the name of the rated property."""

SIMILARITIES = pa.schema(
    [
        *_IMAGE_COLUMNS,
        *float32s("similarity"),
        *bools("truncated"),
        ("error", ERROR),
        *_IMAGE_AND_INPUT_DIGESTS,
        ("images", pa.list_(pa.float32())),
        ("ratings", NAMED_RATINGS),
    ]
)
"""Similarities of images and texts.

`similarity` is the model's output, a cosine or a reward. `truncated` is true if the text exceeded the model's context.
`images` is null for a row with one image. For a row with several images it lists the similarity of each, and
`similarity` is their mean. `ratings` are the components of a reward, for a row with one image or video; null if the
model returns a single number.
"""

CAPTIONS = make_image_schema(("captions", pa.list_(pa.struct([*texts("text"), *ints("width", "height")]))))
"""Captions of whole images, one per image of the row, with the size of the image in pixels."""

REGION = pa.struct([*texts("label"), *ints("x1", "y1", "x2", "y2")])
"""Description of an image region, and its box in pixels from the upper left corner."""

REGIONS = make_image_schema(("regions", pa.list_(pa.list_(REGION))))
"""Captions of image regions: one list of regions per image of the row."""

DESCRIPTIONS = make_image_schema(*text_lists("descriptions"))
"""Descriptions that a language model wrote from captions and regions, one per image of the row."""

VERDICTS = pa.schema(
    [
        *make_image_schema(("verdicts", pa.list_(pa.struct([("ratings", NAMED_RATINGS), *texts("rationale")])))),
        *ints("repeats"),
    ]
)
"""Verdicts of a judge: ratings, with a rationale, of how well an image or its description matches the prompt. There is
one verdict per image.

`repeats` is null if the judge is asked once. Otherwise each image has `repeats` verdicts, each null if the reply cannot
be read.
"""

PAIR_ANSWER = pa.struct([*texts("choice"), *floats("p_first"), *texts("reason")])
"""A judge's answer about two images: `first`, `second`, `tie` or `neither`, the probability that the first image is
better (ties and `neither` count half), and the judge's reason, null if it gives none.
"""

PAIRS = pa.schema(
    [
        *make_image_schema(("answers", pa.list_(PAIR_ANSWER))),
        *texts("other_image_id", "other_generator"),
    ]
)
"""Answers of a judge about pairs of images of the same prompt, one row per pair, as stored in cells.

The image of `other_generator` is shown first for the first answer, and second for the second answer.
"""

COMPARED_PAIRS = pa.schema(
    [
        *texts("prompt_id", "metric"),
        *texts("first_generator", "second_generator", "first_image_id", "second_image_id"),
        *PAIR_ANSWER,
        ("error", ERROR),
    ]
)
"""Answers of pairwise judges in a run, one row per pair of images and order in which they were shown.

The columns of PAIR_ANSWER are null if and only if `error` is not, except for `reason`.
"""

WIN_RATES = make_image_schema(("wins", pa.list_(pa.float64())))
"""For each image, the probability that it is better than each image that it was compared with: the mean over both
orders.
"""

IMAGE_STATISTICS = make_image_schema(
    ("statistics", pa.list_(pa.struct(float32s("edge_density", "entropy", "saturation"))))
)
"""Image statistics that do not depend on the prompt, one entry per image (operators/stages/image_statistics.py)."""

FUNCTION_VALUES = make_image_schema(("values", pa.list_(pa.struct(floats("value")))))
"""Values returned by a user's function (operators/stages/function_values.py), one per image of the row."""

SCORES = pa.schema(
    [*_IMAGE_COLUMNS, *texts("metric"), *floats("score"), *ints("n_questions"), *bools("truncated"), ("error", ERROR)]
)
"""One row per image and metric; `score` is null if and only if `error` is not.

`n_questions` is the number of questions that the score is computed from.
"""

ELEMENT = pa.struct(
    [*texts("question_id", "text", "span"), *ints("start", "end"), *texts("wanted", "given"), *floats("score")]
)
"""Contribution of one question to a score: the expected answer, the given answer, and a score in [0, 1], null if the
question was left out.
"""

ELEMENT_SCORES = pa.schema(
    [
        *SCORES,
        ("elements", pa.list_(ELEMENT)),
        *_INPUT_DIGEST,
        ("ratings", NAMED_RATINGS),
        *texts("rationale"),
        ("asks", pa.list_(pa.float64())),
    ]
)
"""Scores with details, as stored in cells.

`elements` has the score of every element of the prompt (null for metrics that ask only once). `ratings` and `rationale`
come from a judge (null for metrics without a judge). `asks` is for a judge that is asked several times: it has the
score of each call, null if the reply cannot be read. For all other metrics, the column is null.
"""

JUDGE_NOISE = pa.schema(
    [*texts("metric", "generator"), *longs("repeats", "images", "unread"), *floats("deviation", "share")]
)
"""Noise of a judge that is asked several times about each image.

`unread` is the number of unreadable replies, and `deviation` the standard deviation between the calls about one image.
A generator's scores are means over calls; `share` is the fraction of their variance that is due to this noise, null if
the scores do not vary.
"""

ERRORS = pa.schema(
    [*_IMAGE_COLUMNS, *texts("metric", "kind", "message"), *bools("retryable"), *texts("file"), *longs("row")]
)
"""Failures of a run, one row each; `image_id` is null if no image could be read.

`file` and `row` locate the failed row: the Parquet file of the image and the row's index, from 0; or the image's own
file, if an ingest left that file in place; or the table and the line, from 1, of a row that an ingest rejected. They
are null if the row is in no file.
"""

FAILURES = pa.schema([*ERRORS, *longs("rows")])
"""The first row of each kind of failure, with the columns of ERRORS and the number of failures of the kind
(failures.py).
"""

SUMMARY = pa.schema(
    [
        *texts("generator", "metric", "skill"),
        *floats("mean", "low", "high", "sem"),
        *longs("n", "n_null"),
        *floats("coverage"),
    ]
)
"""Mean scores by generator, metric and skill.

`n` is the number of rows with a score, `n_null` the number of rows without. `low` to `high` is the 95% interval of the
mean, bootstrapped over prompts (null if there are fewer than two). `sem` is the standard error that the mean would have
if all rows were independent.
"""

USUAL_SCORES = pa.schema([*texts("metric", "generator"), *longs("n"), ("values", pa.list_(pa.float64()))])
"""Representative scores of a metric and generator: all `n` scores, or a sample of the scores that is evenly spaced by
rank (operators/results/percentile_ranks.py).
"""

RATINGS = pa.schema([*_IMAGE_COLUMNS, *texts("rater", "template"), *floats("rating")])
"""One person's rating of one image; null if the person was unsure. `template` is the rating template (likert, wl, ...).
"""

PART_RATINGS = pa.schema([*_IMAGE_COLUMNS, *texts("rater", "template", "part"), *floats("rating")])
"""One person's answer about one part of an image, such as a word of its prompt or a question; null if the person was
unsure. An empty `part` means the image as a whole.
"""

TASKS = pa.schema(
    [
        *texts("task_id", "template", "prompt_id", "prompt"),
        *text_lists("skills", "image_ids", "generators", "words"),
        ("questions", pa.list_(pa.struct(texts("question_id", "text")))),
        *texts("gold"),
        ("places", pa.list_(pa.struct([*texts("shard"), *longs("row")]))),
    ]
)
"""Tasks for the raters of a study (jobs.rate), one row per page.

`image_ids`, `generators` and `places` have one entry, or two if images are compared. `words` are the words of the
prompt, if words are rated. `gold` is the correct answer as JSON, null if it is unknown.
"""

PREFERENCES = pa.schema(
    [*texts("prompt_id", "image_a", "image_b", "generator_a", "generator_b", "rater", "template", "preferred")]
)
"""One person's choice between two images of a prompt: `a`, `b`, or `unsure`; null without an answer. `template` is the
rating template (side_by_side, vote).
"""

PAIRINGS = pa.schema(
    [*texts("sample_id"), *text_lists("tags"), *ints("caption", "image"), *texts("prompt_id", "image_id")]
)
"""The four pairings of two captions (0, 1) with two images (0, 1) in a Winoground sample; caption i fits image i.

A sample counts once for each of its `tags`.
"""

GRAPH_NODES = pa.schema(
    [
        *texts("graph_id", "subset", "image_id", "node"),
        *ints("level"),
        *texts("generator", "prompt_source"),
        *text_lists("parents", "errors"),
    ]
)
"""Images of semantic error graphs (T2IScoreScore), one row each. `node` is the set of errors that the image has, and
`level` the number of these errors; a node may have several images.

`generator` made the image, and `prompt_source` is the origin of the graph's prompt. `parents` are the nodes with an
edge to this node; as in upstream's code, walks do not follow these edges. `errors` has all errors of the node, each
written as `type: error`. These four columns are null if unknown.
"""

GRAPH_CONTENTS = pa.schema([*texts("about", "subset", "name"), ("n", pa.int64()), *floats("share")])
"""Composition of the error graphs: numbers of images by source, of prompts by source, and of errors by type
(operators/metaeval/graphs.py).
"""

WORDS = pa.schema([*_IMAGE_COLUMNS, *texts("rater", "word"), *ints("start", "end"), *floats("aligned")])
"""One person's answer to the question whether an image shows a word of its prompt: 1 or 0, null if the person was
unsure.

The word is at characters `start` to `end` of the prompt.
"""

WORD_MATCHES = pa.schema(
    [
        *texts("metric"),
        *_IMAGE_COLUMNS,
        *texts("word"),
        *ints("start", "end"),
        *floats("rated", "score"),
        *ints("n_questions"),
    ]
)
"""A rated word with a metric's score. `rated` is the mean over the raters who were sure; `score` is the lowest score of
the questions about the word, null if no question is about the word.
"""

GRAPHS = pa.schema(
    [
        *texts("metric", "convention", "graph_id", "subset"),
        *floats("spearman", "kendall", "ordering", "kendall_ordering", "separation", "delta"),
    ]
)
"""Statistics of a metric's scores for each semantic error graph (operators/metaeval/graphs.py)."""

GRAPH_IMAGES = pa.schema(
    [*texts("metric", "graph_id", "subset", "node"), *ints("level"), *texts("image_id"), *floats("score")]
)
"""Each metric's score of every image of the error graphs, as the metric returns it; null without a score."""

GRAPH_MEANS = pa.schema(
    [*texts("metric", "graph_id", "subset", "node"), *ints("level"), *longs("n"), *floats("mean", "deviation")]
)
"""Mean and standard deviation of each metric's scores over the `n` scored images of every node."""

GRAPH_CORRELATIONS = pa.schema(
    [*texts("convention", "measure", "subset", "metric", "other"), *floats("pearson"), *longs("n")]
)
"""Correlation between the scores of two metrics in error graphs (operators/metaeval/graphs.py)."""

MEAN_RATINGS = pa.schema([*texts("template", "image_id", "prompt_id", "generator"), *floats("rating", "rating_0_1")])
"""Mean rating of each image in each template, over the raters who were sure. `rating_0_1` is the mean rescaled from the
template's scale to 0-1, null if the template's scale is unknown.
"""

JUDGEMENTS = pa.schema(
    [
        *texts("template", "subset", "generator", "other", "metric", "statistic"),
        *floats("value", "low", "high"),
        *longs("n", "n_prompts", "n_unscored", "n_unrated"),
        *texts("convention"),
    ]
)
"""A statistic of how well a metric agrees with people: `value` with its 95% interval, null if undefined (`convention`
has the reason). `subset` is a skill or `overall`. `generator` and `other` (for statistics about two generators) are
empty if the statistic covers all generators.
"""

COMPARISONS = pa.schema(
    [
        *texts("template", "statistic", "metric_a", "metric_b"),
        *floats("difference", "p_value", "p_holm"),
        *longs("n"),
        *texts("test"),
    ]
)
"""Tests of whether two metrics agree with people equally well."""

ORDERS = pa.schema(
    [
        *texts("template", "judge", "generator_a", "generator_b", "better"),
        *floats("difference", "p_value", "p_holm"),
        *longs("n"),
        *texts("convention"),
    ]
)
"""The better of two generators according to a metric or to people. `better` is null if the test is not significant, or
if the test's ranks favour one generator and the means the other.
"""

CORRECTED_MEANS = pa.schema(
    [
        *texts("template", "metric", "scale", "generator", "other"),
        *floats(
            "corrected",
            "low",
            "high",
            "people",
            "people_low",
            "people_high",
            "predicted",
            "predicted_low",
            "predicted_high",
            "worth",
        ),
        *longs("n_rated", "n_scored"),
        *texts("better", "metric_better", "note"),
    ]
)
"""Estimates of people's ratings over all prompts that a metric scored (operators/metaeval/corrected_means.py).

The estimate is a generator's mean rating, its win rate, or the fraction of its images that people would pass (`scale`:
rating, win_rate, passing). With `other`, it is the difference from that generator, or the win rate against it.
`corrected` combines people and the metric, with the 95% interval `low` to `high`; `people` uses the rated prompts
alone; `predicted` uses the metric alone, on the scale of the ratings. One rated prompt is worth `worth` rated prompts
without the metric. If no estimate is possible, `corrected` is null and `note` has the reason. `better` is the clearly
better generator according to people combined with the metric; `metric_better` is the clearly better generator according
to the metric's scores alone. The intervals of all pairs hold simultaneously.
"""

CONTRADICTED_IMAGES = pa.schema(texts("template", "metric", "image_id", "prompt_id", "generator", "why"))
"""Images about which a metric and people disagree most, with the reason (operators/metaeval/contradicted_images.py)."""

CORRELATIONS = pa.schema([*texts("metric", "other", "kind", "generator"), *floats("rho", "low", "high"), *longs("n")])
"""Spearman's rank correlation of a generator's scores on one metric with its scores on another metric, or with a
property of the prompts.
"""

DECISIONS = pa.schema(
    [
        *texts("metric", "generator_a", "generator_b", "verdict"),
        *floats("difference"),
        *longs("n", "n_missing", "decided_after"),
    ]
)
"""Decisions of an adaptive sweep between two generators.

`verdict` is the better generator (a or b), `alike` if their means differ by at most `adaptive.indifference`, or
`undecided`. `difference` is mean a - mean b over the `n` prompts that both have scores for. `decided_after` is the
number of prompts after which the decision was made (null if undecided).
"""
