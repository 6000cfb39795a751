import socket

import pytest

from gateway.listener import ListenError, bind


def test_port_zero_takes_a_free_one() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_a_taken_port_is_refused_before_anything_accepts_on_it() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError, match=f"^port {port} on 127.0.0.1 is taken: "):
            bind("127.0.0.1", port)


def test_a_port_is_free_again_at_once() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = first.accept()
        accepted.close()  # this side closes first and is left with the connection's remains
        client.close()
    with bind("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(ListenError, match=r"^cannot listen on 192\.0\.2\.1:0: "):
        bind("192.0.2.1", 0)
    with pytest.raises(ListenError, match=r"^server\.host 'no host' is not an address here: "):
        bind("no host", 0)
