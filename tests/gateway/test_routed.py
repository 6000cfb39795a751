"""Names of models as headers and as text of a kept answer, whatever they hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import routed
from gateway.kept_answers import Kept, UnreadableError


@given(st.text())
def test_every_name_of_a_model_can_be_a_header(model: str) -> None:
    headers = routed.headers_of(model)
    assert routed.model_of(headers) == model
    assert all(value.isascii() and value.decode().isprintable() for _, value in headers)


@given(st.binary(), st.booleans(), st.text())
def test_a_kept_answer_survives_the_store(body: bytes, stream: bool, model: str) -> None:
    kept = Kept(body, stream, model)
    text = kept.text()
    assert text is not None
    assert Kept.of(text) == kept


@pytest.mark.parametrize("text", ["", "w", "zeJwDAAAAAAE=", "weJwDAAAAAAE", "w????", "wm:eJw="])
def test_an_answer_of_another_form_is_not_read(text: str) -> None:
    assert Kept.of("weJwDAAAAAAE=") == Kept(b"")
    with pytest.raises(UnreadableError):
        Kept.of(text)
