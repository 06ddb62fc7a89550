"""Components of one training step, the gradient sync included. Read gradient_sync.py first."""
