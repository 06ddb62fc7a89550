"""Failures before the first step: one sentence, the right exit code, on every rank.

Each test names the rank or the file at fault. Mutations that turn this red: drop `publish` from
rendezvous.join (the other ranks wait); drop a topic from require_one_run; drop the comparison with
`holder` from exchange; drop refuse_other_runs from start, or from prepare_runs (the data
is missed first), or refuse_other_run from open_run; warn whenever the world is of size 1.
"""

import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from common import start
from common.cluster import rank_info
from common.core import provenance
from common.run import kept_arithmetic
from tests.facts import says
from tests.ranks import ROOT, cluster, error_lines, free_port, program, run_programs
from tests.unit.test_addresses import needs_ipv6
from tests.workload import SMALL, plant

FLAGS = ["--workload", "digits-vgg11", "--max-iterations", "1", "--batch-size", "8", "--epochs",
         "1", "--threads", "1"]


def flags_in(tmp_path) -> list[str]:
    return [*FLAGS, "--output-dir", str(tmp_path / "out")]


def check(outcomes, code: int, *facts: object) -> None:
    """Every rank ended with `code` and said one sentence that states all the facts."""
    for outcome in outcomes:
        errors = error_lines(outcome.output)
        assert outcome.code == code and len(errors) == 1, outcome.output
        assert says(errors[0], *facts), errors[0]


def test_unresolvable_master(tmp_path):
    command = ["-M", "no-such-host.invalid", "-N", "2", "-R", "0", *flags_in(tmp_path)]
    check(run_programs([program("PartTwo", command, tmp_path, "a")]), 2, "no-such-host.invalid")


def a_host_named_as_debian_does() -> None:
    """The small workload; here the name node0 means 127.0.1.1."""
    plant()
    look_up = socket.getaddrinfo
    socket.getaddrinfo = lambda host, *more: look_up(
        "127.0.1.1" if host == "node0" else host, *more)


def test_a_master_name_that_means_loopback_is_reported_while_ranks_are_missing(tmp_path):
    command = ["-M", "node0", "-N", "2", "-R", "0", "--master-port", str(free_port()),
               "--timeout", "2", *flags_in(tmp_path)]
    outcome, = run_programs([program("PartTwo", command, tmp_path, "a",
                                     before=a_host_named_as_debian_does)])
    hint = ("node0", "127.0.1.1", "--master-ip")
    check([outcome], 75, "rank 1", *hint)
    hints = [line for line in outcome.output.splitlines() if says(line, *hint)]
    assert len(hints) == 2  # the first time after three seconds


@pytest.mark.parametrize("master", ["node0", pytest.param("[::1]", marks=needs_ipv6)])
def test_ranks_on_one_machine_may_use_a_name_or_ipv6(master, tmp_path):
    flags = [*SMALL, "--max-iterations", "1", "--output-dir", str(tmp_path / "out")]
    outcomes = run_programs(cluster("PartThree", 2, flags, tmp_path, by_rank=dict.fromkeys(
        range(2), ["-M", master]), before=dict.fromkeys(range(2), a_host_named_as_debian_does)))
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert "127.0.1.1" not in outcomes[0].output


