"""A run on disk: its log, its checkpoints, and how it is resumed. Read run.py first."""
