"""Submissions that attack the grader, as texts: what they do, and when.

    python3 -m tests.grading.hostile 100    # grades as many, some minutes; 1 where one has won
"""

import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from common.settings.user_code import Place
from studies.grading import isolation, report
from studies.grading.descendants import descendants, own_number
from studies.grading.grading import Grade, grade_of
from studies.grading.scenarios import BASIC, EVERYWHERE, PLAN, Scenario
from studies.proof.ranks import preload
from tests.grading.table import RIGHT, WRONG

SHORT: Mapping[int, Sequence[Scenario]] = {2: (BASIC, EVERYWHERE[-1]), 3: (BASIC,)}
VICTIM = "the file of another student\n"
WON = "I have won"  # in what no rank should ever be able to say

HEAD = """
import abc, ctypes, glob, json, mmap, os, pickle, random, shutil, signal, socket, struct, subprocess
import sys, tempfile, threading, time
from pathlib import Path
import numpy as np
import torch
import torch.distributed as dist
HERE = Path(__file__).parent

def right(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()

def sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                yield int(name)
        except OSError:
            pass

def unix_sockets():
    for each in sockets():
        one = socket.socket(fileno=os.dup(each))
        if one.family == socket.AF_UNIX:
            yield one

def won_if(happened):
    if happened:
        raise RuntimeError("I have won")

class Harm:
    def __reduce__(self):
        return os.system, ("touch " + str(HERE / "owned"),)

def forged(kind, body=b""):
    header = json.dumps({{"message": kind, "order": [0, {step}],
                         "given": [True] * 5, "returned": "", "replaced": False,
                         "buffers_changed": False, "under_way": "", "unwaited": "",
                         "tolerance": 0.1, "process": 1, "sentence": "no", "trace": "", "when": 0,
                         "is_broken": False, "kind": "raises"}}).encode()
    return struct.pack("<IQ", len(header), len(body)) + header + body

def everybodys(gradients, write, read):
    rank = dist.get_rank()
    row = torch.cat([each.reshape(-1) for each in gradients])
    write(rank, row.numpy().tobytes())
    dist.barrier()
    rows = [torch.from_numpy(np.frombuffer(read(each)).copy()) for each in
            range(dist.get_world_size())]
    mean = torch.stack(rows).mean(0)
    dist.barrier()
    for each, part in zip(gradients, mean.split([each.numel() for each in gradients])):
        each.copy_(part.view_as(each))
"""

