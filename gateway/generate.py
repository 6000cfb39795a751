"""From a request body to what the engine takes. All of it runs in a worker thread."""

import random
from collections.abc import Mapping

from engine.core.plan import Sampling
from engine.runtime.text.errors import TextError
from gateway.errors import ApiError, Reason
from gateway.schema import ChatRequest
from gateway.shape import Prepared, Request, RequestT, Shape
from gateway.state import ServedModel
from tenants.choices import AUTO
from tenants.model import Principal, Tenant


def prepare(
    shape: Shape[RequestT], body: bytes, principal: Principal, models: Mapping[str, ServedModel]
) -> Prepared:
    """Parse, check and tokenise. Raises ApiError 400 or 404."""
    request = shape.parse(body)
    return prepare_for(find_model(request.model, principal, models), shape, request, principal)


def prepare_for(
    model: ServedModel, shape: Shape[RequestT], request: RequestT, principal: Principal
) -> Prepared:
    """Check and tokenise a parsed request for `model`. Raises ApiError 400."""
    _check_output_limit(request, model, principal.tenant)
    _check_token_ids(request, model.codec.vocab_size)
    try:
        tokens = shape.tokens(request, model, principal.tenant.id)
    except TextError as error:
        raise ApiError(Reason.INVALID_VALUE, f"The prompt cannot be used: {error}.") from None
    if len(tokens) == 0:
        raise ApiError(Reason.INVALID_VALUE, "The prompt must not be empty.", param="prompt")
    max_tokens = _output_tokens(request, len(tokens), model, principal.tenant, shape)
    return Prepared(request, model, tokens, max_tokens, _sampling(request, model))


def find_model(
    model_id: str, principal: Principal, models: Mapping[str, ServedModel]
) -> ServedModel:
    """The model of that id; `auto` is the first that the key may use, the preferred one if it may.

    One answer for a model that does not exist and for one that the key may not use.
    """
    asked = models.values() if model_id == AUTO else filter(None, [models.get(model_id)])
    model = next((one for one in asked if principal.key.allows_model(one.id)), None)
    if model is None:
        raise ApiError(
            Reason.MODEL_NOT_FOUND,
            f"The model {model_id[:256]!r} does not exist or is not yours to use.",
            param="model",
        )
    return model


def _limit_name(request: Request) -> str:
    chat = isinstance(request, ChatRequest) and request.max_completion_tokens is not None
    return "max_completion_tokens" if chat else "max_tokens"


def _check_output_limit(request: Request, model: ServedModel, tenant: Tenant) -> None:
    """What can be refused before the prompt is tokenised."""
    limit = request.output_limit
    ceiling = min(model.context - 1, tenant.max_max_tokens or model.context)
    if limit is not None and limit > ceiling:
        name = _limit_name(request)
        raise ApiError(
            Reason.INVALID_VALUE, f"{name!r} must be at most {ceiling} here.", param=name
        )


def _check_token_ids(request: Request, vocab_size: int) -> None:
    biased = max((token for token, _ in request.logit_bias), default=0)
    stopping = max(request.stop_token_ids, default=0)
    for name, highest in (("logit_bias", biased), ("stop_token_ids", stopping)):
        if highest >= vocab_size:
            raise ApiError(
                Reason.INVALID_VALUE,
                f"{name!r} has a token id outside the vocabulary of {vocab_size} tokens.",
                param=name,
            )


def _output_tokens(
    request: Request, prompt: int, model: ServedModel, tenant: Tenant, shape: Shape[RequestT]
) -> int:
    """The output cap of each choice. Raises ApiError 400 when prompt and output cannot fit."""
    room = model.context - prompt
    limit = request.output_limit
    if room < 1 or (limit is not None and limit > room):
        asked = f"{prompt} of prompt" + (f" and {limit} of output" if limit is not None else "")
        raise ApiError(
            Reason.CONTEXT_LENGTH,
            f"The model's context is {model.context} tokens, less than {asked}.",
            param=_limit_name(request) if room >= 1 else None,
            facts={"context_tokens": model.context, "prompt_tokens": prompt},
        )
    if limit is not None:
        return limit
    defaults = (tenant.default_max_tokens, shape.default_max_tokens, room)
    default = next(value for value in defaults if value is not None)
    return min(default, room, tenant.max_max_tokens or room)


def _sampling(request: Request, model: ServedModel) -> Sampling:
    ends = set(request.stop_token_ids)
    if not request.ignore_eos:
        ends |= model.codec.eos_ids
    seed = request.seed if request.seed is not None else random.getrandbits(62)
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=request.logit_bias,
        seed=seed,
        logprobs=request.alternatives,
        min_tokens=request.min_tokens,
        stop_token_ids=tuple(sorted(ends)),
    )
