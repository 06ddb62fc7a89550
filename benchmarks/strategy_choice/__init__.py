"""Behind scripts/choose_strategy.py. Read measuring.py first."""
