"""Writes to the store as values; commands of a class are applied together."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Self, TypeVar

from diffuserve.domain.errors import DiffuserveError
from diffuserve.jobs.database.connections import Transaction

Outcome = TypeVar("Outcome")


class Command(ABC, Generic[Outcome]):
    """A write and its parameters; subclasses are frozen dataclasses.

    The writer applies all commands of a class that wait for the same commit with one call, so that
    they share statements.
    """

    @classmethod
    @abstractmethod
    def apply_many(
        cls, transaction: Transaction, commands: Sequence[Self]
    ) -> Sequence[Outcome | DiffuserveError]:
        """Return the outcome of each command, in their order.

        An error is the outcome of only its own command, which then changed nothing. After a commit whose
        result was lost the same commands are applied again (`transaction.is_retry`): each must recognize its
        earlier writes, and return the same outcome.
        """


class SingleCommand(Command[Outcome]):
    """A command that shares no statement with others of its class."""

    @classmethod
    def apply_many(
        cls, transaction: Transaction, commands: Sequence[Self]
    ) -> Sequence[Outcome | DiffuserveError]:
        return [command.apply(transaction) for command in commands]

    @abstractmethod
    def apply(self, transaction: Transaction) -> Outcome | DiffuserveError:
        """Return the outcome, or the error that is raised to the caller."""
