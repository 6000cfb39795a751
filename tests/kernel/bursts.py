"""Random histories in which much goes on at a time."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


def bursts(arrivals: SearchStrategy, actions: SearchStrategy) -> SearchStrategy[list]:
    """Lists of both, with several arrivals before each few of the others.

    Drawn from one list of alternatives, arrivals would be one action in eight, and most histories
    would never have two sequences at once.
    """
    burst = st.tuples(st.lists(arrivals, min_size=1, max_size=6), st.lists(actions, max_size=4))
    return st.lists(burst, max_size=6).map(
        lambda all_: [action for one in all_ for part in one for action in part]
    )
