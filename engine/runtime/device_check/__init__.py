"""One script that proves the GPU runtime on a card: `python -m engine.runtime.device_check`."""
