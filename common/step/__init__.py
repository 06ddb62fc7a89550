"""What one training step is made of, the seam included. Read gradient_sync.py first."""
