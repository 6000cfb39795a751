import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """Torch's threads spin at barriers: beside any other load two are far slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
