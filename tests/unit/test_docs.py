"""The documents are true: what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmixer import catalog
from rmixer.cli import cli
from rmixer.spec import json_schema

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link is a file of the repository."""
    for target in LINK.findall(page.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), target


def test_every_verb_has_help_and_is_in_the_readme() -> None:
    """`--help` of every verb answers, every option has a text, and the README shows the verb."""
    readme = (ROOT / "README.md").read_text()
    for name, command in cli.commands.items():
        done = CliRunner().invoke(cli, [name, "--help"])
        assert done.exit_code == 0
        assert command.short_help
        assert f"rmixer {name} " in readme
        for parameter in command.params:
            assert parameter.param_type_name == "argument" or parameter.help, parameter.name


def test_readme_commands_exist() -> None:
    """Each `make` target and each option of `rmixer run` that the README names is there."""
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\$ make ([a-z]+)", readme)) <= targets
    help_text = CliRunner().invoke(cli, ["run", "--help"]).output
    for line in re.findall(r"rmixer run ([^\n`]*)", readme):
        ours = line.split("#")[0].split("-- ")[0]  # behind `-- ` stands somebody's own command
        for option in re.findall(r"(--[a-z-]+)", ours):
            assert option in help_text, option


def test_every_key_of_a_job_is_documented() -> None:
    """docs/jobs-file.md has a row for each key that the schema knows."""
    page = (ROOT / "docs" / "jobs-file.md").read_text()
    entry = json_schema()["$defs"]["JobEntry"]["properties"]
    for key in entry:
        assert re.search(rf"^\| .*`{key}`", page, re.MULTILINE), key


def test_extension_points_are_in_contributing() -> None:
    """CONTRIBUTING says how to add one of each kind."""
    page = (ROOT / "CONTRIBUTING.md").read_text().lower()
    for kind in ("policy", "model", "dataset", "executor"):
        assert f"**a {kind}**" in page or f"**an {kind}**" in page
        assert catalog.table(kind)
