"""Sampling parameters and probabilities over HTTP, on the default model itself."""

import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from engine.core.config import KernelConfig
from engine.host.worker import AnyExecutor
from engine.runtime.text.codec import TextCodec
from tenants.embedded import EmbeddedValkey
from tests.gateway.live import MODEL, LiveServer, Model

pytestmark = pytest.mark.model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class TorchServer(LiveServer):
    """Computes with torch, in fp32 so that seeds reproduce."""

    model_path: Path

    def executor(self, kernel: KernelConfig, model: Model) -> AnyExecutor:
        import torch

        from engine.runtime.executor import TorchExecutor
        from engine.runtime.loader import load_model

        torch.set_num_threads(1)  # several suffer when other processes are busy
        model = load_model(self.model_path, torch.float32, torch.device("cpu"))
        return TorchExecutor(model, kernel)


@pytest.fixture(scope="module")
def client(codec: TextCodec, model_path: Path, valkey: EmbeddedValkey) -> Iterator[httpx.Client]:
    import torch

    threads = torch.get_num_threads()
    server = TorchServer(valkey.start(), codec)
    server.model_path = model_path
    with server, server.client() as client:
        yield client
    torch.set_num_threads(threads)


def chat(client: httpx.Client, **more) -> dict:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 10, **more}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def text(answer: dict, index: int = 0) -> str:
    return answer["choices"][index]["message"]["content"]


def test_the_answer_makes_sense(client):
    answer = chat(client, temperature=0)
    assert text(answer) == "The capital of France is Paris."
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("more", [{"top_k": 1}, {"top_p": 0}, {"min_p": 1}])
def test_what_leaves_only_the_likeliest_token_is_greedy(client, more):
    assert text(chat(client, temperature=1.5, **more)) == "The capital of France is Paris."


def test_large_values_within_the_bounds_are_fine(client):
    answer = chat(
        client,
        temperature=2,
        top_k=2**31 - 1,
        seed=2**63 - 1,
        n=2,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=10,
        logit_bias={"500": 100, "5": -100},
        max_tokens=3,
    )
    assert answer["usage"]["completion_tokens"] == 6


def test_a_seed_reproduces_and_choices_differ(client):
    first = chat(client, seed=-7, n=3, temperature=1.5)
    again = chat(client, seed=-7, n=3, temperature=1.5)
    texts = [text(first, index) for index in range(3)]
    assert texts == [text(again, index) for index in range(3)]
    assert len(set(texts)) > 1
    # Choice i draws with seed + i.
    assert text(chat(client, seed=-6, temperature=1.5)) == texts[1]


def test_bias_bans_and_minimum_length(client, codec):
    paris = codec.encode(" Paris", add_special=False)
    assert len(paris) == 1
    banned = chat(client, temperature=0, logit_bias={str(paris[0]): -100})
    assert "Paris" not in text(banned)
    longer = chat(client, temperature=0, min_tokens=10)
    assert longer["usage"]["completion_tokens"] == 10


def test_probabilities_of_a_chat(client):
    answer = chat(client, temperature=0, logprobs=True, top_logprobs=3)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == text(answer)
    for entry in entries:
        tops = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(tops) == 3
        assert tops == sorted(tops, reverse=True)
        assert entry["top_logprobs"][0]["token"] == entry["token"]  # greedy
        assert entry["logprob"] == pytest.approx(tops[0])
        assert sum(math.exp(value) for value in tops) <= 1.0001
    plain = chat(client, temperature=0, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in plain] == [[]] * len(plain)


def test_probabilities_through_the_stock_client(client):
    key = client.headers["authorization"].removeprefix("Bearer ")
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key=key) as stock:
        whole = stock.completions.create(
            model=MODEL, prompt="Once upon a", max_tokens=6, temperature=0, logprobs=2
        )
        stream = stock.completions.create(
            model=MODEL, prompt="Once upon a", max_tokens=6, temperature=0, logprobs=2, stream=True
        )
        chunks = [chunk.choices[0] for chunk in stream]
    choice = whole.choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs)
    for name in ("tokens", "token_logprobs", "text_offset"):
        streamed = [
            item for chunk in chunks if chunk.logprobs for item in getattr(chunk.logprobs, name)
        ]
        assert streamed == pytest.approx(getattr(choice.logprobs, name))