# What ends or stops a rank, whenever it is done.
ACTS = {
    "sys.exit(0)": "sys.exit(0)",
    "sys.exit with words": "sys.exit('all is well')",
    "os._exit": "os._exit({code})",
    "abort": "os.abort()",
    "segmentation fault": "ctypes.string_at(0)",
    "BaseException": "raise BaseException('\\x1b[2Jnone of yours')",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "ends its group": "os.killpg(0, signal.SIGKILL)",
    "ends its parent": "os.kill(os.getppid(), signal.SIGKILL); os._exit({code})",
    "ends all it may": "os.kill(-1, signal.{signal}); os._exit({code})",
    "stops its parent": "os.kill(os.getppid(), signal.SIGSTOP); os._exit(0)",
    "signals every process": "for each in range(2, 40000):\n"
    "        try:\n            os.kill(each, signal.{signal})\n"
    "        except OSError:\n            pass\n    os._exit({code})",
    "fork bomb": "while True:\n        os.fork()",
    "processes that leave": "for _ in range({many}):\n"
    "        if not os.fork():\n            os.setsid()\n"
    "            signal.signal(signal.SIGTERM, signal.SIG_IGN)\n            if not os.fork():\n"
    "                time.sleep(1000)\n            os._exit(0)\n    time.sleep(3); os._exit(0)",
    "programs": "for _ in range({many}):\n"
    "        subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    "    time.sleep(3); os._exit(0)",
    "memory": "kept = []\n    while True:\n        kept.append(bytearray(b'x') * (64 << 20))",
    "shared memory": "kept = []\n    while True:\n        kept.append(mmap.mmap(-1, 1 << 30))\n"
    "        kept[-1][::4096] = b'x' * (1 << 18)",
    "threads": "for _ in range({many} * 100):\n"
    "        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    "    os._exit(0)",
    "floods the grader": "for each in unix_sockets():\n"
    "        each.setblocking(False)\n        try:\n            while True:\n"
    "                each.send(b'{code}' * 10000)\n        except OSError:\n            pass\n"
    "    os._exit(0)",
    "half a message": "for each in unix_sockets():\n"
    "        each.send(forged('Seen', bytes(3000))[:{code} + 30])\n    os._exit(0)",
    "a huge message": "for each in unix_sockets():\n"
    "        each.send(struct.pack('<IQ', {code}, 1 << {many}) + b'{{')\n    os._exit(0)",
    "pickled objects": "for each in unix_sockets():\n        each.send(pickle.dumps(Harm()))\n"
    "        each.send(struct.pack('!i', len(pickle.dumps(Harm()))) + pickle.dumps(Harm()))\n"
    "    os._exit(0)",
    "a forged answer": "for each in unix_sockets():\n"
    "        each.send(forged('{message}', bytes({many} * 8)))\n    os._exit(0)",
    "closes everything": "os.closerange(3, 500); os._exit(0)",
    "deletes files": "shutil.rmtree(HERE, ignore_errors=True)\n"
    "    won_if(not (HERE / 'victim.py').exists()); os._exit(0)",
    "overwrites files": "(HERE / 'victim.py').write_text('def mine(gradients): pass')\n"
    "    won_if(True)",
    "swaps itself": "Path(__file__).unlink(); won_if(True)",
    "changes modes": "os.chmod(HERE / 'victim.py', 0); won_if(True)",
    "fills the disk": "for each in range(10000):\n"
    "        Path(tempfile.gettempdir(), str(each)).write_bytes(bytes(10 << 20))\n"
    "    won_if(each > 100)",
    "asks the forkserver": "one = socket.socket(socket.AF_UNIX)\n"
    "    for each in glob.glob('/tmp/pymp-*/*'):\n        one.connect(each)\n"
    "        won_if(True)\n    os._exit(0)",
    "reads other processes": "for each in filter(str.isdigit, os.listdir('/proc')):\n"
    "        if int(each) != int(os.readlink('/proc/self')):\n            try:\n"
    "                open('/proc/' + each + '/mem', 'rb').close()\n"
    "            except OSError:\n                continue\n            won_if(True)\n"
    "    os._exit(0)",
    "an error that is long": "raise ValueError('\\x1b]0;x\\x07' + 'x' * 10 ** 7)",
    "an error without words": "class Mean(Exception):\n        def __str__(self):\n"
    "            os._exit(0)\n    raise Mean",
}
# What does not go on; few of them, as each takes the grader's whole patience.
HANGS = {
    "sleeps": "time.sleep(1000)",
    "spins": "while True:\n        pass",
    "prints for ever": "while True:\n        os.write(1, b'x' * 10000)",
    "hides its stack": "signal.signal(signal.SIGUSR1, signal.SIG_IGN); time.sleep(1000)",
    "long stack": "signal.signal(signal.SIGUSR1, lambda *_: None); time.sleep(1000)",
    "no alarm": "[signal.signal(each, signal.SIG_IGN) for each in (1, 2, 14, 15)]; "
    "time.sleep(1000)",
}
STAGES = {
    "import": "def act():\n    {act}\nact()\ndef mine(gradients):\n    right(gradients)\n",
    "constructor": "class mine:\n    def __init__(self):\n        act()\n"
    "    average = staticmethod(right)\ndef act():\n    {act}\n",
    "prepare": "def act():\n    {act}\nclass mine:\n    def prepare(self, model, optimizer):\n"
    "        act()\n    average = staticmethod(right)\n",
    "backward": "def act(*_):\n    {act}\nclass mine:\n    def prepare(self, model, optimizer):\n"
    "        next(model.parameters()).register_hook(act)\n    average = staticmethod(right)\n",
    "average": "def act():\n    {act}\ncalls = []\ndef mine(gradients):\n    calls.append(1)\n"
    "    if len(calls) > {step} and dist.get_rank() == {rank}:\n        act()\n"
    "    right(gradients)\n",
    "thread": "def act():\n    {act}\ndef mine(gradients):\n"
    "    one = threading.Thread(target=act, daemon=True)\n    one.start()\n    time.sleep(1.5)\n"
    "    raise ValueError('no more')\n",
}
# Whole strategies that want marks for nothing.
CHEATS = {
    "computes other shards": "from studies.grading.scenarios import EVERYWHERE, backward\n"
    "calls = []\ndef mine(gradients):\n    step, world = len(calls) % 3, dist.get_world_size()\n"
    "    calls.append(1)\n    sums = [torch.zeros_like(each) for each in gradients]\n"
    "    for rank in range(world):\n        model = EVERYWHERE[0].model(rank)\n"
    "        backward(model, EVERYWHERE[0].shard(world, rank, step, {code}), 1.0)\n"
    "        for one, each in zip(sums, model.parameters()):\n"
    "            one += each.grad / world\n"
    "    for one, each in zip(sums, gradients):\n        each.copy_(one)\n",
    "patches the grader's classes": "import studies.grading.training as training\n"
    "training.Training.gradients = lambda self: []\ndef mine(gradients): pass\n",
    "patches what judges": "import studies.grading.findings as findings, studies.grading.costs\n"
    "import studies.grading.cells as cells, studies.grading.grading as grading\n"
    "findings.findings = grading.findings = lambda outcome: []\n"
    "cells.Cell.wrong = np.zeros(1, bool)\ndef mine(gradients): pass\n",
    "patches messages": "import studies.grading.messages as messages\n"
    "import studies.grading.rank_under_test as rank\n"
    "rank.as_frame = lambda message, order=None: ({{'message': 'Passed', 'right': True}}, b'')\n"
    "def mine(gradients): pass\n",
    "patches numpy": "np.isclose = np.allclose = lambda *a, **k: True\n"
    "np.ascontiguousarray = lambda each: np.zeros({many})\ndef mine(gradients): pass\n",
    "patches torch": "torch.equal = lambda *a: True\ntorch.Tensor.clone = lambda self: self\n"
    "def mine(gradients): gradients[0] += 1\n",
    "patches torch.distributed": "dist.all_reduce = lambda each, *a, **k: each.mul_({many})\n"
    "def mine(gradients): right(gradients)\n",
    "patches sockets": "import studies.grading.rank_under_test as rank\nold = rank.frame\n"
    "def new(header, body=b''):\n    return old({{**header, 'when': {code}, 'late': []}},"
    " bytes(len(body)))\nrank.frame = new\ndef mine(gradients): pass\n",
    "patches os.write and time": "os.write = lambda *a: 1\ntime.sleep = lambda *a: None\n"
    "time.monotonic = lambda: {code}e9\ntime.time = time.monotonic\ndef mine(gradients): pass\n",
    "answers twice": "import studies.grading.rank_under_test as rank\nold = rank._send\n"
    "def new(grader, *what):\n    old(grader, *what)\n    old(grader, *what)\n"
    "rank._send = new\ndef mine(gradients): right(gradients)\n",
    "other dtypes": "import studies.grading.rank_under_test as rank\nold = rank.as_frame\n"
    "def new(message, order=None):\n    header, body = old(message, order)\n"
    "    return header, np.frombuffer(body).astype(np.float32).tobytes()\n"
    "rank.as_frame = new\ndef mine(gradients): right(gradients)\n",
    "odd numbers": "def mine(gradients):\n    right(gradients)\n"
    "    for each in gradients:\n        each.mul_(float('{odd}'))\n",
    "odd weights": "class mine:\n    def prepare(self, model, optimizer):\n"
    "        self.model = model\n    def average(self, gradients):\n        right(gradients)\n"
    "        for each in self.model.parameters():\n            each.data.fill_(float('{odd}'))\n",
    "sends nothing": "def mine(gradients):\n    for each in gradients:\n        each /= {many}\n",
    "sends garbage": "def mine(gradients):\n    garbage = torch.randn({many} * 1000)\n"
    "    dist.all_reduce(garbage)\n    for each in gradients:\n"
    "        each.copy_(garbage[:each.numel()].view_as(each))\n",
    "declares too much": "def mine(gradients): pass\nmine.tolerance = {odd}0\n",
    "files between ranks": "def mine(gradients):\n    place = {place}\n"
    "    everybodys(gradients, lambda rank, row: (place / str(rank)).write_bytes(row),\n"
    "               lambda rank: (place / str(rank)).read_bytes())\n",
    "abstract sockets between ranks": "def mine(gradients):\n"
    "    own, rows = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), {{}}\n"
    "    own.bind('\\0own%d' % dist.get_rank())\n    own.settimeout(2)\n"
    "    def write(rank, row):\n        dist.barrier()\n"
    "        for each in range(dist.get_world_size()):\n"
    "            own.sendto(bytes([rank]) + row, '\\0own%d' % each)\n"
    "    def read(rank):\n        while rank not in rows:\n            row = own.recv(1 << 16)\n"
    "            rows[row[0]] = row[1:]\n        return rows[rank]\n"
    "    everybodys(gradients, write, read)\n    own.close()\n",
    "own connections that are closed": "def mine(gradients):\n    listening = socket."
    "create_server(('127.0.0.1', 20000 + dist.get_rank()), backlog=100)\n    rows = {{}}\n"
    "    def write(rank, row):\n        rows[rank] = row\n        dist.barrier()\n"
    "        for each in range(dist.get_world_size()):\n            if each != rank:\n"
    "                with socket.create_connection(('127.0.0.1', 20000 + each)) as one:\n"
    "                    one.sendall(bytes([rank]) + row)\n"
    "        for _ in range(dist.get_world_size() - 1):\n"
    "            with listening.accept()[0] as one:\n"
    "                found = one.makefile('rb').read()\n"
    "                rows[found[0]] = found[1:]\n"
    "    everybodys(gradients, write, lambda rank: rows[rank])\n    listening.close()\n"
    "    time.sleep(0.1)\n",
    "looks for the secret": "import gc\nfrom studies.grading import session, supervision\n"
    "def mine(gradients):\n    won_if(any(isinstance(each, supervision.Ranks) for each in"
    " gc.get_objects()))\n",
}
ODD = ("nan", "inf", "-inf", "1e308", "5e-324", "1e150", "-1", "0")
PLACES = ("Path('/dev/shm')", "HERE", "Path(tempfile.gettempdir()).parent", "Path('/var/tmp')",
          "Path(sys.prefix)")


