"""The networks, and layers that depend on samples alone. Read vgg11.py first."""
