"""Units of time. Whatever is not said to be otherwise counts nanoseconds."""

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