class Hostile(NamedTuple):
    """One submission: its name says what it does and when."""

    name: str
    text: str


def drawn(seed: int, how_many: int) -> list[Hostile]:
    """All acts and all cheats in turn, at random stages and with random numbers."""
    draw, found = random.Random(seed), list[Hostile]()
    kinds = [(name, True) for name in (*ACTS, *HANGS)] + [(name, False) for name in CHEATS]
    order = [kinds[each % len(kinds)] for each in range(how_many)]
    for name, is_act in order:
        numbers = {"step": draw.randint(0, 2), "rank": draw.randint(0, 1),
                   "code": draw.randint(0, 9), "many": draw.choice([40, 60, 61]),
                   "odd": draw.choice(ODD), "place": draw.choice(PLACES),
                   "signal": draw.choice(["SIGKILL", "SIGTERM", "SIGSTOP", "SIGUSR1"]),
                   "message": draw.choice(["Seen", "Settled", "Ready", "Started", "Raised"])}
        stage = draw.choice([*STAGES] if name in ACTS else [*STAGES][2:5]) if is_act else "whole"
        act = {**ACTS, **HANGS}[name] if is_act else ""
        text = STAGES[stage].replace("{act}", act) if is_act else (
            CHEATS[name])
        told = " ".join(f"{key}={value}" for key, value in numbers.items())
        found.append(Hostile(f"{name}, {stage}", f"# {told}\n" + (HEAD + text).format(**numbers)))
    return found


