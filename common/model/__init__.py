"""The networks and the layers that make them fast. Read vgg11.py first."""
