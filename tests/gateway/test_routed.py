"""Names of models as headers and as text of a kept answer, whatever they hold."""

from hypothesis import given
from hypothesis import strategies as st

from gateway import routed
from gateway.kept_answers import Kept


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
