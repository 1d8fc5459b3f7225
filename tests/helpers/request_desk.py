"""A desk that makes requests of a controller."""

from __future__ import annotations

from hopfleet.domain import messages as m
from tests.helpers.controller_desk import Desk


class RequestDesk(Desk):
    """A desk that passes on the requests of a user."""

    def ask(self, request, **arguments):
        return self.tell(m.RequestMade(request, arguments, "ada", 7))

    def refused(self, request, **arguments):
        """Return the reason of a refusal; nothing else may follow from a refused request."""
        (answer,) = self.ask(request, **arguments)
        assert not answer.granted and answer.number == 7
        return answer.text

    def granted(self, request, **arguments):
        """Return the text of the answer, and what followed."""
        answer, *follow = self.ask(request, **arguments)
        assert answer.granted, answer.text
        return answer.text, follow
