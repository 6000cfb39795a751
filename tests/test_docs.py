"""What the documents point to is there, and the README's calls can be pasted again and again."""

import json
import re
from pathlib import Path

import pytest

from gateway.schema import parse_chat
from tenants.settings import SETTINGS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_headings_that_are_there(document):
    found = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", document.read_text())
    local = [(target, anchor) for target, anchor in found if "://" not in target]
    assert [f"{t}#{a}" for t, a in local if a not in anchors(document.parent / t, document)] == []


def anchors(target: Path, document: Path) -> set[str]:
    """What the headings of `target` are linked by; of `document` where the link names no file."""
    text = (document if target == document.parent else target).read_text()
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readmes_bodies_are_requests_that_are_accepted():
    bodies = re.findall(r"-d '(\{.*?\})'", README, re.DOTALL)
    assert len(bodies) == 2
    for body in bodies:
        assert parse_chat(json.dumps(json.loads(body)).encode()).max_tokens == 40


def test_the_readmes_task_is_a_new_one_each_time():
    """A task that was cancelled, or whose time is over, refuses what comes later."""
    assert re.findall(r"x-task-id: ([\w$]+)", README) == ["$TASK"]
    assert re.findall(r"/v1/tasks/([\w$]+)", README) == ["$TASK"]
    assert "TASK=demo-$(date +%s)\n" in README


def test_the_words_that_choose_tests_choose_some():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    chosen = re.findall(r"pytest (tests/\S+\.py) .*-k (\w+)", text)
    assert chosen
    for file, word in chosen:
        assert re.search(rf"(?m)^def test_\w*{word}", (ROOT / file).read_text())


def test_the_settings_of_tenants_are_told_as_the_commands_tell_them():
    text = (ROOT / "docs/tenancy.md").read_text()
    table = text.partition("| setting | meaning |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"(?m)^\| `(\w+)` \| (.*) \|$", table)
    assert rows == [(setting.name, setting.about) for setting in SETTINGS.values()]
