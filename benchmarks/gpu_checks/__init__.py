"""The rows of benchmarks/gpu_check.py and the programs that only they need. Read rows.py first."""
