"""Two ends of a queue in one process, so that a test decides what has arrived when."""

import numpy as np
import pytest

from minidist.comm.transports.messages import HEADER_BYTES
from minidist.comm.transports.shared_memory.byte_queue import ALIGNMENT, COUNTERS, ByteQueue
from minidist.comm.transports.shared_memory.queues import SharedMemoryTransport
from minidist.comm.transports.shared_memory.segment import StatusLine
from minidist.comm.transports.transport import Transport

CAPACITY = 1024  # bytes: a few headers


class Memory:
    """What a Transport needs of a Segment, in this process's own memory."""

    world_size, aborted = 2, False

    def __init__(self) -> None:
        self.status = [StatusLine(memoryview(bytearray(ALIGNMENT))) for _ in range(2)]
        self.queues = {pair: bytearray(COUNTERS + CAPACITY) for pair in ((0, 1), (1, 0))}

    def queue(self, source: int, destination: int) -> ByteQueue:
        return ByteQueue(memoryview(self.queues[source, destination]), CAPACITY)


@pytest.fixture
def ends() -> list[Transport]:
    """The transports of rank 0, which sends, and of rank 1."""
    memory = Memory()
    return [SharedMemoryTransport(memory, rank) for rank in range(2)]


def send(sender: Transport, values, tag: int):
    return sender.isend(np.asarray(values, np.int64), 1, 0, tag, b"a call", "send")


def ask(receiver: Transport, elements: int, tag: int):
    """The posted receive, and the array that it fills."""
    array = np.full(elements, -1)
    return receiver.irecv(array, 0, 0, tag, b"a call", "recv", None), array


def move(*transports: Transport) -> None:
    """Have both move until neither can."""
    while any([transport.progress() for transport in transports]):
        pass


def test_headers_and_payloads_are_whole_wherever_the_queue_ends(ends):
    sender, receiver = ends
    starts = set()
    for number in range(100):
        queue = sender.outgoing[1]
        starts.add(queue.written % CAPACITY)
        values = np.arange(number % 41) + number
        sending = send(sender, values, tag=number)
        receive, array = ask(receiver, len(values), tag=number)
        move(receiver, sender)
        assert sending.done and receive.done and receive.error is None and receive.number == number
        assert (array == values).all()
    assert starts == set(range(0, CAPACITY, ALIGNMENT))  # so that the end has cut headers after each of their lines
    assert HEADER_BYTES > 2 * ALIGNMENT


def test_the_header_of_an_unexpected_message_is_whole_too(ends):
    sender, receiver = ends
    for number in range(CAPACITY // ALIGNMENT):
        send(sender, [number], tag=1)
        send(sender, [], tag=2)
        later, _ = ask(receiver, 0, tag=2)
        move(receiver, sender)
        assert later.done
    assert [message.tag for message in receiver.unexpected[0]] == [1] * (CAPACITY // ALIGNMENT)
    assert [int(message.buffer.view(np.int64)[0]) for message in receiver.unexpected[0]] == list(range(16))


def test_the_oldest_unexpected_message_is_taken_first(ends):
    """Of three with one tag the first two have arrived and the third has begun to, when the first is asked for."""
    sender, receiver = ends
    big = CAPACITY // 8 * 2  # elements: twice what the queue holds
    for value in (10, 20, 30):
        send(sender, np.full(big, value), tag=1)
    send(sender, [], tag=2)
    last, _ = ask(receiver, 0, tag=2)
    while len(receiver.unexpected[0]) < 2 or receiver.arriving[0] is None:
        assert sender.progress() | receiver.progress()
    assert 0 < receiver.arriving[0].offset < receiver.arriving[0].nbytes

    asked = [ask(receiver, big, tag=1) for _ in range(3)]
    move(receiver, sender)
    assert [receive.number for receive, _ in asked] == [0, 1, 2] and last.done
    assert [set(array.tolist()) for _, array in asked] == [{10}, {20}, {30}]


@pytest.mark.parametrize("beyond", [-8, 0, 8])  # bytes that the payload has more than what leaves with its header
def test_a_short_payload_leaves_whole_and_a_longer_one_in_pieces(ends, beyond):
    sender, receiver = ends
    filler = send(sender, np.zeros(CAPACITY // 16), tag=1)  # half of the queue, and its header
    values = np.arange((sender.short + beyond) // 8)
    sending = send(sender, values, tag=2)
    assert filler.done and not sending.done
    assert (sending.header is None) == (beyond > 0)  # the header alone has room, the payload behind it has not

    receive, array = ask(receiver, len(values), tag=2)
    move(receiver, sender)
    assert sending.done and receive.done and receive.error is None and (array == values).all()
