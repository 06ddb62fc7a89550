"""Says what is wrong with a user's strategy, behind scripts/grade.py. Read grading.py first."""
