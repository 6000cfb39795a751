"""C++ for what torch's operators are slow at on a CPU; where it cannot be built, torch does it."""
