"""What the simulator's page says of scenarios and policies is so."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

from engine.sim.profile import HostLink
from loadgen.kernel_config import kernel_config
from loadgen.scenario import Scenario
from loadgen.tables import build
from policies.config import PolicyConfig

PAGE = (Path(__file__).parents[2] / "docs/simulator.md").read_text()
LINK = HostLink(bytes_per_second=1e9, bytes_per_token=1, overlap=True)


def test_the_pages_scenario_can_be_used() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    scenario = build(Scenario, tomllib.loads(text), "")
    assert [client.name for client in scenario.clients] == ["small", "large"]
    policies = {name: kernel_config(scenario, name, LINK).policy for name in scenario.policies}
    assert policies["fair"] == PolicyConfig()
    assert policies["vtc_by_deadline"].fairness.name == "vtc"


def test_the_page_names_every_field_of_a_policy() -> None:
    table = PAGE.partition("## Fields of a policy")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| (`.*?`) \|", table)
    assert sorted(re.findall(r"`([\w.]+)`", " ".join(rows))) == sorted(_paths(PolicyConfig()))


def _paths(value: object, before: str = "") -> Iterator[str]:
    for field in fields(value):  # type: ignore[arg-type]
        inner = getattr(value, field.name)
        if is_dataclass(inner):
            yield from _paths(inner, f"{before}{field.name}.")
        else:
            yield before + field.name
