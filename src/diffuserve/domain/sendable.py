"""The mark of what the ranks of a worker may send one another."""


class Sendable:
    """Marks the dataclasses of messages between ranks; a message that names any other class is refused.

    Their fields hold plain values, tensors, arrays, images and other such dataclasses.
    """
