"""Text, probabilities and ends of choices, and the shapes they take on the wire."""

import time

import pytest

from engine.core.outputs import Finished, Output
from engine.core.plan import TokenLogprob
from engine.runtime.text.codec import TextCodec
from gateway.chat import ChatShape
from gateway.choices import Choices, Usage
from gateway.completions import CompletionShape
from gateway.state import ServedModel
from telemetry.events import Cause

pytestmark = pytest.mark.model  # the text is that of the default model

TEXT = "Zoë 東 says: stop it 🏞️ now"
END = 2


class Finishes:
    """Records what is told to the engine about stop strings."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def finish(self, sequence: int, output_tokens: int) -> None:
        self.told.append((sequence, output_tokens))


def choices(codec: TextCodec, *stop: str, n: int = 1) -> tuple[Choices, Finishes]:
    engine = Finishes()
    return Choices(engine, range(10, 10 + n), codec, stop, frozenset({END})), engine


def ended(cause: Cause, tokens: int, sequence: int = 10) -> Output:
    return Output(sequence, finished=Finished(cause, 7, 3, tokens))


def model(codec: TextCodec) -> ServedModel:
    return ServedModel("m", None, codec, None, 100, 0)  # type: ignore[arg-type]  # no engine is asked


def with_logprobs(tokens: list[int], *more: int) -> Output:
    logprobs = tuple(TokenLogprob(-0.5, ((token, -0.5), (5, -1.5))) for token in tokens)
    return Output(10, tuple(tokens), logprobs)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_text_is_the_same_however_tokens_arrive(codec, size):
    tokens = codec.encode(TEXT, add_special=False)
    all_choices, engine = choices(codec)
    text = ""
    for start in range(0, len(tokens), size):
        (delta,) = all_choices.absorb([Output(10, tuple(tokens[start : start + size]))])
        assert "\ufffd" not in delta.text
        assert delta.first == (start == 0)
        text += delta.text
    (delta,) = all_choices.absorb([ended(Cause.STOP, len(tokens))])
    assert text + delta.text == TEXT
    assert delta.finish_reason == "stop"
    assert all_choices.done
    assert engine.told == []


def test_a_stop_string_is_told_once_and_what_follows_is_not_shown(codec):
    tokens = codec.encode(TEXT, add_special=False)
    all_choices, engine = choices(codec, "stop")
    text = "".join(
        all_choices.absorb([Output(10, (token,))])[0].text for token in [*tokens, *tokens]
    )
    assert text == TEXT[: TEXT.index("stop")]
    ((sequence, kept),) = engine.told
    assert sequence == 10
    assert "stop" in "".join(codec.token_text(token) for token in tokens[:kept])
    assert "stop" not in "".join(codec.token_text(token) for token in tokens[: kept - 1])
    (delta,) = all_choices.absorb([ended(Cause.STOP_STRING, kept)])
    assert (delta.text, delta.finish_reason) == ("", "stop")


@pytest.mark.parametrize("cause", [Cause.LENGTH, Cause.DEADLINE, Cause.STOP])
def test_a_stop_string_completed_by_the_last_token_counts_whatever_the_engine_says(codec, cause):
    tokens = codec.encode("go on stop", add_special=False)
    all_choices, engine = choices(codec, "stop")
    end = Finished(cause, 7, 3, len(tokens))
    (delta,) = all_choices.absorb([Output(10, tuple(tokens), finished=end)])
    assert (delta.text, delta.finish_reason) == ("go on ", "stop")
    assert all_choices.failure is None
    assert engine.told == []  # it has ended by itself


def test_withheld_text_comes_with_the_end(codec):
    all_choices, _ = choices(codec, "say something")
    tokens = codec.encode("I say some", add_special=False)
    (delta,) = all_choices.absorb([Output(10, tuple(tokens))])
    assert delta.text == "I "
    (delta,) = all_choices.absorb([ended(Cause.LENGTH, len(tokens))])
    assert (delta.text, delta.finish_reason) == ("say some", "length")


def test_a_failure_is_no_finish_reason(codec):
    all_choices, _ = choices(codec, n=2)
    (delta,) = all_choices.absorb([ended(Cause.NUMERICAL, 4, sequence=11)])
    assert delta.finish_reason is None
    assert all_choices.failure.cause is Cause.NUMERICAL
    assert not all_choices.done


def test_usage_sums_outputs_and_counts_the_prompt_once(codec):
    all_choices, _ = choices(codec, n=2)
    all_choices.absorb([ended(Cause.STOP, 4), ended(Cause.LENGTH, 9, sequence=11)])
    assert all_choices.usage() == Usage(prompt=7, cached=3, output=13)


def test_probabilities_of_a_chat(codec):
    tokens = codec.encode("Zoë 東", add_special=False)
    all_choices, _ = choices(codec)
    (delta,) = all_choices.absorb([with_logprobs([*tokens, END])])
    entries = ChatShape().chunk(model(codec), delta)["logprobs"]["content"]
    assert len(entries) == len(tokens)  # the end token is not part of the content
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "Zoë 東"
    assert entries[0]["token"] == codec.token_text(tokens[0])
    assert entries[0]["logprob"] == -0.5
    assert [top["logprob"] for top in entries[0]["top_logprobs"]] == [-0.5, -1.5]
    assert entries[0]["top_logprobs"][1]["token"] == codec.token_text(5)


def test_probabilities_of_a_text_completion(codec):
    tokens = codec.encode("Hi Zoë 東 ok", add_special=False)
    all_choices, _ = choices(codec)
    deltas = [all_choices.absorb([with_logprobs([token])])[0] for token in tokens]
    shape = CompletionShape()
    whole = shape.whole(model(codec), deltas)["logprobs"]
    assert whole["tokens"] == [codec.token_text(token) for token in tokens]
    assert whole["token_logprobs"] == [-0.5] * len(tokens)
    assert whole["top_logprobs"][0] == {
        codec.token_text(tokens[0]): -0.5,
        codec.token_text(5): -1.5,
    }
    chunks = [shape.chunk(model(codec), delta)["logprobs"] for delta in deltas]
    assert [chunk["text_offset"][0] for chunk in chunks] == whole["text_offset"]
    # Where each token starts in the text, in characters; " ok" is the last.
    assert whole["text_offset"][0] == 0
    assert whole["text_offset"][-1] == len("Hi Zoë 東")


def test_probabilities_end_at_the_stop_string(codec):
    tokens = codec.encode("go on stop it now", add_special=False)
    all_choices, engine = choices(codec, "stop")
    (delta,) = all_choices.absorb([with_logprobs(tokens)])
    assert len(delta.logprobs) == engine.told[0][1] < len(tokens)


def test_a_chunk_costs_the_same_late_as_early(codec):
    token = codec.encode(" word", add_special=False)[0]
    all_choices, _ = choices(codec, *(f"stop {number}" for number in range(16)))
    shape, served = ChatShape(), model(codec)

    def cost(count: int) -> float:
        began = time.process_time()
        for _ in range(count):
            (delta,) = all_choices.absorb([with_logprobs([token])])
            shape.chunk(served, delta)
        return time.process_time() - began

    cost(200)
    early = min(cost(500) for _ in range(3))
    cost(20_000)
    late = min(cost(500) for _ in range(3))
    assert late < 2.5 * early
