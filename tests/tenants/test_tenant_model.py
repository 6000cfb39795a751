import math
from typing import Any

import pytest

from tenants.model import ApiKey, InvalidRecord, Tenant
from tenants.records import tenant_fields, tenant_of
from tenants.settings import SETTINGS


@pytest.mark.parametrize(
    "tenant_id", ["", "Gold", "-gold", "a:b", "a b", "ä", "a" * 64, "gold\n", "other", None, 7]
)
def test_refuses_a_bad_id(tenant_id: Any) -> None:
    with pytest.raises(InvalidRecord) as caught:
        Tenant(tenant_id)
    assert caught.value.field == "id"


@pytest.mark.parametrize("tenant_id", ["gold", "7", "a.b-c_d", "a" * 63])
def test_accepts_a_good_id(tenant_id: str) -> None:
    assert Tenant(tenant_id).id == tenant_id


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, 1e-7, 1e7, True, "3", None])
def test_refuses_a_bad_weight(weight: Any) -> None:
    with pytest.raises(InvalidRecord) as caught:
        Tenant("gold", weight=weight)
    assert caught.value.field == "weight"


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10", 10**13])
@pytest.mark.parametrize("name", ["queue_requests", "max_timeout_ms", "tpot_target_ms"])
def test_refuses_a_bad_cap(name: str, value: Any) -> None:
    with pytest.raises(InvalidRecord) as caught:
        Tenant("gold", **{name: value})
    assert caught.value.field == name


@pytest.mark.parametrize("value", ["", "best", "Goodput", 1, True])
@pytest.mark.parametrize("name", ["admission", "on_infeasible"])
def test_refuses_a_choice_that_does_not_exist(name: str, value: Any) -> None:
    with pytest.raises(InvalidRecord, match="must be one of") as caught:
        Tenant("gold", **{name: value})
    assert caught.value.field == name


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, 1e7, True, "10"])
def test_refuses_a_bad_amount_of_money(value: Any) -> None:
    with pytest.raises(InvalidRecord, match="must be an amount of money") as caught:
        Tenant("gold", money_per_day=value)
    assert caught.value.field == "money_per_day"


def test_every_setting_is_in_the_table_and_keeps_its_value_as_text() -> None:
    fields = set(Tenant.__dataclass_fields__) - {"id", "created"}
    assert set(SETTINGS) == fields
    tenant = Tenant("gold", money_per_day=0.1, weight=3, disabled=True, admission="goodput")
    assert tenant_of("gold", {**tenant_fields(tenant), "created": "0"}) == tenant


def test_refuses_a_default_above_its_ceiling() -> None:
    with pytest.raises(InvalidRecord, match=r"default_timeout_ms \(11\) is above"):
        Tenant("gold", default_timeout_ms=11, max_timeout_ms=10)
    with pytest.raises(InvalidRecord, match="default_max_tokens"):
        Tenant("gold", default_max_tokens=2, max_max_tokens=1)
    assert Tenant("gold", default_timeout_ms=10, max_timeout_ms=10).default_timeout_ms == 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scopes", frozenset({"root"})),
        ("scopes", frozenset()),
        ("models", frozenset({"two words"})),
        ("models", frozenset({""})),
        ("expires", 0),
        ("expires", 1.5),
    ],
)
def test_refuses_a_bad_key(field: str, value: Any) -> None:
    with pytest.raises(InvalidRecord) as caught:
        ApiKey("0" * 12, "gold", "d" * 64, **{field: value})
    assert caught.value.field == field


def test_a_key_shows_its_digest_to_nobody() -> None:
    key = ApiKey("0123456789ab", "gold", "d" * 64, models=frozenset({"smollm2-135m"}))
    assert "dddd" not in repr(key)
    assert "dddd" not in str(key.describe())
    assert key.describe()["models"] == ["smollm2-135m"]


def test_a_key_expires_at_its_second() -> None:
    key = ApiKey("0123456789ab", "gold", "d", expires=100)
    assert not key.expired(99)
    assert key.expired(100)
    assert not ApiKey("0123456789ab", "gold", "d").expired(2**60)


def test_a_list_of_models_allows_only_those() -> None:
    assert ApiKey("0", "gold", "d").allows_model("anything")
    key = ApiKey("0", "gold", "d", models=frozenset({"a"}))
    assert key.allows_model("a")
    assert not key.allows_model("ab")
