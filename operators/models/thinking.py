"""Checkpoints that think before they answer: their reply begins with a thought, which is never scored as an answer."""

import json
import re
from pathlib import Path, PurePath

MARKS = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("◁think▷", "◁/think▷"), ("[THINK]", "[/THINK]"))
NAMED = re.compile(r"(^|[-_. ])thinking($|[-_. ])", re.IGNORECASE)
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
PROBLEM = (
    "a thinking model: it would be scored on the first token of a thought and not of an answer; "
    "use the checkpoint of the same model that answers at once, often called Instruct"
)


def opens_thought(prompt: str) -> bool:
    """Whether a rendered prompt leaves a thought open."""
    return any(prompt.rfind(opening) > prompt.rfind(closing) for opening, closing in MARKS)


def file_thinks(file: Path) -> bool:
    """Whether the chat template in one of TEMPLATE_FILES opens a thought for the reply and never closes it.

    No template is run; a file that cannot be read turns out at loading.
    """
    text = file.read_text(errors="replace")
    ending = (text if file.suffix == ".jinja" else _wrapped(text)).rpartition("add_generation_prompt")[2]
    return any(opening in ending and closing not in ending for opening, closing in MARKS)


def _wrapped(text: str) -> str:
    """The chat template that a JSON file has, if it has one."""
    try:
        return str(json.loads(text).get("chat_template"))
    except (ValueError, AttributeError):
        return ""


def named_thinking(source: str) -> bool:
    """Whether a hub id or a folder is called one: some chat templates leave the opening of the thought to the model."""
    return NAMED.search(PurePath(source).name) is not None
