"""Every operation of the served OpenAPI document, with data that it allows and that it forbids.

Answers must be of the statuses, types and members that the document names.
"""

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi import checks

from gateway.operations import OPERATIONS, Operation
from tests.gateway.fuzzed import VICTIM, Fuzzed
from tests.gateway.live import MODEL

pytestmark = [
    pytest.mark.model,  # the text is that of the default model
    # The server draws at random in its own threads, while hypothesis does in this one.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module"),
]

FUZZ = settings(
    max_examples=10,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
REJECTS = [*CHECKS, checks.negative_data_rejection]
CASES = [
    pytest.param(one, mode, id=f"{mode.value} {one.method} {one.path}")
    for one in OPERATIONS
    for mode in schemathesis.GenerationMode
    # Some take nothing that could be wrong.
    if mode is schemathesis.GenerationMode.POSITIVE or one.body or one.query or "{" in one.path
]


@pytest.fixture(scope="module")
def schema(fuzzed: Fuzzed) -> Any:
    """The document, with names of what there is where any would do: others are soon refused."""
    document = httpx.get(f"{fuzzed.server.url}/openapi.json").json()
    for name in ("ChatRequest", "CompletionRequest", "MessagesRequest"):
        document["components"]["schemas"][name]["properties"]["model"] = {"const": MODEL}
    there = {"tenant": VICTIM, "key": fuzzed.server.keys[VICTIM].split("-")[1], "model": MODEL}
    for item in document["paths"].values():
        for operation in item.values():
            operation.pop("security", None)  # the key is sent below, and a spoilt one is not
            for parameter in operation["parameters"]:
                if parameter.get("in") == "path" and parameter["name"] in there:
                    parameter["schema"] = {"enum": [there[parameter["name"]], "0" * 12]}
    found = schemathesis.openapi.from_dict(document)
    found.config.update(base_url=fuzzed.server.url)
    return found


@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_answers_are_as_documented(
    operation: Operation, mode: Any, fuzzed: Fuzzed, schema: Any
) -> None:
    described = schema[operation.path][operation.method]
    key = fuzzed.server.keys["admin" if operation.key == "admin" else "gold"]
    bearer = {"authorization": f"Bearer {key}"}
    positive = mode is schemathesis.GenerationMode.POSITIVE

    @FUZZ
    @given(case=described.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        response = case.call(headers=bearer, timeout=20)
        fuzzed.check(response)
        case.validate_response(response, checks=CHECKS if positive else REJECTS)

    check()
