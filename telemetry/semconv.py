"""Attribute names of spans, in one place because the GenAI conventions still move.

From the OpenTelemetry semantic conventions for generative AI and HTTP; ours are `watermaster.*`.
"""

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_CHOICES = "gen_ai.request.choice.count"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_TOP_P = "gen_ai.request.top_p"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"

HTTP_STATUS = "http.response.status_code"
ERROR_TYPE = "error.type"

TENANT = "watermaster.tenant"
TASK = "watermaster.task"
RUN = "watermaster.run"
ATTEMPT = "watermaster.attempt"
REQUEST = "watermaster.request"
FLOW = "watermaster.flow"
DEADLINE = "watermaster.deadline"  # Unix milliseconds
CHOICE = "watermaster.choice"
IGNORED_BAGGAGE = "watermaster.ignored_baggage"  # members that named a part, and are no ids
INSTEAD_OF = "watermaster.instead_of"  # the preferred model, where its fallback was asked
ROUTED = "watermaster.routed"  # why

CHAT = "chat"
TEXT_COMPLETION = "text_completion"
PROVIDER_NAME = "watermaster"
