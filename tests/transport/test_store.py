from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, Store

from epe.errors import StartFailed
from epe.transport.store import host_store, interface_of, is_loopback, join_store, split_store, told_by_all


def test_a_store_is_served_on_the_socket_that_the_parent_bound() -> None:
    listen = socket.create_server(("127.0.0.1", 0))
    port = listen.getsockname()[1]
    store = host_store(listen)
    assert store.port == port
    client = join_store("127.0.0.1", port, timeout_s=5)
    client.set("key", "value")
    assert store.get("key") == b"value"


def test_a_port_in_use_is_one_clear_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            StartFailed, match=rf"cannot listen on 127.0.0.1:{port} .*; choose another port or host"
        ):
            host_store(port=port)


def test_a_store_that_is_not_there_is_named_after_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(StartFailed, match=rf"no store answers at 127.0.0.1:{port} within 0.2 s"):
        join_store("127.0.0.1", port, timeout_s=0.2)


def test_epochs_and_attempts_do_not_see_each_other() -> None:
    store = host_store()
    split_store(store, 1).set("key", "old")
    assert not split_store(store, 2).check(["key"])
    assert not split_store(store, 1, attempt=1).check(["key"])
    assert split_store(store, 1).get("key") == b"old"


def test_a_world_keeps_to_loopback_only_if_its_store_is_there() -> None:
    assert interface_of(split_store(host_store(), 0)) in ("lo", "lo0")
    assert interface_of(HashStore()) is None
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")


def tell(store: Store, words: list[str]) -> list[list[str]]:
    """What each rank of a world hears, where each says one of `words`."""

    def say(rank: int) -> list[str]:
        return told_by_all(store, "word", words[rank], rank=rank, world_size=len(words), timeout_s=20)

    with ThreadPoolExecutor(len(words)) as ranks:
        return list(ranks.map(say, range(len(words))))


def test_all_ranks_hear_what_each_has_told_and_its_first_word_counts() -> None:
    store = HashStore()
    assert tell(store, ["a", "", "c"]) == [["a", "", "c"]] * 3
    assert told_by_all(store, "word", "x", rank=2, world_size=3, timeout_s=0) == ["a", "", "c"]


def test_what_ranks_of_another_epoch_told_is_not_heard() -> None:
    store = HashStore()
    assert tell(split_store(store, 0), ["a", "b"]) == [["a", "b"]] * 2
    assert tell(split_store(store, 1), ["c", "b"]) == [["c", "b"]] * 2


def test_ranks_that_tell_nothing_are_named() -> None:
    with pytest.raises(StartFailed, match=r"^rank 0, 2 told nobody its word within 0.05 s$"):
        told_by_all(HashStore(), "word", "b", rank=1, world_size=3, timeout_s=0.05)


def test_a_store_whose_process_has_ended_is_a_sentence() -> None:
    """A rank whose rank 0 was killed while both loaded ended with a traceback of torch's."""
    host = host_store()
    client = join_store("127.0.0.1", host.port, timeout_s=0.2)
    del host
    with pytest.raises(StartFailed, match=r"^rank 1 could not tell the others its word: the store does not"):
        told_by_all(client, "word", "b", rank=1, world_size=2, timeout_s=20)
