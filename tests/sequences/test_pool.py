"""Which process gets which chunk."""

from __future__ import annotations

import threading

import torch

from fullfield.io.scanlines import HEAD
from fullfield.sequences.pool import _Chunks, chunks
from fullfield.sequences.run import _Rooms
from fullfield.sequences.stages import Spent, Stages


def test_processes_begin_far_apart_and_go_on_side_by_side() -> None:
    every = chunks(range(1, 201), 2, 12)
    assert [number for chunk in every for number in chunk] == list(range(1, 201))
    left = _Chunks(every)
    one, first = left.first([])
    two, second = left.first([one])
    assert first == every[0]
    assert (one, two) == (0, (len(every) - 1) // 2 + 1)
    assert second == every[two]
    for place in range(1, two):
        assert left.following(place - 1) == every[place]
    assert left.following(two - 1) == [], "that is the other one's"
    count = len(left)
    stolen, chunk = left.first([two])
    assert stolen == two + 1 + count // 2, "the middle of what the other one has before it"
    assert chunk == every[stolen]
    left.back([77])
    taken = [left.first([two])[1] for _ in range(len(left))]
    assert sorted([*taken, chunk]) == sorted([*every[two + 1 :], [77]])
    assert not len(left)
    assert left.following(0) == []


def test_what_is_laid_back_is_next_to_nothing() -> None:
    left = _Chunks([[1], [2]])
    place, _ = left.first([])
    left.back([9])
    left.back([10])
    places = {}
    while len(left):
        found, chunk = left.first([place])
        places[chunk[0]] = found
        assert left.following(found) == []
    assert set(places) == {2, 9, 10}


def test_rooms_are_used_again_by_one_at_a_time() -> None:
    rooms = _Rooms(pinned=False)
    flow = {"forward": torch.zeros(2, 5, 7), "occlusion.forward": torch.zeros(5, 7)}
    with rooms.room(flow, half=False) as one, rooms.room(flow, half=False) as two:
        assert one.shape == two.shape == (5, HEAD + 3 * 7 * 4)
        assert one.data_ptr() != two.data_ptr()
        kept = {one.data_ptr(), two.data_ptr()}
    with rooms.room(flow, half=False) as again:
        assert again.data_ptr() in kept
    with rooms.room(flow, half=True) as other:
        assert other.shape == (5, HEAD + 3 * 7 * 2)


def test_stages_add_up_from_every_thread() -> None:
    stages = Stages()

    def work() -> None:
        for _ in range(50):
            with stages.stage("one"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stages.spent["one"].times == 200
    stages.add({"one": Spent(1, 2.0, 1.0), "two": Spent(3, 1.0, 0.5)})
    assert stages.spent["two"] == Spent(3, 1.0, 0.5)
    assert 2.0 < stages.spent["one"].wall_s < 3.0
