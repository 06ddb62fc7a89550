"""No process is ended before all stand still: one that sees another end could start a third.

Mutation: SIGKILL for SIGSTOP in studies/grading/descendants.py _end_one_by_one.
"""

import subprocess
import sys

from tests.ranks import ROOT

# Three processes, each a child of the one before.
CHAIN = """
import os, signal, time
from studies.grading import descendants

def stands_still(process):
    for _ in range(100):  # a signal takes a moment to arrive
        with open(f"/proc/{process}/stat") as file:
            if file.read().rpartition(") ")[2][0] == "T":
                return True
        time.sleep(0.01)
    return False

def start(links):
    if os.fork() == 0:
        if links:
            start(links - 1)
        time.sleep(10)
        os._exit(0)

def look_first(process, which):
    if which == signal.SIGKILL and not still:
        still.extend(map(stands_still, descendants.descendants(os.getpid())))
    send(process, which)

start(2)
while len(list(descendants.descendants(os.getpid()))) < 3:
    time.sleep(0.01)
still, send = [], descendants._signal
descendants._signal = look_first
descendants._end_one_by_one()
print(*still)
"""


def test_all_stand_still_before_the_first_is_ended():
    done = subprocess.run([sys.executable, "-c", CHAIN], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "True True True\n", done
