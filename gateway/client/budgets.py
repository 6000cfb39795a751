"""Who shares a retry budget: all that call one server with one key, in all of the process.

Were it each client's own, a program that makes a client for every call would have the whole burst
for every call, and so no bound.
"""

import threading

from gateway.client.retries import RetryBudget, RetryPolicy

MOST = 1024  # beyond it the one that was asked for longest ago begins anew

_budgets: dict[tuple[str, str, RetryPolicy], RetryBudget] = {}
_lock = threading.Lock()


def budget_of(url: str, key: str, policy: RetryPolicy) -> RetryBudget:
    name = (url, key, policy)
    with _lock:
        budget = _budgets.pop(name, None) or RetryBudget(policy)
        _budgets[name] = budget
        if len(_budgets) > MOST:
            del _budgets[next(iter(_budgets))]
    return budget
