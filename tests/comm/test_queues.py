"""Two ends of a queue in one process, so that a test decides what has arrived when."""

import numpy as np

from minidist.comm.transports.byte_queue import ALIGNMENT, COUNTERS, ByteQueue
from minidist.comm.transports.messages import HEADER_BYTES
from minidist.comm.transports.shared_memory import SharedMemoryTransport, StatusLine
from minidist.comm.transports.transport import Transport

CAPACITY = 1024  # bytes: a few headers
CALL = b"a call " * 21  # fills a header to its last line


class Memory:
    """Stand-in for a Segment in this process's own memory, with all that a Transport needs."""

    world_size, aborted = 2, False

    def __init__(self) -> None:
        self.status = [StatusLine(memoryview(bytearray(ALIGNMENT))) for _ in range(2)]
        self.queues = {pair: bytearray(COUNTERS + CAPACITY) for pair in ((0, 1), (1, 0))}

    def queue(self, source: int, destination: int) -> ByteQueue:
        return ByteQueue(memoryview(self.queues[source, destination]), CAPACITY)


def ends() -> list[Transport]:
    """The transports of rank 0, which sends, and of rank 1."""
    memory = Memory()
    return [SharedMemoryTransport(memory, rank) for rank in range(2)]


def send(sender: Transport, values, tag: int):
    return sender.isend(np.asarray(values, np.int64), 1, 0, tag, CALL, "send")


def ask(receiver: Transport, elements: int, tag: int, combine=None):
    """The posted receive, and the array that it fills."""
    array = np.full(elements, -9)
    return receiver.irecv(array, 0, 0, tag, CALL, "recv", combine), array


def receives(receiver: Transport, sender: Transport, values, tag: int) -> bool:
    """Whether a receive that is posted now gets these values, once neither can move any more."""
    receive, array = ask(receiver, len(values), tag)
    while any([receiver.progress(), sender.progress()]):
        pass
    return receive.done and receive.error is None and (array == values).all()


def test_headers_and_payloads_are_whole_wherever_the_queue_ends():
    """Expected ones, then unexpected ones."""
    (sender, receiver), starts = ends(), set()
    for number in range(100):
        starts.add(sender.outgoing[1].written % CAPACITY)
        values = np.arange(number % 41) + number
        sending = send(sender, values, tag=number)
        assert receives(receiver, sender, values, tag=number) and sending.done
    assert starts == set(range(0, CAPACITY, ALIGNMENT))  # so that the end has cut headers after each of their lines
    assert HEADER_BYTES > 2 * ALIGNMENT
    for number in range(16):
        send(sender, [number], tag=1)
        send(sender, [], tag=2)
        assert receives(receiver, sender, [], tag=2)
    unexpected = [(message.tag, int(message.buffer.view(np.int64)[0])) for message in receiver.unexpected[0]]
    assert unexpected == [(1, number) for number in range(CAPACITY // ALIGNMENT)]


def test_a_short_payload_leaves_whole_and_a_longer_one_in_pieces():
    for beyond in (-8, 0, 8):  # bytes that the payload has more than what leaves with its header
        sender, receiver = ends()
        filler = send(sender, np.zeros(CAPACITY // 16), tag=1)  # half of the queue, and its header
        values = np.arange((sender.short + beyond) // 8)
        sending = send(sender, values, tag=2)
        assert filler.done and not sending.done
        assert (sending.header is None) == (beyond > 0)  # the header alone has room, the payload behind it has not
        assert receives(receiver, sender, values, tag=2) and sending.done


def test_messages_with_one_tag_do_not_overtake_each_other():
    """A receive is posted while its message arrives, behind complete ones with its tag: another receive was waiting."""
    for combine, before in ((None, 0), (np.add, 0), (None, 2)):
        sender, receiver = ends()
        for i in range(before):
            send(sender, [i], tag=1)
        sending = send(sender, np.full(CAPACITY, before), tag=1)  # several times as many bytes as the queue holds
        ask(receiver, 0, tag=2)
        while receiver.arriving[0] is None:
            assert receiver.progress()
        assert len(receiver.unexpected[0]) == before and receiver.arriving[0].offset < 8 * CAPACITY
        asked = [ask(receiver, CAPACITY if i == before else 1, 1, combine) for i in range(before + 1)]
        assert receiver.arriving[0] is not None  # the last is matched while it arrives
        send(sender, [], tag=3)
        assert receives(receiver, sender, [], tag=3) and sending.done
        for i, (receive, array) in enumerate(asked):
            assert receive.done and receive.error is None and (array == (i - 9 if combine else i)).all()
