"""An engine on a card that lost its executor: the next one needs all of its memory."""

import weakref
from dataclasses import replace
from pathlib import Path

import torch

from engine.runtime import loader
from engine.runtime.gpu import build
from gateway.model_source import ModelSource, executor_factory
from tests.runtime.driver import TINY, tiny_config


class Executor:
    """Stands for one on a card that is not here."""

    def warm_up(self):
        pass


def test_a_lost_executor_is_gone_before_weights_are_read(monkeypatch):
    """Also where its own references keep it; after that, memory goes back to the card."""
    held, done = [], []

    def read(*_which):
        done.append(("read", [ref() is not None for ref in held]))

    def make(*_which):
        made = Executor()
        made.itself = made
        held.append(weakref.ref(made))
        return made

    monkeypatch.setattr(loader, "load_quickest", read)
    monkeypatch.setattr(build, "make_executor", make)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("given back"))
    form = torch.bfloat16
    source = ModelSource(Path(), TINY, form, form, torch.device("cuda"), "")
    start = executor_factory(source, replace(tiny_config(), max_in_flight=2), 0)
    start()
    start()
    assert done == ["given back", ("read", []), "given back", ("read", [False])]