def folder_of(submissions: Sequence[Hostile], folder: Path) -> list[Place]:
    (folder / "victim.py").write_text(VICTIM)
    for number, each in enumerate(submissions):
        (folder / f"hostile{number}.py").write_text(each.text)
    return [Place(folder / f"hostile{number}.py", "mine") for number in range(len(submissions))]


def complaint(grade: Grade, folder: Path, before: int) -> str:
    """Says how a submission has got more than it should; "" if it has not."""
    if grade.diagnosis is None or report.points(grade) >= 100:
        return "it has full marks"
    told = report.as_text(grade)
    if WON in told or not told.replace("\n", "").replace("\t", "").isprintable():
        return f"it could do what it wanted, or say it: {told!r}"
    if (folder / "owned").exists() or (folder / "victim.py").read_text() != VICTIM:
        return "it has changed files of others"
    if (left := len([*descendants(own_number())])) > before:
        return f"{left - before} processes are left"
    return ""


def rows(seed: int, how_many: int, folder: Path) -> Iterator[tuple[Hostile, Grade, str]]:
    """Each submission, its grade, and what is wrong with that."""
    submissions = drawn(seed, how_many)
    grade_of(Place(RIGHT, "per_tensor"), plan={1: [BASIC]})  # so that the forkserver is there
    before = len([*descendants(own_number())])
    for each, place in zip(submissions, folder_of(submissions, folder), strict=True):
        grade = grade_of(place, plan=SHORT)
        yield each, grade, complaint(grade, folder, before)


