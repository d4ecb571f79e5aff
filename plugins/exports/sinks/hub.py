"""Writes a generator's scores into its model card and its evaluation results for the Hugging Face Hub.

The card and the results are files in a folder. Plumbline replaces only its own section of each file, and keeps all
other text. If `hub.upload` names a repository, a pull request makes the same changes to the repository's files.
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
from plumbline.operators.report.rendering import make_template_environment
from plumbline.pipelines.base.exit_codes import OVER_BUDGET
from plumbline.pipelines.base.markdown_sections import MARKDOWN, YAML, replace_section, split_at_section
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.plugins.exports.sinks.model_card import ModelCard, make_card, select_scores
from plumbline.plugins.exports.sinks.run_contents import HubConfig, RunContents

CARD_FILE, RESULTS_FOLDER = "README.md", ".eval_results"
OWN_RESULTS_FILE = f"{RESULTS_FOLDER}/plumbline.yaml"
TEMPLATES_FOLDER = Path(__file__).parents[1] / "templates"
RESULTS_SUFFIXES = (".yaml", ".yml")
MEAN_DECIMALS = 6

TextFiles = Mapping[str, str]
"""Text files of a model's repository, by path."""


def publish(run: RunContents) -> str:
    """Write the sections into the folder's files, and open or update a pull request if requested; return the address.

    Raises ConfigError if the run cannot be published, or if a file in the folder cannot be changed.
    """
    hub = run.hub
    if hub.generator is None or run.folder is None:
        raise ConfigError(
            "sink=hub: expected hub.generator=NAME (the model) and hub.folder=PATH (its folder), got "
            f"{hub.generator} and {hub.folder}; set both"
        )
    card = make_card(run.manifest, run.summary, hub.generator)
    sections = {
        CARD_FILE: make_template_environment(TEMPLATES_FOLDER).get_template("model_card.md.j2").render(card=card)
    }
    if hub.dataset is not None:
        sections[OWN_RESULTS_FILE] = yaml.safe_dump(_make_entries(run, card, hub), sort_keys=False, allow_unicode=True)
    name = f"plumbline {quote(card.benchmark, safe='')}"
    for path, text in _update_files(_read_folder(run.folder), sections, name, str(run.folder)).items():
        (run.folder / path).write(text.encode())
    return run.folder.url if hub.upload is None else _upload_sections(hub.upload, sections, name, card)


def _make_entries(run: RunContents, card: ModelCard, hub: HubConfig) -> list[dict[str, object]]:
    """Return the scores in the Hub's format (huggingface/hub-docs, docs/hub/eval-results.md, 242f4a1)."""
    if card.part or run.manifest.get("exit_code") == OVER_BUDGET:
        reason = f"it scored {card.part}" if card.part else "more of its rows failed than its budget allows"
        raise ConfigError(f"run={card.run_id}: expected a result for the whole benchmark, but {reason}; publish "
                          "another run, or leave out hub.dataset to write only the card")  # fmt: skip
    entries = [
        EvalResultEntry(
            dataset_id=str(hub.dataset),
            dataset_revision=hub.revision,
            task_id=score.task,
            value=round(score.value, MEAN_DECIMALS),
            date=card.date or None,
            source_url=hub.source,
            notes=score.notes,
        )
        for score in select_scores(card, hub.tasks or {})
    ]
    return eval_result_entries_to_yaml(entries)


def _update_files(files: TextFiles, sections: TextFiles, name: str, where: str) -> dict[str, str]:
    """Add or replace the sections in the files; return the files whose content changed, by path."""
    changed = {}
    for path, text in sections.items():
        comments = MARKDOWN if path == CARD_FILE else YAML
        content = replace_section(files.get(path, ""), name, text, f"{where}/{path}", comments)
        if path == OWN_RESULTS_FILE:
            _check_results(files, text, content, name, where)
        if content != files.get(path):
            changed[path] = content
    return changed


def _check_results(files: TextFiles, own: str, content: str, name: str, where: str) -> None:
    """Raise ConfigError if our results file is invalid, or if another author has an entry for one of our tasks."""
    _read_tasks(content, f"{where}/{OWN_RESULTS_FILE}")
    own_tasks = _read_tasks(own, OWN_RESULTS_FILE)
    for path, text in files.items():
        if path != CARD_FILE:
            others = (
                "".join(split_at_section(text, name, f"{where}/{path}", YAML)) if path == OWN_RESULTS_FILE else text
            )
            for dataset, task in own_tasks & _read_tasks(others, f"{where}/{path}"):
                raise ConfigError(
                    f"{where}/{path} already has an entry for task {task!r} of {dataset}; choose another task with "
                    "hub.tasks, or remove the entry if it is yours"
                )


def _read_tasks(text: str, where: str) -> set[tuple[str, str]]:
    try:
        return {(entry.dataset_id, entry.task_id) for entry in parse_eval_result_entries(yaml.safe_load(text) or [])}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{where}: expected a YAML list of evaluation results ({error}); correct the file") from error


def _read_folder(folder: Place) -> dict[str, str]:
    with convert_read_errors(folder, "the model's folder"):
        results = folder / RESULTS_FOLDER
        names = sorted(results.list()) if results.is_folder() else []
        paths = [
            path for path in (CARD_FILE, *(f"{RESULTS_FOLDER}/{name}" for name in names)) if _is_card_or_results(path)
        ]
        return {path: (folder / path).read().decode() for path in paths if (folder / path).is_file()}


def _is_card_or_results(path: str) -> bool:
    return path == CARD_FILE or (path.startswith(f"{RESULTS_FOLDER}/") and path.endswith(RESULTS_SUFFIXES))


def _upload_sections(repo: str, sections: TextFiles, name: str, card: ModelCard) -> str:
    """Change the files in a pull request, and return the address of the pull request or commit.

    If this benchmark already has an open pull request of ours, a commit is added to it. If no file would change, the
    address of the repository, or of the pull request's branch, is returned with the word `unchanged`.
    """
    api, title = HfApi(), f"Scores on {' '.join(card.benchmark.split())} by Plumbline"
    revision = _find_pull_request(api, repo, title)
    paths = [path for path in api.list_repo_files(repo, revision=revision) if _is_card_or_results(path)]
    files = {path: Path(hf_hub_download(repo, path, revision=revision)).read_text("utf-8") for path in paths}
    changed = _update_files(files, sections, name, repo)
    if not changed:
        return f"{api.endpoint}/{repo}{f'/tree/{revision}' if revision else ''}, unchanged"
    additions = [CommitOperationAdd(path, text.encode()) for path, text in changed.items()]
    sent = api.create_commit(
        repo, additions, commit_message=title, revision=revision, create_pr=revision is None,
        commit_description=f"Run {card.run_id}, generator {card.generator}.",
    )  # fmt: skip
    return str(sent.pr_url or sent.commit_url)


def _find_pull_request(api: HfApi, repo: str, title: str) -> str | None:
    """Return the branch of our open pull request with this title; None if there is no such pull request."""
    found = api.get_repo_discussions(
        repo, author=api.whoami()["name"], discussion_type="pull_request", discussion_status="open"
    )
    return next((request.git_reference for request in found if request.title == title), None)
