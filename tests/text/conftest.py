"""A small model as a Hugging Face folder, for each module its own."""

import pytest

from engine.runtime.text.folder import write_folder
from engine.runtime.text.gguf_tokenizer import read_gguf
from tests.text.small_models import write_byte_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    write_folder(read_gguf(write_byte_model(path / "m.gguf")), path)
    return path
