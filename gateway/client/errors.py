"""What a call may raise.

ClientError
├── RefusedError       the server said no
├── UnreachableError   no connection, or no whole answer
├── BrokenStreamError  a stream failed after it had begun
├── DeadlineError      the time was over on this side
└── NoneAcceptedError  a race without a winner
"""

from collections.abc import Mapping, Sequence

from gateway.client.retries import Failure, GivenUp, read_failure


class ClientError(Exception):
    """The base of all of them."""


class RefusedError(ClientError):
    """`code`, `type`, `param` and the rest of the error object in `facts`, as the server sent them.

    `retry_after` (seconds) is when to come back, where the server said so; `given_up` is why this
    client did not.
    """

    def __init__(
        self, status: int, headers: Mapping[str, str], error: Mapping[str, object]
    ) -> None:
        self.status = status
        self.failure = read_failure(status, headers)
        self.code = error.get("code")
        self.type = error.get("type")
        self.param = error.get("param")
        self.facts = error
        self.request_id = headers.get("x-request-id")
        self.given_up: GivenUp | None = None
        super().__init__(f"{status} {self.code}: {error.get('message')}")

    @property
    def retry_after(self) -> float | None:
        return self.failure.hint


class UnreachableError(ClientError):
    def __init__(self, problem: Exception) -> None:
        self.failure = Failure(again=True)
        self.given_up: GivenUp | None = None
        super().__init__(f"{type(problem).__name__}: {problem}")


class BrokenStreamError(ClientError):
    """What was received until then was handed out. `code` is None where the server said nothing."""

    def __init__(self, error: Mapping[str, object]) -> None:
        self.code = error.get("code")
        self.facts = error
        super().__init__(f"{self.code}: {error.get('message')}")


class DeadlineError(ClientError):
    def __init__(self) -> None:
        super().__init__("the deadline passed")


class NoneAcceptedError(ClientError):
    """`answers` were not acceptable, the other attempts ended in `errors`."""

    def __init__(self, answers: Sequence[object], errors: Sequence[ClientError]) -> None:
        self.answers = answers
        self.errors = errors
        super().__init__(f"{len(answers)} answers were not acceptable, {len(errors)} calls failed")
