"""What a ticket is, and what is done to one before a model sees it.

`Ticket` is the contract: a record that breaks it goes into quarantine, with field and reason.
`shorten` is a transform: it takes the values of a record and gives those that follow.

    firsthand data check examples/tickets/tickets.csv --contract examples/tickets/tickets.py:Ticket
"""

from datetime import date
from typing import Any, Literal

from pydantic import Field, model_validator

from firsthand.data import Contract, NotBlank


class Ticket(Contract):
    version = "1"
    key = "ticket_id"  # a second record with the same one is a duplicate

    ticket_id: str = Field(pattern=r"T-[0-9]+")
    opened: date
    product: Literal["phone", "router", "watch"]
    text: NotBlank = Field(max_length=4000)
    priority: int = Field(default=3, ge=1, le=5)

    @model_validator(mode="after")
    def urgent_ones_say_more(self) -> "Ticket":
        """A rule over several fields; what it raises is the record's reason."""
        if self.priority == 1 and len(self.text) < 20:
            raise ValueError("a ticket of priority 1 needs a text of 20 characters")
        return self


def shorten(values: dict[str, Any], limit: int) -> dict[str, Any]:
    return values | {"text": values["text"][:limit]}
