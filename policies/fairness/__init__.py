"""Fairness: who is served next, and what being served counts for."""
