"""A tracker of your own: an object with three methods, which the leader alone has.

    python3 PartOne/main.py --workload spiral-mlp --tracker examples/own_tracker.py:CsvTracker
"""


class CsvTracker:
    """One row a value, in `folder`/tracker.csv: step, name, value; the flags as comments on top.

    A resumed run may write a step again: its last row counts.
    """

    def __init__(self, folder):
        self.file = (folder / "tracker.csv").open("a")

    def start(self, settings):
        for name, value in settings.items():
            self.file.write(f"# {name}: {value}\n")

    def log(self, step, values):
        for name, value in values.items():
            self.file.write(f"{step},{name},{value}\n")

    def close(self):
        self.file.close()