def main() -> None:
    preload("torch._dynamo", "studies.grading.rank_under_test")
    if not isolation.is_possible():
        sys.exit("this user may not make namespaces here: some of these would end all processes")
    how_many, seed = (*map(int, sys.argv[1:]), *(100, 1)[len(sys.argv) - 1:])
    won, slowest = 0, 0.0
    mixed = [(RIGHT, "per_tensor"), (RIGHT, "Ring"), (WRONG, "sum_not_divided__send_recv")]
    with tempfile.TemporaryDirectory() as name:
        for number, (each, grade, found) in enumerate(rows(seed, how_many, Path(name))):
            won, slowest = won + bool(found), max(slowest, grade.seconds)
            told = grade.diagnosis
            print(f"{number:3} {grade.seconds:5.1f} s {report.points(grade):5.1f} "
                  f"{told.id if told else 'right':16} {each.name}: "
                  f"{told.sentence[:150] if told else ''} {found and '!!! ' + found}", flush=True)
            if number % 10 == 9:
                path, other = mixed[number // 10 % 3]
                grade = grade_of(Place(path, other), plan=SHORT if number % 30 else PLAN)
                is_right = (grade.diagnosis is None) == (path == RIGHT)
                won += not is_right
                print(f"    {grade.seconds:5.1f} s {report.points(grade):5.1f} "
                      f"{'as it should be' if is_right else '!!!'} {other}", flush=True)
        print(f"{how_many} hostile submissions, seed {seed}: {won} won; slowest {slowest:.1f} s, "
              f"{len([*descendants(own_number())])} processes at the end")
    sys.exit(won > 0)


if __name__ == "__main__":
    main()
