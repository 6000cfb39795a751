"""The text of `docs/api.md`: every route, header and error, from the tables that the server uses.

`python -m gateway.api_page > docs/api.md`
"""

import sys
from collections.abc import Iterator, Mapping, Sequence

from gateway import api_error_examples as examples
from gateway import api_examples, openapi_headers
from gateway.api_examples import Example
from gateway.errors import TABLE, Retry, Row
from gateway.operations import OPERATIONS, UNSERVED, Operation

_INTRODUCTION = """\
# HTTP API

Every route, header and error of the server, with examples that a test runs. The same for programs
is served at `GET /openapi.json`. What becomes of each parameter of a body is on pages of their own:
[OpenAI's](openai-parameters.md), [Anthropic's](anthropic-parameters.md).

The examples need a few names; `…` in their answers stands for anything.

```
URL=http://127.0.0.1:8000      # where it serves
KEY=wm-…                       # a tenant's key: watermaster keys create TENANT
ADMIN=wm-…                     # the admin key: watermaster admin key
MODEL=smollm2-135m             # one of GET /v1/models
CONTEXT=8192                   # its context, in tokens
ID=…                           # `public_id` of the key that `POST /admin/tenants/acme/keys` issues
READER=wm-…                    # a key with the scope `read`
SOON=$(( $(date +%s) + 60 ))000  # a minute from now, in Unix milliseconds
```

## Keys

A call needs a key, as `authorization: Bearer …` or as `x-api-key: …`.

- A tenant's key opens `/v1`. Its scope `inference` lets it do everything there, `read` only look.
  It may be held to some models, end at a time, be disabled for a while, and be replaced by another
  while both work. Only the SHA-256 of its secret is stored. Its public id, between the dashes, may
  be shown; the secret is masked in logs and refusals.
- The admin key opens `/admin` and nothing else, and no tenant's key opens that. Whoever reaches the
  store issues it with `watermaster admin key`, which ends the one before; `watermaster admin close`
  leaves none. Put `/admin` behind whatever guards your operators' tools: it is on the same port.

A change of a key or a tenant is published by the store and counts at once on every replica. Should
the message get lost it counts within a second, for which keys are cached. With the store away, keys
that a replica has seen in the last five minutes go on working and every other one is told 503, not
401; `/ready` and `watermaster_store_up` say so. What the store told to be changed before it went is
not let in on its old terms.
"""


def render_page() -> str:
    """The whole page."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield "## Routes\n"
    for operation in OPERATIONS:
        yield from _route(operation)
    yield "## Headers of requests\n"
    sent = {**openapi_headers.COMMON, **openapi_headers.GENERATION, **openapi_headers.ANTHROPIC}
    yield from _table(("header", "meaning"), [(f"`{n}`", text) for n, (_, text) in sent.items()])
    yield "## Headers of answers\n"
    answered = openapi_headers.all_of_answers()
    yield from _table(("header", "meaning"), [(f"`{n}`", t) for n, (_, t) in answered.items()])
    yield from _errors()


def _route(operation: Operation) -> Iterator[str]:
    name = f"{operation.method} {operation.path}"
    yield f"### `{name}`\n"
    whose = {"tenant": "A tenant's key.", "admin": "The admin key."}
    yield f"{operation.summary} {whose.get(operation.key or '', 'No key.')}\n"
    for parameter, (_, text) in operation.query.items():
        yield f"- `?{parameter}=`: {text}"
    if operation.query:
        yield ""
    codes = sorted({TABLE[refusal].code for refusal in operation.codes})
    yield f"Refuses with {', '.join(f'`{code}`' for code in codes)}.\n"
    for example in api_examples.OPERATIONS[name]:
        yield from _example(example)


def _example(example: Example) -> Iterator[str]:
    if example.while_:
        yield f"While {example.while_}:\n"
    language = "json" if example.answer.startswith("{") else "text"
    yield f"```sh\n{example.call}\n```\n"
    yield f"Answers {example.status}:\n"
    yield f"```{language}\n{example.answer}\n```\n"


_RETRIES = {
    Retry.UNSAID: "as the status says",
    Retry.LATER: "after `retry-after`",
    Retry.AFRESH: "as a new request, after `retry-after` where it is told",
    Retry.NEVER: "no: `x-should-retry: false`",
}
_ERRORS = """\
## Errors

A refusal has the status of its row and a body of the form `{"error": {"message", "type", "param",
"code", …}}`, followed by facts. In a stream that has begun, the same object comes as an event, and
no `[DONE]`. On `/v1/messages` bodies have Anthropic's form, and 529 stands for 503.

Waits are spread among callers. A wait over 60 s comes with `x-should-retry: false`, since stock
clients would sleep through it or ignore it.
"""
_BELOW = """\
Before a request is one at all, the connection answers `malformed_request` (400) to what is not
valid HTTP/1.1, `headers_too_large` (431), `head_timeout` (408), or `saturated` (503) where there
are too many connections, in the same form. Offers to go on in another protocol (`upgrade`) are
passed over. A caller who closes its side of the connection has hung up. While the server drains,
every answer closes its connection, so that the next call finds another server.
"""


def _errors() -> Iterator[str]:
    yield _ERRORS
    rows = _by_code()
    yield from _table(
        ("code", "status", "meaning", "try again"),
        [(f"`{code}`", str(same[0].status), *_told(same)) for code, same in rows.items()],
    )
    yield _BELOW
    for code in rows:
        yield f"### `{code}`\n"
        if code in examples.EXAMPLES:
            yield from _example(examples.EXAMPLES[code])
        else:
            yield f"Takes more than a call: `{examples.ELSEWHERE[code]}`.\n"


def _by_code() -> Mapping[str, list[Row]]:
    """The rows of each code, in order of status."""
    found: dict[str, list[Row]] = {}
    served = [row for reason, row in TABLE.items() if reason not in UNSERVED]
    for row in sorted(served, key=lambda row: (row.status, row.code)):
        found.setdefault(row.code, []).append(row)
    return found


def _told(rows: Sequence[Row]) -> tuple[str, str]:
    """What all reasons for a code say, and what they say of trying again."""
    meanings = dict.fromkeys(row.message for row in rows)
    retries = dict.fromkeys(_RETRIES[row.retry] for row in rows)
    return " ".join(meanings), "; or ".join(retries)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{' --- |' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(render_page())
