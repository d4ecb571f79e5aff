"""Tries a reward server, ours or another's: order, nulls, sameness, latency, and what it ignores."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table
from plumbline.jobs.overrides import LISTS
from plumbline.operators.base.errors import hide_secrets
from plumbline.operators.base.sentences import plural
from plumbline.plugins.reward_server.reward_checks import CheckRewardsConfig, check_rewards

COMMAND = Command(
    "check_rewards",
    "Try a reward server before a training relies on it, ours or another's (plugins/reward_server/README.md): whether\n"
    "pictures that fit their prompts score higher, broken images get no number, and a picture's number is the same in\n"
    "any batch.",
    CheckRewardsConfig,
    LISTS,
    first="url",
)


def main(config: CheckRewardsConfig) -> int:
    """Shows a line for each check; 0 where none fails, else 1."""
    console = make_console()
    checks = check_rewards(config)
    rows = [[check.name, check.reward, check.finding.outcome, check.finding.seen] for check in checks]
    show_table(console, f"{config.wire} at {hide_secrets(config.url)}", ("check", "reward", "outcome", "seen"), rows)
    failed = [check for check in checks if check.finding.outcome == "fails"]
    say(console, f"{plural(len(failed), 'check')} of {len(checks)} failed" if failed else "no check failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
