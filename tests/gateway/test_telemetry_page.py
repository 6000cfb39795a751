"""The table of metrics in the documentation is that of the page which is served."""

import re
from pathlib import Path

import pytest

from telemetry.measures import Gauge, Histogram
from telemetry.metrics import MetricsFold
from tests.gateway.live import LiveServer

pytestmark = pytest.mark.model  # the text is that of the default model

PAGE = Path(__file__).parents[2] / "docs/telemetry.md"


def test_every_metric_is_told_of_and_no_other(server: LiveServer) -> None:
    told = re.findall(r"(?m)^\| `(watermaster_\w+)", PAGE.read_text())
    with server.client() as client:
        served = re.findall(r"(?m)^# HELP (\w+)", client.get("/metrics").text)
    assert sorted(told) == sorted(served)


def test_the_labels_of_what_engines_do_are_told() -> None:
    told = dict(re.findall(r"(?m)^\| `(watermaster_\w+)\{(.*)\}`", PAGE.read_text()))
    for measure in MetricsFold("some").measures():
        total = "" if isinstance(measure, Gauge | Histogram) else "_total"
        assert told[measure.name + total] == ",".join(("engine", *measure.labels))
