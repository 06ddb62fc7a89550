"""From images on disk to the batches of one rank. Read epoch_plan.py first."""
