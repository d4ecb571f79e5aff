"""Errors that tell the user what to do, errors for single rows, and the remedy for each kind of row error."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple


class PlumblineError(Exception):
    """Base class of errors whose one-line message says what was expected, what was found, where, and what to do."""


class ConfigError(PlumblineError):
    """Error in a configuration, raised before any model loads."""


class MissingExtraError(ConfigError):
    """Error for a missing package that one of our extras would install."""


class SourceError(PlumblineError):
    """Error for source data that are missing, truncated or invalid, or have the wrong schema."""


class ModelError(PlumblineError):
    """Error for a checkpoint that is missing, invalid, or cannot be loaded."""


class EngineError(ModelError):
    """Error for a loaded model that can no longer be used; only a new process can load the model again."""


class RowError(NamedTuple):
    """Reason why a row has no result: the content of the row's `error` column."""

    kind: str
    """Short stable name, such as `corrupt_image`; a key of REMEDIES_BY_KIND."""
    message: str
    """Description of the problem, and the remedy."""
    retryable: bool = False
    """True if the row may succeed when the same computation is repeated."""


class RefusedUriError(PlumblineError):
    """Error for an address that a row may not refer to, such as one outside the allowed folders; nothing was read."""


class UnprocessableRowError(PlumblineError):
    """Error raised by a model for a row that it can never process, such as a prompt that exceeds the context."""

    def __init__(self, error: RowError) -> None:
        super().__init__(error.message)
        self.error = error


ZERO_WIDTH_JOINER = "\u200d"
"""Zero-width joiner, which combines emoji. It is allowed although it is not printable, because it hides no text."""


def replace_invisible(text: str) -> str:
    """Return the text with each invisible character replaced by "?".

    Such a character could hide or reverse the text around it.
    """
    return "".join(char if char.isprintable() or char in ("\n", "\t", ZERO_WIDTH_JOINER) else "?" for char in text)


DISTRIBUTION = "plumbline-t2i"
"""Name of this package on PyPI, as in pyproject.toml."""


def format_install_remedy(extra: str) -> str:
    """Return the instruction to install an extra, for errors about a missing package."""
    return f"install the extra {extra!r} of {DISTRIBUTION} (in a checkout: pip install -e '.[{extra}]')"


def describe_missing_plugin(what: str, plugin: str) -> str:
    """Return a message that says that `what` belongs to a plugin that is not installed, and what to do."""
    return (
        f"{what} of the plugin {plugin!r}, which is not installed; reinstall {DISTRIBUTION}, or restore the folder "
        f"plugins/{plugin}"
    )


MAX_NAME_CHARACTERS = 200
"""Maximum length of an unknown name in characters. For longer names, no similar names are suggested."""


def suggest(name: object, known: Iterable[str], otherwise: str = "remove it or correct its name") -> str:
    """Return text that suggests the known names most similar to an unknown name; `otherwise` if none is similar."""
    text = str(name)
    near = get_close_matches(text, list(known), n=2, cutoff=0.5) if len(text) <= MAX_NAME_CHARACTERS else []
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def check_known(key: str, value: str, known: Iterable[str]) -> None:
    """Raise ConfigError if the key's value is not among the known names."""
    names = list(known)
    if value not in names:
        raise ConfigError(f"{key}: expected one of {', '.join(names)}, got {value!r}; {suggest(value, names)}")


def hide_secrets(text: str) -> str:
    """Return the text without credentials and query strings in its addresses; a query string may contain a signature.

    In an address without a scheme, a query string is recognised by its start, `?name=`.
    """
    text = re.sub(r"(?<=://)[^/\s@]+@", "***@", text)
    # the outer expression reads each address once, even if it contains others
    text = re.sub(r"://[^\s'\"]+", lambda address: re.sub(r"\?.+", "?***", address[0]), text)
    return re.sub(r"(?<=[^\s'\"])\?[\w.~%-]+=[^\s'\"]+", "?***", text)


