"""The checks of a run around anybody's own training loop. Read witness.py first."""
