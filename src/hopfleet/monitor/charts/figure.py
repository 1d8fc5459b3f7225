"""The figure of a chart, which a notebook displays although pyplot does not know it."""

from __future__ import annotations

import io

from hopfleet.errors import MissingExtra, UsageError

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtra("matplotlib", "plot") from error


class ChartFigure(Figure):
    """A figure apart from pyplot's, so that a notebook displays it once and a script keeps none of them in memory."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=100)
        return file.getvalue()

    def show(self, warn: bool = True) -> None:
        """Open the figure in a window and wait until the window is closed, as ``pyplot.show`` does."""
        from matplotlib import pyplot

        try:
            pyplot.figure(self)
        except ValueError as error:
            raise UsageError(
                "show(): needs matplotlib 3.11 or later; plot(kind, path) writes a file instead"
            ) from error
        pyplot.show()
