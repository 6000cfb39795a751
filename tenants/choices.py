"""What a tenant may choose of how it is treated. The policies that do it are elsewhere."""

from enum import StrEnum


class AdmissionMode(StrEnum):
    """Which requests with a deadline are worth taking in."""

    ACCEPT = "accept"  # all of them
    FEASIBLE = "feasible"  # those predicted to keep it
    GOODPUT = "goodput"  # of those, the ones that cost little enough for most to be on time


class OnInfeasible(StrEnum):
    """What a tenant wants done with a request that would miss its deadline."""

    REJECT = "reject"
    DEGRADE = "degrade"  # shorten the output until it fits
    PARTIAL = "partial"  # take it in for as much as is done by the deadline
    ACCEPT = "accept"  # take it in regardless
    ROUTE = "route"  # ask the fallback model


class OnExpiry(StrEnum):
    """What a tenant wants done with an answer that has begun when its deadline passes."""

    FAIL = "fail"  # an error, with the usage so far
    PARTIAL = "partial"  # what there is of it, marked as partial


# Between whom a tenant's share is divided equally: nobody, its keys, the users that it names, its
# tasks, or their runs.
DOMAINS = ("tenant", "key", "user", "task", "run")
AUTO = "auto"  # asked for as a model: the preferred one, or its fallback where a deadline needs it
MODES = tuple(mode.value for mode in AdmissionMode)
CHOICES = tuple(choice.value for choice in OnInfeasible)
EXPIRIES = tuple(choice.value for choice in OnExpiry)
