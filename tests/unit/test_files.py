"""Files are read where they are regular files; names from outside are shown, and obeyed by nothing.

Mutations that turn this red: open before looking at what it is; look only before opening; read
whatever size; drop `category(letter) == "Zs"`, or the bytes' case, from visible; let standard
output, too, begin with "\\r"; take `<` or `[` out of as_markdown.
"""

import errno
import io
import os
import socket
import sys
from pathlib import Path

import pytest

from common.core.events import read_events
from common.core.failures import CheckpointError, DataError, Failure
from common.core.files import open_file, parse_json, read_bytes, read_json, read_text
from common.core.markdown import as_markdown
from common.core.output import Output
from common.core.visible import visible
from common.run import checkpoint_file
from common.run.checkpoint_plain import why_not_loaded
from tests.facts import says


def as_a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        folder = os.open(path.parent, os.O_RDONLY)
        unix.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


@pytest.mark.parametrize("make, number, what", [
    (os.mkfifo, errno.EINVAL, "pipe"), (os.mkdir, errno.EINVAL, "folder"),
    (as_a_socket, errno.EINVAL, "socket"),
    (lambda path: path.symlink_to("/dev/zero"), errno.EINVAL, "device"),
    (lambda path: path.symlink_to(path), errno.ELOOP, os.strerror(errno.ELOOP)),
    (lambda path: path.symlink_to("nothing"), errno.ENOENT, os.strerror(errno.ENOENT))])
def test_what_is_no_file_is_not_waited_for(make, number, what, tmp_path):
    make(path := tmp_path / "file")
    for read in (open_file, read_bytes, read_text, read_json):
        with pytest.raises(OSError) as caught:
            read(path)
        assert caught.value.errno == number and says(caught.value.strerror, what)


def test_a_file_that_is_replaced_by_a_pipe_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    of_a_file = os.stat(__file__)
    monkeypatch.setattr(os, "stat", lambda path: of_a_file)
    with pytest.raises(OSError) as raised:
        open_file(tmp_path / "pipe")
    assert raised.value.errno == errno.EINVAL and says(raised.value.strerror, "pipe")


def test_an_endless_file_is_not_read(tmp_path):
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 10 << 30)
    with pytest.raises(OSError) as raised:
        read_bytes(tmp_path / "sparse")
    assert raised.value.errno == errno.EFBIG and says(raised.value.strerror, "10.7 GB")
    with pytest.raises(CheckpointError) as refused:
        checkpoint_file.read(tmp_path / "sparse")
    assert says(refused.value, tmp_path / "sparse") and "memory" not in str(refused.value)


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, "{", b"\xff"], ids=range(4))
def test_json_that_cannot_be_read_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_json(text)


def test_events_are_lines_that_hold_one(tmp_path):
    path = tmp_path / "metrics_rank0.jsonl"
    path.write_bytes(b'[]\n1\n{"a": 1}\n\xff\n' + b"[" * 100_000 + b'\n{"event": "end"}\n{"even')
    assert list(read_events(path)) == [{"event": "end"}]
    path.unlink()
    assert list(read_events(path)) == []
    os.mkfifo(path)
    with pytest.raises(DataError) as raised:
        list(read_events(path))
    assert says(raised.value, path, "pipe")


def test_torchs_advice_to_run_a_files_code_is_not_passed_on():
    why = why_not_loaded(b"hello")
    assert says(why, "torch.save") and "weights_only" not in why


@pytest.mark.parametrize("text, shown", [
    ("café 日本語 ß שלום नमस्ते", "café 日本語 ß שלום नमस्ते"), ("a\u00a0b\u3000c", "a\u00a0b\u3000c"),
    ("\x1b]0;title\x07", r"\x1b]0;title\x07"), ("a\nb\tc\r", r"a\nb\tc\r"), ("\x9b2J", r"\x9b2J"),
    ("\u202egnp.exe", r"\u202egnp.exe"), ("\u2028", r"\u2028"),
    (b"\xff.png".decode(errors="surrogateescape"), r"\xff.png"), ("\ud800", r"\ud800")])
def test_names_are_shown_with_what_has_no_shape_escaped(text, shown):
    assert visible(text) == shown and visible(shown) == shown
    assert str(Failure(f"{text}|")) == shown.replace(r"a\nb\tc\r", "a b c ").replace(
        r"\u2028", " ").replace("\u00a0", " ").replace("\u3000", " ").lstrip() + "|"


def written(text: str, has_bars: bool, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(buffer := io.BytesIO(), encoding=encoding, newline="")
    output = Output(stream, has_bars)
    assert output.write(text) == len(text)
    output.flush()
    return buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("text, on_stdout, on_stderr", [
    ("one\n\ttwo é\n", "one\n\ttwo é\n", "one\n\ttwo é\n"),
    ("\rbar 50 %", r"\rbar 50 %", "\rbar 50 %"), ("\x1b[A", r"\x1b[A", "\x1b[A"),
    ("\r\x1b[Kerror: \x1b[2J\n", "\\r\\x1b[Kerror: \\x1b[2J\n", "\r\x1b[Kerror: \\x1b[2J\n"),
    ("error: a\rb\x1b[A\n", "error: a\\rb\\x1b[A\n", "error: a\\rb\\x1b[A\n")])
def test_only_a_progress_bar_moves_the_cursor(text, on_stdout, on_stderr):
    assert (written(text, False), written(text, True)) == (on_stdout, on_stderr)


def test_a_terminal_of_ascii_alone_gets_escapes():
    assert written("± 日\udcff\n", False, "ascii") == "\\xb1 \\u65e5\\xff\n"


def test_a_real_bar_and_a_real_print_arrive(tmp_path):
    from tqdm import tqdm

    stream = io.StringIO()
    with tqdm(total=2, file=Output(stream, True), mininterval=0, ascii=True, leave=False) as bar:
        bar.update()
    assert "\r" in stream.getvalue() and "\\r" not in stream.getvalue()
    print("\x1b[31mred", file=Output(out := io.StringIO()))
    assert out.getvalue() == "\\x1b[31mred\n" and sys.stdout is not out


@pytest.mark.parametrize("words, text", [
    ("_Convolve of batch_norm, 2 * 3", r"\_Convolve of batch_norm, 2 \* 3"),
    ("<img src=x>&amp;", "&lt;img src=x>&amp;amp;"), ("[a](javascript:b)", r"\[a\](javascript:b)"),
    ("a|b`c`$x$", r"a\|b\`c\`\$x\$"), ("# a\n# b", r"\# a\\n# b"), ("2 ± 1 %", "2 ± 1 %")])
def test_words_in_markdown_are_those_words(words, text):
    assert as_markdown(words) == text
