"""A desk that makes requests of a controller."""

from __future__ import annotations

from hopfleet.domain import messages as m
from tests.helpers.controller_desk import Desk


class Wheel(Desk):
    """A desk with somebody who asks."""

    def ask(self, request, **arguments):
        return self.tell(m.RequestMade(request, arguments, "ada", 7))

    def refused(self, request, **arguments):
        """The reason; nothing else may follow from a wish that is refused."""
        (answer,) = self.ask(request, **arguments)
        assert not answer.granted and answer.number == 7
        return answer.text

    def granted(self, request, **arguments):
        """What was said, and what followed."""
        answer, *follow = self.ask(request, **arguments)
        assert answer.granted, answer.text
        return answer.text, follow