REMEDIES_BY_KIND: Mapping[str, str] = {
    "blank_picture": "check the prompt and the settings, or set the generator's dtype=float32",
    "broken_file": "write or upload the file again",
    "cell_unreadable": "check the store's disk or server, and run again",
    "corrupt_image": "generate the image again, as 8-bit PNG or JPEG",
    "corrupt_video": "generate the video again, as MP4 or WebM",
    "empty_prompt": "fill in the prompt's text, or drop the prompt",
    "empty_reply": "run again; if the error persists, raise the metric's max_tokens or use another model",
    "environment_failed": "run again; if the error persists, check that the machine has uv, space and a connection",
    "function_failed": "correct the function; if its file has changed, its values are computed again",
    "image_not_embedded": "embed the images' bytes, or put their addresses in `uri`",
    "image_too_large": "check the image, or raise limits.max_pixels, limits.max_bytes or limits.max_scans; "
    "for a service, set the model's image_format=jpeg",
    "image_too_small": "use a larger image",
    "image_too_slow": "save the image again as PNG or JPEG, or raise limits.max_seconds",
    "incomplete_cell": "run again; if the error persists, delete the folder that the message names",
    "killed_worker": "check the image, or give the stage more memory or time (cluster.pools)",
    "missing_extra": "install the extra that the message names, and run again",
    "missing_image": "generate the image, or set benchmark.require_every_prompt=false",
    "missing_prompt_id": "fill in the row's prompt_id",
    "model_failed": "run again; if the error persists, set a smaller image_batch",
    "model_unavailable": "run again; if the error persists, check the endpoint, or lower the model's concurrency",
    "no_caption": "fill in the row's captions; for an edit, describe the source and the intended result",
    "no_pair": "generate the other generators' images of the prompt, or compare with other generators",
    "no_reference": "add a reference that describes the image",
    "too_long": "leave out some of the caption's references, or shorten the texts",
    "no_edit_kind": "set benchmark.prompt_columns.skills to the column with the kinds, or set the metric's edit_kind",
    "no_likelihood": "use a model whose weights run here, or single-token choices",
    "no_questions": "check the prompt's questions; lower the metric's threshold or turn its filter off",
    "no_track": "set benchmark.prompt_columns.skills to the column with the tracks, or set the metric's track",
    "no_text_wanted": "put the expected words in double quotes or in a column, or leave the prompt out",
    "unknown_script": "only Latin and Chinese words are compared; leave the prompt out",
    "not_computed": "run without retry_failed=true",
    "not_finite": "set the model's dtype=float32; in an imported table, correct the number",
    "not_scored": "score the image, or leave its row out",
    "prompt_too_long": "shorten the prompt, lower the metric's max_tokens, or use a model with a longer context",
    "quota_spent": "add credit to the account, or raise its limit, and run again",
    "reply_refused": "check the prompt, or use another model",
    "request_refused": "act on the endpoint's message; shorten the prompt, or use a model that accepts it",
    "shard_failed": "run again; if the error persists, act on the message",
    "stopped": "run the same command to continue",
    "too_many_images": "keep fewer images in the row, or raise limits.max_images",
    "unfinished_thought": "raise the model's thinking_tokens, or set its thinking=refused",
    "unknown_prompt": "add the prompt, correct the row's prompt_id, or set benchmark.require_every_image=false",
    "unreadable_reply": "use a more capable model as writer or judge, or raise the metric's max_tokens",
    "unusable_prompt": "pass the prompt as text, without lone surrogates",
    "unusable_value": "have the function return a finite number within its score_range",
    "worker_died": "check the image, give the machine more memory, or raise the environment's timeout",
    "unusable_mask": "draw the mask as large as the source, white where the edit is and black elsewhere",
    "unreadable_uri": "check the address, and that the credentials allow reading it",
    "uri_refused": "move the image below the benchmark's folders, or add its folder to benchmark.uri_roots; "
    "for a service, to video_folders",
}
"""One-line remedy for each kind of row error; docs/failures.md has the details."""

EMPTY_PROMPT_ERROR = RowError("empty_prompt", f"the prompt has no text; {REMEDIES_BY_KIND['empty_prompt']}")

MAX_PROMPT_CHARACTERS = 20_000
"""Maximum length of a prompt in characters. Models read a few thousand at most, and the longest prompts of released
benchmarks have about 3,000.
"""


def check_prompt(text: str) -> RowError | None:
    """Return an error if a prompt is empty or far too long, so that no question can be asked about it."""
    if len(text) > MAX_PROMPT_CHARACTERS:
        message = f"the prompt has {len(text)} characters, but at most {MAX_PROMPT_CHARACTERS} are allowed; shorten it"
        return RowError("prompt_too_long", message)
    return None if text.strip() else EMPTY_PROMPT_ERROR


def make_unknown_prompt_error(prompt_id: str | None) -> RowError:
    """Return the error for a row whose prompt is not in the benchmark."""
    message = f"prompt_id {prompt_id!r} is not in the benchmark's prompts; add the prompt, or correct the id"
    return RowError("unknown_prompt", message)
