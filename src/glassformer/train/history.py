"""The log of a run: one CSV row for each logged step, the same to TensorBoard where it is installed, and a picture."""

import csv
import io
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from glassformer.checkpoint import write_file
from glassformer.errors import DataError


@dataclass(frozen=True)
class Row:
    """One line of log.csv; fields that weren't measured at this step are empty.

    load: with experts, what the fullest of each layer got, in multiples of the mean (in the file with spaces between).
    """

    step: int
    tokens: int
    loss: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    load: tuple[float, ...] | None = None


NAMES = tuple(field.name for field in fields(Row))


class History:
    """Appends rows as they come; a resumed run first drops those after its checkpoint, so that steps never repeat."""

    def __init__(self, path: Path, step: int, board: Path | None = None):
        """`step`: where the run starts or goes on; `board`: a folder for TensorBoard."""
        self.rows = [row for row in read_log(path) if row.step <= step] if path.exists() else []
        write_file(path, _text([NAMES, *(_cells(row) for row in self.rows)]).encode())
        self._file = path.open("a", encoding="utf-8", newline="")
        self._board = _open_board(board, step)

    def add(self, row: Row) -> None:
        """Append a row, to the file at once."""
        self.rows.append(row)
        self._file.write(_text([_cells(row)]))
        self._file.flush()
        if self._board is not None:
            for name, value in asdict(row).items():
                if value is not None and name not in ("step", "tokens", "load"):
                    self._board.add_scalar(name, value, row.step)
            for layer, load in enumerate(row.load or ()):
                self._board.add_scalar(f"load/{layer}", load, row.step)

    def close(self) -> None:
        """Hand everything to the disk."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_log(path: Path) -> list[Row]:
    """The rows of a log.csv."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [_row(line) for line in csv.DictReader(file) if line.get("step")]
    except (OSError, ValueError) as error:
        raise DataError(f"not a log of a run: {error}", where=path, do="move it away and resume") from None


def draw_losses(rows: list[Row], path: Path) -> None:
    """Loss curves of training and validation as a PNG: nats per token over tokens seen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    train = [(row.tokens, row.loss) for row in rows if row.loss is not None]
    held_out = [(row.tokens, row.validation_loss) for row in rows if row.validation_loss is not None]
    if train:
        axes.plot(*zip(*train, strict=True), color="0.7", linewidth=0.8, label="training, single steps")
        smooth = _smooth([loss for _, loss in train])
        axes.plot([tokens for tokens, _ in train], smooth, color="tab:blue", label="training, smoothed")
    if held_out:
        best = min(loss for _, loss in held_out)
        axes.plot(
            *zip(*held_out, strict=True), "o-", color="tab:orange", markersize=3, label=f"validation, best {best:.4f}"
        )
    axes.set(xlabel="tokens seen", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    if train or held_out:
        axes.legend()
    picture = io.BytesIO()
    FigureCanvasAgg(figure).print_png(picture)
    write_file(path, picture.getvalue())


def _smooth(values: list[float], keep: float = 0.9) -> list[float]:
    """Exponential moving average, corrected for its start."""
    smooth: list[float] = []
    total = weight = 0.0
    for value in values:
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        smooth.append(total / weight)
    return smooth


def _open_board(folder: Path | None, step: int) -> Any:
    if folder is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # an optional extra
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)


def _cells(row: Row) -> list[str]:
    cells = {**asdict(row), "load": None if row.load is None else " ".join(map(repr, row.load))}
    return ["" if value is None else value if isinstance(value, str) else repr(value) for value in cells.values()]


def _row(line: dict[str, str]) -> Row:
    numbers: dict[str, Any] = {name: float(line[name]) if line.get(name) else None for name in NAMES if name != "load"}
    load = tuple(float(part) for part in (line.get("load") or "").split()) or None
    return Row(**{**numbers, "step": int(line["step"]), "tokens": int(line["tokens"]), "load": load})


def _text(lines: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