@pytest.mark.parametrize("part, flags, environment, is_warned", [
    ("PartTwo", [], {}, True),
    ("PartThree", [], {}, True),
    ("PartTwo", ["-N", "1"], {}, False),
    ("PartThree", [], {"RANK": "0", "WORLD_SIZE": "1"}, True),
    ("PartThree", [], {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, False),
    ("PartThree", ["--parallel", "data-parallel"], {}, False),
    ("PartOne", [], {}, False),
])
def test_a_node_launched_without_others_warns(part, flags, environment, is_warned, tmp_path):
    command = [*SMALL, "--max-iterations", "1", "--output-dir", str(tmp_path / "out"), *flags]
    port = {"MASTER_PORT": str(free_port())}
    outcome, = run_programs([program(part, command, tmp_path, "a", {**environment, **port},
                                     before=plant)])
    assert outcome.code == 0, outcome.output
    said = [line for line in outcome.output.splitlines() if "--num-nodes 1" in line]
    assert len(said) == is_warned
    assert all(line.startswith("warning: ") for line in said)


def test_unreachable_master(tmp_path):
    port = free_port()
    command = ["-M", "127.0.0.1", "-N", "2", "-R", "1", "--master-port", str(port),
               "--timeout", "1", *flags_in(tmp_path)]
    check(run_programs([program("PartThree", command, tmp_path, "a")]), 75, "rank 1", "rank 0",
          f"127.0.0.1:{port}")


def test_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = ["-M", "127.0.0.1", "-N", "2", "-R", "0", "--master-port", port,
                   *flags_in(tmp_path)]
        check(run_programs([program("PartTwo", command, tmp_path, "a")]), 2, port,
              "--master-port")


def test_the_leader_is_not_on_the_masters_machine(tmp_path):
    command = ["-M", "192.0.2.1", "-N", "2", "-R", "0", *flags_in(tmp_path)]
    outcome, = run_programs([program("PartTwo", command, tmp_path, "a")])
    assert outcome.code in (2, 75)  # no such address here; or not even a route to it
    check([outcome], outcome.code, "192.0.2.1")


def test_a_rank_that_never_joins_is_named_while_waiting_and_at_the_end(tmp_path):
    programs = cluster("PartTwo", 3, [*flags_in(tmp_path), "--timeout", "2.5"], tmp_path)
    outcomes = run_programs(programs[:2])
    check(outcomes, 75, "2 of 3", "rank 2")
    assert any(says(line, "2 of 3", "rank 2") for line in outcomes[0].output.splitlines()
               if "error: " not in line)


def test_two_processes_claim_one_rank(tmp_path):
    programs = cluster("PartTwo", 3, flags_in(tmp_path), tmp_path,
                       by_rank={2: ["--rank", "1"]})
    check(run_programs(programs), 3, "rank 1", "--rank")


def test_world_sizes_differ(tmp_path):
    programs = cluster("PartTwo", 3, flags_in(tmp_path), tmp_path,
                       by_rank={1: ["--num-nodes", "2"]})
    check(run_programs(programs), 3, 2, 3, "--num-nodes")


@pytest.mark.parametrize("flag, one, other, name", [
    ("--learning-rate", "0.1", "0.2", "learning_rate"), ("--seed", "1", "2", "seed"),
    ("--sync", "all-reduce", "gather-scatter", "sync"),
])
def test_settings_differ(tmp_path, flag, one, other, name):
    programs = cluster("PartTwo", 3, flags_in(tmp_path), tmp_path,
                       by_rank={0: [flag, one], 1: [flag, one], 2: [flag, other]})
    outcomes = run_programs(programs)
    check(outcomes, 3, "rank 2", name, one, other, "rank 0")
    for rank, outcome in enumerate(outcomes):  # three ranks may share a terminal
        mark = f"[rank {rank} {socket.gethostname()}] " if rank else ""
        assert f"\n{mark}error: " in f"\n{outcome.output}"


def test_nodes_may_differ_in_disk_and_threads(tmp_path):
    programs = cluster("PartThree", 2, FLAGS, tmp_path, by_rank={
        rank: ["--output-dir", str(tmp_path / str(rank)), "--threads", str(rank + 1)]
        for rank in range(2)})
    outcomes = run_programs(programs)
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert (tmp_path / "1" / "PartThree" / "metrics_rank1.jsonl").exists()


def test_code_differs(tmp_path):
    programs = cluster("PartTwo", 2, flags_in(tmp_path), tmp_path, before={1: other_code})
    check(run_programs(programs), 3, "rank 1", "code", "commit")


def other_code() -> None:
    """One line more in one file, as far as the digest can see."""
    plain = provenance.digest_of_sources
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for folder in provenance.FOLDERS:
            shutil.copytree(ROOT / folder, copy / folder)
        assert plain(copy) == plain()
        with (copy / "common" / "core" / "world.py").open("a") as file:
            file.write("# one line more\n")
        digest = plain(copy)
    rank_info.code_digest = lambda: digest


def test_nodes_run_different_programs(tmp_path):
    two, three = (cluster(part, 2, [*flags_in(tmp_path), "--master-port", port], tmp_path)
                  for part, port in zip(("PartTwo", "PartThree"), [str(free_port())] * 2,
                                        strict=True))
    check(run_programs([two[0], three[1]]), 3, "PartThree/main.py", "PartTwo/main.py")


def write_images(folder, shade: int) -> None:
    from PIL import Image
    for split in ("train", "test"):
        for name in ("a", "b"):
            (folder / split / name).mkdir(parents=True)
            for index in range(8):
                Image.new("RGB", (32, 32), (shade, index, 0)).save(
                    folder / split / name / f"{index}.png")


def with_data(tmp_path, folders) -> list:
    flags = ["--workload", "cifar10-vgg11", *flags_in(tmp_path)[2:]]
    return cluster("PartThree", len(folders), flags, tmp_path, by_rank={
        rank: ["--data-dir", str(folder)] for rank, folder in enumerate(folders)})


def test_data_differ(tmp_path):
    write_images(tmp_path / "one", 10)
    write_images(tmp_path / "other", 20)
    folders = [tmp_path / "one", tmp_path / "one", tmp_path / "other"]
    check(run_programs(with_data(tmp_path, folders)), 3, "rank 2", "data")


def test_data_missing_on_one_rank(tmp_path):
    write_images(tmp_path / "one", 10)
    (tmp_path / "empty" / "train").mkdir(parents=True)
    outcomes = run_programs(with_data(tmp_path, [tmp_path / "one", tmp_path / "empty"]))
    check(outcomes, 4, f"rank 1 on {socket.gethostname()}", "empty/train")


def test_a_broken_image_on_one_rank(tmp_path):
    for name in ("one", "other"):
        write_images(tmp_path / name, 10)
    (tmp_path / "other" / "test" / "b" / "3.png").write_bytes(b"not an image")
    outcomes = run_programs(with_data(tmp_path, [tmp_path / "one", tmp_path / "other"]))
    check(outcomes, 4, "b/3.png")


def test_initial_weights_differ(tmp_path):
    programs = cluster("PartTwo", 2, flags_in(tmp_path), tmp_path,
                       before={1: other_initial_weights})
    check(run_programs(programs), 3, "rank 1", "weights")


def other_initial_weights() -> None:
    from torch import nn

    from common.model import vgg11
    plain = vgg11._initialise

    def changed(layer: nn.Module) -> None:
        plain(layer)
        if isinstance(layer, nn.Linear):
            layer.bias.data.fill_(1e-7)
    vgg11._initialise = changed


def test_output_cannot_be_written(tmp_path):
    (tmp_path / "out").write_text("a file, not a folder")
    outcomes = run_programs(cluster("PartTwo", 2, flags_in(tmp_path), tmp_path))
    check(outcomes, 2, tmp_path / "out")


def test_a_second_run_into_the_same_folder_is_refused(tmp_path):
    for code in (0, 2):
        outcomes = run_programs(cluster("PartThree", 2, flags_in(tmp_path), tmp_path))
        assert [outcome.code for outcome in outcomes] == [code] * 2, outcomes
    check(outcomes, 2, tmp_path / "out/PartThree", "--resume auto", "--resume replace")


@pytest.mark.parametrize("part, name", [("PartOne", "PartOne"), ("PartThree", "PartThree"),
                                        ("PartTwo", "PartTwo/all-reduce")])
def test_a_process_alone_refuses_before_torch_is_imported(part, name, tmp_path):
    folder = tmp_path / "out" / name
    folder.mkdir(parents=True)
    (folder / "metrics_rank0.jsonl").touch()
    check = ("import runpy, sys\n"
             f"sys.argv = ['main.py', '--output-dir', {str(tmp_path / 'out')!r}]\n"
             "try:\n"
             f"    runpy.run_path({str(ROOT / part / 'main.py')!r}, run_name='__main__')\n"
             "finally:\n"
             "    assert not {'torch', 'numpy'} & set(sys.modules)\n")
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    line, = error_lines(ended.stderr)
    assert says(line, folder, "--resume auto")


def test_one_ranks_old_logs_end_all_ranks_before_data_is_loaded(tmp_path):
    folder = tmp_path / "1" / "PartTwo" / "all-reduce"
    folder.mkdir(parents=True)
    (folder / "logs_rank1.txt").touch()
    flags = ["--data-dir", str(tmp_path / "no-such-folder")]
    outcomes = run_programs(cluster("PartTwo", 3, flags, tmp_path, by_rank={
        rank: ["--output-dir", str(tmp_path / str(rank))] for rank in range(3)}))
    check(outcomes, 2, folder, "--resume auto", "--resume replace")


def too_early() -> None:
    """The small workload, in a process that looked before the other run's first line."""
    plant()
    start.refuse_other_runs = kept_arithmetic.refuse_other_runs = lambda *_: None


def test_of_two_runs_started_together_one_is_refused_when_it_opens_its_folder(tmp_path):
    (tmp_path / "out" / "PartOne").mkdir(parents=True)
    (tmp_path / "out" / "PartOne" / "logs_rank0.txt").touch()
    flags = [*SMALL, "--output-dir", str(tmp_path / "out")]
    check(run_programs([program("PartOne", flags, tmp_path, "a", before=too_early)]), 2,
          tmp_path / "out/PartOne", "--resume auto")


def test_an_unreadable_checkpoint(tmp_path):
    (tmp_path / "junk.pt").write_bytes(b"junk")
    command = [*flags_in(tmp_path), "--resume", str(tmp_path / "junk.pt")]
    check(run_programs(cluster("PartTwo", 2, command, tmp_path)), 4, "junk.pt")


@pytest.mark.parametrize("part", ["PartOne", "PartTwo", "PartThree"])
def test_a_dry_run_takes_one_step_and_leaves_nothing(part, tmp_path):
    flags = [*SMALL, "--dry-run", "--output-dir", str(tmp_path / "out")]
    programs = ([program(part, flags, tmp_path, "rank0", before=plant)] if part == "PartOne" else
                cluster(part, 2, flags, tmp_path, before=dict.fromkeys(range(2), plant)))
    outcomes = run_programs(programs)
    for outcome in outcomes:
        assert outcome.code == 0, outcome.output
        assert outcome.output.count("Epoch: 1, ") == 1 + (part == "PartTwo")
    assert says(outcomes[0].output, "2 epochs", "9 iterations")
    assert not (tmp_path / "out").exists()
