"""The collectives that the rest of the program needs, each also correct without a process group.

Tensors must live on the device that the backend works on; every rank must call each of them.
"""

from collections.abc import Collection, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

LEADER = 0


def world_size() -> int:
    """The number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Replaces `tensor`, in place, by its sum over all ranks; returns it. Every rank must call."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def gather_rows(row: Tensor) -> Tensor:
    """Every rank's row, stacked by rank: (n,) becomes (world size, n). Every rank must call."""
    if world_size() == 1:
        return row.unsqueeze(0)
    rows = [torch.empty_like(row) for _ in range(world_size())]
    dist.all_gather(rows, row)
    return torch.stack(rows)


def gather_to_leader(tensor: Tensor) -> list[Tensor]:
    """Every rank's tensor, by rank, on the leader; nothing elsewhere. Every rank must call."""
    if world_size() == 1:
        return [tensor]
    is_leader = dist.get_rank() == LEADER
    rows = [torch.empty_like(tensor) for _ in range(world_size())] if is_leader else []
    dist.gather(tensor, rows or None, dst=LEADER)
    return rows


def share_leaders_buffers(model: nn.Module) -> None:
    """Gives every rank the leader's buffers (the running batch statistics). Every rank must call.

    This is the one policy for buffers, in every part: ranks keep their own while training, and the
    leader's count whenever the model is evaluated or saved.
    """
    if world_size() == 1:
        return
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for buffer in model.buffers():
        by_dtype.setdefault(buffer.dtype, []).append(buffer)
    for buffers in by_dtype.values():
        row = torch.cat([each.reshape(-1) for each in buffers])
        dist.broadcast(row, src=LEADER)
        pieces = row.split([each.numel() for each in buffers])
        for buffer, piece in zip(buffers, pieces, strict=True):
            buffer.copy_(piece.view_as(buffer))


def broadcast_bytes(data: bytes, device: torch.device) -> bytes:
    """The leader's `data`, on every rank; that of the other ranks is ignored. Every rank must call.

    The bytes travel as a uint8 tensor: nothing is pickled.
    """
    if world_size() == 1:
        return data
    length = torch.tensor([len(data)], dtype=torch.int64, device=device)
    dist.broadcast(length, src=LEADER)
    if int(length) == 0:
        return b""
    buffer = torch.empty(int(length), dtype=torch.uint8, device=device)
    if dist.get_rank() == LEADER:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(buffer, src=LEADER)
    return buffer.cpu().numpy().tobytes()


def hand_over(data: bytes, source: int, ranks: Collection[int], device: torch.device) -> bytes:
    """The `data` of rank `source`, on each of `ranks`; on the others what they give.

    Every one of those must call it; the rest may. The bytes travel as a uint8 tensor.
    """
    if dist.get_rank() == source:
        sent = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
        for rank in ranks:
            dist.send(torch.tensor([len(sent)], device=device), rank)
            dist.send(sent, rank)
    elif dist.get_rank() in ranks:
        length = torch.zeros(1, dtype=torch.int64, device=device)
        dist.recv(length, source)
        received = torch.empty(int(length), dtype=torch.uint8, device=device)
        dist.recv(received, source)
        return received.cpu().numpy().tobytes()
    return data


def gather_bytes(data: bytes, device: torch.device) -> list[bytes]:
    """Every rank's `data`, by rank, on every rank. Every rank must call it; nothing is pickled.

    Each rank sends as many bytes as the longest has.
    """
    lengths = gather_rows(torch.tensor([len(data)], dtype=torch.int64, device=device)).flatten()
    rows = gather_rows(_padded(data, int(lengths.max()), device))
    return _cut(rows, lengths.tolist())


def gather_bytes_to_leader(data: bytes, device: torch.device) -> list[bytes]:
    """Gathers bytes of any length on the leader; returns [] elsewhere. Every rank must call it.

    So no rank but the leader receives more, the more ranks there are.
    """
    length = torch.tensor([len(data)], dtype=torch.int64, device=device)
    longest = length.clone()
    if world_size() > 1:
        dist.all_reduce(longest, dist.ReduceOp.MAX)
    rows = gather_to_leader(_padded(data, int(longest), device))
    return _cut(rows, [int(each) for each in gather_to_leader(length)])


def _padded(data: bytes, length: int, device: torch.device) -> Tensor:
    row = torch.zeros(length, dtype=torch.uint8, device=device)
    if data:
        row[:len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return row


def _cut(rows: Iterable[Tensor], lengths: Sequence[int]) -> list[bytes]:
    return [bytes(row[:length].cpu().numpy())
            for row, length in zip(rows, lengths, strict=True)]


def ring_bytes(payload: int, ranks: int) -> int:
    """Bytes that each rank sends when `ranks` ranks all-reduce `payload` bytes around a ring.

    Reduce-scatter and all-gather each pass ranks-1 blocks of payload/ranks bytes on
    (Patarasuk and Yuan, 2009).
    """
    return round(2 * payload * (ranks - 1) / ranks)


def total_bytes(tensors: Iterable[Tensor]) -> int:
    """The size of all tensors together, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
