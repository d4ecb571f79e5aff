"""The Hugging Face Hub: a run's scores of one generator in its model's repository, as a section of the model card and
as evaluation results.

They are written into files of a folder first. Only where `hub.upload` names a repository a pull request is opened
there, of the same sections in the repository's own files. What others wrote in these files stays as it is.
"""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import yaml  # type: ignore[import-untyped]
from huggingface_hub import (
    CommitOperationAdd,
    EvalResultEntry,
    HfApi,
    eval_result_entries_to_yaml,
    hf_hub_download,
    parse_eval_result_entries,
)

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.report.rendering import template_environment
from plumbline.pipelines.base.exit_codes import OVER_BUDGET
from plumbline.pipelines.base.markdown_sections import MARKDOWN, YAML, replace_section, split_at_section
from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.plugins.exports.sinks.model_card import ModelCard, make_card, scores_of
from plumbline.plugins.exports.sinks.run_story import HubConfig, RunStory

CARD, RESULTS = "README.md", ".eval_results"
OWN_RESULTS = f"{RESULTS}/plumbline.yaml"
TEMPLATES = Path(__file__).parents[1] / "templates"
ENDINGS = (".yaml", ".yml")
DIGITS = 6
"""Of a value behind the point."""

Files = Mapping[str, str]
"""Texts of a model's repository by path."""


def publish(run: RunStory) -> str:
    """Writes the sections into the folder, and sends them where that is asked; gives where they stand.

    Raises ConfigError where the folder's other text does not leave room for them, or what is asked is not in the run.
    """
    hub = run.hub
    if hub.generator is None or run.folder is None:
        raise ConfigError("sink=hub: expected hub.generator=NAME, the model, and hub.folder=PATH, where its files are")
    card = make_card(run.manifest, run.summary, hub.generator)
    sections = {CARD: template_environment(TEMPLATES).get_template("model_card.md.j2").render(card=card)}
    if hub.dataset is not None:
        sections[OWN_RESULTS] = yaml.safe_dump(_entries(run, card, hub), sort_keys=False, allow_unicode=True)
    name = f"plumbline {quote(card.benchmark, safe='')}"
    for path, text in _written(_folder_files(run.folder), sections, name, str(run.folder)).items():
        (run.folder / path).write(text.encode())
    return run.folder.url if hub.upload is None else _send(hub.upload, sections, name, card)


def _entries(run: RunStory, card: ModelCard, hub: HubConfig) -> list[dict[str, object]]:
    """The scores in the Hub's form: huggingface/hub-docs, docs/hub/eval-results.md, 242f4a1."""
    if card.part or run.manifest.get("exit_code") == OVER_BUDGET:
        why = f"it scored {card.part}" if card.part else "more of its rows failed than its budget allows"
        raise ConfigError(f"run={card.run_id}: no result of the benchmark, as {why}; publish another run, or leave out "
                          "hub.dataset for the card alone")  # fmt: skip
    entries = [
        EvalResultEntry(
            dataset_id=str(hub.dataset),
            dataset_revision=hub.revision,
            task_id=score.task,
            value=round(score.value, DIGITS),
            date=card.date or None,
            source_url=hub.source,
            notes=score.notes,
        )
        for score in scores_of(card, hub.tasks or {})
    ]
    return eval_result_entries_to_yaml(entries)


def _written(files: Files, sections: Files, name: str, where: str) -> dict[str, str]:
    """Those of the files that change, as they are with the sections of this name."""
    changed = {}
    for path, text in sections.items():
        comments = MARKDOWN if path == CARD else YAML
        content = replace_section(files.get(path, ""), name, text, f"{where}/{path}", comments)
        if path == OWN_RESULTS:
            _check_results(files, text, content, name, where)
        if content != files.get(path):
            changed[path] = content
    return changed


def _check_results(files: Files, own: str, content: str, name: str, where: str) -> None:
    """Raises ConfigError where somebody has an entry of the same task, or the file with our entries cannot be read."""
    _tasks(content, f"{where}/{OWN_RESULTS}")
    ours = _tasks(own, OWN_RESULTS)
    for path, text in files.items():
        if path != CARD:
            others = "".join(split_at_section(text, name, f"{where}/{path}", YAML)) if path == OWN_RESULTS else text
            for dataset, task in ours & _tasks(others, f"{where}/{path}"):
                raise ConfigError(
                    f"{where}/{path} has an entry of its own for task {task!r} of {dataset}; name another task by "
                    "hub.tasks, or remove the entry if it is yours"
                )


def _tasks(text: str, where: str) -> set[tuple[str, str]]:
    """The datasets and tasks that the entries of a file are of."""
    try:
        return {(entry.dataset_id, entry.task_id) for entry in parse_eval_result_entries(yaml.safe_load(text) or [])}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{where}: expected a YAML list of evaluation results ({error}); correct the file") from error


def _folder_files(folder: Place) -> dict[str, str]:
    """The card and the results of a folder, where it has them."""
    with readable_errors(folder, "the model's folder"):
        results = folder / RESULTS
        names = sorted(results.list()) if results.is_folder() else []
        paths = [path for path in (CARD, *(f"{RESULTS}/{name}" for name in names)) if _is_told(path)]
        return {path: (folder / path).read().decode() for path in paths if (folder / path).is_file()}


def _is_told(path: str) -> bool:
    return path == CARD or (path.startswith(f"{RESULTS}/") and path.endswith(ENDINGS))


def _send(repo: str, sections: Files, name: str, card: ModelCard) -> str:
    """Opens a pull request with what the repository lacks, or adds it to ours of this benchmark that is open."""
    api, title = HfApi(), f"Scores on {' '.join(card.benchmark.split())} by Plumbline"
    revision = _open_request(api, repo, title)
    paths = [path for path in api.list_repo_files(repo, revision=revision) if _is_told(path)]
    files = {path: Path(hf_hub_download(repo, path, revision=revision)).read_text("utf-8") for path in paths}
    changed = _written(files, sections, name, repo)
    if not changed:
        return f"{api.endpoint}/{repo}{f'/tree/{revision}' if revision else ''}, where it stands already"
    additions = [CommitOperationAdd(path, text.encode()) for path, text in changed.items()]
    sent = api.create_commit(
        repo, additions, commit_message=title, revision=revision, create_pr=revision is None,
        commit_description=f"Run {card.run_id}, generator {card.generator}.",
    )  # fmt: skip
    return str(sent.pr_url or sent.commit_url)


def _open_request(api: HfApi, repo: str, title: str) -> str | None:
    """The branch of the pull request of this title that we have open."""
    found = api.get_repo_discussions(
        repo, author=api.whoami()["name"], discussion_type="pull_request", discussion_status="open"
    )
    return next((request.git_reference for request in found if request.title == title), None)
