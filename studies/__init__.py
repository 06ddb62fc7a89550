"""Libraries behind scripts/prove.py and scripts/predict.py: the proof and the prediction."""
