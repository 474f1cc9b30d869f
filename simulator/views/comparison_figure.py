"""The comparison as one figure: DataParallel above DistributedDataParallel on one time axis, the finding as title."""

from pathlib import Path

from simulator.compare import Comparison
from simulator.verdict import verdict
from simulator.views.gantt import timeline_figure
from simulator.views.save import drawn_language, save_figure


def save_comparison(comparison: Comparison, path: Path, language: str = "en", theme: str = "light") -> None:
    """Write the figure as *.svg or *.png; in English where no font has the Chinese signs. Raises InputError."""
    language = drawn_language(language)
    runs = [(name, run.trace) for name, run in comparison.runs.items()]
    save_figure(timeline_figure(runs, title=verdict(comparison).text(language), theme=theme, language=language), path)
