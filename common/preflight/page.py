"""The one page that the leader prints after a preflight: tables of text, and the verdict.

    scripts/local_cluster.sh 4 scripts/preflight.py --workload digits-vgg11
"""

import time
from collections.abc import Callable, Sequence

from common.cluster.addresses import place
from common.cluster.all_reduce_speed import in_megabits, speed_table
from common.core.markdown import aligned
from common.preflight.findings import Findings
from common.preflight.links import Link


def page(findings: Findings) -> str:
    """Everything that was found; the last line says ready or not ready."""
    world = findings.world
    lines = [f"preflight of {world.size} rank{'s' * (world.size > 1)} (launched by: "
             f"{world.source}), master {place(world.master_address, world.master_port)}, "
             f"{findings.settings.workload}, "
             f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}"]
    speeds = [f"  over {findings.backend}; bandwidths as nccl-tests defines them",
              *speed_table(findings.speeds)] if findings.speeds else []
    for heading, body in (("ranks", _ranks(findings)), ("machines", _machines(findings)),
                          ("software and data", _software(findings)),
                          ("links", _links(findings)), ("ports to open", _ports(findings)),
                          ("all-reduce", speeds)):
        lines += ["", heading, *body] if body else []
    verdict = (f"not ready: {findings.problems[0]}" if findings.problems else
               "ready: start the run with the same flags"
               + f" on all {world.size} ranks" * (world.size > 1))
    return "\n".join([*lines, "", verdict])


def _ranks(findings: Findings) -> list[str]:
    return table(["rank", "host", "pid", "address", "interface"],
                 [[info.rank, info.host, info.pid, info.address, info.interface]
                  for info in findings.ranks])


def _machines(findings: Findings) -> list[str]:
    machines = [info.machine for info in findings.ranks]
    wanted = findings.settings.threads
    return table(["rank", "cores", "threads", "load", "memory free", "disk free", "GPUs",
                  "link speed", "MTU"],
                 [[info.rank, info.cores,
                   wanted or max(1, info.cores // machines.count(info.machine)),
                   f"{facts.load:.1f}",
                   f"{facts.memory_free / 1e9:.1f} of {facts.memory / 1e9:.1f} GB",
                   f"{facts.disk_free / 1e9:.0f} GB", _gpus(facts.gpu_names),
                   f"{facts.link_speed} Mbit/s" if facts.link_speed else "-",
                   facts.mtu or "-"]
                  for info, facts in zip(findings.ranks, findings.facts, strict=True)])


def _gpus(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"


def _software(findings: Findings) -> list[str]:
    data = findings.data or ["-"] * len(findings.ranks)
    rows = [[info.rank, info.code, *info.versions.values(), digest]
            for info, digest in zip(findings.ranks, data, strict=True)]
    head = ["rank", "code", *findings.ranks[0].versions, "data (train test)"]
    if len({tuple(row[1:]) for row in rows}) == 1:
        return table(head, [["all", *rows[0][1:]]])
    return table(head, rows)


def _links(findings: Findings) -> list[str]:
    if len(findings.links) < 2:
        return []
    rate = _matrix(findings, "  sent by row to column, Mbit/s",
                   lambda link: "stalls" if link.bandwidth is None else in_megabits(link.bandwidth))
    trip = _matrix(findings, "  round trip from row to column, microseconds (median of 20)",
                   lambda link: f"{1e6 * (link.round_trip or 0):.0f}")
    return rate + trip


def _ports(findings: Findings) -> list[str]:
    if len(findings.facts) < 2:
        return []
    by_range: dict[str, list[str]] = {}
    for info, facts in zip(findings.ranks, findings.facts, strict=True):
        by_range.setdefault(facts.ports, []).append(str(info.rank))
    where = ", ".join(f"{ports} on " + ("every node" if len(by_range) == 1 else
                                        f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}")
                      for ports, ranks in by_range.items())
    return [f"  TCP, for all nodes: {findings.world.master_port} on rank 0; and {where}, of which "
            "gloo uses some (fewer: docs/cluster.md)"]


def _matrix(findings: Findings, title: str, cell: Callable[[Link], str]) -> list[str]:
    rows = [[f"rank {a}", *("-" if a == b else cell(link) if link.connects else "NO LINK"
                            for b, link in enumerate(row))]
            for a, row in enumerate(findings.links)]
    return [title, *table(["", *(f"rank {rank}" for rank in range(len(rows)))], rows)]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of text with aligned columns, indented by two."""
    return ["  " + line for line in aligned([head, *rows])]
