"""Checks that a reward server's scores are right and repeatable, depend on all inputs, and arrive quickly."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table
from plumbline.jobs.overrides import LIST_SYNONYMS
from plumbline.operators.base.errors import hide_secrets
from plumbline.operators.base.sentences import format_quantity
from plumbline.plugins.reward_server.reward_checks import CheckRewardsConfig, check_rewards

COMMAND = Command(
    "check_rewards",
    "Check a reward server, ours or another, before you train with it (plugins/reward_server/README.md): do images\n"
    "that fit their prompts score higher, do broken images get no number, and is an image's number the same in every\n"
    "batch?",
    CheckRewardsConfig,
    LIST_SYNONYMS,
    first="url",
    extra="api",
)


def main(config: CheckRewardsConfig) -> int:
    """Print a table of the checks; return 1 if a check failed, otherwise 0."""
    console = make_console()
    checks = check_rewards(config)
    rows = [[check.name, check.reward, check.finding.outcome, check.finding.details] for check in checks]
    show_table(console, f"{config.wire} at {hide_secrets(config.url)}", ("check", "reward", "outcome", "details"), rows)
    failed = [check for check in checks if check.finding.outcome == "fails"]
    say(console, f"{format_quantity(len(failed), 'check')} of {len(checks)} failed" if failed else "no check failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
