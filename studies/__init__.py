"""Libraries behind scripts/prove.py, predict.py and grade.py: proof, prediction and grading."""
