"""The OpenAPI document says what is mounted, and what the models and tables accept."""

import httpx
import pytest

from gateway import anthropic_parameters, openai_parameters
from gateway.app import build_routes
from gateway.errors import TABLE
from gateway.openapi import document
from gateway.operations import OPERATIONS, UNSERVED
from gateway.parameters import Treatment
from tenants.settings import SETTINGS
from tests.gateway.live import LiveServer


@pytest.mark.model
def test_every_mounted_route_is_in_it_and_nothing_else(server: LiveServer) -> None:
    mounted = {
        (method, route.path.replace(":path", ""))
        for route in build_routes(server.gateway)
        for method in (route.methods or ()) - {"HEAD"}
    }
    paths = document()["paths"]
    described = {(method.upper(), path) for path, item in paths.items() for method in item}
    assert described == mounted


def test_every_error_is_in_it() -> None:
    """The router's own is no operation's, and what cannot be asked for cannot fail."""
    told = {refusal for operation in OPERATIONS for refusal in operation.codes}
    assert {str(one) for one in set(TABLE) - told} == {"method_not_allowed", *UNSERVED}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ChatRequest", openai_parameters.CHAT),
        ("CompletionRequest", openai_parameters.COMPLETIONS),
        ("Message", openai_parameters.MESSAGE),
        ("MessagesRequest", anthropic_parameters.MESSAGES),
        ("TextBlock", anthropic_parameters.TEXT_BLOCK),
    ],
)
def test_every_parameter_is_in_it_with_what_passes(name, parameters) -> None:
    properties = document()["components"]["schemas"][name]["properties"]
    assert set(properties) == {parameter.name for parameter in parameters}
    for parameter in parameters:
        schema = properties[parameter.name]
        assert schema["description"] == parameter.note
        if parameter.treatment is Treatment.REFUSED:
            assert schema["enum"] == [None, *parameter.neutral]
        if parameter.treatment is Treatment.IGNORED:
            assert set(schema) == {"description"}


def test_every_setting_of_a_tenant_is_in_it() -> None:
    schemas = document()["components"]["schemas"]
    assert set(schemas["TenantSettings"]["properties"]) == set(SETTINGS)
    assert set(schemas["NewTenant"]["properties"]) == {*SETTINGS, "id"}
    assert schemas["NewTenant"]["required"] == ["id"]
    admission = schemas["TenantSettings"]["properties"]["admission"]
    assert admission["anyOf"][0]["enum"] == list(SETTINGS["admission"].values)


def test_references_lead_somewhere() -> None:
    whole = document()

    def references(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [ref for part in value.values() for ref in references(part)]
        parts = value if isinstance(value, list) else []
        return [ref for part in parts for ref in references(part)]

    for reference in set(references(whole)):
        found: object = whole
        for part in reference.removeprefix("#/").split("/"):
            assert isinstance(found, dict)
            found = found[part]


@pytest.mark.model
def test_it_is_served_to_anybody(server: LiveServer) -> None:
    served = httpx.get(f"{server.url}/openapi.json")
    assert served.headers["content-type"] == "application/json"
    assert served.json() == document()
