"""Downloads from a server of our own that cuts connections, changes files and answers badly."""

from __future__ import annotations

import email.message
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fullfield.models.downloads import DownloadError, compute_sha256, download_if_missing, extract_zip_member_if_missing

pytestmark = pytest.mark.unit

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SUM = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``content`` at any path, but 404 at /missing; ``cut`` answers break off after so many bytes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.tag = '"one"'
        self.cut: list[int] = []
        self.ranges = True
        self.asked: list[str | None] = []

    def url(self, path: str = "/file.bin") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.asked.append(self.headers.get("Range"))
        if self.path == "/missing":
            self.send_error(404)
            return
        begin = 0
        asked = self.headers.get("Range", "")
        if server.ranges and asked and self.headers.get("If-Range") == server.tag:
            begin = int(asked.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(server.content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(server.content) - 1}/{len(server.content)}")
        else:
            self.send_response(200)
        body = server.content[begin:]
        self.send_header("Content-Length", str(len(body)))
        if server.tag:
            self.send_header("ETag", server.tag)
        self.end_headers()
        self.wfile.write(body[: server.cut.pop(0)] if server.cut else body)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def test_download_is_complete_and_reports_progress(server: Server, tmp_path: Path) -> None:
    reports: list[tuple[int, int | None]] = []
    target = tmp_path / "file.bin"
    download_if_missing(
        server.url(), target, sha256=SUM[:8], progress=lambda done, total: reports.append((done, total))
    )
    assert target.read_bytes() == CONTENT
    assert names(tmp_path) == {"file.bin"}
    assert reports[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    download_if_missing(server.url(), target)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("tag", "ranges", "cut", "asked"),
    [
        ('"one"', True, [300_000, 200_000], [None, "bytes=300000-", "bytes=500000-"]),
        ('"one"', False, [100_000], [None, "bytes=100000-"]),
        ("", True, [100_000], [None, None]),  # without a version nothing is gone on from
        ('W/"weak"', True, [100_000], [None, None]),
    ],
)
def test_download_resumes_after_cut(
    server: Server, tmp_path: Path, tag: str, ranges: bool, cut: list[int], asked: list[str | None]
) -> None:
    server.tag, server.ranges, server.cut = tag, ranges, [*cut]
    download_if_missing(server.url(), tmp_path / "file.bin", sha256=SUM)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == asked


def test_download_resumes_in_later_call(server: Server, tmp_path: Path) -> None:
    server.cut = [100_000, 100_000, 100_000]
    target = tmp_path / "file.bin"
    with pytest.raises(DownloadError, match="broke off after 300000 of 1048576 bytes; a later call resumes"):
        download_if_missing(server.url(), target)
    assert names(tmp_path) == {"file.bin.part", "file.bin.part.tag"}
    server.asked.clear()
    download_if_missing(server.url(), target)
    assert server.asked == ["bytes=300000-"]
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("cut", "content", "tag"),
    [([100_000] * 3, CONTENT[::-1], '"two"'), ([500_000, 0, 0], CONTENT[:400_000], '"one"')],
    ids=["another version", "shorter"],
)
def test_download_restarts_when_file_changed(
    server: Server, tmp_path: Path, cut: list[int], content: bytes, tag: str
) -> None:
    server.cut, target = [*cut], tmp_path / "file.bin"
    with pytest.raises(DownloadError):
        download_if_missing(server.url(), target)
    server.content, server.tag = content, tag
    download_if_missing(server.url(), target)
    assert target.read_bytes() == content


def test_download_leaves_no_file_after_failure(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=f"expected the SHA-256 abcd, got {SUM}; nothing was kept"):
        download_if_missing(server.url(), tmp_path / "file.bin", sha256="abcd")
    assert names(tmp_path) == set()
    with pytest.raises(DownloadError, match=r"/missing: the server answered 404 Not Found$"):
        download_if_missing(server.url("/missing"), tmp_path / "file.bin")
    with pytest.raises(DownloadError, match=r"http://127\.0\.0\.1:9/x: cannot be reached \(.*refused.*\)$"):
        download_if_missing("http://127.0.0.1:9/x", tmp_path / "file.bin")
    assert names(tmp_path) == set()


def test_download_refuses_redirect_to_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer(io.BytesIO):
        url = "http://elsewhere/file.bin"
        status = 200
        headers = email.message.Message()

    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Answer(CONTENT))
    with pytest.raises(DownloadError, match=r"https://here/file\.bin: the server sent us on to http://elsewhere/"):
        download_if_missing("https://here/file.bin", tmp_path / "file.bin")
    assert names(tmp_path) == set()
    download_if_missing("http://here/file.bin", tmp_path / "file.bin", sha256=SUM)


def test_download_runs_once_for_many_processes(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    callers = [
        threading.Thread(target=download_if_missing, args=(server.url(), target), kwargs={"sha256": SUM})
        for _ in range(6)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert target.read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_download_extracts_archive_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("models/x.pth", CONTENT)
    target = tmp_path / "x.pth"
    extract_zip_member_if_missing(archive, "models/x.pth", target, sha256=SUM)
    assert compute_sha256(target) == SUM
    for member, sha256, message in (
        ("models/y.pth", None, "expected models/y.pth inside"),
        ("models/x.pth", "ab", "SHA"),
    ):
        with pytest.raises(DownloadError, match=message):
            extract_zip_member_if_missing(archive, member, tmp_path / "y.pth", sha256=sha256)
    monkeypatch.setattr("fullfield.models.downloads._LARGEST_MEMBER", len(CONTENT) - 1)
    with pytest.raises(DownloadError, match="claims 1048576 bytes, more than any weights have"):
        extract_zip_member_if_missing(archive, "models/x.pth", tmp_path / "y.pth")
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(DownloadError, match="expected a zip file"):
        extract_zip_member_if_missing(archive, "models/x.pth", tmp_path / "y.pth")
    assert names(tmp_path) == {"a.zip", "x.pth"}
